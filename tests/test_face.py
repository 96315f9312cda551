"""The public Python interface: its names, its import time, its lists and the length of its reprs.

Tests: __init__.py.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import paleo_lite as pl
from asked import scaling

ROOT = Path(__file__).parent.parent


def test_every_public_name_exists_and_no_other() -> None:
    for name in pl.__all__:
        assert getattr(pl, name) is not None and name in dir(pl)
    with pytest.raises(AttributeError, match="no attribute 'prediction'"):
        _ = pl.prediction


def test_no_submodule_has_the_name_of_a_public_function() -> None:
    """Importing a submodule sets an attribute of the package, which would hide a function of the same name."""
    submodules = {module.name for module in pkgutil.iter_modules(pl.__path__)}
    assert not submodules & set(pl.__all__)


def test_importing_the_package_imports_no_library() -> None:
    code = "import sys, paleo_lite; print(sorted({'numpy', 'msgspec', 'click', 'torch'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


LISTS = {
    "devices": pl.devices,
    "hardware": pl.hardware,
    "network_names": pl.network_names,
    "networks": pl.networks,
    "links": pl.links,
    "calibrations": pl.calibrations,
    "scale": lambda: scaling("alexnet", gpu="k80-die", link="ethernet20", workers="1:64:x2"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_a_sequence_and_a_table(name: str) -> None:
    items = LISTS[name]()
    assert len(items) > 3 and items[-1] is items[len(items) - 1] and len(list(items)) == len(items)
    html = items._repr_html_()
    assert html.count("<tr>") > len(items)  # and the header
    first_three = items[:3]
    assert len(first_three) == 3 and first_three._repr_html_().count("<tr>") < html.count("<tr>")
    assert is_short(first_three) and is_short(items[0])
    pytest.importorskip("pandas")
    assert len(items.to_frame()) == len(items)


def is_short(result: object) -> bool:
    """Return whether a repr fits on a screen."""
    text = repr(result)
    return 0 < len(text) <= 4000 and text.count("\n") < 40


RESULTS = {
    **LISTS,
    "predict": lambda: pl.predict("vgg16", gpu="k80", precision="fp64"),
    "predict's workload": lambda: pl.predict("vgg16", gpu="k80", precision="fp64").workload,
    "predict's machine": lambda: pl.predict("vgg16", gpu="k80", precision="fp64").machine,
    "predict of several": lambda: pl.predict(["alexnet", "vgg16"], gpu=["k80", "k40m"]),
    "rows of scale": lambda: LISTS["scale"]().rows,
    "layers": lambda: pl.layers("densenet201"),
    "layers of several": lambda: pl.layers(["alexnet", "densenet201"]),
    "one network": lambda: pl.networks("densenet201"),
    "one device": lambda: pl.hardware("k80"),
    "one calibration": lambda: pl.calibrations("k40m-fp32"),
    "transfers": lambda: pl.links(move="1PB"),
    "audit": pl.audit,
    "feeding": lambda: pl.feeding("alexnet", gpu="p100-sxm2"),
    "gemm": lambda: pl.gemm(512, 64, 512, gpu="k40m", count=8),
    "Machine": lambda: pl.Machine(pl.devices()[0]),
    "Settings": lambda: pl.Settings(parallel=pl.ParallelConfig(tensor=8)),
    "PictureOptions": lambda: pl.PictureOptions(steps=28),
    "TrainingOptions": lambda: pl.TrainingOptions("adamw"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_repr_fits_on_a_screen(name: str) -> None:
    assert is_short(RESULTS[name]())


ANSWERS = {
    **RESULTS,
    "a training step": lambda: pl.predict("resnet50", gpu="v100-sxm2", batch_size=8, phase="training"),
    "a generated token": lambda: pl.predict("llama-3-8b", gpu="h100-sxm", precision="bf16", phase="decode"),
    "a job": lambda: scaling("gpt2", platform="dgx-a100", workers=8, precision="bf16", strategy="3d"),
    "a server": lambda: pl.serve("llama-3-8b", gpu="h100-sxm", rate=2),
}


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", ANSWERS)
def test_public_numbers_are_python_numbers(name: str) -> None:
    """numpy's print as ``np.float64(0.03)``."""
    assert list(numpy_numbers(ANSWERS[name](), name, set())) == []


