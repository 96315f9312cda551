"""Bandwidth and latency of links and memories: OSU, perftest, nvbandwidth, STREAM, copies, and DeepEP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..text import format_plural
from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .text import all_lines, find_lines, to_number

_US, _MB, _GB = 1e-6, 1e6, 1e9
_OTHER_TRANSPORT = 3  # factor between tables of the same messages

_OSU = re.compile(r"# OSU (\S+) (.+?)(?: Test)? v(\d+(?:\.\d*)?)")
_OSU_COLUMNS = re.compile(r"# Size\s+(.*)$")
_OSU_ROW = re.compile(r"^\s*(\d{1,15})((?:\s+\d+(?:\.\d*)?)+)(?:\s+(Pass|Fail))?\s*$")
_OSU_NAMES = {
    "Bandwidth": "send", "Bi-Directional Bandwidth": "send both ways", "Latency": "send",
    "Multiple Bandwidth / Message Rate": "send of several pairs",
}  # fmt: skip


def read_osu(path: Path, findings: Findings) -> None:
    """Read the tables of the OSU micro-benchmarks: MB/s of 10^6 bytes, and microseconds one way."""
    operation, is_bandwidth, buffers, title = "", False, "", ""
    failed = 0
    for line in all_lines(path):
        if line.startswith("==="):
            title = line.strip('= "')
        command = re.search(r"\bosu_\w+.*?\s([DHM]) ([DHM])\s*$", line)
        if command:
            buffers = f"{command[1]} {command[2]}"
        if match := _OSU.search(line):
            findings.version = match[3]
            operation = _OSU_NAMES.get(match[2], match[2].removesuffix(" Latency").lower())
            is_bandwidth = "Bandwidth" in match[2]
            if not buffers and "CUDA" not in match[1] and "ROCM" not in match[1]:
                findings.doubt("the buffers are the host's, unless `D D` stands on the command line")
        elif match := _OSU_COLUMNS.match(line):
            is_bandwidth = "MB/s" in match[1] or is_bandwidth
        elif operation and (row := _OSU_ROW.match(line)):
            size, first = float(row[1]), float(row[2].split()[0])
            if row[3] == "Fail":
                failed += 1
                continue
            kind = "copy" if operation.startswith("send") else "collective"
            findings.add(
                kind,
                label=title or None,
                operation=operation,
                path=buffers or None,
                bytes=size,
                bytes_per_s=first * _MB if is_bandwidth else None,
                time_s=None if is_bandwidth else first * _US,
            )
        elif line.startswith("```"):
            operation = buffers = ""
    if failed:
        findings.doubt(f"{format_plural(failed, 'row')} failed validation and are left out")
    _doubt_transport(findings)


def _doubt_transport(findings: Findings) -> None:
    """Doubt tables of one file that state different rates for the same messages."""
    best: dict[tuple[Any, ...], float] = {}
    for values in (reading.values for reading in findings.readings if "bytes_per_s" in reading.values):
        table = (values.get("operation"), values.get("path"), values.get("label"))
        best[table] = max(best.get(table, 0.0), values["bytes_per_s"])
    for (operation, path, _), low in best.items():
        high = max(rate for table, rate in best.items() if table[:2] == (operation, path))
        if high > _OTHER_TRANSPORT * low > 0:
            findings.doubt(
                f"two tables of the same messages reach {high / _GB:.3g} and {low / _GB:.3g} GB/s: one of them used "
                "another transport"
            )


_IB_TEST = re.compile(r"(RDMA_Write|RDMA_Read|Send|Atomic)\s*(Bidirectional )?(BW|Latency) Test|"
                      r"\b(ib_\w+_(?:bw|lat))\b")  # fmt: skip
_IB_HEADING = re.compile(r"#bytes\s+#iterations\s+(.*)$")
_IB_ROW = re.compile(r"^\s*(\d{1,15})\s+(\d{1,15})((?:\s+\d+(?:\.\d*)?)+)\s*$")
_MI = 2.0**20


def read_perftest(path: Path, findings: Findings) -> None:
    """Read the tables of perftest, whose MB/sec is 2^20 bytes unless gigabits were asked for."""
    operation, both_ways, columns = "", False, ""
    read_rows: list[list[str]] = []
    findings.needed = ("link",)
    for line in all_lines(path):
        if match := _IB_TEST.search(line):
            operation = (match[1] or match[4] or operation).lower().replace("_", " ")
            both_ways = bool(match[2])
        elif match := _IB_HEADING.match(line.strip()):
            columns = match[1]
        elif "Device         :" in line or "Link type" in line:
            name, _, value = line.partition("Device" if "Device" in line else "Link type")[2].partition(":")
            findings.record(**{"network_device" if "Device" in line else "network_kind": value.strip() or name})
        elif columns and (row := _IB_ROW.match(line)):
            cells = [float(cell) for cell in row[3].split()]
            factor = 1.25e8 if "Gb/sec" in columns else _MI
            is_latency = "usec" in columns
            # t_min, t_max, t_typical; with a duration only t_avg.
            typical = (cells[2] if len(cells) > 2 and "t_typical" in columns else cells[0]) if is_latency else None
            average = cells[1] if not is_latency and len(cells) > 1 else None
            if row[0].split() in read_rows:  # the ends of a loopback print into one log
                continue
            read_rows.append(row[0].split())
            findings.add(
                "copy",
                operation=operation,
                variant="both ways" if both_ways else None,
                bytes=float(row[1]),
                time_s=None if typical is None else typical * _US,
                bytes_per_s=None if average is None else average * factor,
            )
    if both_ways:
        findings.doubt("both directions are added")
    findings.doubt("whether both ends were on one node (a loopback) is not in the rows")


def read_nvbandwidth_json(path: Path, findings: Findings) -> None:
    """Read the JSON of nvbandwidth: a matrix of rates for each case."""
    for report in read_documents(path, findings):
        results = report.get("nvbandwidth")
        if not isinstance(results, dict):
            continue
        findings.version = str(results.get("git_version") or "")
        findings.record(driver=results.get("Driver Version"), cuda=results.get("CUDA Runtime Version"))
        listed = results.get("GPU Device list")
        if isinstance(listed, list) and listed:
            findings.record(gpu=str(listed[0]).partition(":")[2].partition("(")[0].strip() or str(listed[0]))
        if results.get("error"):
            findings.doubt(f"the run failed: {results['error']}")
        cases = results.get("testcases")
        statuses: dict[str, int] = {}
        for case in cases if isinstance(cases, list) else []:
            status = str(dig(case, "status") or "")
            statuses[status] = statuses.get(status, 0) + 1
            matrix = dig(case, "bandwidth_matrix")
            if isinstance(matrix, list):
                _add_matrix(str(case.get("name")), matrix, findings)
        waived = {name: count for name, count in statuses.items() if name not in ("Passed", "")}
        for name, count in waived.items():
            findings.doubt(f"{count} cases were not measured ({name})")
    findings.doubt("the sum of a matrix is not a rate: the cells were measured one after another")


def _add_matrix(name: str, matrix: list[Any], findings: Findings) -> None:
    """Add the cells of a matrix; the ones of a latency are nanoseconds."""
    is_latency = "latency" in name
    for row_number, row in enumerate(matrix):
        for column, cell in enumerate(row if isinstance(row, list) else []):
            number = to_number(cell)
            if number is None:
                continue
            findings.add(
                "copy",
                operation=name,
                path=f"{row_number} to {column}",
                bytes_per_s=None if is_latency else number * _GB,
                time_s=number * 1e-9 if is_latency else None,
            )


_NVB_RUNNING = re.compile(r"^Running (\w+)\.")
_NVB_ROW = re.compile(r"^\s*(\d{1,15})((?:\s+(?:\d+(?:\.\d*)?|N/A))+)\s*$")
_NVB_DEVICE = re.compile(r"^Device \d+: (.+?) \(")
_NVB_FACT = re.compile(r"^(nvbandwidth Version|Driver Version|CUDA Runtime Version): ?(\S+)")


def read_nvbandwidth_text(path: Path, findings: Findings) -> None:
    """Read the matrices that nvbandwidth prints."""
    name, rows, waived = "", list[list[str]](), 0
    for line in all_lines(path):
        if match := _NVB_FACT.match(line):
            if match[1] == "nvbandwidth Version":
                findings.version = match[2]
            else:
                findings.record(**{"driver" if "Driver" in match[1] else "cuda": match[2]})
        elif match := _NVB_DEVICE.match(line):
            findings.record(gpu=match[1])
        elif match := _NVB_RUNNING.match(line):
            name, rows = match[1], []
        elif line.startswith("SUM ") and name:
            _add_matrix(name, rows, findings)
            name = ""
        elif name and (row := _NVB_ROW.match(line)) and ("." in line or "N/A" in line):
            rows.append(row[2].split())
        waived += line.startswith("Waived")
    if waived:
        findings.doubt(f"{waived} cases were not measured (Waived)")
    findings.doubt("the sum of a matrix is not a rate: the cells were measured one after another")


_STREAM = re.compile(r"^(?:STREAM_)?(COPY|SCALE|ADD|TRIAD|Copy|Scale|Add|Triad|Mul|Dot)"
                     r"(?:_(\w+?)_gpu_(\d{1,15})_buffer_(\d{1,15})_block_(\d{1,15}))?"
                     r":?\s+(\d+(?:\.\d*)?)(?:\s+(\d+(?:\.\d*)?))?")  # fmt: skip
_STREAM_DEVICE = re.compile(r'^Device (\d{1,15}): "(.+?)".*= (\d+(?:\.\d*)?) GB/s PEAK')


def read_stream(path: Path, findings: Findings) -> None:
    """Read STREAM on a GPU (SuperBench, GB/s with its share of the peak) or of a CPU (MB/s)."""
    peak = None
    for line in all_lines(path):
        if match := _STREAM_DEVICE.match(line):
            findings.record(gpu=match[2])
            peak = float(match[3])
        elif match := _STREAM.match(line):
            is_gpu = match[3] is not None
            findings.add(
                "copy",
                operation=match[1].lower(),
                device=match[3],
                precision=match[2],
                variant=f"blocks of {match[5]}" if match[5] else None,
                bytes=to_number(match[4]),
                bytes_per_s=float(match[6]) * (_GB if is_gpu else _MB),
                of_peak=float(match[7]) / 100 if is_gpu and match[7] else None,
            )
    if peak:
        findings.record(peak_bytes_per_s=peak * _GB)


_COPY = re.compile(
    r"^((?:cpu|gpu\d+|gpu_all)_(?:to|and)_(?:cpu|gpu\d+|gpu_all)(?:_(?:read|write))?)"
    r"_by_(sm|dma)(?:_under_(numa\d+))? (\d+(?:\.\d*)?)$",
    re.MULTILINE,
)


def read_copies(path: Path, findings: Findings) -> None:
    """Read SuperBench's copies between host and devices, in GB/s."""
    for line in all_lines(path):
        match = _COPY.match(line)
        if match:
            findings.add("copy", operation=f"by {match[2]}", path=match[1].replace("_", " "), variant=match[3],
                         bytes_per_s=float(match[4]) * _GB)  # fmt: skip
    findings.doubt("`and` means both directions at once, which are added; the size of the copies is not in the file")


