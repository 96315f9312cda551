"""TAU's text profiles. No real file is available; a file in TAU's format is compared with the same numbers in XML.

Tests: profiles/tau.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile


@pytest.fixture
def rows(tmp_path, samples):
    """The rows of a file: the sample, or changed."""

    def read(old: str = "", new: str = "", name: str = "profile.1.0.2"):
        path = tmp_path / name
        path.write_text(samples["tau.TauProfile"].decode().replace(old, new))
        return open_profile(path).read().table.to_pylist()

    return read


def test_timers_and_messages_match_the_xml(rows, samples, tmp_path):
    path = tmp_path / "tau.xml"
    path.write_bytes(samples["tau_xml.TauXml"])
    xml = open_profile(path).read().table.to_pylist()
    same = ("category", "duration_ns", "calls", "bytes", "device", "metric.exclusive_ns", "metric.message_max_bytes")
    text = rows()
    assert [[row[name] for name in same] for row in text[:4]] == [[row[name] for name in same] for row in xml]
    assert [row["kernel"] for row in text[:3]] == [
        ".TAU application",
        '<genexpr> [{a.py}{3}] says \\"hi\\"',
        "MPI_Allreduce()",
    ]
    assert {row["thread"] for row in text} == {2}
    assert (text[4]["calls"], text[4]["bytes"], text[4]["metric.message_max_bytes"]) == (0, 0.0, None)


def test_a_file_of_another_name_tells_no_process(rows):
    assert {(row["device"], row["thread"]) for row in rows(name="renamed")} == {(None, None)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("MULTI_TIME", "MULTI_PAPI_FP_OPS", "the metric is 'PAPI_FP_OPS', expected time"),
        ("10 0 2500 2500 0 GROUP", "10 0 2500 2500 GROUP", "line 5: .*expected a quoted name and 5 numbers"),
        ("10 0 2500", "ten 0 2500", "line 5: 'ten' is not a number"),
        ('"MPI_Allreduce()  " 10', "MPI_Allreduce() 10", "line 5: .*expected a quoted name"),
        ("3 templated", "2 templated", "line 5: .*expected the end of the TIME"),
        ("2 userevents", "3 userevents", "ends at line 10, 1 lines before the end"),
        ("10 67049472 8", "10 67049472 -8", "line 9: a message size is negative"),
    ],
)
def test_the_error_of_a_damaged_profile_names_the_damage(rows, old, new, message):
    with pytest.raises(BadProfile, match=message):
        rows(old, new)
