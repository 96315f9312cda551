"""Links fitted to measured collectives: reading the tables, the fit, and the shipped calibrations."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from measured import DATA
from paleo_lite.distributed.clusters import cluster_prior
from paleo_lite.distributed.collectives import (
    LinkRate,
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    point_to_point_time_s,
    reduce_scatter_time_s,
)
from paleo_lite.distributed.link_calibrations import shipped_link_calibrations
from paleo_lite.distributed.links import calibrated_link_rate
from paleo_lite.errors import BadFile, BadValue, CalibrationFailed
from paleo_lite.files import shipped_folder
from paleo_lite.machines import read_links
from validation import ship
from validation.__main__ import main
from validation.collectives.fit import by_operation, fit_link, predict, predict_held_out, size_folds, worker_folds
from validation.collectives.hold_out import validate_collectives
from validation.collectives.published import FILES, PLATFORMS, MeasuredExchange, published_exchanges
from validation.evidence.links import measured_collectives, rate_without

pytestmark = pytest.mark.slow

pytest.importorskip("scipy")

MEASURED = DATA / "measured"
SHARES = ((2, 0.8), (4, 0.7), (8, 0.6))
TRUE = LinkRate(
    "true", 10e9, 2e-6, 0.6, start_s=1e-5, ramp_s=4e-6, switch_s=2e-5, small_share=0.4, ppp_at=SHARES
)  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["accuracy", *arguments])


def exchanges_of(link: LinkRate, noise: float = 0.0) -> list[MeasuredExchange]:
    """Return exchanges with the times of a link's model and some noise."""
    random = np.random.default_rng(5)
    return [
        MeasuredExchange(
            "a100-sxm", "all-reduce", n, size, float(time_s * np.exp(noise * random.standard_normal())), "x"
        )
        for n in (2, 4, 8)
        for size in (2 ** np.arange(9, 30)).tolist()
        if (time_s := all_reduce_time_s("ring", size, n, link))
    ]


def test_fit_recovers_the_parameters_of_simulated_times() -> None:
    found = fit_link(exchanges_of(TRUE, 0.01), "found", 10e9)
    for name in ("start_s", "latency_s", "ramp_s", "switch_s", "small_share"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.15), name
    assert found.ppp_at == tuple((n, pytest.approx(share, rel=0.03)) for n, share in TRUE.ppp_at)


def test_fit_is_robust_against_outliers() -> None:
    times = exchanges_of(TRUE, 0.01)
    with_outliers = [
        msgspec.structs.replace(t, time_s=20 * t.time_s) if i % 13 == 0 else t for i, t in enumerate(times)
    ]
    assert predict(fit_link(with_outliers, "found", 10e9), times) == pytest.approx(predict(TRUE, times), rel=0.05)


def test_fit_does_not_use_the_held_out_fold() -> None:
    """Outliers in the held-out fold do not change its prediction."""
    times = exchanges_of(TRUE)
    for folds in (size_folds(times), worker_folds(times)):
        assert np.sum(folds, axis=0).tolist() == [1] * len(times)  # each is held out once
        fold = folds[1]
        with_outliers = [msgspec.structs.replace(t, time_s=20 * t.time_s) if out else t for t, out in zip(times, fold)]
        without_outliers, predicted_with_outliers = (
            predict_held_out(each, 10e9, [fold])[0][fold] for each in (times, with_outliers)
        )
        assert predicted_with_outliers.tolist() == without_outliers.tolist()


def test_fit_without_exchanges_fails() -> None:
    with pytest.raises(CalibrationFailed, match="nothing: no exchange was measured"):
        fit_link([], "nothing", 1e9)
    with pytest.raises(BadValue, match="a platform needs at least ten exchanges"):
        validate_collectives(exchanges_of(TRUE)[:9])


