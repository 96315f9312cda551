"""What a row needs beside its figures: facts that the user gives, a sidecar holds, or names only suggest."""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import BadFile, PaleoError
from ..files import file_exists, read_limited
from ..formats import FORMATS, FORMATS_OF_PRODUCTS
from ..machines import find_device
from ..text import normalize_name
from ..units import PRECISION_BYTES
from .findings import Findings
from .network_names import find_network_name
from .text import to_number

FACTS = {
    "gpu": ("the GPU", "--gpu", "h100-sxm"),
    "devices": ("the number of devices", "--devices", 8),
    "network": ("the network", "--network", "llama-3-8b"),
    "precision": ("the precision", "--precision", "bf16"),
    "tensor": ("the tensor parallelism", "--tensor", 1),
    "engine": ("the engine", "--engine", "vllm"),
    "link": ("the link between the devices", "--link", "nvlink4"),
    "sequence_length": ("the sequence length", "--sequence-length", 4096),
    "global_batch_size": ("the batch of all devices", "--global-batch-size", 256),
}
"""Facts that a user can add: what they are, the option that gives them, and an example."""

NEEDED = {
    "server": ("network", "gpu", "tensor", "precision", "engine"),
    "prompt": ("network", "gpu"),
    "decode": ("network", "gpu"),
    "step": ("network", "gpu", "precision"),
    "collective": ("gpu", "link"),
    "copy": ("gpu",),
    "power": ("gpu",),
    "kernel": ("gpu",),
    "picture": ("network", "gpu", "precision"),
}
"""Facts without which a row of a kind answers no question."""

COUNT_BEFORE = re.compile(r"^\d+ ?x[_ ]?", re.IGNORECASE)
"""A number of devices before their name."""

_MOST = 2**31  # of anything that is counted
_AUTOCAST = {"amp": "fp16", "amp_bf16": "bf16"}
_TRAINED = ("devices", "global_batch_size", "sequence_length")
_SIDECAR_BYTES = 2**16
_CALIBRATION = re.compile(rb"^format = \d+$", re.MULTILINE)
"""Line near the beginning of every calibration; no fact of a sidecar has this name."""
_CALIBRATION_HEAD = 4096

_GPU_WORDS = re.compile(
    r"(?<![a-z0-9])((?:\d+x)?)((?:nvidia[-_ ])?"
    r"(?:gb10|gb[23]00|gh200|[ahb][1238]00(?:[-_ ](?:sxm\d?|pcie|nvl))?|v100|p100|k80|t4|l40s?|l4|a10g?|a[456]000|a40|"
    r"mi\d{3}[ax]?|rtx[-_ ]?\d{4}(?:[-_ ]?(?:ti|super))?|rx[-_ ]?\d{4}(?:[-_ ]?xtx?)?|gaudi[-_ ]?\d|"
    r"strix[-_ ]halo|m[1-5][-_ ](?:max|pro|ultra)))(?![a-z0-9])",
    re.IGNORECASE,
)
_FORMATS = re.compile(
    r"(?<![a-z0-9])(nvfp4|mxfp4|fp8|awq|gptq|int8|int4|w8a8|w4a16|bf16|fp16|q\d_k_[sml]|q\d_k|q\d_[01]|"
    r"iq\d_\w{1,4})(?![a-z0-9])",
    re.IGNORECASE,
)
_ARITHMETIC = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "half": "fp16", "float": "fp32"}


