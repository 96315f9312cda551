"""Sweeps: every row equals the single prediction, interrupted sweeps lose nothing, and sizes are known in advance.

Tests: sweeps/axes.py, sweeps/chunk.py, sweeps/columns.py, sweeps/single_worker.py, sweeps/grid.py,
sweeps/several_workers.py, sweeps/single_worker.py, sweeps/space.py.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite import executor
from paleo_lite.architectures import find_network
from paleo_lite.calibration.choose import choose_model
from paleo_lite.distributed.clusters import cluster_prior
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.links import flat_topology, link_rate
from paleo_lite.distributed.scale import scale
from paleo_lite.distributed.settings import ScaledBatch, Settings
from paleo_lite.distributed.table import ScaleRow
from paleo_lite.errors import BadFile, BadValue, Interrupted, MissingExtra, SweepStopped, UnknownName
from paleo_lite.machines import Machine, find_device
from paleo_lite.sweeps import run
from paleo_lite.sweeps import space as space_module
from paleo_lite.sweeps.best import Goal, find_best
from paleo_lite.sweeps.columns import make_columns
from paleo_lite.sweeps.run import run_sweep
from paleo_lite.sweeps.space import Space, parse_columns
from paleo_lite.timing import RooflineModel, Workload, predict
from paleo_lite.timing.memory import peak_memory
from paleo_lite.timing.training_options import TrainingOptions

pytestmark = pytest.mark.slow

pq = pytest.importorskip("pyarrow.parquet")

SMALL = Space(
    networks=("alexnet", "resnet50"),
    gpus=("k40m", "v100-sxm2", "mi250x"),
    precisions=("fp32", "fp16"),
    phases=("inference", "training"),
    batch_sizes=(1, 32, 4096),
    time_models=("default", "roofline"),
)


def test_a_row_under_a_power_limit_equals_the_prediction_under_it(tmp_path: Path) -> None:
    """A limit above those of the data sheets (300 and 235 W) changes nothing, and less power takes longer."""
    output = tmp_path / "limits.parquet"
    question = pl.Predict("resnet50", gpu="v100-sxm2,k40m", batch_size=64, power_limit="150W,200W,400W")
    pl.sweep(question, output, jobs=1)
    found = {(row["gpu"], row["power_limit_w"]): row for row in pq.read_table(output).to_pylist()}
    limits_w = {"v100-sxm2": (150.0, 200.0, 300.0), "k40m": (150.0, 200.0, 235.0)}
    for (gpu, limit_w), row in found.items():
        assert limit_w in limits_w[gpu]
        single = pl.predict("resnet50", gpu=gpu, batch_size=64, power_limit=limit_w)
        assert row["time_s"] == pytest.approx(single.time_s)
    v100_s = [found["v100-sxm2", limit_w]["time_s"] for limit_w in limits_w["v100-sxm2"]]
    assert v100_s == sorted(v100_s, reverse=True)
    assert len(set(v100_s)) == 3


def test_a_row_at_a_clock_equals_the_prediction_at_it(tmp_path: Path) -> None:
    """All figures of a row are those that `predict` gives at the clock; a clock that no source gives is a reason."""
    output = tmp_path / "clocks.parquet"
    asked = {"batch_size": 64, "precision": "fp16", "clock": "base,1.2GHz", "power_limit": 250}
    pl.sweep(pl.Predict("resnet50", gpu="v100-sxm2,h100-sxm", **asked), output, jobs=1)
    rows = pq.read_table(output).to_pylist()
    assert [(row["gpu"], row["clock"]) for row in rows] == [
        (gpu, clock) for gpu in ("v100-sxm2", "h100-sxm") for clock in ("base", "1.2GHz")
    ]
    for row in rows:
        arguments = {"batch_size": 64, "precision": "fp16", "clock": row["clock"], "power_limit": 250}
        if row["reason"] is not None:
            assert "has no base clock on record" in row["reason"]
            continue
        single = pl.predict("resnet50", gpu=row["gpu"], **arguments)
        assert row["time_s"] == pytest.approx(single.time_s)
        assert row["bound_s"] == pytest.approx(single.bound_s)
        assert row["energy_j"] == pytest.approx(single.energy_j)
        assert row["efficiency"] == pytest.approx(single.flops / single.time_s / single.peak.per_s)


@pytest.mark.parametrize("clock", ["fast", "5W"])
def test_an_impossible_clock_is_refused(clock: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="clock"):
        pl.sweep(pl.Predict("resnet50", gpu="v100-sxm2", clock=clock), tmp_path / "clocks.parquet")


@pytest.mark.parametrize("power_limit", ["0W", "150W,", "fast", -5])
def test_an_impossible_power_limit_is_refused(power_limit: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"power[ -]limit"):
        pl.sweep(pl.Predict("resnet50", gpu="v100-sxm2", power_limit=power_limit), tmp_path / "limits.parquet")


def rows_of(space: Space, path: Path, **options) -> list[dict]:
    run_sweep(space, path, choose_model, jobs=1, **options)
    return pq.read_table(path).to_pylist()


def test_every_row_is_a_prediction(tmp_path) -> None:
    rows = rows_of(SMALL, tmp_path / "sweep.parquet")
    assert len(rows) == SMALL.size == 2 * 3 * 2 * 2 * 3 * 2
    reasons = set()
    for row in rows:
        device, network = find_device(row["gpu"]), find_network(row["network"])
        asked = Workload(network, row["precision"], row["batch_size"], row["phase"])
        memory = peak_memory(asked).total_bytes
        assert row["memory_bytes"] == pytest.approx(memory, rel=1e-12)
        if row["reason"] is not None:
            reasons.add(row["reason"].partition(":")[0])
            assert [row[name] for name in ("throughput_per_s", "cost_usd", "energy_j", "efficiency")] == [None] * 4
            if not row["reason"].startswith("does not fit"):
                assert (row["time_s"], row["low_s"]) == (None, None)
                continue
            model = RooflineModel() if row["time_model"] == "roofline" else choose_model(device, row["precision"])
            with_more_memory = predict(asked, Machine(device), model)
            assert row["time_s"] == pytest.approx(with_more_memory.time_s, rel=1e-12)
            continue
        assert memory <= device.memory_bytes - 1e9
        model = choose_model(device, row["precision"])
        if row["time_model"] == "roofline":
            model = RooflineModel()
        one = predict(asked, Machine(device), model)
        assert row["time_s"] == pytest.approx(one.time_s, rel=1e-12)
        assert row["calibration"] == (model.label or None)
        if one.interval is None:
            assert row["low_s"] is None
        else:
            assert (row["low_s"], row["high_s"]) == pytest.approx(one.interval, rel=1e-12)
        assert row["efficiency"] == pytest.approx(one.flops / one.time_s / one.peak.per_s, rel=1e-12)
        hours = 1e6 / row["batch_size"] * one.time_s / 3600
        assert row["hours"] == pytest.approx(hours, rel=1e-12)
        price = device.rent_usd_per_h
        assert row["cost_usd"] == (None if price is None else pytest.approx(hours * price, rel=1e-12))
        assert one.power_w is not None
        assert row["kwh"] == pytest.approx(hours * one.power_w / 1e3, rel=1e-9)
        assert (row["speedup"], row["exposed_s"], row["link"]) == (1.0, 0.0, None)
    assert reasons == {
        "Tesla K40m has no fp16 peak",
        "does not fit into the 11.8 GB of k40m, of which 1 GB are reserved",
        "does not fit into the 16.9 GB of v100-sxm2, of which 1 GB are reserved",
        "does not fit into the 136 GB of mi250x, of which 1 GB are reserved",
    }


def test_text_is_written_by_engines_at_every_context(tmp_path) -> None:
    """Phases with a KV cache match `predict`; in decode, the sequence length is the context."""
    space = Space(
        networks=("gpt2",), gpus=("a100-sxm-80gb",), precisions=("fp16",), phases=("decode", "inference", "prefill"),
        sequence_lengths=(100, 900), batch_sizes=(1, 16),
    )  # fmt: skip
    rows = rows_of(space.resolve_names(), tmp_path / "sweep.parquet")
    assert len(rows) == space.size == 12 and space.chunk_count == 2
    for row in rows:
        length = "context" if row["phase"] == "decode" else "sequence_length"
        one = pl.predict(
            row["network"], gpu=row["gpu"], precision="fp16", phase=row["phase"], batch_size=row["batch_size"],
            memory=True, **{length: row["sequence_length"]},
        )  # fmt: skip
        assert row["time_model"] == one.model.name == ("calibrated" if row["phase"] == "inference" else "kernels")
        assert row["time_s"] == pytest.approx(one.time_s, rel=1e-12)
        assert row["bound_s"] == pytest.approx(one.bound_s, rel=1e-12)
        assert (row["low_s"], row["high_s"]) == pytest.approx(one.interval, rel=1e-12)
        assert row["memory_bytes"] == one.memory.total_bytes
        assert row["efficiency"] == pytest.approx(one.mfu, rel=1e-12)
        watts = row["kwh"] * 1e3 / row["hours"]
        assert watts == pytest.approx(one.power_w, rel=1e-9)


@pytest.mark.spread(1)
@pytest.mark.parametrize("phase", ["inference", "prefill", "decode"])
def test_formats_of_products_are_swept_as_precisions(tmp_path, phase) -> None:
    """A row of nvfp4 or fp8 in blocks equals the prediction in it; training by a recipe is refused."""
    output = tmp_path / "formats.parquet"
    asked = {"precision": "nvfp4,fp8-block", "phase": f"{phase},training", "batch_size": "1,8"}
    pl.sweep(pl.Predict("llama-3.2-1b", gpu="b200", **asked), output, jobs=1)
    for row in pq.read_table(output).to_pylist():
        if row["phase"] == "training":
            assert row["reason"] == (
                f"sweeps do not support training by recipes such as {row['precision']}: use `paleo-lite predict`"
            )
            continue
        single = pl.predict(
            "llama-3.2-1b", gpu="b200", precision=row["precision"], phase=phase, batch_size=row["batch_size"],
            memory=True,
        )  # fmt: skip
        figures = {name: row[name] for name in ("time_s", "bound_s", "memory_bytes")}
        expected = {"time_s": single.time_s, "bound_s": single.bound_s, "memory_bytes": single.memory.total_bytes}
        assert figures == pytest.approx(expected)


def test_mixtures_write_text_under_engines_only(tmp_path) -> None:
    """On a device whose engines were not measured, the layers read as many experts as the batch chooses."""
    space = Space(
        networks=("qwen3-30b-a3b",), gpus=("h200-sxm", "mi210"), precisions=("bf16",), phases=("decode",),
        sequence_lengths=(2047,), batch_sizes=(1, 64),
    )  # fmt: skip
    rows = rows_of(space.resolve_names(), tmp_path / "sweep.parquet")
    for row in rows:
        if row["gpu"] == "mi210":
            assert "the number of experts in use depends on the batch size: use `paleo-lite predict`" in row["reason"]
            continue
        one = pl.predict(
            row["network"], gpu=row["gpu"], precision="bf16", phase="decode", batch_size=row["batch_size"], context=2047
        )
        assert row["time_s"] == pytest.approx(one.time_s, rel=1e-12)


@pytest.mark.parametrize(
    ("network", "lengths", "message"),
    [
        ("gpt2", (1024,), "gpt2 knows 1024 positions"),
        ("bert-base", (None,), "needs a model that writes text"),
        ("resnet50", (None,), "resnet50 does not read sequences"),
    ],
)
def test_unwritable_output_is_an_error(network, lengths, message) -> None:
    with pytest.raises(BadValue, match=message):
        Space(networks=(network,), gpus=("h100-sxm",), phases=("decode",), sequence_lengths=lengths).resolve_names()


def test_file_takes_precedence_over_the_name_in_it(tmp_path) -> None:
    """A Caffe file whose network has the name of a shipped one is swept as a file."""
    file = tmp_path / "mine.prototxt"
    file.write_text(
        'name: "AlexNet" input: "data" input_dim: 1 input_dim: 3 input_dim: 32 input_dim: 32 layer { name: "ip" '
        'type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10 } }'
    )
    space = Space(networks=(str(file),), gpus=("k40m",), batch_sizes=(1,), time_models=("roofline",))
    (row,) = rows_of(space.resolve_names(), tmp_path / "sweep.parquet")
    one = predict(Workload(find_network(str(file))), Machine(find_device("k40m")), RooflineModel())
    assert row["time_s"] == pytest.approx(one.time_s, rel=1e-12)


@cache
def asked(network: str) -> Workload:
    return Workload(find_network(network), phase="training", training=TrainingOptions("sgd"))


def check_against_scale(rows: list[dict]) -> None:
    """Compare training rows with `scale`, for all numbers of workers at once."""
    questions = defaultdict(list)
    for row in rows:
        names = ("network", "gpu", "time_model", "link", "batch_size", "scaling", "strategy")
        questions[tuple(row[name] for name in names)].append(row)
    for (network, gpu, time_model, link, batch_size, scaling, strategy), alike in questions.items():
        device = find_device(gpu)
        model = RooflineModel() if time_model == "roofline" else choose_model(device, "fp32")
        workers = [row["workers"] for row in alike]
        answers = scale(
            Job(asked(network), Machine(device), model), flat_topology(link_rate(link), max(workers)),
            workers, ScaledBatch(batch_size, scaling), strategy=strategy, settings=Settings(),
            cluster=cluster_prior() if model.is_forecast else None,
        )  # fmt: skip
        for row, answer in zip(alike, answers, strict=True):
            check_row(row, answer)


def check_row(row: dict, answer: ScaleRow) -> None:
    for name in ("time_s", "exposed_s", "throughput_per_s", "speedup", "memory_bytes"):
        assert row[name] == pytest.approx(getattr(answer, name), rel=1e-9, abs=1e-12), (name, row)
    assert row["scaling_efficiency"] == pytest.approx(answer.efficiency, rel=1e-9)
    assert (row["collective"] or "") == answer.collective
    ends = None if row["low_s"] is None else (row["low_s"], row["high_s"])
    assert ends == (None if answer.interval is None else pytest.approx(answer.interval, rel=1e-9))


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "strategy", ["data", "zero-1", pytest.param("zero-2", marks=pytest.mark.thorough), "zero-3", "pipeline-1f1b"]
)
def test_rows_of_several_workers_match_scale(tmp_path, strategy) -> None:
    """Vectorized strategies (the first three) equal `scale`; the others are computed by it."""
    space = Space(
        networks=("alexnet", "resnet18"), gpus=("k80-die",), phases=("training",), batch_sizes=(8, 36),
        workers=(1, 4, 8), strategies=(strategy,), scalings=("weak", "strong"), links=("pcie3-x16", "10 Gbit/s"),
        time_models=("default", "roofline"),
    )  # fmt: skip
    rows = [row for row in rows_of(space, tmp_path / "sweep.parquet") if row["reason"] is None]
    check_against_scale(rows)
    assert sum(row["workers"] > 1 for row in rows) > 20


def test_rows_after_an_infeasible_combination_match_scale(tmp_path) -> None:
    """The first value of each axis has no step on several workers: a phase, a number of workers, a batch size."""
    space = Space(
        networks=("alexnet",), gpus=("k80-die",), phases=("inference", "training"), batch_sizes=(2**17, 8),
        workers=(2**18, 1, 4), strategies=("tensor", "data"), scalings=("strong", "weak"), links=("10 Gbit/s",),
        time_models=("roofline",),
    )  # fmt: skip
    rows = [row for row in rows_of(space, tmp_path / "sweep.parquet") if row["phase"] == "training"]
    possible = [row for row in rows if row["reason"] is None]
    check_against_scale(possible)
    assert len([row for row in possible if row["workers"] == 4]) == 4  # strategies and scalings, at a batch of 8
    impossible = [row for row in rows if row not in possible]
    assert {row["collective"] for row in impossible} == {None}
    assert all((row["time_s"] is not None) == row["reason"].startswith("does not fit") for row in impossible)


def test_infeasible_rows_have_a_reason(tmp_path) -> None:
    space = Space(
        networks=("alexnet",), gpus=("v100-sxm2",), phases=("training", "backward", "inference"), batch_sizes=(2, 6, 8),
        workers=(1, 4), strategies=("data", "tensor"), links=("pcie3-x16",),
    )  # fmt: skip
    found = {
        (row["phase"], row["strategy"], row["workers"], row["batch_size"]): row["reason"]
        for row in rows_of(space, tmp_path / "sweep.parquet")
    }
    assert found["training", "data", 4, 2] == "the batch size is smaller than the number of workers"
    assert found["training", "data", 4, 6] == "the batch size is not divisible by the number of workers"
    assert found["training", "data", 4, 8] is None and found["inference", "data", 4, 8] is None
    assert found["training", "tensor", 4, 6] is None
    assert (
        found["backward", "data", 4, 8]
        == "sweeps do not support backward on several workers, only training and inference"
    )
    assert found["inference", "tensor", 4, 8] == "inference on several workers supports replicas only: strategy data"
    assert {reason for (*_, workers, _), reason in found.items() if workers == 1} == {None}


def test_the_size_is_known_before() -> None:
    space = msgspec.structs.replace(SMALL, batch_sizes=tuple(range(1, 100_001)), workers=(1, 2))
    assert space.size == 2 * 3 * 2 * 2 * 100_000 * 2 * 2
    cases, gpus, batches = space.max_chunk_lengths()
    assert cases * gpus * batches * 2 * 2 <= space_module.CHUNK_ROWS
    chunks = list(space.chunks())
    assert len(chunks) == space.chunk_count
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    points = sum(len(chunk.cases) * len(chunk.devices) * len(chunk.batch_sizes) for chunk in chunks)
    assert points * 2 * 2 == space.size
    seen = {(c.precision, case, gpu, c.batch_sizes[0]) for c in chunks for case in c.cases for gpu in c.devices}
    assert len(seen) == sum(len(chunk.cases) * len(chunk.devices) for chunk in chunks)


def test_a_space_is_described_by_its_axes() -> None:
    assert SMALL.describe() == "2 networks x 3 gpus x 2 precisions x 2 phases x 3 batch sizes x 2 time models"
    one = Space(networks=("alexnet",), gpus=("k40m",), batch_sizes=(1,), time_models=("roofline",))
    assert one.describe() == "1 of each"
    assert one.size == 1 and SMALL.size == 2 * 3 * 2 * 2 * 3 * 2
    # At 150,000 rows per second and 40 bytes per row.
    assert SMALL.hours() == pytest.approx(144 / 150_000 / 3600)
    assert SMALL.gigabytes() == pytest.approx(144 * 40e-9)


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few rows: sweeps of a dozen."""
    monkeypatch.setattr(space_module, "CHUNK_ROWS", 12)
    assert SMALL.chunk_count == 2 * 4 * 2  # precisions, cases of three devices, two of the batch sizes at a time


