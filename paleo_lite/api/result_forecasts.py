"""Forecasts for the rows of a result file, in the situation in which each was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..architectures import network_names
from ..architectures.pipelines.records import pipelines
from ..architectures.pipelines.sampling import find_pipeline
from ..calibration.picture_causes import seconds_of
from ..calibration.store import AnyCalibration, find_calibration
from ..engines.records import USUAL_ENGINE
from ..errors import BadValue, PaleoError, UnknownFormat
from ..formats import FORMATS
from ..machines import Machine, find_device
from ..profiles.detect import open_profile
from ..progress import report
from ..result_files.beside import Beside, Forecast, MeasuredBesideForecast
from ..result_files.configuration import COUNT_BEFORE, FACTS, count_of, precision_of, weights_of
from ..result_files.detect import read_result, recognise
from ..result_files.findings import Findings, Reading
from ..result_files.network_names import find_network_name
from ..result_files.text import to_number
from ..serving.requests import REQUESTS_PER_USER
from ..text import format_plural
from ..timing import TimeModel
from ..timing.intervals import Z_90
from ..timing.pipeline_run import PipelineRun
from ..timing.pipelines import predict_pipeline
from .contradictions import contradictions
from .link_forecasts import forecast_collective, forecast_copy
from .pipelines import resolve_pipeline
from .prediction import predict_pass
from .question import PictureOptions, Question
from .training_rows import describe_assumptions, is_training, measured_step_s, training_options

MOST_SITUATIONS = 60
"""Rows of a file that are forecast; more are thinned evenly, since each server is simulated, in seconds."""

_MOST_REQUESTS = 400  # of a simulated server, which is steady by then unless it has many users
_MOST_PER_USER = 4
_MEAN_LENGTHS = (
    "in the forecast all prompts and answers have their mean length; real ones vary, and fill batches unevenly"
)
LOCAL_TOOLS = ("llama.cpp", "ollama", "lm studio", "mlx-lm", "exllama")
_WITHOUT_NETWORK = ("collective", "copy")
_LATENCIES = (
    ("ttft_s", "ttft_median_s", "ttft_s"), ("tpot_s", "tpot_median_s", "tpot_s"), ("e2e_s", "e2e_median_s", "latency_s")
)  # fmt: skip
"""Measured mean and median of each latency of an answer."""


def thinned_readings(findings: Findings) -> tuple[list[tuple[int, Reading]], str]:
    """Return the rows of a file that are forecast, with their numbers, and a sentence if others are left out."""
    numbered = list(enumerate(findings.readings))
    if len(numbered) <= MOST_SITUATIONS:
        return numbered, ""
    stride = len(numbered) / MOST_SITUATIONS
    chosen = [numbered[int(index * stride)] for index in range(MOST_SITUATIONS)]
    return chosen, f"of {len(numbered):,} rows, {MOST_SITUATIONS} evenly spread ones are used"


class NotShipped(BadValue):
    """A network that a file names and that is not shipped."""


def is_result_file(path: Path) -> bool:
    """Return whether a file is one of a benchmark, and not a profile."""
    try:
        open_profile(path)
    except UnknownFormat:
        try:
            recognise(path)
        except PaleoError:
            return False
        return True
    except PaleoError:  # said when the profile is read
        return False
    return False


def compare_result(
    path: Path,
    user_facts: dict[str, Any],
    hardware_files: list[Path],
    calibration: str | AnyCalibration | None = None,  # that all forecasts take
) -> MeasuredBesideForecast:
    """Return each row of a result file beside the forecast for it, with facts that the user adds to the file.

    Raise BadValue if no row can be forecast, with the reasons.
    """
    used = find_calibration(calibration) if isinstance(calibration, str) else calibration
    findings = read_result(path, user_facts)
    rows: list[Beside] = []
    reasons: dict[str, int] = {}
    not_shipped: dict[str, None] = {}
    assumptions: dict[str, None] = {}
    contradicted: dict[str, None] = {}
    readings, thinned = thinned_readings(findings)
    if thinned:
        reasons[thinned] = 1
    for done, (number, reading) in enumerate(readings):
        report(done, len(readings))
        try:
            facts = facts_of(reading, findings, user_facts, hardware_files)
            compared = list(_beside(number, reading, facts, findings, hardware_files, contradicted, used))
            if compared and is_training(facts) and (assumed := describe_assumptions(facts)):
                assumptions.setdefault(assumed)
            rows += compared
        except NotShipped as error:
            not_shipped[str(error)] = None
        except PaleoError as error:
            reasons[str(error)] = reasons.get(str(error), 0) + 1
    left_out = [f"{reason} ({count} rows)" if count > 1 else reason for reason, count in reasons.items()]
    if not_shipped:
        names = f"{', '.join(list(not_shipped)[:3])}{', ...' if len(not_shipped) > 3 else ''}"
        which = format_plural(len(not_shipped), "network")
        left_out.append(f"{which} without a shipped network of the name ({names}): give `--network NETWORK`")
    if not rows:
        raise BadValue(f"{path}: no row can be compared: {'; '.join(left_out) or 'the file has none'}")
    question = {name: findings.configuration[name] for name in FACTS if name in findings.configuration}
    if len({reading.values.get("network") for reading in findings.readings}) > 1:
        question.pop("network", None)  # each row has its own
    notes = [*contradicted, *findings.guesses, *findings.doubts, *findings.row_doubts, *assumptions]
    if any(row.kind == "server" for row in rows):
        notes.insert(0, _MEAN_LENGTHS)
    if used is not None:
        question["calibration"] = calibration if isinstance(calibration, str) else used.label
    return MeasuredBesideForecast(findings.name, findings.tool, question, rows, left_out, notes)


def _beside(
    number: int,
    reading: Reading,
    facts: dict[str, Any],
    findings: Findings,
    hardware_files: list[Path],
    notes: dict[str, None],
    calibration: AnyCalibration | None,
) -> Iterator[Beside]:
    """Yield the figures of a row that are both measured and forecast; note what contradicts the network."""
    forecasts = forecast_figures(reading.kind, facts, hardware_files, calibration)
    notes.update(dict.fromkeys(contradictions(facts, forecasts)))
    for forecast in forecasts:
        measured = measured_step_s(facts) if is_training(facts) else reading.values.get(forecast.figure)
        if measured and forecast.value and min(measured, forecast.value) > 0:
            low, high = forecast.interval or (None, None)
            situation = describe_situation(reading, findings)
            yield Beside(number, reading.kind, situation, forecast.figure, measured, forecast.value, low, high)


def facts_of(
    reading: Reading, findings: Findings, user_facts: dict[str, Any], hardware_files: list[Path]
) -> dict[str, Any]:
    """Return what is known of a row: what the file records, the row itself and what the user gave.

    Raise BadValue if the device or the network is not known.
    """
    if reading.kind not in _ASKS:
        raise BadValue(f"rows of the kind {reading.kind} have no forecast yet")
    facts = {"tool": findings.tool, **findings.configuration, **reading.values, **user_facts}
    if "network" not in user_facts and reading.kind not in _WITHOUT_NETWORK:
        names = pipelines() if reading.kind == "picture" else network_names()
        facts["network"] = _known_network(str(facts.get("network") or ""), names)
    if not facts.get("gpu"):
        raise BadValue("the GPU is not in the file: give `--gpu`")
    if "gpu" not in user_facts:
        facts["gpu"] = COUNT_BEFORE.sub("", str(facts["gpu"])).partition(" (")[0]
    if reading.kind in _OF_PASSES and not is_training(facts) and "precision" not in user_facts:
        return _with_weights_alone(facts, hardware_files)
    return facts


_OF_PASSES = ("server", "decode", "prompt", "step")
"""Kinds of rows of passes, whose weights are converted before products that a device does not have."""


def _with_weights_alone(facts: dict[str, Any], hardware_files: list[Path]) -> dict[str, Any]:
    """Return facts in which a recorded precision that the device has no products in is the format of the weights.

    vLLM then stores the weights so and multiplies in 16 bits, as on an A100 (docs/features/quantization/fp8.md there).
    """
    recorded = FORMATS.get(str(facts.get("precision") or "").lower())
    if recorded is None or recorded.precision is None or not recorded.is_quantized or weights_of(facts) is not None:
        return facts
    precisions = find_device(facts["gpu"], hardware_files).precisions
    if recorded.precision in precisions:
        return facts
    return {**facts, "precision": "bf16" if "bf16" in precisions else "fp16", "weights": recorded.name}


def forecast_figures(
    kind: str, facts: dict[str, Any], hardware_files: list[Path], calibration: AnyCalibration | None = None
) -> list[Forecast]:
    """Return the forecasts of the figures of a row of a kind, without a calibration those of the shipped constants."""
    return _ASKS[kind](facts, {"hardware_files": hardware_files, "calibration": calibration})


def _known_network(name: str, names: Iterable[str]) -> str:
    """Return the shipped network of a served name or a file's name; raise BadValue if none has it."""
    shipped_name = find_network_name(name, names)
    if shipped_name is not None:
        return shipped_name
    if name:
        raise NotShipped(name)
    raise BadValue("the network is not in the file: give `--network NETWORK`")


