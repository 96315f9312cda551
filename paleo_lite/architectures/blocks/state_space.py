"""Mixers without attention: Mamba, Mamba 2 and gated delta-rule linear attention.

Their recurrences are single fused kernels (`paleo_lite.counting.kinds.recurrent`), as the authors' libraries run them;
``transformers`` falls back to a loop over tokens or chunks where these libraries are not installed. In the phases
``prefill`` and ``decode`` the state of each sequence is kept, and its size does not grow with the context.
"""

from __future__ import annotations

from ...counting import CONSTANT
from ..builder import Blob
from ..tape import Tape
from .mixer_records import (
    DeltaNet,
    GatedMemory,
    KimiDelta,
    LightningAttention,
    Mamba,
    Mamba2,
    MatrixMemory,
    ShortConvolution,
)
from .norms import add_norm


def add_mamba(tape: Tape, name: str, mixer: Mamba, x: Blob) -> Blob:
    """Add a selective state-space mixer (Gu and Dao 2023): projections, convolution, selective scan and gate."""
    hidden_size, tokens = x.shape[-1], tape.lengths.queries
    channels, states = tape.shard_size(mixer.inner_size), mixer.state_size
    x = tape.column_parallel_input(name, x)
    values_and_gate = tape.linear(f"{name}.in_proj", x, 2 * channels, mixer.bias)
    values_and_gate = tape.view(name, values_and_gate, (1, 2 * channels, tokens), "transpose")
    values, gate = tape.split_tensor(f"{name}.chunk", values_and_gate, "chunk", ((1, channels, tokens),) * 2)
    values = _add_convolution(tape, name, values, mixer.convolution, mixer.convolution_bias)
    by_token = tape.view(name, values, (1, tokens, channels), "transpose")
    parameters = tape.linear(f"{name}.x_proj", by_token, mixer.step_rank + 2 * states, bias=False)
    shapes = ((1, tokens, mixer.step_rank), (1, tokens, states), (1, tokens, states))
    step, inputs, outputs = tape.split_tensor(f"{name}.split", parameters, "split", shapes)
    if mixer.has_norms:
        weighted = mixer.norms_have_weights
        step = add_norm(tape, f"{name}.dt_layernorm", "rms", step, has_weight=weighted)
        inputs = add_norm(tape, f"{name}.b_layernorm", "rms", inputs, has_weight=weighted)
        outputs = add_norm(tape, f"{name}.c_layernorm", "rms", outputs, has_weight=weighted)
    step = tape.linear(f"{name}.dt_proj", step, channels)
    step = tape.op(f"{name}.softplus", "softplus", step, origin="function")
    step = tape.view(name, step, (1, channels, tokens), "transpose")
    inputs = tape.view(name, inputs, (1, states, tokens), "transpose")
    outputs = tape.view(name, outputs, (1, states, tokens), "transpose")
    output = tape.op(
        f"{name}.selective_scan",
        "selective_scan",
        values,
        step,
        inputs,
        outputs,
        gate,
        out=(1, channels, tokens),
        weights=((channels, states), (channels,)),
        origin="function",
        states=states,
        state_elements=channels * states if tape.lengths.uses_cache else 0,
    )
    _add_state(tape, name, (1, channels, states), (1, channels, mixer.convolution))
    output = tape.view(name, output, (1, tokens, channels), "transpose")
    output = tape.linear(f"{name}.out_proj", output, hidden_size, mixer.bias)
    return tape.row_parallel_output(name, output)


def add_gated_memory(tape: Tape, name: str, mixer: GatedMemory, x: Blob) -> Blob:
    """Add a gated memory unit: a projection that gates the output of another layer's scan, and one after it."""
    width = tape.shard_size(mixer.width)
    gate = tape.linear(f"{name}.in_proj", tape.column_parallel_input(name, x), width, bias=False)
    gate = tape.op(f"{name}.silu", "silu", gate, origin="function")
    memory = Blob((*x.shape[:-1], width), CONSTANT)
    output = tape.op(f"{name}.mul", "mul", gate, memory)
    output = tape.linear(f"{name}.out_proj", output, x.shape[-1], bias=False)
    return tape.row_parallel_output(name, output)