def stop_after(number: int):
    def progress(done: int, total: int) -> None:
        if done >= number:
            raise KeyboardInterrupt

    return progress


def test_strategies_without_options_of_theirs_are_not_swept() -> None:
    space = Space(("gpt2",), ("k40m",), phases=("training",), workers=(2,), strategies=("data", "3d"), links=("pcie3",))
    with pytest.raises(
        BadValue, match="does not support tensor or pipeline parallelism of blocks; use `paleo-lite train`"
    ):
        space.check()


@pytest.mark.thorough
def test_interrupted_sweep_resumes(tmp_path, small_chunks) -> None:
    whole, path = tmp_path / "whole.parquet", tmp_path / "sweep.parquet"
    run_sweep(SMALL, whole, choose_model, jobs=1)
    with pytest.raises(Interrupted, match=r"interrupted; 5 of 16 chunks are kept in .*sweep\.parquet\.partial"):
        run_sweep(SMALL, path, choose_model, jobs=1, progress=stop_after(5))
    assert not path.exists()
    other = msgspec.structs.replace(SMALL, batch_sizes=(1, 2, 3))
    with pytest.raises(BadValue, match="belongs to another sweep"):
        run_sweep(other, path, choose_model, jobs=1)
    done = run_sweep(SMALL, path, choose_model, jobs=1)
    assert (done.resumed, done.chunks, done.rows) == (5, 16, SMALL.size)
    assert path.read_bytes() == whole.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["sweep.parquet", "whole.parquet"]


