"""Casts: as many as torch makes, of the bytes that they move, and layers in fp32 where PyTorch's list has them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import paleo_lite as pl  # noqa: E402
from asked import predict_any  # noqa: E402
from measured import DATA  # noqa: E402
from paleo_lite.architectures import find_network  # noqa: E402
from paleo_lite.architectures.trace import trace  # noqa: E402
from paleo_lite.counting import INPUT, Layer, count  # noqa: E402
from paleo_lite.counting.autocast import ORIGIN, insert_casts  # noqa: E402
from paleo_lite.errors import BadValue  # noqa: E402
from validation.steps.timm import published_timm  # noqa: E402


class Casts(TorchDispatchMode):
    """Elements of tensors that are cast to 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") is torch.bfloat16:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


def test_products_are_cast_as_torch_casts_them() -> None:
    """Input, weights and biases of a convolution or linear layer are cast once; later operations read 16 bits."""
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False), nn.AvgPool2d(4), nn.Flatten(),
        nn.Linear(8, 5),
    ).eval()  # fmt: skip
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), Casts() as casts:
        module(torch.zeros(1, 3, 8, 8))
    layers = insert_casts(trace(module, (1, 3, 8, 8)).layers)
    own = [layer for layer in layers if layer.origin == ORIGIN]
    assert sorted(int(np.prod(layer.outputs[0])) for layer in own) == sorted(casts.sizes) and len(own) == 6
    work = count(layers, "fp16")
    moved = work.column("bytes", "inference")[0]
    cast = [index for index, layer in enumerate(layers) if layer.origin == ORIGIN]
    assert moved[cast].sum() == (4 + 2) * sum(casts.sizes)
    plain = count(trace(module, (1, 3, 8, 8)).layers, "fp16")
    assert np.delete(moved, cast).tolist() == plain.column("bytes", "inference")[0].tolist()
    assert work.column("flops", "training").sum() == plain.column("flops", "training").sum()


SHAPE = (1, 10, 8)
BLOCK = (
    Layer("norm", "layer_norm", (SHAPE,), (SHAPE,), ((8,), (8,)), (INPUT,), 16),
    Layer("fc", "linear", (SHAPE,), (SHAPE,), ((8, 8),), (0,), 64),
    Layer("softmax", "softmax", (SHAPE,), (SHAPE,), (), (1,)),
    Layer("add", "add", (SHAPE, SHAPE), (SHAPE,), (), (1, INPUT)),
)


def test_a_block_by_hand() -> None:
    """The norm runs in fp32; its result and the weight are cast; softmax is cast back; the sum reads 2 and 4 bytes."""
    layers = insert_casts(BLOCK)
    assert [layer.name for layer in layers] == [
        "norm", "fc.to", "fc.weight.to", "fc", "softmax.to", "softmax", "add",
    ]  # fmt: skip
    work = count(layers, "bf16")
    n = 80
    assert work.column("bytes", "inference")[0].tolist() == [
        4 * (2 * n + 16), 6 * n, 6 * 64, 2 * (2 * n + 64), 6 * n, 4 * 2 * n, (2 + 4) * n + 4 * n,
    ]  # fmt: skip
    # Of a step of training the casts go back, and weights are updated in fp32.
    assert work.column("kernels", "backward_weight")[0].tolist()[:4] == [1, 0, 1, 1]
    assert work.column("bytes", "update")[0].tolist() == [4 * 3 * 16, 0, 0, 4 * 3 * 64, 0, 0, 0]
    assert work.parameters.sum() == 80


def test_small_batches_wait_for_the_casts() -> None:
    """NVIDIA's ResNet-50 on a T4 and on a V100, batch 1: 12.3 to 13.4 ms under autocast, 10.2 to 10.8 ms without."""
    for gpu in ("t4", "v100-sxm2"):
        eager, cast = (
            pl.predict("resnet50", gpu=gpu, precision="fp16", execution=execution)
            for execution in ("eager", "autocast")
        )
        assert cast.kernels == eager.kernels + 53 + 2 + 1  # convolutions, the classifier and its bias, the image
        assert cast.time_s / eager.time_s == pytest.approx(13.0 / 10.5, rel=0.1)


@pytest.mark.needs_data
def test_speedup_of_channels_last_matches_measurements() -> None:
    """timm trained on an RTX 3090 in both layouts: ResNet-50 1.47 times as fast in channels last, a ViT as fast."""
    times = {
        (step.network, step.execution): step.time_s / step.batch_size
        for step in published_timm(DATA / "measured").measurements
        if (step.gpu, step.phase) == ("rtx3090", "training")
    }
    for network in ("resnet50", "vit_b_16"):
        measured = times[network, "autocast"] / times[network, "channels-last"]
        cast, last = (
            predict_any(network, gpu="rtx3090", precision="fp16", execution=execution, phase="training", batch_size=128,
                       training=pl.TrainingOptions("momentum"))
            for execution in ("autocast", "channels-last")
        )  # fmt: skip
        assert (cast.kernels, cast.flops, cast.bytes) == (last.kernels, last.flops, last.bytes)
        assert cast.time_s / last.time_s == pytest.approx(measured, rel=0.15), network


@pytest.mark.parametrize("execution", ["autocast", "channels-last"])
def test_autocast_is_of_16_bits(execution: str) -> None:
    with pytest.raises(BadValue, match=f"{execution} computes in fp16 or bf16, not in fp32"):
        pl.predict("resnet18", gpu="t4", execution=execution)
    counts = pl.layers("resnet18", execution=execution)
    assert len(list(counts.rows())) == len(insert_casts(find_network("resnet18").layers))
