"""Sweeps over questions of any kind: each row is the answer of the command, and `best` ranks the rows.

Tests: questions/sweep.py, sweeps/comparison.py, sweeps/questions.py, sweeps/rows.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue, PaleoError, SequenceTooLong, UnknownName
from paleo_lite.questions.sweep import space_of
from paleo_lite.sweeps.comparison import Comparison
from paleo_lite.sweeps.questions import MAX_CHUNK_ROWS, QuestionSpace
from paleo_lite.sweeps.rows import COLUMNS, SERVING_FIGURES, SERVING_LATENCIES, _rl_row
from paleo_lite.sweeps.run import Sweep
from paleo_lite.sweeps.space import Space

pytest.importorskip("pyarrow")

TRAFFIC = {"input_tokens": 512, "output_tokens": "64:16", "num_requests": 60, "seed": 3}
SERVER = {"network": "qwen2.5-0.5b", "gpu": ["a100-sxm-80gb", "t4"], "precision": "bf16", **TRAFFIC}
PICTURES = {"network": "sd-1.5", "gpu": ["a100-sxm-80gb", "t4"]}


def frame_of(question, path: Path):
    """Return the rows of a question as a frame, computed in this process."""
    written = pl.sweep(question, path, jobs=1)
    assert isinstance(written, Sweep)
    return written.to_frame()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two devices, of which a T4 has no bf16, with two rates and two tensor-parallel degrees."""
    path = tmp_path_factory.mktemp("servers") / "servers.parquet"
    pl.sweep(pl.Serve(**SERVER, rate=[2, 20], tensor=[1, 2]), path, jobs=1)
    return path


def test_every_row_is_the_answer_of_serve(servers: Path) -> None:
    import pandas

    rows = pandas.read_parquet(servers)
    assert len(rows) == 8 and rows.reason.notna().sum() == 4
    for row in rows[rows.gpu == "a100-sxm-80gb"].to_dict("records"):
        asked = {**SERVER, "gpu": "a100-sxm-80gb", "rate": row["rate_per_s"], "tensor": row["tensor"]}
        answer = pl.serve(**asked)
        for name, (latency, statistic) in SERVING_LATENCIES.items():
            assert row[name] == answer.latencies[latency][statistic].value
        for name in SERVING_FIGURES:
            assert row[name] == answer.figures[name].value
        assert row["ttft_p50_s_low"] == answer.latencies["ttft_s"]["p50"].low
        assert row["output_tokens_per_s_high"] == answer.figures["output_tokens_per_s"].high
        assert (row["devices"], row["kv_cache"], row["answer"]) == (row["tensor"], "bf16", "forecast")
    refused = rows[rows.gpu == "t4"]
    assert refused.reason.str.startswith("Tesla T4 has no bf16 peak").all()
    assert refused[[*SERVING_LATENCIES, *SERVING_FIGURES]].isna().all(axis=None)


def test_best_ranks_servers(servers: Path) -> None:
    import pandas

    rows = pandas.read_parquet(servers).query("gpu == 'a100-sxm-80gb'")
    cheapest = pl.best(servers, minimise="usd_per_million_output_tokens", where="ttft_p50_s < 1", top=1).rows[0]
    assert cheapest["usd_per_million_output_tokens"] == rows.usd_per_million_output_tokens.min()
    assert pl.best(servers, minimise="cost", where="ttft < 1", top=1).rows == [cheapest]
    assert pl.best(servers, pareto="ttft,cost").columns == ("ttft_p50_s", "usd_per_million_output_tokens")
    front = pl.best(servers, pareto="output_tokens_per_s_per_gpu,output_tokens_per_s_per_user")
    for row in front.rows:  # larger is better in both
        better = (rows.output_tokens_per_s_per_gpu > row["output_tokens_per_s_per_gpu"]) & (
            rows.output_tokens_per_s_per_user > row["output_tokens_per_s_per_user"]
        )
        assert not better.any()
    assert max(row["output_tokens_per_s_per_gpu"] for row in front.rows) == rows.output_tokens_per_s_per_gpu.max()


