"""Best rows of a sweep, compared with a search over all rows; filter conditions, which are never passed to `eval`.

Tests: sweeps/where.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite as pl
from paleo_lite.calibration.choose import choose_model
from paleo_lite.errors import BadFile, BadValue, UnknownName
from paleo_lite.questions.kind import KINDS, find_kind
from paleo_lite.questions.option import options_of
from paleo_lite.reporting.sweep import best_page
from paleo_lite.reporting.terminal import format_table_lines
from paleo_lite.sweeps import best as module
from paleo_lite.sweeps.best import Best, Goal, find_best
from paleo_lite.sweeps.columns import with_site
from paleo_lite.sweeps.front import pareto_front
from paleo_lite.sweeps.questions import OPTION_COLUMNS
from paleo_lite.sweeps.run import run_sweep
from paleo_lite.sweeps.space import Space
from paleo_lite.sweeps.where import parse_where
from paleo_lite.timing.facility import make_facility

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module", params=["parquet", "csv"])
def sweep(request, tmp_path_factory):
    space = Space(
        networks=("alexnet", "resnet50"),
        gpus=("k40m", "v100-sxm2", "h100-sxm", "k80-die"),
        precisions=("fp32", "fp16"),
        phases=("inference", "training"),
        batch_sizes=(1, 8, 64, 512, 4096),
        workers=(1, 2),
        links=("pcie3-x16",),
    )
    path = tmp_path_factory.mktemp("sweep") / f"sweep.{request.param}"
    run_sweep(space, path, choose_model, jobs=1)
    frame = pd.read_parquet(path) if request.param == "parquet" else pd.read_csv(path, float_precision="round_trip")
    return path, frame[frame.reason.isna()].astype({"gpu": str, "network": str})


CONDITIONS = {
    None: "time_s == time_s",
    "hours < 1": "hours < 1",
    "network == resnet50 and (gpu == k80-die or gpu = 'v100-sxm2')": (
        "network == 'resnet50' and gpu in ('k80-die', 'v100-sxm2')"
    ),
    "time_s <= 1e-2 and workers != 1 or batch_size > 500": "time_s <= 1e-2 and workers != 1 or batch_size > 500",
    "memory >= 1e9 AND cost != null": "memory_bytes >= 1e9 and cost_usd == cost_usd",
    "cost == null": "cost_usd != cost_usd",
}
"""Conditions, and what pandas calls the same."""
OF_A_CSV = (None, "network == resnet50 and (gpu == k80-die or gpu = 'v100-sxm2')", "cost == null")
"""Those that `make test` asks of a CSV file: of all rows, of texts, and of what is missing."""


@pytest.mark.spread(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "where", "query"),
    [
        pytest.param(form, *asked, marks=() if form == "parquet" or asked[0] in OF_A_CSV else pytest.mark.thorough)
        for form in ("parquet", "csv")
        for asked in CONDITIONS.items()
    ],
    indirect=["sweep"],
)
def test_best_of_what_fits(sweep, monkeypatch, where, query) -> None:
    """In batches of a few rows, and with pandas all at once."""
    monkeypatch.setattr(module, "_BATCH_ROWS", 7)
    path, frame = sweep
    chosen = frame.query(query)
    assert len(chosen) > 5
    for options, ascending in (({"minimise": "energy"}, True), ({"maximise": "kwh"}, False)):
        found = find_best(path, Goal(**options), where=where, top=5)
        expected = chosen.dropna(subset="kwh").sort_values("kwh", ascending=ascending).head(5)
        assert [row["kwh"] for row in found.rows] == pytest.approx(expected.kwh.tolist(), rel=1e-12)
        assert found.fitting == len(chosen)
        assert all(row["reason"] is None for row in found.rows)


def test_no_row_dominates_the_front(sweep, monkeypatch) -> None:
    monkeypatch.setattr(module, "_BATCH_ROWS", 7)
    path, frame = sweep
    found = find_best(path, Goal(pareto=("hours", "cost_usd", "throughput_per_s")), top=1000).rows
    points = frame[["hours", "cost_usd", "throughput_per_s"]].dropna().to_numpy() * [1, 1, -1]
    for row in found:
        point = np.array([row["hours"], row["cost_usd"], -row["throughput_per_s"]])
        assert not ((points <= point).all(axis=1) & (points < point).any(axis=1)).any()
    front = {tuple(p) for p in points if not ((points <= p).all(axis=1) & (points < p).any(axis=1)).any()}
    assert len(found) == len(front)


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=40), st.integers(1, 3))
def test_the_front_by_its_definition(rows, columns) -> None:
    values = np.array(rows, dtype=float)[:, :columns]
    expected = {tuple(p) for p in values if not ((values <= p).all(axis=1) & (values < p).any(axis=1)).any()}
    found = pareto_front(values)
    assert {tuple(values[index]) for index in found} == expected and len(found) == len(expected)
    assert all(index == np.flatnonzero((values == values[index]).all(axis=1))[0] for index in found)
    assert (np.diff(values[found, 0]) >= 0).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, BadValue, "needs exactly one of `--minimise`, `--by`, `--maximise` and `--pareto`"),
        ({"minimise": "cost_usd", "pareto": ("cost_usd",)}, BadValue, "needs exactly one of"),
        ({"minimise": "costs"}, UnknownName, "no column is called 'costs': did you mean cost"),
        ({"minimise": "gpu"}, BadValue, "column gpu .* has no numbers: choose one that has: power_limit_w, "),
        ({"minimise": "cost_usd", "where": "gpu == h200"}, BadValue, "none of its [0-9]+ feasible rows meets"),
        (
            {"minimise": "cost_usd", "where": "gpu == k40m"},
            BadValue,
            "cost_usd is absent in every row that fits: .* `--price`",
        ),
        (
            {"minimise": "cost_usd", "where": "speed < 3"},
            UnknownName,
            "no column is called 'speed': did you mean speedup",
        ),
        (
            {"minimise": "cost_usd", "where": "gpu < k80"},
            BadValue,
            "gpu has strings, which can be compared by == or != only",
        ),
        (
            {"minimise": "cost_usd", "where": "cost < cheap"},
            BadValue,
            "cost_usd must be compared with a number or a quantity such as .100 .got 'cheap'",
        ),
        ({"minimise": "cost_usd", "where": "cost < 3 3"}, BadValue, "'3' is unexpected"),
        ({"minimise": "cost_usd", "where": "cost <"}, BadValue, "it ends too early"),
        ({"minimise": "cost_usd", "where": "(cost < 3"}, BadValue, "it ends too early"),
        ({"minimise": "cost_usd", "where": "cost < 'a"}, BadValue, "has a syntax error at"),
        ({"minimise": "cost_usd", "where": "< 3"}, BadValue, "a column is missing before '<'"),
        ({"minimise": "cost_usd", "where": "cost and 3"}, BadValue, "'and' must be one of"),
        ({"minimise": "cost_usd", "where": "(" * 99}, BadValue, "nested too deeply"),
        ({"minimise": "co2_g"}, BadValue, "the column co2_g needs `--site carbon-intensity=400`"),
        ({"minimise": "cost_usd", "where": "__import__('os').system('x')"}, UnknownName, "no column .* '__import__'"),
    ],
)
def test_refusals(sweep, options, error, message) -> None:
    goal = Goal(**{name: value for name, value in options.items() if name != "where"})
    with pytest.raises(error, match=message):
        find_best(sweep[0], goal, where=options.get("where"))


@pytest.mark.slow
def test_energy_at_the_meter(sweep) -> None:
    """With 90 W of host per device, a PUE of 1.2, 0.15 USD and 300 g per kWh, by hand from the columns of the file."""
    path, rows = sweep
    described = {"site": {"electricity": 0.15, "carbon_intensity": "300 g/kWh", "pue": 1.2, "host_watts": 90}}
    found = pl.best(path, minimise="co2_g", where="workers == 2", **described).rows[0]
    rows = rows[(rows.workers == 2) & (rows.answer == "forecast") & rows.kwh.notna()]
    kwh = 1.2 * (rows.kwh + 90e-3 * rows.workers * rows.hours)
    assert found["co2_g"] == pytest.approx(300 * kwh.min())
    assert found["electricity_usd"] == pytest.approx(0.15 * kwh.min())
    assert found["site_kwh"] == pytest.approx(kwh.min())
    assert (found["network"], found["gpu"]) == tuple(rows.loc[kwh.idxmin(), ["network", "gpu"]])


def test_energy_at_the_meter_of_servers() -> None:
    """A million tokens at 500 tokens per second on four devices are 8,000 seconds of a device."""
    facility = make_facility("0.2 USD/kWh", None, 1.5, "100 W")
    row = {"joules_per_million_output_tokens": [2e6], "output_tokens_per_s": [500.0], "devices": [4]}
    added = with_site(pa.RecordBatch.from_pydict(row), facility)
    assert added.column("site_kwh").to_pylist() == pytest.approx([1.5 * (2e6 + 8000 * 100) / 3.6e6])
    assert added.column("electricity_usd").to_pylist() == pytest.approx([0.2 * 1.5 * 2.8e6 / 3.6e6])
    assert "co2_g" not in added.schema.names


def test_energy_at_the_meter_of_a_step() -> None:
    """A step of 10 s on four devices: 40 seconds of a device at 100 W of host are 4 kJ beside the 20 kJ of devices."""
    row = {"time_s": [10.0], "energy_j": [20e3], "devices": [4]}
    added = with_site(pa.RecordBatch.from_pydict(row), make_facility(None, None, 1.5, "100 W"))
    assert added.column("site_kwh").to_pylist() == pytest.approx([1.5 * 24e3 / 3.6e6])


def test_what_is_ranked_from_the_wrong_end_is_noted(sweep) -> None:
    path, _ = sweep
    for goal, note in (
        (
            Goal(minimise="throughput"),
            "samples per second is better the larger it is, and `--maximise throughput_per_s`",
        ),
        (Goal(maximise="time"), "hours is better the smaller it is, and `--minimise hours`"),
        (
            Goal(maximise="low_s"),
            "lower end of the step time (90%) is better the smaller it is, and `--minimise low_s`",
        ),
    ):
        found = find_best(path, goal)
        assert found.worst_first
        assert f"the first row is the worst: {note} ranks the best first" in best_page(found).notes
    for goal in (
        Goal(maximise="throughput"),
        Goal(minimise="cost"),
        Goal(maximise="batch_size"),
        Goal(minimise="workers"),
    ):
        found = find_best(path, goal)
        assert not found.worst_first and not any("worst" in note for note in best_page(found).notes)


def test_files_that_are_no_sweeps(tmp_path) -> None:
    path = tmp_path / "sweep.parquet"
    with pytest.raises(BadFile, match=r"sweep\.parquet: cannot be read"):
        find_best(path, Goal(minimise="cost_usd"))
    path.write_text("text")
    with pytest.raises(BadFile, match=r"sweep\.parquet: not a valid table of a sweep"):
        find_best(path, Goal(minimise="cost_usd"))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadFile, match="not the output of a sweep: column 'network' is missing"):
        find_best(tmp_path / "other.csv", Goal(minimise="cost_usd"))


def test_values_of_a_condition_that_no_row_meets(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    rows = ["network,gpu,time_s,reason", "vgg16,h100-sxm,1,", "vgg16,l40s,3,", "vgg16,t4,,does not fit"]
    path.write_text("\n".join(rows) + "\n")
    for where, values in (
        ("gpu == h100", "gpu is h100-sxm or l40s"),
        ("network != vgg16 or time_s > 5", "network is vgg16, time_s is from 1 to 3"),
    ):
        with pytest.raises(BadValue, match=f"none of its 2 feasible rows meets the condition: {values}$"):
            find_best(path, Goal(minimise="time_s"), where=where)


def test_absent_is_neither_less_nor_more() -> None:
    batch = pa.table({"a": [1.0, None, 3.0], "b": ["x", None, "y"]})
    columns = {"a": True, "b": False}
    for text, expected in (
        ("a < 2", [True, None, False]),
        ("a != 2", [True, None, True]),
        ("a == null", [False, True, False]),
        ("b != x", [False, None, True]),
        ("a < 2 or b == y", [True, None, True]),
        ("a < 0 and b == x", [False, None, False]),
    ):
        assert parse_where(text, columns).mask(batch).to_pylist() == expected, text


@pytest.mark.spread(2)
@pytest.mark.parametrize("most", [7, 100, 10**6])
def test_a_sample_is_spread_over_all_rows_that_fit(sweep, monkeypatch, most):
    path, frame = sweep
    monkeypatch.setattr(module, "_BATCH_ROWS", 13)
    fitting = frame[(frame.network == "resnet50") & frame.time_s.notna()]
    times = fitting.time_s.tolist()
    found = find_best(path, Goal(minimise="time_s"), where="network == resnet50", sample=most)
    step = next(2**power for power in range(30) if -(-len(times) // 2**power) <= most)
    assert found.sample == [(time_s,) for time_s in times[::step]]
    assert found.columns == ("time_s",) and found.fitting == len(times)
    assert find_best(path, Goal(minimise="time_s")).sample == []


@pytest.fixture(scope="module")
def with_bounds(tmp_path_factory):
    """Write a sweep with forecasts and rooflines of two devices, and a CPU with a bound only."""
    space = Space(
        networks=("resnet50",),
        gpus=("k80", "rtx2080ti", "xeon-8380"),
        batch_sizes=(1, 32),
        time_models=("default", "roofline"),
    ).resolve_names()
    assert space.gpus == ("k80-die", "rtx2080ti", "xeon-8380")  # of a board a worker is one device
    path = tmp_path_factory.mktemp("bounds") / "sweep.parquet"
    run_sweep(space, path, choose_model, jobs=1)
    return path


def test_bounds_are_not_ranked_among_forecasts(with_bounds) -> None:
    found = find_best(with_bounds, Goal(minimise="time_s"), top=20)
    assert {row["answer"] for row in found.rows} == {"forecast"} and {row["gpu"] for row in found.rows} == {
        "k80-die", "rtx2080ti"
    }  # fmt: skip
    assert (found.fitting, found.bounds) == (4, 8)
    everything = find_best(with_bounds, Goal(minimise="time_s"), top=20, bounds=True)
    assert everything.fitting == 12 and everything.rows[0]["answer"] == "bound" and everything.bounds == 0
    only = find_best(with_bounds, Goal(minimise="time_s"), where="gpu == 'xeon-8380'")
    assert {row["answer"] for row in only.rows} == {"bound"} and "bounds alone" in only.objective


def test_rows_that_do_not_say_what_they_are_are_ranked_as_forecasts(with_bounds, tmp_path) -> None:
    frame = pd.read_parquet(with_bounds).query("gpu == 'k80-die'").astype({"answer": object})
    frame.loc[frame["answer"] == "forecast", "answer"] = None
    frame.to_parquet(tmp_path / "sweep.parquet")
    found = find_best(tmp_path / "sweep.parquet", Goal(minimise="time_s"), top=20)
    assert (found.fitting, found.bounds, {row["answer"] for row in found.rows}) == (2, 2, {None})


def test_bound_of_a_forecast_is_that_of_a_single_answer(with_bounds) -> None:
    frame = pd.read_parquet(with_bounds).astype({"gpu": str, "time_model": str})
    # The two rows of the CPU are equal: pandas before 3.1 returns tables from an index that is not unique.
    by_model = frame[frame.gpu != "xeon-8380"].set_index(["gpu", "batch_size", "time_model"])
    for gpu in ("k80-die", "rtx2080ti"):
        for batch in (1, 32):
            roofline = by_model.loc[(gpu, batch, "roofline")]
            asked = pl.predict("resnet50", gpu=gpu, batch_size=batch)
            bound_s = by_model.loc[(gpu, batch, "calibrated"), "bound_s"]
            assert bound_s == pytest.approx(asked.bound_s, rel=1e-12)
            assert bound_s <= roofline["time_s"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("time_s < 10ms", 0.01), ("time_s < 10 ms", 0.01), ("time_s < 2 min", 120.0),
        ("time < 1.5h and time > 0", 1.5), ("latency < 1.5h", 5400.0),
        ("hours < 10d", 240.0), ("hours < 90min", 1.5), ("memory < 24GB", 24e9), ("memory_bytes < 24 GiB", 24 * 2**30),
        ("cost < $100", 100.0), ("cost < 2kUSD", 2000.0), ("throughput_per_s < 1.5k", 1500.0),
        ("time_s_low < 1us", 1e-6),
    ],
)  # fmt: skip
def test_numbers_have_the_unit_of_their_column(text, value) -> None:
    columns = dict.fromkeys(
        ("time_s", "time_s_low", "hours", "memory_bytes", "cost_usd", "throughput_per_s", "batch_size"), True
    )
    condition = parse_where(text, columns)
    assert (condition.parts or (condition,))[0].value == pytest.approx(value)


def test_a_unit_of_another_column_is_refused() -> None:
    with pytest.raises(BadValue, match="time_s must be compared with a number or a quantity such as 10ms"):
        parse_where("time_s < 3 GB", {"time_s": True})
    with pytest.raises(BadValue, match="batch_size must be compared with a number"):
        parse_where("batch_size < 3 GB", {"batch_size": True})


def test_rows_of_several_networks_are_no_alternatives(sweep):
    path, _ = sweep
    mixed = find_best(path, Goal(pareto=("time_s", "energy_j")))
    assert mixed.tasks == {"network": 2, "phase": 2}
    first = mixed.rows[0]
    assert [note for note in best_page(mixed).notes if "alternative" in note] == [
        f"rows of 2 {name}s are ranked together, though none is an alternative to that of another {name}: choose one, "
        f"as in `--where '{name} == {first[name]}'`"
        for name in ("network", "phase")
    ]
    one = find_best(path, Goal(minimise="time_s"), where="network == alexnet and phase == training")
    assert one.tasks == {"network": 1, "phase": 1}
    assert not any("alternative" in note for note in best_page(one).notes)


def _settings_of_files():
    """Return the columns of all options, as files of rows name them; prices stand among the facts."""
    names = {name for kind in KINDS for name in options_of(find_kind(kind).record)}
    columns = {OPTION_COLUMNS[name][0] if name in OPTION_COLUMNS else name for name in names}
    return sorted(columns - {"price", "calibration"})


@pytest.mark.parametrize("name", _settings_of_files())
def test_the_only_setting_that_differs_is_shown_at_any_width(name) -> None:
    """Two rows with all results, which would fill the line."""
    results = dict.fromkeys(("time_s", "tokens_per_s", "ttft_p50_s", "tpot_p50_s", "cost_usd", "usd_per_h"), 1.0)
    row = {"network": "vgg16", "gpu": "t4", "answer": "forecast", **results}
    found = Best([{**row, name: 11}, {**row, name: 22}], "lowest cost", 2, 2, ("cost_usd",))
    lines = format_table_lines(best_page(found).tables[0], 50)
    assert "not shown" in "".join(lines) and max(map(len, lines)) <= 50
    first, second = lines[next(number for number, line in enumerate(lines) if "─" in line) + 1 :][:2]
    assert "11" in first and "22" in second
