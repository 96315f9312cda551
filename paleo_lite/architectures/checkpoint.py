"""How a checkpoint stores the weights of each module, by its ``quantization_config`` or ``hf_quant_config.json``.

Each method of quantization is a function from the fields of its config to a `StoredWeights`; `METHODS` lists them.
Unless the config says otherwise embeddings, the head, routers, norms, biases, convolutions and vision towers keep 16
bits, as in the libraries that write such checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from ..errors import BadDescriptor
from ..formats import FORMATS, Format, Part
from ..units import is_integer
from .stored_weights import CONVERTED_PARTS, FormatRule, StoredModules, StoredWeights, modules_of

Fields = dict[str, Any]


def read_stored_weights(
    fields: Fields,  # fields of ``config.json``
    sidecar: Fields | None,  # fields of ``hf_quant_config.json``, which lies beside it
    where: str,  # path of the config, for messages
) -> StoredWeights | None:
    """Return how the checkpoint of a config stores its weights; None for one that is not quantized.

    Raise BadDescriptor if the method is unknown, or a field is malformed.
    """
    key, quantization = "quantization_config", fields.get("quantization_config")
    if quantization is None:
        for part in ("text_config", "thinker_config"):
            nested = fields.get(part)
            if isinstance(nested, dict) and nested.get("quantization_config") is not None:
                key, quantization = f"{part}.quantization_config", nested["quantization_config"]
    if quantization is None and fields.get("compression_config") is not None:
        key, quantization = "compression_config", fields["compression_config"]
    if quantization is None and sidecar is not None:
        key, quantization = "quantization of hf_quant_config.json", sidecar.get("quantization")
        quantization = {"quant_method": "modelopt", **quantization} if isinstance(quantization, dict) else quantization
    if quantization is None:
        return None
    if not isinstance(quantization, dict):
        raise BadDescriptor(f"{where}: $.{key} must be an object (got {quantization!r})")
    try:
        return _read(msgspec.json.encode({"expert_dtype": fields.get("expert_dtype"), **quantization}))
    except BadDescriptor as error:
        raise BadDescriptor(f"{where}: $.{key}: {error}") from None


@lru_cache(32)
def _read(data: bytes) -> StoredWeights:
    fields = msgspec.json.decode(data)
    method = fields.get("quant_method")
    producer = fields.get("producer")
    if isinstance(producer, dict) and producer.get("name") == "modelopt" and fields.get("quant_algo"):
        method = "modelopt"  # some of its checkpoints name another method, or none
    if method is None and (fields.get("load_in_4bit") or fields.get("load_in_8bit")):
        method = "bitsandbytes"
    method = str(method).replace("_", "-").lower()
    if method not in METHODS:
        raise BadDescriptor(
            f"the quantization method {method!r} is not read; {', '.join(METHODS)} are. Remove the field, and give "
            "--weights, to count the weights in another format"
        )
    return METHODS[method](fields)


def _integer(fields: Fields, names: str, default: int | None = None) -> int:
    """Return the first of several fields that is present, as an integer."""
    for name in names.split():
        value = fields.get(name)
        if value is not None:
            if not is_integer(value):
                raise BadDescriptor(f"{name} must be an integer (got {value!r})")
            return value
    if default is None:
        raise BadDescriptor(f"{names.split(maxsplit=1)[0]} is missing")
    return default


def _listed_modules(fields: Fields, names: str) -> StoredModules:
    """Return the modules of the first of several lists that is present."""
    for name in names.split():
        value = fields.get(name)
        if value:
            if not isinstance(value, list):
                raise BadDescriptor(f"{name} must be a list of names (got {value!r})")
            return modules_of(value)
    return StoredModules()


def _unconverted_rules(fields: Fields, names: str) -> tuple[FormatRule, ...]:
    """Return the rule for the modules that stay in 16 bits."""
    modules = _listed_modules(fields, names)
    return (FormatRule(modules, None),) if modules.names or modules.pattern else ()


def _integers(bits: int, group: int, zero_point: bool) -> Format:
    """Return the format of integers with a 16-bit scale per group, packed into words.

    A group of -1 or 0 is a row, whose scale is not counted.
    """
    if not 1 <= bits <= 8:
        raise BadDescriptor(f"weights of {bits} bits are not read; 1 to 8 are")
    if bits == 8 and group <= 0:
        return FORMATS["int8"]
    group = max(group, 0)
    base = FORMATS["int4"] if bits <= 4 else FORMATS["int8"]
    return msgspec.structs.replace(
        base, bits=bits, group=group, scale_bits=16, zero_point_bits=bits if zero_point and group else 0
    )


def _fp8(fields: Fields) -> StoredWeights:
    block = fields.get("weight_block_size")
    stored = FORMATS["fp8"]
    if block is not None:
        if not (isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)):
            raise BadDescriptor(f"weight_block_size must be two sizes (got {block!r})")
        scale_bits = 8 if fields.get("scale_fmt") == "ue8m0" else 32
        stored = msgspec.structs.replace(FORMATS["fp8-block"], group=block[0] * block[1], scale_bits=scale_bits)
    rules = _unconverted_rules(fields, "modules_to_not_convert ignored_layers")
    if fields.get("expert_dtype") == "fp4":  # DeepSeek-V4: E2M1 with the exponents of the microscaling formats
        rules = (*rules, FormatRule(StoredModules(frozenset({"experts"})), FORMATS["mxfp4"]))
    return StoredWeights("fp8", stored, rules, has_narrow_activations=True)


def _compressed_tensors(fields: Fields) -> StoredWeights:
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise BadDescriptor("config_groups is missing")
    rules, default, has_activations = [], None, False
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise BadDescriptor(f"config_groups.{name} must be an object")
        weights = group.get("weights")
        stored = None if weights is None else _scheme(weights, group.get("format") or fields.get("format"))
        has_activations |= group.get("input_activations") is not None
        targets = group.get("targets") or ["Linear"]
        if "Linear" in targets:
            default = stored
        else:
            rules.append(FormatRule(modules_of(targets), stored))
    unconverted = _unconverted_rules(fields, "ignore")
    return StoredWeights("compressed-tensors", default, (*unconverted, *rules), has_narrow_activations=has_activations)


def _scheme(weights: Any, layout: Any) -> Format:
    """Return the format of the weights of a group of compressed-tensors."""
    if not isinstance(weights, dict):
        raise BadDescriptor("the weights of a group must be an object")
    bits, group = _integer(weights, "num_bits"), _integer(weights, "group_size", 0)
    if weights.get("type", "int") == "int":
        return _integers(bits, group, not weights.get("symmetric", True))
    if bits == 8:
        block = weights.get("block_structure")
        if isinstance(block, list) and len(block) == 2:
            return msgspec.structs.replace(FORMATS["fp8-block"], group=block[0] * block[1])
        if group == FORMATS["mxfp8"].group:
            return FORMATS["mxfp8"]
        return FORMATS["fp8"]
    if bits == 4:
        return FORMATS["mxfp4"] if "mxfp4" in str(layout) or group == 32 else FORMATS["nvfp4"]
    raise BadDescriptor(f"floating-point weights of {bits} bits are not read; 4 and 8 are")


def _gptq(fields: Fields) -> StoredWeights:
    bits, group = _integer(fields, "bits"), _integer(fields, "group_size", 128)
    stored = _integers(bits, group, zero_point=True)  # the files have zero points of symmetric weights as well
    rules = list(_unconverted_rules(fields, "modules_to_not_convert"))
    dynamic = fields.get("dynamic")
    for pattern, changed in dynamic.items() if isinstance(dynamic, dict) else ():
        modules = modules_of([f"re:{pattern.removeprefix('-:').removeprefix('+:')}"])
        module_format = None
        if not pattern.startswith("-:") and isinstance(changed, dict):
            module_format = _integers(_integer(changed, "bits", bits), _integer(changed, "group_size", group), True)
        rules.append(FormatRule(modules, module_format))
    parts: tuple[Part, ...] = (*CONVERTED_PARTS, "head") if fields.get("lm_head") is True else CONVERTED_PARTS
    return StoredWeights("gptq", stored, tuple(rules), parts)


def _awq(fields: Fields) -> StoredWeights:
    stored = _integers(
        _integer(fields, "bits w_bit", 4), _integer(fields, "group_size q_group_size", 128),
        fields.get("zero_point", True) is not False,
    )  # fmt: skip
    return StoredWeights("awq", stored, _unconverted_rules(fields, "modules_to_not_convert"))


_ALGORITHMS = {
    "FP8": ("fp8", True), "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", True), "FP8_PB_WO": ("fp8-block", False),
    "FP8_PB_REAL": ("fp8-block", True), "NVFP4": ("nvfp4", True), "NVFP4_AWQ": ("nvfp4", True),
    "W4A16_NVFP4": ("nvfp4", False), "W4A16_AWQ": ("awq", False), "W4A8_AWQ": ("awq", False), "W4A16": ("int4", False),
    "W8A16": ("int8", False), "INT8_SQ": ("int8", True), "W8A8_SQ_PER_CHANNEL": ("int8", True),
    "MXFP4": ("mxfp4", False), "W4A8_MXFP4_FP8": ("mxfp4", True), "MXFP8": ("mxfp8", True),
}  # fmt: skip
"""Formats of the algorithms of modelopt, and whether they quantize activations."""


def _algorithm(fields: Fields) -> tuple[Format, bool]:
    """Return the format of an algorithm of modelopt, with the size of its groups, and whether it is for activations."""
    name = fields.get("quant_algo")
    if name not in _ALGORITHMS:
        raise BadDescriptor(f"quant_algo is {name!r}, which is not read; {', '.join(_ALGORITHMS)} are")
    form, has_activations = _ALGORITHMS[name]
    stored = msgspec.structs.replace(FORMATS[form], parts=CONVERTED_PARTS)
    group = _integer(fields, "group_size", 0)
    if group > 0 and stored.group and form != "fp8-block":
        stored = msgspec.structs.replace(stored, group=group)
    return stored, has_activations


def _modelopt(fields: Fields) -> StoredWeights:
    unconverted = _unconverted_rules(fields, "exclude_modules ignore modules_to_not_convert")
    if fields.get("quant_algo") != "MIXED_PRECISION":
        stored, has_activations = _algorithm(fields)
        return StoredWeights("modelopt", stored, unconverted, has_narrow_activations=has_activations)
    layers = fields.get("quantized_layers")
    if not isinstance(layers, dict) or not all(isinstance(settings, dict) for settings in layers.values()):
        raise BadDescriptor("MIXED_PRECISION needs quantized_layers, the algorithm of each module")
    names: dict[Format, list[str]] = {}
    activations = set()
    for module, settings in layers.items():
        stored, has_activations = _algorithm(settings)
        names.setdefault(stored, []).append(module)
        activations.add(has_activations)
    rules = [FormatRule(modules_of(modules), stored) for stored, modules in names.items()]
    base = _fp8(fields).stored if fields.get("quant_method") == "fp8" else None
    rest = () if base is not None else unconverted
    return StoredWeights("modelopt", base, (*rules, *rest), has_narrow_activations=any(activations))


def _mxfp4(fields: Fields) -> StoredWeights:
    return StoredWeights("mxfp4", FORMATS["mxfp4"], _unconverted_rules(fields, "modules_to_not_convert"), ("experts",))


def _bitsandbytes(fields: Fields) -> StoredWeights:
    unconverted = _unconverted_rules(fields, "llm_int8_skip_modules")
    if fields.get("load_in_8bit"):
        return StoredWeights("bitsandbytes", FORMATS["int8"], unconverted, has_narrow_activations=True)
    stored = FORMATS["nf4"]
    if not fields.get("bnb_4bit_use_double_quant"):
        stored = msgspec.structs.replace(stored, scale_bits=32)
    return StoredWeights("bitsandbytes", stored, unconverted)


_TORCHAO = {
    "int4": 4, "int8": 8, "float8": 0, "intx": 4, "uintx": 4, "nvfp4": 0,
}  # fmt: skip
"""Bits of the integers of torchao's configs, by the beginning of their names; 0 for floating-point numbers."""


