"""ml-performance-prediction (CDECatapult, Apache-2.0): random convolutions and dense layers in TensorFlow 1.10.

A session that runs one layer takes 0.1 to 0.4 ms whatever it holds. Its programs (``Generate_train_data``) keep the
input and the target as trainable variables: a training step computes gradients of both, and updates both.
"""

from __future__ import annotations

from paleo_lite.counting import Layer

from .timed import Operation, Reading

_UPDATES = {"sgd": (2, 1), "momentum": (3, 2), "adagrad": (3, 2), "rmsprop": (4, 3), "adam": (4, 3), "adadelta": (4, 3)}
"""For each optimizer how many numbers of each variable's size its step reads and writes: the variable, its gradient,
and what it keeps."""


def tensorflow_convolution(row: dict[str, str]) -> Reading:
    """A step of a network of one convolution."""
    side, out, kernel = int(row["matsize"]), int(row["out_hw"]), int(row["kernelsize"])
    channels, outputs = int(row["channels_in"]), int(row["channels_out"])
    weight, x, y = (outputs, channels, kernel, kernel), (channels, side, side), (outputs, out, out)
    weights = (weight, (outputs,)) if row["use_bias"] == "True" else (weight,)
    layer = Layer("conv", "conv2d", (x,), (y,), weights, attributes={"stride": [int(row["strides"])] * 2})
    # Its layout is NHWC, cuDNN's NCHW: transposed on the way in and out unless the convolution is a matrix product.
    product = (kernel == 1 and row["strides"] == "1") or (kernel == side and row["padding"] == "VALID")
    turned = () if product else (_turn(x), _turn(y))
    return _step(row, "conv", layer, turned)


def tensorflow_dense(row: dict[str, str]) -> Reading:
    """A step of a network of one dense layer."""
    inputs, outputs = int(row["dim_input"]), int(row["dim_output"])
    layer = Layer("dense", "linear", ((inputs,),), ((outputs,),), ((outputs, inputs), (outputs,)))
    return _step(row, "dense", layer, ())


def _step(row: dict[str, str], kind: str, layer: Layer, turned: tuple[Layer, ...]) -> Reading:
    """One step: the layer with its bias and activation, in a training step the loss, its gradients and the update."""
    batch_size, (y,) = int(row["batchsize"]), layer.outputs
    act = [] if row["activation"] == "none" else [_elementwise(row["activation"], y)]
    bias = [_elementwise("add", y)] if len(layer.weights) > 1 else []
    part = "inference" if row["phase"] == "forward" else "forward"
    forward = [Operation(each, part) for each in (*turned, layer, *bias, *act)]
    source = "ml-performance-prediction tensorflow 1.10"
    if part == "inference":
        return Reading(source, f"{kind} forward", kind, "inference", batch_size, tuple(forward))
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
    return Reading(source, f"{kind} training", kind, "training", batch_size, tuple(whole))


def _turn(shape: tuple[int, ...]) -> Layer:
    return Layer("layout", "copy", (shape,), (shape,))


def _elementwise(kind: str, shape: tuple[int, ...], operands: int = 1) -> Layer:
    return Layer(kind, kind, (shape,) * operands, (shape,))


def _fixed_copy(shape: tuple[int, ...], reads: int, writes: int) -> Layer:
    return Layer("variable", "copy", (shape,) * reads, (shape,) * writes)
