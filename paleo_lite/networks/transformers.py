"""Transformers by their Hugging Face ``config.json``: the layers that tracing them would give, without torch.

Each architecture is one record of `ARCHITECTURES`. How many tokens a pass takes is no matter of the config: `Tokens`
says it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..counting import GENERATING
from ..errors import BadDescriptor, BadValue
from . import decoders, encoders
from .config import Config
from .network import Network, Tokens
from .tape import Lengths, Tape

LONGEST = 2048
"""Tokens of a sequence where nobody says how many: no more than this, and than the model knows positions."""


class Architecture(NamedTuple):
    """A family of networks.

    Attributes
    ----------
    write : callable
        Writes the layers of a config to a tape; its third argument says whether with the head or without.
    heads : tuple of str
        Classes of ``transformers`` that are read; the first where a config names none. Those that end in ``Model``
        have no head.
    positions : str
        The key of how many positions the model knows.
    longest : int or None
        How many where the config does not say; None: as many as one likes.
    generates : bool
        Whether it writes text token by token.
    reads : str
        ``text`` or ``images``.
    depth : str
        The key of how many equal blocks there are.
    heads_key : str
        The key of how many heads there are, where tensor parallelism can split it; empty where that is not laid out.
    """

    write: Callable[[Tape, Config, bool], None]
    heads: tuple[str, ...]
    positions: str = "max_position_embeddings"
    longest: int | None = 2048
    generates: bool = True
    reads: str = "text"
    depth: str = "num_hidden_layers"
    heads_key: str = ""


def _causal(name: str) -> tuple[str, ...]:
    return (f"{name}ForCausalLM", f"{name}Model")


_HEADS, _EXPERTS = "num_attention_heads", "num_local_experts"

ARCHITECTURES = {
    "llama": Architecture(decoders.llama, _causal("Llama"), heads_key=_HEADS),
    "mistral": Architecture(decoders.llama, _causal("Mistral"), longest=131072, heads_key=_HEADS),
    "mixtral": Architecture(decoders.llama, _causal("Mixtral"), longest=131072, heads_key=_HEADS),
    "qwen2": Architecture(partial(decoders.llama, bias=True), _causal("Qwen2"), longest=32768, heads_key=_HEADS),
    "qwen3": Architecture(partial(decoders.llama, normed=True), _causal("Qwen3"), longest=32768, heads_key=_HEADS),
    "gemma": Architecture(
        partial(decoders.llama, from_one=True, tied=True), _causal("Gemma"), longest=8192, heads_key=_HEADS
    ),
    "gpt2": Architecture(
        decoders.gpt2, ("GPT2LMHeadModel", "GPT2Model"), "n_positions", 1024, depth="n_layer", heads_key="n_head"
    ),
    "gpt_neox": Architecture(decoders.gpt_neox, _causal("GPTNeoX")),
    "opt": Architecture(decoders.opt, _causal("OPT")),
    "bert": Architecture(encoders.bert, ("BertForMaskedLM", "BertModel"), longest=512, generates=False),
    "vit": Architecture(encoders.vit, ("ViTForImageClassification", "ViTModel"), "image_size", None, False, "images"),
    "t5": Architecture(
        encoders.t5, ("T5ForConditionalGeneration", "T5Model"), "n_positions", None, generates=False, depth="num_layers"
    ),
}  # fmt: skip
"""What is read, by the config's ``model_type``."""


def read_config(data: bytes, path: str, image_size: int | None = None, tokens: Tokens | None = None) -> Network:
    """The network of a Hugging Face config.

    Parameters
    ----------
    path : str
        For messages; its name is the network's, or its folder's where it is called ``config.json``.
    image_size : int, optional
        For ViT, in place of the config's.

    Raises
    ------
    BadDescriptor
        If the architecture is not known, a key is missing or malformed, or two do not go together.
    BadValue
        If more tokens are asked for than the model knows, or a phase that it does not have.
    """
    fields: Any
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDescriptor(f"{path}: {error}") from None
    if not isinstance(fields, dict):
        raise BadDescriptor(f"{path}: a config is one object")
    config, tokens = Config(fields, path), tokens or Tokens()
    model, architecture = _architecture(config)
    head = _head(config, architecture)
    if image_size is not None:
        if architecture.reads != "images":
            raise BadValue(f"{path}: a {model} has no images: leave --image-size out")
        fields["image_size"] = image_size
    lengths = _lengths(config, architecture, tokens)
    fused = fields.get("_attn_implementation", fields.get("attn_implementation", "sdpa")) != "eager"
    fused = fused if tokens.fused is None else tokens.fused
    tape = Tape(path, lengths, fused, tokens)
    blocks = _split(config, architecture, tape, tokens)
    architecture.write(tape, config, head)
    first = [layer.inputs[0] for layer in tape.layers if layer.parents == (-1,)][:1]
    inputs = ((1, lengths.queries),) * (2 if model == "t5" else 1) if architecture.reads == "text" else tuple(first)
    name = Path(path).parent.name if Path(path).name == "config.json" and Path(path).parent.name else Path(path).stem
    notes = () if tokens.length or tokens.context or architecture.reads != "text" else (_assumed(tokens, lengths),)
    return tape.network(name, inputs, f"Hugging Face config, {model}", notes)._replace(
        lengths=lengths, blocks=blocks, remade=partial(_remade, data, path, image_size)
    )


