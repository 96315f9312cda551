"""Transformers by their Hugging Face ``config.json``: the layers that tracing them would give, without torch.

Each architecture is one record of `ARCHITECTURES`. How many tokens a pass takes is no matter of the config: `Tokens`
says it. Of ``hf:PATH`` what has no record is built by the installed ``transformers``, without weights and without a
network connection, and traced.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..counting import GENERATING
from ..errors import BadDescriptor, BadValue, FactoryFailed
from . import decoders, encoders
from .descriptor import read_bounded
from .inputs import Input
from .network import Lengths, Network, Tokens
from .tape import Config, Tape

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
        lengths=lengths, blocks=blocks, remade=partial(read_config, data, path, image_size)
    )


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
        name = Path(config.where).stem
        if experts == 1:
            raise BadValue(f"--expert-parallel is of mixtures of experts, which {name} is not")
        raise BadValue(f"--expert-parallel {tokens.experts} does not divide the {experts} experts of {name}")
    if tokens.blocks is not None:
        config.fields[architecture.depth] = tokens.blocks
    return blocks


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


def read_hugging_face(
    reference: str, given: Sequence[Input] = (), image_size: int | None = None, tokens: Tokens | None = None
) -> Network:
    """The network of a config.

    Parameters
    ----------
    reference : str
        ``hf:PATH``.
    given : sequence of Input
        What forward is called with; without it what such models are called with.

    Raises
    ------
    BadDescriptor, BadValue, TraceFailed, MissingExtra
    """
    path = Path(reference.partition(":")[2])
    if path.suffix != ".json":
        path = path / "config.json"
    if not path.is_file():
        raise BadDescriptor(f"{reference}: there is no {path}; names of the hub would need a network connection")
    data = read_bounded(path)
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDescriptor(f"{path}: {error}") from None
    known = ARCHITECTURES.get(str(fields.get("model_type")))
    listed = fields.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else None
    if known is not None and not given and (named is None or named in known.heads):
        return read_config(data, str(path), image_size, tokens)
    return _built(reference, fields, named, given, image_size, tokens or Tokens())


def _built(
    reference: str, fields: dict[str, Any], named: str | None, given: Sequence[Input], image_size: int | None,
    tokens: Tokens,
) -> Network:  # fmt: skip
    """Built by ``transformers`` on the meta device, and traced."""
    from .torch_import import import_torch, import_torchvision

    import_torch(f"tracing {reference}")
    from .build import build
    from .lengths import trace_inputs

    try:
        import_torchvision()  # which transformers imports, beside a CPU build of torch too
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise FactoryFailed(f"{reference} needs transformers: pip install transformers") from None
    rest = {key: value for key, value in fields.items() if key not in ("model_type", "use_cache", "auto_map")}
    try:
        config = transformers.AutoConfig.for_model(fields.get("model_type"), **rest, use_cache=False)
        if image_size is not None:
            config.image_size = image_size
        factory = transformers.AutoModel.from_config if named is None else getattr(transformers, named)
        if named is not None and not (isinstance(factory, type) and issubclass(factory, transformers.PreTrainedModel)):
            raise TypeError(f"{named} is not a model")  # a file may name anything
        module = build(lambda: factory(config))
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise FactoryFailed(f"{reference} cannot be built: {type(error).__name__}: {said}") from error
    inputs, length = list(given), tokens.length
    if not given:
        inputs, length = _usual_inputs(reference, module, config, length), None
    version = f"transformers {transformers.__version__}"
    return trace_inputs(module, inputs, length, name=reference, source=version)


def _usual_inputs(reference: str, module: Any, config: Any, length: int | None) -> list[Input]:
    """What a model of that sort is called with."""
    parts = [config, *(getattr(config, name) for name in ("text_config", "vision_config") if hasattr(config, name))]

    def said(name: str) -> Any:
        return next((getattr(part, name) for part in parts if getattr(part, name, None) is not None), None)

    main = str(getattr(module, "main_input_name", ""))
    tokens = length or min(LONGEST, said("max_position_embeddings") or LONGEST)
    inputs = []
    if main == "input_ids" or hasattr(config, "text_config"):
        inputs.append(Input((tokens,), "int64", "input_ids"))
    if main == "pixel_values" or hasattr(config, "vision_config"):
        size = said("image_size")
        sides = tuple(size) if isinstance(size, (list, tuple)) else (size or 224,) * 2
        inputs.append(Input((said("num_channels") or 3, *sides), "float32", "pixel_values"))
    if main == "input_features":
        inputs.append(Input((config.num_mel_bins, 2 * config.max_source_positions), "float32", main))
    if main == "input_values":
        inputs.append(Input((16_000,), "float32", main))
    if not inputs:
        raise BadValue(f"{reference}: what its forward takes is not known: --input NAME=TYPE:SHAPE for each")
    if getattr(config, "is_encoder_decoder", False) and main != "pixel_values":
        most = getattr(config, "max_target_positions", None) or tokens
        inputs.append(Input((length or min(tokens, most),), "int64", "decoder_input_ids"))
    return inputs
