"""`calibrate` with result files of benchmarks, and forecasts with what they teach.

Tests: api/suggestions.py, engines/causes.py, own_machines/causes.py, questions/measured.py, reporting/evidence.py,
serving/causes.py, serving/learned.py.
"""

from __future__ import annotations

import json
import re
from math import exp, log
from pathlib import Path
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.api.calibrations import find_result_files
from paleo_lite.architectures import find_network
from paleo_lite.calibration.alternatives import try_alternatives
from paleo_lite.calibration.evidence_file import EvidenceCalibration, assume_factor, check_evidence
from paleo_lite.calibration.posterior import Observation, condition, remaining_width
from paleo_lite.calibration.store import find_calibration, write_calibration
from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.errors import BadFile, BadValue, CalibrationFailed
from paleo_lite.machines import find_device
from paleo_lite.own_machines.causes import local_traits
from paleo_lite.own_machines.contents import read_contents
from result_samples import VLLM_SERVE

SERVER = {"gpu": "h100-sxm", "precision": "bf16"}


def bench(users: int, tpot_ms: float, ttft_ms: float = 60.0, **changes: Any) -> dict[str, Any]:
    """Return what `vllm bench serve` writes."""
    written, requests = 200, 10 * users
    latency_s = ttft_ms / 1e3 + tpot_ms / 1e3 * (written - 1)
    duration_s = latency_s * 10
    return {
        "date": "20261101-120000", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": requests, "request_rate": "inf",
        "max_concurrency": users, "duration": duration_s, "completed": requests,
        "total_input_tokens": 1000 * requests, "total_output_tokens": written * requests,
        "request_throughput": requests / duration_s, "output_throughput": written * requests / duration_s,
        "total_token_throughput": 1200 * requests / duration_s,
        "mean_ttft_ms": ttft_ms, "mean_tpot_ms": tpot_ms, "mean_e2el_ms": latency_s * 1e3,
        "tensor_parallel_size": 1, **changes,
    }  # fmt: skip


def write(path: Path, *runs: dict[str, Any]) -> Path:
    """Write runs as `--append-result` does."""
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return path


