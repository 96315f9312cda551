"""Placement of a network under an engine: formats, parallelism, links, and the kernels that follow."""

from __future__ import annotations

from itertools import product

from ..architectures.checkpoint import StoredWeights
from ..architectures.network import SequenceOptions
from ..counting.kinds import is_attention
from ..counting.parts import parts_of
from ..distributed.links import Topology
from ..engines.blocks import Fusion, sampled_logits
from ..engines.choose import PartFormats, checkpoint_formats, choose_formats, has_constants
from ..engines.kernels import Attention, Experts
from ..engines.records import FUSIONS, engine_of_policy
from ..engines.step import EngineKernels, EngineStep, Placement
from ..errors import BadValue
from ..formats import Part
from ..machines import Device
from ..timing.workload import Workload
from .engines import Engine, with_host
from .iteration_times import ModelOnDevice
from .kernel_tables import device_kernels

CHECKED_CONTEXT = 512
"""Tokens in the cache of the network that is checked: enough for caches that hold a vector for several tokens."""


def engine_speaks_for(on_device: ModelOnDevice) -> bool:
    """Return whether the kernels of engines were measured for a question: device, precision and a config.

    Pipelines keep the times of their layers: with kernels, a published pipeline over two nodes comes out 41% too fast.
    """
    workload = on_device.workload
    is_known = has_constants(on_device.machine.device) and workload.precision not in ("fp64", "fp32", "tf32")
    is_known = is_known and on_device.pipeline.degree == 1
    return is_known and workload.network.rebuild is not None


def check_undivided(experts: int, attention_data: int, device: Device, stages: int = 1) -> None:
    """Raise BadValue if experts or attention are divided, where the layers are timed one by one."""
    for option, degree in (("--expert-parallel", experts), ("--attention-data-parallel", attention_data)):
        if degree > 1 and stages > 1:
            raise BadValue(f"`{option}` is not modelled with `--pipeline`: leave one of them out")
        if degree > 1:
            raise BadValue(
                f"`{option}` needs the kernels of an engine, which are known for NVIDIA's GPUs from Ampere on with the "
                f"calibrated time model (got {device.name})"
            )


