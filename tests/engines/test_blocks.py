"""Kernels of networks: lists by hand from published configs, and the counted work, weights and caches of every network.

Tests: engines/blocks.py, engines/kernels.py.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np
import pytest

from paleo_lite.architectures import Network, find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import Layer, count
from paleo_lite.counting.kinds import cached_elements
from paleo_lite.engines.blocks import Fusion, exchange_tokens, network_kernels
from paleo_lite.engines.kernels import (
    AttentionKernel,
    CountedKernel,
    ExchangeKernel,
    ExpertsKernel,
    Kernel,
    Pointwise,
    ProductKernel,
)
from paleo_lite.engines.memory import cached_tokens
from paleo_lite.errors import BadValue
from shipped_networks import LANGUAGE_MODELS, of_each_form

CONTEXT = 600
UNFUSED = Fusion({})

network = lru_cache(None)(find_network)


def kernels(name: str, phase: str = "decode", tensor: int = 1, context: int = CONTEXT) -> list[CountedKernel]:
    return network_kernels(network(name), phase, context=context, tensor=tensor, fusion=UNFUSED)


def described(kernel: Kernel) -> str:
    """Return a kernel's name and sizes."""
    if isinstance(kernel, ProductKernel):
        sizes = f" {kernel.n} x {kernel.k}" + (f" x{kernel.groups}" if kernel.groups > 1 else "")
    elif isinstance(kernel, ExpertsKernel):
        sizes = f" {kernel.active} of {kernel.experts}: {kernel.matrices} of {kernel.hidden_size} x {kernel.inner_size}"
    elif isinstance(kernel, AttentionKernel):
        sizes = f" {kernel.heads}/{kernel.kv_heads} of {kernel.key_size}+{kernel.value_size}"
        sizes += f" within {kernel.window}" if kernel.window else ""
    else:
        sizes = ""
    return kernel.name + sizes


def table(name: str, phase: str = "decode", tensor: int = 1, context: int = CONTEXT) -> list[str]:
    """Return the kernels of a network with the blocks that have them."""
    return [f"{one.count} {described(one.kernel)}" for one in kernels(name, phase, tensor, context)]


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


# Lists by hand: the sizes in the configs that the publishers ship ---------------------------------------------------


def test_llama_3_8b() -> None:
    """4096 wide, 32 heads and 8 of keys of 128: (32 + 2 x 8) x 128 = 6144 columns; 14336 inner, 128256 tokens."""
    assert table("llama-3-8b") == lines("""
        1 embedding
        32 norm
        32 QKV projection 6144 x 4096
        32 rotary embedding and cache
        32 attention 32/8 of 128+128
        32 output projection 4096 x 4096
        32 norm
        32 gate and up projection 28672 x 4096
        32 activation
        32 down projection 4096 x 14336
        1 norm
        1 head 128256 x 4096
        1 sampling
    """)


def test_llama_3_8b_on_four_devices() -> None:
    """Heads, inner size and tokens are divided by 4; each half of a block ends with an all-reduce (Megatron-LM)."""
    assert table("llama-3-8b", tensor=4) == lines("""
        1 embedding
        1 all-reduce
        32 norm
        32 QKV projection 1536 x 4096
        32 rotary embedding and cache
        32 attention 8/2 of 128+128
        32 output projection 4096 x 1024
        32 all-reduce
        32 norm
        32 gate and up projection 7168 x 4096
        32 activation
        32 down projection 4096 x 3584
        32 all-reduce
        1 norm
        1 head 32064 x 4096
        1 all-gather
        1 sampling
    """)
    sizes = {one.kernel.name: one.kernel.row_bytes for one in kernels("llama-3-8b", tensor=4) if is_exchange(one)}
    assert sizes == {"all-reduce": 2 * 4096, "all-gather": 2 * 128256}


def is_exchange(counted: CountedKernel) -> bool:
    return isinstance(counted.kernel, ExchangeKernel)


DEEPSEEK_DENSE = """
    3 norm
    3 gate and up projection 36864 x 7168
    3 activation
    3 down projection 7168 x 18432
"""

