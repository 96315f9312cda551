"""Tensors that a tuned stack saves, by hand from the sizes of the published networks."""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.distributed.saved_activations import RECOMPUTE_MODULES, SavedActivations, saved_activations
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

TOKENS = 1024


def saved_of(
    name: str,
    precision: str,
    blocks: tuple[int, ...],
    tensor: int = 1,
    adapted: tuple[str, ...] = (),
    is_fused: bool | None = None,
) -> SavedActivations:
    options = TrainingOptions("adam", mixed_precision=True, lora_rank=16 if adapted else 0, lora_modules=adapted)
    tensors, options = options.split_precision(precision)
    sequence = SequenceOptions(
        TOKENS,
        phase="training",
        blocks=blocks,
        tensor_parallel=tensor,
        sequence_parallel=tensor > 1,
        fused_attention=is_fused,
    )
    workload = Workload(find_network(name, options=sequence), tensors, 1, "training", "megatron", training=options)
    return saved_activations(workload, options.recipe)


def per_block(
    name: str, precision: str, tensor: int = 1, adapted: tuple[str, ...] = ()
) -> tuple[float, dict[str, float]]:
    """Return the bytes per token of a block, and those that each module frees."""
    one, two = (saved_of(name, precision, (0,) * number, tensor, adapted) for number in (1, 2))
    freed = [(b - a) / TOKENS for a, b in zip(one.freed_bytes, two.freed_bytes)]
    return (two.total_bytes - one.total_bytes) / TOKENS, dict(zip(RECOMPUTE_MODULES, freed))


@pytest.mark.parametrize(
    ("precision", "narrow_bytes"), [("bf16", 2), ("fp8", 1), ("mxfp8", 33 / 32), ("nvfp4", 9 / 16)]
)
def test_a_block_of_llama(precision: str, narrow_bytes: float) -> None:
    """Llama 3 70B: hidden size 8,192, inner size 28,672, 64 heads and 8 of keys and values with 128 channels."""
    hidden, inner, keys = 8192, 28672, 8 * 128
    products = (hidden + hidden + hidden + inner) * narrow_bytes  # inputs of qkv, output, gate and up, down
    attention = (hidden + 2 * keys + hidden) * 2  # queries, keys and values, result
    others = (2 * hidden + 2 * inner) * 2  # inputs of two norms and of the gated activation
    total, freed = per_block("llama-3-70b", precision)
    assert total == pytest.approx(products + attention + others)
    assert freed["layernorm"] == pytest.approx(2 * hidden * narrow_bytes)
    assert freed["moe_act"] == pytest.approx(inner * narrow_bytes)
    assert freed["core_attn"] == pytest.approx(hidden * 2)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_frozen_products_save_the_inputs_of_their_adapters_alone(precision: str) -> None:
    """Inputs are for the gradient of a weight: of adapters of attention, in 16 bits, and of no other product."""
    hidden, inner, keys = 8192, 28672, 8 * 128
    adapters = (hidden + hidden) * 2  # inputs of qkv and output
    attention = (hidden + 2 * keys + hidden) * 2
    others = (2 * hidden + 2 * inner) * 2
    total, _ = per_block("llama-3-70b", precision, adapted=("q_proj", "k_proj", "v_proj", "o_proj"))
    assert total == pytest.approx(adapters + attention + others)


def test_tensor_and_sequence_parallelism_divide_a_block() -> None:
    whole, part = (per_block("llama-3-70b", "fp8", tensor)[0] for tensor in (1, 4))
    assert part == pytest.approx(whole / 4, rel=0.01)


def test_rows_of_experts() -> None:
    """Qwen3 30B: 8 experts of 768 per token: their rows, pre-activations and activations."""
    hidden, inner = 2048, 768
    _, freed = per_block("qwen3-30b-a3b", "bf16")
    assert freed["moe_act"] == pytest.approx(8 * inner * 2)
    total, _ = per_block("qwen3-30b-a3b", "bf16")
    assert total > 8 * (hidden + 3 * inner) * 2


def test_modules_of_deepseek_v3() -> None:
    """128 heads of 192 channels of queries and keys and 128 of values; experts and shared experts of 2,048."""
    hidden, heads, inner = 7168, 128, 2048

    def freed(block: int) -> dict[str, float]:
        one, two = (saved_of("deepseek-v3", "bf16", (block,) * number) for number in (1, 2))
        return {
            name: (after - before) / TOKENS
            for name, before, after in zip(RECOMPUTE_MODULES, one.freed_bytes, two.freed_bytes)
        }

    dense, sparse = freed(0), freed(10)
    assert dense["mla_up_proj"] == sparse["mla_up_proj"] == heads * (192 + 192 + 128) * 2
    assert dense["mlp"] == 3 * 18432 * 2 and sparse["mlp"] == 0
    assert sparse["shared_experts"] == 3 * inner * 2 and dense["shared_experts"] == 0
    router = 256 * 2  # scores of the experts before the sigmoid
    assert sparse["moe"] == 8 * (hidden + 3 * inner) * 2 + sparse["shared_experts"] + router
    assert dense["moe"] == 0


def test_a_squared_relu_is_an_activation_of_experts() -> None:
    """Nemotron 3 Nano: 6 experts of 1,856 per token, and shared ones of 3,712."""
    one, two = (saved_of("nemotron-3-nano-30b-a3b", "bf16", (1,) * number) for number in (1, 2))
    freed = dict(zip(RECOMPUTE_MODULES, np.subtract(two.freed_bytes, one.freed_bytes) / TOKENS))
    assert freed["moe_act"] == (6 * 1856 + 3712) * 2


@pytest.mark.parametrize(("name", "heads", "bytes_per_weight"), [("gpt2", 12, 5), ("llama-3-8b", 32, 2)])
def test_eager_attention_saves_weights_of_all_keys(name: str, heads: int, bytes_per_weight: int) -> None:
    """Korthikanti et al. 2022, section 4.1: 5 a s^2 b bytes, results of softmax and dropout and the mask of the latter.

    Llama has no dropout. Fused attention saves its result instead, in 16 bits.
    """
    fused, eager = (saved_of(name, "bf16", (0,), is_fused=is_fused) for is_fused in (True, False))
    weights_bytes = bytes_per_weight * heads * TOKENS**2
    hidden = {"gpt2": 768, "llama-3-8b": 4096}[name]
    assert eager.weights_bytes == weights_bytes and fused.weights_bytes == 0
    assert eager.total_bytes == pytest.approx(fused.total_bytes - 2 * hidden * TOKENS + weights_bytes)
    core = list(RECOMPUTE_MODULES).index("core_attn")
    assert eager.freed_bytes[core] == weights_bytes
    recomputed = eager.without_weights()
    assert recomputed.total_bytes == eager.total_bytes - weights_bytes
    assert recomputed.times(2).total_bytes == 2 * recomputed.total_bytes
