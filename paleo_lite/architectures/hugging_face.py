"""Networks of ``hf:PATH``: read from the config if its model type is known, else built by ``transformers`` and traced.

The module is built on the meta device, without weights and without a network connection.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..counting import CONSTANT, GENERATION_PHASES, Layer
from ..errors import BadDescriptor, BadValue, FactoryFailed, TraceFailed
from ..files import file_exists
from .config import DEFAULT_TOKENS, Config, name_of, text_lengths
from .config_parts import decode_fields
from .descriptor import read_bounded
from .inputs import Input, PreparedArgument, Values
from .model_config import is_known, read_config
from .network import LANGUAGE_MODELS, Network, SequenceOptions
from .remote_code import remote_code_forbidden, without_code


class Assumption(msgspec.Struct, frozen=True):
    """What a trace sets, with a note: fields of the config, and arguments of forward by the number of tokens."""

    note: str
    fields: dict[str, Any] = {}
    arguments: Callable[[int], dict[str, int]] = lambda tokens: {}


ASSUMED = {
    "blt": Assumption("traced with a patch per byte: the patches of the model depend on the text",
                      {"patching_mode": "static", "max_patch_length": None}),
    "xlm": Assumption("traced without padding", arguments=lambda tokens: {"lengths": tokens}),
    "xmod": Assumption("traced in its first language", arguments=lambda tokens: {"lang_ids": 0}),
}  # fmt: skip
"""What is assumed of model types whose layers depend on their inputs."""

_CACHE_ARGUMENTS = ("cache", "past_key_values")
"""Names of the KV cache in ``forward``: since transformers 5.24, and before."""


def read_hugging_face(
    reference: str,  # ``hf:PATH``, the path of a ``config.json`` or of its folder
    inputs: Sequence[Input],  # inputs of ``forward``; by default the usual ones of such models
    image_size: int | None,  # height and width of the images, in place of the config's
    options: SequenceOptions | None,  # tokens and phase
) -> Network:
    """Return the network of a config.

    Raise BadDescriptor, BadValue, FactoryFailed, TraceFailed or MissingExtra.
    """
    path = Path(reference.partition(":")[2])
    if path.suffix != ".json":
        path = path / "config.json"
    if not file_exists(path):
        raise BadDescriptor(f"{reference}: there is no {path}; names of the hub would need a network connection")
    data = read_bounded(path)
    fields = decode_fields(data, str(path))
    _check_classes(fields, str(path))
    if is_known(fields) and not inputs:
        return read_config(data, str(path), image_size, options)
    if not inputs:
        from .trace_process import trace_config

        return trace_config(data, str(path), image_size, options)
    built = BuiltModel(reference, Config(fields, str(path)), image_size)
    return built.trace_inputs(inputs, options or SequenceOptions())


def trace_with_transformers(
    # Content of the config, and its path for messages.
    data: bytes,
    path: str,
    image_size: int | None,  # height and width of the images, in place of the config's
    options: SequenceOptions,  # tokens and phase
    has_cache: bool,  # whether the model keeps a KV cache; otherwise every step of decoding computes all tokens
) -> Network:
    """Build the model of a config in this process and trace it with the usual inputs of such models.

    Raise BadDescriptor, BadValue, FactoryFailed, TraceFailed or MissingExtra.
    """
    fields = decode_fields(data, path)
    _check_classes(fields, path)
    built = BuiltModel(path, Config(fields, path), image_size)
    if not built.generates_text(options):
        network = built.trace_usual_inputs(options)
    elif has_cache:
        network = built.trace_phase(options)
    else:
        network = built.trace_without_cache(options)
    return network._replace(name=name_of(path))


def _check_classes(fields: dict[str, Any], path: str) -> None:
    classes = fields.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise BadDescriptor(f"{path}: $.architectures is {classes!r}; it must be a list of class names")


def cache_argument(module: Any) -> str | None:
    """Return the name under which the ``forward`` of a module of transformers accepts a KV cache, if it does."""
    arguments = inspect.signature(module.forward).parameters
    return next((name for name in _CACHE_ARGUMENTS if name in arguments), None)


class BuiltModel:
    """A module built by ``transformers`` on the meta device."""

    def __init__(
        self,
        reference: str,  # path of the config, or ``hf:PATH``, for messages
        config: Config,  # the fields of the config
        image_size: int | None,  # height and width of the images
    ) -> None:
        from .torch_import import import_torch, import_torchvision

        self.torch = import_torch(f"tracing {reference}")
        try:
            import_torchvision()  # transformers imports it, also next to a CPU build of torch
            self.transformers = importlib.import_module("transformers")
        except ImportError:
            raise FactoryFailed(f"{reference} needs transformers: pip install transformers") from None
        self.reference = reference
        self.fields = config
        with remote_code_forbidden():
            self.module, self.config = self._build(image_size)
        self.source = f"transformers {self.transformers.__version__}"
        self.notes: tuple[str, ...] = ()  # notes for every trace
        if any(type(part).__name__.endswith("Experts") for part in self.module.modules()):
            self.module.to(self.torch.bfloat16)
            self.notes = ("traced in bf16, as the grouped matrix products of experts exist in 16 bits only",)
        self._cache_argument = cache_argument(self.module)
        self._assumed = ASSUMED.get(self.config.model_type)
        if self._assumed is not None:
            self.notes = (*self.notes, self._assumed.note)

    def generates_text(self, options: SequenceOptions) -> bool:
        """Return whether the module is traced as a decoder of tokens alone; with images only in other phases."""
        return self._is_decoder() and (options.phase in GENERATION_PHASES or not hasattr(self.config, "vision_config"))

    def _is_decoder(self) -> bool:
        return (
            getattr(self.module, "main_input_name", "") == "input_ids"
            and not getattr(self.module.config, "is_encoder_decoder", False)
            and self.module.can_generate()
        )

    def _build(self, image_size: int | None) -> tuple[Any, Any]:
        """Return the module and its config object."""
        from .build import MetaParameters

        fields = without_code(self.fields.fields)
        classes = fields.get("architectures")
        class_name = classes[0] if classes else None
        rest = {key: value for key, value in fields.items() if key not in ("model_type", "use_cache")}
        try:
            config = self.transformers.AutoConfig.for_model(fields.get("model_type"), **rest)
            if image_size is not None:
                config.image_size = image_size
            config = self._prepare_decoder(config, class_name)
            if class_name is None:
                factory = self._factory_of(config)
            else:
                factory = getattr(self.transformers, class_name)
                if not (isinstance(factory, type) and issubclass(factory, self.transformers.PreTrainedModel)):
                    raise TypeError(f"{class_name} is not a model")  # a file may name anything
            module = self._build_on_meta(factory, config, MetaParameters())
        except Exception as error:
            message = " ".join(str(error).split())[:200]
            raise FactoryFailed(f"{self.reference} cannot be built: {type(error).__name__}: {message}") from error
        return module, config

    def _prepare_decoder(self, config: Any, class_name: str | None) -> Any:
        """Return the config of a model that writes text, marked as a decoder (BERT needs this); others unchanged."""
        writers = self.transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        assumed = ASSUMED.get(config.model_type)
        for name, value in assumed.fields.items() if assumed is not None else ():
            setattr(config, name, value)
        if class_name not in (None, *writers.values()) or config.model_type not in writers:
            return config
        if isinstance(getattr(config, "decoder", None), self.transformers.PreTrainedConfig):
            config = config.decoder  # of a model that writes sound (MusicGen)
        if getattr(config, "is_decoder", None) is False:
            config.is_decoder = True
        return config

    def _factory_of(self, config: Any) -> Any:
        """Return the builder of a config without a class: of the model that writes text, if there is one."""
        for chosen in (self.transformers.AutoModelForCausalLM, self.transformers.AutoModel):
            if type(config) in chosen._model_mapping:
                return chosen.from_config
        modeling_module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
        classes = [
            kind for kind in vars(modeling_module).values() if getattr(kind, "config_class", None) is type(config)
        ]
        if not classes:
            raise TypeError(f"no model has a {type(config).__name__}")
        return classes[-1]._from_config

    def _build_on_meta(self, factory: Any, config: Any, mode: Any) -> Any:
        """Return the module without memory for its weights, also where a constructor fails on tensors with values."""
        try:
            with mode:
                return factory(config)
        except Exception:  # most constructors read small tables; those that cannot build every tensor on meta
            with self.torch.device("meta"):
                return factory(config)

    def trace_usual_inputs(self, options: SequenceOptions) -> Network:
        """Trace the module with its usual inputs; a decoder whose images need more than that with tokens alone."""
        try:
            return self.trace_inputs((), options)
        except TraceFailed:
            if not self._is_decoder():
                raise
            return self.trace_phase(options)

    def trace_inputs(self, inputs: Sequence[Input], options: SequenceOptions) -> Network:
        """Trace the module once, with the given inputs or the usual ones of such models.

        Raise BadValue if the inputs are unknown, or a phase is requested that the module does not have.
        """
        from .sequence_lengths import trace_inputs

        if options.phase in ("prefill", "decode"):
            raise BadValue(f"{self.reference}: --phase {options.phase} needs a decoder that writes text")
        self.config.use_cache = False
        length = options.length
        if not inputs:
            inputs, length = self._usual_inputs(length), None
        network = trace_inputs(self.module, inputs, length, name=self.reference, source=self.source)
        return network._replace(notes=(*self.notes, *network.notes))

    def trace_phase(self, options: SequenceOptions) -> Network:
        """Trace a decoder in a phase; with a KV cache in prefill and decode.

        Raise BadValue if the tokens do not fit the model or the phase, or the model is divided among devices.
        """
        from .trace import trace

        is_divided = (options.tensor_parallel, options.context_parallel, options.expert_parallel) != (1, 1, 1)
        if is_divided or options.blocks is not None:
            raise BadValue(
                f"{self.reference} was traced on one device: --tensor, --pipeline, --context-parallel and "
                "--expert-parallel need a model type that is read from its config"
            )
        lengths = text_lengths(self.fields, options, "max_position_embeddings", None, generates=True)
        tokens = self._words(1, lengths.queries)
        arguments: dict[str, Any] = {"use_cache": lengths.uses_cache, **self._assumed_arguments(lengths.keys)}
        if lengths.uses_cache:
            if self._cache_argument is None:
                raise TraceFailed(f"{self.reference} cannot be traced with a KV cache: forward takes none")
            cached = lengths.keys - lengths.queries
            arguments[self._cache_argument] = PreparedArgument(lambda samples: self._filled_cache(samples, cached))
            if "logits_to_keep" in inspect.signature(self.module.forward).parameters:
                arguments["logits_to_keep"] = 1
        network = trace(self.module, tokens, name=self.reference, source=self.source, **arguments)
        layers = network.layers
        if lengths.uses_cache:
            layers = tuple(_append_in_place(layer, lengths.queries) for layer in layers)
        return network._replace(
            layers=layers,
            inputs=((1, lengths.queries),),
            lengths=lengths,
            notes=(*self.notes, *network.notes),
            rebuild=self.trace_phase,
            group=LANGUAGE_MODELS,
        )

    def trace_without_cache(self, options: SequenceOptions) -> Network:
        """Trace a decoder that keeps no KV cache: each step of decoding computes all tokens again."""
        from .trace import trace

        lengths = text_lengths(self.fields, options, "max_position_embeddings", None, generates=True)
        self.module.config.use_cache = False
        chunk = getattr(self.module.config, "lsh_attn_chunk_length", None) or 1  # to which Reformer pads a sequence
        tokens = self._words(1, -(-lengths.keys // chunk) * chunk)
        arguments = self._assumed_arguments(lengths.keys)
        network = trace(self.module, tokens, name=self.reference, source=self.source, **arguments)
        note = "traced without a KV cache: a step of decoding computes all tokens of the sequence again"
        return network._replace(
            inputs=((1, lengths.queries),),
            lengths=lengths,
            notes=(note, *self.notes, *network.notes),
            rebuild=self.trace_without_cache,
            group=LANGUAGE_MODELS,
        )

    def _assumed_arguments(self, tokens: int) -> dict[str, Values]:
        """Return the arguments of forward that are assumed, of one sample."""
        if self._assumed is None:
            return {}
        return {name: Values([value]) for name, value in self._assumed.arguments(tokens).items()}

    def _words(self, samples: int, tokens: int) -> Any:
        """Return tokens; a decoder of sound reads several codes for each."""
        rows = samples * getattr(self.module, "num_codebooks", 1)
        return self.torch.zeros(rows, tokens, dtype=self.torch.long, device="meta")

    def _filled_cache(self, samples: int, tokens: int) -> Any:
        """Return a KV cache that holds so many tokens of each sample; None where the module begins one itself."""
        cache = self._new_cache()
        if not tokens or self._cache_argument is None:
            return cache
        words = self._words(samples, tokens)
        arguments = {name: value.tensor for name, value in self._assumed_arguments(tokens).items()}
        result = self.module(words, **{self._cache_argument: cache}, use_cache=True, **arguments)
        filled = getattr(result, "cache", None) or getattr(result, "past_key_values", None)
        if filled is None:
            raise TraceFailed(f"{self.reference} cannot be traced with a KV cache: forward returns none")
        return filled

    def _new_cache(self) -> Any:
        """Return an empty cache where a module would create one for the wrong part, or fail to; otherwise None."""
        config, library = self.module.config.get_text_config(decoder=True), self.transformers
        if hasattr(config, "decoder_layers"):
            return library.DynamicCache()
        if not hasattr(config, "num_hidden_layers"):
            return library.EncoderDecoderCache(library.DynamicCache(), library.DynamicCache())
        return None

    def _config_value(self, name: str) -> Any:
        """Return a value of the config, or of its text or vision part."""
        parts = [self.config]
        for part_name in ("text_config", "vision_config"):
            if hasattr(self.config, part_name):
                parts.append(getattr(self.config, part_name))
        for part in parts:
            if getattr(part, name, None) is not None:
                return getattr(part, name)
        return None

    def _usual_inputs(self, length: int | None) -> list[Input]:
        """Return the inputs that such a model is usually called with."""
        config = self.config
        main = str(getattr(self.module, "main_input_name", ""))
        arguments = list(inspect.signature(self.module.forward).parameters)
        if main not in arguments:  # an encoder that is part of another model
            main = arguments[0]
        positions = self._config_value("max_position_embeddings") or DEFAULT_TOKENS
        tokens = length or min(DEFAULT_TOKENS, positions)
        inputs = []
        if main == "input_ids" or hasattr(config, "text_config"):
            inputs.append(Input((tokens,), "int64", "input_ids"))
        if main == "pixel_values" or hasattr(config, "vision_config"):
            size = self._config_value("image_size") or 224
            height, width = size if isinstance(size, (list, tuple)) else (size, size)
            inputs.append(Input((self._config_value("num_channels") or 3, height, width), "float32", "pixel_values"))
        if main == "input_features":
            inputs.append(Input((config.num_mel_bins, 2 * config.max_source_positions), "float32", main))
        if main == "input_values":
            inputs.append(Input((16_000,), "float32", main))
        if not inputs:
            raise BadValue(f"{self.reference}: the inputs of its forward are unknown: give --input NAME=TYPE:SHAPE")
        if getattr(config, "is_encoder_decoder", False) and main != "pixel_values":
            longest = getattr(config, "max_target_positions", None) or tokens
            inputs.append(Input((length or min(tokens, longest),), "int64", "decoder_input_ids"))
        return inputs


def _append_in_place(layer: Layer, new_tokens: int) -> Layer:
    """Return the write to a preallocated KV cache instead of a concatenation with the contents of the cache."""
    if layer.kind != "concat" or len(layer.inputs) != 2:
        return layer
    cached, new = layer.inputs
    holds_cached_tokens = cached == (0,) or (layer.parents[0] == CONSTANT and len(cached) == len(new))
    if not holds_cached_tokens or len(new) < 3 or new[-2] != new_tokens:
        return layer
    return layer._replace(kind="cache", inputs=(new,), parents=layer.parents[1:], attributes={}, origin="method")
