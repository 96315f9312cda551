"""Networks that write text, each as one function from a config to layers: LLaMA's family, GPT-2, GPT-NeoX, OPT.

With `head` the logits are computed, each function giving what the class ``...ForCausalLM`` of ``transformers`` does.
"""

from __future__ import annotations

from typing import Any

from ..counting import CONSTANT
from .builder import Blob
from .tape import ACTIVATIONS, Config, Tape


def embedded(tape: Tape, name: str, tokens: Blob, rows: int, size: int, **rest: Any) -> Blob:
    return tape.module(name, "embedding", tokens, out=(*tokens.shape, size), weights=((rows, size),), **rest)


def _last(tape: Tape, blob: Blob) -> Blob:
    """What logits are computed of: every token, or where text is generated the last."""
    tokens = 1 if tape.lengths.cached else blob.shape[1]
    return tape.op("getitem", "slice", blob, out=(1, tokens, blob.shape[2]), function="getitem")


def _logits(tape: Tape, name: str, blob: Blob, config: Config, tied: bool) -> None:
    vocabulary = tape.share(config.whole("vocab_size"))
    tape.linear(name, _last(tape, tape.enter(name, blob)), vocabulary, bias=False, own=0 if tied else None)


def llama(
    tape: Tape, config: Config, head: bool, *, bias: bool = False, from_one: bool = False, normed: bool = False,
    tied: bool = False,
) -> None:  # fmt: skip
    """LLaMA and what came of it: RMS norms, rotary positions, grouped keys and values, a gated feed-forward part.

    `bias` is that of queries, keys and values (Qwen 2), `normed` whether queries and keys are (Qwen 3), `from_one`
    Gemma's norm and its scaled embedding, `tied` whether the logits' weight is the embedding's unless the config says.
    """
    root = "model." if head else ""
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    kv_heads = config.whole("num_key_value_heads", heads)
    size = config.maybe("head_dim") or config.divided("num_attention_heads", hidden, "hidden_size")
    if heads % kv_heads:
        raise config.fail(f"$.num_key_value_heads is {kv_heads}, which does not divide $.num_attention_heads, {heads}")
    bias, out_bias = config.flag("attention_bias", bias), config.flag("attention_bias", False)
    own, own_kv = tape.share(heads), tape.share(kv_heads)
    window = config.maybe("sliding_window") if config.flag("use_sliding_window", not bias and not normed) else None
    x = Blob((1, tape.lengths.queries))
    name = f"{root}embed_tokens"
    x = embedded(
        tape, name, x, tape.share(config.whole("vocab_size")), hidden, **({"origin": "function"} if from_one else {})
    )
    x = tape.leave(name, x)
    if from_one:
        x = tape.op(f"{name}.mul", "mul", x, Blob((), CONSTANT))
    positions = tape.positions(root.rstrip("."))
    mask = tape.mask(root.rstrip("."), positions, window)
    tables = tape.rotary_tables(f"{root}rotary_emb", positions, size)
    for index in range(config.whole("num_hidden_layers")):
        at = f"{root}layers.{index}"
        normal, attn = tape.rms_norm(f"{at}.input_layernorm", x, from_one), f"{at}.self_attn"
        normal = tape.enter(attn, normal)
        states = []
        for letter, count, has_norm in (("q", own, normed), ("k", own_kv, normed), ("v", own_kv, False)):
            made = tape.linear(f"{attn}.{letter}_proj", normal, count * size, bias)
            if has_norm:
                made = tape.view(attn, made, (1, tape.lengths.queries, count, size))
                made = tape.rms_norm(f"{attn}.{letter}_norm", made)
                made = tape.view(attn, made, (1, count, tape.lengths.queries, size), "transpose")
            else:
                made = tape.heads(attn, made, count)
            states.append(made)
        query, key = tape.rotated(attn, states[:2], tables)
        made = tape.attended(
            attn, query, key, states[2], mask=mask, window=window, dropout=config.share("attention_dropout", 0.0)
        )
        made = tape.leave(attn, tape.linear(f"{attn}.o_proj", made, hidden, out_bias))
        x = tape.op(f"{at}.add", "add", x, made)
        normal = tape.rms_norm(f"{at}.post_attention_layernorm", x, from_one)
        feed = _experts if "num_local_experts" in config.fields else _gated
        x = tape.op(f"{at}.add", "add", x, feed(tape, config, f"{at}.mlp", normal))
    x = tape.rms_norm(f"{root}norm", x, from_one)
    if head:
        _logits(tape, "lm_head", x, config, config.flag("tie_word_embeddings", tied))


