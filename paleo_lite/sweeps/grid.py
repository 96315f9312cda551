"""`Grid`: all rows of a chunk, as arrays over named axes, with the devices and time models that predict them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counting.work import ENGINE, PHASES_WITH_GRADIENTS
from ..distributed.strategies import STRATEGIES
from ..errors import PaleoError
from ..machines import Device, Machine, Price, find_device
from ..serving.engine_model import EngineModel, asks_for_layers, choose_engine
from ..timing.energy import with_power_limit
from ..timing.models import CALIBRATED, TimeModel, find_model
from ..timing.workload import UnderEngine
from .cases import resolve_network
from .columns import StringColumn, listed_price
from .space import AUTOMATIC, Chunk, DeviceSetting, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ChooseModel = Callable[..., TimeModel]
"""Function from device, precision, None or ``calibrated``, execution and the keyword ``is_language_model`` to the best
time model, or a `PaleoError`, such as `paleo_lite.calibration.choose.choose_model`."""

AXES = ("case", "device", "model", "scaling", "strategy", "link", "collective", "workers", "batch")
"""Axes of the rows, slowest first. A case is a network in a phase; ``batch`` is the requested batch size."""


def broadcast_along(values: Any, *axes: str) -> NDArray[Any]:
    """Return an array over some axes, in the order of `AXES`, reshaped to broadcast against all rows."""
    array = np.asarray(values)
    lengths = dict(zip(axes, array.shape))
    return array.reshape([lengths.get(axis, 1) for axis in AXES])


class Grid:
    """All rows of a chunk."""

    def __init__(self, space: Space, chunk: Chunk, choose_model: ChooseModel) -> None:
        self.space, self.chunk = space, chunk
        # Devices of the chunk, at their clocks.
        self.machines: list[Machine] = [load_machine(device, space.hardware_files) for device in chunk.devices]
        self.devices: list[Device] = [machine.device for machine in self.machines]  # the same without clocks
        # Price of each device; None if none is on record, or a price is given.
        self.listings: list[Price | None] = [
            listed_price(device, space.price_usd_per_h, space.price_of) for device in self.devices
        ]
        self.shape = (len(chunk.cases), len(self.devices), *space.inner_shape, len(chunk.batch_sizes))  # over `AXES`
        self.columns: dict[str, Floats] = {}  # columns of numbers, over `AXES`
        self.collective = StringColumn(np.full(self.shape, -1, dtype=np.int32))  # algorithm of the gradient exchange
        self.reason = StringColumn(np.full(self.shape, -1, dtype=np.int32))  # why a row is infeasible
        self.batches = np.array(chunk.batch_sizes, dtype=np.int64)
        self.workers = np.array(space.workers, dtype=np.int64)
        is_divisible = self.batches % self.workers[:, None] == 0
        strong = np.where(is_divisible, self.batches // self.workers[:, None], -1)
        weak = np.broadcast_to(self.batches, strong.shape)
        # Samples per worker, axes (scaling, workers, batch); -1 where the batch is not divisible.
        self.per_worker: Ints = np.array([weak if scaling == "weak" else strong for scaling in space.scalings])
        # Whether a strategy needs the times of single layers, not of gradient buckets.
        self.by_layer = any(STRATEGIES[name].extra_batch_sizes for name in space.strategies)
        self.models: dict[tuple[int, int], TimeModel] = {}  # available time models by the indices of device and model
        # Engines whose kernels are timed, by the same indices; absent where layers are timed.
        self.engines: dict[tuple[int, int], UnderEngine] = {}
        self._find_models(choose_model)

    def _find_models(self, choose_model: ChooseModel) -> None:
        """Fill `models`, and refuse the rows without a model."""
        precision = self.chunk.precision
        sized, phase = self.chunk.cases[0]
        execution = ENGINE if sized.phase else "eager"
        network = resolve_network(sized)
        for device, model in np.ndindex(len(self.devices), len(self.space.time_models)):
            name, machine = self.space.time_models[model], self.machines[device]
            try:
                machine.peak(precision)
                machine.vector_peak(precision)
                required = None if name == AUTOMATIC else name
                is_by_layers = asks_for_layers(required)
                engine = choose_engine(network, machine.device, phase, precision, is_by_layers=is_by_layers)
                if engine is not None:
                    self.models[device, model] = EngineModel()
                    self.engines[device, model] = engine
                elif name in (AUTOMATIC, CALIBRATED):
                    self.models[device, model] = choose_model(
                        machine.device, precision, required, execution, network=network
                    )
                else:
                    self.models[device, model] = find_model(name, self.space.ppp)
            except PaleoError as error:
                self.refuse(str(error), device=device, model=model)

    def refuse_training_in_formats(self) -> None:
        """Refuse training in a format, which is a recipe with weights in more bits."""
        for case, (_, phase) in enumerate(self.chunk.cases):
            if self.chunk.weights is not None and phase in PHASES_WITH_GRADIENTS:
                reason = (
                    f"sweeps do not support {phase} by recipes such as {self.chunk.weights}: use `paleo-lite predict`"
                )
                self.refuse(reason, case=case)

    def refuse(self, reason: str, where: Any = True, **indices: int) -> None:
        """Set the reason of infeasible rows; a row keeps its first reason.

        The rows are those at the given index of each named axis; the mask `where` broadcasts against them.
        """
        selection = tuple(slice(indices[axis], indices[axis] + 1) if axis in indices else slice(None) for axis in AXES)
        codes = self.reason.codes[selection]  # a view
        is_refused = np.broadcast_to(where, codes.shape) & (codes < 0)
        if is_refused.any():
            codes[is_refused] = self.reason.code(reason)


@lru_cache(512)
def load_machine(setting: DeviceSetting, files: tuple[str, ...]) -> Machine:
    """Return a device by name, under its power limit and at its clock."""
    device = find_device(setting.gpu, [Path(file) for file in files])
    if setting.power_limit_w is not None:
        device = with_power_limit(device, setting.power_limit_w)
    return Machine(device, setting.clock)