def numpy_numbers(item: object, path: str, seen: set[int]) -> Iterator[str]:
    """Yield the paths of numpy's numbers in an answer: in its attributes, lists and dictionaries."""
    if isinstance(item, np.generic):
        yield f"{path}: {type(item).__name__}"
    if id(item) in seen or isinstance(item, (str, int, float, np.ndarray, type)) or callable(item) or len(path) > 300:
        return
    seen.add(id(item))
    if isinstance(item, dict):
        inside = {f"[{key!r}]": value for key, value in item.items()}
    elif isinstance(item, (list, tuple)):
        inside = {f"[{index}]": value for index, value in enumerate(item[:3])}
    else:
        inside = {f".{key}": getattr(item, key, None) for key in dir(item) if not key.startswith("_")}
    for key, value in inside.items():
        yield from numpy_numbers(value, path + key, seen)


def test_a_traced_network_fits_on_a_screen() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(200)))
    assert is_short(pl.trace(module, (1, 8)))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True], ids=repr)
@pytest.mark.parametrize(
    "ask",
    [
        lambda wrong: pl.predict("alexnet", gpu="t4", batch_size=wrong),
        lambda wrong: pl.layers("alexnet", batch_size=wrong),
        lambda wrong: scaling("alexnet", gpu="t4", link="ethernet10", workers=2, batch_size=wrong),
        lambda wrong: pl.feeding("alexnet", gpu="t4", batch_size=wrong),
        lambda wrong: pl.report(pl.Predict("alexnet", gpu="t4", batch_size=wrong), "never.html"),
        lambda wrong: pl.calibrate(gpu="t4", network="alexnet", suggest=2, batch_size=wrong),
        lambda wrong: pl.plot("layers", "alexnet", gpu="t4", batch_size=wrong),
        lambda wrong: pl.plot("batch", "alexnet", gpu="t4", batch_size=[wrong]),
        lambda wrong: pl.sweep(pl.Predict("alexnet", gpu="t4", batch_size=[wrong]), "never.csv"),
    ],
    ids=["predict", "layers", "scale", "feeding", "report", "calibrate", "plot", "plot batch", "sweep"],
)
def test_invalid_batch_size_is_an_error(ask, wrong, tmp_path, monkeypatch):
    """Zero is not treated as a missing value."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        pl.PaleoError, match=r"(whole numbers? of 1 or more, not|integers? >= 1 \(got) \[?" + str(wrong)
    ):
        ask(wrong)
    assert not list(tmp_path.iterdir())


SECTIONS = re.compile(r"^ *(Parameters|Returns|Yields|Raises)\n *-{3,}", re.MULTILINE)
DOCUMENTED = re.compile(r"^::: (paleo_lite[\w.]*)", re.MULTILINE)


def test_only_docstrings_of_the_reference_have_sections() -> None:
    """Any other function has one sentence, and says in comments what names and annotations do not tell."""
    reference = (ROOT / "docs" / "reference" / "python").glob("*.md")
    documented = {name for page in reference for name in DOCUMENTED.findall(page.read_text("utf-8"))}
    problems = []
    for path in sorted((ROOT / "paleo_lite").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        problems += [
            f"{path.relative_to(ROOT)}: {function.name}"
            for function in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(function, ast.FunctionDef) and SECTIONS.search(ast.get_docstring(function) or "")
            if module not in documented or function.name.startswith("_")
        ]
    assert not problems, f"state parameters and errors in sentences and comments, or add pages of: {problems}"