@pytest.mark.thorough
def test_any_option_of_a_server_is_an_axis(tmp_path: Path) -> None:
    """Users, formats, limits and clocks: in a CSV file each row is the answer under its own."""
    asked = {**SERVER, "gpu": "a100-sxm-80gb", "input_tokens": 64, "output_tokens": 16, "num_requests": 10}
    question = pl.Serve(**asked, concurrency="1:4:x2", power_limit=["150W", "400W"], clock="1.2GHz")
    rows = frame_of(question, tmp_path / "servers.csv")
    assert rows.concurrency.tolist() == [1, 2, 4] * 2
    assert rows.power_limit_w.tolist() == [150] * 3 + [400] * 3
    for row in rows.to_dict("records"):
        served = pl.serve(**asked, concurrency=row["concurrency"], power_limit=row["power_limit_w"], clock=row["clock"])
        assert row["ttft_p50_s"] == pytest.approx(served.latencies["ttft_s"]["p50"].value)


@pytest.mark.thorough
def test_experts_and_attention_are_axes(tmp_path: Path) -> None:
    question = pl.Serve(
        "qwen3-30b-a3b", gpu="h200", concurrency=8, tensor=[2, 8], expert_parallel=[1, 8],
        attention_data_parallel=[1, 8], **TRAFFIC,
    )  # fmt: skip
    rows = frame_of(question, tmp_path / "servers.csv")
    assert len(rows) == 8 and rows.reason.isna().sum() == 5  # on 2 devices only 1 and 1
    refused = rows[rows.reason.notna()]
    assert set(refused.tensor) == {2}
    assert refused.reason.str.contains("must divide the 2 devices of `--tensor` \\(got 8\\)").all()
    chosen = rows[(rows.expert_parallel == 8) & (rows.attention_data_parallel == 8) & (rows.tensor == 8)].iloc[0]
    served = pl.serve(
        "qwen3-30b-a3b", gpu="h200", concurrency=8, tensor=8, expert_parallel=8, attention_data_parallel=8, **TRAFFIC
    )
    assert chosen.tpot_p50_s == pytest.approx(served.latencies["tpot_s"]["p50"].value)
    assert chosen.devices == 8


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "pictures.csv"
    question = pl.Diffusion(**PICTURES, image_size=["512", "500"], steps=[10, 20], batch_size=[1, 64])
    pl.sweep(question, path, jobs=1)
    return path


def test_every_row_is_the_prediction_of_its_pictures(pictures: Path) -> None:
    best = pl.best(pictures, minimise="time_s", where="gpu == a100-sxm-80gb and batch_size == 64")
    row = best.rows[0]
    prediction = pl.diffusion("sd-1.5", gpu="a100-sxm-80gb", steps=10, image_size=512, batch_size=64)
    assert row["time_s"] == pytest.approx(prediction.time_s)
    assert row["memory_bytes"] == pytest.approx(prediction.memory.total_bytes)
    assert row["kwh"] == pytest.approx(prediction.energy_j * 1e6 / 64 / 3.6e6)
    assert row["hours"] == pytest.approx(1e6 / 64 * prediction.time_s / 3600)
    assert row["cost_usd"] == pytest.approx(prediction.usd_per_million)
    assert (row["image_size"], row["steps"], row["frames"], row["devices"]) == ("512x512", 10, 1, 1)
    text = pictures.read_text()
    assert text.count("width is a multiple of 8") == 8  # 2 devices x 2 numbers of steps x 2 batches of 500 pixels
    assert len(text.splitlines()) == 1 + 16


def test_power_limits_trade_time_for_energy(tmp_path: Path) -> None:
    """Each row is the prediction under its limit."""
    asked = {"network": "sdxl", "gpu": "a100-sxm-80gb", "steps": 4}
    path = tmp_path / "limits.csv"
    pl.sweep(pl.Diffusion(**asked, power_limit=[200, 250, 400]), path, jobs=1)
    by_limit = {row["power_limit_w"]: row for row in pl.best(path, pareto="time_s,energy_j").rows}
    alone = pl.diffusion(**asked, power_limit=250)
    assert by_limit[250]["time_s"] == pytest.approx(alone.time_s)
    assert by_limit[250]["energy_j"] == pytest.approx(alone.energy_j)
    assert by_limit[200]["time_s"] > alone.time_s and by_limit[200]["energy_j"] < by_limit[250]["energy_j"]


