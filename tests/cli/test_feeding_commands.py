"""``gemm``, ``feeding`` and ``hardware links --move`` as people use them.

Tests: cli/gemm.py, cli/feeding.py, questions/gemm.py, questions/feeding.py, reporting/feeding.py, reporting/gemm.py.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from paleo_lite.cli import main


def run(*arguments: str, width: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, list(arguments), prog_name="paleo-lite")


COMMANDS = [
    ["gemm", "512", "64", "512", "--peak", "6000 GFLOP/s"],
    ["gemm", "512", "64", "512", "--count", "8", "--into", "2", "--gpu", "titanx-maxwell"],
    ["gemm", "300", "300", "300", "--gpu", "k80", "--precision", "fp64", "--time-model", "roofline"],
    ["feeding", "resnet50", "--gpu", "v100-sxm2", "--storage", "nvme", "--workers", "8", "--sample-bytes", "110k"],
    ["feeding", "resnet50", "--gpu", "k80-die", "--storage", "hdd", "--access", "random", "--no-pinned"],
    ["feeding", "alexnet", "--gpu", "k40m", "--storage", "memory", "--decoded", "--no-prefetch"],
    ["hardware", "links", "--move", "1PB"],
]


@pytest.mark.parametrize("setting", [["--clock", "900 MHz"], ["--power-limit", "100 W"]], ids=" ".join)
def test_clock_and_power_limit_mean_what_they_mean_for_predict(setting):
    workload = ["resnet50", "--gpu", "titan-rtx", "--precision", "fp16", "--batch-size", "32", "--format", "json"]
    predicted = json.loads(run("predict", *workload, "--phase", "training", *setting).stdout)
    feeding = ["feeding", *workload, "--storage", "memory", "--decoded", *setting]
    fed, unlimited = (device_per_s(run(*words)) for words in (feeding, feeding[: -len(setting)]))
    assert fed == pytest.approx(predicted["throughput_per_s"])
    assert fed < 0.95 * unlimited


def test_time_model_means_what_it_means_for_predict():
    workload = ["resnet50", "--gpu", "titan-rtx", "--precision", "fp16", "--batch-size", "32", "--format", "json"]
    words = [*workload, "--time-model", "roofline"]
    predicted = json.loads(run("predict", *words, "--phase", "training").stdout)
    answer = run("feeding", *words, "--storage", "memory", "--decoded")
    assert device_per_s(answer) == pytest.approx(predicted["throughput_per_s"])
    assert json.loads(answer.stdout)["time_model"] == "roofline"


def device_per_s(result: Result) -> float:
    """Return the samples per second of the stage of the device."""
    return next(stage["per_s"] for stage in json.loads(result.stdout)["stages"] if stage["stage"] == "device")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("style", ["table", "json", "csv", "markdown"])
def test_every_command_prints_every_format(command, style):
    result = run(*command, "--format", style)
    assert result.exit_code == 0 and result.stderr == "", result.output
    if style == "json":
        assert isinstance(json.loads(result.stdout), dict)
    if style == "table":  # headlines and notes are sentences, which the terminal folds itself
        tables = [line for line in result.stdout.splitlines()[1:] if not line.startswith("note: ")]
        assert all(len(line) <= 80 for line in tables)


def test_the_bound_of_a_published_product():
    """Slides "Profiling DNN workloads" (ATPESC): 512x512x64 on 6,000 GFLOP/s takes 5.6 us, its sizes in any order."""
    for sizes in (("512", "512", "64"), ("512", "64", "512")):
        found = json.loads(run("gemm", *sizes, "--peak", "6000 GFLOP/s", "--format", "json").stdout)
        assert round(found["peak_time_s"] * 1e6, 1) == 5.6 and found["flops"] == 2 * 512 * 512 * 64
        assert found["gpu"] is None and found["ridge_point"] is None and found["ways"][0]["tiles"] is None


def test_json_of_several_products():
    command = ("gemm", "512", "64", "512", "--count", "8", "--into", "2", "--gpu", "m40", "--format", "json")
    found = json.loads(run(*command).stdout)
    assert [(way["way"], way["launches"], way["groups"], way["m"]) for way in found["ways"]] == [
        ("separate", 8, 1, 512), ("stacked", 2, 1, 2048), ("batched", 1, 8, 512),
    ]  # fmt: skip
    assert found["ways"][0]["gain"] == 1 and found["ways"][1]["gain"] > 1.5
    assert found["time_model"] == "calibrated" and found["calibration"].startswith("m40 fp32")
    low, high = found["ways"][0]["interval"]
    assert low < found["ways"][0]["time_s"] < high


def test_json_of_a_pipeline():
    command = (
        "feeding",
        "resnet50",
        "--gpu",
        "v100-sxm2",
        "--precision",
        "fp16",
        "--workers",
        "2",
        "--format",
        "json",
    )
    found = json.loads(run(*command).stdout)
    rates = {stage["stage"]: stage["per_s"] for stage in found["stages"]}
    assert rates["storage"] == pytest.approx(3e9 / 110e3) and rates["decode"] == 200  # NVMe by rule of thumb; 2 x 100
    assert rates["copy"] == pytest.approx(0.771 * 15.75e9 / (2 * 3 * 224 * 224))
    assert found["bottleneck"] == "decode" and found["throughput_per_s"] == 200
    assert found["utilisation"] == pytest.approx(200 / rates["device"])
    assert found["needed"]["storage_bytes_per_s"] == pytest.approx(rates["device"] * 110e3)
    gains = [remedy["gain"] for remedy in found["remedies"]]
    assert gains == sorted(gains, reverse=True) and gains[0] > 1
    assert [rule["holds"] for rule in found["rules"]] == [False, True, False, False]
    assert found["plan"][-1]["utilisation"] >= 0.9


def test_fp16_is_suggested_only_for_fp32():
    def names(*precision: str) -> set[str]:
        command = ("feeding", "resnet50", "--gpu", "v100-sxm2", *precision, "--format", "json")
        return {remedy["remedy"] for remedy in json.loads(run(*command).stdout)["remedies"]}

    assert "FP16" in names() and "FP16" not in names("--precision", "fp16")


def test_a_rate_will_do_for_storage_and_host_link():
    command = ("feeding", "resnet50", "--gpu", "gb200", "--precision", "bf16", "--storage", "55 MB/s",
               "--host-link", "20 GB/s", "--format", "json")  # fmt: skip
    rates = {stage["stage"]: stage["per_s"] for stage in json.loads(run(*command).stdout)["stages"]}
    assert rates["storage"] == pytest.approx(500)
    assert rates["copy"] == pytest.approx(0.771 * 20e9 / (2 * 3 * 224 * 224))


COURSE = {  # slides "Performance and Profiling", for 1 PB
    "course-i7-5930k": "9 hours", "course-nvlink": "7 hours", "course-pcie-x8": "2 days", "course-sata": "2 days",
    "course-mellanox56": "2 days", "course-ethernet10": "2 weeks",
}  # fmt: skip


def test_time_to_read_a_petabyte():
    found = json.loads(run("hardware", "links", "--move", "1PB", "--format", "json").stdout)
    rows = {row["id"]: row for row in found["links"]}
    assert {name: rows[name]["move"] for name in COURSE} == COURSE
    assert found["move_bytes"] == 1e15 and rows["course-ethernet10"]["move_s"] == 1e6
    assert rows["sata3"]["move_s"] == pytest.approx(1e15 / 0.6e9)  # 6 Gbit/s: a tenth of what the course says
    assert rows["hdd"]["random_reads_per_s"] == 86 and rows["pcie3-x16"]["random_reads_per_s"] is None
    page = run("hardware", "links", "--move", "1PB").stdout
    assert "ten times less than the table says" in page and "11.6 days" in page


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("gemm 1 1 1", "give either a device or a peak"),
        ("gemm 1 1 1 --gpu k80 --peak 1TFLOP/s", "give either a device or a peak"),
        ("gemm 1 1 1 --peak 1TFLOP/s --clock base", "`--peak` cannot be combined with a calibration, clock"),
        ("gemm 1 1 1 --peak 1TB/s", "not in FLOP/s"),
        ("gemm 1 1 1 --gpu k80 --tile 64", "the tile must be rows x columns"),
        ("gemm 1 0 1 --gpu k80", "'0' is not an integer >= 1"),
        ("gemm 1 1 1 --gpu k80 --precision fp16", "has no fp16 peak"),
        ("gemm 8 8 8 --gpu k80 --count 8 --into 5", "5 does not divide 8"),
        ("feeding resnet50 --gpu k80 --storage nvmee", "no storage is called 'nvmee': did you mean nvme"),
        ("feeding resnet50 --gpu k80 --storage 0GB/s", "> 0"),
        (
            "feeding resnet50 --gpu k80 --storage sata3 --access random",
            "the random reads per second of sata3 are unknown",
        ),
        ("feeding resnet50 --gpu k80 --sample-bytes 0", "`--sample-bytes` must be > 0 (got 0)"),
        ("feeding resnet50 --gpu k80 --decoded-bytes 1GHz", "not in B"),
        ("feeding resnet50 --gpu k80 --workers 0", "`--workers` must be an integer >= 1 (got 0)"),
        ("feeding resnet50 --gpu k80 --decode-rate 0", "`--decode-rate` must be a number > 0 (got 0)"),
        ("feeding resnet50 --gpu k80 --decode-rate nan", "`--decode-rate` must be a number > 0 (got 'nan')"),
        ("feeding resnet50 --gpu k80 --decoded --decode-rate 5", "need no decoding"),
        ("feeding resnet50 --gpu k80 --random-reads 0", "`--random-reads` must be > 0"),
        ("feeding resnet50 --gpu apple-m5 --precision fp16", "has no host link: give one, such as `--host-link"),
        ("hardware links --move 0", "`--move` must be > 0"),
        ("hardware links --move -1PB", "`--move` must be > 0"),
        ("hardware links --move 1PB/s", "not in B"),
    ],
)
def test_a_wrong_question_gets_one_sentence(command, message):
    result = run(*command.split())
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_tokens_are_not_stored_as_images():
    words = ["feeding", "llama-3-8b", "--gpu", "h100-sxm", "--precision", "bf16"]
    note = "a sample is stored as an image of 110kB that has to be decoded: for llama-3-8b"
    assert note in CliRunner().invoke(main, words).stdout
    assert note not in CliRunner().invoke(main, [*words, "--sample-bytes", "8kB"]).stdout
    assert note not in CliRunner().invoke(main, ["feeding", "resnet50", "--gpu", "t4"]).stdout
