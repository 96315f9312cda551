"""The layers after the blocks of an encoder, one step after another."""

from __future__ import annotations

from collections.abc import Iterable

from ...counting import CONSTANT
from ..blocks.norms import add_norm
from ..builder import Blob
from ..tape import Tape
from .encoder_records import (
    Activate,
    AddConstant,
    Dense,
    Drop,
    FirstToken,
    KeptTokens,
    MarkedToken,
    MeanOfTokens,
    Normalise,
    PoolByAttention,
    Scale,
    SplitAnswer,
    Squeeze,
    Step,
)  # fmt: skip

_WEIGHTED = (Dense, Normalise, PoolByAttention)
"""Steps with weights: the last one is the head, if it is a product."""


def add_head(
    tape: Tape,
    root: str,  # name of the module around the head, with a dot, or empty
    steps: Iterable[Step],
    x: Blob,  # output of the blocks, ``(1, tokens, hidden_size)``
) -> Blob:
    """Add the layers after the blocks."""
    steps = tuple(steps)
    last = max((index for index, step in enumerate(steps) if isinstance(step, _WEIGHTED)), default=None)
    for index, step in enumerate(steps):
        with tape.role("head" if index == last and isinstance(step, Dense) else "", ""):
            x = _add_step(tape, root, step, x)
    return x


def _add_step(tape: Tape, root: str, step: Step, x: Blob) -> Blob:
    if isinstance(step, FirstToken):
        module = f"{root}{step.module}." if step.module else root
        return tape.op(f"{module}getitem", "slice", x, out=(1, x.shape[-1]), function="getitem")
    if isinstance(step, MeanOfTokens):
        return _add_mean(tape, root, x)
    if isinstance(step, KeptTokens):
        return tape.op(f"{root}getitem", "slice", x, function="getitem")
    if isinstance(step, MarkedToken):
        return _add_marked_token(tape, root, x)
    if isinstance(step, Dense):
        outputs = step.outputs or x.shape[-1]
        new_parameters = None
        if step.is_tied:
            new_parameters = outputs if step.has_bias else 0
        return tape.linear(f"{root}{step.name}", x, outputs, step.has_bias, new_parameters=new_parameters)
    if isinstance(step, Activate):
        if step.is_module:
            function = step.function
            return tape.op(f"{root}{step.name}", function, x, origin=f"module:{function.capitalize()}")
        return tape.activation(f"{root}{step.name}", x, step.function)
    if isinstance(step, Normalise):
        return add_norm(tape, f"{root}{step.name}", step.kind, x)
    if isinstance(step, Drop):
        return tape.dropout(f"{root}{step.name}", x, step.probability)
    if isinstance(step, Scale):
        return tape.op(f"{root}mul", "mul", x) if step.applies else x
    if isinstance(step, AddConstant):
        return tape.op(f"{root}add", "add", x, Blob((1, x.shape[-1]), CONSTANT))
    if isinstance(step, SplitAnswer):
        return _split_answer(tape, root, x)
    if isinstance(step, Squeeze):
        return tape.view(f"{root}{step.name}", x, x.shape[:-1], "squeeze")
    assert isinstance(step, PoolByAttention)
    return _pool_by_attention(tape, f"{root}head", step, x) if step.applies else x


def _add_marked_token(tape: Tape, root: str, x: Blob) -> Blob:
    """Add the choice of the token with the largest index of the vocabulary."""
    module = root.rstrip(".")
    tape.op(f"{root}arange", "fill", out=(1,), origin="function", function="arange", scales=True)
    ids = Blob((1, x.shape[1]))
    ids = tape.view(module, ids, ids.shape, "to", "copy")
    tape.op(f"{root}argmax", "reduce", ids, out=(1,), origin="method", no_gradient=True, function="argmax")
    return tape.op(f"{root}getitem", "gather", x, out=(1, x.shape[-1]), function="getitem")


def _add_mean(tape: Tape, root: str, x: Blob) -> Blob:
    """Add the mean of the tokens that are no padding."""
    module = root.rstrip(".")
    _, tokens, hidden_size = x.shape
    mask = tape.op(f"{root}ones", "fill", out=(1, tokens), origin="function", function="ones", scales=True)
    wide = tape.view(module, mask, (1, tokens, 1), "unsqueeze")
    masked = tape.op(f"{root}mul", "mul", x, wide)
    total = tape.op(f"{root}sum", "reduce", masked, out=(1, hidden_size), origin="method", function="sum")
    count = tape.op(f"{root}sum", "reduce", mask, out=(1, 1), origin="method", function="sum")
    return tape.op(f"{root}div", "div", total, count)


