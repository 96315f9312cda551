"""Reports of questions and profiles: errors, the files that remain after them, and how to get them again.

Tests: questions/report.py.
"""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

pytest.importorskip("altair")

from paleo_lite import extras
from paleo_lite.cli import main
from paleo_lite.files import shipped_folder
from paleo_lite.units import format_si

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _few_alternatives(few_alternatives):
    """These tests look at the rest of a report."""


def run(*words):
    """Ask `predict`, unless the first word is another command."""
    command = [] if words[0] in ("train", "serve", "local", "diffusion", "efficiency") else ["predict"]
    return CliRunner().invoke(main, [*command, *map(str, words)], prog_name="paleo-lite")


REFUSED = {
    "unknown network": (["alexnex"], 2, "did you mean alexnet"),
    "unknown device": (["alexnet", "--gpu", "k41m"], 2, "did you mean k40m"),
    "unknown precision of the device": (["alexnet", "--precision", "fp8"], 2, "has no fp8 peak"),
    "serving an image network": (["serve", "alexnet", "--rate", "5"], 2, "`serve` needs a language model"),
    "workers alone": (["train", "alexnet", "--workers", "8"], 2, "several workers need a link"),
    "no such profile": (["efficiency", "nowhere.parquet"], 1, "nowhere.parquet"),
    "fitting a batch on several": (
        ["train", "alexnet", "--batch-size", "fit", "--workers", "2"],
        2,
        "`--batch-size fit` is for one device",
    ),
    "another calibration": (["alexnet", "--calibration", "v100-sxm2-fp16"], 2, "not for k40m"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_questions_take_one_sentence_and_leave_no_file(case, tmp_path):
    words, code, sentence = REFUSED[case]
    gpu = [] if "--gpu" in words else ["--gpu", "k40m"]
    result = run(*words, *gpu, "--report", tmp_path / "r.html")
    assert result.exit_code in (1, code), result.output
    assert sentence in result.output
    assert result.output.count("\n") <= 3 and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_existing_file_requires_force(tmp_path):
    path = tmp_path / "r.html"
    path.write_text("mine")
    refused = run("alexnet", "--gpu", "k40m", "--report", path)
    assert refused.exit_code == 2 and "`--force` to replace it" in refused.output
    assert path.read_text() == "mine"
    forced = run("alexnet", "--gpu", "k40m", "--report", path, "--force")
    assert forced.exit_code == 0, forced.output
    assert path.read_text().startswith("<!doctype html>")
    assert [each.name for each in tmp_path.iterdir()] == ["r.html"]
    assert "--force" not in path.read_text()  # not part of how to get it again


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder, "is a folder"),
        (lambda folder: folder / "r.pdf", "the file name of a report must end in .html"),
        (lambda folder: folder / "file" / "r.html", "is not a folder"),
    ],
)
def test_unwritable_path_is_an_error(make, sentence, tmp_path):
    (tmp_path / "file").write_text("")
    result = run("alexnet", "--gpu", "k40m", "--report", make(tmp_path))
    assert result.exit_code in (1, 2) and sentence in result.output
    assert "a defect" not in result.output


def test_unwritable_folder_is_reported_before_computing(tmp_path, monkeypatch):
    monkeypatch.setattr("paleo_lite.api.prediction.predict_pass", lambda _: pytest.fail("it predicted"))
    monkeypatch.setattr("os.access", lambda path, mode: False)  # the tests may run as root, who may do anything
    result = run("alexnet", "--gpu", "k40m", "--report", tmp_path / "r.html")
    assert result.exit_code == 1 and f"no permission to write in {tmp_path}" in result.output


