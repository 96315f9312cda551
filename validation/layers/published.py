"""Single layers that other people timed, as operations that our own rules count.

- ml-performance-prediction (CDECatapult, Apache-2.0): random convolutions and dense layers in TensorFlow 1.10. A
  session that runs one layer takes 0.1 to 0.4 ms whatever it holds. Its programs (``Generate_train_data``) keep the
  input and the target as trainable variables: a training step computes gradients of both, and updates both.
- DeepBench (Baidu, Apache-2.0): convolutions and matrix products in cuDNN and cuBLAS, the best of its algorithms.
- NeuSight (MIT): kernels of PyTorch 2.1, fastest 5 of 25 runs.

Files of 150,000 rows are sampled: of each device and phase the shapes whose hashes are smallest, whatever the order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from paleo_lite.counting import Layer
from paleo_lite.errors import BadFile, UsageProblem
from paleo_lite.hardware import find_device

from ..tables import rows_of

SAMPLE = 600
"""Rows kept of each device, source and phase."""

_DEVICES = {
    # What the sources do not say: the K40 is clocked alike on every board; clouds rent these boards.
    "K40": "k40m",
    "K80": "k80-die",
    "P100": "p100-pcie-16gb",
    "V100": "v100-sxm2",
}
_PRECISIONS = {"fp32": "fp32", "fp16_mixed(16b mul,32b acc)": "fp16"}


class Operation(NamedTuple):
    """A layer in one pass: ``inference``, ``forward``, ``backward_data``, ``backward_weight`` or ``update``."""

    layer: Layer
    part: str


class LayerTime(msgspec.Struct, frozen=True):
    """A measured layer.

    Attributes
    ----------
    gpu, precision, source : str
    mode : str
        Layers of a source with the same mode were timed alike and are fitted together.
    kind : str
        What was timed.
    phase : str
    shape : str
        All sizes, the batch among them: what is held out together.
    batch_size : int
        Samples; the operations' layers are those of one.
    time_s : float
    operations : tuple of Operation
        What the step runs, in order.
    """

    gpu: str
    precision: str
    source: str
    mode: str
    kind: str
    phase: str
    shape: str
    batch_size: int
    time_s: float
    operations: tuple[Operation, ...]


class LayerDataset(msgspec.Struct, frozen=True):
    """Measured layers, and what of the files was left out and why: reason to number of rows."""

    layers: list[LayerTime]
    left_out: dict[str, int]


def published_layers(
    folder: Path, gpus: Iterable[str] = (), precisions: Iterable[str] = (), sample: int = SAMPLE
) -> LayerDataset:
    """The layers that a folder's files time, of some devices and precisions (all where empty), a sample of each group.

    Raises
    ------
    BadFile
        If a file is missing or damaged, or a size or time in it is no number.
    """
    gpus, precisions, left_out = set(gpus), set(precisions), Counter[str]()
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, str]]]] = defaultdict(list)
    for file, (_, group) in FILES.items():
        for row in rows_of(folder / file):
            if missing := {"gpu", "precision", "value", *group} - row.keys():
                raise BadFile(f"{folder / file}: no column {', '.join(sorted(missing))}")
            device, precision = _device(row["gpu"]), _PRECISIONS.get(row["precision"])
            if device is None or precision is None:
                left_out["a device or precision without a file here"] += 1
            elif row.get("check"):
                left_out["flagged by who collected it"] += 1
            elif (not gpus or device in gpus) and (not precisions or precision in precisions):
                key = (file, device, precision, *(row[name] for name in group))
                groups[key].append((hash_of(_text(row)), row))
    found: list[LayerTime] = []
    for (file, device, precision, *_), rows in sorted(groups.items()):
        rows.sort(key=lambda pair: (pair[0], pair[1]["value"]))
        left_out["beyond the sample"] += max(0, len(rows) - sample)
        found += [_read(folder / file, row, device, precision) for _, row in rows[:sample]]
    return LayerDataset(found, dict(left_out))


def _read(path: Path, row: dict[str, str], device: str, precision: str) -> LayerTime:
    try:
        return FILES[path.name][0](row, device, precision)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise BadFile(
            f"{path}: a row whose sizes or time cannot be read: {_text(row)!r} ({type(error).__name__}: {error})"
        ) from None


def hash_of(text: str) -> int:
    """A number that a text alone decides."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


_NO_SIZE = {
    "source", "source_path", "commit", "date", "gpu", "framework", "framework_version", "driver", "mode", "value",
    "unit", "min_ms", "max_ms", "std_ms", "gflop", "gflop_fwd", "tflops", "algo", "app", "check", "kernel", "grid",
    "block", "n_gpus", "split", "precision", "padded_kernel", "phase", "out_hw", "optimizer",
}  # fmt: skip


