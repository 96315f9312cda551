"""Formulas of kernels: by hand at simple numbers, and never faster for more work."""

from __future__ import annotations

from functools import partial
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.engines.formulas import (
    KERNEL_CLASSES,
    AttentionSizes,
    ExpertSizes,
    KernelRates,
    MatrixSizes,
    all_reduce_s,
    combine,
    decode_attention_s,
    expert_exchange_s,
    experts_s,
    pointwise_s,
    product_s,
    prompt_attention_s,
)  # fmt: skip
from paleo_lite.engines.kernels import causal_pairs
from validation.engines.priors import PRIORS

RATES = KernelRates(peak_per_s=1e15, bandwidth_bytes_per_s=1e12, multiprocessors=100.0, clock_hz=1e9)
NOTHING, UNLIMITED = 1e-18, 1e30
"""A constant that contributes nothing, and a rate that takes no time: their logarithms are needed."""


def near_tiles(largest: int) -> st.SearchStrategy[int]:
    """Return sizes up to a largest one, every other one next to a whole number of tiles."""
    borders = st.builds(
        lambda tiles, beside: max(128 * tiles + beside, 1), st.integers(0, largest // 128), st.integers(-2, 2)
    )
    return st.integers(1, largest) | borders


SIZES, SHORT = near_tiles(100_000), near_tiles(4096)
FEW = st.integers(1, 512)
SHARES = st.floats(0.05, 1.0)


def logs(*constants: float) -> np.ndarray:
    return np.log(constants)


def test_at_sharpness_0_arithmetic_and_traffic_follow_one_another() -> None:
    assert combine(3.0, 4.0, 0.0) == pytest.approx(7.0)


def test_at_sharpness_1_they_are_the_sides_of_a_right_triangle() -> None:
    assert combine(3.0, 4.0, 1.0) == pytest.approx(5.0)


def test_at_a_large_sharpness_the_longer_one_hides_the_other() -> None:
    assert combine(3.0, 4.0, 200.0) == pytest.approx(4.0)
    assert combine(0.0, 4.0, 1.5) == pytest.approx(4.0) and combine(0.0, 0.0, 1.5) == 0.0


@given(compute_s=st.floats(0, 1e3), memory_s=st.floats(0, 1e3), sharpness=st.floats(0, 20))
def test_a_combined_time_is_between_the_longer_one_and_the_sum(compute_s, memory_s, sharpness) -> None:
    combined_s = float(combine(compute_s, memory_s, sharpness))
    assert max(compute_s, memory_s) * (1 - 1e-9) <= combined_s <= (compute_s + memory_s) * (1 + 1e-9)


def test_a_product_at_full_efficiency_takes_flops_over_peak() -> None:
    theta = logs(1, 1, NOTHING, UNLIMITED, NOTHING, 50, NOTHING)
    seconds = product_s(theta, RATES, sizes=MatrixSizes(m=8192, n=8192, k=8192, weight_bytes=2, operand_bytes=2))
    assert seconds == pytest.approx(2 * 8192**3 / 1e15, rel=1e-6)  # 1.1 ms; its 403 MB take 0.4 ms


def test_a_product_with_one_row_reads_its_matrix() -> None:
    """Sixteen rows are multiplied, but 4096 x 4096 weights of a byte, a row of k and one of n rule; 3000 cycles."""
    theta = logs(1, 0.5, 3000, UNLIMITED, NOTHING, 50, NOTHING)
    seconds = product_s(theta, RATES, sizes=MatrixSizes(m=1, n=4096, k=4096, weight_bytes=1, operand_bytes=2))
    assert seconds == pytest.approx(3e-6 + (4096 * 4096 + 2 * 4096 + 2 * 4096) / 0.5e12, rel=1e-6)


def test_nothing_divides_a_tile() -> None:
    """128 x 1280 results are 10 tiles at the peak of 1e15; one of them alone runs at 1e14, and takes as long again."""
    theta = logs(1, 1e9, NOTHING, 1e14, NOTHING, 50, NOTHING)
    seconds = product_s(theta, RATES, sizes=MatrixSizes(m=128, n=1280, k=1024, weight_bytes=2, operand_bytes=2))
    assert seconds == pytest.approx(2 * (2 * 128 * 1280 * 1024) / 1e15, rel=1e-6)


def test_a_product_as_deep_as_the_half_depth_takes_twice_as_long() -> None:
    theta = logs(1, 1e9, NOTHING, UNLIMITED, 256, 50, NOTHING)
    seconds = product_s(theta, RATES, sizes=MatrixSizes(m=128, n=128, k=256, weight_bytes=2, operand_bytes=2))
    assert seconds == pytest.approx(2 * (2 * 128 * 128 * 256) / 1e15, rel=1e-6)


def test_narrow_operands_are_quantised_first() -> None:
    """It reads 2 bytes of each number of the left operand and writes 1; operands of 16 bits are not quantised."""
    narrow = MatrixSizes(m=1024, n=128, k=512, weight_bytes=1, operand_bytes=1)
    with_it, without = (logs(1, 1, NOTHING, UNLIMITED, NOTHING, 1, traffic) for traffic in (1, NOTHING))
    added_s = product_s(with_it, RATES, sizes=narrow) - product_s(without, RATES, sizes=narrow)
    assert added_s == pytest.approx(1024 * 512 * 3 / 1e12, rel=1e-6)
    quantised_s = product_s(with_it, RATES, sizes=narrow._replace(is_quantised=True))
    assert quantised_s == pytest.approx(product_s(without, RATES, sizes=narrow), rel=1e-9)
    wide = narrow._replace(operand_bytes=2)
    assert product_s(with_it, RATES, sizes=wide) == pytest.approx(product_s(without, RATES, sizes=wide), rel=1e-9)


def test_groups_are_products_side_by_side() -> None:
    """As latent attention multiplies 128 heads: 128 times the FLOPs and the bytes of one."""
    theta = logs(1, 1, NOTHING, UNLIMITED, NOTHING, NOTHING, NOTHING)
    one = MatrixSizes(m=256, n=512, k=128, weight_bytes=2, operand_bytes=2)
    one_s, all_s = (product_s(theta, RATES, sizes=sizes) for sizes in (one, one._replace(groups=128)))
    assert all_s == pytest.approx(128 * one_s, rel=1e-6)


def test_experts_by_hand() -> None:
    """Rows 6, distinct 2, hidden 10, inner 20, 3 matrices, sharpness near 0: every term of the formula added up.

    At 0.01 tiles per multiprocessor, the 100 multiprocessors wait for one tile of 128 rows.
    """
    theta = logs(0.5, 0.5, 1000, 1, 0.01, 2, NOTHING)
    sizes = ExpertSizes(rows=6, distinct=2, hidden_size=10, inner_size=20, matrices=3, weight_bytes=1, operand_bytes=1)
    seconds = experts_s(theta, RATES, tokens=3, active=2, sizes=sizes)
    compute_s = 2 * 3 * 10 * 20 * (6 + 2 + 128) / 0.5e15  # a row of padding for each of two experts, and one tile
    weights_bytes = 2 * 3 * 10 * 20
    activations_bytes = 2 * 6 * (10 + 20 * 2)
    tokens_s = 2 * 2 * 3 * 2 * 10 / 1e12
    expected_s = 1e-6 + compute_s + (weights_bytes + activations_bytes) / 0.5e12 + tokens_s
    assert seconds == pytest.approx(expected_s, rel=1e-6)


def test_an_expert_without_tokens_is_not_read() -> None:
    theta = logs(1, 1, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    one = ExpertSizes(
        rows=1, distinct=1, hidden_size=4096, inner_size=2048, matrices=3, weight_bytes=1, operand_bytes=1
    )
    two = one._replace(distinct=2)
    one_s, two_s = (experts_s(theta, RATES, tokens=1, active=1, sizes=sizes) for sizes in (one, two))
    assert two_s - one_s == pytest.approx(3 * 4096 * 2048 / 1e12, rel=1e-3)


PROMPT = AttentionSizes(heads=32, kv_heads=8, key_size=128, value_size=128, cache_bytes=2)


def test_attention_of_a_long_prompt_takes_its_flops_over_peak() -> None:
    """Two products of 128 numbers for each pair of query and key below the diagonal."""
    length = 1 << 17
    pairs = length * (length + 1) / 2
    theta = logs(1, 1, NOTHING, NOTHING, NOTHING, 50, NOTHING)
    seconds = prompt_attention_s(theta, RATES, sequences=1, length=length, pairs=pairs, sizes=PROMPT)
    assert seconds == pytest.approx(4 * 128 * 32 * pairs / 1e15, rel=1e-3)


@pytest.mark.parametrize(("length", "pairs"), [(1, 1 + 4096), (128, 8256 + 4096), (256, 32896 + 8192)])
def test_a_tile_takes_as_long_as_some_more_keys(length: int, pairs: int) -> None:
    """Tiles of 128 queries with 32 more keys each: the half of a tile of keys that the mask leaves on the diagonal."""
    theta = logs(1, 1e9, NOTHING, NOTHING, 32, 50, NOTHING)
    own = length * (length + 1) / 2
    seconds = prompt_attention_s(theta, RATES, sequences=2, length=length, pairs=own, sizes=PROMPT)
    assert seconds == pytest.approx(4 * 128 * 2 * 32 * pairs / 1e15, rel=1e-6)


def test_one_head_of_a_prompt_waits_for_a_tile() -> None:
    """At 0.02 tiles per multiprocessor, two tiles of one head wait for two more of 100 multiprocessors."""
    theta = logs(1, 1e9, NOTHING, 0.02, NOTHING, 50, NOTHING)
    one = PROMPT._replace(heads=1, kv_heads=1)
    seconds = prompt_attention_s(theta, RATES, sequences=1, length=256, pairs=32896, sizes=one)
    assert seconds == pytest.approx(2 * 4 * 128 * 32896 / 1e15, rel=1e-6)


def test_the_exponential_of_a_pair_does_not_shrink_with_the_head() -> None:
    """Worth 192 numbers: heads of 32 take (2 x 32 + 192) / (2 x 128 + 192) of those of 128."""
    theta = logs(1, 1e9, NOTHING, NOTHING, NOTHING, 50, 192)
    large = PROMPT._replace(heads=8)
    small = large._replace(key_size=32, value_size=32)
    prompt = {"sequences": 1, "length": 4096, "pairs": 4096 * 4097 / 2}
    large_s, small_s = (prompt_attention_s(theta, RATES, sizes=sizes, **prompt) for sizes in (large, small))
    assert small_s == pytest.approx(256 / 448 * large_s, rel=1e-6)
    assert large_s == pytest.approx(4 * 128 * 8 * 4096 * 4097 / 2 / 1e15, rel=1e-6)


def test_decoding_reads_the_cache() -> None:
    """Llama 3 8B: 16 sequences, 1024 keys of 8 heads: 2 x 128 numbers of 2 bytes each, and queries and results."""
    theta = logs(1, 1, NOTHING, NOTHING, 50, NOTHING)
    seconds = decode_attention_s(theta, RATES, sequences=16, keys=1024, sizes=PROMPT)
    moved_bytes = 16 * (8 * 1024 * 256 * 2 + 2 * 2 * 32 * 128)
    assert seconds == pytest.approx(moved_bytes / 1e12, rel=1e-6)


def test_a_sequence_waits_for_its_blocks_of_keys() -> None:
    """At 0.5 blocks per multiprocessor: 256 keys of one head, and 50 blocks of 256 keys and one query more."""
    theta = logs(1, 1, NOTHING, 0.5, 50, NOTHING)
    one = PROMPT._replace(heads=1, kv_heads=1)
    seconds = decode_attention_s(theta, RATES, sequences=1, keys=256, sizes=one)
    assert seconds == pytest.approx(51 * (256 * 256 * 2 + 2 * 2 * 128) / 1e12, rel=1e-6)


def test_latent_attention_of_decoding_is_arithmetic() -> None:
    """DeepSeek: 128 heads share a vector of 576 numbers: 4 x 128 x 576 FLOPs per key against 1152 bytes."""
    theta = logs(0.01, 1, NOTHING, NOTHING, 50, NOTHING)
    latent = AttentionSizes(heads=128, kv_heads=1, key_size=576, value_size=0, cache_bytes=2)
    seconds = decode_attention_s(theta, RATES, sequences=8, keys=4096, sizes=latent)
    assert seconds == pytest.approx(4 * 8 * 128 * 576 * 4096 / (0.01 * 1e15), rel=1e-3)


def test_pointwise_kernels_move_bytes() -> None:
    assert pointwise_s(logs(0.5, 2000), RATES, moved_bytes=0.0) == pytest.approx(2e-6)
    assert pointwise_s(logs(0.5, 2000), RATES, moved_bytes=1e9) == pytest.approx(2e-6 + 1e9 / 0.5e12)


def test_a_large_all_reduce_takes_two_shots_and_a_small_one_its_latency() -> None:
    """Ring traffic of 2 (n - 1) / n of the message (Thakur et al. 2005), or the messages of all others at once."""
    theta = logs(5e-6, 1e-6, 0.5, 1e-6, 0.5, 1.0, 0.5)  # the library starts after a second
    link = {"ranks": 8, "link_bytes_per_s": 400e9}
    assert all_reduce_s(theta, message_bytes=1.0, **link) == pytest.approx(5e-6 + 3 * 1e-6, rel=1e-4)
    large_s = all_reduce_s(theta, message_bytes=1e9, **link)
    assert large_s == pytest.approx(2 * 7 / 8 * 1e9 / 200e9, rel=0.01)
    one_shot = all_reduce_s(
        logs(1e-9, 1e-9, 0.5, 1.0, 0.5, 1.0, 0.5), message_bytes=1e6, **link
    )  # a second shot takes a second
    assert one_shot == pytest.approx(7 * 1e6 / 200e9, rel=0.01)


def test_where_the_switch_adds_every_device_sends_a_long_message_once() -> None:
    """Eight devices on one NVSwitch (NVLink SHARP); four devices divide the message among themselves."""
    theta = logs(5e-6, 1e-6, 1e-9, 1e-6, 0.8, 30e-6, 0.6)
    link = {"message_bytes": 1e11, "link_bytes_per_s": 400e9}
    eight_s, four_s = (all_reduce_s(theta, ranks=ranks, sums_in_switch=True, **link) for ranks in (8, 4))
    assert eight_s == pytest.approx(1e11 / (0.6 * 400e9), rel=1e-3)
    assert four_s == pytest.approx(1.5 * 1e11 / (0.8 * 400e9), rel=1e-3)
    assert all_reduce_s(theta, ranks=8, **link) == pytest.approx(1.75 * 1e11 / (0.8 * 400e9), rel=1e-3)


def test_an_exchange_of_experts_sends_bytes_over_its_links() -> None:
    """Bytes within the node and between nodes travel at the same time, and between nodes only where there are some."""
    theta = logs(20e-6, 5e-6, 0.5, 0.8)
    links = {"link_bytes_per_s": 400e9, "node_link_bytes_per_s": 50e9}
    empty_s = expert_exchange_s(theta, sent_bytes=0.0, node_bytes=0.0, nodes=1, **links)
    assert empty_s == pytest.approx(20e-6)
    inside_s = expert_exchange_s(theta, sent_bytes=1e7, node_bytes=1e6, nodes=4, **links)
    assert inside_s == pytest.approx(20e-6 + 2 * 5e-6 + 1e7 / 200e9)
    between_s = expert_exchange_s(theta, sent_bytes=1e6, node_bytes=1e7, nodes=4, **links)
    assert between_s == pytest.approx(20e-6 + 2 * 5e-6 + 1e7 / 40e9)
    assert expert_exchange_s(theta, sent_bytes=1e6, node_bytes=1e7, nodes=1, **links) == pytest.approx(25e-6)


@pytest.mark.parametrize("name", KERNEL_CLASSES)
def test_a_class_has_a_typical_value_and_a_deviation_of_each_constant(name: str) -> None:
    kernels, prior = KERNEL_CLASSES[name], PRIORS[name]
    assert kernels.name == name
    assert set(kernels.parameters) == set(prior)
    assert min(expected.typical for expected in prior.values()) > 0
    assert min(expected.deviation for expected in prior.values()) > 0


# More of anything never takes less time ------------------------------------------------------------------------------


@st.composite
def typical_constants(draw, name: str):
    """Constants around the typical ones of a class, within two of its standard deviations."""
    expected = [PRIORS[name][parameter] for parameter in KERNEL_CLASSES[name].parameters]
    return np.array([log(typical) + deviation * draw(st.floats(-2, 2)) for typical, deviation in expected])


def grows(time_s, sizes: dict, name: str, added: int) -> None:
    """Check that the time does not fall when a size grows."""
    more = {**sizes, name: sizes[name] + added}
    assert float(time_s(**more)) >= float(time_s(**sizes)) * (1 - 1e-9), (name, sizes, added)


@given(
    theta=typical_constants("products"), m=SIZES, n=SIZES, k=SIZES, groups=FEW, widths=st.sampled_from([(2, 2), (1, 1),
    (0.5, 2)]), name=st.sampled_from(["m", "n", "k", "groups"]), added=SIZES,
)  # fmt: skip
def test_a_product_never_takes_less_time_for_being_larger(theta, m, n, k, groups, widths, name, added) -> None:
    weight_bytes, operand_bytes = widths

    def time_s(**shape):
        return product_s(
            theta, RATES, sizes=MatrixSizes(weight_bytes=weight_bytes, operand_bytes=operand_bytes, **shape)
        )

    grows(time_s, {"m": m, "n": n, "k": k, "groups": groups}, name, added)


@given(
    theta=typical_constants("experts"), tokens=SHORT, rows=SHORT, distinct=FEW, active=FEW, hidden_size=SIZES,
    inner_size=SIZES, added=SHORT,
    name=st.sampled_from(["tokens", "rows", "distinct", "active", "hidden_size", "inner_size", "matrices"]),
)  # fmt: skip
def test_experts_never_take_less_time_for_more(
    theta, tokens, rows, distinct, active, hidden_size, inner_size, added, name
) -> None:

    def time_s(tokens: int, active: int, **sizes: int) -> float:
        of_experts = ExpertSizes(**sizes, weight_bytes=1, operand_bytes=1)
        return float(experts_s(theta, RATES, tokens=tokens, active=active, sizes=of_experts))

    sizes = {
        "tokens": tokens, "rows": rows, "distinct": distinct, "active": active, "hidden_size": hidden_size,
        "inner_size": inner_size, "matrices": 2,
    }  # fmt: skip
    grows(time_s, sizes, name, added)


@given(
    theta=typical_constants("decode attention"), sequences=FEW, keys=SIZES, groups=st.sampled_from([1, 4, 16]),
    kv_heads=st.integers(1, 16), size=SHORT, added=SHORT,
    name=st.sampled_from(["sequences", "keys", "heads", "kv_heads", "key_size", "value_size", "cache_bytes"]),
)  # fmt: skip
def test_decoding_never_takes_less_time_for_more(theta, sequences, keys, groups, kv_heads, size, added, name) -> None:
    def time_s(sequences: int, keys: int, **sizes: int) -> float:
        return float(decode_attention_s(theta, RATES, sequences=sequences, keys=keys, sizes=AttentionSizes(**sizes)))

    sizes = {
        "sequences": sequences, "keys": keys, "heads": groups * kv_heads, "kv_heads": kv_heads, "key_size": size,
        "value_size": size, "cache_bytes": 1,
    }  # fmt: skip
    grows(time_s, sizes, name, added)


@given(
    theta=typical_constants("prompt attention"), sequences=FEW, length=SIZES, window=SIZES, cached=SIZES, size=SHORT,
    added=SIZES, name=st.sampled_from(["sequences", "length", "cached", "heads", "kv_heads", "key_size", "value_size"]),
)  # fmt: skip
def test_prompts_never_take_less_time_for_more(theta, sequences, length, window, cached, size, added, name) -> None:
    """With and without a window of keys, and behind tokens that are in the cache already."""

    def time_s(sequences: int, length: int, cached: int, **sizes: int) -> float:
        prompt = {"sequences": sequences, "length": length, "pairs": causal_pairs(length, cached, window)}
        return float(prompt_attention_s(theta, RATES, sizes=AttentionSizes(**sizes, cache_bytes=2), **prompt))

    sizes = {
        "sequences": sequences, "length": length, "cached": cached, "heads": 32, "kv_heads": 8, "key_size": size,
        "value_size": size,
    }  # fmt: skip
    grows(time_s, sizes, name, added)


@given(theta=typical_constants("all-reduce"), ranks=st.integers(2, 72), message_bytes=SIZES, added=SIZES)
def test_an_all_reduce_never_takes_less_time_for_more(theta, ranks, message_bytes, added) -> None:
    time_s = partial(all_reduce_s, theta, link_bytes_per_s=450e9)
    for name in ("ranks", "message_bytes"):
        grows(time_s, {"ranks": ranks, "message_bytes": message_bytes}, name, added)


@given(share=SHARES, size=SIZES)
def test_formulas_of_arrays_are_those_of_numbers(share, size) -> None:
    theta = logs(share, share, 1000, 1e13, 100, 1.5, 1)
    sizes = np.array([1.0, float(size), 2.0 * size])
    together = product_s(theta, RATES, sizes=MatrixSizes(m=sizes, n=4096, k=1024, weight_bytes=1, operand_bytes=1))
    alone = [
        product_s(theta, RATES, sizes=MatrixSizes(m=one, n=4096, k=1024, weight_bytes=1, operand_bytes=1))
        for one in sizes
    ]
    assert together.tolist() == pytest.approx(alone)
    assert np.all(together >= exp(theta[2]) / 1e9)