def test_a_disk_that_fails_is_one_sentence(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paleo_lite.files.write_atomically", full)
    result = run("alexnet", "--gpu", "k40m", "--report", tmp_path / "r.html")
    assert result.exit_code == 1
    assert result.output == f"paleo-lite: {tmp_path / 'r.html'}: cannot be written (No space left on device)\n"


@pytest.mark.parametrize("library", ["altair", "vl_convert", "jinja2"])
def test_missing_library_is_named_with_its_extra(library, tmp_path, monkeypatch):
    real = extras.importlib.import_module

    def absent(name, *rest):
        if name == library:
            raise ModuleNotFoundError(name=library)
        return real(name, *rest)

    monkeypatch.setattr(extras.importlib, "import_module", absent)
    result = run("alexnet", "--gpu", "k40m", "--report", tmp_path / "r.html")
    assert result.exit_code == 1
    assert "paleo-lite: writing a report needs the 'plots' extra: pip install 'paleo-lite[plots]'" in result.output


def test_predict_does_not_import_reports():
    code = (
        "import sys; from click.testing import CliRunner; from paleo_lite.cli import main;"
        "CliRunner().invoke(main, ['predict', 'alexnet', '--gpu', 'k40m']);"
        "print([name for name in sys.modules if name.split('.')[0] in ('jinja2', 'altair', 'vl_convert')"
        " or name.startswith('paleo_lite.reporting.page')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


QUESTIONS = {
    "inference": ["predict", "alexnet", "--gpu", "k40m", "--batch-size", "4", "--time-model", "roofline", "--clock",
                  "boost"],
    "largest batch": ["train", "resnet18", "--gpu", "t4", "--precision", "fp16", "--batch-size", "fit", "--optimizer",
                      "adam", "--mixed-precision", "--recompute", "sqrt"],
    "serving": ["serve", "llama-3.2-1b", "--gpu", "h100-sxm", "--precision", "bf16", "--rate", "5", "--output-tokens",
                "64", "--num-requests", "50"],
    "several": ["train", "resnet18", "--gpu", "k80-die", "--workers", "1,2", "--link", "ethernet20",
                "--global-batch-size", "32", "--accumulation", "2", "--communication", "overlap=no,bucket=5MB"],
    "a token": ["predict", "gpt2", "--gpu", "t4", "--precision", "fp16", "--phase", "decode", "--context", "99",
                "--weights", "int8", "--tensor", "2", "--link", "pcie3"],
    "own machine": ["local", "llama-3.2-1b", "--gpu", "rtx3060", "--weights", "q4_k_m"],
    "pictures": ["diffusion", "sd-1.5", "--gpu", "l4", "--image-size", "512x768", "--steps", "20"],
    "side by side": ["predict", "alexnet,resnet18", "--gpu", "k40m", "--batch-size", "1,2"],
}  # fmt: skip


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", QUESTIONS)
def test_commands_on_the_page_give_its_figures(name, tmp_path):
    """The JSON of the command that a report lists is that of the question, and its own command gives the same file."""
    path = tmp_path / "it's a report.html"
    asked = QUESTIONS[name]
    made = CliRunner().invoke(main, [*asked, "--report", str(path)])
    assert made.exit_code == 0, made.output
    page = path.read_text()
    commands = [html.unescape(text) for text in re.findall(r"<code>(.*?)</code>", page)]
    again, as_json = (shlex.split(command)[1:] for command in commands)
    answers = [CliRunner().invoke(main, words).stdout for words in (as_json, [*asked, "--format", "json"])]
    assert json.loads(answers[0]) == json.loads(answers[1])
    answer = json.loads(answers[0])
    if answer.get("time_s"):
        assert f'<dd class="value">{format_si(answer["time_s"], "s")}</dd>' in page
    path.rename(tmp_path / "first.html")
    assert CliRunner().invoke(main, again).exit_code == 0
    assert path.read_text() == page


def test_a_device_of_ones_own(tmp_path):
    own = tmp_path / "k41m.toml"
    text = (shipped_folder("hardware") / "k40m.toml").read_text()
    own.write_text(re.sub(r"(?m)^name = .*$", 'name = "<i>K41m</i>"', text, count=1))
    path = tmp_path / "r.html"
    result = run("alexnet", "--gpu", "k41m", "--hardware-file", own, "--report", path)
    assert result.exit_code == 0, result.output
    page = path.read_text()
    assert "&lt;i&gt;K41m&lt;/i&gt;" in page and "<i>" not in page
    assert ">k41m.toml</td>" in page
