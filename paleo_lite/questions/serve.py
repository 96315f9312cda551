"""`serve`: a language model under traffic."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BadValue, DoesNotFit, PaleoError
from ..text import format_plural
from ..units import check_integer
from .compare import check_no_pipeline, check_single, compare
from .kind import QuestionKind, make_function
from .option import command_words
from .records import settings_of
from .serve_deployment import Resolved, check_link, is_speech_model, make_deployment, resolve
from .serve_options import SPEECH_TOKENS, USUAL_TOKENS, Serve

if TYPE_CHECKING:
    from ..engines.division import Division
    from ..machines import Price
    from ..serving.answers import Serving
    from ..serving.candidates import Candidate
    from ..serving.classes import RequestClass
    from ..serving.deployment import Deployment
    from ..serving.prepared import PreparedDeployment
    from ..serving.requests import Demand, Traffic
    from ..serving.slo import Objective
    from ..sweeps.comparison import Comparison


MOST_STAGES = 8
"""Most pipeline stages that a remedy names."""


def answer(question: Serve) -> Serving | Comparison:
    """Return the prediction of a deployment, several of them side by side, or a ranking of deployments."""
    several = question.several()
    for network in several.get("network", [question.network]):
        check_no_pipeline(network, "serve")
    if question.headroom is not None and (question.advise is None or question.rate is None):
        raise BadValue("`--headroom` is for `--advise` with `--rate`, which needs replicas")
    if question.advise is not None:
        if "network" in several:
            raise BadValue("`--advise` ranks deployments of one network: give one")
        for name in _NOT_ADVISED & set(question.given()):
            raise BadValue(f"`--advise` ranks replicas alone: leave `--{name.replace('_', '-')}` out")
        check_single(question, ("gpu",))
        return _answer(question)
    gpus = several.get("gpu", ())
    return compare(question, lambda single: _answer(single, _choose_listings(single, gpus)))


def _answer(question: Serve, listings: Mapping[str, Price | None] | None = None) -> Serving:
    """Return the prediction of one deployment, or a ranking."""
    if question.network is None:
        raise BadValue("`serve` needs a language model, such as llama-3-8b")
    check_integer("`--seed`", question.seed, 0)
    check_link(question)
    from ..serving.admission import check_traffic
    from ..serving.slo import find_missed, latencies_of_all, missed_in, with_highest_rate

    if question.decode_pool is not None and question.prefill_pool is None:
        raise BadValue("`--decode-pool` needs `--prefill-pool`, which computes the prompts")
    if question.advise is not None and question.prefill_pool is None:
        return _advise(question, resolve(question, listings))
    deployment = make_deployment(question, listings)
    demand, objectives = _demand(question), _objectives(question)
    is_without_traffic = demand.rate_per_s is None and demand.concurrency is None and demand.trace is None
    if objectives and is_without_traffic:
        demand = _at_highest_rate(question, deployment, demand, listings)
    traffic, description = _traffic(question, demand, deployment)
    _check_options_of_traffic(question, deployment, traffic)
    classes = _classes(question)
    if any(request_class.priority for request_class in classes):
        deployment = _with_priorities(deployment)
    if deployment.admission is not None:
        check_traffic(traffic)
    limits_s = [(objective.name, objective.limit_s) for objective in objectives]
    described: dict[str, Any] = {"description": description, "classes": classes, "limits_s": limits_s}
    prepared, result = _simulate(question, deployment, traffic, listings, **described)
    if not objectives:
        return result
    missed = missed_in(result, objectives)
    if deployment.admission is not None:
        missed = find_missed(latencies_of_all(prepared.simulate(traffic)), objectives)
    arrivals = "Poisson arrivals" if demand.trace is None else f"the gaps of {demand.trace.name}"
    return with_highest_rate(
        result, deployment, objectives, _traffic_at(question, demand, deployment), missed, arrivals
    )


def _check_options_of_traffic(question: Serve, deployment: Deployment, traffic: Traffic) -> None:
    """Raise BadValue for options that need requests with hashes, requests without them, or several replicas."""
    if traffic.hashes is None and question.cache_tiers is not None:
        raise BadValue("`--cache-tiers` needs prompts with beginnings in common: give `--workload`, or hash_ids")
    pools = (deployment,) if deployment.prefill is None else (deployment, deployment.prefill)
    if question.router != "round-robin" and all(pool.replicas == 1 for pool in pools):
        raise BadValue("`--router` chooses among several replicas: give their number with `--replicas`")
    if traffic.hashes is not None and question.prefix_hit_rate:
        raise BadValue(
            "`--prefix-hit-rate` is for requests of which no prefixes are known: those of `--workload`, and the "
            "hash_ids of `--requests`, say which are common"
        )


def _simulate(
    question: Serve,
    deployment: Deployment,
    traffic: Traffic,
    listings: Mapping[str, Price | None] | None,
    **described: Any,  # of the traffic, as for `paleo_lite.serving.answers.answer`
) -> tuple[PreparedDeployment, Serving]:
    """Return a deployment that is prepared for traffic, and the answer; raise DoesNotFit with what would fit."""
    from ..serving.answers import answer as simulated_answer
    from ..serving.prepared import prepare

    with _naming_what_fits(question, deployment, traffic, listings):
        prepared = prepare(deployment, traffic)
        return prepared, simulated_answer(prepared, traffic, **described)


@contextmanager
def _naming_what_fits(
    question: Serve, deployment: Deployment, traffic: Traffic, listings: Mapping[str, Price | None] | None
) -> Iterator[None]:
    """Let DoesNotFit name a division with which a replica holds the requests."""
    from ..serving.cache import NoCacheRoom

    try:
        yield
    except NoCacheRoom as error:
        division = _sufficient_division(question, deployment, traffic, listings)
        raise error.with_division(None if division is None else division.says("fits")) from None
    except DoesNotFit as error:
        division = _sufficient_division(question, deployment, traffic, listings)
        larger = "" if division is None else f"; {division.says('holds it')}"
        raise DoesNotFit(f"{error}{larger}") from None


class _Sufficient(NamedTuple):
    """A division with which a replica holds the requests."""

    options: str  # as they are typed
    is_smallest: bool  # whether no other has fewer devices; of pipeline stages not all are tried

    def says(self, verb: str) -> str:
        """Return a sentence about the division."""
        return f"`{self.options}` is the smallest that {verb}" if self.is_smallest else f"`{self.options}` {verb}"


def _sufficient_division(
    question: Serve, deployment: Deployment, traffic: Traffic, listings: Mapping[str, Price | None] | None
) -> _Sufficient | None:
    """Return the smallest tensor parallelism with which a replica holds a request, or else pipeline stages that do.

    Stages are as wide as usual nodes or as possible, whichever takes fewer devices. Return None if no division does.
    """
    if question.prefill_pool is not None:
        return None  # pools state theirs in their settings
    from ..serving.placement import TENSOR_DEGREES, doubled_degrees

    longest_tokens = (traffic.input_tokens + traffic.output_tokens).max()

    def holds(tensor: int, pipeline: int | None) -> bool:
        """Return whether a replica holds the longest request; raise BadValue if it cannot be divided so."""
        divided = dataclasses.replace(question, tensor=tensor, pipeline=pipeline, workers=None)
        try:
            room = make_deployment(divided, listings).measure_room(traffic)
        except DoesNotFit:
            return False
        return bool(room.tokens >= longest_tokens)

    given = widest = deployment.on_device.tensor
    for tensor in islice(doubled_degrees(given), 1, None):
        try:
            if holds(tensor, question.pipeline):
                return _Sufficient(f"{_enough_workers(question, tensor)}--tensor {tensor}", is_smallest=True)
        except PaleoError:  # of heads or devices that cannot be divided so
            break
        widest = tensor
    widths = {widest, max(min(widest, TENSOR_DEGREES[-1]), given)}
    divisions = product(widths, range((question.pipeline or 1) + 1, MOST_STAGES + 1))
    for tensor, pipeline in sorted(divisions, key=prod):
        try:
            if holds(tensor, pipeline):
                options = f"{_enough_workers(question, tensor * pipeline)}--tensor {tensor} --pipeline {pipeline}"
                return _Sufficient(options, is_smallest=False)
        except PaleoError:
            return None  # an engine without stages, or fewer blocks than these
    return None


def _enough_workers(question: Serve, devices: int) -> str:
    """Return the option of a replica's devices, with a blank, if the stated number is no multiple of them."""
    is_enough = question.workers is None or question.workers % devices == 0
    return "" if is_enough else f"--workers {devices} "


