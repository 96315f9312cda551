"""Every public function refuses a value of the wrong kind in one sentence that names the argument.

Tests: arguments.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.arguments import check_argument, check_arguments, quote_value
from paleo_lite.errors import BadValue, PaleoError, UnknownName
from paleo_lite.questions.names import CombinedNames, Names, OptimizerNames
from paleo_lite.questions.records import FORMATS, TRAINING_PRECISIONS

WRONG: dict[str, Any] = {
    "None": None, "1e400": 10**400, "1e5000": 10**5000, "nan": float("nan"), "[]": [], "{}": {}, "object": object(),
    "-1": -1, "bytes": b"x", "class": int,
}  # fmt: skip
HAVE_NO_ARGUMENT_TO_MISTAKE = {"network_names", "ui"}
ARE_VALID = {
    ("audit", "[]"), ("devices", "[]"), ("calibrations", "None"), ("hardware", "None"), ("networks", "None"),
    ("links", "None"), ("measure", "[]"), ("measure", "None"), ("best", "nothing"),
}  # fmt: skip
FUNCTIONS = [
    name
    for name in pl.__all__
    if name[0].islower() and callable(getattr(pl, name)) and name not in {*HAVE_NO_ARGUMENT_TO_MISTAKE, "rule", "trace"}
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_public_function_refuses_a_wrong_first_argument_in_a_sentence(function: str) -> None:
    signature = inspect.signature(getattr(pl, function))
    parameters = list(signature.parameters.values())
    required = [parameter for parameter in parameters if parameter.default is parameter.empty and parameter.kind
                in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)] or parameters[:1]  # fmt: skip
    for name, value in WRONG.items():
        if (function, name) in ARE_VALID:
            continue
        with pytest.raises(PaleoError) as refused:
            getattr(pl, function)(**{parameter.name: value for parameter in required})
        assert 10 < len(str(refused.value)) < 300, (function, name)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("function", "arguments", "option"),
    [
        (pl.predict, {"network": "resnet18", "gpu": "t4"}, "batch_size"),
        (pl.train, {"network": "gpt2", "gpu": "t4"}, "global_batch_size"),
        (pl.serve, {"network": "llama-3.2-1b", "gpu": "h100-sxm", "rate": 1}, "tensor"),
        (pl.local, {"network": "llama-3.2-1b", "gpu": "rtx3060"}, "prompt"),
        (pl.diffusion, {"network": "flux.1-dev", "gpu": "h100-sxm"}, "steps"),
        (pl.feeding, {"network": "resnet18", "gpu": "t4"}, "workers"),
        (pl.gemm, {"m": 64, "n": 64, "k": 64, "gpu": "t4"}, "count"),
        (pl.rl, {"network": "qwen3-0.6b", "gpu": "h100-sxm"}, "prompts"),
    ],
)
@pytest.mark.parametrize("value", [10**400, 10**5000, object(), [[1]]], ids=["1e400", "1e5000", "object", "nested"])
def test_options_refuse_numbers_that_are_too_large_and_strange_objects(
    function: Any, arguments: dict[str, Any], option: str, value: Any
) -> None:
    with pytest.raises(BadValue, match=option.replace("_", "[-_]")):
        function(**arguments, **{option: value})


ASKED: dict[str, dict[str, Any]] = {
    "feeding": {"network": "resnet18", "gpu": "t4"},
    "gemm": {"m": 64, "n": 64, "k": 64, "gpu": "t4"},
    "predict": {"network": "resnet18", "gpu": "t4"},
    "layers": {"network": "resnet18", "gpu": "t4"},
    "rl": {"network": "qwen3-0.6b", "gpu": "h100-sxm"},
    "links": {},
    "networks": {},
    "devices": {},
    "best": {"file": "absent.csv"},
    "calibrate": {"measured": "absent.csv"},
}
STRANGE: dict[str, Any] = {
    "Path": Path("nowhere.x"), "bytes": b"x", "1e308": 1e308, "5e-324": 5e-324, "1e-300": 1e-300, "set": {1, 2},
    "class": int, "array": np.array([1.0, 2.0]), "array of one": np.array(2), "np.int64": np.int64(2),
    "np.float32": np.float32(2), "np.bool": np.bool_(True), "np.str": np.str_("x"), "datetime": datetime(2026, 1, 1),
    "Decimal": Decimal(2), "Fraction": Fraction(3, 2), "complex": 1j, "inf": float("inf"), "list": [1, "a", None],
    "dict": {1: 2}, "function": len, "nul": "a\0b", "surrogate": "\ud800", "tuple": (), "range": range(1, 3),
}  # fmt: skip
SLOW_ARGUMENTS = {"image_size"}


@pytest.mark.spread(40)
@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (function, name)
        for function in ASKED
        for name in inspect.signature(getattr(pl, function)).parameters
        if name not in SLOW_ARGUMENTS
    ],
)
def test_every_argument_is_answered_or_refused_in_a_sentence(function: str, argument: str) -> None:
    """Any other error than a PaleoError fails the test, and so does one of several lines."""
    values = STRANGE | {"generator": (number for number in range(2))}
    for value in values.values():
        try:
            getattr(pl, function)(**{**ASKED[function], argument: value})
        except PaleoError as error:
            assert 10 < len(str(error)) < 600 and "\n" not in str(error)


def test_a_path_is_the_name_that_it_spells() -> None:
    assert pl.gemm(64, 64, 64, gpu=Path("t4")).to_dict() == pl.gemm(64, 64, 64, gpu="t4").to_dict()


def test_a_flag_is_true_or_false() -> None:
    with pytest.raises(BadValue, match=r"^`--decoded` must be True or False \(got 'no'\)$"):
        pl.feeding("resnet18", gpu="t4", decoded="no")  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    product = pl.gemm(np.int64(64), np.array(64), np.array([64, 128]), gpu="t4")
    assert product.to_dict() == pl.gemm(64, 64, [64, 128], gpu="t4").to_dict()
    assert next(iter(pl.Predict("resnet18", gpu="t4", site={"pue": np.array([1.2])}).site.items())) == ("pue", 1.2)


@pytest.mark.parametrize("eight", [8.0, np.float64(8), Decimal(8), Fraction(16, 2), np.int64(8), np.array(8)])
def test_numbers_of_other_kinds_are_numbers(eight: Any) -> None:
    assert pl.Predict("resnet18", gpu="t4", batch_size=eight).batch_size == 8
    assert pl.Predict("resnet18", gpu="t4", batch_size=[eight, 8, 16]).batch_size == [8, 16]
    assert pl.Diffusion("flux.1-dev", gpu="h100-sxm", image_size=(eight * 64, 768)).image_size == "512x768"
    assert float(str(pl.Serve("llama-3.2-1b", gpu="h100-sxm", rate=eight).rate)) == 8
    workers = pl.Rl("qwen3-8b", gpu="h100-sxm", workers=eight).workers
    assert type(workers) is int and workers == 8  # the default is 8, too


@pytest.mark.parametrize("number", [8.5, Decimal("8.5"), Fraction(17, 2), Decimal("NaN"), float("nan"), 8 + 1j])
def test_numbers_that_are_not_whole_are_no_batch_size(number: Any) -> None:
    with pytest.raises(BadValue, match="--batch-size"):
        pl.Predict("resnet18", gpu="t4", batch_size=number)


def test_an_array_is_no_size_of_a_picture() -> None:
    """It can be meant as one size, as a tuple is, or as several, as a list is."""
    with pytest.raises(BadValue, match=r"`--image-size` takes a tuple of width and height, .* \(got array\(\[512, 512"):
        pl.Diffusion("flux.1-dev", gpu="h100-sxm", image_size=np.array([512, 512]))


@pytest.mark.parametrize(
    ("function", "argument", "value", "bound"),
    [
        ("feeding", "decode_rate", 1e308, r"at most 1e\+30"),
        ("feeding", "decode_rate", 5e-324, "at least 1e-30"),
        ("feeding", "decode_rate", 0, "a number > 0"),
        ("feeding", "sample_bytes", 1e-300, "at least 1e-30"),
        ("gemm", "count", "9" * 5000, r"at most 2\^63 - 1"),
        ("gemm", "count", 0, "an integer >= 1"),
        ("gemm", "m", "1" + "0" * 15, r"below 10\^15"),
        ("predict", "ppp", 1e31, r"at most 1e\+30"),
    ],
)
def test_a_refusal_names_the_bound_that_is_broken(function: str, argument: str, value: Any, bound: str) -> None:
    with pytest.raises(BadValue, match=f"must be {bound}"):
        getattr(pl, function)(**{**ASKED[function], argument: value})


def test_tokens_beyond_the_most_name_both_bounds() -> None:
    with pytest.raises(BadValue, match="must be tokens from 1 to 10,000,000"):
        pl.serve("llama-3.2-1b", gpu="h100-sxm", rate=1, input_tokens=10**12)


@pytest.mark.parametrize("option", ["gpu", "calibration", "time_model", "hardware_files", "phase"])
def test_options_that_take_names_refuse_other_objects(option: str) -> None:
    options: dict[str, Any] = {"gpu": "t4", option: object()}
    with pytest.raises(BadValue, match="takes no such value"):
        pl.predict("resnet18", **options)


def test_an_amount_of_data_over_links_is_positive() -> None:
    with pytest.raises(BadValue, match=r"^`move` must be an amount of data > 0, such as '1PB' \(got -1\)$"):
        pl.links(move=-1)


def test_a_message_says_what_is_right() -> None:
    with pytest.raises(BadValue, match=r"^`file` must be a path \(got None\)$"):
        pl.best(None)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match=r"^`paths` must be a path or a list of paths \(got \[None\]\)$"):
        pl.efficiency([None])  # type: ignore[arg-type]
    with pytest.raises(BadValue, match=r"^`--top` must be at most 2\^63 - 1 \(got an integer of about 401 digits\)$"):
        pl.best("rows.csv", top=10**400)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("Paths", Path("a")), ("Paths", ["a", Path("b")]), ("Paths", iter([Path("a")])), ("str | None", None),
        ("int", True), ("float", 3), ("Sequence[str | Path]", ()), ("Any", object()), ("nn.Module", object()),
        ("Names", {"a", "b"}), ("Mapping[str, float | str] | None", {"pue": 1.2}),
    ],
)  # fmt: skip
def test_right_values_pass(annotation: str, value: Any) -> None:
    check_argument("x", annotation, value)


def test_a_checked_function_keeps_its_signature_and_its_answers() -> None:
    @check_arguments
    def add(a: int, b: Sequence[int] = ()) -> int:
        """Add."""
        return a + sum(b)

    assert add(1, [2, 3]) == 6
    assert add.__doc__ == "Add."
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    with pytest.raises(BadValue, match=r"^`b` must be a list of integers \(got \[2, '3'\]\)$"):
        add(1, [2, "3"])  # type: ignore[list-item]


def test_quoted_values_are_short() -> None:
    assert quote_value(10**400) == "an integer of about 401 digits"
    assert quote_value([10**5000]) == "a list"
    assert len(quote_value("x" * 1000)) == 80


@pytest.mark.parametrize(
    ("category", "typed", "listed"),
    [
        (FORMATS, "UD-Q4_K_XL", "q4_k_xl"),  # a file of Unsloth
        (FORMATS, "Q4_K_M", "q4_k_m"),  # as files of llama.cpp are named
        (FORMATS, "FP8_E4M3", "fp8"),
        (TRAINING_PRECISIONS, "BF16", "bf16"),
        (Names("engine", ".engines.records:SERVERS"), "vLLM", "vllm"),
        (OptimizerNames("optimizer", ".timing.optimizers:OPTIMIZERS"), "AdamW_Torch", "adamw"),
        (CombinedNames("state", ".reinforcement.frameworks:OFFLOADS"), "Parameters+Optimizer", "optimizer+parameters"),
    ],
)
def test_the_case_of_a_name_does_not_matter(category: Names, typed: str, listed: str) -> None:
    assert category.convert(typed, None, None) == listed
    with pytest.raises(UnknownName, match=re.escape(f"{typed}x")):
        category.convert(f"{typed}x", None, None)
