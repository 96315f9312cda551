"""Finding devices: forgiving about spelling, never about which device is meant; bad files are named with field."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paleo_lite.errors import AmbiguousName, BadDevice, BadValue, UnknownName, UnknownPrecision
from paleo_lite.files import shipped_folder
from paleo_lite.machines import Machine, find_device, list_devices, read_device, read_links, registry
from paleo_lite.text import normalize_name


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("k80", "k80"),
        ("K80", "k80"),
        ("Tesla K80", "k80"),
        ("tesla-k80", "k80"),
        ("NVIDIA Tesla K80", "k80"),
        ("k80-die", "k80-die"),
        ("k80_die", "k80-die"),
        ("TITAN V", "titan-v"),
        ("titanv", "titan-v"),
        ("titan-v", "titan-v"),
        ("NVIDIA TITAN_V", "titan-v"),
        ("GeForce GTX 1080 Ti", "gtx1080ti"),
        ("gtx-1080-ti", "gtx1080ti"),
        ("K40M", "k40m"),
        ("instinct mi300x", "mi300x"),
        ("H100 SXM5 80GB", "h100-sxm"),
    ],
)
def test_names_are_forgiving(name: str, identity: str) -> None:
    assert find_device(name).id == identity


@pytest.mark.parametrize("name", ["v100", "TITAN X", "p100", "A100", "h100"])
def test_ambiguous_device_name_is_an_error(name: str) -> None:
    with pytest.raises(AmbiguousName, match="matches more than one GPU: use"):
        find_device(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100 80gb", {"a100-sxm-80gb", "a100-pcie-80gb"}),
        ("A100-40GB", {"a100-sxm-40gb", "a100-pcie-40gb"}),
        ("v100 32gb", {"v100-sxm2-32gb", "v100-pcie-32gb"}),
    ],
)
def test_a_gpu_and_its_memory_are_a_name(name: str, expected: set[str]) -> None:
    with pytest.raises(AmbiguousName) as raised:
        find_device(name)
    assert expected <= set(raised.value.candidates)
    assert all(
        find_device(candidate).memory_bytes == find_device(next(iter(expected))).memory_bytes
        for candidate in raised.value.candidates
    )


def test_boards_of_a_gpu_are_listed_with_their_differences() -> None:
    """Those with a rental price first: p4d and p4de have the SXM boards, and nobody rents the PCIe board of 40 GB."""
    with pytest.raises(AmbiguousName) as raised:
        find_device("a100")
    assert raised.value.candidates[-1] == "a100-pcie-40gb"
    assert set(raised.value.candidates) == {"a100-sxm-80gb", "a100-sxm-40gb", "a100-pcie-80gb", "a100-pcie-40gb"}
    assert "a100-sxm-40gb (40 GB, 1.555 TB/s, 400 W)" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("4090", "rtx4090"),
        ("m4", "apple-m4"),
        ("M3 Max", "apple-m3-max"),
        ("1080 Ti", "gtx1080ti"),
        ("A6000", "rtx-a6000"),
        ("4070 super", "rtx4070super"),
        ("H200", "h200-sxm"),
        ("h20", "h20"),
        ("2080", "rtx2080"),
        ("7900 XTX", "rx7900xtx"),
        ("R9700", "radeon-ai-pro-r9700"),
        ("W7900", "radeon-pro-w7900"),
        ("RTX 4090 24GB", "rtx4090"),
        ("4090 24 GB", "rtx4090"),
        ("H200 NVL", "h200-nvl"),
        ("p40", "p40"),
        ("1070", "gtx1070"),
        # Words of one name alone.
        ("v5e", "tpu-v5e"),
        ("Orin 64GB", "jetson-agx-orin-64gb"),
        ("H100 94GB", "h100-nvl"),
        ("laptop 4090", "rtx4090-laptop"),
    ],
)
def test_parts_of_a_name_that_one_device_has_name_it(name: str, expected: str) -> None:
    assert find_device(name).id == expected


@pytest.mark.parametrize(
    "name",
    ["980 t", "mi2", "k8", "h2", "v10", "jetson-agx-orin-6", "rtx-50", "gtx 970", "8x", "x8"],
)
def test_the_beginning_of_a_name_is_no_name(name: str) -> None:
    """Half a number names nothing."""
    with pytest.raises(UnknownName, match="no GPU is called"):
        find_device(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("DGX H100", "is a platform of several GPUs: use `--platform dgx-h100`, or one of its GPUs: `--gpu h100-sxm`"),
        (
            "hgx h100",
            r"names several GPUs, expected one \(h100-nvl, h100-pcie, h100-sxm\): their number is `--workers`",
        ),
        ("8xH100", "names several GPUs, expected one"),
        ("2x 4090", r"names several GPUs, expected one \(rtx4090"),
        ("H100 x8", "names several GPUs, expected one"),
    ],
)
def test_several_gpus_are_no_gpu(name: str, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        find_device(name)


@pytest.mark.parametrize(("name", "near"), [("k81", "k80"), ("gtx1081", "gtx1080"), ("mi300", "mi300x")])
def test_an_unknown_name_gives_the_nearest(name: str, near: str) -> None:
    with pytest.raises((UnknownName, AmbiguousName), match=near):
        find_device(name)


@pytest.mark.parametrize("name", ["", " ", "../k80", "links", "/etc/passwd", "k80.toml"])
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises((UnknownName, AmbiguousName)):
        find_device(name)


def test_published_figures_are_the_defaults() -> None:
    """SURFBoard's notebook: K40m 4.29 TFLOPS, 288 GB/s. Data sheet of the K80 board: 8.73 / 2.91 TFLOPS, 480 GB/s."""
    k40m, k80 = find_device("k40m"), find_device("k80")
    assert k40m.find_peak("fp32").per_s == 4.29e12
    assert k40m.bandwidth_bytes_per_s == 288e9
    assert (k80.find_peak("fp32").per_s, k80.find_peak("fp64").per_s) == (8.73e12, 2.91e12)
    assert k80.bandwidth_bytes_per_s == 480e9
    assert k80.parts is not None and k80.parts.device == "k80-die"


