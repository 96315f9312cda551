"""Computers by name: their files, and their use by `scale`.

Tests: distributed/platforms.py.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from asked import scaling
from paleo_lite.distributed.links import link_rate
from paleo_lite.distributed.platforms import computer_names, find_computer, find_platform, read_computer
from paleo_lite.distributed.request import ClusterRequest
from paleo_lite.errors import BadFile, BadValue, UnknownName
from paleo_lite.files import shipped_folder
from paleo_lite.machines import find_device
from paleo_lite.machines.clouds import find_instance, instance_names


# Bandwidth in one direction: GB/s inside nodes from NVIDIA's data sheets (half of 300, 600, 900, 1800), Gbit/s between
# nodes from the documentation of AWS, Google, Microsoft and NVIDIA.
@pytest.mark.parametrize(
    ("name", "device", "inside", "gbit"),
    [
        ("dgx1-v100", "v100-sxm2", 150, 400),
        ("DGX A100", "a100-sxm-80gb", 300, 1600),
        ("dgx-h100", "h100-sxm", 450, 3200),
        ("dgx-h200", "h200-sxm", 450, 3200),
        ("dgx-b200", "b200", 900, 3200),
        ("p3.16xlarge", "v100-sxm2", 150, 25),
        ("p3dn.24xlarge", "v100-sxm2", 150, 100),
        ("p4d.24xlarge", "a100-sxm-40gb", 300, 400),
        ("P5.48xlarge", "h100-sxm", 450, 3200),
        ("a3-highgpu-8g", "h100-sxm", 450, 800),
        ("ND A100 v4", "a100-sxm-40gb", 300, 1600),
        ("ND96isr_H100_v5", "h100-sxm", 450, 3200),
    ],
)
def test_links_agree_with_the_documentation(name, device, inside, gbit) -> None:
    machine = find_platform(name).topology(64)
    assert (machine.device, machine.devices_per_node, machine.nodes) == (device, 8, 8)
    assert machine.inside.bandwidth_bytes_per_s == inside * 1e9
    assert machine.between.bandwidth_bytes_per_s == gbit / 8 * 1e9


# NVL72 racks: 64 of 72 devices are used by jobs of 256, as published runs do; a port of 400 or 800 Gbit/s per GPU.
@pytest.mark.parametrize(
    ("name", "workers", "devices_per_node", "gbit_per_device"),
    [
        ("gb200-nvl72", 256, 64, 400),
        ("gb300-nvl72", 144, 72, 800),
        ("gb300-nvl72", 64, 72, 800),
        ("gb200-nvl72", 100, 50, 400),
        ("dgx-b300", 16, 8, 800),
        ("hgx-b200", 16, 8, 400),
        ("mi355x", 16, 8, 400),
    ],
)
def test_racks_and_nodes_of_today(name: str, workers: int, devices_per_node: int, gbit_per_device: float) -> None:
    machine = find_platform(name).topology(workers)
    assert machine.devices_per_node == devices_per_node
    assert machine.between.bandwidth_bytes_per_s == devices_per_node * gbit_per_device / 8 * 1e9
    assert bool(machine.assumptions) == (workers in (256, 100))


def test_every_file_is_valid_and_lists_its_sources() -> None:
    assert len(computer_names()) >= 11
    for name in computer_names():
        computer = read_computer(shipped_folder("hardware") / "platforms" / f"{name}.toml")
        used = {computer.inside.source, computer.between.source} | (
            {computer.price.source} if computer.price else set()
        )
        assert used == set(computer.sources)
        assert find_computer(name) == computer


@pytest.mark.parametrize("name", instance_names())
def test_the_devices_of_an_instance_have_the_fastest_link_of_the_device(name: str) -> None:
    computer, instance = find_computer(name), find_instance(name)
    rates = [link_rate(attached.link).bandwidth_bytes_per_s for attached in find_device(instance.device).links]
    if computer.between is not None:  # a computer of its own, whose file names its links
        return
    assert (computer.inside is not None) == (instance.devices > 1 and bool(rates))
    if computer.inside is not None:
        assert link_rate(computer.inside.link).bandwidth_bytes_per_s == max(rates)


def test_a_device_has_at_most_one_usual_computer() -> None:
    computers = [find_computer(name) for name in computer_names()]
    usual = [computer.device for computer in computers if computer.is_usual]
    assert len(usual) == len(set(usual))
    assert {"a100-sxm-80gb", "h100-sxm", "gh200", "b200", "gb200", "mi300x", "mi350x", "mi355x"} <= set(usual)


def test_scaling_without_a_link_is_on_the_usual_computer_of_the_device() -> None:
    question = {"workers": 16, "precision": "bf16", "batch_size": 4, "time_model": "roofline"}
    assumed = scaling("resnet50", gpu="h100-sxm", **question)
    named = scaling("resnet50", platform="dgx-h100", **question)
    assert assumed.assumptions == ("NVIDIA DGX H100",) and named.assumptions == ()
    assert assumed.rows[0].time_s == named.rows[0].time_s


def test_a_device_without_a_usual_computer_needs_a_link() -> None:
    with pytest.raises(BadValue, match=r"several workers need a link.*--platform '2x rtx4090 @ [a-z0-9-]+'` or"):
        scaling("resnet50", gpu="rtx4090", workers=2)
    with pytest.raises(BadValue, match=r"--platform '4x rtx4090 @ [a-z0-9-]+, 3 nodes @ infiniband'` or"):
        scaling("resnet50", gpu="rtx4090", workers=12)


def test_under_an_engine_a_device_without_a_usual_computer_has_its_fastest_link() -> None:
    """The A30's data sheet: a bridge of 200 GB/s in both directions together, beside PCIe with 64."""
    bridged, usual = (
        ClusterRequest(workers=2).build_topology(device=find_device(gpu), uses_suggested_link=True)
        for gpu in ("a30", "h100-sxm")
    )
    assert bridged.inside is not None and bridged.inside.bandwidth_bytes_per_s == 100e9
    assert bridged.nodes == 1 and not bridged.assumptions and usual.assumptions


