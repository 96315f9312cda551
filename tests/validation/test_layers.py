"""Published single layers: reading the tables, counting the operations, and held-out errors."""

from __future__ import annotations

import csv
import gzip
import json
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pytest
from click.testing import CliRunner

from measured import DATA
from paleo_lite.calibration.measured_devices import DeviceData
from paleo_lite.calibration.prior import SINGLE_OPERATIONS, traits_of
from paleo_lite.counting import Layer
from paleo_lite.errors import BadFile, BadValue, PaleoError
from paleo_lite.machines import Machine, find_device
from validation.__main__ import main
from validation.layers.amd import amd_operations
from validation.layers.devices import operations_page, validate_operations
from validation.layers.hold_out import SCATTER, cache_of, runs_of_layers, validate_layers
from validation.layers.published import FILES, hash_of, layer_time, published_layers
from validation.layers.timed import LayerTime, TimedOperation, linear

pytestmark = pytest.mark.slow

MEASURED = DATA / "measured"

pytest.importorskip("scipy")


def rows(name: str, most: int | None = None) -> list[dict[str, str]]:
    """Return the rows of a published file, or the first ones."""
    with opened(MEASURED / name, "rt") as file:
        return list(islice(csv.DictReader(file), most))


def opened(path: Path, mode: str) -> IO[str]:
    """Open a published file, which is gzipped if its name ends in ``.gz``."""
    return cast("IO[str]", gzip.open(path, mode, newline="") if path.suffix == ".gz" else path.open(mode, newline=""))


def one_layer(time_s: float, channels: int, batch_size: int = 8, phase: str = "inference") -> LayerTime:
    shape = (channels, 28, 28)
    layer = Layer("conv", "conv2d", (shape,), (shape,), ((channels, channels, 3, 3),), attributes={"stride": [1, 1]})
    return LayerTime(
        "titanx-pascal", "fp32", "me", "conv", "conv", phase, str(channels), batch_size, time_s,
        (TimedOperation(layer, "inference"),),
    )  # fmt: skip


@pytest.mark.needs_data
def test_flops_match_the_columns_of_the_sources() -> None:
    """Compare with the sources' own GFLOP columns for the forward pass, with 2 FLOPs per multiply-accumulate."""
    checked = 0
    for name, column in (("deepbench_conv.csv.gz", "gflop"), ("conv_layers_tensorflow.csv.gz", "gflop_fwd")):
        for row in rows(name, 400):
            if row["phase"].startswith("forward") and float(row[column]) > 0.01 and not row.get("check"):
                timed = layer_time(name, row, "v100-sxm2", "fp32")
                (layer,) = (
                    layer for layer, part in timed.operations if layer.weights and part in ("inference", "forward")
                )
                weight, outputs = layer.weights[0], layer.outputs[0]
                macs = timed.batch_size * int(np.prod(outputs)) * int(np.prod(weight[1:]))
                assert 2e-9 * macs == pytest.approx(float(row[column]), rel=0.01), row
                checked += 1
    assert checked > 300


@pytest.mark.needs_data
def test_tensorflow_training_step_updates_input_and_target() -> None:
    """benchmark_conv.py declares both as trainable variables; Adam reads 4 and writes 3 values per element."""
    (row,) = (
        row for row in rows("conv_layers_tensorflow.csv.gz", 2000)
        if (row["optimizer"], row["matsize"], row["channels_in"]) == ("adam", "7", "1040")
    )  # fmt: skip
    timed = layer_time("conv_layers_tensorflow.csv.gz", row, "gtx1080ti", "fp32")
    names = [layer.name for layer, _ in timed.operations]
    assert names.count("input") == names.count("target") == names.count("variable") == 1
    # NHWC to NCHW and back, forward and for both gradients.
    assert names.count("layout") == 6
    runs = runs_of_layers([timed])
    held = 35 * 7 * 7 * 1040 * 4
    inputs = names.index("input")
    assert runs.features.bytes[inputs] == 7 * held
    # The variable does not grow with the batch: 7 times 749 x 1040 x 7 x 7 numbers.
    assert runs.features.bytes[names.index("variable")] == 7 * 749 * 1040 * 49 * 4