def with_kernels(on_device: ModelOnDevice, policy: str, *, experts: int, attention_data: int) -> ModelOnDevice:
    """Return a network on a device with the kernels of an engine.

    Parameters
    ----------
    on_device : ModelOnDevice
        Network, device and links.
    policy : str
        One of `paleo_lite.serving.engines.ENGINES`.
    experts, attention_data : int
        Expert-parallel degree, and groups that compute attention for sequences of their own.

    Raises
    ------
    BadValue
        If a degree does not divide the devices, the heads or the experts.
    """
    workload, device = on_device.workload, on_device.machine.device
    devices = on_device.tensor
    if devices % attention_data:
        raise BadValue(
            f"`--attention-data-parallel` must divide the {devices} devices of `--tensor` (got {attention_data})"
        )
    if devices % experts:
        raise BadValue(f"`--expert-parallel` must divide the {devices} devices of `--tensor` (got {experts})")
    if attention_data > 1 and on_device.pipeline.degree > 1:
        raise BadValue("`--attention-data-parallel` is not modelled with `--pipeline`: leave one of them out")
    assert workload.network.rebuild is not None
    workload.network.rebuild(SequenceOptions(phase="decode", tensor_parallel=devices // attention_data, blocks=1))
    engine = engine_of_policy(policy)
    fusion = FUSIONS[engine]
    unplaced = _engine_kernels(device, engine, on_device, Placement(tensor=devices // attention_data), fusion)
    kernels = [one.kernel for one in device_kernels(on_device._replace(kernels=unplaced), "decode", CHECKED_CONTEXT)]
    _check_experts([kernel for kernel in kernels if isinstance(kernel, Experts)], experts, workload.network.name)
    is_latent = any(isinstance(kernel, Attention) and kernel.is_latent for kernel in kernels)
    has_experts = any(isinstance(kernel, Experts) for kernel in kernels)
    placement = _place(on_device.group, devices, experts, attention_data)
    placed = _engine_kernels(device, engine, on_device, placement, fusion, has_experts, is_latent)
    return on_device._replace(kernels=placed)


def with_fitted_host(engine: Engine, on_device: ModelOnDevice) -> Engine:
    """Return an engine with the time of its host that was fitted to servers; older versions keep hosts of their own."""
    if on_device.kernels is None or on_device.kernels.step.engine != engine.name:
        return engine
    logits = sampled_logits(device_kernels(on_device, "decode", CHECKED_CONTEXT))
    return with_host(engine, on_device.kernels.step.host, logits)


def possible_divisions(on_device: ModelOnDevice) -> list[tuple[int, int]]:
    """Return pairs of an expert-parallel degree and a number of attention groups that are worth trying, without (1, 1).

    Experts of a mixture are divided among all devices or by tensor parallelism. Attention is computed for sequences of
    their own where there are fewer heads of keys and values than devices, as with latent attention, so that tensor
    parallelism would store keys and values several times.
    """
    devices = on_device.tensor
    if on_device.kernels is None or devices == 1:
        return []
    layers = on_device.workload.layers
    experts = {layer.weights[0][0] for layer in layers if "active" in layer.attributes}
    if not experts:
        return []
    kv_heads = [layer.inputs[1][1] for layer in layers if is_attention(layer)]
    has_few_kv_heads = bool(kv_heads) and min(kv_heads) < devices
    degrees = (1, devices) if all(number % devices == 0 for number in experts) else (1,)
    groups = (1, devices) if has_few_kv_heads and on_device.pipeline.degree == 1 else (1,)
    return [pair for pair in product(degrees, groups) if pair != (1, 1)]


def part_formats(workload: Workload) -> PartFormats | None:
    """Return the formats that most weights of a checkpoint have by part; None where the question names a format."""
    stored = workload.stored_format
    if not isinstance(stored, StoredWeights):
        return None
    layers = workload.layers
    parts = parts_of(layers, workload.reads_tokens)

    def main_name(part: Part, is_projection: bool = False) -> str | None:
        chosen = [
            (layer, own)
            for layer, own in zip(layers, parts)
            if own == part and (part == "experts" or ("attn" in layer.name) == is_projection)
        ]
        main = stored.main_format([layer for layer, _ in chosen], [own for _, own in chosen])
        return None if main is None else main.name

    return PartFormats(
        main_name("dense", is_projection=True), main_name("dense"), main_name("experts"), stored.has_narrow_activations
    )


def _engine_kernels(
    device: Device,
    engine: str,
    on_device: ModelOnDevice,
    placement: Placement,
    fusion: Fusion,
    has_experts: bool = False,
    is_latent: bool = False,
) -> EngineKernels:
    workload = on_device.workload
    stored = part_formats(workload)
    if stored is not None:
        formats = checkpoint_formats(workload.precision, stored, on_device.kv_cache, device)
    else:
        formats = choose_formats(
            workload.precision,
            workload.weights,
            on_device.kv_cache,
            has_experts=has_experts,
            has_latent_attention=is_latent,
        )
    return EngineKernels(EngineStep(device, engine, formats, placement), fusion)


def _check_experts(mixtures: list[Experts], degree: int, name: str) -> None:
    if degree == 1:
        return
    if not mixtures:
        raise BadValue(f"`--expert-parallel` needs a mixture of experts, which {name} is not")
    for mixture in mixtures:
        if mixture.experts % degree:
            raise BadValue(f"`--expert-parallel` {degree} does not divide the {mixture.experts} experts of {name}")


def _place(group: Topology | None, devices: int, experts: int, attention_data: int) -> Placement:
    """Return the placement of a stage on the devices of a group."""
    if group is None:
        return Placement()
    inside = group.inside if group.inside is not None else group.between
    assert inside is not None
    nodes = max(-(-devices // max(group.devices_per_node, 1)), 1) if group.between is not None else 1
    between = group.between.bandwidth_bytes_per_s if group.between is not None else 0.0
    return Placement(
        tensor=devices // attention_data,
        attention_data=attention_data,
        experts=experts,
        link_bytes_per_s=inside.bandwidth_bytes_per_s,
        nodes=nodes,
        node_link_bytes_per_s=between,
    )