_OF_FILES = ("network", "gpu", "engine", "weights", "tensor")
"""Facts that rows of a file usually have in common."""


def describe_situation(reading: Reading, findings: Findings) -> str:
    """Return what identifies a row, in words; its network and what runs it only where the file has several."""
    words = {
        "network": "{}", "gpu": "{}", "engine": "{}", "weights": "{}", "tensor": "{:g} devices",
        "batch_size": "batch {}", "concurrency_limit": "concurrency {:g}", "request_rate": "{:g}/s",
        "input_tokens": "{:,.0f} in", "output_tokens": "{:,.0f} out", "tokens": "{:g} tokens", "depth": "after {:g}",
        "generated": "{:g} tokens", "image_size": "{:g} pixels", "width": "{:g} wide",
        "global_batch_size": "global batch {:,.0f}", "sequence_length": "{:,.0f} tokens each",
        "steps": "{:g} steps", "operation": "{}", "path": "{}", "bytes": "{:,.0f} bytes",
    }  # fmt: skip
    several = {name for name in _OF_FILES if len({row.values.get(name) for row in findings.readings}) > 1}
    shown = {name: reading.values.get(name) for name in words if name not in _OF_FILES or name in several}
    return ", ".join(words[name].format(value) for name, value in shown.items() if value)