_CUDA_LINE = re.compile(r"^bandwidthTest-(\w+)-(\w+), Bandwidth = (\d+(?:\.\d*)?) ([MG])B/s, .*Size = (\d{1,15}) bytes")
_CUDA_TITLE = re.compile(r"^\s*(Host to Device|Device to Host|Device to Device) Bandwidth, \d+ Device")
_CUDA_HEADING = re.compile(r"Transfer Size \(Bytes\)\s+Bandwidth\(([MG])B/s\)")
_CUDA_ROW = re.compile(r"^\s*(\d{1,15})\s+(\d+(?:\.\d*)?)\s*$")
_CUDA_DEVICE = re.compile(r"^\s*Device \d+: (\S.*)$")
_CUDA_PATHS = {
    "H2D": "host to device", "D2H": "device to host", "D2D": "device to device", "Host to Device": "host to device",
    "Device to Host": "device to host", "Device to Device": "device to device",
}  # fmt: skip
_DECIMAL = {"M": _MB, "G": _GB}


def read_cuda_bandwidth(path: Path, findings: Findings) -> None:
    """Read the `bandwidthTest` of CUDA's samples, as table or as lines of CSV."""
    where, unit = "", "M"
    for line in all_lines(path):
        if match := _CUDA_LINE.match(line):
            findings.add("copy", path=_CUDA_PATHS.get(match[1], match[1]), variant=match[2].lower(),
                         bytes=float(match[5]), bytes_per_s=float(match[3]) * _DECIMAL[match[4]])  # fmt: skip
        elif match := _CUDA_DEVICE.match(line):
            findings.record(gpu=match[1])
        elif match := _CUDA_TITLE.match(line):
            where = _CUDA_PATHS[match[1]]
        elif match := _CUDA_HEADING.search(line):
            unit = match[1]
        elif where and (match := _CUDA_ROW.match(line)):
            findings.add("copy", path=where, bytes=float(match[1]), bytes_per_s=float(match[2]) * _DECIMAL[unit])
    findings.doubt("a copy within the device counts reading and writing")


