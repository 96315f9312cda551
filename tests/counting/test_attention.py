"""Unfused attention equals its traced operations; fusion depends on the software."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from paleo_lite.architectures import find_network  # noqa: E402
from paleo_lite.architectures.trace import trace  # noqa: E402
from paleo_lite.counting import count  # noqa: E402
from paleo_lite.counting.attention import (  # noqa: E402
    UNFUSED,
    WITHOUT_COPIES,
    apply_attention,
    attention_implementation,
    decompose_attention,
)


@pytest.mark.parametrize(
    ("framework", "how"),
    [
        ("pytorch 1.13 timm", UNFUSED), ("pytorch 2.4.0 timm", WITHOUT_COPIES),
        ("torch 1.9", UNFUSED), ("pytorch 2.1", ""),
        ("pytorch", ""), ("tensorrt", ""), ("", ""),
    ],
)  # fmt: skip
def test_which_software_fuses(framework: str, how: str) -> None:
    assert attention_implementation(framework) == how


class Attention(nn.Module):
    """Of three inputs and perhaps a mask, by torch's function or by its operations."""

    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.is_fused = is_fused

    def forward(self, q, k, v, mask=None):  # type: ignore[no-untyped-def]
        """What ``scaled_dot_product_attention`` is documented to compute."""
        if self.is_fused:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = (q * 0.25) @ k.transpose(-2, -1)
        return torch.softmax(scores if mask is None else scores + mask, -1) @ v


@pytest.mark.parametrize("masked", [False, True])
def test_operations_equal_unfused_attention(masked: bool) -> None:
    shapes = [(1, 2, 5, 16), (1, 2, 7, 16), (1, 2, 7, 16), *([(1, 2, 5, 7)] if masked else [])]
    written, fused = (count(trace(Attention(is_fused), *shapes).layers) for is_fused in (False, True))
    made = count(decompose_attention(trace(Attention(True), *shapes).layers))
    for column in ("flops", "macs", "bytes", "kernels"):
        assert made.column(column, "training", 3).sum() == written.column(column, "training", 3).sum(), column
    assert made.column("bytes", "inference").sum() > fused.column("bytes", "inference").sum()


def test_timm_makes_no_copies() -> None:
    """Of a ViT's blocks the copy of queries, keys and values is left out, and that of the result."""
    layers = find_network("vit_b_16").layers
    kernels = [
        int(count(apply_attention(layers, how)).column("kernels", "inference").sum())
        for how in ("", WITHOUT_COPIES, UNFUSED)
    ]
    assert kernels[0] - kernels[1] == 2 * 12 and kernels[2] - kernels[0] == 3 * 12
