"""The release: the script, the conda recipe and pyproject.toml agree, and completion works as documented."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from paleo_lite import __version__

ROOT = Path(__file__).parent.parent
PROJECT = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("paleo_lite_release", ROOT / "tests" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_release_is_tried_on_the_python_versions_of_the_continuous_integration(release):
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    versions = re.search(r'python: \[("3\.\d+"(?:, "3\.\d+")+)\]', workflow)[1]
    supported = release.supported_versions((ROOT / "pyproject.toml").read_text())
    assert supported == re.findall(r"[\d.]+", versions)
    assert PROJECT["requires-python"] == f">={supported[0]}"


def test_an_interpreter_has_the_requested_version(release):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = release.find_python(version)
    assert python is not None
    answer = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith(f"Python {version}.")
    assert release.find_python("3.4") is None


def test_a_version_without_interpreter_is_named_and_a_failure_fails(release, monkeypatch, capsys, tmp_path):
    def try_wheel(wheel, python):
        if python.name == "broken":
            raise AssertionError("1 parameters")
        return "vgg16 on K80"

    interpreters = {"3.11": Path("python"), "3.12": None, "3.13": Path("python"), "3.14": Path("python")}
    monkeypatch.setattr(release, "build", lambda folder: Path("a.whl"))
    monkeypatch.setattr(release, "try_wheel", try_wheel)
    monkeypatch.setattr(release, "find_python", interpreters.get)
    assert release.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Python 3.11  works: vgg16 on K80" in printed
    assert "Python 3.12  skipped: not on this machine" in printed
    interpreters["3.13"] = Path("broken")
    assert release.main([str(tmp_path)]) == 1
    assert "Python 3.13  failed: 1 parameters" in capsys.readouterr().out
    interpreters.clear()
    assert release.main([str(tmp_path)]) == 1


def recipe():
    """Return the rendered conda recipe."""
    yaml = pytest.importorskip("yaml", reason="the recipe is YAML: pip install 'paleo-lite[docs]'")
    jinja2 = pytest.importorskip("jinja2", reason="the recipe has variables: pip install 'paleo-lite[plots]'")
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    return yaml.safe_load(jinja2.Template(text, undefined=jinja2.StrictUndefined).render(PYTHON="python"))


def test_the_conda_recipe_has_the_metadata_of_pyproject():
    meta = recipe()
    assert meta["package"] == {"name": PROJECT["name"], "version": __version__}
    about = meta["about"]
    assert about["summary"] == PROJECT["description"]
    assert about["license"] == PROJECT["license"]
    assert [about["license_file"]] == PROJECT["license-files"]
    assert (ROOT / "recipe" / meta["source"]["path"] / "pyproject.toml").resolve() == ROOT / "pyproject.toml"
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert meta["build"]["entry_points"] == scripts


def test_the_conda_recipe_has_the_requirements_of_pyproject():
    run = recipe()["requirements"]["run"]
    required = [f"python{PROJECT['requires-python']}", *(line.split(";")[0] for line in PROJECT["dependencies"])]
    assert [re.sub(r" ", "", line) for line in run] == [line.strip() for line in required]
    build = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["build-system"]["requires"]
    assert set(build) <= set(recipe()["requirements"]["host"])


def test_urls_are_those_of_cited_work_and_missing_ones_are_named(release):
    cited = (ROOT / "CITATION.cff").read_text()
    assert [url for url in PROJECT["urls"].values() if url not in cited] == []
    assert release.missing_urls('\nHomepage = "https://example.org"\n') == ["Repository", "Issues", "Changelog"]


INSTALL = (ROOT / "docs" / "how-to" / "install.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "check"),
    [
        ("bash", "complete -p paleo-lite"),
        ("zsh", "print $_comps[paleo-lite]"),
        ("fish", "complete -C 'paleo-lite pre'"),
    ],
)
def test_completion_is_switched_on_as_documented(shell, check, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    line = re.search(rf"^```{shell} title=.*\n(.+)\n```$", INSTALL, re.MULTILINE)[1]
    command = tmp_path / "paleo-lite"
    program = "from paleo_lite.cli import main; main(prog_name='paleo-lite')"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    command.chmod(0o755)
    script = f"autoload -U compinit; compinit -D\n{line}\n{check}" if shell == "zsh" else f"{line}\n{check}"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
    }
    done = subprocess.run([shell, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "paleo" in done.stdout or "predict" in done.stdout
