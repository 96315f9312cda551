"""Engines' kernels against traces of their servers: each kernel of our list is there, as often per block.

Tests: engines/records/record.py.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from typing import Any

import pytest

from measured import DATA
from paleo_lite.architectures import find_network
from paleo_lite.engines.blocks import ROTARY, ROUTING, network_kernels
from paleo_lite.engines.kernels import (
    AttentionKernel,
    CountedKernel,
    ExchangeKernel,
    ExpertsKernel,
    Kernel,
    Pointwise,
    ProductKernel,
)
from paleo_lite.engines.placed import fusion_of
from paleo_lite.engines.records import KERNELS, SERVERS

SGLANG = "tracelens_models/inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz"
"""SGLang on an MI300X, which decodes 32 sequences of Qwen3 8B in a captured graph."""

VLLM = "tracelens/b200_eager_trace.json.gz"
"""vLLM on the first of eight B200, which computes a prompt of 888 tokens of gpt-oss-120b without a graph."""


def test_every_engine_says_where_its_fusion_can_be_read() -> None:
    for fusion in KERNELS.values():
        assert fusion.sources and all(source.startswith("https://") for source in fusion.sources)
        assert all(launches >= 0 for launches in fusion.launches.values())


@cache
def events(file: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / "profiles" / file) as stream:
        found: list[dict[str, Any]] = json.load(stream)["traceEvents"]
    return found


def launches(file: str, blocks: int) -> Counter[str]:
    """Return how often a block launches each kernel, by a part of its name: those that every block launches."""
    counts = Counter(event["name"] for event in events(file) if event.get("cat") == "kernel")
    return Counter({name: count // blocks for name, count in counts.items() if count >= blocks // 2})


def number(counts: Counter[str], *parts: str) -> int:
    """Return how many launches have a part of their name."""
    return sum(count for name, count in counts.items() if any(part in name for part in parts))


def block_kernels(name: str, engine: str, phase: str, tensor: int = 1) -> list[Kernel]:
    """Return the kernels of the second block; kernels are listed by type of block, each with its number of blocks."""
    network = find_network(name)
    found = network_kernels(network, phase, context=800, tensor=tensor, fusion=fusion_of(engine))
    types = network.block_types or (0,) * network.blocks
    counts = [types.count(kind) for kind in sorted(set(types))]
    own = sorted(set(types)).index(types[1])
    alike = [one.kernel for one in found if one.count == counts[own]]
    size = len(alike) // counts.count(counts[own])
    start = size * counts[:own].count(counts[own])
    return alike[start : start + size]


@pytest.mark.needs_data
def test_a_block_of_qwen3_8b_under_sglang() -> None:
    """Each of our kernels has its counterpart.

    The trace is of AMD's build: two copies make queries and keys contiguous for two norms, and attention ends with a
    reduction over the parts of long sequences, which counts as attention here.
    """
    counts = launches(SGLANG, 36)
    ours = Counter(kernel.name for kernel in block_kernels("qwen3-8b", "sglang", "decode"))
    assert ours["norm"] == number(counts, "rmsnorm_quant_kernelIDF16bDF16bLi256E") == 2
    products = [name for name in ours if name.endswith("projection")]
    assert len(products) == number(counts, "Cijk_") == 4
    assert ours["attention"] == number(counts, "paged_attention_ll4mi_QKV") == 1
    assert ours["activation"] == number(counts, "act_and_mul") == 1
    in_trace = number(counts, "rotary_embedding_kernel", "store_kvcache")
    assert fusion_of("sglang").launches.get(ROTARY, 1) == in_trace == 2
    assert number(counts, "rmsnorm_quant_kernelIDF16bDF16bLi64E") == 2 and ours["query and key norm"] == 1
    unmatched = ("direct_copy_kernel", "ll4mi_reduce")
    assert sum(counts.values()) - number(counts, *unmatched) == 12


@pytest.mark.needs_data
def test_sglang_samples_greedily_in_few_kernels() -> None:
    """One sequence's logits are converted and searched; a temperature, softmax and a draw would come on top."""
    names = [event["name"] for event in events(SGLANG) if event.get("cat") == "kernel"]
    assert sum("bfloat16tofloat32_copy" in name for name in names) == 1
    assert sum("ArgMaxOps" in name for name in names) == 1


def multiplied(file: str) -> Counter[tuple[int, ...]]:
    """Return the shapes of the weights of all linear layers."""
    found: Counter[tuple[int, ...]] = Counter()
    for event in events(file):
        if event.get("name") == "aten::linear":
            found[tuple(event["args"]["Input Dims"][1])] += 1
    return found


def all_kernels(name: str, engine: str, tensor: int) -> list[CountedKernel]:
    fusion = fusion_of(engine)
    return network_kernels(find_network(name), "prefill", context=888, tensor=tensor, fusion=fusion)