_HIP_ROW = re.compile(
    r"^\s*(H2D|D2H|D2D|Bidir)_(?:Bandwidth|Time)_?(\w+)\s+\+?(\d{1,12})(By|kB|MB)\s+(GB/sec|ms)\s+(\d+(?:\.\d*)?)",
    re.MULTILINE,
)
_HIP_SIZES = {"By": 1.0, "kB": 2.0**10, "MB": 2.0**20}
_HIP_DEVICE = re.compile(r"^Device:(.+?) Mem=")


def read_hip_bandwidth(path: Path, findings: Findings) -> None:
    """Read hipBusBandwidth, of which the median is taken; its kB are 2^10 bytes."""
    for line in all_lines(path):
        if match := _HIP_DEVICE.match(line):
            findings.record(gpu=match[1])
        elif match := _HIP_ROW.match(line):
            number = float(match[6])
            is_time = match[5] == "ms"
            findings.add("copy", path=_CUDA_PATHS.get(match[1], "both ways"), variant=match[2],
                         bytes=float(match[3]) * _HIP_SIZES[match[4]], time_s=number / 1000 if is_time else None,
                         bytes_per_s=None if is_time else number * _GB or None)  # fmt: skip


_DEEPEP = re.compile(r"\[tuning\] Best (dispatch|combine)(?: \((\w+)\))?: SMs (\d{1,15}), (.*)$")
_DEEPEP_TIME = re.compile(r"(?:t: (\d+(?:\.\d*)?)|: (\d+(?:\.\d*)?) \+ (\d+(?:\.\d*)?)) us")
_DEEPEP_RATE = re.compile(r"(\d+(?:\.\d*)?) GB/s \((NVL|RDMA)\)")
_DEEPEP_LOW = re.compile(r"(Dispatch|Combine) bandwidth: (\d+(?:\.\d*)?) GB/s, avg_t=(\d+(?:\.\d*)?) us")
_DEEPEP_CONFIG = re.compile(
    r"\[config\] num_tokens=(\d{1,15}), hidden=(\d{1,15}), (?:num_topk_groups=\d+, )?num_topk=(\d{1,15})"
)


