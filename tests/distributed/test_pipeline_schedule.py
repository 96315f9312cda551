"""Schedules of pipelines: the bubbles of the papers, dependencies between tasks, and the chart.

Tests: distributed/pipeline_schedule.py, reporting/charts/schedule.py.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asked import scaling
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.pipeline import schedule_step
from paleo_lite.distributed.pipeline_schedule import (
    BACKWARD,
    BUBBLE,
    EXCHANGE,
    FORWARD,
    UPDATE,
    StageTimes,
    fraction_of,
    simulate_schedule,
    step_end_s,
)
from paleo_lite.distributed.settings import Settings
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, find_device
from paleo_lite.reporting.charts.schedule import schedule_chart
from paleo_lite.timing import RooflineModel, predict
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload


def equal_stages(stages, micro_batches, forward_s=1.0, backward_s=2.0, **more):
    return StageTimes(
        (forward_s,) * stages, (backward_s,) * stages, (0.0,) * stages, (0.0,) * (stages - 1), micro_batches, **more
    )


@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from(["gpipe", "1f1b"]))
def test_equal_stages_take_as_many_slots_as_micro_batches_and_other_stages(stages, micro_batches, schedule):
    """Narayanan et al. 2021, section 2.2.1: the bubble is (p - 1) (t_f + t_b), beside an ideal m (t_f + t_b)."""
    spans = simulate_schedule(equal_stages(stages, micro_batches, schedule=schedule))
    assert step_end_s(spans) == pytest.approx((micro_batches + stages - 1) * 3)
    assert fraction_of(spans, BUBBLE) == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@given(st.integers(2, 5), st.integers(1, 3), st.integers(2, 4))
def test_virtual_stages_divide_the_bubble(stages, rounds, parts):
    """Narayanan et al. 2021, section 2.2.2: the bubble is (p - 1) (t_f + t_b) / v."""
    micro_batches = rounds * stages
    spans = simulate_schedule(equal_stages(stages, micro_batches, virtual_stages=parts))
    assert step_end_s(spans) == pytest.approx(micro_batches * 3 + (stages - 1) * 3 / parts)


def test_interleaved_micro_batches_must_be_divisible_by_the_stages():
    """Narayanan et al. 2021, section 2.2.2: the schedule needs a multiple of the stages."""
    with pytest.raises(BadValue, match=r"divisible by the 4 stages \(got 6\)"):
        simulate_schedule(equal_stages(4, 6, virtual_stages=2))


@st.composite
def any_times(draw):
    stages = draw(st.integers(1, 5))
    schedule = draw(st.sampled_from(["gpipe", "1f1b"]))
    parts = draw(st.integers(1, 3)) if schedule == "1f1b" else 1
    micro_batches = draw(st.integers(1, 4)) * (stages if parts > 1 else 1)
    seconds = st.floats(0.1, 10)

    def times(count):
        return tuple(draw(st.lists(seconds, min_size=count, max_size=count)))

    return StageTimes(
        times(stages), times(stages), times(stages), times(stages - 1), micro_batches, schedule,
        parts if stages > 1 else 1, draw(seconds), draw(seconds),
    )  # fmt: skip


@given(any_times())
def test_rows_are_filled_and_no_task_precedes_its_input(times):
    spans = simulate_schedule(times)
    end_s = step_end_s(spans)
    ends = {}
    for stage in range(times.stages):
        row = [span for span in spans if span.stage == stage]
        assert row[0].start_s == 0 and row[-1].end_s == pytest.approx(end_s)
        assert all(before.end_s == pytest.approx(after.start_s) for before, after in pairwise(row))
        passes = [span for span in row if span.kind in (FORWARD, BACKWARD)]
        assert len({(s.kind, s.micro_batch, s.virtual_stage) for s in passes}) == len(passes)
        assert len(passes) == 2 * times.micro_batches * times.virtual_stages
        ends |= {(stage, s.kind, s.virtual_stage, s.micro_batch): s for s in passes}
        assert sum(s.end_s - s.start_s for s in row if s.kind == UPDATE) == pytest.approx(times.update_s)
    last = times.stages - 1
    for (stage, kind, part, number), span in ends.items():
        if kind == FORWARD and (stage or part):
            before = ends[(stage - 1, kind, part, number) if stage else (last, kind, part - 1, number)]
        elif kind == BACKWARD and stage < last:
            before = ends[stage + 1, kind, part, number]
        elif kind == BACKWARD and part < times.virtual_stages - 1:
            before = ends[0, kind, part + 1, number]
        elif kind == BACKWARD:
            before = ends[stage, FORWARD, part, number]
        else:
            continue
        assert span.start_s >= before.end_s - 1e-9


@given(st.integers(1, 5), st.integers(1, 8))
def test_1f1b_keeps_few_micro_batches_in_flight(stages, micro_batches):
    """Narayanan et al. 2019, PipeDream: stage i of p (from 0) has at most p - i micro-batches in flight."""
    spans = simulate_schedule(equal_stages(stages, micro_batches))
    for stage in range(stages):
        in_flight = highest = 0
        for span in sorted((s for s in spans if s.stage == stage), key=lambda span: span.start_s):
            in_flight += {FORWARD: 1, BACKWARD: -1}.get(span.kind, 0)
            highest = max(highest, in_flight)
        assert highest == min(stages - stage, micro_batches)


@given(any_times())
def test_gpipe_agrees_with_its_formula_where_transfers_are_free(times):
    """Two permutation flow shops in a row, as long as the backward pass starts after the last forward pass."""
    if times.schedule != "gpipe":
        return
    none, zeros = (0.0,) * times.stages, (0.0,) * (times.stages - 1)
    plain = StageTimes(times.forward_s, times.backward_s, none, zeros, times.micro_batches, "gpipe")
    formula = schedule_step(times.forward_s, times.backward_s, zeros, zeros, times.micro_batches, "gpipe")
    assert step_end_s(simulate_schedule(plain)) == pytest.approx(float(formula.time_s))


@pytest.mark.parametrize("schedule", ["pipeline-gpipe", "pipeline-1f1b"])
def test_the_schedule_of_a_network_takes_about_the_predicted_step(schedule):
    asked = {"gpu": "v100-sxm2", "link": "nvlink2-x6", "workers": [1, 4], "batch_size": 8, "strategy": schedule}
    one, four = scaling("vgg16", **asked).rows
    assert one.pipeline is None
    assert four.pipeline.stages == 4
    assert step_end_s(simulate_schedule(four.pipeline)) == pytest.approx(four.time_s, rel=0.02)


@pytest.mark.parametrize("virtual_stages", [1, 2])
def test_the_schedule_of_a_language_model_takes_about_the_predicted_step(virtual_stages):
    config = ParallelConfig(tensor=8, pipeline=8, virtual_stages=virtual_stages, sequence_parallel=True)
    table = scaling(
        "gpt3-175b", precision="bf16", topology="8x a100-sxm-80gb @ nvlink3-x12, 8 nodes @ infiniband-hdr",
        settings=Settings(parallel=config), batch_size=16, scaling="strong",
    )  # fmt: skip
    spans = simulate_schedule(table.rows[-1].pipeline)
    assert step_end_s(spans) == pytest.approx(table.rows[-1].time_s, rel=0.02)
    assert {span.kind for span in spans} == {FORWARD, BACKWARD, EXCHANGE, UPDATE, BUBBLE}


@pytest.fixture(scope="module")
def draw_schedule():
    pytest.importorskip("altair")
    table = scaling("vgg16", gpu="v100-sxm2", link="nvlink2-x6", workers=[4], batch_size=8, strategy="pipeline-1f1b")

    def draw(micro_batches):
        row = table.rows[0]
        times = msgspec.structs.replace(row.pipeline, micro_batches=micro_batches)
        rows = [msgspec.structs.replace(row, pipeline=times)]
        return schedule_chart(msgspec.structs.replace(table, rows=rows)).to_dict()["layer"]

    return draw


@pytest.mark.parametrize(("micro_batches", "is_numbered"), [(16, True), (160, False)])
def test_forward_and_backward_passes_are_numbered_or_neither(draw_schedule, micro_batches, is_numbered):
    layers = draw_schedule(micro_batches)
    numbered = [mark["part"] for layer in layers[1:] for mark in layer["data"]["values"]]
    assert set(numbered) == ({FORWARD, BACKWARD} if is_numbered else set())


def test_numbers_of_narrow_passes_are_smaller(draw_schedule):
    """A forward pass takes half as long as a backward pass, and its number fits into half of the width."""
    bars, numbers = (layer["data"]["values"] for layer in draw_schedule(24))
    unit = 720 / max(mark["end"] for mark in bars)
    sizes = {(mark["part"], mark["micro_batch"]): mark["size"] for mark in numbers}
    assert sizes[FORWARD, "10"] < sizes[BACKWARD, "10"] == 9
    for mark in numbers:
        assert len(mark["micro_batch"]) * mark["size"] * 0.55 <= (mark["end"] - mark["start"]) * unit


def test_the_chart_shows_the_bubble_in_the_colour_of_the_legend(draw_schedule):
    """Opacity of a mark is not part of its legend."""
    bars = draw_schedule(16)[0]["data"]["values"]
    assert {mark["opacity"] for mark in bars if mark["part"] == BUBBLE} == {1.0}


@pytest.mark.parametrize("stages", [2, 4])
def test_the_longest_stage_has_its_share_of_the_blocks_and_the_loss(stages):
    """Of GPT-2's 12 blocks; the whole network is predicted on one device. One of two attention masks is left out."""
    training = TrainingOptions("adam", mixed_precision=True)
    row = scaling(
        "gpt2", workers=stages, batch_size=8, precision="fp16", scaling="strong", strategy="3d", training=training,
        settings=Settings(parallel=ParallelConfig(1, stages)), topology="8x a100-sxm-80gb @ nvlink3-x12",
        time_model="roofline",
    )[0]  # fmt: skip
    network = find_network("gpt2", options=SequenceOptions(phase="training"))
    workload = Workload(network, "fp16", 1, "training", training=training)
    whole = predict(workload, Machine(find_device("a100-sxm-80gb")), RooflineModel())
    in_blocks = np.array([".h." in layer.name for layer in whole.workload.layers])
    is_table = np.array([layer.kind == "embedding" for layer in whole.workload.layers])
    for names, stage_s in (
        (("forward",), row.pipeline.forward_s),
        (("backward_data", "backward_weight"), row.pipeline.backward_s),
    ):
        layers_s = sum(whole.terms.seconds_of(name) for name in names)
        expected_s = layers_s[in_blocks].sum() / stages + layers_s[~in_blocks & ~is_table].sum()
        assert stage_s == (pytest.approx(expected_s, rel=0.02),) * stages