@pytest.mark.needs_data
def test_products_of_gpt_oss_under_vllm_have_the_shapes_of_the_trace() -> None:
    """All linear layers of the server, which has an eighth of the heads and of the tokens on each device."""
    ours: Counter[tuple[int, ...]] = Counter()
    for one in all_kernels("gpt-oss-120b", "vllm", 8):
        if isinstance(one.kernel, ProductKernel):
            ours[one.kernel.n, one.kernel.k] += one.count
    theirs = multiplied(VLLM)
    assert {shape: count for shape, count in ours.items() if count > 1} == {
        (640, 2880): 36, (2880, 512): 36, (128, 2880): 36,
    }  # fmt: skip
    for shape, count in ours.items():
        assert theirs[shape] == count or count == 1
    (head,) = [shape for shape, count in ours.items() if count == 1]
    assert head == (25136, 2880) and 8 * head[0] == 201088


@pytest.mark.needs_data
def test_a_block_of_gpt_oss_under_vllm() -> None:
    """Each of our kernels has its counterpart.

    The trace routes in three kernels that belong to the operator of the experts, which also quantises the tokens,
    multiplies twice, and sums. Before it, the tokens are padded (a fill and a copy); queries and keys are quantised for
    a cache of 8 bits (a copy and a quantisation).
    """
    counts = launches(VLLM, 36)
    ours = block_kernels("gpt-oss-120b", "vllm", "prefill", tensor=8)
    names = Counter(kernel.name for kernel in ours)
    by_type = Counter(type(kernel) for kernel in ours)
    assert names["norm"] == number(counts, "fused_add_rms_norm") == 2
    assert by_type[ProductKernel] == number(counts, "nvjet") == 3
    assert by_type[ExchangeKernel] == number(counts, "multimem_all_reduce") == 2
    assert by_type[ExpertsKernel] == number(counts, "finalizeKernel") == 1 and number(counts, "bmm_") == 2
    rotary = number(counts, "rotary_embedding_kernel", "reshape_and_cache_flash")
    assert fusion_of("vllm").launches[ROTARY] == rotary == 2
    assert number(counts, "routingIndices") == 3 and names[ROUTING] == 1
    attention = Counter(event["name"] for event in events(VLLM) if event.get("cat") == "kernel")
    assert (
        sum(count for name, count in attention.items() if name.startswith("fmha"))
        == 36 * by_type[AttentionKernel]
        == 36
    )


@pytest.mark.needs_data
def test_the_first_and_the_last_kernels_of_gpt_oss_under_vllm() -> None:
    """A sum of the divided embedding and one of each half of 36 blocks; logits are gathered."""
    names = [event["name"] for event in events(VLLM) if event.get("cat") == "kernel"]
    ours: Counter[str] = Counter()
    for one in all_kernels("gpt-oss-120b", "vllm", 8):
        if isinstance(one.kernel, ExchangeKernel | Pointwise):
            ours[one.kernel.name] += one.count
    reduced, gathered, norms = (
        sum(part in name for name in names) for part in ("multimem_all_reduce", "AllGather", "rms_norm_kernel")
    )
    assert (ours["all-reduce"], ours["all-gather"], ours["norm"]) == (reduced, gathered, norms) == (73, 1, 73)


PLAUSIBLE = {
    "context_share": (0, 0.05),
    "communicator_bytes": (0.5e9, 5e9),
    "logit_bytes": (0, 64),  # copies of a logit in 4 bytes, and what sorting needs
    "overhead_s": (1e-4, 2e-2),
    "draft_pass_s": (0, 1e-2),
    "eager_sequence_s": (0, 1e-2),
    "nucleus_logit_s": (1e-12, 1e-9),  # a logit is read and written in 4 bytes: 8 of the 3.35e12 per second of an H100
    "request_overhead_s": (1e-4, 0.1),
    "memory_fraction": (0.5, 1),
    "max_batched_tokens": (512, 65_536),
    "max_sequences": (1, 8192),
    "block_tokens": (1, 128),
}
"""Range of each limit and time of servers for a check of units alone: wide enough for any server, without a source.

A time in milliseconds, bytes in GB and a share in percent are outside; values have their sources in the records.
"""


@pytest.mark.parametrize("name", SERVERS)
def test_limits_and_times_of_a_server_have_their_units(name: str) -> None:
    """A figure in another unit, or with a factor of a thousand too many, is outside."""
    server = SERVERS[name]
    outside = {
        field: getattr(server, field)
        for field, (least, most) in PLAUSIBLE.items()
        if getattr(server, field) is not None and not least <= getattr(server, field) <= most
    }
    assert not outside
