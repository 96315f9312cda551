"""Sums per module, against torch's modules and fvcore.

Tests: architectures/counts.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.architectures import count_network, find_network
from paleo_lite.architectures.counts import MAX_READABLE_ROWS, module_rows


def layer(name, count=1, macs=1, parameters=1):
    return {"name": name, "kind": "linear", "count": count, "macs": macs, "parameters": parameters}


def test_modules_come_before_their_contents() -> None:
    rows = module_rows([layer("a.0.x"), layer("b"), layer("a.1", 5), layer("a.0.y", 2)], 3)
    assert [(row["name"], row["level"], row["layers"], row["count"]) for row in rows] == [
        ("a", 0, 3, 8), ("a.0", 1, 2, 3), ("a.0.x", 2, 1, 1), ("a.0.y", 2, 1, 2), ("a.1", 1, 1, 5), ("b", 0, 1, 1),
    ]  # fmt: skip
    assert [row["name"] for row in module_rows([layer("3a/1x1"), layer("3a/relu.1")], 1)] == ["3a"]


def test_a_layer_may_have_the_name_of_a_module() -> None:
    """Functions that a module calls directly have its name."""
    rows = module_rows([layer("a"), layer("a.b"), layer("a")], 2)
    assert [(row["name"], row["kind"], row["layers"]) for row in rows] == [
        ("a", "linear", 1), ("a", None, 1), ("a.b", "linear", 1), ("a", "linear", 1),
    ]  # fmt: skip


def test_sums_skip_layers_without_a_count() -> None:
    rows = module_rows([layer("a.x", None), layer("a.y", 2), layer("b.x", None)], 1)
    assert [row["count"] for row in rows] == [2, None]


def test_default_depth() -> None:
    """ResNet-50 has 4 stages of 3, 4, 6 and 3 blocks, and 7 layers outside them (He et al. 2016, table 1)."""
    counts = count_network(find_network("resnet50"))
    assert len(counts.modules()) == 4 + 16 + 7 <= MAX_READABLE_ROWS < len(counts.modules(3))
    assert module_rows([]) == []
    flat = [layer(f"layer{n}") for n in range(2 * MAX_READABLE_ROWS)]
    assert len(module_rows(flat)) == 2 * MAX_READABLE_ROWS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "swin_t", "googlenet"])
def test_parameters_equal_torch_modules(name, built) -> None:
    module, _ = built(name)
    rows = [row for row in count_network(find_network(name)).modules(9) if row["kind"] is None]
    assert len(rows) > 20
    for row in rows:
        own = sum(parameter.numel() for parameter in module.get_submodule(row["name"]).parameters())
        assert row["parameters"] == own, row["name"]


@pytest.mark.slow
def test_macs_equal_fvcore() -> None:
    """For modules without batch norm and average pooling, which fvcore includes in its counts."""
    pytest.importorskip("fvcore")
    import torch
    from fvcore.nn import FlopCountAnalysis

    from paleo_lite.architectures.build import torchvision_model

    module, size = torchvision_model("alexnet")
    theirs = FlopCountAnalysis(module.to_empty(device="cpu").eval(), torch.zeros(1, 3, size, size)).by_module()
    ours = {row["name"]: row["macs"] for row in count_network(find_network("alexnet")).modules(1)}
    assert (ours["features"], ours["classifier"]) == (theirs["features"], theirs["classifier"])
