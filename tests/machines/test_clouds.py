"""Clouds: their files, instances, and the audit.

Tests: machines/clouds.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.distributed.platforms import Computer, find_platform
from paleo_lite.errors import BadDevice, BadValue
from paleo_lite.machines import find_device, list_devices
from paleo_lite.machines.audit import audit_clouds
from paleo_lite.machines.clouds import find_instance, list_clouds, read_cloud

DEVICES = {device.id: device for device in list_devices()}

CLOUD = """
name = "Example"
[sources]
list = "a price list"
[[instances]]
name = "x1"
device = "t4"
devices = 2
price = { value = "1.50 USD/h", source = "list", date = 2024-02-01 }
"""


def test_shipped_clouds_pass_the_audit() -> None:
    assert audit_clouds(list_clouds(), DEVICES) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1.50 USD/h", "1.50 EUR/h", r"'1.50 EUR/h' .* `\$.instances\[0\].price`"),
        ("1.50 USD/h", "0 USD/h", r"price must be above 0 .* `\$.instances\[0\].price`"),
        ('source = "list"', 'source = "other"', "x1: 'other' is missing in sources"),
        ("devices = 2", "devices = 0", r"`int` >= 1 - at `\$.instances\[0\].devices`"),
        ('name = "x1"', "nam = 1", "nam"),
    ],
)
def test_a_malformed_file_is_one_sentence(tmp_path, old: str, new: str, message: str) -> None:
    path = tmp_path / "cloud.toml"
    path.write_text(CLOUD.replace(old, new, 1))
    with pytest.raises(BadDevice, match=message):
        read_cloud(path)


def test_the_audit_finds_errors(tmp_path) -> None:
    path = tmp_path / "cloud.toml"
    path.write_text(CLOUD.replace('"t4"', '"t5"').replace("2024", "2999").replace("[sources]", "[sources]\nold = 'x'"))
    messages = [finding.message for finding in audit_clouds([read_cloud(path)], DEVICES)]
    assert messages == [
        "the device 't5' does not exist",
        "listed 2999-02-01, which is in the future",
        "no price names 'old'",
    ]


@pytest.mark.parametrize(
    ("name", "device", "devices"),
    [
        ("p5.48xlarge", "h100-sxm", 8),
        ("a3-highgpu-8g", "h100-sxm", 8),
        ("g5.xlarge", "a10g", 1),
        ("ND H100 v5", "h100-sxm", 8),
        ("Standard_ND96isr_H200_v5", "h200-sxm", 8),
        ("p6-b300.48xlarge", "b300", 8),
    ],
)
def test_names_of_instances_are_platforms_and_devices(name: str, device: str, devices: int) -> None:
    """Sizes as the clouds document them."""
    computer = find_platform(name)
    assert isinstance(computer, Computer)
    assert (computer.device, computer.devices_per_node) == (device, devices)
    assert computer.price is not None and str(computer.price.date) in computer.describe()
    assert find_device(name).id == device


def test_several_nodes_need_a_network_on_record() -> None:
    computer = find_platform("g5.48xlarge")
    assert isinstance(computer, Computer)
    assert computer.topology(8).inside is not None
    with pytest.raises(
        BadValue, match=r"the network of AWS g5.48xlarge is not on record, and 16 devices need 2 of them"
    ):
        computer.topology(16)


def test_devices_without_a_link_on_record() -> None:
    computer = find_platform("trn1.32xlarge")
    with pytest.raises(BadValue, match=r"no link between the 16 devices of trn1\.32xlarge is on record"):
        computer.topology(16)


def test_an_unknown_instance() -> None:
    assert find_instance("g9.xlarge") is None