def _torchao(fields: Fields) -> StoredWeights:
    quant_type = fields.get("quant_type")
    data: Any = fields.get("quant_type_kwargs") or {}
    if isinstance(quant_type, dict):
        quant_type = quant_type.get("default", quant_type)
        data = quant_type.get("_data", {}) if isinstance(quant_type, dict) else {}
        quant_type = quant_type.get("_type") if isinstance(quant_type, dict) else quant_type
    name = re.sub(r"[^a-z0-9]", "", str(quant_type).lower())
    begin = next((begin for begin in _TORCHAO if name.startswith(begin)), None)
    if begin is None or not isinstance(data, dict):
        raise BadDescriptor(f"quant_type is {quant_type!r}, which is not read; configs of {', '.join(_TORCHAO)} are")
    if begin == "float8":
        stored = FORMATS["fp8"]
    elif begin == "nvfp4":
        stored = FORMATS["nvfp4"]
    else:
        default = 128 if _TORCHAO[begin] == 4 else 0
        stored = _integers(_TORCHAO[begin], _integer(data, "group_size", default), zero_point=begin == "int4")
    parts: tuple[Part, ...] = CONVERTED_PARTS
    if fields.get("include_input_output_embeddings"):
        parts = (*CONVERTED_PARTS, "head", "embedding")
    unconverted = _unconverted_rules(fields, "modules_to_not_convert")
    return StoredWeights("torchao", stored, unconverted, parts, has_narrow_activations="activation" in name)


