"""`local`: a language model on one's own machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import AmbiguousName, BadValue, UnknownName
from .compare import check_no_pipeline, compare, find_asked_device
from .completion import DEVICE
from .kind import QuestionKind, make_function
from .names import LocalFormatNames, Names
from .option import Several, documented_spelling, option, options_of
from .records import (
    DEVICE_GROUP,
    ENGINE_GROUP,
    NETWORK_GROUP,
    CalibrationOptions,
    DeviceOptions,
    NetworkAsked,
    SiteOptions,
)
from .values import INTEGER, TOKENS, Quantity, SplitProportions, to_list

if TYPE_CHECKING:
    from ..machines import Device
    from ..own_machines.advise import LocalAdvice
    from ..own_machines.predict import LocalPrediction
    from ..sweeps.comparison import Comparison


@dataclass(frozen=True)
class Local(SiteOptions, CalibrationOptions, DeviceOptions, NetworkAsked):
    """Predict how fast a language model writes on one's own machine, and where its layers go.

    The network is a shipped one, a config.json of Hugging Face or a GGUF file. Several devices or several formats are
    ranked.
    """

    weights: Several[str | None] = option(
        group=NETWORK_GROUP, is_common=True, metavar="FORMAT",
        type=LocalFormatNames("format of weights", ".formats:FORMATS"), spellings=("--weights", "--quantization"),
        help="Format of the weights, such as q4_k_m. [default: that of the file, or the usual one of the engine]",
    )  # fmt: skip
    context: int | None = option(
        group=NETWORK_GROUP, is_common=True, type=TOKENS, metavar="TOKENS",
        spellings=("--context", "--ctx-size", "-c"),
        help="Tokens in the cache. [default: 4096, or the prompt if it is longer; at most what the network knows]",
    )  # fmt: skip
    prompt: int | None = option(
        group=NETWORK_GROUP, is_common=True, type=TOKENS, metavar="TOKENS",
        spellings=("--prompt", "--sequence-length"),
        help="Tokens of the prompt. [default: 512]",
    )  # fmt: skip
    engine: str = option(
        "llama.cpp", group=ENGINE_GROUP, is_common=True, type=Names("engine", ".engines.records:LOCAL_EXECUTIONS"),
        metavar="NAME", help="Program: llama.cpp (GGUF), mlx (Macs) or exllama (GeForce).",
    )  # fmt: skip
    backend: str | None = option(
        group=ENGINE_GROUP, is_common=True, type=Names("backend", ".engines.records:BACKENDS"), metavar="NAME",
        help="Backend of llama.cpp, such as rocm on a Radeon. [default: cuda, metal, cpu, otherwise vulkan]",
    )  # fmt: skip
    kv_cache: str | None = option(
        group=ENGINE_GROUP, is_common=True, type=Names("format of the KV cache", ".formats:FORMATS"), metavar="FORMAT",
        spellings=("--kv-cache", "--cache-type-k", "--cache-type-v", "-ctk", "-ctv"),
        help="Type of keys and values, such as q8_0. [default: f16]",
    )  # fmt: skip
    workers: int = option(
        1, group=DEVICE_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Devices of one kind that the layers are split over; different ones are --gpu rtx3090+rtx3060.",
    )  # fmt: skip
    tensor_split: str | Sequence[float] | None = option(
        group=DEVICE_GROUP, type=SplitProportions(), is_single=True, metavar="N0,N1,...",
        spellings=("--tensor-split", "-ts"),
        help="Proportions of the blocks on each device, such as 3,1. [default: as much as each has memory]",
    )  # fmt: skip
    gpu_layers: int | str | None = option(
        group=ENGINE_GROUP, is_common=True, metavar="N|auto",
        spellings=("--gpu-layers", "--n-gpu-layers", "-ngl"),
        help="Layers on the device as llama.cpp counts them: the head, and the transformer blocks before it. [default: "
        "auto, the fastest that fits]",
    )  # fmt: skip
    cpu_experts: bool = option(
        False, group=ENGINE_GROUP, is_common=True, spellings=("--cpu-experts", "--cpu-moe"),
        help="Keep experts in the memory of the host.",
    )  # fmt: skip
    cpu_expert_blocks: int | None = option(
        group=ENGINE_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--cpu-expert-blocks", "--n-cpu-moe", "-ncmoe"),
        help="Keep the experts of the first N blocks in the memory of the host. [default: those that do not fit]",
    )  # fmt: skip
    cpu_cache: bool = option(
        False, group=ENGINE_GROUP, is_common=True, spellings=("--cpu-cache", "--no-kv-offload"),
        help="Keep keys and values in the memory of the host.",
    )  # fmt: skip
    device_memory: float | str | None = option(
        group=DEVICE_GROUP, is_common=True, type=Quantity("B"), metavar="SIZE",
        help="Memory of the device, such as 16GB for a Mac. [default: the one on record]",
    )  # fmt: skip
    cpu: str | Device | None = option(
        group=DEVICE_GROUP, is_common=True, type=DEVICE, metavar="DEVICE",
        help="Processor of the host. [default: ryzen-9-7950x]",
    )  # fmt: skip
    advise: bool = option(
        False, group=ENGINE_GROUP, is_common=True,
        help="Rank formats on one --gpu; without --gpu rank all devices of people's own machines.",
    )  # fmt: skip


def answer(question: Local) -> LocalPrediction | LocalAdvice | Comparison:
    """Return the prediction on one device, a ranking of devices or formats, or several answers side by side.

    Devices or formats are ranked where nothing else has several values.
    """
    several = question.several()
    ranked = [name for name in ("gpu", "weights") if name in several]
    if question.advise and len(several) > len(ranked):
        declared = options_of(Local)
        others = [
            f"`{documented_spelling(name, declared[name])}`" if name in declared else name
            for name in several
            if name not in ranked
        ]
        raise BadValue(f"`--advise` ranks devices or formats for one question: give one value of {', '.join(others)}")
    is_ranking = question.advise or len(several) == len(ranked) == 1
    return compare(question, _answer, together=ranked if is_ranking else ())


def _devices_named(question: Local, gpu: Any) -> Any:
    """Return a device as it was given, or the names of those of one machine, which plus signs join."""
    if not isinstance(gpu, str) or "+" not in gpu:
        return gpu
    names = []
    parts = gpu.split("+")
    while parts:
        end = len(parts)
        while end > 1 and not _has_plus_sign(replace(question, gpu="+".join(parts[:end]))):
            end -= 1
        names.append("+".join(parts[:end]).strip())
        parts = parts[end:]
    if len(names) == 1:
        return names[0]
    if not all(names):
        raise BadValue(f"`--gpu {gpu}` lacks a name beside a plus sign")
    if question.workers != 1:
        raise BadValue(f"`--gpu {gpu}` names every device of the machine: leave `--workers` out")
    return names


def _has_plus_sign(question: Local) -> bool:
    """Return whether a question names one device, in whose own name a plus sign is, as in Ryzen AI Max+ 395."""
    try:
        return "+" in find_asked_device(question).name
    except (AmbiguousName, BadValue, UnknownName):
        return False


def _answer(question: Local) -> LocalPrediction | LocalAdvice:
    """Return the prediction on one device, or a ranking of devices or formats."""
    from ..api.local import advise_local, predict_local
    from ..calibration.store import find_evidence
    from ..own_machines.question import LocalQuestion

    network: Any = question.network
    if network is None:
        raise BadValue("`local` needs a language model, such as llama-3.1-8b or a GGUF file")
    check_no_pipeline(network, "local")
    for name in ("clock", "unit"):
        if name in question.given():
            raise BadValue(
                f"`--{name}` is for `predict`: programs on one's own machine were measured at default clocks"
            )
    several_gpus, several_weights = isinstance(question.gpu, list), isinstance(question.weights, list)
    if several_gpus and several_weights:
        raise BadValue("several devices are ranked in one format: give one of `--weights`, or one `--gpu`")
    is_ranking = question.advise or several_gpus or several_weights
    gpu_layers = _parse_gpu_layers(question.gpu_layers)
    if is_ranking and gpu_layers is not None:
        raise BadValue("`--gpu-layers` is for one prediction: a ranking places as much on each device as fits")
    fields: dict[str, Any] = {
        "execution": question.engine,
        "backend": question.backend,
        "weights": None if several_weights else question.weights,
        "kv_cache": question.kv_cache,
        "context": question.context,
        "prompt_tokens": question.prompt,
        "gpus": question.workers,
        "tensor_split": question.tensor_split,
        "device_memory": question.device_memory,
        "gpu_layers": gpu_layers,
        "cpu_experts": question.cpu_experts or None,
        "cpu_expert_blocks": question.cpu_expert_blocks,
        "cpu_cache": question.cpu_cache or None,
        "cpu": question.cpu,
        "power_limit": question.power_limit,
        "facility": question.facility,
        "calibration": find_evidence(question.calibration, "local", ("local", "power")),
    }
    local_question = LocalQuestion(**{name: value for name, value in fields.items() if value is not None})
    files = question.hardware_files
    if is_ranking:
        gpus = None if question.gpu is None else [_devices_named(question, gpu) for gpu in to_list(question.gpu)]
        formats = question.weights if isinstance(question.weights, list) else None
        return advise_local(network, gpus, local_question, weights=formats, hardware_files=files)
    if question.gpu is None:
        raise BadValue("give the device with `--gpu`, such as `--gpu rtx3060`; with `--advise` it may be left out")
    return predict_local(network, _devices_named(question, question.gpu), local_question, hardware_files=files)


def _parse_gpu_layers(gpu_layers: int | str | None) -> int | None:
    """Return the number of layers on the device; None for the fastest that fits."""
    if gpu_layers in (None, "auto"):
        return None
    if not str(gpu_layers).isdecimal():
        raise BadValue(f"`--gpu-layers` must be a number of layers or auto (got {gpu_layers!r})")
    return int(str(gpu_layers))


def _document(result: Any, shown: Mapping[str, Any]) -> Any:
    """Return the document of a result; a ranking is cut after the asked number of rows."""
    from ..own_machines.advise import LocalAdvice

    return result.document(top=shown.get("top")) if isinstance(result, LocalAdvice) else result.document()


local = make_function("local", Local, answer)

LOCAL = QuestionKind(
    name="local",
    record=Local,
    answer=answer,
    summary="Predict how fast a language model writes on your own machine.",
    examples=(
        "llama-3.1-8b --gpu rtx3060 --weights q4_k_m --context 8192",
        "qwen3-30b-a3b --gpu rtx4070 --weights q4_k_m --cpu-experts",
        "llama-3.1-8b --gpu rtx3060,rtx4090,apple-m4-max",
        "llama-3.3-70b --gpu rtx3090+rtx4060ti-16gb --advise",
        "qwen3-14b --gpu rtx3060 --advise",
        "llama-3.1-8b --gpu apple-m4-max --engine mlx",
    ),
    document=_document,
    shown=("top",),
    default_chart="local",
)
