"""Placement of a network under an engine on the devices of a stage."""

from __future__ import annotations

from ..distributed.replica import place_replica
from ..engines.placed import NEEDS_KERNELS, check_division, place_kernels
from ..engines.records import kernels_of
from ..engines.routing import UNIFORM
from ..errors import BadValue
from ..machines import Device
from ..timing.workload import UnderEngine
from .iteration_times import ModelOnDevice


def check_undivided(experts: int, attention_data: int, device: Device, stages: int = 1, alpha: float = UNIFORM) -> None:
    """Raise BadValue if experts or attention are divided, or experts loaded, where the layers are timed one by one.

    Pipelines keep the times of their layers: with kernels, a published pipeline over two nodes comes out 41% too fast.
    """
    for option, degree in (("--expert-parallel", experts), ("--attention-data-parallel", attention_data)):
        if degree > 1 and stages > 1:
            raise BadValue(f"`{option}` is not modelled with `--pipeline`: leave one of them out")
        if degree > 1:
            raise BadValue(f"`{option}` {NEEDS_KERNELS} (got {device.name})")
    if alpha != UNIFORM:
        raise BadValue(f"`--expert-load` {NEEDS_KERNELS} and without `--pipeline` (got {device.name})")


def with_kernels(
    on_device: ModelOnDevice, policy: str, *, experts: int, attention_data: int, alpha: float = UNIFORM
) -> ModelOnDevice:
    """Return a network on a device with the kernels of an engine.

    Parameters
    ----------
    on_device : ModelOnDevice
        Network, device and links.
    policy : str
        One of `paleo_lite.engines.records.SERVERS`.
    experts, attention_data : int
        Expert-parallel degree, and groups that compute attention for sequences of their own.
    alpha : float
        Exponent of the popularity of experts, 0 for the uniform distribution (`paleo_lite.engines.routing`).

    Raises
    ------
    BadValue
        If a degree does not divide the devices, the heads or the experts.
    """
    check_division(on_device.tensor, experts, attention_data)
    if attention_data > 1 and on_device.pipeline.degree > 1:
        raise BadValue("`--attention-data-parallel` is not modelled with `--pipeline`: leave one of them out")
    placement = place_replica(on_device.group, on_device.tensor, experts, attention_data, alpha)
    workload = on_device.workload.with_changes(engine=UnderEngine(policy, on_device.kv_cache, alpha))
    kernels = place_kernels(
        workload,
        on_device.machine.device,
        kernels_of(policy),
        kv_cache=on_device.kv_cache,
        placement=placement,
    )
    return on_device._replace(workload=workload, kernels=kernels)
