"""What launchers, terminals and people write into the lines of a profiler's output."""

from __future__ import annotations

import pytest

from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.log_lines import cleaner_of

REPORT = """\
 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)   Name
 --------  ---------------  ---------  ---------  ---------------------------
     99.9        704721548        320  2202254.8  ampere_bf16_s16816gemm_bf16
      0.1           151553          2    75776.5  distribution_elementwise
"""
PRODUCTS = """\
Time (%),Total Time (ns),Instances,Avg (ns),Name
99.9,704721548,320,2202254.8,ampere_bf16_s16816gemm_bf16
0.1,151553,2,75776.5,distribution_elementwise
"""


def before_each(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n".replace(" \n", "\n") for line in text.splitlines())


WRITTEN = {
    "mail": lambda text: before_each("> ", text),
    "comment": lambda text: before_each("# ", text),
    "comment of C": lambda text: before_each("// ", text),
    "torchrun": lambda text: before_each("[rank0]: ", text),
    "torchrun --tee": lambda text: before_each("[default0]:", text),
    "a node's rank": lambda text: before_each("node01: [rank0]: ", text),
    "mpirun": lambda text: before_each("[1,0]<stdout>:", text),
    "logging": lambda text: before_each("INFO:root:", text),
    "srun": lambda text: before_each("0: ", text),
    "kubectl": lambda text: before_each("2026-11-02T10:11:12.345678Z ", text),
    "containerd": lambda text: before_each("2026-11-02T10:11:12.345678+01:00 stdout F ", text),
    "compose": lambda text: before_each("vllm-1  | ", text),
    "code": lambda text: before_each("        ", text),
    "colours": lambda text: "\x1b[32m" + text.replace("\n", "\x1b[0m\n\x1b[1;32m"),
    "wide blanks": lambda text: text.replace("  ", "\u00a0\u00a0"),
    "windows": lambda text: text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", [REPORT, PRODUCTS], ids=["printed", "csv"])
@pytest.mark.parametrize("way", WRITTEN)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_report_is_read_however_it_came_back(tmp_path, text, way, encoding):
    path = tmp_path / "report.log"
    path.write_bytes(WRITTEN[way](text).encode(encoding))
    rows = open_profile(path).read().table.to_pylist()
    assert [(row["kernel"], row["duration_ns"], row["calls"]) for row in rows] == [
        ("ampere_bf16_s16816gemm_bf16", 704721548.0, 320),
        ("distribution_elementwise", 151553.0, 2),
    ]


def test_only_what_all_lines_begin_with_is_removed():
    assert cleaner_of(["0: a", "text", "1: b"]) is None
    assert cleaner_of(["step: 1  loss: 2", "step: 2  loss: 3"]) is None  # of a log of training
    assert cleaner_of(["alone  | a | b"]) is None and cleaner_of(["-- | --", "one | 1", "two | 2"]) is None
    assert cleaner_of(["  kernel (1, 1, 1)", "    Duration 3"]) is None  # Nsight Compute's own blanks
    clean = cleaner_of(["> a", ">", "> > b"])
    assert clean is not None and [clean(line) for line in ("> c", ">", "d")] == ["c", "", "d"]
    wide = cleaner_of(["1\u202f234\u00a0\u00a05\u202f678"])
    assert wide is not None and wide("1\u202f234\u00a0\u00a05\u202f678") == "1\u202f234  5\u202f678"