DEEPSEEK_MIXTURE = """
    58 norm
    58 router 256 x 7168
    58 routing
    58 experts 8 of 256: 3 of 7168 x 2048
    58 shared experts: gate and up projection 4096 x 7168
    58 activation
    58 shared experts: down projection 7168 x 2048
    58 sum of experts
"""


def test_deepseek_r1_decodes_against_latent_vectors() -> None:
    """Ranks 1536 of queries and 512 of keys and values, of which 64 rotate; 128 heads of 128 + 64 and values of 128.

    Queries and latent vectors are one product of 1536 + 512 + 64 columns; the matrices of keys and values move to the
    queries and to the results, a matrix per head (DeepSeek-V2, appendix C).
    """
    attention = """
        {0} norm
        {0} QKV projection 2112 x 7168
        {0} query and key norm
        {0} query up projection 24576 x 1536
        {0} rotary embedding and cache
        {0} latent key projection 512 x 128 x128
        {0} attention 128/1 of 576+0
        {0} latent value projection 128 x 512 x128
        {0} output projection 7168 x 16384
    """
    expected = ["1 embedding", *lines(attention.format(3)), *lines(DEEPSEEK_DENSE)]
    expected += [*lines(attention.format(58)), *lines(DEEPSEEK_MIXTURE)]
    assert table("deepseek-r1") == [*expected, "1 norm", "1 head 129280 x 7168", "1 sampling"]


@pytest.mark.parametrize(("context", "read"), [(1_000, None), (30_000, 2048)])
def test_deepseek_v3_2_attends_to_selected_tokens(context: int, read: int | None) -> None:
    """An indexer of 64 heads of 128 reads every key, attention the 2,048 best ones (DeepSeek-V3.2, section 2.1)."""
    found = [one.kernel for one in kernels("deepseek-v3.2", context=context) if isinstance(one.kernel, AttentionKernel)]
    for kernel in found:
        expected = (64, 128, None) if kernel.name == "indexer" else (128, 576, read)
        assert (kernel.heads, kernel.key_size, kernel.window) == expected
    assert {kernel.name for kernel in found} == {"indexer", "attention"}


def test_deepseek_v4_reads_a_window_and_compressed_keys() -> None:
    """Windows of 128; one of four tokens is indexed, of which 512 are selected, or one of 128 read (its config)."""
    found = [
        one.kernel for one in kernels("deepseek-v4-flash", context=30_000) if isinstance(one.kernel, AttentionKernel)
    ]
    read = {(kernel.name, kernel.window) for kernel in found}
    assert read == {("attention", 128), ("attention", 128 + 512), ("attention", 128 + 234), ("indexer", 7500)}


def test_deepseek_r1_computes_prompts_with_keys_and_values_of_every_head() -> None:
    """Keys of 128 + 64 and values of 128 per head come from the latent vectors: 128 x (128 + 128) columns."""
    attention = """
        {0} norm
        {0} QKV projection 2112 x 7168
        {0} query and key norm
        {0} query up projection 24576 x 1536
        {0} rotary embedding and cache
        {0} key and value up projection 32768 x 512
        {0} attention 128/128 of 192+128
        {0} output projection 7168 x 16384
    """
    expected = ["1 embedding", *lines(attention.format(3)), *lines(DEEPSEEK_DENSE)]
    expected += [*lines(attention.format(58)), *lines(DEEPSEEK_MIXTURE)]
    found = table("deepseek-r1", "prefill")
    assert sorted(found) == sorted([*expected, "1 norm", "1 head 129280 x 7168", "1 sampling"])


def test_gpt_oss_120b() -> None:
    """2880 wide, 64 heads and 8 of keys of 64; every other block sees 128 tokens; 4 of 128 experts of 2880."""
    block = """
        18 norm
        18 QKV projection 5120 x 2880
        18 rotary embedding and cache
        18 attention 64/8 of 64+64{window}
        18 output projection 2880 x 4096
        18 norm
        18 router 128 x 2880
        18 routing
        18 experts 4 of 128: 3 of 2880 x 2880
    """
    expected = ["1 embedding", *lines(block.format(window=" within 128")), *lines(block.format(window=""))]
    assert table("gpt-oss-120b") == [*expected, "1 norm", "1 head 201088 x 2880", "1 sampling"]