def test_the_clock_scales_a_peak_that_is_listed_at_another() -> None:
    k40m = find_device("k40m")
    assert k40m.find_peak("fp32", clock="boost").per_s == 5.04e12  # listed
    scaled = k40m.find_peak("fp64")  # listed at 875 MHz, the default is 745 MHz
    assert scaled.per_s == pytest.approx(1.68e12 * 745 / 875)
    assert scaled.scaled_from == "boost"
    assert "scaled from the boost clock" in scaled.describe()


def test_the_unit_is_chosen_or_the_fastest() -> None:
    v100 = find_device("v100-sxm2")
    assert v100.find_peak("fp16").per_s == 125e12
    assert v100.find_peak("fp16", "vector").per_s == 31.4e12
    with pytest.raises(UnknownPrecision, match=r"no fp64 \(tensor\) peak: it has .*fp64 \(vector\)"):
        v100.find_peak("fp64", "tensor")


def test_only_fp16_is_computed_in_fp32_where_that_is_faster() -> None:
    """cuDNN's pseudo-half configuration; the GTX 1080 Ti computes 64 times as fast in fp32."""
    device = find_device("gtx1080ti")
    fp32, fp16 = device.find_peak("fp32"), device.find_peak("fp16")
    assert fp32.per_s == pytest.approx(64 * fp16.per_s, rel=0.01)
    assert Machine(device).peak("fp16") == fp32
    slow = [msgspec.structs.replace(peak, precision="bf16") for peak in device.peaks if peak.precision == "fp16"]
    made = msgspec.structs.replace(device, peaks=(*device.peaks, *slow))
    assert Machine(made).peak("bf16").per_s == fp16.per_s
    v100 = find_device("v100-sxm2")
    assert Machine(v100).peak("fp16").per_s == 125e12  # its fp16 is faster, on tensor cores and on vector units
    assert Machine(v100, unit="vector").peak("fp16").per_s == 31.4e12


def test_fp16_accumulation_is_not_the_default() -> None:
    """GeForce: 71 TFLOPS dense with sums in fp32, 142 with sums in fp16 (GA102)."""
    assert find_device("rtx3090").find_peak("fp16", "tensor").per_s == pytest.approx(71e12, rel=0.01)


def test_message_lists_supported_precisions() -> None:
    with pytest.raises(UnknownPrecision, match=r"Tesla K80 has no fp16 peak: it has fp32 \(vector\), fp64 \(vector\)"):
        find_device("k80").find_peak("fp16")