@pytest.mark.needs_data
def test_every_row_is_read_or_counted() -> None:
    found = published_exchanges(MEASURED)
    lines = sum(len((MEASURED / name).read_text().splitlines()) - 1 for name in FILES)
    assert len(found.exchanges) + sum(found.left_out.values()) == lines == 203 + 3188
    assert {each.platform for each in found.exchanges} == set(PLATFORMS)
    # Half of the duplicated rows were measured between nodes and are omitted for that reason.
    assert found.left_out["point-to-point between bridged pairs: identical rows for A100 and H100"] == 2 * 63


@pytest.mark.needs_data
def test_units_of_message_sizes() -> None:
    """All-reduces of two devices achieve a plausible bandwidth on every link; PCIe between two sockets is slow.

    Were the sizes of aiconfigurator bytes, a B200 would reach a third of its link; were DeepBench's times seconds, PCIe
    a thousandth.
    """
    links = read_links().link
    for (platform, operation), group in by_operation(published_exchanges(MEASURED).exchanges).items():
        if operation == "all-reduce":
            link = fit_link(group, platform, links[PLATFORMS[platform].link].bandwidth_bytes_per_s)
            low, high = (0.37, 0.40) if platform == "pcie3-two-sockets" else (0.55, 0.95)
            assert low < link.ppp_at[0][1] < high, platform


def test_shipped_links_match_single_measurements() -> None:
    """Rows copied from the published tables: NCCL 2.27 and 2.29 of aiconfigurator 095f58a, DeepBench da81ba7."""
    links = shipped_link_calibrations()

    def link(name: str, operation: str) -> LinkRate:
        found = calibrated_link_rate(name, links[name], operation)
        assert found is not None
        return found

    size = 536_870_912
    for measured_ms, predicted_s in (
        (4.2259, all_reduce_time_s("ring", size, 8, link("a100-sxm", "all-reduce"))),
        (2.0403, all_reduce_time_s("ring", size, 8, link("h200-sxm", "all-reduce"))),
        (2.288, all_gather_time_s(size, 8, link("a100-sxm", "all-gather"))),
        (2.2071, reduce_scatter_time_s(size, 8, link("a100-sxm", "reduce-scatter"))),
        (2.3135, all_to_all_time_s(size, 8, link("a100-sxm", "all-to-all"))),
        (0.193, point_to_point_time_s(67_108_864, link("h100-dgx", "point-to-point"))),
        (26.7, all_reduce_time_s("ring", size, 2, link("l40s-server", "all-reduce"))),
        (156.034, all_reduce_time_s("ring", size, 4, link("l40s-server", "all-reduce"))),
        (73.171105, all_reduce_time_s("ring", 258_000_000, 8, link("pcie3-two-sockets", "all-reduce"))),
        (21.0748, all_reduce_time_s("ring", 258_000_000, 2, link("pcie3-one-socket", "all-reduce"))),
    ):
        assert predicted_s == pytest.approx(measured_ms / 1e3, rel=0.12)


@pytest.mark.thorough
@pytest.mark.needs_data
def test_shipped_files_are_reproduced_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tomli_w")
    chosen = {"gb200", "h100-bridged", "pcie3-one-socket"}
    found = published_exchanges(MEASURED)
    some = msgspec.structs.replace(found, exchanges=[each for each in found.exchanges if each.platform in chosen])
    monkeypatch.setattr(ship, "published_exchanges", lambda folder: some)
    assert {name for name, _ in ship.ship_links(MEASURED, tmp_path)} == chosen
    kept = shipped_folder("calibrations") / "links"
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*")} == {
        f"{name}.toml": (kept / f"{name}.toml").read_bytes() for name in chosen
    }


@pytest.mark.thorough
@pytest.mark.needs_data
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_held_out_errors_match_the_documentation(every: int) -> None:
    """Check docs/accuracy-tables.md: with sizes held out, a calibrated link beats its data sheet everywhere."""
    platforms = set(sorted(PLATFORMS)[::every])
    exchanges = published_exchanges(MEASURED).exchanges
    chosen = [each for each in exchanges if each.operation == "all-reduce" and each.platform in platforms]
    rows, points = validate_collectives(chosen)
    sizes = [row for row in rows if row.held_out == "sizes"]
    assert {row.platform for row in sizes} == platforms
    assert np.mean([row.mape for row in sizes]) < 0.10
    assert all(row.mape < 0.6 * row.data_sheet for row in sizes)
    assert np.mean([abs(point.error) for point in points if point.held_out == "sizes"]) < 0.10


