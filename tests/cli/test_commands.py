"""The command line as people use it: output in four formats, exit codes, one sentence for every mistake.

Tests: __main__.py, cli/__init__.py, cli/layers.py, reporting/devices.py.
"""

from __future__ import annotations

import builtins
import csv
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paleo_lite.__main__ import run as start
from paleo_lite.cli import GROUPS, main
from paleo_lite.files import shipped_folder

pytestmark = pytest.mark.slow


def run(*arguments: str, width: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, list(arguments), prog_name="paleo-lite")


COMMANDS = [
    ["predict", "vgg16", "--gpu", "k80", "--precision", "fp64"],
    ["predict", "resnet50", "--gpu", "v100-sxm2", "--precision", "fp16", "--batch-size", "64", "--phase", "training"],
    ["predict", "vgg16", "--gpu", "k40m", "--ppp", "0.62", "--time-model", "ppp-overlap"],
    ["predict", "--flops", "15503M", "--gpu", "k80"],
    ["predict", "googlenet", "--gpu", "Tesla K80", "--clock", "base", "--explain", "conv1.conv"],
    ["predict", "maxvit_t", "--gpu", "h100-sxm", "--precision", "bf16", "--top", "all"],
    ["predict", "vgg16,resnet50", "--gpu", "k80-die,k40m,p100-sxm2", "--batch-size", "1,8,32"],
    ["predict", "--macs", "15G", "--gpu", "k80,t4", "--precision", "fp32,fp64"],
    ["layers", "vgg16", "--convention", "pthflops", "--ignore", "classifier.*"],
    ["layers", "vgg16", "resnet50", "--convention", "pthflops"],
    ["layers", "resnet50", "--depth", "1"],
    ["layers", "resnet50", "--top", "5"],
    ["layers", "swin_t", "--phase", "backward_weight", "--batch-size", "8"],
    ["networks", "list"],
    ["networks", "show", "alexnet"],
    ["hardware", "list"],
    ["hardware", "show", "k80"],
    ["hardware", "links"],
    ["hardware", "audit"],
]


@pytest.mark.spread(40)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("style", ["table", "json", "csv", "markdown"])
def test_every_command_prints_every_format(command: list[str], style: str) -> None:
    result = run(*command, "--format", style)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    if style == "json":
        assert isinstance(json.loads(result.stdout), dict)
    elif style == "csv":
        rows = list(csv.reader(io.StringIO(result.stdout)))
        assert len(rows) >= 2 and len({len(row) for row in rows}) == 1
    elif style == "markdown":
        assert "|" in result.stdout or result.stdout.startswith("**")