def _gated(tape: Tape, config: Config, at: str, x: Blob) -> Blob:
    inner, bias = tape.share(config.whole("intermediate_size")), config.flag("mlp_bias", False)
    hidden, x = x.shape[-1], tape.enter(at, x)
    hidden_act = config.fields.get("hidden_activation") or config.fields.get("hidden_act")
    default = "gelu_pytorch_tanh" if config.fields["model_type"] == "gemma" else "silu"
    function = default if default != "silu" else (hidden_act or "silu")
    if function not in ACTIVATIONS:
        raise config.fail(f"$.hidden_act is {function!r}, known are {', '.join(ACTIVATIONS)}")
    gate = tape.activation(f"{at}.act_fn", tape.linear(f"{at}.gate_proj", x, inner, bias), function)
    up = tape.linear(f"{at}.up_proj", x, inner, bias)
    return tape.leave(at, tape.linear(f"{at}.down_proj", tape.op(f"{at}.mul", "mul", gate, up), hidden, bias))


def _experts(tape: Tape, config: Config, at: str, x: Blob) -> Blob:
    """A choice of experts for each token (Mixtral), their products grouped by expert."""
    is_divided = not tape.sequence  # else every device has tokens of its own for whole experts
    hidden, inner = x.shape[-1], config.whole("intermediate_size")
    if is_divided:
        inner, x = tape.share(inner), tape.enter(at, x)
    experts, active = config.whole("num_local_experts"), config.whole("num_experts_per_tok", 2)
    if active > experts:
        raise config.fail(f"$.num_experts_per_tok is {active}, more than $.num_local_experts, {experts}")
    tokens = x.shape[1]
    chosen, inside = tokens * active, f"{at}.experts"
    flat = tape.view(at, x, (tokens, hidden))
    scores = tape.view(f"{at}.gate", flat, (tokens, hidden), "reshape")
    scores = tape.linear(f"{at}.gate", scores, experts, bias=False)
    scores = tape.softmax(f"{at}.gate", scores)
    weights, which = tape.parts(f"{at}.gate.topk", scores, "topk", ((tokens, active), (tokens, active)))
    total = tape.op(f"{at}.gate.sum", "reduce", weights, out=(tokens, 1), origin="method", function="sum")
    weights = tape.op(f"{at}.gate.div", "div", weights, total)
    weights, which = (tape.view(inside, blob, (chosen,), "reshape") for blob in (weights, which))
    rows = tape.op(f"{inside}.floor_divide", "div", which, function="floor_divide")
    rows = tape.op(f"{inside}.getitem", "gather", flat, out=(chosen, hidden), function="getitem")
    weights = tape.op(f"{inside}.getitem", "gather", weights, function="getitem")
    rows = tape.routed(inside, rows)
    own = experts // tape.split.experts
    shapes = {"gate_up_proj": (own, hidden, 2 * inner), "down_proj": (own, inner, hidden)}

    def grouped(name: str, blob: Blob) -> Blob:
        shape = shapes[name]
        return tape.op(
            f"{inside}.{name}", "grouped_matmul", blob, out=(chosen, shape[-1]), weights=(shape,), origin="function",
            active=active,
        )  # fmt: skip

    halves = tape.parts(f"{inside}.chunk", grouped("gate_up_proj", rows), "chunk", ((chosen, inner),) * 2, "method")
    gate = tape.activation(f"{inside}.act_fn", halves[0], config.function("hidden_act", "silu"))
    made = grouped("down_proj", tape.op(f"{inside}.mul", "mul", gate, halves[1]))
    made = tape.routed(inside, made)
    made = tape.op(f"{inside}.mul", "mul", made, tape.view(inside, weights, (chosen, 1), "unsqueeze"))
    made = tape.op(f"{inside}.getitem", "gather", made, function="getitem")
    made = tape.view(inside, made, (tokens, active, hidden))
    made = tape.op(f"{inside}.sum", "reduce", made, out=(tokens, hidden), origin="method", function="sum")
    made = tape.view(at, made, (1, tokens, hidden), "reshape")
    return tape.leave(at, made) if is_divided else made