def _quark(fields: Fields) -> StoredWeights:
    settings = fields.get("global_quant_config")
    if not isinstance(settings, dict):
        raise BadDescriptor("global_quant_config is missing")
    rules = list(_unconverted_rules(fields, "exclude"))
    layer_settings = fields.get("layer_quant_config")
    for pattern, changed in layer_settings.items() if isinstance(layer_settings, dict) else ():
        rules.append(FormatRule(modules_of([pattern]), _quark_format(changed)))
    has_activations = settings.get("input_tensors") is not None
    return StoredWeights("quark", _quark_format(settings), tuple(rules), has_narrow_activations=has_activations)


def _quark_format(fields: Any) -> Format | None:
    """Return the format that quark's description of a tensor states."""
    weight = fields.get("weight") if isinstance(fields, dict) else None
    if isinstance(weight, list):
        weight = weight[0] if weight else None
    if not isinstance(weight, dict):
        return None
    kind, group = str(weight.get("dtype")), _integer(weight, "group_size", 0)
    if kind.startswith("fp8"):
        return FORMATS["fp8"]
    if kind.startswith(("fp4", "mx")):
        return FORMATS["mxfp8"] if "8" in kind else msgspec.structs.replace(FORMATS["mxfp4"], parts=CONVERTED_PARTS)
    integer = re.fullmatch(r"u?int(\d)", kind)
    if integer is None:
        raise BadDescriptor(f"dtype of weights is {kind!r}, which is not read; fp8, fp4, mx and int2 to int8 are")
    return _integers(int(integer[1]), group, weight.get("symmetric") is False)