def test_an_interrupt_before_the_first_chunk_keeps_nothing_and_says_so(tmp_path, small_chunks) -> None:
    with pytest.raises(
        Interrupted, match=r"^the sweep was interrupted; none of 16 chunks was finished: the same command begins anew$"
    ):
        run_sweep(SMALL, tmp_path / "sweep.csv", choose_model, jobs=1, progress=stop_after(0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spread(2)
@pytest.mark.parametrize("end", ["killed", "interrupted", "killed with one chunk removed", "killed with the lock"])
def test_an_end_after_the_output_is_complete_leaves_nothing_for_the_next_run(
    tmp_path, small_chunks, monkeypatch, end
) -> None:
    """The folder of chunks once stayed for ever beside the complete file if SIGTERM came before it was removed."""
    output, folder = tmp_path / "sweep.parquet", tmp_path / "sweep.parquet.partial"

    def end_early(folder):
        if "one chunk" in end:
            next(folder.glob("chunk-*")).unlink()
        raise KeyboardInterrupt if end == "interrupted" else SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(run, "_clear_folder", end_early)
        if end == "interrupted":
            patched.setattr(run, "_remove_leftovers", lambda *_: None)
        with pytest.raises(Interrupted if end == "interrupted" else SystemExit) as error:
            run_sweep(SMALL, output, choose_model, jobs=1)
    assert end != "interrupted" or str(error.value) == f"the sweep was interrupted when {output} was complete"
    written = output.read_bytes()
    if end == "killed with the lock":
        for file in folder.iterdir():
            file.unlink()
        (folder / ".lock").touch()
    assert folder.is_dir()
    with pytest.raises(BadValue, match="already exists"):
        run_sweep(SMALL, output, choose_model, jobs=1)
    assert list(tmp_path.iterdir()) == [output] and output.read_bytes() == written


def test_chunks_beside_another_output_are_kept(tmp_path, small_chunks, monkeypatch) -> None:
    output, folder = tmp_path / "sweep.parquet", tmp_path / "sweep.parquet.partial"
    with monkeypatch.context() as patched:
        patched.setattr(run, "_clear_folder", lambda folder: sys.exit())
        with pytest.raises(SystemExit):
            run_sweep(SMALL, output, choose_model, jobs=1)
    output.write_bytes(b"another file")
    with pytest.raises(BadValue, match="already exists"):
        run_sweep(SMALL, output, choose_model, jobs=1)
    assert list(folder.glob("chunk-*"))
    output.unlink()
    swept = run_sweep(SMALL, output, choose_model, jobs=1)
    assert swept.resumed == swept.chunks and list(tmp_path.iterdir()) == [output]


def test_an_output_that_exists_stays(tmp_path, small_chunks) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text("mine")
    with pytest.raises(BadValue, match=r"sweep\.csv already exists: choose another name, or `--force`"):
        run_sweep(SMALL, path, choose_model, jobs=1)
    assert path.read_text() == "mine" and list(tmp_path.iterdir()) == [path]
    assert run_sweep(SMALL, path, choose_model, jobs=1, force=True).rows == SMALL.size
    assert path.read_text().startswith('"network","gpu"') and len(path.read_text().splitlines()) == SMALL.size + 1


def test_several_processes_write_the_same_file(tmp_path, small_chunks) -> None:
    for jobs in (1, 2):
        run_sweep(SMALL, tmp_path / f"{jobs}.parquet", choose_model, jobs=jobs)
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()


SWEEP = """
import sys, time
from pathlib import Path
from paleo_lite.calibration.choose import choose_model
from paleo_lite.sweeps import run, space
folder, = sys.argv[1:]
space.CHUNK_ROWS = 12
def wait(done, total):
    if done == 3:
        (Path(folder) / "here").touch()
        time.sleep(600)
small = space.Space(networks=("alexnet",), gpus=("k40m", "v100-sxm2"), batch_sizes=tuple(range(1, 40)))
if __name__ == "__main__":
    run.run_sweep(small, Path(folder) / "sweep.parquet", choose_model, jobs=1, progress=wait)
"""


@pytest.fixture
def half_done(tmp_path):
    """A sweep in a process of its own that stays where three chunks are done, and its space."""
    process = subprocess.Popen([sys.executable, "-c", SWEEP, str(tmp_path)])
    while not (tmp_path / "here").exists() and process.poll() is None:
        time.sleep(0.05)
    yield process, Space(networks=("alexnet",), gpus=("k40m", "v100-sxm2"), batch_sizes=tuple(range(1, 40)))
    process.kill()
    process.wait()


@pytest.mark.parametrize("scheduler", [None, "tcp://elsewhere:8786"])
def test_processes_of_this_machine_write_chunks_themselves(tmp_path, small_chunks, monkeypatch, scheduler) -> None:
    """Workers of a scheduler may not share the folder: they return the bytes of each chunk."""
    returned = []

    def run_here(chunks, compute, *others):
        for chunk in chunks:
            returned.append(compute(chunk))
            yield chunk, returned[-1]

    monkeypatch.setattr(run, "run_tasks", run_here)
    sweep = run_sweep(SMALL, tmp_path / "sweep.parquet", choose_model, jobs=1, scheduler=scheduler)
    assert sweep.rows == SMALL.size and len(returned) == sweep.chunks > 1
    assert {type(data) for data in returned} == {bytes if scheduler else type(None)}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_rows_of_a_sweep_as_a_data_frame(tmp_path, suffix) -> None:
    pytest.importorskip("pandas")
    space = Space(networks=("alexnet",), gpus=("k40m", "v100-sxm2"), batch_sizes=(1, 8), time_models=("roofline",))
    sweep = run_sweep(space, tmp_path / f"sweep.{suffix}", choose_model, jobs=1)
    frame = sweep.to_frame()
    assert frame[["gpu", "batch_size"]].astype({"gpu": str}).to_records(index=False).tolist() == [
        ("k40m", 1), ("k40m", 8), ("v100-sxm2", 1), ("v100-sxm2", 8),
    ]  # fmt: skip
    assert sweep.to_dict()["rows"] == len(frame) == 4


@pytest.mark.thorough
def test_two_sweeps_with_one_output(tmp_path, small_chunks, half_done) -> None:
    """The second sweep names the running process; a killed sweep resumes and writes the same output."""
    process, space = half_done
    path, whole = tmp_path / "sweep.parquet", tmp_path / "whole.parquet"
    with pytest.raises(
        BadValue, match=rf"sweep\.parquet\.partial: a sweep is being written by process {process.pid} on "
    ):
        run_sweep(space, path, choose_model, jobs=1)
    process.kill()
    process.wait()
    assert run_sweep(space, path, choose_model, jobs=1).resumed == 3
    run_sweep(space, whole, choose_model, jobs=1)
    assert path.read_bytes() == whole.read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {"sweep.parquet", "whole.parquet", "here"}


@pytest.mark.spread(1)
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_chunks_remain_until_the_output_is_complete(tmp_path, small_chunks, monkeypatch, suffix) -> None:
    path = tmp_path / f"sweep.{suffix}"

    def torn(aside: Path, *told) -> None:
        os.truncate(aside, aside.stat().st_size - 9)  # as another writer or a lost disk leaves it
        check(aside, *told)

    check = run._verify_merged_file
    with monkeypatch.context() as patch:
        patch.setattr(run, "_verify_merged_file", torn)
        with pytest.raises(SweepStopped, match="is incomplete"):
            run_sweep(SMALL, path, choose_model, jobs=1)
    assert not path.exists()
    assert run_sweep(SMALL, path, choose_model, jobs=1).resumed == SMALL.chunk_count


def test_unwritable_folder_is_an_error(tmp_path, monkeypatch) -> None:
    """As in a folder that others own: root, who runs tests in containers, may write everywhere."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(SweepStopped, match=r"the sweep cannot be written: .*Permission denied"):
        run_sweep(SMALL, tmp_path / "sweep.parquet", choose_model, jobs=1)


@pytest.fixture
def no_file_above():
    """No file of this process can grow beyond a size, as on a disk that is full: EFBIG in place of ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.spread(1)
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("share", [0.5, 1.5])
def test_sweep_can_resume_after_a_full_disk(tmp_path, small_chunks, no_file_above, share, suffix) -> None:
    """Below the size of a chunk none can be written; above it only the whole cannot."""
    path = tmp_path / f"sweep.{suffix}"
    with pytest.raises(Interrupted):
        run_sweep(SMALL, path, choose_model, jobs=1, progress=stop_after(1))
    (chunk,) = (tmp_path / f"{path.name}.partial").glob("chunk-*.parquet")
    no_file_above(int(chunk.stat().st_size * share))
    kept = 1 if share < 1 else 16
    with pytest.raises(SweepStopped, match=rf"no space left .* {kept} of 16 chunks are kept in .*\.partial"):
        run_sweep(SMALL, path, choose_model, jobs=1)
    assert not path.exists()
    no_file_above(2**30)
    done = run_sweep(SMALL, path, choose_model, jobs=1)
    assert (done.resumed, done.rows) == (kept, SMALL.size)


def test_existing_paths_are_not_overwritten(tmp_path, small_chunks) -> None:
    folder = tmp_path / "sweep.parquet.partial"
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(BadValue, match="is not the folder of a sweep"):
        run_sweep(SMALL, tmp_path / "sweep.parquet", choose_model)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(BadFile, match=r"manifest\.json: .* delete"):
        run_sweep(SMALL, tmp_path / "sweep.parquet", choose_model)
    with pytest.raises(BadValue, match=r"must end in \.parquet or \.csv"):
        run_sweep(SMALL, tmp_path / "sweep.txt", choose_model)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"precisions": ("fp31",)}, UnknownName, "no precision is called 'fp31'"),
        ({"precisions": ("int4",)}, BadValue, "give `--precision bf16 --weights int4`"),
        ({"strategies": ("date",)}, UnknownName, "did you mean data"),
        ({"workers": (1, 2)}, BadValue, "several workers need a link: give `--link`"),
        ({"batch_sizes": ()}, BadValue, "needs at least one value of batch sizes"),
        ({"gpus": ("k80", "k80")}, BadValue, "duplicate gpus: k80"),
        ({"time_models": ("ppp",)}, BadValue, "the ppp model needs the share of peak"),
        ({"ppp": 0.6}, BadValue, "`--ppp` is for the ppp model"),
        ({"links": ("carrier pigeon",)}, UnknownName, "no link is called 'carrier pigeon'"),
    ],
)
def test_impossible_spaces(tmp_path, change, error, message) -> None:
    with pytest.raises(error, match=message):
        run_sweep(msgspec.structs.replace(SMALL, **change), tmp_path / "sweep.parquet", choose_model)
    assert not list(tmp_path.iterdir())


