"""Operations in the runs of a profile, and gaps between kernels."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paleo_lite.profile_analysis.operation_times import ProductSizes, gap_of_iteration, operation_of_run
from paleo_lite.profile_analysis.runs import Runs, Signature


def operation(op, kind, dims=None, layer=None):
    params = None
    if dims is not None:
        arguments = [dims, ["c10::BFloat16"] * len(dims), []]
        params = " ".join(json.dumps(argument, separators=(",", ":")) for argument in arguments)
    return operation_of_run(Signature(1, None, op, params, None), kind, layer)


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("aten::addmm", [[3072], [256, 768], [768, 3072]]),
        ("aten::mm", [[256, 768], [768, 3072]]),
        ("aten::linear", [[2, 128, 768], [3072, 768], [3072]]),
        ("aten::linear", [[2, 128, 768], [3072, 768], [1, 3072]]),
        ("aten::matmul", [[2, 128, 768], [768, 3072]]),
        ("aten::addmm", [[256, 3072], [256, 768], [768, 3072]]),
        ("aten::mm", [[256, 3072], [3072, 768]]),  # gradient of the input
        ("aten::mm", [[3072, 256], [256, 768]]),  # gradient of the weight
    ],
)
def test_the_products_of_a_linear_layer_have_the_same_sizes(op: str, dims: list[list[int]]) -> None:
    assert operation(op, "linear", dims) == ProductSizes(256, 768, 3072)


def test_operations_without_shapes_are_named_by_their_kind() -> None:
    assert operation("aten::mm", "linear") == "linear"
    assert operation("aten::bmm", "linear", [[16, 128, 64], [16, 64, 128]]) == "attention"
    assert operation("aten::softmax", "softmax") == "attention"
    assert operation(None, "communication") == "collectives"


def test_elementwise_operations_in_a_module_of_normalization_are_norms() -> None:
    assert operation("aten::pow", "elementwise", layer="model/layers.0/Qwen2RMSNorm_0") == "norms"
    assert operation("aten::pow", "elementwise", layer="model/layers.0/Qwen2MLP_0") == "elementwise"


def test_gaps_are_the_time_without_any_kernel() -> None:
    # Kernels at 0 to 10, 5 to 30 and 8 to 12 (nested), 40 to 50: idle from 30 to 40.
    spans = np.array([[0, 10], [8, 12], [40, 50], [5, 30]], np.int64)
    runs = Runs(table={"rows": np.array([2, 1, 1])}, length=4, spans_ns=spans)
    assert gap_of_iteration(runs, np.arange(len(runs.spans_ns))) == pytest.approx(10e-9)
    assert gap_of_iteration(runs, np.array([0, 1, 3])) == 0
    assert gap_of_iteration(Runs(table={"rows": np.array([2])}, length=2), np.arange(2)) is None