def _text(row: dict[str, str]) -> str:
    """What of a row is shape."""
    return " ".join(value for name, value in sorted(row.items()) if name not in _NO_SIZE and value)


def _device(name: str) -> str | None:
    if name not in _known:
        try:
            _known[name] = find_device(_DEVICES.get(name, name)).id
        except UsageProblem:
            _known[name] = None
    return _known[name]


_known: dict[str, str | None] = {}


def _time(row: dict[str, str], gpu: str, precision: str, source: str, mode: str, kind: str, phase: str,
          batch_size: int, operations: Iterable[Operation]) -> LayerTime:  # fmt: skip
    return LayerTime(
        gpu, precision, source, mode, kind, phase, _text(row), batch_size, float(row["value"]) / 1e3, tuple(operations)
    )


# TensorFlow -----------------------------------------------------------------------------------------------------------

_UPDATES = {"sgd": (2, 1), "momentum": (3, 2), "adagrad": (3, 2), "rmsprop": (4, 3), "adam": (4, 3), "adadelta": (4, 3)}
"""For each optimizer how many numbers of each variable's size its step reads and writes: the variable, its gradient,
and what it keeps."""


def _tensorflow_convolution(row: dict[str, str], gpu: str, precision: str) -> LayerTime:
    side, out, kernel = int(row["matsize"]), int(row["out_hw"]), int(row["kernelsize"])
    channels, outputs = int(row["channels_in"]), int(row["channels_out"])
    weight, x, y = (outputs, channels, kernel, kernel), (channels, side, side), (outputs, out, out)
    weights = (weight, (outputs,)) if row["use_bias"] == "True" else (weight,)
    layer = Layer("conv", "conv2d", (x,), (y,), weights, attributes={"stride": [int(row["strides"])] * 2})
    # Its layout is NHWC, cuDNN's NCHW: transposed on the way in and out unless the convolution is a matrix product.
    product = (kernel == 1 and row["strides"] == "1") or (kernel == side and row["padding"] == "VALID")
    turned = () if product else (_turn(x), _turn(y))
    return _tensorflow(row, gpu, precision, "conv", layer, turned)


def _tensorflow_dense(row: dict[str, str], gpu: str, precision: str) -> LayerTime:
    inputs, outputs = int(row["dim_input"]), int(row["dim_output"])
    layer = Layer("dense", "linear", ((inputs,),), ((outputs,),), ((outputs, inputs), (outputs,)))
    return _tensorflow(row, gpu, precision, "dense", layer, ())


def _tensorflow(
    row: dict[str, str], gpu: str, precision: str, kind: str, layer: Layer, turned: tuple[Layer, ...]
) -> LayerTime:
    """One step: the layer with its bias and activation, in a training step the loss, its gradients and the update."""
    batch_size, (y,) = int(row["batchsize"]), layer.outputs
    act = [] if row["activation"] == "none" else [_elementwise(row["activation"], y)]
    bias = [_elementwise("add", y)] if len(layer.weights) > 1 else []
    part = "inference" if row["phase"] == "forward" else "forward"
    forward = [Operation(each, part) for each in (*turned, layer, *bias, *act)]
    source = "ml-performance-prediction tensorflow 1.10"
    if part == "inference":
        return _time(row, gpu, precision, source, f"{kind} forward", kind, "inference", batch_size, forward)
    # The mean of squared differences to a target of the output's size, and its gradient into both.
    loss = [_elementwise("sub", y, 2), _elementwise("mul", y), _elementwise("scale", y), _elementwise("neg", y)]
    back = [Operation(_elementwise("mul", y, 2), "forward") for _ in act]
    back += [Operation(layer, "backward_data"), Operation(layer, "backward_weight")]
    back += [Operation(each, "forward") for each in turned * 2]
    reads, writes = _UPDATES[row["optimizer"]]
    inputs = Layer("input", "copy", (layer.inputs[0],) * reads, (layer.inputs[0],) * writes)
    target = Layer("target", "copy", (y,) * reads, (y,) * writes)
    own = tuple(shape for shape in layer.weights)
    update = [Operation(each, "forward") for each in (inputs, target)]
    update += [Operation(_fixed_copy(shape, reads, writes), "update") for shape in own]
    whole = [*forward, *(Operation(each, "forward") for each in loss), *back, *update]
    return _time(row, gpu, precision, source, f"{kind} training", kind, "training", batch_size, whole)


def _turn(shape: tuple[int, ...]) -> Layer:
    return Layer("layout", "copy", (shape,), (shape,))


def _elementwise(kind: str, shape: tuple[int, ...], operands: int = 1) -> Layer:
    return Layer(kind, kind, (shape,) * operands, (shape,))


