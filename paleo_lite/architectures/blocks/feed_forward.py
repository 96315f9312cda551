"""Feed-forward parts of a block: plain, gated, and mixtures of experts."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...counting import CONSTANT
from ...counting.layer import Matrix
from ..builder import Blob
from ..tape import Tape
from .block_records import ChannelMix, Experts, FeedForward, HeadExperts
from .mixer_records import Projection
from .norms import add_norm


def add_feed_forward(
    tape: Tape,
    name: str,  # name of its module
    part: FeedForward,
    x: Blob,  # input, ``(..., hidden_size)``
) -> Blob:
    """Add a feed-forward part: column-parallel up, activation, row-parallel down."""
    x = tape.column_parallel_input(name, x)
    return tape.row_parallel_output(name, _multiply(tape, name, part, x))


def _multiply(tape: Tape, name: str, part: FeedForward, x: Blob) -> Blob:
    """Add the projections and the activation of one device."""
    hidden_size, inner_size = x.shape[-1], tape.shard_size(part.inner_size)
    activation = f"{name}.{part.activation_module}"
    if part.packed:
        gate_and_up = tape.linear(f"{name}.{part.packed}", x, 2 * inner_size, part.bias, matrix="gate and up")
        if part.adapter_rank is not None:
            gate_and_up = add_adapter(tape, f"{name}.{part.packed}_adapter_list", x, part.adapter_rank, gate_and_up)
        halves = tape.split_tensor(f"{name}.chunk", gate_and_up, "chunk", ((*x.shape[:-1], inner_size),) * 2, "method")
        gate = tape.activation(activation, halves[0], part.activation)
        inner = tape.op(f"{name}.mul", "mul", halves[1], gate)
    elif part.is_gated:
        gate = tape.linear(f"{name}.{part.gate}", x, inner_size, part.bias, matrix="gate")
        if part.is_limited:
            gate = tape.op(f"{name}.clamp", "clamp", gate, origin="method")
        if part.has_sparse_activation:
            gate = _cut_off(tape, name, gate)
        gate = tape.activation(activation, gate, part.activation)
        up = tape.linear(f"{name}.{part.up}", x, inner_size, part.bias, matrix="up")
        if part.is_limited:
            up = tape.op(f"{name}.clamp", "clamp", up, origin="method")
        inner = tape.op(f"{name}.mul", "mul", gate, up)
    else:
        inner = _project(tape, part, "up", f"{name}.{part.up}", x, inner_size, part.bias)
        inner = tape.activation(activation, inner, part.activation)
    if part.inner_norm:
        inner = add_norm(tape, f"{name}.{part.inner_norm}", "rms", inner)
    if part.inner_dropout is not None:
        inner = tape.dropout(f"{name}.{part.inner_dropout_module}", inner, part.inner_dropout, part.dropout_origin)
    bias = part.bias if part.output_bias is None else part.output_bias
    output = _project(tape, part, "down", f"{name}.{part.down}", inner, hidden_size, bias)
    if part.dropout is not None:
        output = tape.dropout(f"{name}.dropout", output, part.dropout, part.dropout_origin)
    return output


def add_projection(tape: Tape, name: str, part: Projection, x: Blob) -> Blob:
    """Add one matrix in place of a part, whole on every device."""
    return tape.linear(f"{name}.linear", x, x.shape[-1], part.bias)


def _project(tape: Tape, part: FeedForward, matrix: Matrix, name: str, x: Blob, width: int, bias: bool) -> Blob:
    """Add a projection, whose weight GPT-2 stores transposed."""
    if part.transposed_weights:
        return tape.transposed_linear(name, x, width, matrix)
    return tape.linear(name, x, width, bias, matrix=matrix)


def add_adapter(tape: Tape, name: str, x: Blob, rank: int, output: Blob) -> Blob:
    """Add a low-rank adapter to the output of a projection (Hu et al. 2022, section 4.1)."""
    inner = tape.linear(f"{name}.0", x, rank, bias=False)
    adapter_output = tape.linear(f"{name}.1", inner, output.shape[-1], bias=False)
    return tape.op(f"{name}.add", "add", output, adapter_output)


def _cut_off(tape: Tape, name: str, x: Blob) -> Blob:
    """Subtract a multiple of the deviation above the mean, and set what is negative to zero (Gemma 3n)."""
    per_token = (*x.shape[:-1], 1)
    mean = tape.op(f"{name}.mean", "reduce", x, out=per_token, origin="function", function="mean")
    deviation = tape.op(f"{name}.std", "reduce", x, out=per_token, origin="function", function="std")
    scaled = tape.op(f"{name}.mul", "mul", deviation)
    cutoff = tape.op(f"{name}.add", "add", mean, scaled)
    return tape.op(f"{name}.relu", "relu", tape.op(f"{name}.sub", "sub", x, cutoff, out=x.shape), origin="function")


def add_experts(tape: Tape, name: str, part: Experts, x: Blob, routed_by: Blob | None = None) -> Blob:
    """Add a mixture of experts: router, the chosen experts as grouped matrix products, and the shared experts.

    The router reads `routed_by`, by default `x`. Under tensor parallelism without sequence parallelism every expert is
    divided among the devices; with it each device has tokens of its own, and whole experts.
    """
    is_divided = not tape.is_sequence_parallel
    if is_divided:
        x = tape.column_parallel_input(name, x)
    hidden_size, tokens = x.shape[-1], x.shape[1]
    flat = tape.view(name, x, (tokens, hidden_size))
    read = flat if routed_by is None else tape.view(name, routed_by, (tokens, hidden_size))
    weights, chosen = add_router(tape, f"{name}.{part.router}", part, read)
    routed = flat if part.latent_size is None else tape.linear(f"{name}.fc1_latent_proj", flat, part.latent_size, False)
    module = f"{name}.{part.experts}"
    with tape.role("experts", module):
        output = _grouped_experts(tape, module, part, routed, weights, chosen, is_divided)
    if part.has_latent_norm:
        output = add_norm(tape, f"{name}.routed_expert_norm", "rms", output)
    if part.latent_size is not None:
        output = tape.linear(f"{name}.fc2_latent_proj", output, hidden_size, bias=False)
    output = tape.view(name, output, (1, tokens, hidden_size), "reshape")
    if part.has_output_bias:
        output = tape.op(name, "add", output, weights=((hidden_size,),))
    if part.other_count:
        _add_other_experts(tape, f"{name}.vision_moe", part, hidden_size, is_divided)
    if part.shared is not None:
        shared_name = f"{name}.{part.shared.module}"
        with tape.role("shared experts", shared_name):
            if is_divided:
                shared = _multiply(tape, shared_name, part.shared, x)
            else:  # the devices divide its matrices, and gather their tokens
                shared = add_feed_forward(tape, shared_name, part.shared, x)
        if part.has_shared_gate:
            gate = tape.linear(f"{shared_name}_gate", x, 1, bias=False)
            gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
            shared = tape.op(f"{name}.mul", "mul", gate, shared, out=shared.shape)
        output = tape.op(f"{name}.add", "add", output, shared)
    return tape.row_parallel_output(name, output) if is_divided else output


def _add_other_experts(tape: Tape, name: str, part: Experts, hidden_size: int, is_divided: bool) -> None:
    """Add the weights of the experts of another kind of token, which no token of text passes."""
    shards = tape.options.expert_tensor_parallel * (tape.ranks if is_divided else 1)
    inner_size, count = -(-part.other_inner_size // shards), part.other_count // tape.options.expert_parallel
    weights = ((count, hidden_size, 2 * inner_size), (count, inner_size, hidden_size))
    tape.op(f"{name}.experts", "view", out=(), weights=weights, origin="method", active=0)
    router = ((part.other_count, hidden_size), *(((part.other_count,),) if part.correction_is_parameter else ()))
    tape.op(f"{name}.gate", "view", out=(), weights=router, origin="method")


def add_router(tape: Tape, name: str, part: Experts, x: Blob) -> tuple[Blob, Blob]:
    """Add the router; return the weights and the indices of the chosen experts, ``(tokens, active)`` each."""
    with tape.role("router", name):
        return _add_router(tape, name, part, x)


def _add_router(tape: Tape, name: str, part: Experts, x: Blob) -> tuple[Blob, Blob]:
    tokens = x.shape[0]
    chosen_shape = (tokens, part.active)
    if part.has_scaled_router:
        x = add_norm(tape, f"{name}.norm", "rms", x, has_weight=False)
        x = tape.op(name, "mul", x, weights=((x.shape[-1],),))
        x = tape.op(f"{name}.mul", "mul", x)
    scores = tape.linear(name, x, part.count + part.idle, part.router_bias)
    if part.scoring in ("softmax", "sigmoid", "sqrtsoftplus"):
        scores = _score(tape, name, scores, part.scoring)
    choice = scores
    if part.score_correction and not part.is_hashed:
        correction = Blob((part.count + part.idle,), CONSTANT)  # a buffer, which no gradient changes
        weights_of = ((part.count,),) if part.correction_is_parameter else ()
        choice = tape.op(f"{name}.add", "add", scores, correction, weights=weights_of)
    if part.groups > 1:
        choice = _limit_to_groups(tape, name, choice, part)
    if part.is_hashed:
        chosen = tape.op(f"{name}.getitem", "gather", out=chosen_shape, function="getitem")
        weights = chosen
    else:
        weights, chosen = tape.split_tensor(f"{name}.topk", choice, "topk", (chosen_shape, chosen_shape))
    if part.score_correction or part.is_hashed:
        weights = tape.op(f"{name}.gather", "gather", scores, chosen, out=chosen_shape, origin="function")
    if part.scoring == "softmax_of_chosen":
        weights = _score(tape, name, weights, "softmax")
    if part.scoring == "sigmoid_of_chosen":
        weights = _score(tape, name, weights, "sigmoid")
    if part.is_normalised:
        total = tape.op(f"{name}.sum", "reduce", weights, out=(tokens, 1), origin="method", function="sum")
        weights = tape.op(f"{name}.div", "div", weights, total)
    if part.has_scaled_router:
        factors = tape.op(f"{name}.getitem", "gather", chosen, weights=((part.count,),), function="getitem")
        weights = tape.op(f"{name}.mul", "mul", weights, factors)
    return weights, chosen


def add_channel_mix(tape: Tape, name: str, part: ChannelMix, x: Blob) -> Blob:
    """Add the feed-forward part of RWKV-4, which also reads the token before each token."""
    hidden_size = x.shape[-1]
    x = tape.column_parallel_input(name, x)
    before = tape.op(f"{name}.time_shift", "pad", x, origin="module:ZeroPad2d")
    key, receptance = (mix_with_shifted(tape, name, part_name, x, before) for part_name in ("key", "receptance"))
    inner = tape.linear(f"{name}.key", key, tape.shard_size(part.inner_size), bias=False)
    inner = tape.op(f"{name}.square", "pow", tape.op(f"{name}.relu", "relu", inner, origin="function"))
    value = tape.linear(f"{name}.value", inner, hidden_size, bias=False)
    gate = tape.linear(f"{name}.receptance", receptance, hidden_size, bias=False)
    gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
    return tape.row_parallel_output(name, tape.op(f"{name}.mul", "mul", gate, value))


def mix_with_shifted(tape: Tape, name: str, part_name: str, x: Blob, before: Blob) -> Blob:
    """Add a learned mean of each token and the one before (RWKV-4)."""
    size = x.shape[-1]
    current = tape.op(f"{name}.time_mix_{part_name}", "mul", x, weights=((1, 1, size),))
    rest = tape.op(f"{name}.sub", "sub", out=(1, 1, size), origin="operator")
    other = tape.op(f"{name}.mul", "mul", before, rest, out=x.shape)
    return tape.op(f"{name}.add", "add", current, other)


def _score(tape: Tape, name: str, logits: Blob, function: str) -> Blob:
    if function == "softmax":
        return tape.softmax(name, logits)
    if function == "sqrtsoftplus":
        positive = tape.op(f"{name}.softplus", "softplus", logits, origin="function")
        return tape.op(f"{name}.sqrt", "sqrt", positive, origin="method")
    return tape.op(f"{name}.sigmoid", "sigmoid", logits, origin="function")


def _limit_to_groups(tape: Tape, name: str, scores: Blob, part: Experts) -> Blob:
    """Add the choice of groups before that of experts: scores of other groups are set to zero (DeepSeek-V3)."""
    tokens, per_group = scores.shape[0], part.count // part.groups
    grouped = tape.view(name, scores, (tokens, part.groups, per_group))
    best, _ = tape.split_tensor(f"{name}.topk", grouped, "topk", ((tokens, part.groups, 2),) * 2)
    per_group_score = tape.op(f"{name}.sum", "reduce", best, out=(tokens, part.groups), origin="method", function="sum")
    mask = tape.op(f"{name}.zeros_like", "fill", per_group_score, origin="function", function="zeros_like")
    mask = tape.view(name, mask, (tokens, part.groups, 1), "unsqueeze")
    mask = tape.view(name, mask, (tokens, part.groups, per_group), "expand")
    mask = tape.view(name, mask, scores.shape, "reshape", "copy")
    return tape.op(f"{name}.where", "where", scores, mask, out=scores.shape, origin="method")


def _grouped_experts(
    tape: Tape, name: str, part: Experts, x: Blob, weights: Blob, chosen: Blob, is_divided: bool
) -> Blob:
    """Add the experts: rows sorted by expert, two grouped matrix products, rows weighted, put back and summed."""
    tokens, hidden_size = x.shape
    options = tape.options
    shards = options.expert_tensor_parallel * (tape.ranks if is_divided else 1)
    inner_size = -(-part.inner_size // shards)
    sent = tokens * part.active
    rows = math.ceil(sent * options.expert_load)
    weights = tape.view(name, weights, (sent,), "reshape")
    chosen = tape.view(name, chosen, (sent,), "reshape")
    order = tape.op(f"{name}.floor_divide", "div", chosen, function="floor_divide")
    del order  # the index by which rows are gathered
    gathered = tape.op(f"{name}.getitem", "gather", x, out=(rows, hidden_size), function="getitem")
    weights = tape.op(f"{name}.getitem", "gather", weights, out=(rows,), function="getitem")
    gathered = tape.gather_expert_rows(name, tape.all_to_all(name, gathered))
    own_experts = part.count // options.expert_parallel
    if part.is_gated:
        up = _grouped_product(tape, f"{name}.gate_up_proj", part, gathered, own_experts, 2 * inner_size)
        halves = tape.split_tensor(f"{name}.chunk", up, "chunk", ((up.shape[0], inner_size),) * 2, "method")
        inner = _gate_experts(tape, name, part, halves)
    else:
        inner = _grouped_product(tape, f"{name}.up_proj", part, gathered, own_experts, inner_size)
        inner = tape.activation(f"{name}.act_fn", inner, part.activation)
    output = _grouped_product(tape, f"{name}.down_proj", part, inner, own_experts, hidden_size)
    output = tape.all_to_all(name, tape.scatter_expert_rows(name, output))
    factors = tape.view(name, weights, (rows, 1), "unsqueeze")
    output = tape.op(f"{name}.mul", "mul", output, factors)
    output = tape.op(f"{name}.getitem", "gather", output, out=(sent, hidden_size), function="getitem")
    output = tape.view(name, output, (tokens, part.active, hidden_size))
    return tape.op(f"{name}.sum", "reduce", output, out=(tokens, hidden_size), origin="method", function="sum")


def _gate_experts(tape: Tape, name: str, part: Experts, halves: list[Blob]) -> Blob:
    """Add the gated activation of the experts."""
    gate, up = halves
    if part.is_limited:
        gate = tape.op(f"{name}.clamp", "clamp", gate, origin="method")
        up = tape.op(f"{name}.clamp", "clamp", up, origin="method")
    if not part.is_clamped:
        gate = tape.activation(f"{name}.act_fn", gate, part.activation)
        return tape.op(f"{name}.mul", "mul", gate, up)
    gate = tape.op(f"{name}.clamp", "clamp", gate, origin="method")
    up = tape.op(f"{name}.clamp", "clamp", up, origin="method")
    scaled = tape.op(f"{name}.mul", "mul", gate)
    sigmoid = tape.op(f"{name}.sigmoid", "sigmoid", scaled, origin="function")
    gate = tape.op(f"{name}.mul", "mul", gate, sigmoid)
    up = tape.op(f"{name}.add", "add", up)
    return tape.op(f"{name}.mul", "mul", up, gate)


def add_grouped_product(tape: Tape, name: str, active: int, x: Blob, experts: int, columns: int) -> Blob:
    """Add a grouped matrix product, one matrix for each expert; `x` has a row for each expert that a token passes."""
    shape = (experts, x.shape[-1], columns)
    return tape.op(
        name, "grouped_matmul", x, out=(x.shape[0], columns), weights=(shape,), origin="function", active=active
    )


def _grouped_product(tape: Tape, name: str, part: Experts, x: Blob, experts: int, columns: int) -> Blob:
    """Add a grouped matrix product and its bias."""
    output = add_grouped_product(tape, name, part.active, x, experts, columns)
    if part.bias:
        bias = tape.op(f"{name}_bias", "gather", out=output.shape, weights=((experts, columns),), function="getitem")
        output = tape.op(f"{name}.add", "add", output, bias)
    return output


class Routes(NamedTuple):
    """The chosen experts of every token, and their weights; a row for each token and expert."""

    weights: Blob
    rows: int


def add_expert_queries(
    tape: Tape,
    name: str,  # name of the attention module
    experts: HeadExperts,
    x: Blob,  # input, ``(1, tokens, hidden_size)``
    width: int,  # width of all queries of a token
) -> tuple[Blob, Routes]:
    """Add the router and the query projections of the chosen experts.

    Return the queries, ``(1, tokens, width)``, and the way back.
    """
    module = f"{name}.{experts.module}"
    tokens, hidden_size = x.shape[1:]
    rows, active = tokens * experts.active, experts.active
    flat = tape.view(module, x, (tokens, hidden_size), "reshape")
    router = Experts(
        count=experts.count, active=active, inner_size=width // active, scoring="softmax_of_chosen", is_normalised=False
    )
    weights, _ = add_router(tape, f"{module}.{experts.router}", router, flat)
    weights = tape.view(module, weights, (rows,), "flatten")
    weights = tape.op(f"{module}.getitem", "gather", weights, function="getitem")
    gathered = tape.op(f"{module}.getitem", "gather", flat, out=(rows, hidden_size), function="getitem")
    query = add_grouped_product(tape, f"{module}.{experts.input}", active, gathered, experts.count, width // active)
    query = tape.op(f"{module}.getitem", "gather", query, function="getitem")
    return tape.view(module, query, (1, tokens, width)), Routes(weights, rows)


def add_expert_outputs(tape: Tape, name: str, experts: HeadExperts, x: Blob, routes: Routes, hidden_size: int) -> Blob:
    """Add the output projections of the chosen experts, the sum of their results by weight, and a bias."""
    module = f"{name}.{experts.module}"
    tokens, width = x.shape[1:]
    rows = tape.view(module, x, (routes.rows, width // experts.active), "reshape")
    rows = tape.op(f"{module}.getitem", "gather", rows, function="getitem")
    output = add_grouped_product(tape, f"{module}.{experts.output}", experts.active, rows, experts.count, hidden_size)
    factors = tape.view(module, routes.weights, (routes.rows, 1), "unsqueeze")
    output = tape.op(f"{module}.mul", "mul", output, factors)
    output = tape.view(module, output, (tokens, experts.active, hidden_size))
    output = tape.op(f"{module}.sum", "reduce", output, out=(tokens, hidden_size), origin="method", function="sum")
    output = tape.view(module, output, (1, tokens, hidden_size))
    return tape.op(module, "add", output, weights=((hidden_size,),))
