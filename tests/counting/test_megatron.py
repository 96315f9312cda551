"""Megatron-LM's fused kernels: bytes read and written, counted by hand from the tensors of each kernel."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from paleo_lite.architectures.model_config import read_config  # noqa: E402
from paleo_lite.architectures.network import SequenceOptions  # noqa: E402
from paleo_lite.architectures.trace import trace  # noqa: E402
from paleo_lite.counting import count  # noqa: E402
from paleo_lite.counting.megatron import fuse_megatron_kernels  # noqa: E402

NUMBERS = 3 * 5 * 8  # of a tensor, at batch 3
LLAMA = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 96,
}  # fmt: skip


class Residual(nn.Module):
    """Bias, dropout and addition: Megatron's ``bias_dropout_add``."""

    def forward(self, x, y):  # type: ignore[no-untyped-def]
        """The product that it follows, and the residual."""
        return y + nn.functional.dropout(x @ x.transpose(-2, -1) @ x, 0.1)


class Gate(nn.Module):
    """Megatron-Core's ``bias_swiglu``."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, y):  # type: ignore[no-untyped-def]
        """What is gated, and by what."""
        return nn.functional.silu(self.gate(x)) * self.up(y)


class Scores(nn.Module):
    """Scale, mask and softmax: Megatron's ``scaled_upper_triang_masked_softmax``."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(8, 8)

    def forward(self, x, y):  # type: ignore[no-untyped-def]
        """Queries and a mask."""
        return torch.softmax((self.queries(x) @ x.transpose(-2, -1)) * 0.5 + y, -1)


@pytest.mark.parametrize(
    ("module", "mask", "kinds", "forward", "backward"),
    [
        # Two 4-byte elements read and one written, and one byte per element of the dropout mask; backward as before.
        (Residual(), (1, 5, 8), ("dropout", "add"), (3 * 4 + 1) * NUMBERS, None),
        # Backward the gradient and both are read, and both gradients written.
        (Gate(), (1, 5, 8), ("silu", "mul"), 3 * 4 * NUMBERS, 5 * 4 * NUMBERS),
        # The scores of all five for all five; backward the gradient and the softmax are read.
        (Scores(), (1, 5, 5), ("mul", "add", "softmax"), 2 * 4 * 3 * 25, 3 * 4 * 3 * 25),
    ],
)
def test_one_kernel_reads_and_writes_each_tensor_once(module, mask, kinds, forward, backward) -> None:  # type: ignore[no-untyped-def]
    layers = trace(module, (1, 5, 8), mask).layers
    eager = count(layers)
    work = fuse_megatron_kernels(layers, eager)
    places = [place for place, layer in enumerate(layers) if layer.kind in kinds]
    assert len(places) == len(kinds)
    assert work.column("kernels", "forward", 3)[0, places].sum() == 1
    assert work.column("bytes", "forward", 3)[0, places].sum() == forward
    if backward is not None:
        assert work.column("kernels", "backward_data", 3)[0, places].sum() == 1
        assert work.column("bytes", "backward_data", 3)[0, places].sum() == backward
    assert (work.column("flops", "training", 3) == eager.column("flops", "training", 3)).all()
    rest = [place for place in range(len(layers)) if place not in places]
    assert (work.column("bytes", "training", 3)[:, rest] == eager.column("bytes", "training", 3)[:, rest]).all()


def test_norms_and_rotary_positions_are_a_kernel_each() -> None:
    """Transformer Engine's kernels read and write one tensor; the backward pass of a norm also reads its input."""
    layers = read_config(json.dumps(LLAMA).encode(), "llama.json", None, SequenceOptions(16, phase="training")).layers
    eager = count(layers, "fp16")
    work = fuse_megatron_kernels(layers, eager)
    x = 3 * 16 * 64 * 2  # bytes of a tensor: batch 3, 16 tokens
    for is_row, read, written in (
        (lambda name: name.endswith("input_layernorm"), (x, 2 * x), (x, x)),
        (lambda name: name.endswith("self_attn.add"), (x, x), (x, x)),
    ):
        (row,) = (place for place, layer in enumerate(layers) if is_row(layer.name))
        moved = [work.column(name, "training", 3)[:2, row].tolist() for name in ("bytes_read", "bytes_written")]
        assert moved == [list(read), list(written)]
        assert work.column("kernels", "training", 3)[:2, row].tolist() == [1, 1]
    # Queries are read by a product with cosines and by both halves: their gradients were added up twice.
    (turned,) = (place for place, layer in enumerate(layers) if layer.name.endswith("self_attn.transpose"))
    assert eager.column("bytes", "backward_data", 3)[0, turned] == 6 * x
    assert work.column("bytes", "backward_data", 3)[0, turned] == 0
    assert (work.fixed >= 0).all() and (work.per_sample >= 0).all()
