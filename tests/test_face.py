"""The Python face: what `import paleo_lite as pl` gives, and that it costs nothing until it is used.

Tests: __init__.py.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import paleo_lite as pl


def test_every_name_is_there_and_no_other() -> None:
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


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True], ids=repr)
@pytest.mark.parametrize(
    "ask",
    [
        lambda wrong: pl.predict("alexnet", gpu="t4", batch_size=wrong),
        lambda wrong: pl.layers("alexnet", batch_size=wrong),
        lambda wrong: pl.scale("alexnet", gpu="t4", link="ethernet10", workers=2, batch_size=wrong),
        lambda wrong: pl.feeding("alexnet", gpu="t4", batch_size=wrong),
        lambda wrong: pl.report("alexnet", gpu="t4", output="never.html", batch_size=wrong),
        lambda wrong: pl.calibrate(gpu="t4", network="alexnet", suggest=2, batch_size=wrong),
        lambda wrong: pl.plot("layers", "alexnet", gpu="t4", batch_size=wrong),
        lambda wrong: pl.plot("batch", "alexnet", gpus="t4", batch_sizes=[wrong]),
        lambda wrong: pl.sweep(networks="alexnet", gpus="t4", output="never.csv", batch_sizes=[wrong]),
    ],
    ids=["predict", "layers", "scale", "feeding", "report", "calibrate", "plot", "plot batch", "sweep"],
)
def test_a_batch_size_that_is_none_is_refused(ask, wrong, tmp_path, monkeypatch):
    """Nought is not taken for what was left out."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pl.PaleoError, match=r"whole numbers? of 1 or more, not \[?" + str(wrong)):
        ask(wrong)
    assert not list(tmp_path.iterdir())
