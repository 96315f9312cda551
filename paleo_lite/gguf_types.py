"""Tensor types of GGUF files, and the mixtures by which llama.cpp assigns them to the tensors of a network.

A mixture is a record: its type for most matrices, and rules for some tensors of some blocks. Source of all of them:
``src/llama-quant.cpp`` (``llama_tensor_get_type``) of llama.cpp; with an importance matrix where a mixture needs one.
Those of MLX and ExLlamaV2 are records alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Role = Literal["token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up",
               "ffn_down", "experts", "experts_down", "other"]  # fmt: skip
"""What a matrix does: the names of tensors in GGUF files; experts are ``ffn_gate_exps`` and ``ffn_up_exps``."""

Blocks = Literal["all", "more", "first eighth", "first sixteenth", "first two", "first four", "outside the middle"]
"""Blocks that a rule applies to; ``more``: those of ``use_more_bits``, the first and last eighth and every third."""

When = Literal["", "grouped", "experts", "eight experts"]
"""Networks that a rule applies to: all, those with at least four heads of queries per head of keys or with experts,
those with experts, and those with eight experts."""

SCHEME_OF_EXPERTS: dict[Role, Role] = {"experts": "ffn_up", "experts_down": "ffn_down"}
"""Roles whose rules experts follow, unless a mixture has rules of their own."""


class TensorType(msgspec.Struct, frozen=True):
    """A type of tensors: blocks of so many numbers, each of so many bytes (``ggml-common.h``)."""

    block_numbers: int
    block_bytes: int

    @property
    def bytes_per_number(self) -> float:
        """Bytes per number."""
        return self.block_bytes / self.block_numbers


GGUF_TYPES: dict[str, TensorType] = {
    "f32": TensorType(1, 4), "f16": TensorType(1, 2), "bf16": TensorType(1, 2),
    "q4_0": TensorType(32, 18), "q4_1": TensorType(32, 20), "q5_0": TensorType(32, 22), "q5_1": TensorType(32, 24),
    "q8_0": TensorType(32, 34), "iq4_nl": TensorType(32, 18), "mxfp4": TensorType(32, 17),
    "q2_k": TensorType(256, 84), "q3_k": TensorType(256, 110), "q4_k": TensorType(256, 144),
    "q5_k": TensorType(256, 176), "q6_k": TensorType(256, 210), "q8_k": TensorType(256, 292),
    "iq1_s": TensorType(256, 50), "iq1_m": TensorType(256, 56), "iq2_xxs": TensorType(256, 66),
    "iq2_xs": TensorType(256, 74), "iq2_s": TensorType(256, 82), "iq3_xxs": TensorType(256, 98),
    "iq3_s": TensorType(256, 110), "iq4_xs": TensorType(256, 136), "tq1_0": TensorType(256, 54),
    "tq2_0": TensorType(256, 66),
}  # fmt: skip
"""Types of tensors by name, as ``ggml`` and the ``gguf`` package define them."""

MLX_TYPES = {f"mlx_{bits}bit": TensorType(64, 8 * bits + 4) for bits in (3, 4, 5, 6, 8)}
"""Types of MLX by name: integers, with a scale and a bias in 16 bits per 64 (``mlx.core.quantize``)."""

MLX_FLOATS = {"mlx_mxfp8": TensorType(32, 33), "mlx_nvfp4": TensorType(16, 9)}
"""Its modes of floating-point numbers, with a scale in 8 bits per 32 or per 16; ``mxfp4`` is that of GGUF files."""

EXL2_TYPES = {f"exl2_{bits}bpw": TensorType(32, round(4 * bits)) for bits in (2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)}
"""Types of ExLlamaV2 by name: the mean bits per number with scales, which its quantizer is asked for."""

TENSOR_TYPES = GGUF_TYPES | MLX_TYPES | MLX_FLOATS | EXL2_TYPES
"""All types of tensors by name."""

WHEN_ROWS_ARE_SHORT = {
    "q4_k": "q5_0", "iq4_xs": "iq4_nl", "q5_k": "q5_1", "q6_k": "q8_0",
    **dict.fromkeys(("q2_k", "q3_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), "iq4_nl"),
}  # fmt: skip
"""Types of matrices whose rows are no multiple of 256 numbers, in place of those that need such rows."""


class Rule(msgspec.Struct, frozen=True):
    """The type of some matrices of some blocks of some networks. The first rule that applies counts."""

    roles: tuple[Role, ...]
    type: str
    blocks: Blocks = "all"
    when: When = ""


class Mixture(msgspec.Struct, frozen=True):
    """How llama.cpp quantizes a network."""

    base: str  # type of the matrices without a rule, one of `TENSOR_TYPES`
    description: str  # description in one line
    bits: float  # bits per number of a whole network of 8 billion parameters
    rules: tuple[Rule, ...] = ()  # exceptions


def _low(output: str, embedding: str, value: str, few_down: str, attention_output: str | None) -> tuple[Rule, ...]:
    """Return the rules of mixtures of about two bits."""
    rules = [
        Rule(("output",), output),
        Rule(("token_embd",), embedding),
        Rule(("attn_v",), "q4_k", when="grouped"),
        Rule(("attn_v",), value),
        Rule(("attn_k",), "q4_k", when="eight experts"),
        Rule(("ffn_down",), few_down, "first eighth"),
        Rule(("attn_output",), "q5_k", when="eight experts"),
    ]
    if attention_output is not None:
        rules.append(Rule(("attn_output",), attention_output))
    return tuple(rules)


_OUTPUT = Rule(("output",), "q6_k")
_EIGHT = (
    Rule(("attn_v", "attn_k"), "q8_0", when="eight experts"),
    Rule(("attn_output",), "q5_k", when="eight experts"),
)
_EIGHT_KEYS = _EIGHT[:1]
_MORE: tuple[Role, ...] = ("attn_v", "ffn_down")

_DENSE: tuple[Role, ...] = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate",
                            "ffn_up", "ffn_down", "other")  # fmt: skip


def _extra_large(name: str, bits: float, dense: str, gate: str, down: str, others: tuple[Rule, ...]) -> Mixture:
    """Return a mixture as Unsloth publishes networks with experts: what every token reads keeps more bits."""
    description = f"experts in about {name[1]} bits, what every token reads in {dense}, as Unsloth's {name.upper()}"
    rules = (
        Rule(("token_embd", "output"), "q8_0", when="experts"),
        Rule(("experts",), gate, when="experts"),
        Rule(("experts_down",), down, when="experts"),
        Rule(_DENSE, dense, when="experts"),
    )
    return Mixture(gate, description, bits, (*rules, *others))


MIXTURES: dict[str, Mixture] = {
    "f16": Mixture("f16", "half precision", 16.0),
    "q8_0": Mixture("q8_0", "8 bits, with a scale per 32", 8.50),
    "q6_k": Mixture("q6_k", "6 bits, with scales in two levels", 6.56, _EIGHT_KEYS),
    "q5_k_m": Mixture(
        "q5_k", "5 bits, half of the values and of the last feed-forward matrices 6", 5.70,
        (_OUTPUT, *_EIGHT_KEYS, Rule(_MORE, "q6_k", "more"), Rule(("attn_qkv",), "q6_k")),
    ),
    "q5_k_s": Mixture("q5_k", "5 bits, with scales in two levels", 5.57, (_OUTPUT, *_EIGHT_KEYS)),
    "q5_1": Mixture("q5_1", "5 bits, with a scale and a minimum per 32", 6.05, (_OUTPUT, *_EIGHT_KEYS)),
    "q5_0": Mixture("q5_0", "5 bits, with a scale per 32", 5.57, (_OUTPUT, *_EIGHT_KEYS)),
    "q4_k_m": Mixture(
        "q4_k", "4 bits, half of the values and of the last feed-forward matrices 6", 4.89,
        (_OUTPUT, *_EIGHT, Rule(_MORE, "q6_k", "more"), Rule(("attn_qkv",), "q5_k")),
    ),
    "q4_k_s": Mixture(
        "q4_k", "4 bits, a few of the first matrices 5", 4.67,
        (_OUTPUT, *_EIGHT, Rule(("attn_v",), "q5_k", "first four"), Rule(("ffn_down",), "q5_k", "first eighth")),
    ),
    "q4_1": Mixture("q4_1", "4 bits, with a scale and a minimum per 32", 5.13, (_OUTPUT, *_EIGHT_KEYS)),
    "q4_0": Mixture("q4_0", "4 bits, with a scale per 32", 4.64, (_OUTPUT, *_EIGHT_KEYS)),
    "iq4_nl": Mixture(
        "iq4_nl", "4 bits of unequal steps, with a scale per 32", 4.68,
        (_OUTPUT, *_EIGHT, Rule(("attn_v",), "q5_k", when="grouped"), Rule(("ffn_down",), "q5_k", "first eighth")),
    ),
    "iq4_xs": Mixture(
        "iq4_xs", "4 bits of unequal steps, with scales in two levels", 4.46,
        (_OUTPUT, *_EIGHT, Rule(("attn_v",), "q5_k", when="grouped"), Rule(("ffn_down",), "q5_k", "first eighth")),
    ),
    "q3_k_l": Mixture(
        "q3_k", "3 bits; values, outputs and the last feed-forward matrices 5", 4.30,
        (_OUTPUT, *_EIGHT_KEYS, Rule(("attn_v", "ffn_down", "attn_output"), "q5_k"), Rule(("attn_qkv",), "q4_k")),
    ),
    "q3_k_m": Mixture(
        "q3_k", "3 bits; values, outputs and the last feed-forward matrices 4", 4.00,
        (
            _OUTPUT, *_EIGHT, Rule(("attn_v",), "q5_k", "first two"), Rule(("ffn_down",), "q5_k", "first sixteenth"),
            Rule(("attn_v", "ffn_down", "attn_output", "attn_qkv"), "q4_k"),
        ),
    ),
    "q3_k_s": Mixture("q3_k", "3 bits, with scales in two levels", 3.64, (_OUTPUT, *_EIGHT)),
    "iq3_m": Mixture(
        "iq3_s", "3 bits from a table, values and outputs 4", 3.76,
        (
            _OUTPUT, *_EIGHT, Rule(("attn_v", "attn_output", "attn_qkv"), "q4_k"),
            Rule(("ffn_down",), "q4_k", "first eighth"),
        ),
    ),
    "iq3_s": Mixture(
        "iq3_s", "3 bits from a table", 3.66, (_OUTPUT, *_EIGHT, Rule(("attn_v",), "q4_k", when="grouped"))
    ),
    "iq3_xs": Mixture(
        "iq3_s", "3 bits from a table, some fewer", 3.50,
        (
            _OUTPUT, *_EIGHT, Rule(("attn_v",), "q4_k", when="grouped"), Rule(("attn_k", "attn_q"), "iq3_xxs"),
            Rule(("ffn_gate", "ffn_up"), "iq3_s", "outside the middle"), Rule(("ffn_gate", "ffn_up"), "iq3_xxs"),
        ),
    ),
    "iq3_xxs": Mixture(
        "iq3_xxs", "3 bits from a smaller table", 3.25,
        (
            Rule(("output",), "q5_k"), Rule(("token_embd",), "iq3_s"), *_EIGHT,
            Rule(("attn_v",), "q4_k", when="grouped"), Rule(("attn_k", "attn_q"), "iq2_s"),
            Rule(("attn_output",), "iq3_s"),
        ),
    ),
    "q2_k": Mixture(
        "q2_k", "2 bits, values 4, outputs and the last feed-forward matrices 3", 3.16,
        (
            _OUTPUT, *_EIGHT, Rule(("attn_v",), "q4_k", when="grouped"),
            Rule(("attn_v", "ffn_down", "attn_output"), "q3_k"),
        ),
    ),
    "q2_k_s": Mixture(
        "q2_k", "2 bits, values 4", 2.97,
        (
            _OUTPUT, *_EIGHT_KEYS, Rule(("attn_v",), "q4_k", when="grouped"),
            Rule(("ffn_down",), "q4_k", "first eighth"),
        ),
    ),
    "iq2_m": Mixture("iq2_s", "2 bits from a table, more 3", 2.93, _low("q5_k", "iq3_s", "iq3_s", "iq3_s", "iq3_s")),
    "iq2_s": Mixture("iq2_xs", "2 bits from a table, some 3", 2.74, _low("q5_k", "iq3_s", "iq3_s", "iq3_s", "iq3_s")),
    "iq2_xs": Mixture("iq2_xs", "2 bits from a table", 2.59, _low("q5_k", "q2_k", "q2_k", "q2_k", None)),
    "iq2_xxs": Mixture("iq2_xxs", "2 bits from a smaller table", 2.38, _low("q5_k", "q2_k", "q2_k", "q2_k", None)),
    "iq1_m": Mixture(
        "iq1_m", "2 bits from a table, with finer scales", 2.15, _low("q5_k", "q2_k", "q2_k", "q2_k", "iq2_xxs")
    ),
    "iq1_s": Mixture("iq1_s", "less than 2 bits from a table", 2.00, _low("q5_k", "q2_k", "q2_k", "q2_k", "iq2_xxs")),
    "q4_k_xl": _extra_large(
        "q4_k_xl", 4.89, "q8_0", "q4_k", "q5_k", (_OUTPUT, Rule(_MORE, "q6_k", "more"), Rule(("attn_qkv",), "q5_k"))
    ),
    "q5_k_xl": _extra_large(
        "q5_k_xl", 5.70, "q8_0", "q5_k", "q6_k", (_OUTPUT, Rule(_MORE, "q6_k", "more"), Rule(("attn_qkv",), "q6_k"))
    ),
    "q8_k_xl": _extra_large("q8_k_xl", 8.50, "f16", "q8_0", "q8_0", ()),
    "mxfp4_moe": Mixture(
        "q8_0", "experts in 4 bits (mxfp4), all else in 8", 8.50,
        (Rule(("experts", "experts_down"), "mxfp4"),),
    ),
}  # fmt: skip
"""llama.cpp's mixtures by name, as ``llama-quantize`` calls them; ``mxfp4_moe`` is that of gpt-oss."""