def test_a_further_file_adds_a_device(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text((shipped_folder("hardware") / "k40m.toml").read_text().replace("4.29 TFLOP/s", "6 TFLOP/s"))
    assert find_device("mine", [mine]).find_peak("fp32").per_s == 6e12
    assert find_device("k80", [mine]).id == "k80"
    assert len(list_devices([mine])) == len(list_devices()) + 1


def test_a_further_file_does_not_take_a_name(tmp_path: Path) -> None:
    mine = tmp_path / "k80.toml"
    mine.write_text((shipped_folder("hardware") / "k40m.toml").read_text())
    with pytest.raises(BadDevice, match="'k80' is taken"):
        find_device("k80", [mine])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('vendor = "NVIDIA"', "vendor = 7", r"Expected `str`, got `int` - at `\$\.vendor`"),
        ('vendor = "NVIDIA"', "", "missing required field `vendor`"),
        ("bandwidth =", "bandwith =", r"unknown field `bandwith` - at `\$\.memory`"),
        ("288 GB/s", "288 GHz", r"memory\.bandwidth: '288 GHz' is not in B/s"),
        ("288 GB/s", "-288 GB/s", r"memory\.bandwidth must be above 0 \(got '-288 GB/s'"),
        ("288 GB/s", "1e99 GB/s", r"memory\.bandwidth must be from 1e-06 to 1e\+24 B/s"),
        ("4.29 TFLOP/s", "1e-300 TFLOP/s", r"peaks\.fp32\.vector must be from 1e-06 to 1e\+24 FLOP/s"),
        ("4.29 TFLOP/s", "fast", r"peaks\.fp32\.vector: 'fast' is not a quantity"),
        ('default = "base"', 'default = "turbo"', r"Invalid enum value 'turbo' - at `\$\.clocks\.default`"),
        ('precision = "fp64"', 'precision = "fp65"', r"Invalid enum value 'fp65'"),
        ("[cores]", "[cores", "mine.toml"),
        (
            "[sources]",
            "[rent]\nvalue = '2 USD/h'\nsource = 'a'\n[sources]",
            r"missing required field `date` - at `\$\.rent`",
        ),
        (
            "[sources]",
            "[rent]\nvalue = '2 EUR/h'\nsource = 'a'\ndate = 2024-01-01\n[sources]",
            r"'2 EUR/h' is not in USD/h.* at `\$.rent`",
        ),
        (
            "[sources]",
            "[rent]\nvalue = '0 USD/h'\nsource = 'a'\ndate = 2024-01-01\n[sources]",
            r"a price must be above 0 \(got '0 USD/h'\) - at `\$.rent`",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    mine = tmp_path / "mine.toml"
    text = (shipped_folder("hardware") / "k40m.toml").read_text()
    assert old in text
    mine.write_text(text.replace(old, new, 1))
    with pytest.raises(BadDevice, match=message) as caught:
        read_device(mine)
    assert str(caught.value).startswith(str(mine))


@pytest.mark.parametrize(
    ("name", "usd_per_h", "watts"),
    [
        ("v100-sxm2", 3.06, 300),
        ("k80-die", 0.90, 150),
        ("k80", 1.80, 300),  # p3.2xlarge; p2.xlarge, and two of them
        ("a100-sxm-40gb", 21.957642 / 8, 400),
        ("h100-sxm", 55.04 / 8, 700),  # p4d.24xlarge, p5.48xlarge: eight each
        ("gtx580", None, 244),
        ("m60-die", 1.14, None),
    ],
)
def test_price_and_power_have_sources_or_are_absent(name, usd_per_h, watts) -> None:
    device = find_device(name)
    assert device.rent_usd_per_h == (None if usd_per_h is None else pytest.approx(usd_per_h, rel=1e-4))
    assert device.power_w == watts


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"a = " + b"[" * 50_000])
def test_garbage_is_a_bad_file(tmp_path: Path, content: bytes) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_bytes(content)
    with pytest.raises(BadDevice, match=r"mine\.toml"):
        read_device(mine)


def test_an_absent_file_is_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(BadDevice, match="cannot be read"):
        read_device(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("86 IOPS", "86 seeks", r"link\.hdd\.random_reads: '86 seeks' is not in IOPS"),
        ("0.5 us", "soon", r"link\.infiniband-edr\.latency: 'soon' is not a quantity"),
        ("15.75 GB/s", "fast", r"link\.pcie3-x16\.per_direction: 'fast' is not a quantity"),
    ],
)
def test_a_bad_figure_of_a_link_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    mine = tmp_path / "links.toml"
    text = (shipped_folder("hardware") / "links.toml").read_text()
    assert old in text
    mine.write_text(text.replace(old, new, 1))
    with pytest.raises(BadDevice, match=message):
        read_links(mine)


