"""Files of a deployment that `serve --report FILE` writes: those that start it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadValue
from .option import command_words
from .serve import make_deployment
from .serve_options import Serve

if TYPE_CHECKING:
    from ..serving.answers import Serving
    from ..serving.deployment import Deployment
    from ..serving.manifests import StartFile


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
    if question.advise is None:
        return make_deployment(question)
    return advised_deployment(question, answer)


def advised_deployment(question: Serve, answer: Serving) -> Deployment:
    """Return the deployment that an answer with advice recommends; raise BadValue if it recommends none."""
    assert answer.advice is not None
    best = answer.advice.best
    if best is None:
        raise BadValue("no deployment meets the objectives, so that there is none to start: change `--slo`")
    is_stated = best.weights != best.precision
    chosen = dataclasses.replace(
        question, gpu=best.gpu, tensor=best.tensor, pipeline=best.pipeline, expert_parallel=best.expert_parallel,
        attention_data_parallel=best.attention_data_parallel, weights=best.weights if is_stated else question.weights,
        replicas=best.replicas, workers=None, advise=None, slo=None, headroom=None,
    )  # fmt: skip
    return make_deployment(chosen).with_sequences(best.batch_limit)