def _remade(data: bytes, path: str, image_size: int | None, tokens: Tokens) -> Network:
    return read_config(data, path, image_size, tokens)


def _split(config: Config, architecture: Architecture, tape: Tape, tokens: Tokens) -> int:
    """Check how the network is split, and cut its blocks to those asked for; how many the model has."""
    model, blocks = config.fields["model_type"], config.whole(architecture.depth)
    if tokens.tensor > 1:
        if not architecture.heads_key:
            raise BadValue(
                f"--tensor splits {', '.join(m for m, a in ARCHITECTURES.items() if a.heads_key)}, not {model}"
            )
        heads = config.whole(architecture.heads_key)
        if heads % tokens.tensor:
            raise BadValue(f"--tensor {tokens.tensor} does not divide the {heads} heads of {Path(config.where).stem}")
        if tokens.sequence and tape.lengths.queries % tokens.tensor:
            raise BadValue(f"--tensor {tokens.tensor} does not divide a sequence of {tape.lengths.queries} tokens")
        if config.maybe(_EXPERTS) and not tokens.sequence and tokens.phase not in GENERATING:
            raise BadValue("--tensor of a mixture of experts shares the sequence, too: add --sequence-parallel")
    if tokens.ring > 1 and not tape.fused:
        raise BadValue("--context-parallel is of attention in one kernel, not of attn_implementation eager")
    experts = config.maybe(_EXPERTS) or 1
    if experts % tokens.experts:
        raise BadValue(_not_shared(tokens.experts, experts, Path(config.where).stem))
    if tokens.blocks is not None:
        config.fields[architecture.depth] = tokens.blocks
    return blocks


def _not_shared(devices: int, experts: int, name: str) -> str:
    if experts == 1:
        return f"--expert-parallel is of mixtures of experts, which {name} is not"
    return f"--expert-parallel {devices} does not divide the {experts} experts of {name}"


def _assumed(tokens: Tokens, lengths: Lengths) -> str:
    if tokens.phase == "decode":
        return f"taken to have {lengths.keys - 1} tokens in the cache: --context says how many"
    return f"taken to read {lengths.keys} tokens: --sequence-length says how many"


def _architecture(config: Config) -> tuple[str, Architecture]:
    model = config.fields.get("model_type")
    if not isinstance(model, str) or model not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise config.fail(f"$.model_type is {model!r}, and configs are read of {known}")
    return model, ARCHITECTURES[model]


def _head(config: Config, architecture: Architecture) -> bool:
    """Whether the class that the config names has a head."""
    named = config.fields.get("architectures") or [architecture.heads[0]]
    if not isinstance(named, list) or named[0] not in architecture.heads:
        shown = named[0] if isinstance(named, list) else named
        raise config.fail(f"$.architectures is {shown!r}, and {' or '.join(architecture.heads)} is read")
    return bool(named[0] == architecture.heads[0])


def _lengths(config: Config, architecture: Architecture, tokens: Tokens) -> Lengths:
    """The tokens of a pass, held against what the model knows."""
    model = config.fields["model_type"]
    if architecture.reads != "text":
        if tokens.asked:
            raise BadValue(f"{config.where}: {model} reads images, which have no --sequence-length, prefill or decode")
        return Lengths(1, 1)
    generating = tokens.phase in GENERATING
    if generating and not architecture.generates:
        raise BadValue(f"{config.where}: {tokens.phase} is of networks that write text token by token, not of {model}")
    if tokens.context is not None and tokens.phase != "decode":
        raise BadValue(f"--context, the tokens in the cache, belongs to --phase decode, not to {tokens.phase}")
    if tokens.length is not None and tokens.phase == "decode":
        raise BadValue("--phase decode computes one token of each sequence: --context says how many are before it")
    for name, value in (("--sequence-length", tokens.length), ("--context", tokens.context)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadValue(f"{name} must be a whole number of 1 or more, not {value!r}")
    known = config.maybe(architecture.positions) or architecture.longest
    most = tokens.length or tokens.context or min(LONGEST, known or LONGEST) - (tokens.phase == "decode")
    keys = most + (tokens.phase == "decode")
    if known is not None and keys > known:
        asked = (
            f"a context of {most} and one more token" if tokens.phase == "decode" else f"a sequence of {most} tokens"
        )
        raise BadValue(f"{Path(config.where).stem} knows {known} positions ($.{architecture.positions}), not {asked}")
    if keys % tokens.ring:
        raise BadValue(f"--context-parallel {tokens.ring} does not divide a sequence of {keys} tokens")
    return Lengths(1 if tokens.phase == "decode" else keys // tokens.ring, keys, generating)


__all__ = ["ARCHITECTURES", "GENERATING", "LONGEST", "Architecture", "BadDescriptor", "Tokens", "read_config"]