def _split_answer(tape: Tape, root: str, x: Blob) -> Blob:
    """Add the split of two logits per token into contiguous vectors."""
    module = root.rstrip(".")
    shape = x.shape[:-1]
    parts = tape.split_tensor(f"{root}split", x, "split", ((*shape, 1),) * 2)
    for part in parts:
        x = tape.view(module, part, shape, "squeeze")
        x = tape.view(module, x, shape, "contiguous", "copy")
    return x


def _pool_by_attention(tape: Tape, name: str, pooling: PoolByAttention, x: Blob) -> Blob:
    """Add the layers that ``torch.nn.MultiheadAttention`` runs for one query, and a feed-forward layer."""
    module = f"{name}.attention"
    origin = "module:MultiheadAttention"
    _, tokens, hidden_size = x.shape
    heads = pooling.heads
    size = hidden_size // heads
    pair = (2, tokens, 1, hidden_size)

    def view(blob: Blob, shape: tuple[int, ...], function: str = "", kind: str = "view") -> Blob:
        """Add a view or a copy inside the attention module."""
        viewed = tape.view(module, blob, shape, function, kind)
        tape.layers[-1] = tape.layers[-1]._replace(origin=origin)
        return viewed

    probe_shape = (1, 1, hidden_size)
    probe = tape.op(
        f"{name}.probe", "copy", out=probe_shape, weights=(probe_shape,), origin="method", function="repeat",
        scales=True,
    )  # fmt: skip
    probe = view(probe, probe_shape, "transpose")
    x = view(x, (tokens, 1, hidden_size), "transpose")
    parameters = 3 * hidden_size * (hidden_size + 1)  # of one tensor, parts of which both products read
    query = tape.linear(f"{module}.in_proj", probe, hidden_size, origin=origin, new_parameters=parameters)
    packed = tape.linear(f"{module}.in_proj", x, 2 * hidden_size, origin=origin, new_parameters=0)
    packed = view(packed, (tokens, 1, 2, hidden_size), "unflatten")
    packed = view(packed, (1, tokens, 1, 2, hidden_size), "unsqueeze")
    packed = view(packed, (2, tokens, 1, 1, hidden_size), "transpose")
    packed = view(packed, pair, "squeeze")
    packed = view(packed, pair, "contiguous", "copy")
    key = view(packed, (tokens, 1, hidden_size), "getitem", "slice")
    value = view(packed, (tokens, 1, hidden_size), "getitem", "slice")
    states = []
    for blob in (query, key, value):
        rows = blob.shape[0]
        split = view(blob, (rows, heads, size))
        states.append(view(split, (heads, rows, size), "transpose"))
    query, key, value = states
    query = tape.op(f"{module}.mul", "mul", query, origin=origin)
    key = view(key, (heads, size, tokens), "transpose")
    scores = tape.op(
        f"{module}.bmm", "matmul", query, key, out=(heads, 1, tokens), origin=origin, inner=size, function="bmm"
    )
    weights = tape.op(f"{module}.softmax", "softmax", scores, origin=origin)
    mixed = tape.op(
        f"{module}.bmm", "matmul", weights, value, out=(heads, 1, size), origin=origin, inner=tokens, function="bmm"
    )
    mixed = view(mixed, (1, heads, size), "transpose")
    mixed = view(mixed, (1, hidden_size), "reshape")
    pooled = tape.linear(f"{module}.out_proj", mixed, hidden_size, origin=origin)
    pooled = view(pooled, probe_shape)
    weights = view(weights, (1, heads, 1, tokens))
    tape.op(f"{module}.mean", "reduce", weights, out=(1, 1, tokens), origin=origin, function="mean")
    pooled = view(pooled, probe_shape, "transpose")
    normal = tape.layer_norm(f"{name}.layernorm", pooled)
    inner = tape.linear(f"{name}.mlp.fc1", normal, pooling.intermediate_size)
    inner = tape.activation(f"{name}.mlp.activation_fn", inner, pooling.activation)
    fed = tape.linear(f"{name}.mlp.fc2", inner, hidden_size)
    output = tape.op(f"{name}.add", "add", pooled, fed)
    return tape.op(f"{name}.getitem", "slice", output, out=(1, hidden_size), function="getitem")