def test_an_unknown_field_of_a_computer_is_named(tmp_path: Path) -> None:
    shipped = shipped_folder("hardware") / "platforms" / "p4d.24xlarge.toml"
    path = tmp_path / "mine.toml"
    path.write_text("gpus = 8\n" + shipped.read_text())
    with pytest.raises(BadFile, match="unknown field `gpus`"):
        read_computer(path)


def test_mfu_needs_flops_and_a_peak() -> None:
    row = scaling("resnet50", platform="p4d.24xlarge", precision="fp16", workers=[64])[0]
    assert row.hfu == pytest.approx(row.mfu)  # nothing is computed again
    again = msgspec.structs.replace(row, recomputed_fraction=0.25)
    assert again.hfu == pytest.approx(1.25 * row.mfu)
    for changes in ({"flops": None}, {"peak_per_s": None}):
        without = msgspec.structs.replace(row, **changes)
        assert (without.mfu, without.hfu) == (None, None)


def test_the_price_of_a_node_is_divided_by_its_devices() -> None:
    """21.957642 USD/h for 8 A100."""
    table = scaling("resnet50", platform="p4d.24xlarge", precision="fp16", workers=[64])
    row = table[0]
    assert row.price_usd_per_h == pytest.approx(21.957642 / 8)
    assert row.usd_per_million == pytest.approx(1e6 / row.throughput_per_s / 3600 * 21.957642 * 8)
    assert row.kwh is None  # no number of samples is given
    assert row.kwh_per_million == pytest.approx(64 * row.power_w / 1e3 * 1e6 / row.throughput_per_s / 3600)
    assert 0.3 * 400 < row.power_w < 400  # by the data sheet
    assert row.mfu == pytest.approx(row.flops_per_s / 312e12)
    # 3 x 8.178 GFLOP of forward and backward pass (4.089 GMAC, torchvision), except the first layer's data gradient.
    assert row.flops_per_s == pytest.approx(3 * 8.178e9 * row.throughput_per_s / 64, rel=0.03)
    assert any("list price 21.957642 USD/h per node, 2026-11-09" in note for note in table.notes)
    given = scaling("resnet50", platform="p4d.24xlarge", precision="fp16", workers=[64], price=1.0)[0]
    assert given.price_usd_per_h == 1.0


def test_invalid_files(tmp_path) -> None:
    text = (shipped_folder("hardware") / "platforms" / "dgx-h100.toml").read_text("utf-8")
    for old, new, message in (
        ("nvlink4-x18", "nvlink9", "nvlink9"), ('"basepod", note = "four', '"nobody", note = "four', "nobody"),
        ("devices_per_node", "devices", "devices"),
        ('link = "nvlink4', 'speed = 1, link = "nvlink4', "speed"), ("= 8", "= 0", r"devices per node \(got 0\)"),
    ):  # fmt: skip
        path = tmp_path / "rack.toml"
        path.write_text(text.replace(old, new))
        with pytest.raises(BadFile, match=message):
            read_computer(path)
    half = find_platform("p4d.24xlarge").topology(16, 0.5)
    assert (half.inside.ppp, half.between.ppp, half.between.bandwidth_bytes_per_s) == (0.5, 0.5, 50e9)
    with pytest.raises(UnknownName, match="p4d"):
        find_platform("p4d.24xlarg")