def schedule_marks(spec):
    """Return the rows of the bars; altair moves the data of a single layer up."""
    return (spec.get("data") or spec["layer"][0]["data"])["values"]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_chart_has_every_span_and_the_bubble_in_its_title():
    pytest.importorskip("altair")
    from paleo_lite.reporting.charts.render import render
    from paleo_lite.reporting.charts.schedule import schedule_chart

    asked = {"gpu": "v100-sxm2", "link": "nvlink2-x6", "batch_size": 8, "strategy": "pipeline-1f1b"}
    table = scaling("vgg16", workers=[2, 4], **asked)
    spans = simulate_schedule(table.rows[-1].pipeline)
    spec = schedule_chart(table).to_dict()
    marks = schedule_marks(spec)
    assert len(marks) == len(spans)
    assert {mark["stage"] for mark in marks} == {1, 2, 3, 4}
    assert spec["title"]["text"].startswith(f"{fraction_of(spans, BUBBLE):.0%} of the time")
    assert render(schedule_chart(table), ".svg", "dark").startswith(b"<svg")
    long = scaling("vgg16", workers=4, settings=Settings(micro_batches=1024), scaling="strong",
                    **{**asked, "batch_size": 1024})  # fmt: skip
    spec = schedule_chart(long).to_dict()
    assert "of 1024 micro-batches" in " ".join(spec["title"]["subtitle"])
    assert 1000 < len(schedule_marks(spec)) < 5000
    with pytest.raises(BadValue, match="the chart schedule needs a pipeline"):
        schedule_chart(scaling("vgg16", workers=2, **{**asked, "strategy": "data"}))
