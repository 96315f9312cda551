"""TAU's merged XML: real profiles compared with published application seconds, and malicious files."""

from __future__ import annotations

import csv
import gzip
import re

import pyarrow as pa
import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.tau_xml import TauXml

FILES = [
    "run_0_config_4_2_IB_tau_8_resnet50_dali-cpu-to-gpu_64_fp32_fp32_ret_0.xml",
    "run_7_config_1_1_IB_tau_1_resnet50_dali-cpu-to-gpu_16_fp16_fp32_ret_0.xml",
]


def read(path):
    return pa.Table.from_batches(TauXml().batches(path, None)).to_pylist()


@pytest.fixture
def rows_of(tmp_path, samples):
    text = samples["tau_xml.TauXml"].decode()

    def rows(*changes):
        changed = text
        for old, new in changes:
            assert old in changed, old
            changed = changed.replace(old, new, 1)
        path = tmp_path / "profile.xml"
        path.write_bytes(changed.encode())
        return read(path)

    return rows


@pytest.mark.spread(1)
@pytest.mark.needs_data
@pytest.mark.parametrize("name", FILES)
def test_durations_of_real_profiles_match_published_values(data_folder, name):
    folder = data_folder / "surfboard"
    with (folder / "derived" / "tau_xml_app_seconds.csv").open() as file:
        second_opinion = [row for row in csv.DictReader(file) if row["file"] == name]
    rows = read(folder / "tau_xml" / name)
    seconds = [row["duration_ns"] / 1e9 for row in rows if row["kernel"] == ".TAU application"]
    assert f"{max(seconds):.6f}" in [row["app_s"] for row in second_opinion]
    text = (folder / "tau_xml" / name).read_text("ascii")
    # each line of numbers of each thread is a row, lines of totals and means are not
    data = re.findall(r"<(?:interval|atomic)_data[^>]*>\n(.*?)</", text, re.DOTALL)
    assert len(rows) == sum(len(block.splitlines()) for block in data)
    nodes = {int(node) for node in re.findall(r'<profile thread="(\d+)\.', text)}
    assert {row["device"] for row in rows} == nodes
    assert {row["kernel"] for row in rows if row["category"] == "message"} >= {"MPI_Allreduce()"}


def test_times_messages_threads_and_totals_left_out(rows_of):
    rows = rows_of()
    assert [(row["kernel"], row["category"], row["calls"]) for row in rows] == [
        (".TAU application", "cpu", 1),
        ("<genexpr> [{a.py}{3}]", "cpu", 3),
        ("MPI_Allreduce()", "message", 10),
        ("Message size for all-reduce", "message", 10),
    ]
    assert [row["duration_ns"] for row in rows] == [5e9, None, 2.5e6, None]
    assert [row["metric.exclusive_ns"] for row in rows] == [1e6, 2e4, 2.5e6, None]
    assert [row["bytes"] for row in rows] == [None, None, None, 7291695.0]
    assert {(row["device"], row["thread"]) for row in rows} == {(1, 0)}


def test_other_counters_in_addition_to_time(rows_of):
    rows = rows_of(
        ("<metric id=", '<metric id="1"><name>PAPI_FP_OPS</name></metric>\n<metric id='),
        ('metrics="0 "', 'metrics="1 0"'),
        ("0 1 2 1000 5000000", "0 1 2 77 78 1000 5000000"),
        ("1 3 0 20 -4", "1 3 0 77 78 20 20"),
        ("2 10 0 2500 2500", "2 10 0 77 78 2500 2500"),
    )
    assert [row["duration_ns"] for row in rows][:3] == [5e9, 2e4, 2.5e6]


def test_a_byte_that_is_no_utf_8_is_latin_1(tmp_path, samples):
    path = tmp_path / "profile.xml"
    path.write_bytes(
        b'<?xml version="1.0"?>\n' + samples["tau_xml.TauXml"].replace(b"genexpr", "größe".encode("latin-1"))
    )
    assert TauXml().recognises(path, path.read_bytes())
    assert read(path)[1]["kernel"] == "<größe> [{a.py}{3}]"


def test_gzip(tmp_path, samples, rows_of):
    path = tmp_path / "profile.xml.gz"
    path.write_bytes(gzip.compress(samples["tau_xml.TauXml"]))
    assert read(path) == rows_of()


LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [("<profile_xml>", f'<!DOCTYPE p [<!ENTITY l0 "ha">{LAUGHS}]><profile_xml>'), ("genexpr", "&l9;")],
            r"line 1: ",
        ),
        ([("TIME", "&secret;")], r"line 3: XML that is cut or corrupted"),
        ([("</interval_data>", "")], r"line \d+: XML that is cut or corrupted \(mismatched tag\)"),
        ([("0 1 2 1000 5000000", "0 1 2 1000")], r"line 22: 4 numbers, expected 5"),
        ([("0 1 2 1000 5000000", "0 1 2 1000 nan")], r"line 22: 'nan' is not a number"),
        ([("1 3 0 20 -4", "9 3 0 20 20")], r"line 23: event '9' is not defined"),
        ([("1 3 0 20 -4", "1 -3 0 20 20")], r"line 23: a number of calls out of range"),
        ([("0 10 67049472 8", "0 10 67049472 -8")], r"line 27: a message size is negative"),
        (
            [("0 10 67049472 8 729169.5", "0 10 67049472 8 1e308")],
            r"line 27: a message size is negative or out of range",
        ),
        ([("1000 5000000", "1000 1e308")], r"line 22: a time out of range"),
        ([("TIME", "PAPI_L1_DCM"), ("TIME", "PAPI_L1_DCM")], r"line 22: no metric of time"),
        ([('profile thread="1.0.0.77"', 'profile thread="main"')], r"line 22: the thread is called 'main'"),
        (
            [('<profile thread="1.0.0.77">', "<profiles>"), ("</profile>", "</profiles>")],
            r"is not defined|thread is called",
        ),
        ([("genexpr", "g" * 2**17)], r"line 7: a text of more than 65,536 characters"),
    ],
)
def test_bad_xml_names_its_line(rows_of, changes, message):
    with pytest.raises(BadProfile, match=message):
        rows_of(*changes)


def test_a_second_profile_of_a_thread_is_not_added(tmp_path, samples):
    text = samples["tau_xml.TauXml"].decode()
    start, end = text.index("<profile thread"), text.index("</profile>\n") + len("</profile>\n")
    path = tmp_path / "profile.xml"
    path.write_text(text[:end] + text[start:end] + text[end:])
    with pytest.raises(BadProfile, match="a second profile of thread"):
        read(path)


def test_every_cut_is_an_error_or_whole_threads(tmp_path, samples):
    raw, path = samples["tau_xml.TauXml"], tmp_path / "profile.xml"
    whole = raw.index(b"</profile_xml>\n\0")
    for length in range(20, whole, 7):
        path.write_bytes(raw[:length])
        with pytest.raises(BadProfile):
            read(path)


def test_unterminated_tag_is_not_stored(tmp_path):
    path = tmp_path / "profile.xml"
    path.write_bytes(gzip.compress(b'<profile_xml><thread id="' + b"a" * 2**26))
    with pytest.raises(BadProfile, match="a tag of more than 4 MiB"):
        read(path)