def complete(findings: Findings, user_options: dict[str, Any]) -> None:
    """Add what the user gave, what a sidecar says and what names suggest; then say what is still missing."""
    sidecar, recorded_name = _read_sidecar(findings.path), str(findings.configuration.get("network") or "")
    options = {name: value for name, value in user_options.items() if value is not None}
    for name, value in {**sidecar, **options}.items():
        stated = _stated(findings, name)
        if name in options and name in sidecar:
            stated["the sidecar says"] = [sidecar[name]]
        for where, recorded in stated.items():
            contradicting = [str(other) for other in recorded if not is_same(name, other, value)]
            if contradicting:
                shown = ", ".join(contradicting[:3]) + (", ..." if len(contradicting) > 3 else "")
                findings.doubt(f"{where} {shown} as {name}, and {value} was given, which is taken")
        findings.configuration[name] = value
        findings.guessed.pop(name, None)
    precision = findings.configuration.get("precision")
    if isinstance(precision, str):
        findings.configuration["precision"] = _ARITHMETIC.get(precision.lower(), precision)
    stated_format = str({**sidecar, **options}.get("precision") or "").lower()
    _guess_device(findings)
    names_weights = stated_format in FORMATS and FORMATS[stated_format].is_quantized and "weights" not in sidecar
    if names_weights:
        _take_format(findings, stated_format, *_format_in_names(findings, recorded_name))
    else:
        _guess_format(findings, recorded_name)
    findings.missing = _missing(findings)


def _take_format(findings: Findings, stated: str, how: str, named: str) -> None:
    """Take the format of weights that a stated precision such as fp8 names instead of a recorded one."""
    facts = (findings.configuration, *(reading.values for reading in findings.readings))
    recorded = dict.fromkeys(str(each.pop("weights", "")).lower() for each in facts)
    if named in FORMATS and named != stated:
        findings.doubt(f"{how} suggests {named}, and precision {stated} was given, which is taken")
    others = [name for name in recorded if name in FORMATS and name != stated]
    if others:
        findings.doubt(
            f"the file records weights in {', '.join(others)}, and precision {stated} was given, which is taken"
        )
    for reading in findings.readings:
        reading.values.pop("precision", None)
    findings.guessed.pop("weights", None)


def _stated(findings: Findings, name: str) -> dict[str, list[Any]]:
    """Return the values that a file states for a fact, by their place: its configuration, its rows and its name."""
    how = findings.guessed.get(name)
    in_configuration = "the file records" if how is None else f"{how} suggests"
    statements: dict[str, list[Any]] = {
        in_configuration: [findings.configuration.get(name)],
        "rows record": list(dict.fromkeys(reading.values.get(name) for reading in findings.readings)),
        "the name of the file suggests": [find_gpu(findings.path.stem)[0]] if name == "gpu" else [],
    }
    return {where: [value for value in values if value not in (None, "")] for where, values in statements.items()}


def is_same(name: str, recorded: Any, value: Any) -> bool:
    """Return whether a fact of a file and one that the user stated agree, possibly in other words."""
    numbers = to_number(recorded), to_number(value)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if name == "network":
        return find_network_name(str(recorded), (str(value),)) is not None
    if name == "gpu":
        return _is_same_device(COUNT_BEFORE.sub("", str(recorded)), str(value))
    if name == "precision":
        recorded = _ARITHMETIC.get(str(recorded).lower(), recorded)
    return str(recorded).lower() == str(value).lower()


def _is_same_device(recorded: str, stated: str) -> bool:
    """Return whether two names are of one device: ``H100`` is short for ``h100-sxm``."""
    short, long = sorted(map(normalize_name, (recorded, stated)), key=len)
    if short in long:
        return True
    try:
        return find_device(recorded).id == find_device(stated).id
    except PaleoError:  # a device from the user's own file, or a name that several devices have
        return False


def _is_calibration(path: Path) -> bool:
    """Return whether a file is a calibration, which may be named after the file that it learned from."""
    try:
        with path.open("rb") as file:
            return _CALIBRATION.search(file.read(_CALIBRATION_HEAD)) is not None
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror or error})") from None