def test_costs_are_those_of_a_cloud_or_as_given(tmp_path: Path) -> None:
    """AWS asks 55.04 USD/h for the eight H100 of p5.48xlarge, and has no RTX 4090."""
    question = pl.Diffusion("sd-1.5", gpu=["h100-sxm", "rtx4090"], steps=10, price="aws")
    pl.sweep(question, tmp_path / "prices.csv", jobs=1)
    (row,) = pl.best(tmp_path / "prices.csv", minimise="cost_usd").rows
    assert row["gpu"] == "h100-sxm" and row["price"].startswith("6.88 USD/h (AWS")
    assert row["cost_usd"] == pytest.approx(row["hours"] * 55.04 / 8)
    given = frame_of(pl.Predict("alexnet", gpu="k40m", price="2 USD/h"), tmp_path / "given.csv").iloc[0]
    assert given["cost_usd"] == pytest.approx(given["hours"] * 2)


def test_own_machines_are_ranked(tmp_path: Path) -> None:
    question = pl.Local("llama-3.1-8b", gpu=["rtx3060", "rtx4090"], weights=["q4_k_m", "q8_0"])
    rows = frame_of(question, tmp_path / "rows.csv")
    for row in rows.itertuples():
        alone = pl.local("llama-3.1-8b", gpu=row.gpu, weights=row.weights)
        assert row.tokens_per_s == pytest.approx(alone.tokens_per_s)
        assert row.prompt_s == pytest.approx(alone.prompt_s)
    fastest = pl.best(tmp_path / "rows.csv", maximise="tokens_per_s").rows[0]
    assert (fastest["gpu"], fastest["weights"]) == ("rtx4090", "q4_k_m")


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "question",
    [
        pl.Predict("resnet50,vgg16", gpu="t4,l4", batch_size="1,8"),
        pl.Predict("gpt2,llama-3.2-1b", gpu="h100-sxm", phase="decode", context="128,512", precision="fp16"),
        pl.Predict("resnet50", gpu="v100-sxm2", precision="fp32,fp16", clock="base,boost", power_limit="150W,250W"),
        pl.Predict("alexnet", gpu="k40m", ppp=0.6, batch_size="2,4"),
        pl.Train("resnet50", gpu="t4,v100-sxm2", batch_size="16,64", optimizer="adam"),
        pl.Train("resnet50", gpu="k80-die", workers="1,2,4", link="ethernet20,pcie3", batch_size=8, samples="1.28M",
                 epochs=2),
        pl.Train("vgg16", gpu="p100-sxm2", workers="2,4", link="nvlink1", global_batch_size="64,128",
                 strategy="data,zero-1", price=2),
    ],
    ids=["passes", "decode", "clocks", "ppp", "steps", "cluster", "strong"],
)  # fmt: skip
def test_arrays_and_single_answers_give_the_same_rows(question, tmp_path: Path) -> None:
    """What is answered as arrays equals what the command answers, combination by combination."""
    space = space_of(question)
    assert isinstance(space, Space)
    rows = frame_of(question, tmp_path / "rows.csv")
    single = _answer_one_by_one(question)
    assert len(rows) == len(single)
    named = {"workers": "workers", "link": "link", "strategy": "strategy", "clock": "clock", "phase": "phase"}
    for options, row in single:
        chosen = rows
        for name in ("network", "gpu", "precision", *named):
            if name in options:
                chosen = chosen[chosen[name] == options[name]]
        for name in ("batch_size", "global_batch_size", "context"):
            if name in options:
                column = "context" if name == "context" else "batch_size"
                chosen = chosen[chosen[column] == options[name]]
        if "power_limit" in options:
            chosen = chosen[chosen["power_limit_w"] == float(options["power_limit"].removesuffix("W"))]
        assert len(chosen) == 1
        for name in ("time_s", "bound_s", "low_s", "high_s", "throughput_per_s", "hours", "cost_usd", "memory_bytes"):
            expected = row.get(name)
            if expected is not None and not (name == "bound_s" and options.get("workers", 1) > 1):
                assert chosen.iloc[0][name] == pytest.approx(expected, rel=1e-6), (name, options)