@pytest.mark.spread(16)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(command: list[str], width: int) -> None:
    lines = run(*command, width=width).stdout.splitlines()
    # Headlines and notes are sentences: they may be wrapped by the terminal.
    table = [line for line in lines[1:] if not line.startswith("note:")]
    assert max(len(line.rstrip()) for line in table) <= width


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["predict", "vgg61", "--gpu", "k80"], 2, "did you mean vgg1"),
        (["predict", "vgg16", "--gpu", "k81"], 2, "k80"),
        (["predict", "vgg16", "--gpu", "v100"], 2, "use v100-sxm2 (16 GB, 900 GB/s, 300 W), v100-pcie (16 GB"),
        (["predict", "vgg16", "--gpu", "k80", "--precision", "fp8"], 2, "no fp8 peak: it has fp32 (vector)"),
        (
            ["predict", "vgg16", "--gpu", "k80", "--batch-size", "0"],
            2,
            "`--batch-size` must be an integer >= 1 (got 0)",
        ),
        (["predict", "vgg16", "--gpu", "k80", "--batch-size", "-4"], 2, "an integer >= 1 (got -4)"),
        (["predict", "vgg16", "--gpu", "k80", "--batch-size", "eight"], 2, "an integer >= 1 (got 'eight')"),
        (["predict", "vgg16", "--gpu", "k80", "--ppp", "0"], 2, "`--ppp` must be a number > 0"),
        (["predict", "vgg16", "--gpu", "k80", "--ppp", "-1"], 2, "`--ppp` must be a number > 0"),
        (["predict", "vgg16", "--gpu", "k80", "--ppp", "nan"], 2, "`--ppp` must be a number > 0"),
        (
            ["predict", "vgg16", "--gpu", "k80", "--image-size", "0"],
            2,
            "`--image-size` must be an integer >= 1",
        ),
        (["predict", "vgg16", "--gpu", "k80", "--top", "few"], 2, "`--top` must be an integer >= 0 or 'all'"),
        (["predict", "vgg16", "--gpu", "k80", "--explain", "features.99"], 2, "no layer of vgg16"),
        (["predict", "vgg16", "--gpu", "k80", "--time-model", "ppp"], 2, "needs a PPP"),
        (["predict", "vgg16"], 2, "give the device with `--gpu`"),
        (["predict", "--gpu", "k80"], 2, "give a network, `flops` or `macs`"),
        (["predict", "--flops", "many", "--gpu", "k80"], 2, "'many' is not a quantity"),
        (["predict", "vgg16", "--gpu", "k80", "--hardware-file", "absent.toml"], 1, "cannot be read"),
        (["predict", "absent.json", "--gpu", "k80"], 1, "cannot be read"),
        (["predict", "no_such_module:make", "--gpu", "k80", "--input", "3x8x8"], 1, "No module named"),
        (["predict", "json:dumps", "--gpu", "k80", "--input", "3x8x8"], 1, "TypeError"),
        (["predict", "builtins:dict", "--gpu", "k80", "--input", "3x8x8"], 1, "returned a dict, not a torch.nn.Module"),
        (["layers", "torch.nn:ReLU", "--input", "3x0x8"], 2, "is not a shape"),
        (["predict", "vgg16", "--gpu", "k80,k4Om"], 2, "did you mean k40m"),
        (
            ["predict", "vgg16", "--gpu", "k80", "--format", "json", "--explain", "nothing"],
            2,
            "no layer of vgg16 is called 'nothing'",
        ),
        (["predict", "vgg16", "--gpu", "k80", "--rules", "absent.py"], 1, "absent.py: cannot be read (No such file"),
        (
            ["train", "vgg16", "--gpu", "t4", "--samples", "1M", "--price", "abc", "--batch-size", "1"],
            2,
            "`--price` must be USD per hour, such as '2.50 USD/h', or a cloud, such as AWS",
        ),
        (["train", "vgg16", "--gpu", "t4", "--price", "3 USD"], 2, "`--price`: '3 USD' is not in USD/h"),
        (["train", "vgg16,alexnet", "--gpu", "t4", "--price-of", "aws"], 2, "`--price-of` is `--price CLOUD` now"),
        (["gemm", "1", "1", "1", "--peak", "6"], 2, "`--peak`: '6' has no unit: expected a quantity such as"),
        (
            ["serve", "llama-3-8b", "--gpu", "h100-sxm", "--rate", "1", "--slo", "ttft=500"],
            2,
            "`--slo` ttft=500: '500' has no unit: expected a quantity such as '50 ms'",
        ),
        (
            ["serve", "llama-3-8b", "--gpu", "h100-sxm", "--rate", "1", "--engine-settings", "overhead=1"],
            2,
            "`--engine-settings`, overhead: '1' has no unit",
        ),
        (
            ["serve", "llama-3-8b", "--gpu", "h100-sxm", "--rate", "1", "--speculation", "acceptance=0.5"],
            2,
            "`--speculation` needs tokens=N",
        ),
        (["networks", "export", "alexnet", "-o", "alexnet.txt"], 2, "a descriptor must end in .json"),
        (["predict", "vgg16", "--gpu", "k80", "--batch-size", "0,2"], 2, "not an integer >= 1"),
        (
            ["predict", "vgg16", "--gpu", "k80,t4", "--explain", "features.0"],
            2,
            "`--explain` needs a single prediction",
        ),
        (
            ["layers", "vgg16", "vgg19", "--depth", "2"],
            2,
            "`--depth` and `--top` can be used only with a single network",
        ),
        (["layers", "vgg16", "--ignore", "nothing*"], 2, "no layer of vgg16"),
        (["layers", "vgg16", "--convention", "lu2017", "--phase", "backward"], 2, "covers the forward pass only"),
        (["networks", "show", "restnet50"], 2, "did you mean resnet50"),
        (["networks", "export", "nosuchnet", "-o", "x.json"], 2, "nosuchnet"),
        (["hardware", "show", "titan x"], 2, "matches more than one GPU"),
        (["predcit"], 2, "did you mean predict"),
    ],
)
def test_mistakes_get_one_sentence_and_an_exit_code(arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if line and not line.startswith(("Usage", "Try"))]) == 1


