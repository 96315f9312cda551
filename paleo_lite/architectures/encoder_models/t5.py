"""T5 (Raffel et al. 2020): an encoder and a decoder, with positions as a bias of the scores that all blocks share."""

from __future__ import annotations

from typing import Any

from ..builder import Blob
from ..tape import ACTIVATIONS, Config, Tape


def add_t5(tape: Tape, config: Config, head: bool) -> None:
    """Add the layers of T5; with `head`, the logits of the vocabulary."""
    hidden, tokens = config.positive_integer("d_model"), tape.lengths.queries
    rows, dropped = config.positive_integer("vocab_size"), config.fraction("dropout_rate", 0.1)
    depth = config.positive_integer("num_layers")
    encoded = None
    for stack, blocks in (("encoder", depth), ("decoder", config.positive_integer("num_decoder_layers", depth))):
        own = None if stack == "encoder" else 0
        x = tape.embedding(f"{stack}.embed_tokens", Blob((1, tokens)), rows, hidden, new_parameters=own)
        x = tape.dropout(f"{stack}.dropout", x, dropped)
        bias = across = None
        for index in range(blocks):
            at = f"{stack}.block.{index}.layer"
            normal = tape.rms_norm(f"{at}.0.layer_norm", x)
            x, bias = _t5_attention(tape, config, f"{at}.0", "SelfAttention", (x, normal, normal), bias)
            if encoded is not None:
                normal = tape.rms_norm(f"{at}.1.layer_norm", x)
                x, across = _t5_attention(tape, config, f"{at}.1", "EncDecAttention", (x, normal, encoded), across)
            x = _t5_feed(tape, config, f"{at}.{1 + (encoded is not None)}", x)
        x = tape.dropout(f"{stack}.dropout", tape.rms_norm(f"{stack}.final_layer_norm", x), dropped)
        encoded = x
    if head:
        tied = config.boolean("tie_word_embeddings", True)
        if tied:
            x = tape.op("mul", "mul", x)
        tape.linear("lm_head", x, rows, bias=False, new_parameters=0 if tied else None)


def _t5_attention(
    tape: Tape, config: Config, at: str, name: str, blobs: tuple[Blob, Blob, Blob], bias: Blob | None
) -> tuple[Blob, Blob]:
    """From what is added to, queries' and keys' source: the sum, and the bias of the scores for the next layers."""
    x, normal, source = blobs
    heads, size, inside = config.positive_integer("num_heads"), config.positive_integer("d_kv"), f"{at}.{name}"
    sources = {"q": normal, "k": source, "v": source}
    states = [
        tape.split_heads(inside, tape.linear(f"{inside}.{letter}", blob, heads * size, bias=False), heads)
        for letter, blob in sources.items()
    ]
    shape = (1, heads, normal.shape[1], source.shape[1])
    if bias is None and name == "EncDecAttention":
        bias = tape.op(f"{inside}.zeros", "fill", out=shape, origin="function", function="zeros")
    elif bias is None:
        bias = _relative_bias(tape, config, inside, shape, "decoder" in at)
    mask = _only_before(tape, inside, bias) if name == "SelfAttention" and "decoder" in at else bias
    if tape.fused and name == "SelfAttention":
        mask = tape.view(inside, mask, shape, "contiguous", "copy")
    made = tape.attention(inside, *states, mask=mask, causal=False)
    made = tape.dropout(f"{at}.dropout", tape.linear(f"{inside}.o", made, x.shape[-1], bias=False),
                        config.fraction("dropout_rate", 0.1))  # fmt: skip
    return tape.op(f"{at}.add", "add", x, made), bias


def _relative_bias(tape: Tape, config: Config, at: str, shape: tuple[int, ...], causal: bool) -> Blob:
    """A row of a table for each distance of two tokens; the distances are put into classes as T5 does."""
    _, heads, tokens, _ = shape
    square = (tokens, tokens)

    def op(kind: str, *blobs: Blob, origin: str = "operator", out: Any = square, name: str = "", **rest: Any) -> Blob:
        return tape.op(f"{at}.{name or kind}", kind, *blobs, out=out, origin=origin, **rest)

    row = op("add", _counted(tape, at, (tokens, 1)), out=(tokens, 1))
    far = op("sub", _counted(tape, at, (1, tokens)), row)
    ahead = None
    if causal:
        zero = op("fill", far, origin="function", name="zeros_like", function="zeros_like")
        near = op("neg", op("minimum", far, zero, origin="function"))
    else:
        ahead = op("compare", far, origin="method", name="gt", no_gradient=True, function="gt")
        ahead = op("add", op("mul", tape.view(at, ahead, square, "to", "copy")))
        near = op("abs", far, origin="function")
    small = op("compare", near, origin="method", name="lt", no_gradient=True, function="lt")
    large = op("div", tape.view(at, near, square, "float", "copy"))
    large = op("mul", op("div", op("log", large, origin="function")))
    large = op("add", tape.view(at, large, square, "to", "copy"))
    most = op("fill", large, origin="function", name="full_like", function="full_like")
    large = op("minimum", large, most, origin="function")
    which = op("where", small, near, large, origin="function")
    which = op("add", which) if ahead is None else op("add", ahead, which)
    table = (config.positive_integer("relative_attention_num_buckets", 32), heads)
    bias = tape.module(f"{at}.relative_attention_bias", "embedding", which, out=(*square, heads), weights=(table,))
    return tape.view(at, tape.view(at, bias, (heads, *square), "permute"), shape, "unsqueeze")


def _only_before(tape: Tape, at: str, bias: Blob) -> Blob:
    """The bias where a token attends to another, a large negative number where that comes after it."""
    tokens = bias.shape[-1]
    row, column = (_counted(tape, at, shape) for shape in ((tokens, 1), (1, tokens)))
    below = tape.op(
        f"{at}.ge", "compare", row, column, out=(tokens, tokens), origin="method", no_gradient=True, function="ge"
    )
    below = tape.view(at, below, (1, 1, tokens, tokens))
    return tape.op(f"{at}.where", "where", below, bias, origin="function", out=bias.shape)


def _counted(tape: Tape, at: str, shape: tuple[int, ...]) -> Blob:
    made = tape.op(f"{at}.arange", "fill", out=(max(shape),), origin="function", function="arange")
    return tape.view(at, made, shape, "getitem", "slice")


def _t5_feed(tape: Tape, config: Config, at: str, x: Blob) -> Blob:
    inner, dropped = config.positive_integer("d_ff"), config.fraction("dropout_rate", 0.1)
    projection = str(config.fields.get("feed_forward_proj", "relu"))
    gated, function = projection.startswith("gated-"), projection.rpartition("-")[2]
    if function not in ACTIVATIONS:
        raise config.fail(f"$.feed_forward_proj is {projection!r}, known are {', '.join(ACTIVATIONS)}, also gated-")
    function = "gelu_new" if projection == "gated-gelu" else function
    normal, at_feed = tape.rms_norm(f"{at}.layer_norm", x), f"{at}.DenseReluDense"
    made = tape.linear(f"{at_feed}.{'wi_0' if gated else 'wi'}", normal, inner, bias=False)
    made = tape.activation(f"{at_feed}.act", made, function)
    if gated:
        made = tape.op(f"{at_feed}.mul", "mul", made, tape.linear(f"{at_feed}.wi_1", normal, inner, bias=False))
    made = tape.linear(f"{at_feed}.wo", tape.dropout(f"{at_feed}.dropout", made, dropped), x.shape[-1], bias=False)
    return tape.op(f"{at}.add", "add", x, tape.dropout(f"{at}.dropout", made, dropped))
