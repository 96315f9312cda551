"""`calibrate` with result files of benchmarks: their rows beside forecasts become evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..calibration import picture_causes, power_causes
from ..calibration.evidence_file import (
    EVIDENCE_FORMAT,
    LEAST_SENSITIVITY,
    MOST_SENSITIVITY,
    EvidenceCalibration,
    EvidenceProvenance,
    assume_factor,
    is_interval,
    is_plausible,
    rounded_shares,
)
from ..calibration.posterior import Observation, shares_of
from ..distributed import link_causes
from ..engines.causes import FIRST_TOKEN, TIME_PER_TOKEN
from ..engines.division import Division
from ..engines.records import LOCAL_ENGINES
from ..errors import BadValue, PaleoError
from ..files import sha256_of
from ..machines import Device, find_device
from ..own_machines import causes as local_causes
from ..own_machines.contents import read_contents
from ..own_machines.predict import LocalPrediction
from ..own_machines.step import local_constants
from ..progress import report
from ..result_files.beside import Forecast
from ..result_files.configuration import count_of
from ..result_files.detect import read_result
from ..result_files.findings import Findings, Reading
from ..result_files.power import STEADY_RATIO
from ..result_files.repeated import leave_out_repeated_rows
from ..result_files.text import to_number
from ..serving import causes as server_causes
from ..serving.answers import Serving
from ..serving.deployment import Deployment
from ..serving.kernel_timer import KernelTimer
from ..serving.learned import KIND as SERVER
from ..serving.learned import engine_traits
from ..serving.outcomes import LATENCIES
from ..serving.placement import ModelOnDevice
from ..text import format_plural
from ..timing.activity import Shares
from ..timing.calibrated import CalibratedModel
from ..timing.energy import power_of
from ..timing.pipelines import predict_pipeline
from ..version import __version__
from .contradictions import contradictions
from .deployments import Deployments, find_decoder
from .link_forecasts import MeasuredCollective
from .result_forecasts import (
    NotShipped,
    PictureRow,
    describe_situation,
    facts_of,
    forecast_figures,
    thinned_readings,
)
from .training_rows import describe_assumptions, is_training, observe_training

BETWEEN_MEMORIES = "copy"
"""Kind of a reading of copies between the memories of devices and hosts."""

ASKED = ("gpu", "network", "engine")
"""Facts without which no row is evidence."""

ASSUMED = {
    "tensor": "one device",
    "precision": "the precision of the weights, or bf16",
    "link": "the fastest link of the device, and the network of its usual computer,",
}
"""What is assumed of facts that are missing."""

QUEUED = "first tokens whose prompts wait in a queue, which say more of the load than of the server"
"""Why times to first token are left out."""

CONTRADICTED = "figures that others of their row contradict"
"""Why figures of a row are left out whose others are evidence."""

QUEUED_ITERATIONS = 10
"""Iterations of waiting in a time to first token above which it says more of the load than of the server."""

MOST_OF_IDLE = 0.4
"""Share of the limit below which a steady power is that of a waiting device: published idle powers reach a third."""


def calibrate_from_results(
    paths: Sequence[Path],
    user_facts: dict[str, Any],
    *,
    hardware_files: list[Path],
    date: str = "",
) -> EvidenceCalibration:
    """Return the calibration by the rows of result files; raise BadValue if none is evidence, or a fact is missing."""
    observations: list[Observation] = []
    files = [read_result(path, user_facts) for path in paths]
    notes = leave_out_repeated_rows(files)
    originals = [findings for findings in files if findings.readings]
    informing: list[Findings] = []
    reasons: dict[str, list[str]] = {}  # why rows are left out, with the files of which each is true
    for findings in originals:
        _check_facts(findings, notes)
        found, reasons_of_file = _observations(findings, user_facts, hardware_files, notes)
        if len(originals) > 1:
            name = findings.path.name
            found = [msgspec.structs.replace(row, situation=f"{name}: {row.situation}") for row in found]
        observations += found
        informing += [findings] if found else []
        for reason in reasons_of_file:
            reasons.setdefault(reason, []).append(findings.name)
    if not observations:
        raise BadValue(_describe_reasons(paths, reasons))
    inputs = [f"{findings.path.name} sha256 {sha256_of(findings.path)}" for findings in informing]
    provenance = EvidenceProvenance(inputs, date, __version__)
    return EvidenceCalibration(EVIDENCE_FORMAT, "evidence", observations, provenance, list(dict.fromkeys(notes)))


def _describe_reasons(paths: Sequence[Path], reasons: Mapping[str, Sequence[str]]) -> str:
    """Return a sentence about files without evidence, with the reasons that most of them have."""
    described = []
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1]))[:_MOST_REASONS]:
        others = f" and {format_plural(len(names) - 1, 'more file')}" if len(names) > 1 else ""
        described.append(reason if len(paths) == 1 else f"{reason} ({names[0]}{others})")
    subject = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
    why = "; ".join(described) or "they have no measurement, or repeat others"
    return f"{subject}: no row is evidence: {why}; `paleo-lite measurements` lists what makes a file doubtful"


_MOST_REASONS = 3
"""Reasons that an error names."""


def _check_facts(findings: Findings, notes: list[str]) -> None:
    """Raise BadValue for a fact that has to be given; note those that are assumed."""
    for sentence in findings.missing:
        if any(f"`--{fact} " in sentence for fact in ASKED):
            raise BadValue(f"{findings.name}: {sentence}")
        for fact, assumed in ASSUMED.items():
            if f"`--{fact} " in sentence:
                notes.append(f"{findings.name}: {sentence}; {assumed} is assumed")
    remarks = (*findings.guesses, *findings.doubts, *findings.row_doubts)
    notes.extend(f"{findings.name}: {sentence}" for sentence in remarks)


def _observations(
    findings: Findings, user_facts: dict[str, Any], hardware_files: list[Path], notes: list[str]
) -> tuple[list[Observation], list[str]]:
    """Return the rows of a file as evidence, and why others are left out, which is noted, too."""
    readings, thinned = thinned_readings(findings)
    if thinned:
        notes.append(f"{findings.name}: {thinned}")
    observations: list[Observation] = []
    situations = [describe_situation(reading, findings) or reading.kind for reading in findings.readings]
    reasons: dict[str, int] = {}
    for done, (index, reading) in enumerate(readings):
        report(done, len(readings))
        if doubted := _doubt_of_situation(reading):
            reasons[doubted] = reasons.get(doubted, 0) + 1
            continue
        try:
            if reading.kind == power_causes.KIND:
                facts = {**findings.configuration, **reading.values, **user_facts}
                observations += _observe_idle(facts, find_device(facts["gpu"], hardware_files))
                continue
            facts = facts_of(reading, findings, user_facts, hardware_files)
            forecasts = forecast_figures(reading.kind, facts, hardware_files)
            situation = situations[index]
            if situations.count(situation) > 1:
                situation = f"row {index + 1}: {situation}"
            of_reading = [
                _with_interval(row, forecasts) for row in _observe(reading, facts, situation, forecasts, hardware_files)
            ]
            if of_reading:
                notes += [f"{findings.name}: {text}" for text in contradictions(facts, forecasts)]
            if of_reading and is_training(facts) and (assumed := describe_assumptions(facts)):
                notes.append(f"{findings.name}: {assumed}")
        except NotShipped as error:
            reason = f"no network of the name {error} is shipped: give `--network`"
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        except PaleoError as error:
            reasons[str(error)] = reasons.get(str(error), 0) + 1
            continue
        if reading.values.get("ttft_s") and of_reading and FIRST_TOKEN not in [row.figure for row in of_reading]:
            reasons[QUEUED] = reasons.get(QUEUED, 0) + 1
        if not of_reading:
            reason = f"rows of the kind {reading.kind} without a figure that is evidence"
            reasons[reason] = reasons.get(reason, 0) + 1
        held = [row for row in of_reading if not reading.contradicted_of(_ENTER.get(row.figure, ()))]
        if len(held) < len(of_reading):
            reasons[CONTRADICTED] = reasons.get(CONTRADICTED, 0) + len(of_reading) - len(held)
        if held and reading.contradicted:
            place = f"row {index + 1}: " if len(findings.readings) > 1 else ""
            named = " and ".join(dict.fromkeys(LATENCIES.get(row.figure, row.figure) for row in held))
            notes.append(f"{findings.name}: {place}its {named} is taken: the contradicting figures do not enter it")
        observations += held
    notes += [f"{findings.name}: left out: {reason} ({count})" for reason, count in reasons.items()]
    return observations, list(reasons)


_ENTER = {
    TIME_PER_TOKEN: ("tpot_s", "tpot_reported_s", "e2e_s"),
    FIRST_TOKEN: ("ttft_s", "e2e_s"),
}
"""Figures of a row which a figure of evidence is, or follows from."""


def _doubt_of_situation(reading: Reading) -> str:
    """Return why a row is left out that measured nothing, or whose load or lengths others contradict; else nothing."""
    if reading.values.get("requests") == 0:
        return "no request was answered"
    if reading.contradicted_of(("input_tokens", "output_tokens")):
        return "rows whose lengths other figures of the row contradict"
    is_load_given = any(reading.values.get(name) for name in ("concurrency_limit", "request_rate"))
    if not is_load_given and reading.contradicted_of(("requests_per_s",)):
        return "rows whose load other figures of the row contradict"
    return ""


_FORECAST_FIGURES = {
    local_causes.TOKEN: ("tpot_s",),
    local_causes.PROMPT: ("time_s",),
    picture_causes.TIME: ("step_s", "time_s"),
}
"""Figures of forecasts of which a figure of evidence is, where they have another name."""


def _with_interval(row: Observation, forecasts: Sequence[Forecast]) -> Observation:
    """Return a row with the interval of its forecast; without one where the command states none."""
    names = _FORECAST_FIGURES.get(row.figure, (row.figure,))
    intervals = [forecast.interval for forecast in forecasts if forecast.figure in names and forecast.interval]
    if not intervals or None in intervals[0]:
        return row
    low, high = map(float, intervals[0])
    return msgspec.structs.replace(row, interval=(low, high)) if is_interval((low, high), row.forecast) else row


def _observe(
    reading: Reading, facts: dict[str, Any], situation: str, forecasts: Sequence[Forecast], hardware_files: list[Path]
) -> list[Observation]:
    """Return the figures of a row that are evidence."""
    answers = [forecast.answer for forecast in forecasts if forecast.answer is not None]
    if not answers:
        return []
    answer = answers[0]
    values = {forecast.figure: forecast.value for forecast in forecasts}
    if reading.kind == "step":
        return observe_training(facts, situation, answer, hardware_files)
    if isinstance(answer, PictureRow):
        return _observe_picture(facts, situation, answer, next(iter(values.values())))
    if isinstance(answer, MeasuredCollective):
        if reading.kind == BETWEEN_MEMORIES:
            return _observe_message(facts, answer)
        return _observe_collective(facts, answer, values["time_s"])
    if isinstance(answer, LocalPrediction):
        return _observe_local(reading, facts, situation, answer, values)
    assert isinstance(answer, Serving)
    return observe_server(reading.values, facts, situation, answer, values, hardware_files)


def observe_server(
    measured: dict[str, Any],
    facts: dict[str, Any],
    situation: str,
    answer: Serving,
    forecasts: dict[str, Any],
    hardware_files: list[Path],
) -> list[Observation]:
    """Return the times per token and to the first token of a measured server as evidence, beside those of an answer."""
    deployment = _deployment_of(answer, facts["network"], hardware_files)
    on_device = deployment.on_device
    if on_device.kernels is None:
        raise BadValue(f"{answer.gpu_name} has no measured kernels of engines, which calibrations move")
    prompt, written = float(facts["input_tokens"]), float(facts["output_tokens"])
    tpot_s, ttft_s = forecasts.get("tpot_s"), forecasts.get("ttft_s")
    if not tpot_s or not ttft_s:
        if written <= 1:
            raise BadValue("answers of one token have no time per token")
        raise BadValue("the time per token and that to the first token are not in the file")
    shares = server_causes.server_shares(
        on_device,
        deployment.engine,
        users=max(float(answer.figures["mean_sequences"].value or 1.0), 1.0),
        prompt_tokens=prompt,
        answer_tokens=written,
        tpot_s=tpot_s,
        ttft_s=ttft_s,
    )
    placement = on_device.kernels.step.devices
    traits = engine_traits(on_device.workload, on_device.machine.device, answer.engine, placement)
    timings: list[tuple[str, Any, float]] = []
    per_token_s, rate = to_number(measured.get("tpot_s")), to_number(measured.get("output_tokens_per_s"))
    if not per_token_s and rate and forecasts.get("output_tokens_per_s"):
        # Tokens per second of all requests together: the same users write them in proportionally more time.
        per_token_s = tpot_s * forecasts["output_tokens_per_s"] / rate
    timings.append((TIME_PER_TOKEN, per_token_s, tpot_s))
    waited_s, first_s = answer.latencies["queue_s"]["mean"].value or 0.0, to_number(measured.get("ttft_s"))
    if first_s and waited_s <= QUEUED_ITERATIONS * tpot_s and not server_causes.has_waited(first_s, ttft_s):
        timings.append((FIRST_TOKEN, first_s, ttft_s))
    watts = _watts_of_server(measured, facts, situation, answer, on_device, per_token_s or tpot_s)
    rows = [
        Observation(SERVER, figure, situation, traits, seconds, forecast_s, rounded_shares(shares[figure]))
        for figure, seconds, forecast_s in timings
        if seconds and is_plausible(seconds)
    ]
    if answer.offered_requests_per_s is None:
        return watts + rows
    return watts + _with_open_load(rows, facts, hardware_files)


def _with_open_load(
    rows: Sequence[Observation], facts: dict[str, Any], hardware_files: list[Path]
) -> list[Observation]:
    """Return the figures of a server under an open load, with the shares of causes in the answer of `serve`.

    The number of users grows with the times, and users wait for others: the shares are those in which the answer
    changes if each cause by itself takes longer, and the sensitivity is their sum.
    """
    slopes: dict[str, dict[str, float]] = {row.figure: {} for row in rows}
    causes = dict.fromkeys(cause for row in rows for cause, share in row.shares.items() if share)
    for cause in causes:
        slower = assume_factor(rows[0], cause, _LONGER)
        forecasts = forecast_figures(SERVER, facts, hardware_files, slower)
        values = {forecast.figure: forecast.value for forecast in forecasts if forecast.value}
        for row in rows:
            slopes[row.figure][cause] = max(math.log(values[row.figure] / row.forecast) / _LONGER, 0.0)
    result = []
    for row in rows:
        total = sum(slopes[row.figure].values())
        if not LEAST_SENSITIVITY <= total <= MOST_SENSITIVITY:
            if total < LEAST_SENSITIVITY:
                depends = "hardly depends on kernels and host under this load"
            else:
                depends = "grows without limit with kernels and host under this load, which is near saturation"
            raise BadValue(f"the forecast of {LATENCIES[row.figure]} {depends}")
        shares = rounded_shares(shares_of(slopes[row.figure]))
        result.append(msgspec.structs.replace(row, shares=shares, sensitivity=round(total, 4)))
    return result


_LONGER = 0.1
"""Logarithm of the factor by which a cause takes longer: simulations of some hundred requests resolve no small one."""


def _watts_of_server(
    measured: dict[str, Any],
    facts: dict[str, Any],
    situation: str,
    answer: Serving,
    on_device: ModelOnDevice,
    per_token_s: float,
) -> list[Observation]:
    """Return the measured watts of a server as evidence, with what a device does in an iteration."""
    watts = to_number(measured.get("power_w"))
    if not watts:
        return []
    users = max(float(answer.figures["mean_sequences"].value or 1.0), 1.0)
    prompt, written = float(facts["input_tokens"]), float(facts["output_tokens"])
    timer = KernelTimer(on_device)
    prompts = timer.prompt_activity(prompt).times(users / written)
    activity = timer.decode_activity(users, prompt + written / 2).plus(prompts)
    devices = count_of(facts, "devices") or answer.devices
    workload = on_device.workload
    return observe_watts(
        on_device.machine.device, workload.network.name, activity.shares_of(per_token_s), watts / devices, situation,
        has_experts=workload.has_experts,
    )  # fmt: skip


def observe_watts(
    device: Device, network: str, shares: Shares, watts: float, situation: str, *, has_experts: bool = False
) -> list[Observation]:
    """Return the measured watts of one device as evidence; none at its limit, or above it."""
    power = power_of(device, has_experts=has_experts)
    if power is None or power_causes.is_at_limit(power, shares) or watts > power.limit_w:
        return []
    causes = rounded_shares(power_causes.power_shares(power, shares))
    traits = power_causes.power_traits(device.id, network)
    forecast_w = float(power.watts(shares))
    return [Observation(power_causes.KIND, power_causes.WATTS, situation, traits, watts, forecast_w, causes)]


def _observe_idle(facts: dict[str, Any], device: Device) -> list[Observation]:
    """Return the watts of a log in which a device waits all the time; raise BadValue where it may have worked."""
    power, watts, highest_w = power_of(device), to_number(facts.get("power_w")), to_number(facts.get("power_high_w"))
    if power is None or not watts or not highest_w:
        return []
    if highest_w > STEADY_RATIO * watts or watts > MOST_OF_IDLE * power.limit_w:
        raise BadValue("what ran while the power was measured is not in the file: only logs of a waiting device are")
    return observe_watts(device, "", Shares(), watts, "waiting")


def _deployment_of(answer: Serving, network: str, hardware_files: list[Path]) -> Deployment:
    """Return the deployment of an answer."""
    settings = dict.fromkeys(
        ("max_batched_tokens", "max_sequences", "chunked_prefill", "block_tokens", "memory_fraction",
         "receive_interval", "overhead_s")
    )  # fmt: skip
    deployments = Deployments(
        decoder=find_decoder(network),
        draft=None,
        precision=answer.precision,
        kv_cache=answer.kv_cache,
        policy=answer.engine,
        settings=settings,
        hardware_files=hardware_files,
    )
    division = Division(answer.tensor, answer.pipeline, answer.expert_parallel, answer.attention_data_parallel)
    weights = None if answer.weights == answer.precision else answer.weights
    return deployments.make(find_device(answer.gpu, hardware_files), division, weights)


def _observe_local(
    reading: Reading, facts: dict[str, Any], situation: str, answer: LocalPrediction, forecasts: dict[str, Any]
) -> list[Observation]:
    """Return the tokens or the prompt of a measured machine as evidence, beside those of an answer."""
    if not answer.is_whole:
        raise BadValue("a part of the network is in the memory of the host, of which no row is evidence")
    device = find_device(answer.gpu)
    engine = LOCAL_ENGINES[answer.execution]
    contents = read_contents(find_decoder(facts["network"]), answer.weights, answer.kv_cache, engine).merged()
    constants = local_constants().backends[answer.backend]
    if reading.kind == "decode":
        figure, seconds, forecast_s = local_causes.TOKEN, to_number(reading.values.get("tpot_s")), forecasts["tpot_s"]
        shares = local_causes.shares_of_token(contents, device, constants, answer.context)
    else:
        figure, seconds, forecast_s = (
            local_causes.PROMPT,
            to_number(reading.values.get("time_s")),
            forecasts["time_s"],
        )
        shares = local_causes.shares_of_prompt(contents, device, constants, answer.prompt_tokens)
    if not seconds or not is_plausible(seconds):
        return []
    traits = local_causes.local_traits(contents, device, answer.backend)
    return [Observation(local_causes.KIND, figure, situation, traits, seconds, forecast_s, rounded_shares(shares))]


def _observe_picture(
    facts: dict[str, Any], situation: str, measured: PictureRow, forecast_s: float | None
) -> list[Observation]:
    """Return measured pictures as evidence, beside their forecast."""
    seconds = to_number(facts.get("step_s" if measured.is_step else "time_s"))
    if not forecast_s or not seconds or not is_plausible(seconds):
        return []
    run, machine, model_in, is_step = measured
    if not isinstance(model_in(run.tensor_precision), CalibratedModel):
        raise BadValue(f"{machine.device.name} has only a bound, which calibrations do not move")
    watts, rows = to_number(facts.get("power_w")), list[Observation]()
    if watts:
        prediction = predict_pipeline(run, machine, model_in)
        drawing = prediction.activity.shares_of(to_number(facts.get("time_s")) or prediction.time_s)
        rows = observe_watts(machine.device, run.pipeline.name, drawing, watts, situation)
    traits = picture_causes.picture_traits(run, machine.device.id)
    shares = picture_causes.picture_shares(run, machine, model_in, is_step=is_step)
    return [
        *rows,
        Observation(
            picture_causes.KIND, picture_causes.TIME, situation, traits, seconds, forecast_s, rounded_shares(shares)
        ),
    ]


def _observe_collective(
    facts: dict[str, Any], measured: MeasuredCollective, forecast_s: float | None
) -> list[Observation]:
    """Return a measured collective as evidence of a link, beside its forecast."""
    seconds, topology = to_number(facts.get("time_s")), measured.topology
    if not forecast_s or not seconds or not is_plausible(seconds):
        return []
    assert topology.device is not None
    traits = link_causes.link_traits(
        link_causes.slowest_link(topology), topology.device, measured.operation, topology.workers
    )
    named = f"{measured.operation} of {measured.message_bytes:,.0f} bytes, {topology.workers:,} devices"
    shares = link_causes.collective_shares(*measured)
    return [Observation(link_causes.KIND, link_causes.TIME, named, traits, seconds, forecast_s, rounded_shares(shares))]


def _observe_message(facts: dict[str, Any], measured: MeasuredCollective) -> list[Observation]:
    """Return a message that is slower than its forecast as evidence of its link, of which it bounds collectives.

    Raise BadValue for a faster one, which says nothing: a collective may reach less of a link than a message.
    """
    rate, forecast_s = to_number(facts.get("bytes_per_s")), link_causes.collective_s(*measured)
    if not rate or measured.message_bytes / rate <= forecast_s:
        raise BadValue("messages as fast as forecast bound no collective")
    (row,) = _observe_collective({"time_s": measured.message_bytes / rate}, measured, forecast_s) or (None,)
    return [] if row is None else [msgspec.structs.replace(row, situation=f"{row.situation}, which bounds collectives")]
