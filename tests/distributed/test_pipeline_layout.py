"""Layouts of pipelines: as text, and the most even ones."""

from __future__ import annotations

from itertools import product

import pytest

from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.pipeline_layout import (
    balanced_layout,
    even_layout,
    layout_of_pytorch,
    megatron_layout,
    parse_layout,
    place_stages,
)
from paleo_lite.errors import BadValue


# Megatron-Bridge's recipes of DeepSeek-V3 with 4 and 16 stages; Llama 3 405B with 16 (Dubey et al. 2024, section
# 3.3.2); Qwen3 235B has 94 blocks, and 96 slots in 24 stages.
@pytest.mark.parametrize(
    ("blocks", "stages", "counts"),
    [
        (61, 16, (3, *[4] * 14, 2)),
        (61, 4, (15, 16, 16, 14)),
        (126, 16, (7, *[8] * 14, 7)),
        (94, 24, (3, *[4] * 22, 3)),
        (96, 8, (12,) * 8),
        (5, 7, (0, 1, 1, 1, 1, 1, 0)),
        (13, 4, (3, 4, 4, 2)),
        (5, 8, None),
    ],
)
def test_even_layouts(blocks: int, stages: int, counts: tuple[int, ...] | None) -> None:
    assert even_layout(blocks, stages) == counts


@pytest.mark.parametrize("blocks", [7, 61, 94, 127])
@pytest.mark.parametrize("stages", [1, 2, 4, 7])
def test_even_layouts_have_all_blocks(blocks: int, stages: int) -> None:
    counts = even_layout(blocks, stages)
    assert counts is not None and sum(counts) == blocks and len(counts) == stages


# The syntax and the example are those of Megatron-LM's --pipeline-model-parallel-layout.
def test_text_of_layouts() -> None:
    assert parse_layout("Et*3|(tt|)*29,m|L") == ("Ettt", *["tt"] * 29, "m", "L")
    assert parse_layout("E|t*2|((t|)*2t|)*2L") == ("E", "tt", "t", "t", "t", "t", "t", "t", "L")


def test_numbers_of_blocks() -> None:
    """vLLM's ``VLLM_PP_LAYER_PARTITION``, and how Megatron-LM writes the same."""
    assert parse_layout("3,2,1") == parse_layout("Et*3|t*2|t*1L") == ("Ettt", "tt", "tL")
    assert megatron_layout("3,2,1") == "Et*3|t*2|t*1L" and megatron_layout("Ettt|tL") == "Ettt|tL"
    assert [stage.blocks for stage in place_stages(6, 3, 1, "3,2,1", "six")] == [(0, 1, 2), (3, 4), (5,)]
    assert [stage.blocks for stage in place_stages(6, 2, 2, "2,1,1,2", "six")] == [(0, 1, 3), (2, 4, 5)]
    with pytest.raises(BadValue, match="stage 2 of 3 is empty"):
        parse_layout("3,0,1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Et*3|x|L", "or consist of E, t, m, L"),
        ("(t|", "or consist of"),
        ("t)|", "or consist of"),
        ("*3", "or consist of"),
        ("E(t*9999)*9999L", "at most 20,000 letters"),
        ("tt|tL", "one E \\(embedding\\) in front"),
        ("Et||tL", "stage 2 of 3 is empty"),
        ("EttL|t", "one L \\(loss\\) at the end"),
    ],
)
def test_bad_layouts(text: str, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        parse_layout(text)


def test_devices_take_turns() -> None:
    """Stage k of the network is on device k modulo the devices (Narayanan et al. 2021, figure 4)."""
    first, second = place_stages(6, 2, 2, "Et|tt|tt|tL", "net")
    assert (first.blocks, first.has_embedding, first.has_loss) == ((0, 3, 4), True, False)
    assert (second.blocks, second.has_embedding, second.has_loss) == ((1, 2, 5), False, True)
    with pytest.raises(BadValue, match="`--schedule layout` has 6 blocks, but net has 7"):
        place_stages(7, 2, 2, "Et|tt|tt|tL", "net")


def test_a_layout_determines_the_virtual_stages() -> None:
    assert ParallelConfig(pipeline=2, layout="Et|tt|tt|tL").virtual_stages == 2
    with pytest.raises(BadValue, match="must have 3 stages, as `--pipeline` says, or a multiple of it with virtual"):
        ParallelConfig(pipeline=3, layout="Et|tt|tt|tL")
    with pytest.raises(BadValue, match="has 4 stages, 2 virtual stages for each of 2 pipeline stages"):
        ParallelConfig(pipeline=2, virtual_stages=4, layout="Et|tt|tt|tL")


# torchtitan's `generate_llm_fqn_per_model_part` (torchtitan/distributed/pipeline_parallel.py) with weights of 1: the
# 32 blocks of Llama 3 8B are 34 with embedding and output, of which four stages have 9, 9, 8 and 8.
@pytest.mark.parametrize(
    ("blocks", "stages", "counts"),
    [(32, 4, (8, 9, 8, 7)), (6, 3, (2, 3, 1)), (4, 4, (1, 2, 1, 0)), (32, 1, (32,)), (2, 5, None)],
)
def test_layout_of_pytorch(blocks: int, stages: int, counts: tuple[int, ...] | None) -> None:
    assert layout_of_pytorch(blocks, stages) == counts


@pytest.mark.parametrize(("virtual_stages", "first", "last"), [(1, 0.0, 2.9), (1, 1.5, 0.2), (2, 0.1, 2.1), (4, 0, 0)])
def test_no_other_balanced_layout_is_faster(virtual_stages: int, first: float, last: float) -> None:
    """All divisions of 32 blocks among four devices are tried."""

    def longest(counts: tuple[int, ...]) -> float:
        return max(counts[0] + first, *counts[1:3], counts[3] + last)

    counts = balanced_layout(32, 4, virtual_stages, first, last)
    of_devices = tuple(sum(counts[device::4]) for device in range(4))
    assert len(counts) == 4 * virtual_stages and sum(counts) == 32
    divisions = ((a, b, c, 32 - a - b - c) for a, b, c in product(range(20), repeat=3) if a + b + c <= 32)
    assert longest(of_devices) == pytest.approx(min(map(longest, divisions)))
    assert max(counts) - min(counts) <= 1 + (abs(first - last) + 1) / virtual_stages