def _read_sidecar(path: Path) -> dict[str, Any]:
    """Return the facts of `NAME.toml` beside the file; empty without one, and of a calibration from the file."""
    sidecar = path.with_name(f"{path.name}.toml")
    if not file_exists(sidecar):
        sidecar = path.with_suffix(".toml")
    if not file_exists(sidecar) or sidecar == path or _is_calibration(sidecar):
        return {}
    try:
        facts = tomllib.loads(read_limited(sidecar, _SIDECAR_BYTES, "sidecar").decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{sidecar}: cannot be read as TOML ({error})") from None
    for name, value in facts.items():
        if not isinstance(value, (str, int, float)):
            raise BadFile(f'{sidecar}: {name} must be a text or a number, as in `gpu = "h100-sxm"`')
        if name in FACTS:
            meaning, _, example = FACTS[name]
            if isinstance(example, int) and count_of(facts, name) is None:
                raise BadFile(f"{sidecar}: {name}, {meaning}, must be a number such as {example} (got {value!r})")
        else:  # facts that only some files lack have names of their own, as their readers use them
            near = get_close_matches(name, FACTS, n=1, cutoff=0.8)
            if near:
                raise BadFile(f"{sidecar}: no fact is called {name!r}: did you mean {near[0]}?")
    return facts


def find_gpu(text: str) -> tuple[str, int | None]:
    """Return the GPU that a text names, empty without one, and how many of them, as in ``8xH100``."""
    match = _GPU_WORDS.search(text)
    if match is None:
        return "", None
    return match[2], int(match[1][:-1]) if match[1] else None


def _guess_device(findings: Findings) -> None:
    """Guess device and count from the name of the file or of its folder."""
    if "gpu" in findings.configuration or any("gpu" in reading.values for reading in findings.readings):
        return
    for how, text in (("the name of the file", findings.path.stem), ("the folder", findings.path.parent.name)):
        gpu, count = find_gpu(text)
        if gpu:
            findings.guess(how, gpu=gpu, devices=count)
            break


def _format_in_names(findings: Findings, recorded_name: str) -> tuple[str, str]:
    """Return where a name suggests a format, and which: that of the network, recorded or given, or of the file."""
    for how, text in (
        ("the name of the network", recorded_name),
        ("the name of the network", str(findings.configuration.get("network") or "")),
        ("the name of the file", findings.path.stem),
    ):
        match = _FORMATS.search(text)
        if match:
            return how, match[1].lower()
    return "", ""


def _guess_format(findings: Findings, recorded_name: str) -> None:
    """Guess the format that a name suggests."""
    how, name = _format_in_names(findings, recorded_name)
    if name and "weights" not in findings.configuration:
        findings.guess(how, **{"precision" if name in ("bf16", "fp16") else "weights": name})


def _missing(findings: Findings) -> list[str]:
    """Return a sentence for each fact that no row and no configuration has."""
    sentences = []
    kinds = dict.fromkeys(reading.kind for reading in findings.readings)
    facts_by_kind = [NEEDED[kind] if findings.needed is None else findings.needed for kind in kinds]
    needed_facts = dict.fromkeys(name for names in facts_by_kind for name in names)
    if any(reading.values.get("phase") == "training" for reading in findings.readings):
        needed_facts.update(dict.fromkeys(_TRAINED))
    for name in needed_facts:
        if name in findings.configuration or _in_rows(findings, name):
            continue
        meaning, option, example = FACTS[name]
        shown = example if isinstance(example, int) else f'"{example}"'
        sidecar = f"{findings.path.name}.toml"
        sentences.append(
            f"{meaning} is not in the file: give `{option} {example}`, or write `{name} = {shown}` to {sidecar}"
        )
    return sentences


def _in_rows(findings: Findings, name: str) -> bool:
    needing = [reading for reading in findings.readings if name in NEEDED[reading.kind] or name in _TRAINED]
    return any(name in reading.values for reading in needing)


def precision_of(facts: dict[str, Any]) -> str | None:
    """Return the precision of products, also a format such as nvfp4 of both operands, where it is one that is known."""
    name = str(facts.get("precision") or "").lower()
    name = _AUTOCAST.get(name, name)
    return name if name in PRECISION_BYTES or name in FORMATS_OF_PRODUCTS else None


def weights_of(facts: dict[str, Any]) -> str | None:
    """Return the format of the weights, also one that is recorded as the precision, where it is one that is known."""
    weights, precision = (str(facts.get(name) or "").lower() for name in ("weights", "precision"))
    if weights in FORMATS:
        return weights
    return precision if precision in FORMATS and FORMATS[precision].precision is None else None


def count_of(facts: dict[str, Any], name: str) -> int | None:
    """Return a fact as a whole number of at least 1; None for anything else."""
    number = to_number(facts.get(name))
    return round(number) if number is not None and 0.5 <= number < _MOST else None
