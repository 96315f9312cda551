"""Validation of the kernels of serving engines against published operations of decoder layers, summed to layers.

``modern/llm_layer_ops.csv.gz`` contains measurements of microsoft/vidur 7d47513 and casys-kaist/LLMServingSim 5daddb2
(both MIT) in half precision. No parameter was fitted to them. Norms and rotary embeddings of LLMServingSim are omitted,
because it ran them unfused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from paleo_lite.architectures import Network
from paleo_lite.calibration.choose import choose_model
from paleo_lite.counting import INPUT, Layer
from paleo_lite.counting.work import ENGINE
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.intervals import interval_of
from paleo_lite.timing.workload import Workload

from ..tables import rows_of

DEVICES = {
    "A100 SXM4 80GB": "a100-sxm-80gb", "H100 SXM5 80GB": "h100-sxm", "H100": "h100-sxm", "RTX 3090": "rtx3090",
    "RTX A6000": "rtx-a6000",
}  # fmt: skip
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Numbers of tokens that are predicted."""

MAX_DECODE_TOKENS = 64
"""Largest number of tokens of a step that counts as decoding."""


class DecoderShape(NamedTuple):
    """Sizes of a decoder layer on one tensor-parallel device, and the number of tokens."""

    hidden: int
    inner: int
    queries: int
    keys: int
    vocabulary: int
    tokens: int


class DecoderLayer(NamedTuple):
    """Sum of the operations of a layer: measured and predicted seconds, and the ends of the 90% interval."""

    source: str
    device: str
    model: str
    tokens: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float


def _linear(outputs: int, inputs: int, tokens: int) -> Layer:
    shapes = ((1, tokens, inputs),), ((1, tokens, outputs),), ((outputs, inputs),)
    return Layer("product", "linear", *shapes, (INPUT,), outputs * inputs)


def _elementwise(kind: str, size: int, tokens: int, operands: int = 1) -> Layer:
    shape = (1, tokens, size)
    return Layer("elementwise", kind, (shape,) * operands, (shape,), (), (INPUT,) * operands)


_COMMON: dict[str, Callable[[DecoderShape], Layer]] = {
    "q_proj": lambda s: _linear(s.queries, s.hidden, s.tokens),
    "k_proj": lambda s: _linear(s.keys, s.hidden, s.tokens),
    "v_proj": lambda s: _linear(s.keys, s.hidden, s.tokens),
    "o_proj": lambda s: _linear(s.hidden, s.queries, s.tokens),
    "gate_proj": lambda s: _linear(s.inner, s.hidden, s.tokens),
    "up_proj": lambda s: _linear(s.inner, s.hidden, s.tokens),
    "down_proj": lambda s: _linear(s.hidden, s.inner, s.tokens),
    "lm_head": lambda s: _linear(s.vocabulary, s.hidden, s.tokens),
    "act_fn": lambda s: _elementwise("mul", s.inner, s.tokens, 2),
}
OPERATIONS = {
    "casys-kaist/LLMServingSim": _COMMON,
    "microsoft/vidur": {
        "attn_pre_proj": lambda s: _linear(s.queries + 2 * s.keys, s.hidden, s.tokens),
        "attn_post_proj": _COMMON["o_proj"],
        "mlp_up_proj": lambda s: _linear(2 * s.inner, s.hidden, s.tokens),
        "mlp_down_proj": _COMMON["down_proj"],
        "mlp_act": _COMMON["act_fn"],
        "input_layernorm": lambda s: _elementwise("layer_norm", s.hidden, s.tokens),
        "post_attention_layernorm": lambda s: _elementwise("layer_norm", s.hidden, s.tokens),
        "attn_rope": lambda s: _elementwise("mul", s.queries + s.keys, s.tokens),
        "add": lambda s: _elementwise("add", s.hidden, s.tokens, 2),
    },
}
"""Layer that each operation of a source computes."""


def decoder_layers(folder: Path) -> Iterator[DecoderLayer]:
    """Predict every layer of the file at `TOKENS` with the kernels of an engine."""
    groups: dict[tuple[str, ...], dict[str, tuple[Layer, float]]] = defaultdict(dict)
    for row in rows_of(folder / "modern" / "llm_layer_ops.csv.gz"):
        tokens = int(float(row["tokens"]))
        make_layer = OPERATIONS[row["source"]].get(row["op"])
        # The feed-forward network of Phi-2 is not gated: it has one matrix product where the others have two.
        is_gated = row["model"] != "microsoft/phi-2"
        is_known = make_layer is not None and row["hidden"] and row["gpu"] in DEVICES
        if make_layer is None or not is_known or not is_gated or tokens not in TOKENS:
            continue
        key = (row["source"], DEVICES[row["gpu"]], f"{row['model']} / {row['tp']}", str(tokens))
        groups[key].setdefault(row["op"], (make_layer(_shape(row, tokens)), float(row["time_ms"]) / 1e3))
    models = {device: choose_model(find_device(device), "bf16", execution=ENGINE) for device in set(DEVICES.values())}
    for (source, device, model, count), operations in groups.items():
        layers = tuple(layer._replace(name=name) for name, (layer, _) in operations.items())
        workload = Workload(Network(model, (layers[0].inputs[0],), layers, 0), "bf16")
        terms = models[device].evaluate(workload, Machine(find_device(device)))
        predicted = float(terms.layers_s.sum())
        low, high = interval_of(predicted, terms.deviation or 0.0)
        measured = sum(seconds for _, seconds in operations.values())
        yield DecoderLayer(source, device, model, int(count), measured, predicted, low, high)


def _shape(row: dict[str, str], tokens: int) -> DecoderShape:
    hidden, inner, heads, keys, vocabulary = (
        int(float(row[name])) for name in ("hidden", "ffn_hidden", "heads", "kv_heads", "vocab")
    )
    size, ranks = hidden // heads, int(row["tp"])
    return DecoderShape(
        hidden, inner // ranks, heads * size // ranks, keys * size // ranks, vocabulary // ranks, tokens
    )