def traffic_of(question: Serve, deployment: Deployment) -> Traffic:
    """Return the requests that a question asks of a deployment; raise BadValue if it says neither rate nor users."""
    demand = _demand(question)
    if demand.rate_per_s is None and demand.concurrency is None and demand.trace is None:
        raise BadValue("a timeline needs traffic: give `--rate` or `--concurrency`")
    return _traffic(question, demand, deployment)[0]


def _at_highest_rate(
    question: Serve, deployment: Deployment, demand: Demand, listings: Mapping[str, Price | None] | None
) -> Demand:
    """Return the demand with the highest rate that meets the objectives, in two digits."""
    from msgspec.structs import replace

    from ..serving.slo import highest_rate

    objectives = _objectives(question)
    traffic_at = _traffic_at(question, demand, deployment)
    with _naming_what_fits(question, deployment, traffic_at(math.inf, 1), listings):
        highest = highest_rate(deployment, objectives, traffic_at)
    if highest is None:
        described = ", ".join(objective.describe() for objective in objectives)
        raise BadValue(f"no rate meets {described}: give `--rate` to see by how much they are missed")
    step = 10.0 ** (math.floor(math.log10(highest)) - 1)  # two digits, rounded down
    return replace(demand, rate_per_s=math.floor(highest / step) * step)