def test_storage_reads_at_random_places() -> None:
    """The data sheet's disk: 7.4 ms to seek and half a turn at 7200 rpm, 4.16 ms; a link that is none has no figure."""
    links = read_links().link
    assert links["hdd"].random_reads_per_s == pytest.approx(1 / (7.4e-3 + 4.16e-3), rel=0.01)
    assert links["ethernet-10"].random_reads_per_s is None


@pytest.mark.parametrize(
    ("name", "gigabytes_per_s"),
    [("Intel i7 5930K", 30), ("NVLink", 40), ("PCIe x8", 5), ("SATA", 6), ("Mellanox", 6.8), ("10 Gb Ethernet", 1)],
)
def test_links_hold_the_courses_bandwidth_table(name: str, gigabytes_per_s: float) -> None:
    rows = {identity: link for identity, link in read_links().link.items() if identity.startswith("course-")}
    words = name.lower().replace("-", " ").split()
    found = [link for link in rows.values() if all(word in link.name.lower().replace("-", " ") for word in words)]
    assert [link.bandwidth_bytes_per_s for link in found] == [gigabytes_per_s * 1e9]


@pytest.mark.parametrize("name", ["gtx 1660", "GeForce GTX 1660"])
def test_a_variant_is_another_device(name):
    with pytest.raises(UnknownName, match="The nearest is gtx1660ti"):
        find_device(name)


@pytest.mark.parametrize("index", ["0", "3", " 2", "12"])
def test_an_index_is_no_name(index: str) -> None:
    """A Gaudi 3 is no 3, though a GeForce RTX 4090 is a 4090."""
    with pytest.raises(BadValue, match="is a number, and no name of a GPU"):
        find_device(index)
    assert find_device("4090").id == "rtx4090"


def test_an_id_is_no_name_of_another_device() -> None:
    """A name that is the id of a device is answered by its file alone."""
    devices = list_devices()
    for device in devices:
        spellings = {normalize_name(name) for name in (device.name, *device.aliases)}
        others = [other.id for other in devices if other is not device and normalize_name(other.id) in spellings]
        assert not others, f"hardware/{device.id}.toml: its name or an alias is that of {others[0]}: change it"


@pytest.mark.parametrize("spelling", ["rtx-4090", "RTX 4090", "NVIDIA RTX4090", "rtx_4090"])
def test_another_spelling_of_an_id_reads_one_file(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "list_devices", None)
    assert find_device(spelling).id == "rtx4090"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m4-pro-24gb", "apple-m4-pro is on record with 64 GB: `local --gpu apple-m4-pro --device-memory 24GB`"),
        ("apple-m4-pro 24 GB", "apple-m4-pro is on record with 64 GB"),
        ("RTX 4090 48GB", "rtx4090 is on record with 24 GB: `local --gpu rtx4090 --device-memory 48GB`"),
    ],
)
def test_another_memory_of_a_device_names_the_option_that_states_it(name: str, message: str) -> None:
    """Apple sells the M4 Pro with 24, 48 and 64 GB."""
    with pytest.raises(BadValue, match=message):
        find_device(name)


@pytest.mark.parametrize("name", ["k80+p100", "rtx3090+rtx3090", "RTX 3090 + RTX 4060 Ti 16GB"])
def test_devices_joined_by_a_plus_sign_are_several(name: str) -> None:
    with pytest.raises(BadValue, match=r"names several GPUs: `local` splits .* `--gpu [^+]*,[^+]*` compares them"):
        find_device(name)


@pytest.mark.parametrize("name", ["Ryzen AI Max+ 395", "AMD Ryzen AI Max+ 395", "max+ 395"])
def test_a_plus_sign_in_a_name_joins_nothing(name: str) -> None:
    assert find_device(name).id == "ryzen-ai-max-395"


def test_every_jetson_is_embedded_and_nothing_else() -> None:
    """NVIDIA's modules for embedded systems are its Jetsons; the DGX Spark has a processor of desktops."""
    assert {device.id for device in list_devices() if device.embedded} == {
        device.id for device in list_devices() if device.name.startswith("Jetson")
    }
