"""How a network trains on many devices: `scale`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ..architectures import Network
from ..counting import GENERATING
from ..counting.work import ENGINE
from ..errors import BadQuantity, BadValue, UnknownName
from ..machines import Device
from ..units import parse_quantity
from .prediction import Common, nouns
from .question import option, refuse_unknown

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

    from ..distributed.job import Inputs, Settings
    from ..distributed.table import ScaleTable


class ManyDevices(Common, total=False):
    """What `scale` may be told besides; see there."""

    workers: int | str | Sequence[int] | None
    link: str | None
    topology: str | None
    platform: str | None
    measured: Sequence[str]
    batch_size: int | None
    scaling: str | None
    strategy: str
    phase: str
    context: int | None
    weights: str | None
    execution: str | None
    ppp_comm: float | None
    images: float | str | None
    epochs: float | None
    price: float | str | None
    cost: bool
    concurrent: bool
    storage: str | None
    decode: float | str | None
    pageable: bool


def scale(
    network: str | Network | nn.Module,
    *,
    gpu: str | Device | None = None,
    advise: bool = False,
    settings: Settings | None = None,
    compat: str | None = None,
    revision: str = "first",
    **question: Unpack[ManyDevices],
) -> ScaleTable:
    """Predict how a network trains on many devices, or how a language model reads and writes on those of a node.

    Parameters
    ----------
    network, precision, time_model, ppp, calibration, clock, unit, image_size, sequence_length, inputs, hardware_files
        As for `predict`.
    phase : {"training", "prefill", "decode"}
        In prefill and decode all devices share every matrix, or as many as ``settings.split.tensor`` says.
    context, weights, execution
        Of prefill and decode, as for `predict`.
    workers : int, str or sequence of int, optional
        ``8``, ``[1, 2, 4]`` or a range: ``"1,2,4,...,128"``, ``"1:128:x2"``; without any all of the topology.
    gpu : str or Device, optional
        May be left out where the topology names it.
    link : str, optional
        Between all workers: ``"ethernet20"``, ``"infiniband-fdr"``, ``"25 GB/s"``.
    topology : str, optional
        In place of `link`: ``"2x k40m @ pcie3, 16 nodes @ infiniband"``, or a TOML's path.
    platform : str, optional
        In place of both: a computer by name, ``"p4d.24xlarge"`` or ``"dgx-h100"``, or one whose scaling was measured,
        ``"ec2-p2-k80"`` or ``"dgx1-p100"``.
    measured : sequence of str
        What was measured of this network, batch and strategy on this cluster: ``["16 workers: 5,900 samples/s"]``.
    batch_size : int, optional
        Samples per worker for weak scaling (32 without one), of all workers for strong (32 for each of the most); in
        prefill and decode one sequence without one.
    scaling : {"weak", "strong"}
        weak: the batch per worker stays; strong: the batch of all together. By default weak, in prefill and decode
        strong.
    strategy : str
        One of `paleo_lite.distributed.strategies.STRATEGIES`.
    advise : bool
        Try every strategy and collective on the one number of workers, best first.
    settings : Settings, optional
        Collective, buckets, gradient precision: `paleo_lite.distributed.job.Settings`.
    training : TrainingOptions, optional
        Optimizer, mixed precision, checkpointing, accumulation.
    ppp_comm : float, optional
        Share of the links' bandwidth that is reached, instead of the calibrated one, or 1.
    images, epochs, price
        For hours, cost and energy: samples per epoch, or ``"300B tokens"``; epochs; USD per hour of one device (else
        what it rents for).
    cost : bool
        Insist on a cost: an error where no price is known.
    storage, decode, pageable
        What feeds each node, where a step may wait for it: storage as in `feeding`, samples per second that a node
        decodes, and whether one process copies them from pageable memory.
    concurrent : bool
        With `ppp`, or `compat`: the larger of arithmetic and memory time, not the sum.
    compat : {"paleo"}, optional
        Compute as the released PALEO does, defects and all.
    revision : {"first", "last"}
        Revision of PALEO, with `compat`.

    Returns
    -------
    ScaleTable
        Rows with ``time_s``, ``speedup``, ``efficiency``; ``to_dict()``.

    Raises
    ------
    PaleoError
        One of its classes.

    Examples
    --------
    >>> import paleo_lite as pl
    >>> pl.scale("resnet50", gpu="k80-die", link="ethernet20", workers="1,2,4,...,128")[-1].speedup  # doctest: +SKIP
    """
    from ..distributed.job import Settings
    from ..distributed.run import Request, run
    from ..timing.workload import TrainingOptions

    if not question.keys() <= ManyDevices.__annotations__.keys():
        refuse_unknown("scale", question, (*inspect.signature(scale).parameters, *ManyDevices.__annotations__))
    asked: dict[str, Any] = dict(question)
    if compat is not None:
        return _as_paleo(network, gpu, settings, revision, {**asked, "advise": advise})
    if settings is not None and settings.split is not None:
        if (strategy := asked.get("strategy", "data")) not in ("data", "together"):
            raise BadValue(f"--tensor, --pipeline and what goes with them are of --strategy together, not {strategy}")
        asked["strategy"] = "together"
    phase = asked.setdefault("phase", "training")
    if phase in GENERATING:
        asked = _generating(asked)
    elif phase != "training":
        raise UnknownName("phase of several devices", phase, ("training", *GENERATING))
    elif refused := [name for name in ("context", "weights", "execution") if asked.pop(name, None) is not None]:
        raise BadValue(f"{option(refused[0])} is of --phase prefill and decode, not of training")
    else:
        asked["training"] = asked.get("training") or TrainingOptions("sgd")
    asked["scaling"] = asked.get("scaling") or "weak"
    request = Request(
        cost_asked=asked.pop("cost", False),
        **{name: asked.pop(name) for name in Request.__struct_fields__ if name in asked},
    )
    topology = request.machine([Path(file) for file in asked.get("hardware_files", ())])
    gpu = gpu or topology.device
    if gpu is None:
        raise BadValue(
            "which device? Give a GPU, or a topology that names it: '2x k40m @ pcie3, 16 nodes @ infiniband'"
        )
    fed = {name: asked.pop(name) for name in ("storage", "decode", "pageable") if name in asked}
    workload, machine, model = nouns(network, gpu, asked)
    if any(fed.values()):
        settings = structs.replace(settings or Settings(), inputs=_inputs(machine.device, **fed))
    return run(request, topology, workload, machine, model, settings, advise=advise)


def _generating(asked: dict[str, Any]) -> dict[str, Any]:
    """What is asked of prefill or decode, with what stands for what was left out."""
    if asked.get("training") is not None:
        raise BadValue(f"training options are of --phase training, not of {asked['phase']}")
    if asked.get("strategy", "data") not in ("data", "together"):
        raise BadValue(f"in {asked['phase']} devices share matrices, by --tensor: leave --strategy out")
    return {
        **asked,
        "strategy": "together",
        "scaling": asked.get("scaling") or "strong",
        "batch_size": asked.get("batch_size") or 1,
        "execution": asked.get("execution") or ENGINE,
    }


def _inputs(
    device: Device, storage: str | None = None, decode: float | str | None = None, pageable: bool = False
) -> Inputs:
    """What feeds a node's devices."""
    from ..distributed.job import Inputs
    from ..input_pipeline.feeding import find_store, link_of_host

    try:
        per_s = None if decode is None else parse_quantity(str(decode).replace(",", "").removesuffix("/s"), "")
    except BadQuantity:
        per_s = 0.0
    if per_s is not None and not 0 < per_s < float("inf"):
        raise BadValue(f"--decode must be samples a second of a node, above 0, such as '3,000/s', not {decode!r}")
    return Inputs(find_store(storage or "memory"), per_s, pageable, *link_of_host(device))