@pytest.mark.thorough
@pytest.mark.needs_data
def test_command() -> None:
    shown = run("--data", str(MEASURED.parent), "--split", "collectives", "--gpu", "h200-sxm")
    assert shown.exit_code == 0, shown.output
    assert "Message sizes held out" in shown.output and "16 rows omitted: library differs" in shown.output
    assert max(len(line) for line in shown.output.splitlines() if not line.startswith("note:")) <= 80
    rows = json.loads(
        run(
            "--data", str(MEASURED), "--split", "collectives", "--gpu", "gb200", "--format", "json"
        ).output
    )["rows"]  # fmt: skip
    assert {(row["held_out"], row["operation"], row["points"]) for row in rows} == {
        (kind, operation, 42)  # 21 sizes on 2 and 4 devices
        for kind in ("sizes", "workers")
        for operation in ("all-reduce", "all-gather", "all-to-all", "reduce-scatter")
    }


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--gpu", "h300"], 2, "no measured platform is called 'h300': did you mean h200-sxm"),
        (["--precision", "fp16"], 2, "collectives are measured in bytes"),
        ([], 1, "allreduce_deepbench.csv: cannot be read"),
    ],
)
def test_command_rejects_invalid_options(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    shown = run("--data", str(tmp_path), "--split", "collectives", *arguments)
    assert (shown.exit_code, message in shown.output.replace("\n", " ")) == (code, True), shown.output


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (FILES[0], "0.5", "half"),
        (FILES[0], "P100", "P101"),
        (FILES[0], "n_gpus", "gpus"),
        (FILES[1], "1024", "1k"),
        (FILES[1], "all_reduce", "reduce_all"),
        (FILES[1], "0.02", "0"),
        (FILES[1], "2,1024", "1,1024"),
    ],
)
def test_unreadable_row_is_an_error(tmp_path: Path, name: str, old: str, new: str) -> None:
    tables = {
        FILES[0]: "gpu,bytes,n_gpus,value,algorithm\nP100,400000,2,0.5,NCCL 2.0 MPI\n",
        FILES[1]: "gpu,interconnect,collective,n_gpus,message_size,devices_per_node,size_unit,value\n"
        "A100,a100_sxm,all_reduce,2,1024,,bytes (inferred),0.02\n",
    }
    for file, text in tables.items():
        (tmp_path / file).write_text(text)
    assert [each.time_s for each in published_exchanges(tmp_path).exchanges] == [2e-5, 5e-4]
    (tmp_path / name).write_text(tables[name].replace(old, new))
    with pytest.raises(BadFile, match=f"{name}: a row cannot be read"):
        published_exchanges(tmp_path)


def test_a_machine_is_forecast_by_others() -> None:
    assert "calibration h100-sxm" in rate_without("h200-sxm", "all-gather").label
    assert "calibration h100-dgx" in rate_without("h100-sxm", "all-reduce").label  # the first of several
    alone = rate_without("l40s-server", "all-reduce")
    assert alone.label == "data sheet"
    assert alone.ppp == cluster_prior().bandwidth_share["host"]
    assert alone.start_s > 0


@pytest.mark.thorough
@pytest.mark.needs_data
def test_collectives_are_rows_of_their_machine() -> None:
    rows = measured_collectives(DATA)
    groups = {one.group for one in rows}
    assert ("a100-sxm", "all-gather") in groups
    assert len({platform for platform, _ in groups}) == len(PLATFORMS)
    for one in rows[::100]:
        assert one.row.traits["device"] == one.group[0]
        assert sum(one.row.shares.values()) == pytest.approx(1)