def _traffic_at(question: Serve, demand: Demand, deployment: Deployment) -> Callable[[float, int], Traffic]:
    """Return the function that gives the requests of a question at a rate, once or several times as many.

    Those of a trace, of which there are no more, come faster or slower.
    """
    from msgspec.structs import replace

    from ..serving.requests import read_trace
    from ..serving.slo import SIMULATED_REQUESTS

    if demand.trace is not None:
        trace = read_trace(demand.trace)
        return lambda rate_per_s, runs: trace.at_rate(rate_per_s)
    count = SIMULATED_REQUESTS * deployment.replicas
    simulated = replace(demand, concurrency=None, arrivals="poisson")

    def traffic_at(rate_per_s: float, runs: int) -> Traffic:
        """Return requests that arrive at a rate."""
        asked = replace(simulated, rate_per_s=rate_per_s, num_requests=runs * count)
        return _traffic(question, asked, deployment)[0]

    return traffic_at


def _traffic(question: Serve, demand: Demand, deployment: Deployment) -> tuple[Traffic, str]:
    """Return the requests of a deployment with their adapters, and their description."""
    _check_drawn(question, demand)
    traffic, description = _plain_traffic(question, demand, deployment)
    if deployment.adapters is None:
        return traffic, description
    from ..serving.adapters import with_adapters

    described = f"{description}, {format_plural(deployment.adapters.count, 'adapter')}"
    return with_adapters(traffic, deployment.adapters, question.seed), described


def _check_drawn(question: Serve, demand: Demand) -> None:
    """Raise BadValue for options of requests that are drawn where these are not."""
    given = set(question.given())
    if demand.trace is not None and given & {"input_tokens", "output_tokens"}:
        raise BadValue("`--requests` has lengths of its own: leave `--input-tokens` and `--output-tokens` out")
    is_at_once = demand.rate_per_s is not None and math.isinf(demand.rate_per_s)
    if "arrivals" in given and (demand.trace is not None or demand.concurrency is not None or is_at_once):
        raise BadValue(
            "`--arrivals` is for a finite `--rate`: leave it out with `--concurrency`, `--requests` and `--rate inf`"
        )


def _plain_traffic(question: Serve, demand: Demand, deployment: Deployment) -> tuple[Traffic, str]:
    """Return the requests of a deployment, and their description."""
    from ..serving.classes import with_classes

    classes = _classes(question)
    if classes and demand.trace is not None:
        raise BadValue("give only one of `--workload` and `--requests`")
    if question.workload is None or classes:
        traffic, description = demand.traffic(deployment.replicas, mixes_phases=deployment.engine.mixes_phases)
        if not classes:
            return traffic, description
        mixes_phases = deployment.engine.mixes_phases
        traffic = with_classes(traffic, classes, question.seed, drift_apart=mixes_phases)
        return traffic, f"{demand.describe(len(traffic))}, {len(classes)} {'class' if len(classes) == 1 else 'classes'}"
    from ..serving.workloads import parse_workload

    if demand.trace is not None:
        raise BadValue("give only one of `--workload` and `--requests`")
    if (demand.rate_per_s is None) == (demand.concurrency is None):
        raise BadValue("give exactly one of `--rate` and `--concurrency` with `--workload`")
    if {"input_tokens", "output_tokens"} & set(question.given()):
        raise BadValue("`--workload` has lengths of its own: leave `--input-tokens` and `--output-tokens` out")
    workload = parse_workload(question.workload)
    count = demand.count(deployment.replicas)
    traffic = workload.traffic(
        count,
        rate_per_s=demand.rate_per_s,
        concurrency=demand.concurrency,
        arrivals=demand.arrivals,
        seed=demand.seed,
        drift_apart=deployment.engine.mixes_phases,
    )
    return traffic, f"{demand.describe(count)}, {workload.describe()}"


