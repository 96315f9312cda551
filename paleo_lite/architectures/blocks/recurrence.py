"""Mixers with a state for each channel: the gated linear recurrence of Griffin, and RWKV-4.

Each recurrence is one kernel that reads its inputs and writes its outputs once, as the authors' kernels do; the few
operations per element are counted as one addition.
"""

from __future__ import annotations

from ..builder import Blob
from ..tape import Tape
from .feed_forward import mix_with_shifted
from .mixer_records import LinearRecurrence, TimeMix


def add_linear_recurrence(tape: Tape, name: str, mixer: LinearRecurrence, x: Blob) -> Blob:
    """Add the recurrent block of Griffin (De et al. 2024, figure 2): a branch, a convolution, and the RG-LRU."""
    hidden_size, tokens = x.shape[-1], tape.lengths.queries
    width, heads = tape.shard_size(mixer.width), tape.shard_size(mixer.heads)
    x = tape.column_parallel_input(name, x)
    branch = tape.linear(f"{name}.linear_y", x, width)
    branch = tape.activation(f"{name}.act_fn", branch, mixer.activation)
    values = tape.linear(f"{name}.linear_x", x, width)
    values = tape.view(name, values, (1, width, tokens), "transpose")
    values = tape.op(
        f"{name}.conv_1d", "conv1d", values, weights=((width, 1, mixer.convolution), (width,)), origin="module:Conv1d",
        groups=width,
    )  # fmt: skip
    values = tape.view(name, values, (1, tokens, width), "transpose")
    gates = [_add_gate(tape, f"{name}.rg_lru.{part}_gate", heads, values) for part in ("input", "recurrent")]
    decay = tape.op(f"{name}.rg_lru.recurrent_param", "mul", gates[1], weights=((width,),))
    decay = tape.op(f"{name}.rg_lru.exp", "exp", decay, origin="function")
    gated = tape.op(f"{name}.rg_lru.mul", "mul", values, gates[0])
    weight = tape.op(f"{name}.rg_lru.sqrt", "sqrt", decay, origin="function")
    gated = tape.op(f"{name}.rg_lru.mul", "mul", gated, weight)
    states = tape.op(f"{name}.rg_lru.scan", "scan", gated, decay, origin="function", function="linear_recurrence")
    _add_state(tape, name, states, (1, width, mixer.convolution))
    output = tape.op(f"{name}.mul", "mul", states, branch)
    return tape.row_parallel_output(name, tape.linear(f"{name}.linear_out", output, hidden_size))


def _add_gate(tape: Tape, name: str, heads: int, x: Blob) -> Blob:
    """Add a gate whose matrix is block-diagonal."""
    _, tokens, width = x.shape
    size = width // heads
    blocks = tape.view(name, x, (heads, tokens, size), "permute")
    gate = tape.op(
        name, "matmul", blocks, weights=((heads, size, size), (heads, size)), origin="function", inner=size, bias=True,
        function="baddbmm",
    )  # fmt: skip
    gate = tape.view(name, gate, (1, tokens, width), "reshape", "copy")
    return tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")


def add_time_mix(tape: Tape, name: str, mixer: TimeMix, x: Blob) -> Blob:
    """Add the attention-free mixer of RWKV-4 (Peng et al. 2023, equations 11 to 16)."""
    hidden_size, width = x.shape[-1], tape.shard_size(mixer.width)
    x = tape.column_parallel_input(name, x)
    before = tape.op(f"{name}.time_shift", "pad", x, origin="module:ZeroPad2d")
    parts = ("key", "value", "receptance")
    mixed = [mix_with_shifted(tape, name, part, x, before) for part in parts]
    key, value, gate = (tape.linear(f"{name}.{part}", blob, width, bias=False) for part, blob in zip(parts, mixed))
    gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
    output = tape.op(f"{name}.wkv", "scan", key, value, weights=((width,), (width,)), origin="function", function="wkv")
    _add_state(tape, name, output, (4, width))
    output = tape.op(f"{name}.mul", "mul", gate, output)
    return tape.row_parallel_output(name, tape.linear(f"{name}.output", output, hidden_size, bias=False))


def _add_state(tape: Tape, name: str, states: Blob, further_state: tuple[int, ...]) -> None:
    """Add the state of each channel to the cache, in the phases that have one, with further elements of the state."""
    if not tape.lengths.uses_cache:
        return
    width = states.shape[-1]
    tape.op(f"{name}.cache", "cache", Blob((1, 1, width), states.parent), out=(1, width), origin="method")
    tape.layers[-1] = tape.layers[-1]._replace(outputs=((1, width), further_state))
