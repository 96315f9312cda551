"""Sweeps over pipelines for pictures and videos: every combination of pipeline, device, size, steps and split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from ..architectures.pipelines.sampling import find_pipeline, parse_image_size
from ..counting.fusion import EXECUTIONS
from ..errors import BadValue, PaleoError
from ..formats import FORMATS
from ..machines import find_device
from ..timing.pipeline_run import EXECUTIONS as PIPELINE_EXECUTIONS
from ..timing.pipeline_run import PIPELINE_OFFLOADS
from ..units import PRECISION_BYTES, format_si
from ..version import __version__
from .axes import AxisSpace
from .columns import BOUND, FORECAST, Columns, listed_price, make_columns, price_text
from .space import check_names

if TYPE_CHECKING:
    from ..timing.pipeline_prediction import PipelinePrediction

Predict = Callable[..., "PipelinePrediction"]
"""Function that predicts a pipeline, with the parameters of `paleo_lite.predict`."""

STRING_COLUMNS = (
    "network", "gpu", "precision", "weights", "execution", "offload", "image_size", "answer", "version", "price",
    "reason",
)  # fmt: skip
"""Columns of strings of a sweep over pipelines."""

INTEGER_COLUMNS = ("batch_size", "steps", "frames", "ulysses", "ring", "devices")
"""Columns of integers."""

NUMBER_COLUMNS = (
    "power_limit_w", "time_s", "low_s", "high_s", "bound_s", "time_per_image_s", "throughput_per_s", "memory_bytes",
    "hours", "cost", "energy_j",
)  # fmt: skip
"""Columns of numbers."""

_SECONDS_PER_HOUR = 3600


class PictureChunk(NamedTuple):
    """One pipeline on one device in one precision, with all values of the other axes."""

    number: int
    network: str
    gpu: str
    precision: str


class PictureSpace(AxisSpace, msgspec.Struct, frozen=True):
    """All combinations of these pipelines and devices."""

    kind: ClassVar[str] = "pictures"
    inner: ClassVar[tuple[str, ...]] = (
        "weights", "executions", "offloads", "image_sizes", "batch_sizes", "steps", "frames", "ulysses", "ring",
        "power_limits_w",
    )  # fmt: skip
    dimensions: ClassVar[tuple[str, ...]] = ("networks", "gpus", "precisions", *inner)
    titles: ClassVar[dict[str, str]] = {"weights": "formats of weights", "ulysses": "Ulysses degrees", "ring": "rings"}
    rows_per_s: ClassVar[float] = 5.0

    # Names of the registries.
    networks: tuple[str, ...]
    gpus: tuple[str, ...]
    precisions: tuple[str, ...] = ("bf16",)
    weights: tuple[str, ...] = ("",)  # formats of the denoiser's matrices; empty for the precision
    # Executions, and placements of parameters.
    executions: tuple[str, ...] = ("eager",)
    offloads: tuple[str, ...] = ("none",)
    image_sizes: tuple[str | None, ...] = (None,)  # sizes as width x height; None for that of each pipeline
    batch_sizes: tuple[int, ...] = (1,)  # pictures or videos in a batch
    # None for those of each pipeline.
    steps: tuple[int | None, ...] = (None,)
    frames: tuple[int | None, ...] = (None,)
    # Devices that split the sequence.
    ulysses: tuple[int, ...] = (1,)
    ring: tuple[int, ...] = (1,)
    power_limits_w: tuple[float | None, ...] = (None,)  # in watts; None for that of each device
    samples: float = 1e6  # number of pictures or videos that hours, cost and energy refer to
    price_usd_per_h: float | None = None  # price of one device; None uses the price on record
    price_of: str | None = None  # cloud whose prices are used, as for `machines.prices.choose_price`
    hardware_files: tuple[str, ...] = ()  # files with further devices
    as_of: date | None = None  # day of the first run, which decides what prices are old; set by `run.run_sweep`

    def check(self) -> None:
        """Raise an error if no combination can be predicted.

        Raises
        ------
        BadValue
            If an axis is empty or has a duplicate, or a size has another form.
        UnknownName
            If a precision, format, execution or offload is unknown.
        """
        self.check_axes()
        check_names("precision", self.precisions, PRECISION_BYTES)
        check_names("format of weights", [name for name in self.weights if name], FORMATS)
        check_names("execution", self.executions, [*EXECUTIONS, *PIPELINE_EXECUTIONS])
        check_names("offload of a pipeline", self.offloads, PIPELINE_OFFLOADS)
        for size in self.image_sizes:
            if size is not None:
                parse_image_size(size)

    def resolve_names(self) -> PictureSpace:
        """Return the space with the registries' names of devices.

        Raises
        ------
        UnknownName
            If a device is unknown.
        BadValue
            If a network is no pipeline.
        """
        for name in self.networks:
            if find_pipeline(name) is None:
                raise BadValue(f"a sweep has either pipelines for pictures and videos or other networks (got {name})")
        files = [Path(file) for file in self.hardware_files]
        return msgspec.structs.replace(self, gpus=tuple(find_device(name, files).id for name in self.gpus))

    @property
    def metadata(self) -> dict[str, Any]:
        """Properties of the sweep that its file states."""
        return {"samples": self.samples}

    def chunks(self) -> Iterator[PictureChunk]:
        """Iterate over all chunks in their order."""
        for number, outer in enumerate(product(self.networks, self.gpus, self.precisions)):
            yield PictureChunk(number, *outer)


def compute_picture_chunk(space: PictureSpace, chunk: PictureChunk, predict: Predict) -> Columns:
    """Predict a chunk; a combination that is impossible becomes a row with the reason."""
    axes = product(*(getattr(space, name) for name in space.inner))
    rows = [_predict_row(space, chunk, predict, *values) for values in axes]
    return make_columns(rows, STRING_COLUMNS, INTEGER_COLUMNS, NUMBER_COLUMNS)


def _predict_row(
    space: PictureSpace,
    chunk: PictureChunk,
    predict: Predict,
    weights: str,
    execution: str,
    offload: str,
    image_size: str | None,
    batch_size: int,
    steps: int | None,
    frames: int | None,
    ulysses: int,
    ring: int,
    power_limit_w: float | None,
) -> dict[str, Any]:
    """Return the values of a row by column; missing ones are absent."""
    row: dict[str, Any] = {
        "network": chunk.network,
        "gpu": chunk.gpu,
        "precision": chunk.precision,
        "weights": weights or chunk.precision,
        "execution": execution,
        "offload": offload,
        "image_size": image_size,
        "batch_size": batch_size,
        "steps": steps,
        "frames": frames,
        "ulysses": ulysses,
        "ring": ring,
        "devices": ulysses * ring,
        "power_limit_w": power_limit_w,
        "version": __version__,
    }
    try:
        prediction = predict(
            chunk.network,
            gpu=chunk.gpu,
            precision=chunk.precision,
            weights=weights or None,
            execution=execution,
            offload=offload,
            image_size=image_size,
            images=batch_size,
            steps=steps,
            frames=frames,
            ulysses=ulysses,
            ring=ring,
            power_limit=power_limit_w,
            hardware_files=space.hardware_files,
        )
    except PaleoError as error:
        return {**row, "reason": str(error)}
    sampling, memory = prediction.sampling, prediction.memory
    row |= {
        "image_size": f"{sampling.width}x{sampling.height}",
        "steps": sampling.steps,
        "frames": sampling.frames,
        "memory_bytes": memory.total_bytes,
    }
    if not memory.fits:
        needed, usable = (format_si(size, "B") for size in (memory.total_bytes, memory.usable_bytes))
        return {**row, "reason": f"does not fit into memory: needs {needed}, {usable} usable"}
    hours = space.samples / prediction.throughput_per_s / _SECONDS_PER_HOUR
    listing = listed_price(prediction.device, space.price_usd_per_h, space.price_of)
    price = space.price_usd_per_h if listing is None else listing.usd_per_h
    energy_j = prediction.energy_j
    low_s, high_s = prediction.interval or (None, None)
    return {
        **row,
        "answer": FORECAST if prediction.is_forecast else BOUND,
        "time_s": prediction.time_s,
        "low_s": low_s,
        "high_s": high_s,
        "bound_s": prediction.bound_s,
        "time_per_image_s": prediction.time_per_image_s,
        "throughput_per_s": prediction.throughput_per_s,
        "hours": hours,
        "cost": None if price is None else hours * price * prediction.split.devices,
        "energy_j": None if energy_j is None else energy_j * space.samples / sampling.images,
        "price": price_text(listing, space.as_of or date.today()),
    }
