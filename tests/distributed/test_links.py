"""Links by name, by rate and by calibration.

Tests: distributed/links.py, distributed/link_calibrations.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from asked import scaling
from paleo_lite.cli import main
from paleo_lite.distributed.collectives import all_gather_time_s, all_reduce_time_s
from paleo_lite.distributed.link_calibrations import read_link_calibration, shipped_link_calibrations
from paleo_lite.distributed.links import LinkRate, find_link, link_inside_nodes, link_rate
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.errors import AmbiguousName, BadFile, BadQuantity, BadValue, UnknownName
from paleo_lite.machines import find_device, read_links


# PALEO's table in Gbit/s (references/paleo.md), under its own names and under plain ones, which mean the rates of the
# standards: InfiniBand FDR 4 x 14.0625 Gbit/s x 64/66, PCIe 3.0 8 GT/s x 16 x 128/130.
@pytest.mark.parametrize(
    ("name", "identity", "gbit_per_s"),
    [
        ("paleo-aws", "paleo-aws", 2),
        ("paleo-ethernet", "paleo-ethernet", 10),
        ("paleo-ethernet20", "paleo-ethernet20", 20),
        ("paleo-infiniband", "paleo-infiniband", 70),
        ("paleo-pcie2", "paleo-pcie2", 64),
        ("paleo-pcie3", "paleo-pcie3", 128),
        ("aws", "paleo-aws", 2),
        ("ethernet", "ethernet-10", 10),
        ("ethernet20", "ethernet-20", 20),
        ("Ethernet 20", "ethernet-20", 20),
        ("infiniband", "infiniband-fdr", 4 * 14.0625 * 64 / 66),
        ("pcie2", "pcie2-x16", 64),
        ("pcie3", "pcie3-x16", 8 * 16 * 128 / 130),
        ("opa100", "omnipath-100", 100),
        ("25 GB/s", "25 GB/s", 200),
        ("20 Gbit/s", "20 Gbit/s", 20),
        ("20Gbps", "20Gbps", 20),
        (" 1e9 B/s ", "1e9 B/s", 8),
        ("8x infiniband-ndr", "8x infiniband-ndr", 8 * 400),
        ("2x 10 GB/s", "2x 10 GB/s", 160),
    ],
)
def test_names_and_rates(name: str, identity: str, gbit_per_s: float) -> None:
    found = link_rate(name)
    assert found.name == identity
    assert found.bandwidth_bytes_per_s * 8e-9 == pytest.approx(gbit_per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("0 GB/s", BadValue, r"the rate of a link must be > 0 \(got '0 GB/s'\)"),
        ("-5 GB/s", BadValue, "must be > 0"),
        ("25", BadQuantity, r"the rate of a link must have a unit, such as '25 GB/s' or '20 Gbit/s' \(got '25'\)"),
        ("25 GB", BadQuantity, "the rate of a link must have a unit"),
        ("25 GFLOP/s", BadQuantity, "the rate of a link must have a unit"),
        ("fast/s", BadQuantity, "the rate of a link must have a unit"),
        ("0x pcie3", BadValue, "the number of parallel links must be >= 1"),
        ("pcie33", UnknownName, "no link is called 'pcie33': did you mean pcie3-x8"),
        ("", UnknownName, "`paleo-lite hardware links` lists all links"),
        ("nvlink", AmbiguousName, "matches more than one link: use nvlink-c2c, nvlink1, "),
    ],
)
def test_invalid_links(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        link_rate(name)


def test_a_given_ppp_replaces_the_calibration() -> None:
    """2 (n - 1) / n D over half of 15.75 GB/s: without the latency of a calibration."""
    found = link_rate("pcie3", ppp=0.5)
    assert all_reduce_time_s("ring", 15.75e9, 4, found) == pytest.approx(2 * 3 / 4 / 0.5)
    assert found.label == "data sheet, PPP as given"
    with pytest.raises(BadValue, match="PPP must be > 0"):
        link_rate("pcie3", ppp=0)
    assert link_rate(LinkRate("own", 1e9), ppp=0.5) == LinkRate("own", 1e9, 0.0, 0.5, "data sheet, PPP as given")
    assert link_rate(find_link("ethernet20")[1]).bandwidth_bytes_per_s == 2.5e9


def test_calibration_applies_to_its_link() -> None:
    found = link_rate("nvlink3-x12")
    assert found == link_rate("a100-sxm")
    assert found.ppp_at and found.label.startswith("calibration a100-sxm: NCCL 2.27, 63 measurements, held-out error")
    assert not link_rate("pcie4").ppp_at  # the calibration of the L40S server does not stand for its link
    assert link_rate("l40s-server").ppp_for(2) > 10 * link_rate("l40s-server").ppp_for(8)
    gathered = link_rate("a100-sxm", operation="all-gather")
    assert all_gather_time_s(1e9, 8, gathered) != all_gather_time_s(1e9, 8, found)
    assert not link_rate("pcie3", operation="all-gather").ppp_at  # DeepBench measured all-reduce only
    assert "nvlink3-x12: 300 GB/s per device and direction at PPP 0.7" in found.describe()


def test_links_of_calibrations_are_in_the_registry_and_have_one_calibration() -> None:
    links = read_links().link
    calibrated = [each.link for each in shipped_link_calibrations().values() if each.stands_for_link]
    assert len(calibrated) == len(set(calibrated))
    for each in shipped_link_calibrations().values():
        assert links[each.link].per_direction.value == each.per_direction
    assert not set(links) & set(shipped_link_calibrations())


def test_measured_links_are_listed_with_the_data_sheets() -> None:
    def run(*arguments: str) -> str:
        shown = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["hardware", "links", *arguments], prog_name="paleo-lite")
        assert shown.exit_code == 0, shown.output
        return shown.output

    page = run()
    assert max(map(len, page.splitlines())) <= 80
    rows = json.loads(run("--format", "json"))["measured"]
    assert len(rows) == sum(len(each.operations) for each in shipped_link_calibrations().values())
    assert all(row["name"] in page for row in rows)
    assert "measured" not in json.loads(run("--format", "json", "--move", "1PB"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"format must be 1 for this version of paleo-lite \(got 2\)"),
        ({"speed": 1}, "unknown field `speed`"),
        ({"link": 3}, r"Expected `str`, got `int` - at `\$.link`"),
        ({"operations": {"all-reduce": {"latency": 1.0}}}, r"unknown field `latency` - at `\$.operations"),
        ({"operations": {"all-reduces": {}}}, r"missing required field .* at `\$.operations"),
        ({"workers": [2, 2, 8]}, "operations.all-reduce: workers must be in rising order, each with a PPP"),
        ({"workers": [2, 4]}, "workers must be in rising order, each with a PPP"),
        ({"workers": [1, 4, 8]}, "workers must be >= 2, PPP and small_share > 0"),
        ({"small_share": 0.0}, "workers must be >= 2, PPP and small_share > 0"),
        ({"ppp": [0.5, 0.0, 0.5]}, "workers must be >= 2, PPP and small_share > 0"),
        ({"latency_s": 1e308}, "latency_s must be from 0 to 3600"),
        ({"scatter": -1.0}, "scatter must be from 0 to 3600"),
        ({"small_share": 1e-300}, "PPP and small_share must be at least 1e-09"),
        ({"latency_s": -1.0}, "start_s, latency_s, ramp_s and switch_s must be >= 0 s"),
    ],
)
def test_a_malformed_calibration(tmp_path: Path, change: dict[str, object], message: str) -> None:
    pytest.importorskip("tomli_w")
    data = msgspec.to_builtins(shipped_link_calibrations()["a100-sxm"])
    fit = data["operations"]["all-reduce"]
    for name, value in change.items():
        (fit if name in fit else data)[name] = value
    path = tmp_path / "bad.toml"
    path.write_bytes(msgspec.toml.encode(data))
    with pytest.raises(BadFile, match=message) as raised:
        read_link_calibration(path)
    assert str(path) in str(raised.value)


def test_unreadable_calibrations(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    for content, message in ((b"\xff", "bad.toml"), (b"x = " + b"[" * 5000, "bad.toml"), (b" " * 2**17, "larger than")):
        path.write_bytes(content)
        with pytest.raises(BadFile, match=message):
            read_link_calibration(path)
    with pytest.raises(BadFile, match="cannot be read"):
        read_link_calibration(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("nvlink4", "25 GB/s per lane and direction"),
        ("nvlink4-x18", "450 GB/s per device and direction"),
        ("infiniband-ndr", "50 GB/s per port and direction"),
        ("8x infiniband-ndr", "400 GB/s per direction over 8 ports"),
        ("25 GB/s", "25 GB/s per direction ("),
    ],
)
def test_a_link_describes_the_unit_of_its_bandwidth(name: str, description: str) -> None:
    assert description in link_rate(name).describe()


def test_the_name_of_a_lane_means_all_lanes_of_the_device() -> None:
    """NVLink 4: 18 links of 25 GB/s on an H100 SXM, 12 on the PCIe cards' bridge (NVIDIA's data sheet)."""
    for gpu, count in (("h100-sxm", 18), ("h100-pcie", 12)):
        asked = {"gpu": gpu, "workers": [2], "precision": "fp16"}
        table, whole = (
            scaling("alexnet", link=link, **asked) for link in ("nvlink4", f"nvlink4-x{count}")
        )  # fmt: skip
        assert f"; assumed: nvlink4 means all {count} lanes of a {gpu}" in table.document().title
        assert (table[0].time_s, table.links) == (whole[0].time_s, whole.links)
        assert not whole.assumptions
    lane = scaling("alexnet", gpu="h100-sxm", link="1x nvlink4", workers=[2], precision="fp16")
    assert "25 GB/s" in lane.links[0] and not lane.assumptions


@pytest.mark.parametrize(("family", "link"), [("NVLink", "nvlink4-x18"), ("PCIe", "pcie5-x16")])
def test_the_name_of_a_family_means_the_link_of_the_device(family: str, link: str) -> None:
    """An H100 SXM has NVLink 4 and PCIe 5 (NVIDIA's data sheet)."""
    device = find_device("h100-sxm")
    assert link_inside_nodes(family, device) == (link, f"{family} means {link} of a h100-sxm")
    with pytest.raises(AmbiguousName, match="nvlink1"):
        link_inside_nodes("NVLink", find_device("l40s"))


@pytest.mark.parametrize(
    ("topology", "inside", "between"),
    [
        ("8x b200 @ nvlink5, 4 nodes @ infiniband-ndr", 900e9, 8 * 50e9),  # DGX B200
        ("8x h100-sxm @ nvlink4, 2 nodes @ 1x infiniband-ndr", 450e9, 50e9),
        ("4x a100-sxm-80gb @ 2x nvlink3, 2 nodes @ infiniband-hdr", 50e9, 4 * 25e9),
        ("2x k40m @ pcie3, 16 nodes @ infiniband-fdr", 15.75e9, 6.82e9),  # nodes of that time have one port
        ("8x v100-sxm2 @ nvlink2, 2 nodes @ 25 GB/s", 150e9, 25e9),
        ("h100-sxm, 4 nodes @ infiniband-ndr", None, 50e9),
    ],
)
def test_links_of_nodes_are_those_of_whole_devices(topology: str, inside: float | None, between: float) -> None:
    machine = parse_topology(topology)
    assert (machine.inside and machine.inside.bandwidth_bytes_per_s) == inside
    assert machine.between.bandwidth_bytes_per_s == pytest.approx(between)


@pytest.mark.parametrize(
    ("name", "is_nvlink"),
    [("nvlink4-x18", True), ("nvlink3-x12", True), ("nvlink-c2c", False), ("pcie5", False), ("100 GB/s", False)],
)
def test_nvlinks_between_devices_are_told_by_their_record(name: str, is_nvlink: bool) -> None:
    """NVLink-C2C joins a device and its host; a measured link has the record of its name."""
    assert link_rate(name).is_nvlink is is_nvlink
