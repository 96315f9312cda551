"""Published single layers from all sources.

Files with 150,000 rows are sampled: for each device and phase the shapes with the smallest hashes are read, so that the
sample does not depend on the order of rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

import msgspec

from paleo_lite.errors import BadFile, UsageProblem
from paleo_lite.machines import find_device

from ..tables import rows_of
from .aiconfigurator import modern_product
from .deepbench import deepbench_convolution, deepbench_product
from .neusight import neusight
from .tensorflow import tensorflow_convolution, tensorflow_dense
from .timed import LayerTime, Reader

SAMPLE = 600
"""Number of rows sampled for each device, source and phase."""

_DEVICES = {
    # The sources do not name the board: all boards of the K40 have the same clocks, and clouds offer the others.
    "K40": "k40m",
    "K80": "k80-die",
    "P100": "p100-pcie-16gb",
    "V100": "v100-sxm2",
}
_PRECISIONS = {"fp32": "fp32", "fp16_mixed(16b mul,32b acc)": "fp16", "bfloat16": "bf16", "fp8": "fp8"}


class LayerDataset(msgspec.Struct, frozen=True):
    """Measured layers, and the number of omitted rows by reason."""

    layers: list[LayerTime]
    left_out: dict[str, int]


def published_layers(
    folder: Path,
    gpus: Iterable[str] = (),
    precisions: Iterable[str] = (),
    sample: int = SAMPLE,
    files: Iterable[str] = (),
) -> LayerDataset:
    """Read a sample of each group of layers in a folder.

    Parameters
    ----------
    folder : Path
    gpus, precisions, files : iterable of str
        Devices, precisions and files to read (default: all).
    sample : int
        Largest number of layers of a group.

    Raises
    ------
    BadFile
        If a file is missing or damaged, or a size or time in it is not a number.
    """
    gpus, precisions, files, left_out = set(gpus), set(precisions), set(files), Counter[str]()
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, str]]]] = defaultdict(list)
    for file, (_, group) in FILES.items():
        if files and file not in files:
            continue
        for row in rows_of(folder / file):
            if missing := {"gpu", "precision", "value", *group} - row.keys():
                raise BadFile(f"{folder / file}: no column {', '.join(sorted(missing))}")
            device, precision = _device(row["gpu"]), _PRECISIONS.get(row["precision"])
            if device is None or precision is None:
                left_out["an unknown device or precision"] += 1
            elif row.get("check"):
                left_out["flagged by its collector"] += 1
            elif (not gpus or device in gpus) and (not precisions or precision in precisions):
                key = (file, device, precision, *(row[name] for name in group))
                groups[key].append((hash_of(_shape_text(row)), row))
    layers: list[LayerTime] = []
    for (file, device, precision, *_), rows in sorted(groups.items()):
        rows.sort(key=lambda pair: (pair[0], pair[1]["value"]))
        left_out["beyond the sample"] += max(0, len(rows) - sample)
        layers += [_read(folder / file, row, device, precision) for _, row in rows[:sample]]
    return LayerDataset(layers, dict(left_out))


def layer_time(file: str, row: dict[str, str], gpu: str, precision: str) -> LayerTime:
    """Read a row of a file."""
    read, _ = FILES[file]
    return LayerTime(gpu, precision, shape=_shape_text(row), time_s=float(row["value"]) / 1e3, **read(row)._asdict())


def _read(path: Path, row: dict[str, str], device: str, precision: str) -> LayerTime:
    try:
        return layer_time(path.name, row, device, precision)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise BadFile(
            f"{path}: cannot read the sizes or time of a row: {_shape_text(row)!r} ({type(error).__name__}: {error})"
        ) from None


def hash_of(text: str) -> int:
    """Return a hash that depends only on the text, unlike Python's `hash`."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


_COLUMNS_WITHOUT_SIZE = {
    "source", "source_path", "commit", "date", "gpu", "framework", "framework_version", "driver", "mode", "value",
    "unit", "min_ms", "max_ms", "std_ms", "gflop", "gflop_fwd", "tflops", "algo", "app", "check", "kernel", "grid",
    "block", "n_gpus", "split", "precision", "padded_kernel", "phase", "out_hw", "optimizer", "op",
}  # fmt: skip


def _shape_text(row: dict[str, str]) -> str:
    """Return the values of a row that describe the shape."""
    return " ".join(value for name, value in sorted(row.items()) if name not in _COLUMNS_WITHOUT_SIZE and value)


@cache
def _device(name: str) -> str | None:
    try:
        return find_device(_DEVICES.get(name, name)).id
    except UsageProblem:
        return None


FILES: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "conv_layers_tensorflow.csv.gz": (tensorflow_convolution, ("phase",)),
    "dense_layers_tensorflow.csv.gz": (tensorflow_dense, ("phase",)),
    "deepbench_conv.csv.gz": (deepbench_convolution, ("phase",)),
    "deepbench_gemm.csv.gz": (deepbench_product, ()),
    "kernels_neusight.csv.gz": (neusight, ("op",)),
    "gemm_modern.csv": (modern_product, ()),
}
"""Function that reads the rows of each file, and the columns that define its groups."""

OPERATIONS = ("deepbench_gemm.csv.gz", "kernels_neusight.csv.gz", "gemm_modern.csv")
"""Files with evidence for networks: matrix products and memory-bound operations."""
