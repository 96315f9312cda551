"""`paleo-lite report`: errors, and the files that remain after them.

Tests: api/report_arguments.py, api/report_provenance.py, api/reporting.py.
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
from paleo_lite.reporting.document import format_time_short
from paleo_lite.units import format_si

pytestmark = pytest.mark.slow


def run(*words):
    return CliRunner().invoke(main, ["report", *map(str, words)], prog_name="paleo-lite")


REFUSED = {
    "no question": ([], 2, "exactly one of them"),
    "two questions": (["alexnet", "--profile", "x.parquet"], 2, "exactly one of them"),
    "unknown network": (["alexnex"], 2, "did you mean alexnet"),
    "unknown device": (["alexnet", "--gpu", "k41m"], 2, "did you mean k40m"),
    "unknown precision of the device": (["alexnet", "--precision", "fp8"], 2, "has no fp8 peak"),
    "tokens without a rate": (["llama-3-8b", "--input-tokens", "64"], 2, "`--input-tokens` is for serving"),
    "serving an image network": (["alexnet", "--rate", "5"], 2, "`serve` needs a language model"),
    "workers alone": (["alexnet", "--workers", "8"], 2, "several workers need a link: give `--link"),
    "a link without workers": (["alexnet", "--link", "pcie3-x16"], 2, "`--link` is for several devices"),
    "images without workers": (["alexnet", "--images", "1M"], 2, "`--images` is for several devices"),
    "a cloud's price without workers": (["alexnet", "--price-of", "AWS"], 2, "`--price-of` is for several devices"),
    "inference on several": (
        ["alexnet", "--workers", "2", "--phase", "inference"],
        2,
        "training, prefill and decode (got inference)",
    ),
    "a program of a network": (["alexnet", "--program", "x"], 2, "`--program` is for the report of a profile"),
    "a batch of a profile": (
        ["--profile", "x", "--batch-size", "8"],
        2,
        "`--batch-size` is for the report of a network",
    ),
    "no such profile": (["--profile", "nowhere.parquet"], 1, "nowhere.parquet"),
    "fitting a batch that is given": (["alexnet", "--fit-batch", "--batch-size", "8"], 2, "leave `--batch-size` out"),
    "an optimizer at inference": (["alexnet", "--optimizer", "adam"], 2, "options of `--phase training`"),
    "another calibration": (["alexnet", "--calibration", "v100-sxm2-fp16"], 2, "not for k40m"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_questions_take_one_sentence_and_leave_no_file(case, tmp_path):
    words, code, sentence = REFUSED[case]
    gpu = [] if "--gpu" in words else ["--gpu", "k40m"]
    result = run(*words, *gpu, "-o", tmp_path / "r.html")
    assert result.exit_code in (1, code), result.output
    assert sentence in result.output
    assert result.output.count("\n") <= 3 and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_existing_file_requires_force(tmp_path):
    path = tmp_path / "r.html"
    path.write_text("mine")
    refused = run("alexnet", "--gpu", "k40m", "-o", path)
    assert refused.exit_code == 2 and "`--force` to replace it" in refused.output
    assert path.read_text() == "mine"
    forced = run("alexnet", "--gpu", "k40m", "-o", path, "--force")
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
    result = run("alexnet", "--gpu", "k40m", "-o", make(tmp_path))
    assert result.exit_code in (1, 2) and sentence in result.output
    assert "a defect" not in result.output


def test_unwritable_folder_is_reported_before_computing(tmp_path, monkeypatch):
    monkeypatch.setattr("paleo_lite.api.prediction.answer", lambda _: pytest.fail("it predicted"))
    monkeypatch.setattr("os.access", lambda path, mode: False)  # the tests may run as root, who may do anything
    result = run("alexnet", "--gpu", "k40m", "-o", tmp_path / "r.html")
    assert result.exit_code == 1 and f"no permission to write in {tmp_path}" in result.output


def test_a_disk_that_fails_is_one_sentence(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paleo_lite.files.write_atomically", full)
    result = run("alexnet", "--gpu", "k40m", "-o", tmp_path / "r.html")
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
    result = run("alexnet", "--gpu", "k40m", "-o", tmp_path / "r.html")
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
    "inference": ["alexnet", "--gpu", "k40m", "--batch-size", "4", "--time-model", "roofline", "--clock", "boost"],
    "largest batch": ["resnet18", "--gpu", "t4", "--precision", "fp16", "--phase", "training", "--fit-batch",
                      "--optimizer", "adam", "--mixed-precision", "--checkpointing", "sqrt"],
    "serving": ["llama-3.2-1b", "--gpu", "h100-sxm", "--precision", "bf16", "--phase", "decode", "--rate", "5",
                "--output-tokens", "64"],
    "several": ["resnet18", "--gpu", "k80-die", "--workers", "2", "--link", "ethernet20"],
    "a token": ["gpt2", "--gpu", "t4", "--precision", "fp16", "--phase", "decode", "--context", "99",
                "--weights", "int8", "--workers", "2", "--link", "pcie3"],
    "strong": ["resnet18", "--gpu", "k80-die", "--workers", "1,2", "--link", "ethernet20", "--scaling", "strong",
               "--batch-size", "32", "--accumulation", "2"],
}  # fmt: skip


@pytest.mark.parametrize(
    "question",
    [
        "inference",
        "several",
        "serving",
        "a token",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("largest batch", "strong")),
    ],
)
def test_commands_on_the_page_give_its_figures(question, tmp_path):
    """The figures of a report equal the JSON of the commands that it lists."""
    path = tmp_path / "it's a report.html"
    assert run(*QUESTIONS[question], "-o", path).exit_code == 0
    page = path.read_text()
    commands = [html.unescape(text) for text in re.findall(r"<code>(.*?)</code>", page)]
    again, *others = (shlex.split(command)[1:] for command in commands)
    for words in others:
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        answer = json.loads(result.stdout)
        if words[0] == "serve":
            shown = format_time_short(answer["latencies"]["ttft_s"]["p50"]["value"])
            assert f"time to first token {shown}" in page
            continue
        is_of_several = "rows" in answer
        step = answer["rows"][-1] if is_of_several else answer
        shown = f"{step['speedup']:.4g} ×" if is_of_several else format_si(step["time_s"], "s")
        assert f'<dd class="value">{shown}</dd>' in page
    asked = QUESTIONS[question]
    is_generating = "decode" in asked or "prefill" in asked
    is_training = "training" in asked or ("--workers" in asked and not is_generating)
    command = "train" if is_training else "predict"
    assert [words[0] for words in others] == (
        [command] + [command] * ("--workers" in asked) + ["serve"] * ("--rate" in asked)
    )
    path.rename(tmp_path / "first.html")
    assert CliRunner().invoke(main, again).exit_code == 0
    assert path.read_text() == page


def test_a_device_of_ones_own(tmp_path):
    own = tmp_path / "k41m.toml"
    text = (shipped_folder("hardware") / "k40m.toml").read_text()
    own.write_text(re.sub(r"(?m)^name = .*$", 'name = "<i>K41m</i>"', text, count=1))
    path = tmp_path / "r.html"
    result = run("alexnet", "--gpu", "k41m", "--hardware-file", own, "-o", path)
    assert result.exit_code == 0, result.output
    page = path.read_text()
    assert "&lt;i&gt;K41m&lt;/i&gt;" in page and "<i>" not in page
    assert ">k41m.toml</td>" in page