def _kv_cache(facts: dict[str, Any]) -> str | None:
    """Return the format of the KV cache, such as that of ``fp8_e4m3``, where it is narrower than 16 bits and known."""
    name = str(facts.get("kv_cache") or "").lower().partition("_")[0]
    return name if name in FORMATS else None


def _ask_server(facts: dict[str, Any], more: dict[str, Any]) -> list[Forecast]:
    """Forecast a server under the same traffic."""
    from ..questions.serve import serve

    prompt, written = count_of(facts, "input_tokens"), count_of(facts, "output_tokens")
    if prompt is None or written is None:
        raise BadValue("the lengths of prompts and answers are not in the file")
    # A limit of concurrency rules where there is one; all requests at once are as many users as there were on average.
    users = count_of(facts, "concurrency_limit")
    rate = None if users else to_number(facts.get("request_rate"))
    if not rate:
        users = users or count_of(facts, "concurrency")
        if users is None:
            raise BadValue("neither a rate nor a concurrency is in the file")
    settings: dict[str, Any] = _division_of_server(facts)
    weights = weights_of(facts)
    answer: Any = serve(
        facts["network"],
        gpu=facts["gpu"],
        # Tools record the type of what is not quantised; the engine chooses the products of quantised weights.
        precision=precision_of(facts) if weights is None else None,
        weights=weights,
        kv_cache=_kv_cache(facts),
        engine=str(facts.get("engine") or USUAL_ENGINE),
        input_tokens=prompt,
        output_tokens=written,
        rate=rate,
        concurrency=users,
        num_requests=_simulated_requests(count_of(facts, "requests"), users),
        max_sequences=count_of(facts, "max_num_seqs"),
        **settings,
        **more,
    )
    answer_json = answer.to_dict()
    forecasts = []
    for mean_figure, median_figure, name in _LATENCIES:
        is_median = mean_figure not in facts and median_figure in facts  # of a report without means
        latency = answer_json["latencies"].get(name, {}).get("p50" if is_median else "mean")
        if latency:
            interval = (latency["low"], latency["high"])
            figure = median_figure if is_median else mean_figure
            bound_s = _least_token_s(facts, answer, more["hardware_files"]) if name == "tpot_s" else None
            forecasts.append(Forecast(figure, latency["value"], interval, answer, bound_s))
    tokens = answer_json["figures"]["output_tokens_per_s"]
    per_s = {end: tokens[end] for end in _ENDS}
    if rate:
        per_s = _tokens_of_run(answer_json, count_of(facts, "requests") or answer.requests, rate, written)
    return [*forecasts, Forecast("output_tokens_per_s", per_s["value"], (per_s["low"], per_s["high"]), answer)]