def gpt2(tape: Tape, config: Config, head: bool) -> None:
    """GPT-2 and GPT-3: learned positions, layer norms before each part, four times as wide in between."""
    root = "transformer" if head else ""
    at_root = f"{root}." if root else ""
    hidden, heads = config.whole("n_embd"), config.whole("n_head")
    config.divided("n_head", hidden, "n_embd")
    dropped, tokens = config.share("resid_pdrop", 0.1), tape.lengths.queries
    x = tape.view(root, Blob((1, tokens)), (1, tokens))
    x = embedded(tape, f"{at_root}wte", x, tape.share(config.whole("vocab_size")), hidden)
    x = tape.leave(f"{at_root}wte", x)
    positions = tape.positions(root)
    own = positions._replace(shape=(1, tape.tokens))
    placed = embedded(tape, f"{at_root}wpe", own, config.whole("n_positions", 1024), hidden)
    x = tape.op(f"{at_root}add", "add", x, placed)
    mask = tape.mask(root, positions)
    x = tape.dropout(f"{at_root}drop", x, config.share("embd_pdrop", 0.1))
    for index in range(config.whole("n_layer")):
        at = f"{at_root}h.{index}"
        attn = f"{at}.attn"
        made = tape.enter(attn, tape.layer_norm(f"{at}.ln_1", x))
        made = tape.transposed_linear(f"{attn}.c_attn", made, 3 * tape.share(hidden))
        thirds = tape.parts(f"{attn}.split", made, "split", ((1, tokens, tape.share(hidden)),) * 3)
        key, value, query = (tape.heads(attn, thirds[number], tape.share(heads)) for number in (1, 2, 0))
        made = tape.attended(
            attn, query, key, value, mask=mask, dropout=config.share("attn_pdrop", 0.1), copied="reshape"
        )
        made = tape.leave(attn, tape.transposed_linear(f"{attn}.c_proj", made, hidden))
        made = tape.dropout(f"{attn}.resid_dropout", made, dropped)
        x = tape.op(f"{at}.add", "add", made, x)
        made = tape.enter(f"{at}.mlp", tape.layer_norm(f"{at}.ln_2", x))
        made = tape.transposed_linear(f"{at}.mlp.c_fc", made, tape.share(config.whole("n_inner", 4 * hidden)))
        made = tape.activation(f"{at}.mlp.act", made, config.function("activation_function", "gelu_new"))
        made = tape.leave(f"{at}.mlp", tape.transposed_linear(f"{at}.mlp.c_proj", made, hidden))
        made = tape.dropout(f"{at}.mlp.dropout", made, dropped)
        x = tape.op(f"{at}.add", "add", x, made)
    x = tape.layer_norm(f"{at_root}ln_f", x)
    x = tape.view(root, x, x.shape)
    if head:
        _logits(tape, "lm_head", x, config, config.flag("tie_word_embeddings", True))


def gpt_neox(tape: Tape, config: Config, head: bool) -> None:
    """GPT-NeoX: a share of each head rotated, attention and feed-forward part side by side."""
    root = "gpt_neox." if head else ""
    hidden, heads, tokens = config.whole("hidden_size"), config.whole("num_attention_heads"), tape.lengths.queries
    size = config.divided("num_attention_heads", hidden, "hidden_size")
    rotated = int(size * config.share("rotary_pct", 0.25)) // 2 * 2
    dropped = config.share("hidden_dropout", 0.0)
    x = embedded(tape, f"{root}embed_in", Blob((1, tokens)), config.whole("vocab_size"), hidden)
    positions = tape.positions(root.rstrip("."))
    mask = tape.mask(root.rstrip("."), positions)
    x = tape.dropout(f"{root}emb_dropout", x, dropped)
    tables = tape.rotary_tables(f"{root}rotary_emb", positions, rotated)
    for index in range(config.whole("num_hidden_layers")):
        at = f"{root}layers.{index}"
        attn = f"{at}.attention"
        made = tape.linear(
            f"{attn}.query_key_value", tape.layer_norm(f"{at}.input_layernorm", x), 3 * hidden,
            config.flag("attention_bias", True),
        )  # fmt: skip
        made = tape.view(attn, made, (1, tokens, heads, 3 * size))
        made = tape.view(attn, made, (1, heads, tokens, 3 * size), "transpose")
        thirds = tape.parts(f"{attn}.chunk", made, "chunk", ((1, heads, tokens, size),) * 3, "method")
        turned = []
        for third in thirds[:2]:
            turned.append(tape.view(attn, third, (1, heads, tokens, rotated), "getitem", "slice"))
            turned.append(tape.view(attn, third, (1, heads, tokens, size - rotated), "getitem", "slice"))
        query, key = (
            tape.op(f"{attn}.concat", "concat", made, rest, out=thirds[0].shape, origin="function")
            for made, rest in zip(tape.rotated(attn, turned[::2], tables), turned[1::2])
        )
        made = tape.attended(attn, query, key, thirds[2], mask=mask, dropout=config.share("attention_dropout", 0.0))
        made = tape.linear(f"{attn}.dense", made, hidden, config.flag("attention_bias", True))
        made = tape.dropout(f"{at}.post_attention_dropout", made, dropped)
        beside = config.flag("use_parallel_residual", True)
        if not beside:
            made = x = tape.op(f"{at}.add", "add", made, x)
        inner = tape.layer_norm(f"{at}.post_attention_layernorm", x)
        inner = tape.linear(f"{at}.mlp.dense_h_to_4h", inner, config.whole("intermediate_size"))
        inner = tape.activation(f"{at}.mlp.act", inner, config.function("hidden_act", "gelu"))
        inner = tape.dropout(f"{at}.post_mlp_dropout", tape.linear(f"{at}.mlp.dense_4h_to_h", inner, hidden), dropped)
        if beside:
            inner = tape.op(f"{at}.add", "add", inner, made)
        x = tape.op(f"{at}.add", "add", inner, x)
    x = tape.layer_norm(f"{root}final_layer_norm", x)
    if head:
        _logits(tape, "lm_head", x, config, config.flag("tie_word_embeddings", False))