def test_every_column_is_documented(tmp_path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "sweep.md").read_text()
    space = Space(networks=("alexnet",), gpus=("k40m",))
    for column in rows_of(space, tmp_path / "sweep.parquet")[0]:
        assert f"`{column}`" in text.partition("## Output")[2].partition("\n## ")[0], column


def test_without_pyarrow(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"a sweep's output needs the 'profiles' extra"):
        run_sweep(SMALL, tmp_path / "sweep.parquet", choose_model)
    with pytest.raises(MissingExtra, match="reading a sweep"):
        find_best(tmp_path / "sweep.parquet", Goal(minimise="cost_usd"))


def test_columns_are_names_with_commas() -> None:
    assert parse_columns("a, b") == parse_columns(["a", "b"]) == ("a", "b")
    with pytest.raises(BadValue, match="must be names separated by commas"):
        parse_columns("a,,b")


class LostScheduler:
    """A client of Dask whose scheduler ends after two results: it tells of one further future, and of no other."""

    def __init__(self, error) -> None:
        self.error = error
        self.results = 0

    @contextmanager
    def connect(self, address):
        yield self

    def submit(self, work, task):
        future = Future()
        self.results += 1
        if self.results <= 2:
            future.set_result(work(task))
        elif self.results == 3:
            future.set_exception(self.error)
        return future


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("make_error", "sentence"),
    [
        (lambda _: CancelledError("f-1"), "the Dask scheduler at tcp://host:8786 ended during the computation"),
        (lambda dask: dask.comm.CommClosedError("comm closed"), r"tcp://host:8786 ended .* \(comm closed\)"),
        (lambda dask: dask.KilledWorker("f-1", None, 3), "died one after another"),
        (
            lambda _: ModuleNotFoundError("No module named 'paleo_lite'"),
            "cannot run paleo-lite .No module named .* install version",
        ),
    ],
)
def test_a_lost_cluster_is_one_sentence_that_says_how_to_resume(
    tmp_path, small_chunks, monkeypatch, make_error, sentence
) -> None:
    error = make_error(pytest.importorskip("distributed"))
    monkeypatch.setattr(executor, "_connect_to_cluster", LostScheduler(error).connect)
    with pytest.raises(SweepStopped, match=rf"{sentence}.*; 2 of 16 chunks are kept in .*: the same command resumes"):
        run_sweep(SMALL, tmp_path / "sweep.csv", choose_model, scheduler="tcp://host:8786")
    assert run_sweep(SMALL, tmp_path / "sweep.csv", choose_model, jobs=1).resumed == 2