def test_debug_shows_the_traceback() -> None:
    result = run("predict", "vgg61", "--gpu", "k80", "--debug")
    assert type(result.exception).__name__ == "UnknownName"


def test_error_of_a_factory_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_factory.py").write_text("def make():\n    raise ValueError('the flux is low')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run("layers", "broken_factory:make", "--input", "3x8x8")
    assert result.exit_code == 1
    assert result.stderr == "paleo-lite: broken_factory:make failed: ValueError: the flux is low\n"


@pytest.mark.thorough
def test_layers_of_ones_own_network(tmp_path: Path) -> None:
    """A module file in the current folder; nn.Linear(64, 8) has 512 multiply-accumulates and 8 biases."""
    code = "import torch.nn as nn\ndef make():\n    return nn.Sequential(nn.Linear(64, 8), nn.ReLU())\n"
    (tmp_path / "own_network.py").write_text(code)
    script = Path(sys.executable).parent / "paleo-lite"
    arguments = ["layers", "own_network:make", "--input", "64", "--format", "json"]
    done = subprocess.run([script, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["total"] == 2 * 512 + 8 + 8
    assert [layer["kind"] for layer in answer["layers"]] == ["linear", "relu"]
    assert answer["layers"][0]["weight_shape"] == [8, 64]


def test_json_of_layers_matches_the_documentation() -> None:
    answer = json.loads(run("layers", "vgg16", "--convention", "pthflops", "--format", "json").stdout)
    assert {"network", "convention", "total", "by_kind", "layers"} <= set(answer)
    assert answer["total"] == 15_516_752_872  # course exercise, below
    assert set(answer["by_kind"]["conv2d"]) >= {"count", "share"}
    fields = "name kind count macs parameters input_shape output_shape weight_shape"
    assert list(answer["layers"][0]) == fields.split()
    assert answer["layers"][0]["count"] == 89_915_392  # course exercise, below
    assert answer["layers"][0]["input_shape"] == [1, 3, 224, 224]


@pytest.mark.parametrize("setting", [["--clock", "900 MHz"], ["--power-limit", "100 W"]], ids=" ".join)
def test_layers_take_the_clock_and_the_power_limit_of_predict(setting: list[str]) -> None:
    workload = ["resnet18", "--gpu", "titan-rtx", "--precision", "fp16", "--batch-size", "64", "--format", "json"]
    costs = json.loads(run("layers", *workload, *setting).stdout)["on"]
    predicted = json.loads(run("predict", *workload, *setting).stdout)
    assert costs["time_s"] == pytest.approx(predicted["time_s"])
    assert costs["time_s"] > 1.05 * json.loads(run("layers", *workload).stdout)["on"]["time_s"]
    alone = run("layers", "resnet18", *setting)
    assert alone.exit_code == 2 and "is that of a device: give `--gpu`" in alone.stderr


def test_an_ignore_list_leaves_conv_and_avgpool() -> None:
    """Course exercise "PALEO, FLOPs, Platform Percent of Peak" (2022): all but convolutions and avgpool ignored."""
    kept = ["0", "2", "5", "7", "10", "12", "14", "17", "19", "21", "24", "26", "28"]
    ignored = [f"features_{i}" for i in range(31) if str(i) not in kept] + [f"classifier_{i}" for i in range(7)]
    options = [part for name in ignored for part in ("--ignore", name)]
    answer = json.loads(run("layers", "vgg16", "--convention", "pthflops", "--format", "json", *options).stdout)
    assert answer["total"] == 15_361_407_488
    assert f"{answer['total'] / 15_516_752_872:.2%}" == "99.00%"


def test_hardware_json() -> None:
    devices = json.loads(run("hardware", "list", "--format", "json").stdout)["devices"]
    by_id = {device["id"]: device for device in devices}
    assert by_id["k40m"]["fp32_flops"] == 4.29e12
    figures = json.loads(run("hardware", "show", "k80", "--format", "json").stdout)
    assert figures["id"] == "k80"
    assert figures["figures"]["memory"]["bandwidth"]["value"] == "480 GB/s"


def test_the_audit_fails_on_a_wrong_figure(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text((shipped_folder("hardware") / "k40m.toml").read_text().replace("4.29 TFLOP/s", "8.58 TFLOP/s"))
    result = run("hardware", "audit", "--hardware-file", str(mine))
    assert result.exit_code == 1
    assert "8.58 TFLOP/s" in result.stdout.replace("\n", " ")


def test_export_writes_a_descriptor_that_predicts(tmp_path: Path) -> None:
    target = tmp_path / "own.json"
    result = run("networks", "export", "alexnet", "-o", str(target), "--image-size", "256")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(run("predict", str(target), "--gpu", "k80", "--format", "json").stdout)
    assert answer["parameters"] == 61_100_840  # torchvision's num_params
    again = run("networks", "export", "alexnet", "-o", str(target))
    assert again.exit_code == 2 and "already exists" in again.stderr


def test_help_of_every_command_reads() -> None:
    for command in ([], ["predict"], ["layers"], ["networks"], ["networks", "export"], ["hardware"]):
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert "Usage: paleo-lite" in result.stdout


def test_completion_knows_networks_and_devices() -> None:
    def complete(words: str, cword: int) -> str:
        environment = {
            **os.environ,
            "_PALEO_LITE_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(cword),
        }
        script = "from paleo_lite.cli import main; main(prog_name='paleo-lite')"
        return subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        ).stdout

    assert "vgg16" in complete("paleo-lite predict vg", 2)
    assert "k80-die" in complete("paleo-lite predict vgg16 --gpu k8", 4)
    assert "predict" in complete("paleo-lite pre", 1)


def test_a_prediction_imports_no_heavy_library() -> None:
    script = (
        "import sys; from paleo_lite.cli import main\n"
        "try: main(['predict', 'vgg16', '--gpu', 'k80'], standalone_mode=False)\n"
        "finally: print(sorted({'torch', 'torchvision', 'pandas', 'pyarrow', 'scipy', 'altair'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.thorough
def test_efficiency_does_not_import_pandas(tmp_path: Path) -> None:
    """Importing it takes longer than reading a small profile, and many functions of pyarrow do so."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    columns = {"Idx": [1, 2], "Kernel": ["sgemm", "relu"], "Sil(ns)": [900, 100], "FLOPs": [1000, 0], "Bytes": [64, 64]}
    path = tmp_path / "kernels.parquet"
    parquet.write_table(pa.table(columns), path)
    script = (
        "import sys; from paleo_lite.cli import main\n"
        f"main(['efficiency', {str(path)!r}, '--gpu', 'k40m', *sys.argv[1:]], standalone_mode=False)\n"
        "print('pandas' in sys.modules, file=sys.stderr)"
    )
    for method in ("notebook", "steady"):
        command = [sys.executable, "-c", script, "--method", method]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr.strip().endswith("False")


FULL, CLOSED = ("> /dev/full", "No space left on device"), (">&-", "it is closed")


@pytest.mark.spread(3)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize(
    ("words", "where", "why", "unbuffered"),
    [
        (words, *target, unbuffered)
        for words in ("layers alexnet", "layers alexnet --format json", "--help", "--version")
        for target, unbuffered in (
            ((FULL, ""), (CLOSED, "1")) if words.endswith(("json", "help")) else ((FULL, "1"), (CLOSED, ""))
        )
    ],
)
def test_unwritable_output_gets_one_sentence(words: str, where: str, why: str, unbuffered: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m paleo_lite {words} {where}"
    settings = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False, env=settings)
    assert (done.returncode, done.stderr) == (1, f"paleo-lite: the output cannot be written ({why})\n")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", ["layers alexnet", "--help"])
def test_a_reader_that_is_gone_is_no_defect(words: str, unbuffered: str) -> None:
    """As in `paleo-lite ... | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "paleo_lite", *words.split()]
    settings = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=settings)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_interrupt_prints_a_message_and_exits_130(monkeypatch) -> None:
    """128 + SIGINT."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("paleo_lite.questions.layers.answer", interrupted)
    result = run("layers", "alexnet")
    assert (result.exit_code, result.stderr) == (130, "paleo-lite: interrupted\n")


def test_help_groups_every_command() -> None:
    shown = run("--help").stdout
    for question, commands in GROUPS.items():
        assert f"{question}:" in shown and all(f"  {name} " in shown for name in commands)


def test_an_interrupt_while_the_program_is_loaded_is_one_line(monkeypatch, capsys):
    def interrupted(name, *arguments):
        if name == "cli":
            raise KeyboardInterrupt
        return load(name, *arguments)

    load = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "paleo-lite: interrupted\n"
