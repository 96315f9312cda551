"""`predict_local`: a language model under llama.cpp on one's own machine."""

from __future__ import annotations

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..local.predict import DEFAULT_CONTEXT, DEFAULT_CPU, DEFAULT_PROMPT, LocalPrediction
from ..local.predict import predict_local as predict_on_device
from ..machines import Device, find_device
from .arguments import Paths, to_paths
from .prediction import resolve_network


def predict_local(
    network: str | Network,
    *,
    gpu: str | Device,
    weights: str | None = None,
    kv_cache: str | None = None,
    context: int | None = None,
    prompt_tokens: int | None = None,
    gpus: int = 1,
    gpu_layers: int | None = None,
    cpu_experts: bool = False,
    cpu: str | Device | None = None,
    hardware_files: Paths = (),
) -> LocalPrediction:
    """Predict prompt, answer and memory of a language model under llama.cpp.

    Parameters
    ----------
    network : str or Network
        Language model, by name, config or GGUF file.
    gpu : str or Device
        Device; also a processor.
    weights, kv_cache : str, optional
        Formats of GGUF, such as ``"q4_k_m"`` and ``"q8_0"``; by default the types of a file's tensors, ``"q4_k_m"`` for
        any other network, and a cache in ``f16``.
    context, prompt_tokens : int, optional
        Tokens in the cache (4096) and of the prompt (512).
    gpus : int
        Devices that the layers are split over.
    gpu_layers : int, optional
        Blocks on the device; by default as many as fit.
    cpu_experts : bool
        Whether experts are in the memory of the host.
    cpu : str or Device, optional
        Processor of the host; by default one with two channels of DDR5.
    hardware_files : path, or sequence of paths
        TOML files of further devices.

    Raises
    ------
    PaleoError
        For an unknown name, an invalid value, or if the requested layers do not fit.
    """
    paths = to_paths(hardware_files)
    return predict_on_device(
        resolve_network(network, None, (), SequenceOptions(phase="decode", context=1)),
        find_device(gpu, paths),
        find_device(cpu or DEFAULT_CPU, paths),
        weights=weights,
        kv_cache=kv_cache or "f16",
        context=context or DEFAULT_CONTEXT,
        prompt_tokens=prompt_tokens or DEFAULT_PROMPT,
        gpus=gpus,
        gpu_layers=gpu_layers,
        cpu_experts=cpu_experts,
    )
