"""Networks of ``hf:PATH``: read from the config if its model type is known, else built by ``transformers`` and traced.

The module is built on the meta device, without weights and without a network connection.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadDescriptor, BadValue, FactoryFailed
from .descriptor import read_bounded
from .inputs import Input
from .model_config import DEFAULT_TOKENS, is_known, read_config
from .network import Network, SequenceOptions


def read_hugging_face(
    reference: str, given: Sequence[Input] = (), image_size: int | None = None, tokens: SequenceOptions | None = None
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
    listed = fields.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else None
    if is_known(fields) and not given:
        return read_config(data, str(path), image_size, tokens)
    return _built(reference, fields, named, given, image_size, tokens or SequenceOptions())


def _built(
    reference: str, fields: dict[str, Any], named: str | None, given: Sequence[Input], image_size: int | None,
    tokens: SequenceOptions,
) -> Network:  # fmt: skip
    """Built by ``transformers`` on the meta device, and traced."""
    from .torch_import import import_torch, import_torchvision

    import_torch(f"tracing {reference}")
    from .build import build_module
    from .sequence_lengths import trace_inputs

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
        module = build_module(lambda: factory(config))
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
    tokens = length or min(DEFAULT_TOKENS, said("max_position_embeddings") or DEFAULT_TOKENS)
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