def _fixed_copy(shape: tuple[int, ...], reads: int, writes: int) -> Layer:
    return Layer("variable", "copy", (shape,) * reads, (shape,) * writes)


# DeepBench ------------------------------------------------------------------------------------------------------------

_PASSES = {"forward": "forward", "backward_data": "backward_data", "backward_weights": "backward_weight"}


def _deepbench_convolution(row: dict[str, str], gpu: str, precision: str) -> LayerTime:
    size = {name: int(row[name]) for name in
            ("N", "C", "H", "W", "K", "R", "S", "pad_h", "pad_w", "stride_h", "stride_w")}  # fmt: skip
    out = tuple(
        (size[side] + 2 * size[f"pad_{name}"] - size[taps]) // size[f"stride_{name}"] + 1
        for side, taps, name in (("H", "R", "h"), ("W", "S", "w"))
    )
    layer = Layer(
        "conv", "conv2d", ((size["C"], size["H"], size["W"]),), ((size["K"], *out),),
        ((size["K"], size["C"], size["R"], size["S"]),), attributes={"stride": [size["stride_h"], size["stride_w"]]},
    )  # fmt: skip
    part = _PASSES[row["phase"]]
    return _time(row, gpu, precision, _deepbench(row), "conv", "conv", part, size["N"], [Operation(layer, part)])


def _deepbench_product(row: dict[str, str], gpu: str, precision: str) -> LayerTime:
    rows, columns, inner = int(row["M"]), int(row["N"]), int(row["K"])
    return _time(
        row, gpu, precision, _deepbench(row), "gemm", "gemm", "forward", columns, [_linear(inner, rows, "forward")]
    )


def _deepbench(row: dict[str, str]) -> str:
    return f"DeepBench {row['framework_version']}"


def _linear(inputs: int, outputs: int, part: str) -> Operation:
    return Operation(Layer("linear", "linear", ((inputs,),), ((outputs,),), ((outputs, inputs),)), part)


# NeuSight -------------------------------------------------------------------------------------------------------------

_NEUSIGHT_SIZES = (
    "b", "m", "n", "k", "h", "input_channel", "output_channel", "kernel_size", "input_size", "stride", "padding",
)  # fmt: skip
_NEUSIGHT_KINDS = {"ln": "layer_norm", "addu": "add", "divu": "div", "mulu": "mul", "powu": "pow"}
_TWO_OPERANDS = ("add", "div", "mul", "pow")  # those with u take a number


def _neusight(row: dict[str, str], gpu: str, precision: str) -> LayerTime:
    op = row["op"]
    size = {name: int(float(row[name])) for name in _NEUSIGHT_SIZES if row[name]}
    batch_size, kind = size["b"], op
    if op == "conv":
        side, kernel = size["input_size"], size["kernel_size"]
        out = (side + 2 * size["padding"] - kernel) // size["stride"] + 1
        inputs, outputs = size["input_channel"], size["output_channel"]
        layer = Layer(
            op, "conv2d", ((inputs, side, side),), ((outputs, out, out),), ((outputs, inputs, kernel, kernel),),
            attributes={"stride": [size["stride"]] * 2},
        )  # fmt: skip
    elif op == "linear":
        layer = _linear(size["k"], size["n"], "inference").layer
        batch_size *= size["m"]
    elif op == "bmm":
        m, n, k = size["m"], size["n"], size["k"]
        layer = Layer(op, "matmul", ((1, m, k), (1, k, n)), ((1, m, n),))
    else:
        shape = (size["h"],)
        weights = (shape, shape) if op == "ln" else ()
        operands = 2 if op in _TWO_OPERANDS else 1
        layer = Layer(op, _NEUSIGHT_KINDS.get(op, op), (shape,) * operands, (shape,), weights)
        kind = {"ln": "layer norm", "softmax": "softmax"}.get(op, "elementwise")
    operations = [Operation(layer, "inference")]
    source = "NeuSight pytorch 2.1"
    return _time(row, gpu, precision, source, kind, kind, "inference", batch_size, operations)


Reader = Callable[[dict[str, str], str, str], LayerTime]

FILES: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "conv_layers_tensorflow.csv.gz": (_tensorflow_convolution, ("phase",)),
    "dense_layers_tensorflow.csv.gz": (_tensorflow_dense, ("phase",)),
    "deepbench_conv.csv.gz": (_deepbench_convolution, ("phase",)),
    "deepbench_gemm.csv.gz": (_deepbench_product, ()),
    "kernels_neusight.csv.gz": (_neusight, ("op",)),
}
"""Each file with what reads its rows, and the columns that separate what is sampled apart."""