def _answer_one_by_one(question) -> list[tuple[dict, dict]]:
    """Return the options of each combination, and the row of its answer."""
    from itertools import product

    from paleo_lite.questions.sweep import answer_of_kind, kind_of
    from paleo_lite.sweeps.rows import RowTerms, answer_row

    kind, several = kind_of(question), question.several()
    fixed = {name: getattr(question, name) for name in question.given() if name not in several}
    if "network" not in several:
        fixed["network"] = question.network
    rows = []
    for values in product(*several.values()):
        options = {**fixed, **dict(zip(several, values, strict=True))}
        answer = answer_of_kind(kind.name, {**options, **({"memory": True} if kind.name == "predict" else {})})
        rows.append((options, answer_row(answer, RowTerms())))
    return rows


def test_a_dry_run_counts_the_combinations() -> None:
    space = pl.sweep(pl.Diffusion(**PICTURES, steps=[10, 20, 30], ulysses=[1, 2]), "unused.csv", dry_run=True)
    assert isinstance(space, QuestionSpace) and space.size == 12
    assert space.describe() == "2 gpu x 3 steps x 2 ulysses"
    many = pl.Serve("qwen2.5-0.5b,llama-3-8b", gpu="h100-sxm", rate="1,2,4", seed=list(range(50)))
    space = space_of(many)
    assert isinstance(space, QuestionSpace) and space.size == 300
    sizes = [len(list(space.combinations(chunk))) for chunk in space.chunks()]
    assert sum(sizes) == 300 and max(sizes) <= MAX_CHUNK_ROWS and len(sizes) == space.chunk_count


def test_a_network_whose_usual_precision_differs_is_answered_on_its_own() -> None:
    """ResNet-50 runs in fp32 and GPT-2 in bf16: no array has both, but given a precision it has."""
    mixed = {"network": ["resnet50", "gpt2"], "gpu": "h100-sxm"}
    assert isinstance(space_of(pl.Predict(**mixed)), QuestionSpace)
    assert isinstance(space_of(pl.Predict(**mixed, precision="fp16")), Space)


def test_rows_of_a_network_that_is_published_in_a_format_are_its_predictions() -> None:
    """OpenAI publishes gpt-oss-20b in mxfp4, which engines read: 15 GB instead of 42 in bf16."""
    question = pl.Predict("gpt-oss-20b", gpu="l40s,rtx4090", phase="decode", context=4096, batch_size=8)
    space = space_of(question)
    assert isinstance(space, QuestionSpace)
    single = pl.predict("gpt-oss-20b", gpu="rtx4090", phase="decode", context=4096, batch_size=8)
    assert single.workload.weights == "mxfp4"
    with_precision = pl.Predict("gpt-oss-20b", gpu="l40s", phase="decode", context=4096, precision="bf16")
    assert isinstance(space_of(with_precision), Space)


def test_a_comparison_of_servers_has_a_row_each() -> None:
    served = pl.serve(**SERVER, rate=[2, 20])
    assert isinstance(served, Comparison)
    assert [row["rate_per_s"] for row in served.rows] == [2, 20]
    assert len(served.left_out) == 2 and all("has no bf16 peak" in reason for reason in served.left_out)
    assert served.document().title == "2 answers side by side"
    alone = pl.serve(**{**SERVER, "gpu": "a100-sxm-80gb"}, rate=2)
    assert served.rows[0]["ttft_p50_s"] == alone.latencies["ttft_s"]["p50"].value
    assert served.to_dict()["answers"][0] == alone.to_dict()


def test_columns_are_those_of_the_answers() -> None:
    """Every column that a row of an answer has is a column of the file."""
    from paleo_lite.sweeps.rows import RowTerms, answer_row

    answers = {
        "predict": [pl.predict("alexnet", gpu="t4"), pl.predict("gpt2", gpu="h100-sxm", phase="decode", tensor=2)],
        "train": [
            pl.train("alexnet", gpu="t4"),
            pl.train("alexnet", gpu="t4", workers=2, link="pcie3"),
            pl.train("alexnet", gpu="t4", samples="1M"),
        ],
        "diffusion": [pl.diffusion("sd-1.5", gpu="l4"), pl.diffusion("sd-1.5", gpu="h100-sxm", workers=2)],
        "local": [pl.local("llama-3.2-1b", gpu="rtx3060")],
        "serve": [pl.serve("qwen2.5-0.5b", gpu="h100-sxm", rate=2, num_requests=20)],
    }
    for kind, found in answers.items():
        for answer in found:
            row = answer_row(answer, RowTerms())
            assert set(row) <= set(COLUMNS[kind]), kind
            assert {"answer", "version", "devices"} <= set(row)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda: pl.Serve(**SERVER, rate="fast"), "`--rate` must be a number of requests per second or inf"),
        (lambda: pl.Diffusion(**PICTURES, image_size="big"), "must be pixels"),
        (lambda: pl.Diffusion(**PICTURES, offload="moon"), "no offload is called 'moon'"),
        (lambda: pl.Predict("alexnet,sd-1.5", gpu="t4"), "sd-1.5 is a pipeline for pictures"),
        (lambda: pl.Predict("alexnet", gpu="k81,t4"), "no GPU is called 'k81'"),
        (lambda: pl.Predict(pl.predict("alexnet", gpu="t4").workload.network, gpu="t4"), "names and numbers"),
    ],
)
def test_bad_sweeps_get_one_sentence(question, message: str, tmp_path: Path) -> None:
    with pytest.raises(PaleoError) as error:
        pl.sweep(question(), tmp_path / "rows.csv", jobs=1)
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())


