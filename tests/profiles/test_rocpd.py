"""rocprofv3's database contains the same values as its CSV of the same run (AMD's documentation of both).

Tests: profiles/rocprof.py.
"""

from __future__ import annotations

import sqlite3

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile


def test_kernels_match_the_csv(tmp_path, rocpd_file, samples):
    path = tmp_path / "kernel_trace.csv"
    path.write_bytes(samples["rocprof.RocprofCsv"])
    wanted = ("category", "kernel", "start_ns", "duration_ns", "calls", "grid", "block", "device")
    databases, texts = (open_profile(file).read().table.select(wanted).to_pylist() for file in (rocpd_file, path))
    assert databases[:2] == texts


def test_copies_have_their_bytes(rocpd_file):
    row = open_profile(rocpd_file).read().table.to_pylist()[2]
    assert (row["category"], row["kernel"], row["device"]) == ("memcpy", "[memcpy HOST_TO_DEVICE]", 4)
    assert (row["duration_ns"], row["bytes"]) == (563880, 4 * 2**20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE {kernels} SET end = start - 1", "begins at 1551874061244694 and ends at 1551874061244693"),
        ("UPDATE {kernels} SET start = 'soon'", "begins at 'soon'"),
        ("UPDATE {kernels} SET kernel_id = 99", "rocpd_info_kernel_symbol_0000d5_a1b2 has no entry 99"),
        ("ALTER TABLE {kernels} RENAME COLUMN queue_id TO queue", "has no column 'queue_id'"),
        ("DROP TABLE rocpd_string_0000d5_a1b2", "rocpd_string_0000d5_a1b2 has no column 'id'"),
    ],
)
def test_messages_name_the_problem(tmp_path, rocpd_file, change, message):
    path = tmp_path / "run.db"
    path.write_bytes(rocpd_file.read_bytes())
    with sqlite3.connect(path) as database:
        database.execute(change.format(kernels="rocpd_kernel_dispatch_0000d5_a1b2"))
    database.close()
    with pytest.raises(BadProfile, match=message):
        open_profile(path).read()