def read_deepep(path: Path, findings: Findings) -> None:
    """Read what the tests of DeepEP print of dispatching and combining tokens of experts."""
    tokens = None
    for line in find_lines(path, ("[tuning] Best", "[config]", " bandwidth: ")):
        if match := _DEEPEP_CONFIG.search(line):
            tokens = float(match[1])
            findings.record(tokens=tokens, hidden_size=int(match[2]), experts_per_token=int(match[3]))
        elif match := _DEEPEP.search(line):
            rates = {where: float(rate) * _GB for rate, where in _DEEPEP_RATE.findall(match[4])}
            time = _DEEPEP_TIME.search(match[4])
            time_us = None if time is None else float(time[1]) if time[1] else float(time[2]) + float(time[3])
            findings.add("collective", operation=match[1], precision=match[2], variant=f"{match[3]} multiprocessors",
                         tokens=tokens, time_s=None if time_us is None else time_us * _US,
                         bus_bytes_per_s=rates.get("NVL"), bytes_per_s=rates.get("RDMA"))  # fmt: skip
            if "RDMA" in rates:
                findings.doubt(
                    "the RDMA rate also counts tokens for the own node: on 2 nodes the wire carries half of it"
                )
        else:
            for name, rate, average in _DEEPEP_LOW.findall(line):
                findings.add("collective", operation=name.lower(), variant="low latency", tokens=tokens,
                             time_s=float(average) * _US, bytes_per_s=float(rate) * _GB)  # fmt: skip