def _experts_int8(fields: Fields) -> StoredWeights:
    return StoredWeights("experts-int8", FORMATS["int8"], parts=("experts",))


def _bitnet(fields: Fields) -> StoredWeights:
    """Return ternary weights, four of which are packed into a byte (Ma et al. 2024)."""
    stored = msgspec.structs.replace(_integers(2, 0, zero_point=False), scale_bits=0)
    return StoredWeights(
        "bitnet", stored, _unconverted_rules(fields, "modules_to_not_convert"), has_narrow_activations=True
    )


def _hqq(fields: Fields) -> StoredWeights:
    settings = fields.get("quant_config")
    weight_settings = settings.get("weight_quant_params") if isinstance(settings, dict) else None
    if not isinstance(weight_settings, dict):
        raise BadDescriptor("quant_config.weight_quant_params is missing")
    stored = _integers(_integer(weight_settings, "nbits"), _integer(weight_settings, "group_size", 64), zero_point=True)
    return StoredWeights(
        "hqq", msgspec.structs.replace(stored, zero_point_bits=16), _unconverted_rules(fields, "skip_modules")
    )


def _named_weights(fields: Fields) -> StoredWeights:
    """Return the formats of methods that name the type of the weights (quanto), or have int8 alone (EETQ)."""
    name = str(fields.get("weights", "int8")).replace("float8", "fp8").replace("int2", "2")
    formats = {"2": _integers(2, 128, False), "int4": _integers(4, 128, False), "int8": FORMATS["int8"],
               "fp8": FORMATS["fp8"]}  # fmt: skip
    if name not in formats:
        raise BadDescriptor(f"weights is {fields['weights']!r}, which is not read; int2, int4, int8 and float8 are")
    return StoredWeights(
        str(fields["quant_method"]), formats[name], _unconverted_rules(fields, "modules_to_not_convert")
    )


METHODS: dict[str, Callable[[Fields], StoredWeights]] = {
    "fp8": _fp8, "fbgemm-fp8": _fp8, "compressed-tensors": _compressed_tensors, "gptq": _gptq, "auto-round": _gptq,
    "awq": _awq, "modelopt": _modelopt, "modelopt-fp4": _modelopt, "mxfp4": _mxfp4, "bitsandbytes": _bitsandbytes,
    "torchao": _torchao, "quark": _quark, "ptpc-fp8": _fp8, "gptq-marlin": _gptq, "awq-marlin": _awq, "hqq": _hqq,
    "quanto": _named_weights, "eetq": _named_weights, "bitnet": _bitnet, "experts-int8": _experts_int8,
}  # fmt: skip
"""Readers of ``quantization_config`` by method."""