def _classes(question: Serve) -> list[RequestClass]:
    """Return the classes of requests; none where they are all alike."""
    from ..serving.classes import CLASSES, parse_classes

    if question.workload is None or not question.workload.strip().startswith(CLASSES):
        return []
    return parse_classes(question.workload.strip())


def _with_priorities(deployment: Deployment) -> Deployment:
    """Return a deployment whose requests have priorities; raise BadValue if its engine knows none."""
    import msgspec

    launcher = deployment.engine.launcher
    if launcher is None or not launcher.priorities:
        raise BadValue(f"nothing is known of priorities under {deployment.engine.name}: leave priority=N out")
    prefill = None if deployment.prefill is None else _with_priorities(deployment.prefill)
    return msgspec.structs.replace(deployment, has_priorities=True, prefill=prefill)


def _advise(question: Serve, resolved: Resolved) -> Serving:
    """Return the answer of the best of several deployments."""
    import msgspec

    from ..api.serve_advice import FixedOptions
    from ..api.serve_advice import advise as find_best
    from ..files import to_paths
    from ..machines import find_device
    from ..serving.candidates import DEFAULT_HEADROOM, Criteria

    options: Any = question
    division = resolved.division
    fixed = FixedOptions(
        weights=resolved.weights,
        tensor=options.tensor,
        pipeline=options.pipeline,
        divides_experts_or_attention=(options.expert_parallel or options.attention_data_parallel) is not None,
        expert_parallel=division.expert_parallel,
        attention_data_parallel=division.attention_data_parallel,
    )
    headroom = DEFAULT_HEADROOM if question.headroom is None else question.headroom
    devices = [find_device(name, to_paths(question.hardware_files)) for name in resolved.devices]
    best_answer = find_best(
        resolved.deployments, devices, fixed, _demand(question), _objectives(question),
        Criteria(question.advise or "cost", headroom, options.workers),
    )  # fmt: skip
    assert best_answer.advice is not None
    best = best_answer.advice.best
    if best is None:
        return best_answer
    advice = msgspec.structs.replace(best_answer.advice, command=_advised_command(question, best))
    return msgspec.structs.replace(best_answer, advice=advice)


def advised_question(question: Serve, best: Candidate) -> Serve:
    """Return the question of the deployment that advice recommends, without a limit of its sequences."""
    from ..serving.products import USUAL_PRECISION

    options: Any = question
    weights = options.weights if best.weights == (options.precision or USUAL_PRECISION) else best.weights
    alone = dataclasses.replace(
        question, gpu=best.gpu, weights=weights, workers=None, advise=None, slo=None, headroom=None, tensor=None,
        pipeline=None, expert_parallel=None, attention_data_parallel=None,
    )  # fmt: skip
    if best.draft is not None:
        alone = dataclasses.replace(alone, speculation=best.draft.settings)
    if all(pool.division.devices == 1 for pool in (best, best.prefill) if pool is not None):
        alone = dataclasses.replace(alone, link=None)  # which would join nothing
    if best.prefill is None:
        degrees: dict[str, Any] = {name: n for name, n in best.division._asdict().items() if n > 1}
        return dataclasses.replace(alone, **{"tensor": 1, **degrees}, replicas=best.replicas)
    pools: dict[str, Any] = {
        name: {"replicas": pool.replicas, **_settings_of_division(pool.division)}
        for name, pool in (("prefill_pool", best.prefill), ("decode_pool", best))
    }
    if best.prefill.gpu != best.gpu:
        pools["prefill_pool"]["gpu"] = best.prefill.gpu
    return dataclasses.replace(alone, **pools)


