"""Timelines of fleets and of training schedules, as Perfetto reads them."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.errors import PaleoError

QUESTION: dict[str, Any] = {"gpu": "h100-sxm", "rate": 8, "num_requests": 30, "output_tokens": 20}


def events_of(path: Path, question: Any) -> list[dict[str, Any]]:
    """Return the events of the trace of a question."""
    pl.report(question, path)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_iterations_of_replicas_do_not_overlap_and_requests_end_in_order(tmp_path: Path) -> None:
    events = events_of(tmp_path / "fleet.trace.json", pl.Serve("llama-3-8b", **QUESTION, replicas=2))
    assert [one["args"]["name"] for one in events if one["name"] == "process_name"] == ["replica 0", "replica 1"]
    for process in (0, 1):
        steps = sorted((one["ts"], one["dur"]) for one in events if one["ph"] == "X" and one["pid"] == process)
        assert all(start + took <= following + 1e-3 for (start, took), (following, _) in itertools.pairwise(steps))
    begins = {(one["id"], one["name"]): one["ts"] for one in events if one["ph"] == "b"}
    ends = {(one["id"], one["name"]): one["ts"] for one in events if one["ph"] == "e"}
    assert len(begins) == 3 * 30 and begins.keys() == ends.keys()
    assert all(begins[key] <= ends[key] for key in begins)


def test_prompt_tokens_of_the_time_series_are_all_prompts(tmp_path: Path) -> None:
    path = tmp_path / "fleet.trace.csv"
    pl.report(pl.Serve("llama-3-8b", **QUESTION, prefill_pool="replicas=2"), path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["replica"] for row in rows} == {"prefill 0", "prefill 1", "decode 0"}
    assert sum(int(row["prompt_tokens"]) for row in rows if row["replica"].startswith("prefill")) == 30 * 1024
    assert all(0 <= float(row["cache_share"]) <= 1 for row in rows)


def test_stages_of_a_pipeline_are_threads(tmp_path: Path) -> None:
    question = pl.Train("llama-3-8b", platform="dgx-h100", workers=4, pipeline=4, precision="bf16", batch_size=8)
    events = events_of(tmp_path / "step.trace.json", question)
    assert [one["args"]["name"] for one in events if one["name"] == "thread_name"] == [
        f"stage {n}" for n in (1, 2, 3, 4)
    ]
    passes = {kind: [one for one in events if one["name"] == kind] for kind in ("forward", "backward")}
    assert len(passes["forward"]) == len(passes["backward"]) and len(passes["forward"]) % 4 == 0


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("question", "name", "sentence"),
    [
        (pl.Train("vgg16", gpu="k80-die"), "a.trace.json", "needs a pipeline"),
        (pl.Train("vgg16", gpu="k80-die"), "a.compose.yaml", "must end in .html"),
        (pl.Serve("llama-3-8b", gpu="h100-sxm", slo="tpot=30ms"), "a.trace.json", "needs traffic"),
    ],
)
def test_what_has_no_timeline_gets_a_sentence(question: Any, name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PaleoError, match=sentence):
        pl.report(question, tmp_path / name)