def test_a_scheduler_that_does_not_answer_leaves_nothing(tmp_path, monkeypatch) -> None:
    @contextmanager
    def refuse(address):
        raise BadValue("no Dask scheduler answers")
        yield

    monkeypatch.setattr(executor, "_connect_to_cluster", refuse)
    with pytest.raises(BadValue, match="no Dask scheduler answers"):
        run_sweep(SMALL, tmp_path / "sweep.csv", choose_model, scheduler="tcp://host:8786")
    assert list(tmp_path.iterdir()) == []


SCHEDULER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_scheduler_that_is_killed_is_one_sentence(tmp_path, small_chunks) -> None:
    pytest.importorskip("distributed")
    (tmp_path / "scheduler.py").write_text(SCHEDULER)
    started = subprocess.Popen(
        [sys.executable, str(tmp_path / "scheduler.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def kill(done: int, total: int) -> None:
        if done == 1:
            started.kill()

    address = started.stdout.readline().strip()
    with pytest.raises(SweepStopped, match=r"ended during the computation; .* the same command resumes"):
        run_sweep(SMALL, tmp_path / "sweep.csv", choose_model, scheduler=address, progress=kill)
    started.wait()


@pytest.mark.thorough
@pytest.mark.slow
def test_cluster_with_a_killed_worker_writes_the_same(tmp_path, small_chunks) -> None:
    distributed = pytest.importorskip("distributed")
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    run_sweep(SMALL, here, choose_model, jobs=1)
    killed = []

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]

        def kill_one(done: int, total: int) -> None:
            if done >= 3 and not killed:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)
                time.sleep(0.1)

        done = run_sweep(
            SMALL, there, choose_model, scheduler=cluster.scheduler_address, progress=kill_one
        )  # fmt: skip
    assert killed and done.rows == SMALL.size
    assert there.read_bytes() == here.read_bytes()


def test_a_missing_value_hides_none_that_follows_in_its_row() -> None:
    columns = make_columns([{"name": None, "count": 2, "time_s": None}], ["name"], ["count"], ["time_s"])
    assert columns["count"].tolist() == [2] and np.isnan(columns["time_s"]).all()
    assert columns["name"].codes.tolist() == [-1]