FORMATS = (
    ResultFormat("osu", "OSU micro-benchmarks", "the OSU micro-benchmarks", read_osu, sign=_OSU, markers=("# OSU ",)),
    ResultFormat(
        "perftest", "perftest", "`ib_write_bw` and the other tests of perftest", read_perftest,
        sign=re.compile(r"#bytes\s+#iterations\s+(?:BW peak|t_min)"), markers=("#iterations",),
    ),
    ResultFormat(
        "nvbandwidth-json", "nvbandwidth", "nvbandwidth, printed or as JSON", read_nvbandwidth_json,
        keys=("nvbandwidth",),
    ),
    ResultFormat(
        "nvbandwidth", "nvbandwidth", "", read_nvbandwidth_text,
        sign=re.compile(r"^nvbandwidth Version|^SUM \w+_memcpy_\w+ \d+(?:\.\d*)?", re.MULTILINE),
    ),
    ResultFormat(
        "stream", "STREAM", "STREAM of GPUs and CPUs", read_stream,
        sign=re.compile(r"^STREAM_COPY_\w+\s+\d+(?:\.\d*)?|^Triad:?\s+\d+(?:\.\d*)? +\d+(?:\.\d*)?", re.MULTILINE),
    ),
    ResultFormat("gpu-copy", "SuperBench gpu_copy", "SuperBench's copies between devices", read_copies, sign=_COPY),
    ResultFormat(
        "cuda-bandwidth", "CUDA's bandwidthTest", "CUDA's bandwidthTest", read_cuda_bandwidth,
        sign=re.compile(f"{_CUDA_LINE.pattern}|{_CUDA_HEADING.pattern}", re.MULTILINE),
    ),
    ResultFormat("hip-bandwidth", "hipBusBandwidth", "hipBusBandwidth", read_hip_bandwidth, sign=_HIP_ROW),
    ResultFormat(
        "deepep", "DeepEP", "the tests of DeepEP", read_deepep,
        sign=re.compile(r"\[tuning\] Best (?:dispatch|combine)|Dispatch bandwidth: \d+(?:\.\d*)? GB/s, avg_t="),
        markers=("[tuning] Best", "Dispatch bandwidth: "),
    ),
)  # fmt: skip
