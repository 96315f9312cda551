"""Suggested profiler command: equals a published command for a single kernel, and is quoted safely for a shell."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.errors import BadValue
from paleo_lite.profile_analysis.kernels import KernelRow
from paleo_lite.profile_analysis.next_command import TOOLS, kernels_to_profile, next_command


def row(name, time_s, rank, label="gemm"):
    return KernelRow(
        name, label, 1, time_s, None, None, None, 0.0, None, None, None, None, None, None, None, None, rank, None, {}
    )


def test_the_command_of_the_slides():
    """As the slides "Profiling DNN workloads" (Argonne, ATPESC) have it.

    nvprof --profile-from-start off --kernels "::gemm:1" --metrics ... --log-file selective-profile.log <myapp>
    """
    (command,) = next_command([row("gemm", 1.0, 1)], "nvprof", "python myapp.py args")
    words = shlex.split(command)
    assert words[:5] == ["nvprof", "--profile-from-start", "off", "--kernels", "::gemm:1"]
    assert words[5] == "--metrics" and words[7:9] == ["--log-file", "selective-profile.log"]
    assert {"achieved_occupancy", "ipc", "gld_efficiency", "gst_efficiency", "dram_utilization"} <= set(
        words[6].split(",")
    )
    assert words[9:] == ["python", "myapp.py", "args"]


def test_nsight_compute_takes_a_regular_expression():
    (command,) = next_command([row("a::sgemm", 2.0, 1), row("b::relu", 1.0, 2)], "ncu")
    words = shlex.split(command)
    pattern = words[words.index("--kernel-name") + 1]
    assert pattern.startswith("regex:")
    assert all(re.search(pattern.removeprefix("regex:"), name) for name in ("void a::sgemm<float>(int)", "b::relu"))
    assert "sm__warps_active.avg.pct_of_peak_sustained_active" in words[words.index("--metrics") + 1]


def test_nsight_systems_collects_in_the_captured_range():
    run, stats = next_command([row("sgemm", 1.0, 1)], "nsys")
    assert "--capture-range=cudaProfilerApi" in shlex.split(run)
    assert "cuda_gpu_trace" in shlex.split(stats) and "Start|sgemm" in shlex.split(stats)


def test_copies_and_collectives_are_left_out():
    rows = [row("memcpy HtoD", 9.0, 1, "memcpy"), row("nccl", 8.0, 2, "communication"), row("sgemm", 1.0, 3)]
    assert [kernel.name for kernel in kernels_to_profile(rows)] == ["sgemm"]


def test_most_important_kernels_cover_80_percent_of_the_time():
    rows = [row("a", 7.0, 1), row("b", 1.5, 2), row("c", 1.0, 3), row("d", 0.5, 4)]
    assert [kernel.name for kernel in kernels_to_profile(rows)] == ["a", "b"]
    assert len(kernels_to_profile([row(str(place), 1.0, place) for place in range(1, 40)])) == 8


@given(st.text(min_size=1, max_size=60), st.sampled_from(TOOLS))
def test_no_name_escapes_the_quotes(name, tool):
    for line in next_command([row(name, 1.0, 1)], tool):
        assert "\n" not in line
        assert shlex.split(line)[0] in ("nvprof", "ncu", "nsys")
        # Outside of quotes stand only words, and the one pipe of nsys.
        bare = re.sub(r"'[^']*'", "", line)
        assert re.fullmatch(r"[\w\s|.,:/=\-]*", bare, re.ASCII), line
        assert bare.count("|") == (1 if "nsys stats" in line else 0)


def test_the_program_is_quoted_too():
    (command,) = next_command([row("k", 1.0, 1)], "ncu", "python 'a b.py' '$HOME;rm'")
    assert shlex.split(command)[-3:] == ["python", "a b.py", "$HOME;rm"]
    assert "'$HOME;rm'" in command


@pytest.mark.parametrize(
    ("rows", "tool", "program"),
    [
        ([row("k", 1.0, 1)], "vtune", "x"),
        ([row("k", 1.0, 1)], "ncu", "python 'x"),
        ([row("k", 1.0, 1)], "ncu", " "),
        ([row("memset", 1.0, 1, "memset")], "ncu", "x"),
    ],
)
def test_bad_tools_and_programs_are_one_sentence(rows, tool, program):
    with pytest.raises(BadValue) as raised:
        next_command(rows, tool, program)
    assert "\n" not in str(raised.value)