def test_too_many_answers_are_not_shown() -> None:
    with pytest.raises(BadValue, match=r"40,000 combinations are too many to show .* `-o rows.parquet`"):
        pl.predict("alexnet", gpu="t4,l4", batch_size=list(range(1, 20001)))
    with pytest.raises(UnknownName):
        pl.predict("alexnet", gpu="t4,l5")


def test_another_hardware_file_is_another_sweep(tmp_path: Path) -> None:
    """A sweep resumes only with the same content of the files."""
    from paleo_lite.files import shipped_folder

    mine = tmp_path / "mine.toml"
    mine.write_bytes((shipped_folder("hardware") / "t4.toml").read_bytes())
    space = space_of(pl.Serve("qwen2.5-0.5b", gpu="h100-sxm", rate=[1, 2], hardware_files=[mine]))
    before = space.inputs()
    assert before == space.inputs()
    mine.write_text("two")
    (tmp_path / "requests.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,10\n")
    asked = {"network": "qwen2.5-0.5b", "gpu": ["h100-sxm", "l40s"], "requests": str(tmp_path / "requests.csv")}
    assert str(tmp_path / "requests.csv") in space_of(pl.Serve(**asked)).inputs()
    assert {name for name, value in space.inputs().items() if value != before[name]} == {str(mine)}


def test_networks_of_a_sweep_have_their_own_default_optimizers(tmp_path) -> None:
    asked = {"gpu": "h100-sxm", "precision": "fp32", "phase": "training", "batch_size": 2}
    frame = frame_of(pl.Predict(["resnet18", "gpt2"], **asked), tmp_path / "steps.parquet")
    assert space_of(pl.Predict(["resnet18", "gpt2"], **asked)).optimizer == ""
    for name, time_s in zip(frame["network"], frame["time_s"], strict=True):
        assert time_s == pytest.approx(pl.predict(name, **asked).time_s, rel=1e-6)


def test_a_length_that_one_network_does_not_know_is_a_row_with_the_reason(tmp_path: Path) -> None:
    # GPT-2 has 1,024 positions (Radford et al. 2019), Llama 3.1 131,072
    asked = pl.Predict("gpt2,llama-3.1-8b", gpu="h100-sxm", sequence_length=[512, 4096], phase="prefill")
    rows = frame_of(asked, tmp_path / "rows.csv")
    reasons = dict(zip(zip(rows.network, rows.sequence_length), rows.reason.notna()))
    assert [pair for pair, is_refused in reasons.items() if is_refused] == [("gpt2", 4096)] and len(rows) == 4
    assert rows.reason.dropna().item().endswith("a sequence of 4096 tokens is too long")
    with pytest.raises(SequenceTooLong):
        space_of(pl.Predict("gpt2", gpu=["h100-sxm", "h200"], sequence_length=4096, phase="prefill"))


def test_rows_of_rl_have_the_hours_of_their_steps() -> None:
    answer = pl.rl("qwen2.5-0.5b", gpu="h100-sxm", prompts=4, samples_per_prompt=2, response_tokens=50, steps=50)
    row = _rl_row(answer)
    assert row["hours"] == pytest.approx(50 * answer.time_s / 3600)
    assert (row["cost_usd"], row["kwh"]) == (answer.totals.usd, answer.totals.kwh)
    assert {"hours", "cost_usd", "kwh"} <= set(COLUMNS["rl"])