_ENDS = {"value": 0.0, "low": 1.0, "high": -1.0}
"""Ends of the interval of a throughput, with the direction in which times are longer."""


def _tokens_of_run(answer: dict[str, Any], requests: int, rate_per_s: float, written: int) -> dict[str, float]:
    """Return the output tokens per second of a run at a rate, and the ends of their interval.

    A benchmark divides by the time until the last answer: until the last of n requests arrives, or has a place where
    more arrive than are served, and the time of a request after it. Random intervals of n requests sum to n / rate with
    a relative deviation of 1 / sqrt(n).
    """
    served, whole = answer["figures"]["saturation_requests_per_s"], answer["latencies"]["latency_s"]["mean"]
    token = answer["latencies"]["tpot_s"]["mean"]
    other_end = {"value": "value", "low": "high", "high": "low"}
    per_s = {}
    for end, longer in _ENDS.items():
        arriving_s = requests / rate_per_s * math.exp(longer * Z_90 / math.sqrt(requests))
        serving_s = requests / served[end]
        last_s = whole[other_end[end]]
        if serving_s > arriving_s:  # the latencies of the simulation grow with its requests
            last_s = token[other_end[end]] * written
        per_s[end] = requests * written / (max(arriving_s, serving_s) + last_s)
    return per_s


def _least_token_s(facts: dict[str, Any], answer: Any, hardware_files: list[Path]) -> float | None:
    """Return the least time per token of a server: that of one sequence without a context, on all of its devices."""
    alone = predict_pass(
        Question(
            facts["network"],
            facts["gpu"],
            hardware_files=hardware_files,
            precision=answer.precision,
            weights=None if answer.weights == answer.precision else answer.weights,
            phase="decode",
            context=1,
        )
    )
    return None if alone.bound_s is None else float(alone.bound_s / (answer.tensor * answer.pipeline))


def _simulated_requests(requests: int | None, users: int | None) -> int:
    """Return the requests of a simulation: those of the run, as far as the server is steady before their end."""
    most = max(_MOST_REQUESTS, _MOST_PER_USER * (users or 1))
    usual = _MOST_REQUESTS if users is None else REQUESTS_PER_USER * users
    return min(max(requests or usual, 32), most)


def _division_of_server(facts: dict[str, Any]) -> dict[str, int]:
    """Return how devices divide a server; raise BadValue for one that is not a single engine, or drafts tokens."""
    if facts.get("disaggregated") in (True, "true"):
        raise BadValue("servers whose prompts and answers are on devices of their own have no forecast here")
    if facts.get("speculative"):
        raise BadValue(f"servers that draft tokens ({facts['speculative']}) have no forecast here")
    counts = {name: count_of(facts, name) for name in ("tensor", "replicas", "expert_parallel")}
    settings = {name: count for name, count in counts.items() if count is not None}
    devices = settings.get("tensor")
    if facts.get("data_attention") in (True, "true") and devices is not None:
        settings["attention_data_parallel"] = devices  # each device computes attention for its own users
    return settings


def _local_weights(facts: dict[str, Any]) -> str | None:
    """Return the format of the weights on one's own machine, which a precision such as bf16 names, too."""
    return weights_of(facts) or precision_of(facts)