@pytest.mark.needs_data
def test_sample_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    for name in FILES:
        table = rows(name, 1000)
        for folder, ordered in (("a", table), ("b", table[::-1])):
            (tmp_path / folder).mkdir(exist_ok=True)
            with opened(tmp_path / folder / name, "wt") as file:
                writer = csv.DictWriter(file, list(table[0]))
                writer.writeheader()
                writer.writerows(ordered)
    one, other = (published_layers(tmp_path / folder, sample=40) for folder in ("a", "b"))
    assert one.layers == other.layers and one.left_out == other.left_out
    assert len(one.layers) > 200
    # Every row is read or counted.
    assert len(one.layers) + sum(one.left_out.values()) == sum(len(rows(name, 1000)) for name in FILES)


@pytest.mark.needs_data
def test_flagged_rows_and_unknown_devices_are_omitted() -> None:
    found = published_layers(MEASURED, gpus=["mi25"], files=["deepbench_conv.csv.gz"])
    flagged = [row for row in rows("deepbench_conv.csv.gz") if row["check"]]
    assert found.left_out["flagged by its collector"] == len(flagged) == 24
    assert {timed.gpu for timed in found.layers} == {"mi25"}
    assert len([t for t in found.layers if t.kind == "conv"]) == 282 - sum(row["gpu"] == "MI25" for row in flagged)


@pytest.mark.thorough
@pytest.mark.needs_data
def test_command_holds_out_layers() -> None:
    """The error is lower than that of launch plus roofline with three fitted parameters (28% to 33%)."""
    result = CliRunner().invoke(
        main, ["accuracy", "--data", str(DATA), "--split", "layers", "--gpu", "t4", "--format", "json"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["rows"]
    assert {row["kind"] for row in found} == {
        "conv", "gemm", "linear", "bmm", "elementwise", "layer norm", "softmax",
    }  # fmt: skip
    assert {row["precision"] for row in found} == {"fp32", "fp16"}
    own, simple = (
        np.mean(values) for values in zip(*((row["mape"], row["baselines"]["launch_and_roofline"]) for row in found))
    )
    assert own < 0.25 and own < simple
    assert np.average([row["coverage_90"] for row in found], weights=[row["points"] for row in found]) > 0.85


def test_model_recovers_simulated_times() -> None:
    """Times that follow a power law of the size are interpolated; repeated shapes stay in one fold."""
    sizes = [16 * (1 + i) for i in range(40)]
    layers = [one_layer(1e-4 + 1e-9 * size**2, size) for size in sizes]
    found, points = validate_layers(layers)
    assert len(found) == 1 and found[0].points == 40 == len(points)
    assert found[0].median < 0.1
    assert validate_layers(layers[::-1])[0] == found
    assert {hash_of("fold 16") % 5 for _ in range(3)} == {hash_of("fold 16") % 5}


def test_messages_for_too_few_layers_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="too few layers"):
        validate_layers([one_layer(1e-3, 64)])
    with pytest.raises(BadFile, match=r"conv_layers_tensorflow\.csv\.gz: cannot be read"):
        published_layers(tmp_path)
    result = CliRunner().invoke(main, ["accuracy", "--data", str(tmp_path), "--split", "layers"])
    assert result.exit_code == 1 and "cannot be read" in result.output


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: {**row, "kernelsize": "wide"}, "cannot read the sizes or time of a row"),
        (lambda row: {**row, "value": ""}, "cannot read the sizes or time of a row"),
        (lambda row: {**row, "value": "0"}, "a number of seconds above 0"),
        (lambda row: {name: value for name, value in row.items() if name != "gpu"}, "no column gpu"),
    ],
)
def test_message_names_a_damaged_row(tmp_path: Path, change: Any, message: str) -> None:
    for name in FILES:
        table = rows(name, 200)
        if name.startswith("conv"):
            table = [change(row) for row in table]
        with opened(tmp_path / name, "wt") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    with pytest.raises(PaleoError, match=message):
        validate_layers(published_layers(tmp_path).layers)