def _settings_of_division(division: Division) -> dict[str, Any]:
    """Return the settings of a pool whose replicas are divided so; degrees of 1 are left out."""
    return {name.replace("_", "-"): degree for name, degree in division._asdict().items() if degree > 1}


def _advised_command(question: Serve, best: Candidate) -> str:
    """Return the command line that asks for the recommended deployment alone."""
    alone = advised_question(question, best)
    sequences = make_deployment(alone).with_sequences(best.batch_limit).engine.max_sequences
    if best.prefill is None:
        alone = dataclasses.replace(alone, max_sequences=sequences)
    else:
        pool = {**settings_of(alone.decode_pool), "max-sequences": sequences}
        alone = dataclasses.replace(alone, decode_pool=pool)
    if question.rate is None and question.concurrency is None:
        alone = dataclasses.replace(alone, concurrency=best.batch_limit * best.replicas)
    return shlex.join(command_words("serve", alone))


def _demand(question: Serve) -> Demand:
    """Return the requests that are asked for."""
    from ..serving.lengths import parse_lengths
    from ..serving.requests import Demand, parse_rate

    options: Any = question
    usual = SPEECH_TOKENS if is_speech_model(question) else USUAL_TOKENS
    inputs, outputs = options.input_tokens, options.output_tokens
    return Demand(
        parse_lengths(usual[0] if inputs is None else inputs, "--input-tokens", is_input=True),
        parse_lengths(usual[1] if outputs is None else outputs, "--output-tokens", is_input=False),
        rate_per_s=None if options.rate is None else parse_rate(options.rate),
        concurrency=options.concurrency,
        trace=None if question.requests is None else Path(question.requests),
        num_requests=question.num_requests,
        arrivals=question.arrivals,
        seed=question.seed,
    )


def _objectives(question: Serve) -> tuple[Objective, ...]:
    """Return the objectives."""
    from ..serving.slo import parse_slo

    if question.slo is None:
        return ()
    return parse_slo(str(question.slo))


def _choose_listings(question: Serve, gpus: Sequence[Any]) -> dict[str, Price | None] | None:
    """Return the listings by which several devices are compared; None where each answer has its own price."""
    if not gpus or question.price_usd_per_h is not None or question.platform is not None:
        return None
    from ..files import to_paths
    from ..machines import find_device
    from ..serving.price_basis import choose_listings

    return choose_listings([find_device(gpu, to_paths(question.hardware_files)) for gpu in gpus], question.price_of)


_NOT_ADVISED = {"workload", "cache_tiers", "router", "requests", "scaling", "admission"}
"""Options that `--advise` does not take."""

serve = make_function("serve", Serve, answer)


def _document(result: Any, shown: Mapping[str, Any]) -> Any:
    """Return the document of a deployment, with the best of ranked ones."""
    return result.document(top=shown.get("top"))


SERVE = QuestionKind(
    name="serve",
    record=Serve,
    answer=answer,
    summary="Predict latency, throughput and cost of a language model that serves requests.",
    examples=(
        "llama-3-8b --gpu h100-sxm --input-tokens 1024 --output-tokens 256 --rate 5",
        "llama-3-70b --platform p5.48xlarge --tensor 4 --workers 8 --concurrency 64 --engine sglang",
        "llama-3-8b --gpu h100-sxm,l40s --rate 4",
        "llama-3-70b --gpu l40s --tensor 4 --pipeline 2 --rate 0.5",
        "llama-3-8b --gpu l40s --rate 2 --slo ttft=500ms,tpot=50ms",
        "llama-3-8b --gpu h100-sxm,l40s --rate 20 --slo tpot=30ms --advise cost",
    ),
    document=_document,
    shown=("top",),
    listed=20,  # as many as are known in order
    files={
        ".compose.yaml": ("serve_files:write_compose", "a Docker Compose file that starts the deployment"),
        ".kubernetes.yaml": ("serve_files:write_kubernetes", "a Deployment and a Service of Kubernetes"),
        ".llm-d.yaml": ("serve_files:write_llm_d", "values of llm-d's chart"),
        ".dynamo.yaml": ("serve_files:write_dynamo", "a DynamoGraphDeployment"),
        ".trace.json": ("serve_files:write_trace", "a timeline of replicas and requests for Perfetto"),
        ".trace.csv": ("serve_files:write_series", "time series of the replicas"),
    },
)