def _ask_decode(facts: dict[str, Any], more: dict[str, Any]) -> list[Forecast]:
    """Forecast a generated token, on one's own machine or of a batch on an engine."""
    context = ((count_of(facts, "depth") or 0) + (count_of(facts, "generated") or 0) // 2) or None
    if str(facts.get("engine")) in LOCAL_TOOLS:
        from ..questions.local import local

        if facts.get("tokens"):
            raise BadValue("a rate that mixes prompt and generation has no forecast")
        answer: Any = local(facts["network"], gpu=facts["gpu"], weights=_local_weights(facts), context=context, **more)
        return [Forecast("tpot_s", answer.token_s, answer.token_interval_s, answer)]
    if context is None:
        raise BadValue("the tokens in the cache are not in the file")
    return _ask_pass(facts, more, phase="decode", context=context, figure="tpot_s")


def _ask_prompt(facts: dict[str, Any], more: dict[str, Any]) -> list[Forecast]:
    """Forecast a prompt."""
    tokens = count_of(facts, "tokens")
    if tokens is None or facts.get("depth"):
        raise BadValue("only prompts with an empty cache have a forecast")
    if str(facts.get("engine")) in LOCAL_TOOLS:
        from ..questions.local import local

        answer: Any = local(facts["network"], gpu=facts["gpu"], weights=_local_weights(facts), prompt=tokens, **more)
        return [Forecast("time_s", answer.prompt_s, answer.prompt_interval_s, answer)]
    return _ask_pass(facts, more, phase="prefill", sequence_length=tokens, figure="time_s")


def _ask_step(facts: dict[str, Any], more: dict[str, Any]) -> list[Forecast]:
    """Forecast a pass of a network, or a step of training."""
    if is_training(facts):
        return _ask_training(facts, more)
    if facts.get("phase") != "inference":
        raise BadValue("the phase of the steps is not in the file")
    return _ask_pass(facts, more, phase="inference", image_size=count_of(facts, "image_size"), figure="step_s")


def _ask_training(facts: dict[str, Any], more: dict[str, Any]) -> list[Forecast]:
    """Forecast a step of training on one or many devices."""
    from ..questions.train import train

    answer: Any = train(facts["network"], **training_options(facts), **more)
    row = getattr(answer, "answering_row", answer)
    return [Forecast("step_s", row.time_s, row.interval, row, row.bound_s)]


def _ask_picture(facts: dict[str, Any], more: dict[str, Any]) -> list[Forecast]:
    """Forecast a step of the denoiser, or a batch of pictures or videos where no step was measured."""
    measured = measured_picture(facts, **more)
    prediction = predict_pipeline(measured.run, measured.machine, measured.model_in)
    time_s, interval = seconds_of(prediction, is_step=measured.is_step), None
    if prediction.interval is not None:
        interval = tuple(time_s * end_s / prediction.time_s for end_s in prediction.interval)
    return [Forecast("step_s" if measured.is_step else "time_s", time_s, interval, measured)]


class PictureRow(NamedTuple):
    """Pictures of a row of a result file."""

    run: PipelineRun
    machine: Machine
    model_in: Callable[..., TimeModel]
    is_step: bool  # whether the time of a step of the denoiser was measured


def measured_picture(
    facts: dict[str, Any],
    hardware_files: list[Path],
    calibration: Any = None,  # of any kind
) -> PictureRow:
    """Return the pictures of a row; raise BadValue if their pipeline is unknown, or several devices made them."""
    pipeline = find_pipeline(str(facts["network"]))
    if pipeline is None:
        raise NotShipped(str(facts["network"]))
    if (count_of(facts, "devices") or 1) > 1:
        raise BadValue("pictures that several devices make together have no forecast")
    width, height = count_of(facts, "width"), count_of(facts, "height")
    execution = facts.get("execution") or ("tensorrt" if "TensorRT" in str(facts.get("tool")) else None)
    question = Question(
        pipeline.name,
        facts["gpu"],
        hardware_files=hardware_files,
        calibration=calibration,
        precision=precision_of(facts) or "bf16",
        weights=weights_of(facts),
        batch_size=count_of(facts, "batch_size") or 1,
        image_size=f"{width}x{height}" if width and height else count_of(facts, "image_size"),
        execution=None if execution is None else str(execution),
        pictures=PictureOptions(steps=count_of(facts, "steps"), frames=count_of(facts, "frames")),
    )
    return PictureRow(*resolve_pipeline(pipeline, question), to_number(facts.get("step_s")) is not None)


def _ask_pass(facts: dict[str, Any], more: dict[str, Any], *, figure: str, **settings: Any) -> list[Forecast]:
    from ..questions.predict import predict

    batch_size = count_of(facts, "batch_size")
    if batch_size is None:
        raise BadValue("the batch size is not in the file")
    language = settings["phase"] != "inference"
    answer: Any = predict(
        facts["network"],
        gpu=facts["gpu"],
        precision=precision_of(facts) or ("bf16" if language else "fp32"),
        weights=weights_of(facts),
        batch_size=batch_size,
        **{name: value for name, value in settings.items() if value is not None},
        **more,
    )
    return [Forecast(figure, answer.time_s, answer.interval, bound_s=answer.bound_s)]


_ASKS: dict[str, Callable[[dict[str, Any], dict[str, Any]], list[Forecast]]] = {
    "server": _ask_server,
    "decode": _ask_decode,
    "prompt": _ask_prompt,
    "step": _ask_step,
    "picture": _ask_picture,
    "collective": forecast_collective,
    "copy": forecast_copy,
}
"""How each kind of row is forecast; the others are left out, and said."""