def add_mamba2(tape: Tape, name: str, mixer: Mamba2, x: Blob) -> Blob:
    """Add a state-space mixer of the second kind (Dao and Gu 2024): projection, convolution, state-space dual, norm."""
    hidden_size, tokens = x.shape[-1], tape.lengths.queries
    heads, groups = tape.shard_size(mixer.heads), max(mixer.groups // tape.ranks, 1)
    inner_size, states = heads * mixer.head_size, mixer.state_size
    x = tape.column_parallel_input(name, x)
    convolved_size = inner_size + 2 * groups * states
    width = inner_size + convolved_size + heads
    packed = tape.linear(f"{name}.in_proj", x, width, mixer.bias)
    shapes = ((1, tokens, inner_size), (1, tokens, convolved_size), (1, tokens, heads))
    gate, convolved, step = tape.split_tensor(f"{name}.split", packed, "split", shapes)
    convolved = tape.view(name, convolved, (1, convolved_size, tokens), "transpose")
    convolved = _add_convolution(tape, name, convolved, mixer.convolution, mixer.convolution_bias)
    convolved = tape.view(name, convolved, (1, tokens, convolved_size), "transpose")
    shapes = ((1, tokens, inner_size), (1, tokens, groups * states), (1, tokens, groups * states))
    values, inputs, outputs = tape.split_tensor(f"{name}.split", convolved, "split", shapes)
    values = tape.view(name, values, (1, heads, tokens, mixer.head_size))
    inputs = tape.view(name, inputs, (1, groups, tokens, states))
    outputs = tape.view(name, outputs, (1, groups, tokens, states))
    output = tape.op(
        f"{name}.state_space_dual",
        "state_space_dual",
        values,
        inputs,
        outputs,
        step,
        out=(1, heads, tokens, mixer.head_size),
        weights=((heads,), (heads,), (heads,)),
        origin="function",
        chunk=mixer.chunk,
        state_elements=inner_size * states if tape.lengths.uses_cache else 0,
    )
    _add_state(tape, name, (1, heads, mixer.head_size, states), (1, convolved_size, mixer.convolution))
    output = tape.view(name, output, (1, tokens, inner_size))
    gate = tape.op(f"{name}.silu", "silu", gate, origin="function")
    output = tape.op(f"{name}.mul", "mul", output, gate)
    if mixer.has_norm:
        output = add_norm(tape, f"{name}.norm", "rms", output)
    output = tape.linear(f"{name}.out_proj", output, hidden_size, mixer.bias)
    return tape.row_parallel_output(name, output)


def add_delta_net(tape: Tape, name: str, mixer: DeltaNet, x: Blob) -> Blob:
    """Add gated delta-rule linear attention (Yang et al. 2024), as in Qwen3-Next and Qwen3.5."""
    hidden_size, tokens = x.shape[-1], tape.lengths.queries
    key_heads, heads = tape.shard_size(mixer.key_heads), tape.shard_size(mixer.value_heads)
    key_width, value_width = key_heads * mixer.key_size, heads * mixer.value_size
    x = tape.column_parallel_input(name, x)
    convolved_size = 2 * key_width + value_width
    if mixer.has_packed_projections:
        packed = tape.linear(f"{name}.in_proj_qkvz", x, convolved_size + value_width, bias=False)
        gates = tape.linear(f"{name}.in_proj_ba", x, 2 * heads, bias=False)
        shapes = ((1, tokens, convolved_size), (1, tokens, value_width))
        convolved, gate = tape.split_tensor(f"{name}.split", packed, "split", shapes)
        beta, decay = tape.split_tensor(f"{name}.split", gates, "split", ((1, tokens, heads),) * 2)
    else:
        convolved = tape.linear(f"{name}.in_proj_qkv", x, convolved_size, bias=False)
        gate = tape.linear(f"{name}.in_proj_z", x, value_width, bias=False)
        beta = tape.linear(f"{name}.in_proj_b", x, heads, bias=False)
        decay = tape.linear(f"{name}.in_proj_a", x, heads, bias=False)
    convolved = tape.view(name, convolved, (1, convolved_size, tokens), "transpose")
    convolved = _add_convolution(tape, name, convolved, mixer.convolution, False)
    convolved = tape.view(name, convolved, (1, tokens, convolved_size), "transpose")
    head_shapes = ((1, tokens, key_width), (1, tokens, key_width), (1, tokens, value_width))
    query, key, value = tape.split_tensor(f"{name}.split", convolved, "split", head_shapes)
    beta = tape.op(f"{name}.sigmoid", "sigmoid", beta, origin="function")
    decay = tape.op(f"{name}.softplus", "softplus", decay, origin="function")
    query = _normalise_heads(tape, name, query, key_heads, heads)
    key = _normalise_heads(tape, name, key, key_heads, heads)
    value = tape.view(name, value, (1, heads, tokens, mixer.value_size))
    output = tape.op(
        f"{name}.gated_delta_rule",
        "gated_delta_rule",
        query,
        key,
        value,
        beta,
        decay,
        out=(1, heads, tokens, mixer.value_size),
        weights=((heads,), (heads,)),
        origin="function",
        chunk=mixer.chunk,
        state_elements=heads * mixer.key_size * mixer.value_size if tape.lengths.uses_cache else 0,
    )
    state = (1, heads, mixer.key_size, mixer.value_size)
    _add_state(tape, name, state, (1, convolved_size, mixer.convolution))
    output = add_norm(tape, f"{name}.norm", "rms", output)
    gate = tape.op(f"{name}.silu", "silu", gate, origin="function")
    gate = tape.view(name, gate, (1, heads, tokens, mixer.value_size))
    output = tape.op(f"{name}.mul", "mul", output, gate)
    output = tape.view(name, output, (1, tokens, value_width), "reshape", "copy")
    output = tape.linear(f"{name}.out_proj", output, hidden_size, bias=False)
    return tape.row_parallel_output(name, output)


def add_kimi_delta(tape: Tape, name: str, mixer: KimiDelta, x: Blob) -> Blob:
    """Add Kimi delta attention (Kimi Linear, 2025, section 3): decay and output gate come from low-rank projections."""
    hidden_size, tokens = x.shape[-1], tape.lengths.queries
    heads, size = tape.shard_size(mixer.heads), mixer.head_size
    width = heads * size
    x = tape.column_parallel_input(name, x)
    parts = [tape.linear(f"{name}.{part}_proj", x, width, bias=False) for part in "qkv"]
    shape = (1, tokens, 3 * width)
    convolved = tape.op(f"{name}.concat", "concat", *parts, out=shape, origin="function")
    convolved = tape.view(name, convolved, (1, 3 * width, tokens), "transpose")
    convolved = _add_convolution(tape, name, convolved, mixer.convolution, False)
    convolved = tape.view(name, convolved, shape, "transpose")
    query, key, value = tape.split_tensor(f"{name}.split", convolved, "split", ((1, tokens, width),) * 3)
    decay = tape.linear(f"{name}.forget_gate.f_a_proj", x, size, bias=False)
    decay = tape.linear(f"{name}.forget_gate.f_b_proj", decay, width, bias=False)
    decay = tape.op(f"{name}.forget_gate.softplus", "softplus", decay, origin="function")
    beta = tape.linear(f"{name}.b_proj", x, heads, bias=False)
    beta = tape.op(f"{name}.sigmoid", "sigmoid", beta, origin="function")
    query, key = (_normalise_heads(tape, name, blob, heads, heads) for blob in (query, key))
    value = tape.view(name, value, (1, heads, tokens, size))
    output = tape.op(
        f"{name}.gated_delta_rule", "gated_delta_rule", query, key, value, beta, decay,
        out=(1, heads, tokens, size), weights=((heads,), (width,)), origin="function", chunk=mixer.chunk,
        state_elements=heads * size * size if tape.lengths.uses_cache else 0,
    )  # fmt: skip
    _add_state(tape, name, (1, heads, size, size), (1, 3 * width, mixer.convolution))
    output = add_norm(tape, f"{name}.o_norm", "rms", output)
    if mixer.has_full_gate:
        gate = tape.linear(f"{name}.g_proj", x, width, bias=False)
    else:
        gate = tape.linear(f"{name}.g_a_proj", x, size, bias=False)
        gate = tape.linear(f"{name}.g_b_proj", gate, width, bias=False)
    gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
    output = tape.op(f"{name}.mul", "mul", output, tape.view(name, gate, output.shape))
    output = tape.view(name, output, (1, tokens, width), "reshape", "copy")
    return tape.row_parallel_output(name, tape.linear(f"{name}.o_proj", output, hidden_size, bias=False))


def add_matrix_memory(tape: Tape, name: str, mixer: MatrixMemory, x: Blob) -> Blob:
    """Add an mLSTM (Beck et al. 2024, section 2.3): projections, limited gates, matrix memory, norm per head, gate."""
    hidden_size, tokens = x.shape[-1], tape.lengths.queries
    heads = tape.shard_size(mixer.heads)
    key_width, value_width = heads * mixer.key_size, heads * mixer.value_size
    x = tape.column_parallel_input(name, x)
    if mixer.has_packed_projections:
        packed = tape.linear(f"{name}.qkv_opreact", x, 2 * key_width + 2 * value_width, bias=False)
        shapes = tuple((1, tokens, width) for width in (key_width, key_width, value_width, value_width))
        query, key, value, gate = tape.split_tensor(f"{name}.split", packed, "split", shapes)
        gates = _limit(tape, name, tape.linear(f"{name}.ifgate_preact", x, 2 * heads))
        gate_in, forget = tape.split_tensor(f"{name}.split", gates, "split", ((1, tokens, heads),) * 2)
    else:
        query, key = (tape.linear(f"{name}.{part}", x, key_width, bias=False) for part in "qk")
        value = tape.linear(f"{name}.v", x, value_width, bias=False)
        gate = tape.linear(f"{name}.ogate_preact", x, value_width, bias=False)
        gate_in = _limit(tape, name, tape.linear(f"{name}.igate_preact", x, heads))
        forget = _limit(tape, name, tape.linear(f"{name}.fgate_preact", x, heads))
    query, key, value = (tape.split_heads(name, blob, heads) for blob in (query, key, value))
    output = tape.op(
        f"{name}.mlstm", "state_space_dual", value, key, query, gate_in, forget, out=value.shape, origin="function",
        chunk=mixer.chunk,
        state_elements=heads * mixer.key_size * (mixer.value_size + 1) if tape.lengths.uses_cache else 0,
    )  # fmt: skip
    _add_state(tape, name, (1, heads, mixer.key_size, mixer.value_size), (1, key_width, 1))
    output = add_norm(tape, f"{name}.multihead_norm", "layer_plain", output)
    output = tape.view(name, output, (1, tokens, value_width), "reshape", "copy")
    output = tape.op(f"{name}.multihead_norm", "mul", output, weights=((value_width,),))
    gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
    output = tape.op(f"{name}.mul", "mul", gate, output)
    return tape.row_parallel_output(name, tape.linear(f"{name}.out_proj", output, hidden_size, bias=False))


def add_lightning_attention(tape: Tape, name: str, mixer: LightningAttention, x: Blob) -> Blob:
    """Add linear attention with a decay (Li et al. 2025, section 2.2): projection, chunks, norm, gate, projection."""
    hidden_size, tokens = x.shape[-1], tape.lengths.queries
    heads, size = tape.shard_size(mixer.heads), mixer.head_size
    width = heads * size
    x = tape.column_parallel_input(name, x)
    packed = tape.linear(f"{name}.{mixer.projection}", x, 3 * width, bias=False)
    if mixer.activation:
        packed = tape.activation(f"{name}.act_fn", packed, mixer.activation)
    parts = tape.split_tensor(f"{name}.split", packed, "split", ((1, tokens, width),) * 3)
    query, key, value = (tape.split_heads(name, part, heads) for part in parts)
    if mixer.has_head_norms:
        query = add_norm(tape, f"{name}.query_layernorm", "rms", query)
        key = add_norm(tape, f"{name}.key_layernorm", "rms", key)
    output = tape.op(
        f"{name}.lightning_attention", "state_space_dual", value, key, query, out=value.shape, origin="function",
        chunk=mixer.chunk, state_elements=heads * size * size if tape.lengths.uses_cache else 0,
    )  # fmt: skip
    if tape.lengths.uses_cache:
        cache_input = Blob((1, 0, 1), len(tape.layers) - 1)  # the mixer reads and writes its state
        tape.op(f"{name}.cache", "cache", cache_input, out=(1, heads, size, size), origin="method")
    output = tape.view(name, output, (1, tokens, width), "reshape", "copy")
    output = add_norm(tape, f"{name}.{mixer.norm}", "rms", output)
    gate = tape.linear(f"{name}.{mixer.gate}", x, width, bias=False)
    gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
    output = tape.op(f"{name}.mul", "mul", gate, output)
    return tape.row_parallel_output(name, tape.linear(f"{name}.{mixer.output}", output, hidden_size, bias=False))


def _limit(tape: Tape, name: str, x: Blob) -> Blob:
    """Add the limit of gates by a scaled hyperbolic tangent (Beck et al. 2025, xLSTM 7B, section 3.2)."""
    x = tape.op(f"{name}.div", "div", x)
    x = tape.op(f"{name}.tanh", "tanh", x, origin="function")
    return tape.op(f"{name}.mul", "mul", x)


def add_short_convolution(tape: Tape, name: str, mixer: ShortConvolution, x: Blob) -> Blob:
    """Add a gated causal convolution (LFM2, 2025): projection to two gates and values, convolution, projection."""
    hidden_size, tokens = x.shape[-1], tape.lengths.queries
    channels = tape.shard_size(hidden_size)
    x = tape.column_parallel_input(name, x)
    packed = tape.linear(f"{name}.in_proj", x, 3 * channels, mixer.bias)
    packed = tape.view(name, packed, (1, 3 * channels, tokens), "transpose")
    shapes = ((1, channels, tokens),) * 3
    before, after, values = tape.split_tensor(f"{name}.chunk", packed, "chunk", shapes, "method")
    values = tape.op(f"{name}.mul", "mul", before, values)
    weights: tuple[tuple[int, ...], ...] = ((channels, 1, mixer.convolution),)
    if mixer.bias:
        weights += ((channels,),)
    values = tape.op(f"{name}.conv", "conv1d", values, weights=weights, origin="module:Conv1d", groups=channels)
    if tape.lengths.uses_cache:
        state = (1, channels, mixer.convolution)
        tape.op(f"{name}.cache", "cache", Blob((1, channels, 1), values.parent), out=state, origin="method")
    output = tape.op(f"{name}.mul", "mul", after, values)
    output = tape.view(name, output, (1, tokens, channels), "contiguous", "copy")
    output = tape.linear(f"{name}.out_proj", output, hidden_size, mixer.bias)
    return tape.row_parallel_output(name, output)


def _add_convolution(tape: Tape, name: str, x: Blob, taps: int, has_bias: bool) -> Blob:
    """Add a causal depthwise convolution over the tokens and its SiLU activation; `x` is ``(1, channels, tokens)``."""
    channels = x.shape[1]
    weights: tuple[tuple[int, ...], ...] = ((channels, 1, taps),)
    if has_bias:
        weights += ((channels,),)
    x = tape.op(f"{name}.conv1d", "conv1d", x, weights=weights, origin="module:Conv1d", groups=channels)
    return tape.op(f"{name}.act", "silu", x, origin="function")


def _normalise_heads(tape: Tape, name: str, x: Blob, heads: int, repeated_heads: int) -> Blob:
    """Add the L2 norm of queries or keys, and repeat their heads to the number of value heads."""
    tokens = x.shape[1]
    size = x.shape[-1] // heads
    x = tape.view(name, x, (1, heads, tokens, size))
    squared = tape.op(f"{name}.mul", "mul", x, x)
    total = tape.op(f"{name}.sum", "reduce", squared, out=(1, heads, tokens, 1), origin="method", function="sum")
    factor = tape.op(f"{name}.rsqrt", "rsqrt", total, origin="function")
    x = tape.op(f"{name}.mul", "mul", x, factor)
    if repeated_heads == heads:
        return x
    return tape.view(name, x, (1, repeated_heads, tokens, size), "repeat_interleave", "copy")


def _add_state(tape: Tape, name: str, state: tuple[int, ...], convolution: tuple[int, ...]) -> None:
    """Add the state and the last inputs of the convolution to the cache, in the phases that have one.

    The bytes of reading and writing the state are those of the mixer; here only the few convolution inputs move.
    """
    if not tape.lengths.uses_cache:
        return
    cache_input = Blob((1, convolution[1], 1), len(tape.layers) - 1)
    tape.op(f"{name}.cache", "cache", cache_input, out=state, origin="method")
    tape.layers[-1] = tape.layers[-1]._replace(outputs=(state, convolution))