def test_qwen3_30b_a3b() -> None:
    """2048 wide, 32 heads and 4 of keys of 128, which are normalised; 8 of 128 experts of 768."""
    assert table("qwen3-30b-a3b") == lines("""
        1 embedding
        48 norm
        48 QKV projection 5120 x 2048
        48 query and key norm
        48 rotary embedding and cache
        48 attention 32/4 of 128+128
        48 output projection 2048 x 4096
        48 norm
        48 router 128 x 2048
        48 routing
        48 experts 8 of 128: 3 of 2048 x 768
        1 norm
        1 head 151936 x 2048
        1 sampling
    """)


def test_gemma_3_12b() -> None:
    """3840 wide, 16 heads and 8 of keys of 256; 5 of 6 blocks see 1024 tokens; norms before and after each half."""
    block = """
        {0} norm
        {0} QKV projection 8192 x 3840
        {0} query and key norm
        {0} rotary embedding and cache
        {0} attention 16/8 of 256+256{window}
        {0} output projection 3840 x 4096
        {0} norm
        {0} norm
        {0} gate and up projection 30720 x 3840
        {0} activation
        {0} down projection 3840 x 15360
        {0} norm
    """
    expected = ["1 embedding", *lines(block.format(40, window=" within 1024")), *lines(block.format(8, window=""))]
    assert table("gemma-3-12b", context=2000) == [*expected, "1 norm", "1 head 262208 x 3840", "1 sampling"]


def test_nemotron_3_nano() -> None:
    """52 blocks: 23 of Mamba 2, 23 of experts, 6 of attention (`hybrid_override_pattern`), each with one norm.

    Mamba: 64 heads of 64 with 8 groups of state 128: gate 4096, convolved 4096 + 2 x 8 x 128, and a step per head.
    Experts have no gate: 6 of 128 of 1856, and a shared one of 3712.
    """
    found = table("nemotron-3-nano-30b-a3b")
    products = [line for line in found if " x " in line or "attention" in line]
    assert products == lines("""
        23 input projection 10304 x 2688
        23 output projection 2688 x 4096
        23 router 128 x 2688
        23 experts 6 of 128: 2 of 2688 x 1856
        23 shared experts: gate and up projection 3712 x 2688
        23 shared experts: down projection 2688 x 3712
        6 QKV projection 4608 x 2688
        6 attention 32/2 of 128+128
        6 output projection 2688 x 4096
        1 head 131072 x 2688
    """)
    assert 4096 + (4096 + 2 * 8 * 128) + 64 == 10304 and (32 + 2 * 2) * 128 == 4608
    assert sum(int(line.split()[0]) for line in found if line.endswith(" norm") and "output" not in line) == 52 + 1
    states = [one for one in kernels("nemotron-3-nano-30b-a3b") if one.kernel.name == "recurrence"]
    assert [(one.count, one.kernel.state_bytes) for one in states] == [(23, 64 * 64 * 128 * 4)]


def test_gpt2() -> None:
    """768 wide, 12 heads of 64, an inner size of 4 x 768 without a gate, and the head shares the embedding."""
    assert table("gpt2") == lines("""
        1 embedding
        12 norm
        12 QKV projection 2304 x 768
        12 rotary embedding and cache
        12 attention 12/12 of 64+64
        12 output projection 768 x 768
        12 norm
        12 gate and up projection 3072 x 768
        12 activation
        12 down projection 768 x 3072
        1 norm
        1 head 50257 x 768
        1 sampling
    """)
    (head,) = (one.kernel for one in kernels("gpt2") if one.kernel.name == "head")
    assert isinstance(head, ProductKernel) and not head.is_stored and head.rows == "sampled"


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b", "qwen3-8b"])
def test_a_norm_adds_the_residual_in_the_same_kernel(name: str) -> None:
    """It reads what was computed and the residual, and writes the sum and its norm: 4 numbers of 16 bits per column."""
    hidden_size = {"llama-3-8b": 4096, "qwen3-30b-a3b": 2048, "qwen3-8b": 4096}[name]
    norms = [one.kernel for one in kernels(name) if one.kernel.name == "norm" and one.count > 1]
    assert [norm.row_bytes for norm in norms] == [4 * 2 * hidden_size] * 2