@pytest.mark.needs_data
def test_message_names_a_truncated_file(tmp_path: Path) -> None:
    name = next(iter(FILES))
    (tmp_path / name).write_bytes((MEASURED / name).read_bytes()[:100_000])
    with pytest.raises(BadFile, match=rf"{name}: damaged"):
        published_layers(tmp_path)


def test_operands_in_a_loop_come_from_the_l2_if_they_fit() -> None:
    """L40S: 142 multiprocessors read 8 bytes each at 2.52 GHz, 2863 GB/s instead of the memory's 864, from 96 MB."""
    cache = cache_of(find_device("l40s"), "bf16")
    assert cache.capacity_bytes == 96e6
    assert cache.speedup == pytest.approx(142 * 8 * 2.52e9 / 864e9)
    assert cache.bytes_from_memory(9.6e6) == pytest.approx(9.6e6 / cache.speedup, rel=1e-3)
    assert cache.bytes_from_memory(96e6) == pytest.approx(96e6 * (1 + 1 / cache.speedup) / 2)
    assert cache.bytes_from_memory(960e6) == pytest.approx(960e6, rel=1e-3)
    # The memory of an H100 is faster than 8 bytes in a clock of each multiprocessor.
    assert cache_of(find_device("h100-sxm"), "bf16").bytes_from_memory(1e6) == 1e6
    # The L2 of an MI210 is not in the registry.
    assert cache_of(find_device("mi210"), "fp16").bytes_from_memory(1e6) == 1e6


@pytest.mark.thorough
@pytest.mark.needs_data
def test_sources_with_constants_of_their_own() -> None:
    """A product in fp8 includes the conversion of its input; rocBLAS was timed on another computer for each chip."""
    products = published_layers(MEASURED, ["h100-sxm"], files=["gemm_modern.csv"]).layers
    sources = {(timed.gpu, timed.precision): timed.source for timed in products}
    assert sources["h100-sxm", "bf16"] == "aiconfigurator TensorRT-LLM torch_flow"
    assert sources["h100-sxm", "fp8"] == "aiconfigurator TensorRT-LLM torch_flow with conversion"
    rocblas = {timed.gpu: timed.source for timed in amd_operations(MEASURED) if timed.source.startswith("rocBLAS")}
    assert rocblas == {"mi50": "rocBLAS vega20", "mi100": "rocBLAS arcturus", "mi210": "rocBLAS aldebaran"}


def test_device_is_predicted_from_other_devices_of_its_vendor() -> None:
    """Three AMD devices that all achieve 0.8 of their peak inform each other but no other device."""
    operations = []
    for gpu in ("mi50", "mi100", "vega-fe"):
        device = find_device(gpu)
        peak = Machine(device).peak("fp64").per_s
        timed = [
            LayerTime(
                gpu, "fp64", "me", "gemm", "gemm", "product", str(size), 4096, 5e-6 + 2 * 4096 * size**2 / peak / 0.8,
                (TimedOperation(linear(size, size), "forward"),),
            )
            for size in range(2048, 6144, 128)
        ]  # fmt: skip
        traits = traits_of(device, "fp64", SINGLE_OPERATIONS, SINGLE_OPERATIONS, "me")
        operations.append(DeviceData(device, "fp64", traits, runs_of_layers(timed), SCATTER, ("efficiency_gemm",)))
    rows = validate_operations(operations, lambda gpu, precision: gpu != "mi50")
    assert [(row.gpu, row.kind, row.points) for row in rows] == [
        ("mi100", "matrix product", 32), ("vega-fe", "matrix product", 32),
    ]  # fmt: skip
    for row in rows:
        assert row.same < 0.03 and row.out is not None and row.out < 0.1 and row.out_inside == 1
        assert row.roofline == pytest.approx(0.2, abs=0.01)
    (alone,) = validate_operations(operations[:1])
    assert alone.out is None
    (fact,) = operations_page([alone]).facts
    assert fact[1].endswith("on other shapes of the device")