MLX_MIXTURES = {
    name.replace("_", "-"): Mixture(name, f"{name[4]} bits, with a scale and a bias per 64", 8 * kind.bytes_per_number)
    for name, kind in MLX_TYPES.items()
} | {
    "mlx-mxfp8": Mixture("mlx_mxfp8", "8 bits (E4M3), with an 8-bit exponent per 32", 8.25),
    "mlx-mxfp4": Mixture("mxfp4", "4 bits (E2M1), with an 8-bit exponent per 32", 4.25),
    "mlx-nvfp4": Mixture("mlx_nvfp4", "4 bits (E2M1), with an 8-bit scale per 16", 4.5),
    "mlx-mxfp4-q8": Mixture(
        "mlx_8bit", "experts in 4 bits (mxfp4), all else in 8", 8.5, (Rule(("experts", "experts_down"), "mxfp4"),)
    ),
}
"""Quantizations of ``mlx_lm.convert`` by name, all matrices in one type (``--q-bits``, ``--q-mode``); ``mlx-mxfp4-q8``
is that of gpt-oss, whose experts keep the type in which they were published."""

EXL2_MIXTURES = {
    name.replace("_", "-"): Mixture(
        name,
        f"{name[5:8]} bits in the mean, the head 6",
        8 * kind.bytes_per_number,
        (Rule(("output",), "exl2_6.0bpw"), Rule(("token_embd",), "f16")),
    )
    for name, kind in EXL2_TYPES.items()
}
"""Quantizations of ExLlamaV2's ``convert.py`` by name, with its default of 6 bits for the head (``-hb``)."""