def test_an_activation_reads_two_tensors_and_writes_one() -> None:
    (activation,) = (one.kernel for one in kernels("llama-3-8b") if one.kernel.name == "activation")
    assert activation.row_bytes == 3 * 2 * 14336


def test_engines_fuse_by_their_data() -> None:
    fusion = Fusion({"rotary embedding and cache": 2, "activation": 0})
    found = network_kernels(network("llama-3-8b"), "decode", context=CONTEXT, tensor=1, fusion=fusion)
    launches = {one.kernel.name: one.kernel.launches for one in found if isinstance(one.kernel, Pointwise)}
    assert launches == {"embedding": 1, "norm": 1, "rotary embedding and cache": 2, "activation": 0, "sampling": 5}


# Properties of every network -----------------------------------------------------------------------------------------


def built(name: str, phase: str = "decode", tensor: int = 1, context: int = CONTEXT) -> Network:
    """Return the network of all blocks, from which kernels are counted."""
    rebuild = network(name).rebuild
    assert rebuild is not None
    lengths = {"context": context} if phase == "decode" else {"length": context}
    return rebuild(SequenceOptions(phase=phase, tensor_parallel=tensor, **lengths))


def has_weights(layer: Layer) -> bool:
    """Return whether a layer multiplies by a matrix of weights."""
    return layer.kind == "grouped_matmul" or (layer.kind in ("linear", "matmul") and bool(layer.weights))


def flops_per_token(found: list[CountedKernel]) -> int:
    """Return the FLOPs of all products, two for each weight that a token meets."""
    total = 0
    for one in found:
        kernel = one.kernel
        if isinstance(kernel, ProductKernel):
            total += one.count * 2 * kernel.n * kernel.k * kernel.groups
        elif isinstance(kernel, ExpertsKernel):
            total += one.count * 2 * kernel.matrices * kernel.hidden_size * kernel.inner_size * kernel.active
    return total


@pytest.mark.spread(24)
@of_each_form(LANGUAGE_MODELS)
def test_products_of_a_decode_step_have_the_counted_flops(name: str) -> None:
    """Of all layers of the built network that multiply by weights; biases are not products."""
    layers = built(name).layers
    macs = np.ravel(count(layers).column("macs", "inference"))
    expected = 2 * sum(int(number) for number, layer in zip(macs, layers) if has_weights(layer))
    assert flops_per_token(kernels(name)) == expected > 0


@pytest.mark.parametrize("name", ["llama-3-70b", "qwen3-235b-a22b", "gpt-oss-120b", "gemma-3-27b", "deepseek-r1"])
def test_products_of_one_of_eight_devices_have_the_counted_flops(name: str) -> None:
    """Experts are listed undivided; everything else is divided as in the built network."""
    layers = built(name, tensor=8).layers
    macs = np.ravel(count(layers).column("macs", "inference"))
    expected = 2 * sum(
        int(number) * (8 if layer.kind == "grouped_matmul" else 1) for number, layer in zip(macs, layers)
        if has_weights(layer)
    )  # fmt: skip
    assert flops_per_token(kernels(name, tensor=8)) == expected


