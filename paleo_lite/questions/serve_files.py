"""Files of a deployment that `serve --report FILE` writes: those that start it, and its timelines."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import BadValue
from .option import command_words
from .serve import advised_question, traffic_of
from .serve_deployment import make_deployment
from .serve_options import Serve

if TYPE_CHECKING:
    from ..serving.answers import Serving
    from ..serving.deployment import Deployment
    from ..serving.manifests import StartFile
    from ..serving.outcomes import Outcome


def write_compose(question: Serve, answer: Any, path: Path) -> bytes:
    """Return the Compose file of the deployment of an answer."""
    from ..serving.manifests import compose_file

    return _write(compose_file, question, answer, path)


def write_kubernetes(question: Serve, answer: Any, path: Path) -> bytes:
    """Return the Deployment and the Service of the deployment of an answer."""
    from ..serving.manifests import kubernetes_file

    return _write(kubernetes_file, question, answer, path)


def write_llm_d(question: Serve, answer: Any, path: Path) -> bytes:
    """Return the values of llm-d's chart for the deployment of an answer."""
    from ..serving.manifests import llm_d_values

    return _write(llm_d_values, question, answer, path)


def write_dynamo(question: Serve, answer: Any, path: Path) -> bytes:
    """Return Dynamo's graph of the deployment of an answer."""
    from ..serving.manifests import dynamo_graph

    return _write(dynamo_graph, question, answer, path)


def _write(make: Callable[[Deployment], StartFile], question: Serve, answer: Any, path: Path) -> bytes:
    """Return the content of a file that starts the deployment of an answer."""
    manifest = make(answered_deployment(question, answer))
    return manifest.text(path.name, shlex.join(command_words("serve", question))).encode()


def answered_deployment(question: Serve, answer: Any) -> Deployment:
    """Return the deployment that an answer is about: the one that is asked for, or that is advised."""
    from ..serving.answers import Serving

    if not isinstance(answer, Serving):
        raise BadValue("`--report` writes the files of one deployment: give one value of every option")
    deployment = make_deployment(question) if question.advise is None else advised_deployment(question, answer)
    if any(answered.priority for answered in answer.classes or ()):
        deployment = msgspec.structs.replace(deployment, has_priorities=True)
    prefill = deployment.prefill
    if prefill is not None and answer.prefill_pool is not None:
        prefill = msgspec.structs.replace(prefill, longest_request=answer.prefill_pool.longest_request)
    return msgspec.structs.replace(deployment, longest_request=answer.longest_request, prefill=prefill)


def advised_deployment(question: Serve, answer: Serving) -> Deployment:
    """Return the deployment that an answer with advice recommends; raise BadValue if it recommends none."""
    assert answer.advice is not None
    best = answer.advice.best
    if best is None:
        if answer.exceeds_workers:
            raise BadValue(
                f"no deployment fits into `--workers {answer.advice.devices}`, the nearest needs {answer.devices}: "
                "give more devices, or omit the start file"
            )
        raise BadValue("no deployment meets the objectives: relax `--slo`, or omit the start file")
    return make_deployment(advised_question(question, best)).with_sequences(best.batch_limit)


def write_trace(question: Serve, answer: Any, path: Path) -> bytes:
    """Return the timeline of the replicas of an answer as a Chrome trace."""
    from ..reporting.timelines import encode_trace, fleet_events

    return encode_trace(fleet_events(_recorded(question, answer)))


def write_series(question: Serve, answer: Any, path: Path) -> bytes:
    """Return what the replicas of an answer do over time as CSV."""
    from ..reporting.timelines import fleet_series

    return fleet_series(_recorded(question, answer)).encode()


def _recorded(question: Serve, answer: Any) -> dict[str, Sequence[Outcome]]:
    """Return the outcomes of the replicas by pool, with their steps, of the traffic of a question."""
    from ..serving.prepared import prepare

    deployment = answered_deployment(question, answer)
    traffic = traffic_of(question, deployment)
    options = msgspec.structs.replace(deployment.options, records_steps=True)
    prefill = deployment.prefill
    if prefill is not None:
        prefill_options = msgspec.structs.replace(prefill.options, records_steps=True)
        prefill = msgspec.structs.replace(prefill, options=prefill_options)
    recorded = msgspec.structs.replace(deployment, options=options, prefill=prefill)
    simulated = prepare(recorded, traffic).simulate(traffic)
    if deployment.prefill is None:
        return {"replica": simulated.outcomes}
    return {"prefill": simulated.prefill, "decode": simulated.outcomes}