_PALEO_KNOWS = ("workers", "link", "batch_size", "scaling", "strategy", "ppp", "ppp_comm", "images", "epochs", "price",
                "cost", "concurrent")  # fmt: skip


def _as_paleo(network: Any, gpu: Any, settings: Settings | None, revision: str, asked: dict[str, Any]) -> ScaleTable:
    """What the released PALEO says, in the same table; what it does not know is refused."""
    from ..distributed.job import Settings
    from ..distributed.run import Request
    from ..paleo.scale import paleo_table

    settings = settings or Settings()
    plain = Settings(collective=settings.collective)
    further = {name: getattr(settings, name) for name in Settings.__struct_fields__}
    changed = {name: value for name, value in further.items() if value != getattr(plain, name)}
    unsaid = (None, False, (), "fp32", "training")
    for name, value in {**asked, **changed}.items():
        if name not in _PALEO_KNOWS and (name in changed or value not in unsaid):
            raise BadValue(f"PALEO has no {option(name)}: leave it out, or leave out --compat paleo")
    known = {name: asked[name] for name in _PALEO_KNOWS if asked.get(name) is not None}
    how = {name: known.pop(name) for name in ("ppp", "concurrent") if name in known}
    request = Request(cost_asked=known.pop("cost", False), **known)
    return paleo_table(request, network, gpu, collective=settings.collective or "tree", revision=revision, **how)
