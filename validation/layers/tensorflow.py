"""Reader of ml-performance-prediction (CDECatapult, Apache-2.0): convolutions and dense layers in TensorFlow 1.10.

A session that runs one layer has an overhead of 0.1 to 0.4 ms. The programs (``Generate_train_data``) declare the input
and the target as trainable variables, so a training step computes the gradients of both and updates both.
"""

from __future__ import annotations

from paleo_lite.counting import Layer

from .timed import OperationReading, TimedOperation

_UPDATES = {"sgd": (2, 1), "momentum": (3, 2), "adagrad": (3, 2), "rmsprop": (4, 3), "adam": (4, 3), "adadelta": (4, 3)}
"""Number of tensors of a variable's size that a step of each optimizer reads and writes: the variable, its gradient
and the optimizer's state."""


def tensorflow_convolution(row: dict[str, str]) -> OperationReading:
    """Read a step of a network with a single convolution."""
    side, out, kernel = int(row["matsize"]), int(row["out_hw"]), int(row["kernelsize"])
    channels, outputs = int(row["channels_in"]), int(row["channels_out"])
    weight, x, y = (outputs, channels, kernel, kernel), (channels, side, side), (outputs, out, out)
    weights = (weight, (outputs,)) if row["use_bias"] == "True" else (weight,)
    layer = Layer("conv", "conv2d", (x,), (y,), weights, attributes={"stride": [int(row["strides"])] * 2})
    # TensorFlow uses NHWC and cuDNN NCHW: input and output are transposed unless the convolution is a matrix product.
    is_product = (kernel == 1 and row["strides"] == "1") or (kernel == side and row["padding"] == "VALID")
    transposes = () if is_product else (_transpose(x), _transpose(y))
    return _step(row, "conv", layer, transposes)


def tensorflow_dense(row: dict[str, str]) -> OperationReading:
    """Read a step of a network with a single dense layer."""
    inputs, outputs = int(row["dim_input"]), int(row["dim_output"])
    layer = Layer("dense", "linear", ((inputs,),), ((outputs,),), ((outputs, inputs), (outputs,)))
    return _step(row, "dense", layer, ())


def _step(row: dict[str, str], kind: str, layer: Layer, transposes: tuple[Layer, ...]) -> OperationReading:
    """Return the operations of a step.

    Inference runs the layer with bias and activation; training also the loss, the gradients and the update.
    """
    batch_size, (y,) = int(row["batchsize"]), layer.outputs
    activations = [] if row["activation"] == "none" else [_elementwise(row["activation"], y)]
    bias = [_elementwise("add", y)] if len(layer.weights) > 1 else []
    pass_name = "inference" if row["phase"] == "forward" else "forward"
    forward = [TimedOperation(each, pass_name) for each in (*transposes, layer, *bias, *activations)]
    source = "ml-performance-prediction tensorflow 1.10"
    if pass_name == "inference":
        return OperationReading(source, f"{kind} forward", kind, "inference", batch_size, tuple(forward))
    # Mean squared error to a target of the output's size, and its gradients with respect to both.
    loss = [_elementwise("sub", y, 2), _elementwise("mul", y), _elementwise("scale", y), _elementwise("neg", y)]
    back = [TimedOperation(_elementwise("mul", y, 2), "forward") for _ in activations]
    back += [TimedOperation(layer, "backward_data"), TimedOperation(layer, "backward_weight")]
    back += [TimedOperation(each, "forward") for each in transposes * 2]
    reads, writes = _UPDATES[row["optimizer"]]
    inputs = Layer("input", "copy", (layer.inputs[0],) * reads, (layer.inputs[0],) * writes)
    target = Layer("target", "copy", (y,) * reads, (y,) * writes)
    update = [TimedOperation(variable, "forward") for variable in (inputs, target)]
    update += [TimedOperation(_fixed_copy(shape, reads, writes), "update") for shape in layer.weights]
    operations = [*forward, *(TimedOperation(each, "forward") for each in loss), *back, *update]
    return OperationReading(source, f"{kind} training", kind, "training", batch_size, tuple(operations))


def _transpose(shape: tuple[int, ...]) -> Layer:
    return Layer("layout", "copy", (shape,), (shape,))


def _elementwise(kind: str, shape: tuple[int, ...], operands: int = 1) -> Layer:
    return Layer(kind, kind, (shape,) * operands, (shape,))


def _fixed_copy(shape: tuple[int, ...], reads: int, writes: int) -> Layer:
    return Layer("variable", "copy", (shape,) * reads, (shape,) * writes)
