"""Operations of a language model in a prediction and a profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.calibration.by_operation import OperationRow, compare_operations
from paleo_lite.profile_analysis.operation_times import ProductSizes
from paleo_lite.profile_analysis.pass_times import PassTimes

# Published config of Qwen/Qwen1.5-0.5B-Chat.
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 151936,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}


def passes(operations, gap_s=None, has_norm_names=True):
    return PassTimes("inference", 1, 1, {}, {}, True, operations, gap_s, has_norm_names)


@pytest.fixture(scope="module")
def prediction():
    return pl.predict("gpt2", gpu="a100-sxm4-40gb", batch_size=2, sequence_length=128)


def test_linear_layers_are_matched_by_the_sizes_of_their_products(prediction) -> None:
    # GPT-2 (Radford et al. 2019): width 768, products of 2 * 128 tokens with 768 x 2304, 768 x 768 and 768 x 3072.
    measured = passes({(ProductSizes.of(256, 2304, 768), "forward"): 1.0, (ProductSizes.of(7, 9, 11), "forward"): 3.0})
    rows, notes = compare_operations(measured, prediction)
    by_name = {row.operation: row for row in rows}
    (qkv,) = [row for row in rows if row.measured_s == 1.0]
    assert qkv.predicted_s and qkv.predicted_s < 1
    assert by_name["linear, other sizes"].measured_s == 3.0
    assert by_name["linear, other sizes"].predicted_s is None
    assert any("7 x 9 x 11" in note and "--sequence-length" in note for note in notes)


def test_predicted_operations_and_gaps_add_up_to_the_forecast(prediction) -> None:
    rows, _ = compare_operations(passes({}), prediction)
    assert sum(row.predicted_s or 0.0 for row in rows) == pytest.approx(prediction.time_s)
    assert {"attention", "norms", "elementwise", "gaps"} <= {row.operation for row in rows}


def test_without_names_of_norms_they_share_a_row_with_elementwise_operations(prediction) -> None:
    rows, notes = compare_operations(passes({}, has_norm_names=False), prediction)
    names = {row.operation for row in rows}
    assert "norms and elementwise" in names and not {"norms", "elementwise"} & names
    assert any("with_stack=True" in note for note in notes)


def test_measured_elementwise_operations_are_in_the_joint_row_too(prediction) -> None:
    rows, _ = compare_operations(passes({("elementwise", "forward"): 2.0}, has_norm_names=False), prediction)
    (row,) = [row for row in rows if row.operation == "norms and elementwise"]
    assert row.measured_s == 2.0 and row.predicted_s


@pytest.mark.parametrize(
    ("measured_s", "predicted_s", "difference_s", "ratio"),
    [
        (3.0, 2.0, 1.0, 1.5),
        (3.0, None, 3.0, None),
        (None, 2.0, -2.0, None),
        (3.0, 0.0, 3.0, None),
        (0.0, 2.0, -2.0, 0.0),
    ],
)
def test_what_one_side_lacks_is_a_difference_and_no_ratio(measured_s, predicted_s, difference_s, ratio) -> None:
    row = OperationRow("norms", "", measured_s, predicted_s).to_dict()
    assert (row["operation"], row["pass"]) == ("norms", None)
    assert (row["measured_s"], row["predicted_s"]) == (measured_s, predicted_s)
    assert (row["difference_s"], row["ratio"]) == (difference_s, ratio)
    assert OperationRow("norms", "forward", 1.0, 1.0).to_dict()["pass"] == "forward"


def test_networks_without_attention_have_no_operations() -> None:
    rows, notes = compare_operations(passes({}), pl.predict("alexnet", gpu="k40m"))
    assert rows == [] and notes == ()


@pytest.mark.needs_data
def test_qwen_on_h100_as_in_tracelens(tmp_path: Path) -> None:
    """TraceLens's `gpu_timeline` of this trace: 31.91 ms busy, 34.89 ms in all."""
    config = tmp_path / "qwen.json"
    config.write_text(json.dumps(QWEN))
    comparison = pl.compare(
        DATA / "profiles/tracelens_models/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        predict=str(config),
        batch_size=16,
        sequence_length=559,
        precision="bf16",
    )
    rows = {row.operation: row for row in comparison.operations}
    assert sum(row.measured_s or 0 for row in comparison.operations) == pytest.approx(34.89e-3, abs=1e-5)
    assert rows["gaps"].measured_s == pytest.approx(34.89e-3 - 31.91e-3, abs=1e-5)
    assert rows["q_proj, k_proj, v_proj, o_proj"].measured_s
    assert rows["gate_proj, up_proj, down_proj"].measured_s
    assert rows["lm_head"].measured_s is None  # the trace has 168 products, 7 in each of the 24 blocks
    assert "linear, other sizes" not in rows
    table = comparison.document().tables[0]
    assert table.title == "Per iteration, by operation" and len(table.rows) == len(comparison.operations)
    # The rotary embedding has a further product, so the numbers of products and of linear layers agree by chance.
    names = {row.name.rpartition(".")[2] for row in comparison.layers}
    assert names == {"attention"} and len(comparison.layers) == 24