def opt(tape: Tape, config: Config, head: bool) -> None:
    """OPT: learned positions, of which the first two are for padding."""
    root = "model.decoder" if head else "decoder"
    hidden, heads, tokens = config.whole("hidden_size"), config.whole("num_attention_heads"), tape.lengths.queries
    config.divided("num_attention_heads", hidden, "hidden_size")
    if config.whole("word_embed_proj_dim", hidden) != hidden or not config.flag("do_layer_norm_before", True):
        raise config.fail("OPT with embeddings of another size, or with norms after each part (350m), is not read")
    dropped = config.share("dropout", 0.1)
    x = tape.view(root, Blob((1, tokens)), (1, tokens))
    x = embedded(tape, f"{root}.embed_tokens", x, config.whole("vocab_size"), hidden)
    ones = tape.op(f"{root}.ones", "fill", out=(1, tokens), origin="function", function="ones", scales=True)
    positions = tape.op(f"{root}.cumsum", "scan", ones, origin="function", function="cumsum")
    positions = tape.op(f"{root}.sub", "sub", tape.op(f"{root}.mul", "mul", positions, ones))
    positions = tape.view(root, positions, positions.shape, "to_copy", "copy")
    positions = tape.view(root, positions, (1, tokens), "getitem", "slice")
    positions = tape.op(f"{root}.embed_positions.add", "add", positions)
    rows = config.whole("max_position_embeddings", 2048) + 2
    positioned = embedded(tape, f"{root}.embed_positions", positions, rows, hidden, origin="function")
    x = tape.op(f"{root}.add", "add", x, positioned)
    mask = tape.mask(root)
    for index in range(config.whole("num_hidden_layers")):
        at = f"{root}.layers.{index}"
        attn = f"{at}.self_attn"
        normal = tape.layer_norm(f"{at}.self_attn_layer_norm", x)
        query = tape.op(f"{attn}.mul", "mul", tape.linear(f"{attn}.q_proj", normal, hidden))
        query = tape.heads(attn, query, heads)
        key, value = (tape.linear(f"{attn}.{part}_proj", normal, hidden) for part in "kv")
        key, value = (tape.heads(attn, part, heads) for part in (key, value))
        made = tape.attended(attn, query, key, value, mask=mask, dropout=config.share("attention_dropout", 0.0))
        made = tape.dropout(f"{at}.dropout", tape.linear(f"{attn}.out_proj", made, hidden), dropped, "function")
        x = tape.op(f"{at}.add", "add", x, made)
        x = tape.view(at, x, (tokens, hidden), "reshape")
        inner = tape.linear(f"{at}.fc1", tape.layer_norm(f"{at}.final_layer_norm", x), config.whole("ffn_dim"))
        inner = tape.activation(f"{at}.activation_fn", inner, config.function("activation_function", "relu"))
        inner = tape.dropout(f"{at}.dropout", tape.linear(f"{at}.fc2", inner, hidden), dropped, "function")
        x = tape.view(at, tape.op(f"{at}.add", "add", x, inner), (1, tokens, hidden))
    x = tape.layer_norm(f"{root}.final_layer_norm", x)
    if head:
        _logits(tape, "lm_head", x, config, config.flag("tie_word_embeddings", True))