@pytest.mark.spread(24)
@of_each_form(LANGUAGE_MODELS)
def test_kernels_have_the_parameters_of_the_network(name: str) -> None:
    """All but biases, the vision tower, and layers that predict further tokens."""
    found, stored = network(name), 0
    for one in kernels(name):
        kernel = one.kernel
        if isinstance(kernel, ProductKernel):
            stored += one.count * kernel.n * kernel.k * kernel.groups * kernel.is_stored
        elif isinstance(kernel, ExpertsKernel):
            stored += one.count * kernel.matrices * kernel.hidden_size * kernel.inner_size * kernel.experts
        elif isinstance(kernel, Pointwise):
            stored += one.count * kernel.weights
    in_layers = sum(prod(weight) for layer in built(name).layers for weight in layer.weights if layer.parameters)
    assert stored == pytest.approx(in_layers, rel=0.005)
    published = found.parameters - found.tower_parameters
    assert stored == pytest.approx(published, rel=0.005) or stored == pytest.approx(
        published - found.left_out_parameters, rel=0.005
    )


COMPRESSED = ("deepseek-v4-flash",)
"""Networks whose kernels of attention read compressed keys and a window of others at once."""


@pytest.mark.spread(24)
@of_each_form([name for name in LANGUAGE_MODELS if name not in COMPRESSED])
def test_kernels_keep_the_cache_of_the_network(name: str) -> None:
    """Elements of keys, values and states of a sequence; the 3 or 4 inputs of convolutions are no state."""
    kept = states = 0
    for one in kernels(name):
        kernel = one.kernel
        if isinstance(kernel, AttentionKernel):
            kept += (
                one.count * cached_tokens(kernel, CONTEXT + 1) * kernel.kv_heads * (kernel.key_size + kernel.value_size)
            )
        elif isinstance(kernel, Pointwise):
            states += one.count * kernel.state_bytes / 4
    layers = built(name).layers
    caches = [shape for layer in layers if layer.kind == "cache" for shape in layer.outputs]
    convolved = sum(prod(shape) for shape in caches if shape[-1] in (3, 4))
    expected = cached_elements(layers) - convolved
    assert kept + states == pytest.approx(expected, rel=1e-9)


def test_networks_without_a_config_have_no_kernels() -> None:
    with pytest.raises(BadValue, match="serving needs a language model from a config: not vgg16"):
        kernels("vgg16")


def test_a_token_goes_once_to_every_other_device_that_holds_one_of_its_experts() -> None:
    """8 of 256 experts on 8 devices: 8 (1 - (7/8)^8) devices hold one, 7/8 of them are others.

    Tokens of 7168 numbers go in 8 bits and come back in 16, around the experts of each of the 58 blocks.
    """
    exchanged = exchange_tokens(kernels("deepseek-r1"), 8, 1.0)
    places = [index for index, one in enumerate(exchanged) if isinstance(one.kernel, ExpertsKernel)]
    (place,) = places
    before, after = exchanged[place - 1], exchanged[place + 1]
    devices = 8 * (1 - (7 / 8) ** 8) * 7 / 8
    assert isinstance(before.kernel, ExchangeKernel) and isinstance(after.kernel, ExchangeKernel)
    assert (before.kernel.pattern, before.count, after.kernel.pattern, after.count) == ("dispatch", 58, "combine", 58)
    assert before.kernel.row_bytes == pytest.approx(devices * 7168)
    assert after.kernel.row_bytes == pytest.approx(2 * devices * 7168)


def test_low_latency_kernels_send_a_copy_for_each_expert() -> None:
    """Of 8 experts on 16 devices of two nodes, 4 are on the other node, and 8 x 7/16 on other devices of the own."""
    exchanged = exchange_tokens(kernels("deepseek-r1"), 16, 1.0, nodes=2, mode="low-latency")
    dispatch, combine = (one.kernel for one in exchanged if "low-latency" in getattr(one.kernel, "pattern", ""))
    assert (dispatch.pattern, combine.pattern) == ("low-latency dispatch", "low-latency combine")
    assert (dispatch.row_bytes, dispatch.node_row_bytes) == pytest.approx((3.5 * 7168, 4 * 7168))
    assert (combine.row_bytes, combine.node_row_bytes) == pytest.approx((3.5 * 2 * 7168, 4 * 2 * 7168))