def forecast(users: int = 8, **options: Any) -> Any:
    """Return the forecast of the server of `bench`."""
    return pl.serve(
        "llama-3.1-8b", gpu="h100-sxm", precision="bf16", input_tokens=1000, output_tokens=200, concurrency=users,
        num_requests=10 * users, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> EvidenceCalibration:
    """Return what two runs of a server say that is half as fast as others."""
    usual = forecast().latencies["tpot_s"]["mean"].value * 1e3
    folder = tmp_path_factory.mktemp("bench")
    path = write(folder / "bench.json", bench(8, 2 * usual), bench(16, 2 * usual))
    found = pl.calibrate(path, **SERVER, tensor=1)
    assert isinstance(found, EvidenceCalibration)
    return found


def test_rows_of_a_server_are_evidence(slow_server: EvidenceCalibration) -> None:
    figures = {(row.situation, row.figure) for row in slow_server.observations}
    assert {figure for _, figure in figures} == {"tpot_s", "ttft_s"}
    for row in slow_server.observations:
        assert row.traits["device"] == "h100-sxm"
        assert row.traits["engine"] == "vllm"
        assert sum(row.shares.values()) == pytest.approx(1, abs=0.001)


def test_the_stated_format_is_that_of_the_evidence(tmp_path: Path) -> None:
    """A server with `--precision fp8` is evidence of fp8, also of the answer that states its weights alone."""
    found = pl.calibrate(write(tmp_path / "bench.json", bench(8, 20)), gpu="h100-sxm", precision="fp8", tensor=1)
    assert isinstance(found, EvidenceCalibration)
    assert found.precision == "fp8"
    asked: dict[str, Any] = {"gpu": "h100-sxm", "input_tokens": 1000, "output_tokens": 200, "concurrency": 8}
    for stated in ({"precision": "fp8"}, {"weights": "fp8"}):
        answer = pl.serve("llama-3.1-8b", calibration=found, num_requests=32, **asked, **stated)
        assert "another format" not in " ".join(answer.notes)


def test_the_same_server_moves_towards_what_was_measured(slow_server: EvidenceCalibration) -> None:
    shipped, moved = forecast(), forecast(calibration=slow_server)
    before, after = (answer.latencies["tpot_s"]["mean"] for answer in (shipped, moved))
    assert 1.4 < after.value / before.value < 2.1
    assert after.high / after.low < before.high / before.low
    assert "calibrated by 4 measured figures" in moved.model
    assert shipped.model in moved.model


def test_another_device_moves_less_and_says_so(slow_server: EvidenceCalibration, tmp_path: Path) -> None:
    options: dict[str, Any] = {"input_tokens": 1000, "output_tokens": 200, "concurrency": 8, "num_requests": 32}
    shipped = pl.serve("llama-3.1-8b", gpu="l40s", **options)
    moved = pl.serve("llama-3.1-8b", gpu="l40s", calibration=slow_server, **options)
    ratio = moved.latencies["tpot_s"]["mean"].value / shipped.latencies["tpot_s"]["mean"].value
    assert 1.0 < ratio < 1.4
    assert "another device (h100-sxm): only what both have in common moves" in moved.model


def test_a_pass_of_text_generation_moves_with_its_server(slow_server: EvidenceCalibration) -> None:
    for phase in ({"phase": "decode", "context": 1000}, {"phase": "prefill", "sequence_length": 1000}):
        asked: dict[str, Any] = {"gpu": "h100-sxm", "precision": "bf16", **phase}
        shipped = pl.predict("llama-3.1-8b", batch_size=8, **asked)
        moved = pl.predict("llama-3.1-8b", batch_size=8, calibration=slow_server, **asked)
        # Tokens took twice their forecast; first tokens came earlier than forecast, so that prompts are faster.
        assert (moved.time_s > shipped.time_s) == (phase["phase"] == "decode")
        assert moved.bound_s == shipped.bound_s
        assert "calibrated by 4 measured figures" in moved.model.description
        assert moved.calibration == "calibrated by 4 measured figures"
    decoded = pl.predict("llama-3.1-8b", gpu="h100-sxm", phase="decode", context=1000, calibration=slow_server)
    on_two = pl.predict("llama-3.1-8b", gpu="h100-sxm", phase="decode", context=1000, tensor=2, calibration=slow_server)
    shipped_on_two = pl.predict("llama-3.1-8b", gpu="h100-sxm", phase="decode", context=1000, tensor=2)
    assert shipped_on_two.rows[0].time_s < on_two.rows[0].time_s < decoded.time_s
    assert "calibrated by 4 measured figures" in on_two.model


def test_text_generation_says_what_no_evidence_is_of(slow_server: EvidenceCalibration) -> None:
    other = pl.predict("llama-3.1-8b", gpu="h100-sxm", phase="decode", engine="sglang", calibration=slow_server)
    assert "another engine (vllm): only what both have in common moves" in other.model.description
    with pytest.raises(BadValue, match="a calibration from result files needs the kernels of an engine"):
        pl.predict("llama-3.1-8b", gpu="k80", phase="decode", calibration=slow_server)


@pytest.mark.thorough
def test_other_devices_of_a_report_have_the_evidence(slow_server: EvidenceCalibration, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    write_calibration(slow_server, path)
    asked: dict[str, Any] = {"gpu": "h100-sxm", "precision": "bf16", "phase": "decode", "context": 1000}
    moved = pl.predict("llama-3.1-8b", batch_size=8, calibration=str(path), **asked)
    on_l40s = pl.predict("llama-3.1-8b", batch_size=8, calibration=str(path), **{**asked, "gpu": "l40s"})
    tried = {one.name: one.prediction for one in try_alternatives(moved).tried}
    assert tried[on_l40s.device.name].time_s == pytest.approx(on_l40s.time_s)


@pytest.mark.thorough
@pytest.mark.usefixtures("few_alternatives")
def test_a_report_names_the_evidence(slow_server: EvidenceCalibration, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    write_calibration(slow_server, path)
    asked = pl.Predict("llama-3.1-8b", gpu="h100-sxm", phase="decode", context=1000, calibration=str(path))
    assert "server.toml" in pl.report(asked, tmp_path / "report.html").path.read_text()


def test_rollouts_and_the_trainer_learn_from_their_own_rows(slow_server: EvidenceCalibration, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"gpu": "h100-sxm", "workers": 8, "prompts": 8, "response_tokens": 500}
    shipped = pl.rl("llama-3.1-8b", **asked)
    by_server = pl.rl("llama-3.1-8b", calibration=slow_server, **asked)
    assert by_server.rollouts_s > 1.2 * shipped.rollouts_s
    assert "rollouts: calibrated by 4 measured figures" in by_server.model
    assert "trainer: the calibration has no figures of steps of training" in by_server.model
    steps = [
        Observation("train", "step_s", "a step", traits, 3.0, 1.5, {"products": 0.7, "memory": 0.3})
        for traits in [{"source": "", "engine": "megatron", "device": "h100-sxm", "format": "bf16", "network": "x"}]
    ]
    write_calibration(slow_server, tmp_path / "server.toml")
    write_calibration(msgspec.structs.replace(slow_server, observations=steps), tmp_path / "cluster.toml")
    both = pl.rl("llama-3.1-8b", calibration=f"{tmp_path / 'server.toml'}+{tmp_path / 'cluster.toml'}", **asked)
    assert both.rollouts_s == pytest.approx(by_server.rollouts_s)
    assert both.trainer_s > 1.1 * shipped.trainer_s
    with pytest.raises(
        BadValue, match="learns from measurements of servers or steps of training or collectives or power, and"
    ):
        pl.rl("llama-3.1-8b", calibration=local_rows(), **asked)


@pytest.mark.thorough
def test_collectives_calibrate_the_links_of_training_and_serving(tmp_path: Path) -> None:
    rows = "\n".join(
        f"  {size}  {size // 4}  float  sum  -1  {time_us}  0.1  0.1  0  {time_us}  0.1  0.1  0"
        for size, time_us in ((2**20, 400.0), (2**26, 4000.0), (2**33, 480000.0))  # some 20 GB/s, as over PCIe
    )
    ranks = "\n".join(f"#  Rank  {rank} Group  0 Pid  {rank} on a device  {rank} [0000:1b:00] NVIDIA H100 80GB HBM3"
                      for rank in range(8))  # fmt: skip
    path = tmp_path / "nccl.log"
    heading = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
    path.write_text(f"# Collective test starting: all_reduce_perf\n{ranks}\n{heading}\n{rows}\n")
    found = pl.calibrate(path)
    assert isinstance(found, EvidenceCalibration)
    assert [row.situation for row in found.observations] == [
        f"all-reduce of {size:,} bytes, 8 devices" for size in (2**20, 2**26, 2**33)
    ]
    assert {(row.traits["link"], row.traits["device"]) for row in found.observations} == {("nvlink4-x18", "h100-sxm")}
    assert "use it with `train --workers`, `rl` or `serve --tensor`" in found.uses
    assert found.document().facts[0] == ("devices", "h100-sxm")
    asked: dict[str, Any] = {"gpu": "h100-sxm", "workers": 8, "sequence_length": 1024, "precision": "bf16"}
    shipped, moved = (
        pl.train("llama-3.1-8b", calibration=calibration, **asked).rows[0] for calibration in (None, found)
    )
    assert moved.communication_s > 2 * shipped.communication_s
    server: dict[str, Any] = {"gpu": "h100-sxm", "tensor": 8, "concurrency": 8, "num_requests": 32}
    alone, slower = pl.serve("llama-3.1-70b", **server), pl.serve("llama-3.1-70b", calibration=found, **server)
    assert slower.latencies["ttft_s"]["mean"].value > alone.latencies["ttft_s"]["mean"].value
    assert "no figures of servers, which stay as shipped; links calibrated by 3 measured figures" in slower.model
    step = pl.rl("llama-3.1-8b", gpu="h100-sxm", workers=8, prompts=8, response_tokens=500, calibration=found)
    assert "trainer: links calibrated by 3 measured figures" in step.model
    decoded = pl.predict("llama-3.1-8b", gpu="h100-sxm", phase="decode", calibration=found)
    unused = "3 measured figures of collectives in the calibration change nothing here: one device has no links"
    assert unused in decoded.notes
    assert pl.calibrate(path, suggest=1).suggested  # type: ignore[union-attr]


def local_rows() -> EvidenceCalibration:
    """Return a calibration of a machine of one's own."""
    traits = {"source": "", "engine": "cuda", "device": "rtx3090", "format": "q4_0", "network": "llama-2-7b"}
    row = Observation("local", "token_s", "tg128", traits, 0.02, 0.01, {"reading": 1.0})
    return EvidenceCalibration(1, "evidence", [row])


def test_several_files_are_one_calibration(slow_server: EvidenceCalibration, tmp_path: Path) -> None:
    write_calibration(slow_server, tmp_path / "server.toml")
    write_calibration(local_rows(), tmp_path / "own+machine.toml")
    server, own = (str(tmp_path / name) for name in ("server.toml", "own+machine.toml"))
    assert find_calibration(own).to_dict()["observations"][0]["kind"] == "local"  # a name of its own with a +
    (tmp_path / "machine.toml").write_bytes((tmp_path / "own+machine.toml").read_bytes())
    together = find_calibration(f"{server}+{tmp_path / 'machine.toml'}+{server}")
    assert isinstance(together, EvidenceCalibration)
    assert len(together.observations) == 5
    assert together.kinds == ["server", "local"]
    with pytest.raises(BadValue, match="k40m-fp32 is a calibration of passes of networks, which stands alone"):
        find_calibration(f"{server}+k40m-fp32")


def test_copies_of_a_file_are_no_further_evidence(tmp_path: Path) -> None:
    """Neither a copy under another name nor a file to which the same run was appended; the answer says so."""
    first = write(tmp_path / "first.json", bench(8, 10.1234))
    copy = tmp_path / "copy.json"
    copy.write_bytes(first.read_bytes())
    more = write(tmp_path / "more.json", bench(8, 10.1234), bench(16, 11.1234))
    alone = pl.calibrate([first, write(tmp_path / "other.json", bench(16, 11.1234))], **SERVER)
    found = pl.calibrate([first, copy, more], **SERVER)
    assert [row.measured for row in found.observations] == [row.measured for row in alone.observations]
    assert f"{copy}: its only row is also in {first}, counted once" in found.notes
    assert f"{more}: 1 of its 2 rows is also in {first}, counted once" in found.notes
    assert [text.partition(" ")[0] for text in found.provenance.inputs] == ["first.json", "more.json"]


def test_warnings_name_file_and_row(tmp_path: Path) -> None:
    """Rows with the same load are told apart by their files, and by their numbers within one."""
    slow = write(tmp_path / "slow.json", bench(8, 12.1, 95.0))
    fast = write(tmp_path / "fast.json", bench(8, 6.1, 40.0))
    warnings = pl.calibrate([slow, fast], **SERVER).warnings()
    assert any(re.match(r"slow\.json: concurrency 8, .* deviations above ", text) for text in warnings)
    assert any(re.match(r"fast\.json: concurrency 8, .* deviations below ", text) for text in warnings)
    both = pl.calibrate(write(tmp_path / "both.json", bench(8, 12.1, 95.0), bench(8, 6.1, 40.0)), **SERVER)
    assert [row.situation[:18] for row in both.observations[::2]] == ["row 1: concurrency", "row 2: concurrency"]


def test_calibrations_of_the_same_file_are_joined_once(tmp_path: Path) -> None:
    """Also where the file held another run the second time, by which its rows are then told apart."""
    once = write(tmp_path / "once.json", bench(8, 10.1234))
    twice = write(tmp_path / "twice.json", bench(8, 10.1234), bench(16, 11.1234, model_id="Qwen/Qwen3-8B"))
    for path in (once, twice):
        write_calibration(pl.calibrate(path, **SERVER), path.with_suffix(".toml"))
    together = find_calibration(f"{once.with_suffix('.toml')}+{twice.with_suffix('.toml')}")
    assert isinstance(together, EvidenceCalibration)
    assert len(together.observations) == 4


def test_rows_of_servers_say_nothing_of_networks(slow_server: EvidenceCalibration) -> None:
    with pytest.raises(CalibrationFailed, match="covers servers only, not single passes of networks"):
        pl.predict("vgg16", gpu="k80", calibration=slow_server)


def test_missing_facts_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "bench.json", bench(8, 10.0))
    with pytest.raises(BadValue, match="the GPU is not in the file: give `--gpu"):
        pl.calibrate(path)


def test_result_files_and_others_are_not_mixed(tmp_path: Path) -> None:
    path = write(tmp_path / "bench.json", bench(8, 10.0))
    other = tmp_path / "steps.csv"
    other.write_text("network,gpu\n")
    with pytest.raises(BadValue, match="is a result file and"):
        pl.calibrate([path, other], **SERVER)


def test_options_of_result_files_are_for_them_only() -> None:
    with pytest.raises(BadValue, match="`--engine` is for result files"):
        pl.calibrate((), gpu="k80", engine="vllm")
    with pytest.raises(BadValue, match="give `--gpu`"):
        pl.calibrate(())


LLAMA_BENCH = {
    "build_commit": "abc1234", "build_number": 6000, "cpu_info": "AMD Ryzen 9 7950X",
    "gpu_info": "NVIDIA GeForce RTX 3090", "backends": "CUDA",
    "model_filename": "llama-2-7b.Q4_0.gguf", "model_type": "llama 7B Q4_0",
    "model_size": 3825065984, "model_n_params": 6738415616, "n_batch": 2048, "n_ubatch": 512, "n_threads": 16,
    "type_k": "f16", "type_v": "f16", "n_gpu_layers": 99, "test_time": "2026-11-01T12:00:00Z",
}  # fmt: skip


def llama_bench(path: Path, token_s: float, prompt_s: float) -> Path:
    """Write what `llama-bench -o jsonl` prints for a token and a prompt of 512."""
    rows = [
        {**LLAMA_BENCH, "n_prompt": prompt, "n_gen": written, "n_depth": 0, "avg_ns": int(time_s * 1e9),
         "stddev_ns": 1, "avg_ts": (prompt + written) / time_s, "stddev_ts": 0.1, "samples_ns": [int(time_s * 1e9)],
         "samples_ts": [(prompt + written) / time_s]}
        for prompt, written, time_s in ((0, 128, 128 * token_s), (512, 0, prompt_s))
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_machine_of_ones_own_is_calibrated(tmp_path: Path) -> None:
    shipped = pl.local("llama-2-7b", gpu="rtx3090", weights="q4_0", context=64)
    path = llama_bench(tmp_path / "llama-bench.jsonl", 1.3 * shipped.token_s, 1.5 * shipped.prompt_s)
    calibration = pl.calibrate(path, gpu="rtx3090", output=tmp_path / "mine.toml", suggest=1)
    assert isinstance(calibration, EvidenceCalibration)
    assert {row.figure for row in calibration.observations} == {"token_s", "prompt_s"}
    (suggested,) = calibration.suggested
    assert suggested.situation.startswith("llama-bench -p ")
    moved = pl.local("llama-2-7b", gpu="rtx3090", weights="q4_0", context=64, calibration=str(tmp_path / "mine.toml"))
    assert 1.1 < moved.token_s / shipped.token_s < 1.35
    assert 1.15 < moved.prompt_s / shipped.prompt_s < 1.55
    low_s, high_s = moved.token_interval_s
    assert high_s / low_s < shipped.token_interval_s[1] / shipped.token_interval_s[0]
    assert moved.notes[0] == "calibrated by 2 measured figures"
    served: Any = pl.serve(
        "llama-2-7b", gpu="rtx3090", weights="q4_0", engine="llama.cpp", concurrency=1, num_requests=4,
        input_tokens=64, output_tokens=16, calibration=calibration,
    )  # fmt: skip
    assert "calibrated by 2 measured figures" in served.model


def test_local_takes_no_calibration_of_steps() -> None:
    with pytest.raises(BadValue, match="`local` takes calibrations from result files"):
        pl.local("llama-2-7b", gpu="rtx3090", calibration="k40m-fp32")
    with pytest.raises(BadValue, match=r"`serve --engine llama\.cpp` takes calibrations from result files"):
        pl.serve("llama-2-7b", gpu="rtx3090", engine="llama.cpp", concurrency=1, calibration="k40m-fp32")


def test_the_document_shows_before_and_after(slow_server: EvidenceCalibration) -> None:
    text = str(slow_server.document())
    shown = slow_server.to_dict()
    assert "Calibration by 4 measured figures of servers" in text
    per_token = next(one for one in shown["accuracy"] if one["figure"] == "tpot_s")
    assert per_token["after"] < per_token["before"] / 2
    assert {one["cause"] for one in shown["moved"]} >= {"products", "host", "prompts"}


def test_a_folder_of_result_files_is_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(VLLM_SERVE)
    (tmp_path / "two.json").write_text(VLLM_SERVE)
    assert [path.name for path in find_result_files(tmp_path)] == ["one.json", "two.json"]
    log = tmp_path.parent / f"{tmp_path.name}-power.csv"
    log.write_text("timestamp, index, name, power.draw [W]\n2026/11/01 12:00:00.000, 0, NVIDIA L4, 12.00 W\n")
    assert find_result_files([tmp_path / "one.json", log]) == [tmp_path / "one.json", log]  # of a waiting device
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert find_result_files(tmp_path) == []  # a folder of something else


def test_coverage_is_judged_by_the_intervals_of_compare(slow_server: EvidenceCalibration, tmp_path: Path) -> None:
    """Servers, machines: the interval of each row is that which `compare` prints."""
    pytest.importorskip("pyarrow")
    machine = pl.calibrate(llama_bench(tmp_path / "machine.jsonl", 0.01, 0.1), gpu="rtx4090")
    file = write(tmp_path / "loads.jsonl", bench(8, 12.0))
    server = pl.calibrate(file, gpu="h100-sxm", precision="bf16")
    for found, path, given in (
        (machine, tmp_path / "machine.jsonl", {"gpu": "rtx4090"}),
        (server, file, {"gpu": "h100-sxm", "precision": "bf16"}),
    ):
        assert isinstance(found, EvidenceCalibration)
        shown: Any = pl.compare(path, **given)
        intervals = {(row.measured, row.forecast): (row.low, row.high) for row in shown.rows}
        assert found.observations
        for row in found.observations:
            assert row.interval == pytest.approx(intervals[row.measured, row.forecast])


def test_a_calibration_that_informs_nothing_is_refused(slow_server: EvidenceCalibration, tmp_path: Path) -> None:
    """Every command has the same rule: a file whose figures are all of other questions changes nothing."""
    write_calibration(slow_server, tmp_path / "server.toml")
    write_calibration(local_rows(), tmp_path / "machine.toml")
    for question, name, said in (
        (forecast, "machine.toml", "`serve` learns from measurements of servers or collectives or power"),
        (lambda **more: pl.local("llama-3.1-8b", gpu="rtx3090", **more), "server.toml", "`local` learns from"),
        (lambda **more: pl.serve("llama-3.1-8b", gpu="rtx3090", engine="llama.cpp", concurrency=2, **more),
         "server.toml", "`serve --engine llama.cpp` learns from"),
        (lambda **more: pl.train("llama-3.2-1b", gpu="h100-sxm", workers=8, **more), "machine.toml", "`train` learns"),
    ):  # fmt: skip
        with pytest.raises(BadValue, match=said):
            question(calibration=str(tmp_path / name))
    both = f"{tmp_path / 'server.toml'}+{tmp_path / 'machine.toml'}"
    answer = pl.local("llama-3.1-8b", gpu="rtx3090", calibration=both)
    unused = "measured figures of servers in the calibration change nothing here: `local` does not learn from them"
    assert [note for note in answer.notes if note.endswith(unused)]


def test_a_result_file_is_no_calibration(tmp_path: Path) -> None:
    write(tmp_path / "bench.json", bench(8, 12.0))
    (tmp_path / "wrong.json").write_text("{}")
    for name, said in (
        (
            "bench.json",
            r"is a result file of vLLM bench serve, not a calibration: `paleo-lite calibrate \S*bench.json -o",
        ),
        ("wrong.json", "is not a calibration: expected a TOML file that `paleo-lite calibrate` wrote"),
        ("", "is a folder, not a calibration"),
    ):
        with pytest.raises(BadFile, match=said):
            find_calibration(str(tmp_path / name))


def test_a_first_token_that_waited_is_no_evidence(tmp_path: Path) -> None:
    """Ten seconds are far more than three times the forecast: the prompt waited for a place in the server."""
    found = pl.calibrate(write(tmp_path / "full.jsonl", bench(8, 12.0, 10_000.0)), gpu="h100-sxm", precision="bf16")
    assert isinstance(found, EvidenceCalibration)
    assert [row.figure for row in found.observations] == ["tpot_s"]
    assert any("first tokens whose prompts wait in a queue" in note for note in found.notes)


@pytest.mark.parametrize("users", [8, 64])
def test_serve_narrows_its_intervals_as_calibrate_says(tmp_path: Path, users: int) -> None:
    """With a row, the interval of its figure is that of the posterior, where that is narrower.

    At 64 users prompts are a third of the time per token: their iterations are less certain than the sum.
    """
    usual = {name: forecast(users).latencies[name]["mean"].value * 1e3 for name in ("tpot_s", "ttft_s")}
    path = write(tmp_path / "bench.json", bench(users, 1.1 * usual["tpot_s"], 1.1 * usual["ttft_s"]))
    found = pl.calibrate(path, **SERVER, tensor=1)
    assert isinstance(found, EvidenceCalibration)
    shipped, moved = forecast(users), forecast(users, calibration=found)
    posterior = found.posterior("server")
    for row in found.observations:
        before, after = (answer.latencies[row.figure]["mean"] for answer in (shipped, moved))
        ends = log(before.low), log(before.high)
        width = log(after.high / after.low) / (ends[1] - ends[0])
        _, left, known = posterior.factors(row.traits).log_time(row.shares, posterior.prior.noise[row.figure])
        assert width == pytest.approx(remaining_width(left, known, ends), abs=0.08), row.figure
    assert [row.figure for row in found.observations] == ["tpot_s", "ttft_s"]


def test_a_decoding_pass_is_narrowed_with_its_host(tmp_path: Path) -> None:
    """`predict` times the kernels and the host of a pass, whose sum was measured: both have the interval of the sum."""
    usual_ms = forecast().latencies["tpot_s"]["mean"].value * 1e3
    found = pl.calibrate(write(tmp_path / "bench.json", bench(8, 1.1 * usual_ms)), **SERVER, tensor=1)
    assert isinstance(found, EvidenceCalibration)
    asked = {**SERVER, "phase": "decode", "batch_size": 8, "context": 1100}
    before, after = (pl.predict("llama-3.1-8b", **asked, **more) for more in ({}, {"calibration": found}))
    row, posterior = found.observations[0], found.posterior("server")
    _, left, known = posterior.factors(row.traits).log_time(row.shares, posterior.prior.noise[row.figure])
    ends = log(before.interval[0]), log(before.interval[1])
    width = log(after.interval[1] / after.interval[0]) / (ends[1] - ends[0])
    assert width == pytest.approx(remaining_width(left, known, ends), abs=0.06)


def test_a_first_token_is_moved_as_calibrate_says(slow_server: EvidenceCalibration) -> None:
    """Evidence knows the shares of a mean closed loop; here launches take six times as long, and it is measured alike.

    The simulated server, whose first tokens wait less for longer iterations, is nearer to what was measured.
    """
    shipped, moved = (forecast(**more).latencies["ttft_s"]["mean"] for more in ({}, {"calibration": slow_server}))
    row = next(row for row in slow_server.observations if row.figure == "ttft_s" and "concurrency 8" in row.situation)
    total, _, _ = slow_server.posterior("server").factors(row.traits).log_time(row.shares, 0.0)
    assert moved.value / shipped.value == pytest.approx(exp(total), rel=0.2)
    measured_s = 0.06
    assert abs(log(moved.value / measured_s)) < abs(log(shipped.value / measured_s))


def test_weights_of_another_network_are_noticed(tmp_path: Path) -> None:
    """The file of llama.cpp has 3.83 GB and 6.74 billion parameters; Llama 3.2 1B has 1.24 billion.

    The format is that of the recorded file name, also where another network is given.
    """
    path = llama_bench(tmp_path / "bench.jsonl", 0.01, 0.2)
    notes = pl.calibrate(path, gpu="rtx3090", network="llama-3.2-1b").notes  # type: ignore[union-attr]
    assert any("6,738,415,616 parameters, and llama-3.2-1b has 1,235,814,400" in note for note in notes)
    assert any("the file says 3.8 GB of weights, and llama-3.2-1b in q4_0 has 0." in note for note in notes)
    assert not any("check the network" in note for note in pl.calibrate(path, gpu="rtx3090").notes)  # type: ignore[union-attr]


PERFTEST = """                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             {mib:.2f}           {mib:.2f}          0.1
 8388608    5000             {mib:.2f}           {mib:.2f}          0.1
"""


def test_slow_messages_bound_collectives(tmp_path: Path) -> None:
    """Of 400 Gbit/s a message of 10 GB/s leaves a fifth; perftest counts 2^20 bytes. A fast one says nothing."""
    path = tmp_path / "ib.log"
    path.write_text(PERFTEST.format(mib=10e9 / 2**20))
    slow = pl.calibrate(path, gpu="h100-sxm")
    assert isinstance(slow, EvidenceCalibration)
    (row,) = slow.observations
    assert (row.kind, row.measured) == ("link", pytest.approx(2**23 / 10e9))
    assert row.situation == "point-to-point of 8,388,608 bytes, 2 devices, which bounds collectives"
    pytest.importorskip("pyarrow")
    (shown,) = pl.compare(path, gpu="h100-sxm").rows  # type: ignore[union-attr]
    assert (shown.figure, shown.measured) == ("bytes_per_s", pytest.approx(10e9))
    asked: dict[str, Any] = {"gpu": "h100-sxm", "workers": 16, "sequence_length": 2048}
    shipped, moved = (pl.train("llama-3.2-1b", **asked, **more).rows[0].time_s for more in ({}, {"calibration": slow}))
    assert moved > 1.02 * shipped
    path.write_text(PERFTEST.format(mib=49e9 / 2**20))
    with pytest.raises(BadValue, match="messages as fast as forecast bound no collective"):
        pl.calibrate(path, gpu="h100-sxm")


def test_contradictions_of_a_file_are_said_with_their_rows(tmp_path: Path) -> None:
    # 9,999 tokens/s are not the 80 requests of 200 tokens in the time that the run took.
    path = write(tmp_path / "a.json", bench(8, 10.0), bench(16, 11.0, output_throughput=9_999.0), bench(32, 12.0))
    contradiction = r"row 2: .* requests/s with answers of 200 tokens are .* tokens/s, and 9,999 output tokens/s"
    learned = pl.calibrate(path, **SERVER)
    assert isinstance(learned, EvidenceCalibration)
    assert any(re.search(rf"^{re.escape(str(path))}: {contradiction}", note) for note in learned.notes)
    assert any(re.search(rf"^{contradiction}", note) for note in pl.compare(path, **SERVER).notes)


def test_figures_that_others_of_their_row_contradict_are_no_evidence(tmp_path: Path) -> None:
    rows = [
        bench(8, 10.0, duration=0.5),  # 80 requests, at the stated rate in 20 s
        bench(16, 11.0, output_throughput=9_999.0),  # of answers of 200 tokens
        bench(32, 12.0, ttft_ms=60.0, mean_e2el_ms=50.0),  # a whole answer before its first token
        bench(64, 13.0),
    ]
    learned = pl.calibrate(write(tmp_path / "a.json", *rows), **SERVER, tensor=1)
    assert isinstance(learned, EvidenceCalibration)
    taken = [(row.situation.partition(",")[0], row.figure) for row in learned.observations]
    assert taken == [
        ("concurrency 8", "tpot_s"), ("concurrency 8", "ttft_s"), ("concurrency 64", "tpot_s"),
        ("concurrency 64", "ttft_s"),
    ]  # fmt: skip
    notes = "\n".join(learned.notes)
    assert re.search(
        r"row 1: 80 requests in 500 ms are 160 requests/s, and [\d.]+ requests/s: one of them is wrong", notes
    )
    assert "row 1: its time per output token and time to first token is taken" in notes
    assert "left out: rows whose lengths other figures of the row contradict (1)" in notes
    assert "left out: figures that others of their row contradict (2)" in notes


def test_figures_that_are_not_numbers_are_named(tmp_path: Path) -> None:
    rows = [bench(8, 10.0) | {"mean_ttft_ms": float("nan")}, bench(16, 11.0)]
    learned = pl.calibrate(write(tmp_path / "a.json", *rows), **SERVER, tensor=1)
    assert isinstance(learned, EvidenceCalibration)
    assert [row.figure for row in learned.observations] == ["tpot_s", "tpot_s", "ttft_s"]
    assert any("NaN is given for mean_ttft_ms: left out, as not measured" in note for note in learned.notes)


def test_rows_that_contradict_each_other_are_no_good_calibration(tmp_path: Path) -> None:
    usual = forecast().latencies["tpot_s"]["mean"].value * 1e3
    learned = pl.calibrate(write(tmp_path / "a.json", bench(8, 2 * usual), bench(8, usual / 2)), **SERVER)
    assert isinstance(learned, EvidenceCalibration)
    tokens = next(row for row in learned.accuracy() if row.figure == "tpot_s")
    assert tokens.after > 1.25 * tokens.before
    said = f"the other rows forecast tpot_s with an error of {tokens.after:.0%}, and the shipped constants alone with"
    assert any(sentence.startswith(said) for sentence in learned.warnings())


def test_rows_that_agree_are_not_doubted(slow_server: EvidenceCalibration) -> None:
    """Times per token are twice the usual ones with 8 and with 16 users; first tokens are not."""
    assert not any(sentence.startswith("the other rows forecast tpot_s") for sentence in slow_server.warnings())


def test_experts_of_a_machine_move_experts_more_than_dense_networks() -> None:
    # MLX on an M1 Ultra (lablup/mlxcel): 14.25 ms per token of qwen3-30b-a3b, and 11.83 ms of qwen3-8b.
    device = find_device("apple-m1-ultra")
    mixture, other, dense = (
        read_contents(find_network(name), "mlx-4bit", None, LOCAL_ENGINES["mlx"])
        for name in ("qwen3-30b-a3b", "qwen3.5-35b-a3b", "qwen3-8b")
    )
    assert "experts" not in local_traits(dense, device, "mlx")
    known = local_traits(mixture, device, "mlx", "lablup/mlxcel")
    assert known["experts"] == "yes"
    shares = {"reading": 0.15, "unpacking": 0.27, "waits": 0.58}
    row = Observation("local", "token_s", "qwen3-30b-a3b", known, 14.25e-3, 7.6e-3, shares)
    posterior = condition([row], "local")
    of_mixture, of_dense = (
        posterior.factors({**local_traits(contents, device, "mlx"), "source": "lablup/mlxcel"}).mean
        for contents in (other, dense)
    )
    assert (of_mixture > 1.1 * of_dense)[:3].all()  # reading, unpacking and waits
    assert (of_dense[:3] > 0).all()


def test_files_without_evidence_are_counted_with_the_reason_first(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"failed{number}.json", bench(8, 12.0, completed=0, duration=30.0 + number))
        for number in range(3)
    ]
    with pytest.raises(BadValue) as raised:
        pl.calibrate(paths, gpu="h100-sxm", precision="bf16")
    assert str(raised.value).startswith("3 files: no row is evidence: no request was answered (")
    assert "failed0.json and 2 more files); `paleo-lite measurements` lists" in str(raised.value)
    write(tmp_path / "bench.json", bench(8, 12.0))
    found = pl.calibrate([tmp_path / "bench.json", *paths], gpu="h100-sxm", precision="bf16")
    assert isinstance(found, EvidenceCalibration)
    assert [text.split()[0] for text in found.provenance.inputs] == ["bench.json"]


def test_a_calibration_forecasts_the_open_loads_that_it_learned_from(tmp_path: Path) -> None:
    """Servers whose matrix products take 1.3 times as long: under open loads slower iterations gather more users."""
    loads = {"gpu": "h100-sxm", "precision": "bf16", "input_tokens": 1000, "output_tokens": 200, "num_requests": 300}
    causes = ("launches", "products", "attention", "host", "prompts", "front end")
    traits = {"device": "h100-sxm", "engine": "vllm", "network": "llama-3.1-8b", "format": "bf16"}
    row = Observation("server", "tpot_s", "", traits, 1.0, 1.0, dict.fromkeys(causes, 1 / 6))
    slower = assume_factor(row, "products", log(1.3))
    runs, shipped, truth = [], [], []
    for rate in (2.0, 8.0, 14.0):
        usual, slow = (pl.serve("llama-3.1-8b", rate=rate, **loads, **more) for more in ({}, {"calibration": slower}))
        shipped.append(usual.latencies)
        truth.append(slow.latencies)
        times_ms = [slow.latencies[name]["mean"].value * 1e3 for name in ("tpot_s", "ttft_s")]
        runs.append(
            bench(1, *times_ms, request_rate=rate, max_concurrency=None, num_prompts=300, completed=300,
                  total_input_tokens=300_000, total_output_tokens=60_000, duration=300 / rate,
                  request_throughput=rate, output_throughput=200 * rate, total_token_throughput=1200 * rate)
        )  # fmt: skip
    found = pl.calibrate(write(tmp_path / "open.json", *runs), **SERVER, tensor=1)
    assert isinstance(found, EvidenceCalibration)
    learned = [pl.serve("llama-3.1-8b", rate=rate, **loads, calibration=found).latencies for rate in (2.0, 8.0, 14.0)]
    of_tokens = [row.sensitivity for row in found.observations if row.figure == "tpot_s"]
    assert of_tokens == sorted(of_tokens) and of_tokens[-1] > 1.2  # users gather the more, the higher the load
    for name in ("tpot_s", "ttft_s"):
        of = [
            [abs(log(a[name]["mean"].value / b[name]["mean"].value)) for a, b in zip(some, truth)]
            for some in (shipped, learned)
        ]
        assert max(of[1]) < 0.7 * max(of[0]), name
        assert max(of[1]) < 0.08, name


@pytest.mark.parametrize("sensitivity", [0.0, 1e3, float("nan")])
def test_a_sensitivity_that_no_load_has_is_refused(
    slow_server: EvidenceCalibration, tmp_path: Path, sensitivity: float
) -> None:
    (first, *others) = slow_server.observations
    rows = [msgspec.structs.replace(first, sensitivity=sensitivity), *others]
    with pytest.raises(BadFile, match=r"observations\[0\]\.sensitivity must be from 0\.1 to 100"):
        check_evidence(msgspec.structs.replace(slow_server, observations=rows), tmp_path / "server.toml")