DIFFERING_TOKENS = {
    "q6_k": 0.0394, "q5_k_m": 0.0444, "q4_k_m": 0.0576, "q4_k_s": 0.0600, "iq4_nl": 0.0605, "iq4_xs": 0.0606,
    "q3_k_m": 0.0839, "iq3_m": 0.0859, "iq3_s": 0.0895, "q3_k_s": 0.1068, "iq3_xs": 0.1071, "iq3_xxs": 0.1137,
    "q2_k": 0.1492, "iq2_m": 0.1557, "q2_k_s": 0.1735, "iq2_s": 0.1806, "iq2_xs": 0.1943, "iq2_xxs": 0.2313,
    "iq1_s": 0.3840,
}  # fmt: skip
"""Share of tokens for which Mistral 7B in a mixture, with an importance matrix, finds another one the most likely than
in 16 bits (Artefact2, GGUF quantizations overview, gist b5f810600771265fc1e39442288e8ec9)."""

CACHE_TYPES = ("f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types in which llama.cpp keeps keys and values (``--cache-type-k``)."""


class Proportions(msgspec.Struct, frozen=True):
    """Proportions of a network on which the rules of mixtures depend."""

    blocks: int  # transformer blocks
    heads_per_key: int = 1  # heads of queries per head of keys
    experts: int = 0  # experts of a layer; 0 for dense networks

    def fulfils(self, when: When) -> bool:
        """Return whether a rule for some networks applies to this one."""
        if when == "grouped":
            return self.heads_per_key >= 4 or self.experts >= 4
        if when == "experts":
            return self.experts > 0
        return self.experts == 8 if when == "eight experts" else True

    def includes(self, blocks: Blocks, block: int) -> bool:
        """Return whether a rule for some blocks applies to a block."""
        eighth, last = self.blocks // 8, 7 * self.blocks // 8
        return {
            "all": True,
            "more": block < eighth or block >= last or (block - eighth) % 3 == 2,
            "first eighth": block < eighth,
            "first sixteenth": block < self.blocks // 16,
            "first two": block < 2,
            "first four": block < 4,
            "outside the middle": block < eighth or block >= last,
        }[blocks]


def tensor_type(
    mixture: Mixture,
    role: Role,  # what the matrix does; the table of a network whose head shares it is ``output``
    block: int,  # transformer block that it belongs to; any number for matrices outside blocks
    row: int,  # numbers per row: the depth of its product
    network: Proportions,
) -> str:
    """Return the type of a matrix under a mixture."""
    chosen = mixture.base
    rules: Sequence[Rule] = mixture.rules
    names = {role, SCHEME_OF_EXPERTS.get(role, role)}
    for rule in rules:
        if names & set(rule.roles) and network.fulfils(rule.when) and network.includes(rule.blocks, block):
            chosen = rule.type
            break
    if row % TENSOR_TYPES[chosen].block_numbers == 0:
        return chosen
    shorter = WHEN_ROWS_ARE_SHORT.get(chosen, "f16")
    return shorter if row % TENSOR_TYPES[shorter].block_numbers == 0 else "f16"


def mean_bytes_per_number(mixture: Mixture, role: Role, row: int, network: Proportions) -> float:
    """Return the bytes per number of a matrix, as the mean over all blocks."""
    types = [tensor_type(mixture, role, block, row, network) for block in range(max(network.blocks, 1))]
    return sum(TENSOR_TYPES[name].bytes_per_number for name in types) / len(types)
