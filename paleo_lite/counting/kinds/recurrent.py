"""Sequence mixers whose cost grows linearly with the sequence: state-space models and linear attention.

Each kind is the fused kernel that the authors published, not the loop over tokens of a reference implementation. With a
sequence of one token, as in the decode phase, the formulas give the cost of one update of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..layer import Cost, Gemm, Kind, Layer, Op, PassCost, Saved, needed_cost


def selective_scan(op: Op) -> Cost:
    """Count the selective scan of Mamba (Gu and Dao 2023) with D channels, N states per channel and T tokens.

    FLOPs = 9 T D N + 2 T D, as ``selective_scan_flop_jit`` of the authors' benchmark counts them: discretisation, the
    recurrence and the output, then the skip connection and the gate. Inputs are the values and the step sizes
    ``(1, D, T)``, the input and output matrices ``(1, N, T)`` and the gate ``(1, D, T)``. The backward pass recomputes
    the states: it takes twice the operations.
    """
    elements = op.inputs[0]
    states = op.attributes["states"]
    flops = 9 * elements * states + 2 * elements
    state = _state_elements(op)
    forward = PassCost(flops, 0, op.x + op.w + state, op.y + state)
    backward = PassCost(2 * flops, 0, op.x + op.w + op.y, op.x)
    return needed_cost(op, forward, backward)


def state_space_dual(op: Op) -> Cost:
    """Count the chunked state-space dual of Mamba 2 (Dao and Gu 2024, listing 1).

    With H heads of P elements, G groups of N states, T tokens and chunks of Q tokens::

        MACs = T Q (G N + H P) + 2 T H N P

    scores of outputs and inputs within a chunk, their product with the values, the state at the end of each chunk, and
    the output of the state at its start. The decay takes 4 FLOPs per score. Inputs are the values ``(1, H, T, P)``, the
    input and output matrices ``(1, G, T, N)`` and the step sizes ``(1, H, T)``.
    """
    values, matrices = op.layer.inputs[0], op.layer.inputs[1]
    heads, tokens, size = values[1:]
    groups, _, states = matrices[1:]
    chunk = min(op.attributes["chunk"], tokens)
    within = tokens * chunk * (groups * states + heads * size)
    across = 2 * tokens * heads * states * size
    macs = op.samples * (within + across)
    flops = 2 * macs + op.samples * 4 * heads * tokens * chunk
    state = _state_elements(op)
    forward = PassCost(flops, macs, op.x + op.w + state, op.y + state)
    backward = PassCost(2 * flops, 2 * macs, op.x + op.w + op.y, op.x)
    return needed_cost(op, forward, backward)


def gated_delta_rule(op: Op) -> Cost:
    """Count the chunked gated delta rule (Yang et al. 2024, section 3.3).

    With H heads, keys of K and values of V elements, T tokens and chunks of Q tokens::

        MACs = T H (Q (3 K + 2 V) + Q^2 / 3 + 3 K V)

    products of keys with keys and queries with keys within a chunk, the inverse of a triangular matrix and its products
    with keys and values, the output within the chunk, and three products with the state. Inputs are queries and keys
    ``(1, H, T, K)``, values ``(1, H, T, V)`` and two gates ``(1, H, T)``.
    """
    keys, values = op.layer.inputs[1], op.layer.inputs[2]
    heads, tokens, key_size = keys[1:]
    value_size = values[-1]
    chunk = min(op.attributes["chunk"], tokens)
    within = chunk * (3 * key_size + 2 * value_size) + chunk * chunk // 3
    if tokens == 1:
        within = 0
    macs = op.samples * tokens * heads * (within + 3 * key_size * value_size)
    flops = 2 * macs + op.samples * 4 * heads * tokens * chunk
    state = _state_elements(op)
    forward = PassCost(flops, macs, op.x + op.w + state, op.y + state)
    backward = PassCost(2 * flops, 2 * macs, op.x + op.w + op.y, op.x)
    return needed_cost(op, forward, backward)


def _state_elements(op: Op) -> int:
    """Return the elements of the state that are read from the cache and written back."""
    return int(op.samples * op.attributes.get("state_elements", 0))


def saved_by_mixer(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: all inputs; the states are recomputed in the backward pass."""
    return Saved(tuple(range(len(layer.inputs))))


def dual_gemm(layer: Layer, pass_name: str) -> Gemm:
    """Return the product of scores within chunks, the largest of a state-space dual or a delta rule."""
    left_shape = layer.inputs[1]
    tokens, inner = left_shape[-2], left_shape[-1]
    chunk = min(layer.attributes["chunk"], tokens)
    chunks = prod(left_shape[:-2]) * max(tokens // chunk, 1)
    return Gemm(chunk, chunk, inner, chunks, "groups")


KINDS = (
    Kind("selective_scan", rule=selective_scan, work_class="elementwise", saves=saved_by_mixer, fusion="alone",
        group="attention", profile_kind="attention", preserves_sharding=True),
    Kind("state_space_dual", rule=state_space_dual, work_class="attention", saves=saved_by_mixer, fusion="alone",
        group="attention", profile_kind="attention", preserves_sharding=True, gemm=dual_gemm),
    Kind("gated_delta_rule", rule=gated_delta_rule, work_class="attention", saves=saved_by_mixer, fusion="alone",
        group="attention", profile_kind="attention", preserves_sharding=True, gemm=dual_gemm),
)  # fmt: skip
