"""Times of kernels: cutlass_profiler, hipblaslt-bench, nvbench, Triton's tables, FlashAttention, ggml's operators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..text import format_plural
from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .text import all_lines, find_lines, ratio, read_table, scaled, split_csv, to_number

_CUTLASS = re.compile(r"^\ufeff?(?:[\w-]+,)*Problem,Provider,OperationKind,Operation,", re.MULTILINE)
_UNUSABLE = ("failed", "incorrect", "error")
_MS, _US, _GFLOP, _TFLOP, _GIB = 1e-3, 1e-6, 1e9, 1e12, 2.0**30


def read_cutlass(path: Path, findings: Findings) -> None:
    """Read a table of cutlass_profiler; its GB/s are 2^30 bytes, and are computed anew from the bytes."""
    failed = 0
    for row in read_table(path, _CUTLASS):
        seconds = scaled(row.get("Runtime"), _MS)
        disposition = (row.get("Disposition") or "").lower()
        m, n, k = (to_number(row.get(name)) for name in "mnk")
        failed += disposition in _UNUSABLE
        doubts = (f"the result is {disposition}",) if disposition in _UNUSABLE else ()
        sizes = [f"{size:g}" for size in (m, n, k) if size is not None]
        shape = "x".join(sizes) if sizes else None
        count = to_number(row.get("batch_count"))
        moved, flops = to_number(row.get("Bytes")), to_number(row.get("Flops"))
        findings.add(
            "kernel",
            doubts,
            label=row.get("Provider"),
            operation=row.get("Operation"),
            shape=shape,
            batch_size=count if count and count > 1 else None,
            precision=(row.get("A") or "").partition(":")[0] or None,
            time_s=seconds,
            flops_per_s=ratio(flops, seconds) or scaled(row.get("GFLOPs"), _GFLOP),
            bytes_per_s=ratio(moved, seconds),
            moved_bytes=moved,
            flops=flops,
        )
    if failed:
        findings.doubt(f"{format_plural(failed, 'row')} failed or gave wrong results")
    findings.doubt(
        "one row for each kernel: the fastest of a problem counts; the GPU is not recorded, and its L2 is warm"
    )


_BLAS = re.compile(r"^(?:\[\d+\]:?)?\s*(transA,transB,.*\bus\b.*)$", re.MULTILINE)


def read_blas(path: Path, findings: Findings) -> None:
    """Read hipblaslt-bench and rocblas-bench: a heading and a row for each product, by the names of its columns."""
    names: list[str] = []
    for line in all_lines(path):
        heading = _BLAS.match(line)
        if heading:
            names = split_csv(heading[1])
            continue
        cells = split_csv(line) if names else []
        if len(cells) != len(names) or not names:
            continue
        row = dict(zip(names, cells, strict=True))
        seconds = scaled(row.get("us"), _US)
        sizes = [row.get(name, row.get(name.upper(), "")) for name in ("m", "n", "k")]
        if seconds is None or not all(sizes):
            continue
        batch = to_number(row.get("batch_count"))
        gflops = next((value for name, value in row.items() if name.lower().endswith("gflops")), None)
        # The newest of these columns counts powers of 10, as does the one of rocblas-bench.
        rate = next((value for name, value in row.items() if name.lower().endswith("gb/s")), None)
        findings.add(
            "kernel",
            operation=f"gemm {row.get('transA', '')}{row.get('transB', '')}",
            shape="x".join(sizes),
            batch_size=batch if batch and batch > 1 else None,
            precision=(row.get("a_type") or row.get("d_type") or row.get("type") or "").removesuffix("_r"),
            time_s=seconds,
            flops_per_s=scaled(gflops, _GFLOP),
            bytes_per_s=scaled(rate, 1e9),
        )
    findings.doubt("the time is the mean of the hot iterations; the GPU is not recorded")


_NVBENCH = {
    "cold_s": "nv/cold/time/gpu/mean", "hot_s": "nv/batch/time/gpu/mean", "host_s": "nv/cold/time/cpu/mean",
    "samples": "nv/cold/sample_size", "bytes_per_s": "nv/cold/bw/global/bytes_per_second",
}  # fmt: skip


def read_nvbench(path: Path, findings: Findings) -> None:
    """Read the JSON of nvbench; its numbers are texts, in seconds and bytes per second."""
    for document in read_documents(path, findings):
        findings.version = str(dig(document, "meta", "version", "nvbench", "string") or "")
        devices = document.get("devices")
        names: dict[str, str] = {}
        for device in devices if isinstance(devices, list) else []:
            names[str(dig(device, "id"))] = str(dig(device, "name") or "")
        findings.record(gpu=next(iter(names.values()), None))
        benchmarks = document.get("benchmarks")
        for benchmark in benchmarks if isinstance(benchmarks, list) else []:
            states = dig(benchmark, "states")
            for state in states if isinstance(states, list) else []:
                if isinstance(state, dict) and not state.get("is_skipped"):
                    _add_state(str(benchmark.get("name")), state, names, findings)
    findings.doubt("cold times are taken with an empty L2, back-to-back ones with a warm one")


def _add_state(name: str, state: dict[str, Any], names: dict[str, str], findings: Findings) -> None:
    summaries = state.get("summaries")
    values: dict[str, float | None] = {}
    for summary in summaries if isinstance(summaries, list) else []:
        data = dig(summary, "data")
        first = data[0] if isinstance(data, list) and data else None
        values[str(dig(summary, "tag"))] = to_number(dig(first, "value"))
    axes = state.get("axis_values")
    shape = ", ".join(f"{dig(axis, 'name')}={dig(axis, 'value')}" for axis in axes) if isinstance(axes, list) else None
    figures: dict[str, Any] = {figure: values.get(tag) for figure, tag in _NVBENCH.items()}
    findings.add("kernel", operation=name, gpu=names.get(str(state.get("device"))), shape=shape or None,
                 time_s=figures["cold_s"], **figures)  # fmt: skip


_TRITON = re.compile(
    r"^\ufeff?(?:[A-Za-z_]\w*,)+[A-Za-z_][\w .()\-\[\]/]*$\n(?:\d+\.\d{6},)+[\d.naif]+\s*$", re.MULTILINE
)
_SIZES = {
    "m",
    "n",
    "k",
    "b",
    "z",
    "h",
    "size",
    "seq_len",
    "seqlen",
    "n_ctx",
    "batch",
    "d",
    "d_head",
    "dim",
    "x",
    "vocab_size",
}


def read_triton(path: Path, findings: Findings) -> None:
    """Read a table of Triton's `perf_report`: sizes, and a column for each implementation in the author's unit."""
    names: list[str] = []
    unit_unknown = False
    for line in all_lines(path):
        cells = split_csv(line)
        if not names:
            names = cells
            continue
        if len(cells) != len(names):
            continue
        sizes = [name for name in names if name.lower() in _SIZES] or names[:1]
        shape = "x".join(f"{to_number(cell) or 0:g}" for name, cell in zip(names, cells, strict=True) if name in sizes)
        for name, cell in zip(names, cells, strict=True):
            number = to_number(cell)
            if name in sizes or number is None:
                continue
            is_product = len(sizes) >= 3 or "matmul" in path.name or "gemm" in path.name or "attention" in path.name
            unit_unknown = unit_unknown or not is_product
            findings.add(
                "kernel",
                label=name,
                shape=shape,
                operation=path.stem.replace("-performance", ""),
                flops_per_s=number * _TFLOP if is_product else None,
                bytes_per_s=None if is_product else number * 1e9,
            )
    if unit_unknown:
        findings.doubt("the unit is not in the file: GB/s are assumed, as the sizes are not those of a product")
    else:
        findings.doubt("the unit is not in the file: TFLOP/s are assumed, as for products")
    findings.doubt("the values are medians with an empty L2; the GPU is not recorded")


_ATTENTION_CASE = re.compile(r"### (causal=\w+, headdim=\d+, batch_size=(\d{1,15}), seqlen=(\d{1,15})) ###")
_RATE = r"(\d+(?:\.\d*)?|nan) TFLOPs/s"
_ATTENTION = re.compile(rf"^(\S+) fwd: {_RATE}, bwd: {_RATE}, fwd \+ bwd: {_RATE}", re.MULTILINE)


def read_attention(path: Path, findings: Findings) -> None:
    """Read what FlashAttention's and cuDNN's benchmarks print for each implementation."""
    case = ""
    for line in find_lines(path, ("###", "fwd: ")):
        if match := _ATTENTION_CASE.search(line):
            case = match[1]
        elif match := _ATTENTION.match(line):
            for phase, text in zip(("forward", "backward", "forward and backward"), match.groups()[1:], strict=True):
                findings.add("kernel", label=match[1], operation="attention", phase=phase, shape=case,
                             flops_per_s=scaled(text, _TFLOP))  # fmt: skip
    findings.doubt("FLOPs of causal attention are counted as half, and the backward pass as 2.5 times the forward one")


_OPERATOR = re.compile(
    r"^\s*(?P<operation>[A-Z]\w{1,40})\((?P<options>.{0,2000}?)\):\s+\d{1,12} runs -\s+(?P<us>[\d.]{1,20}) us/run -\s+"
    r"(?:(?P<flops>[\d.]{1,20}) (?P<unit>[kKMGT]?FLOP)/run|(?:\d{1,12} kB/run -\s+)?(?P<gb_per_s>[\d.]{1,20}) GB/s)",
    re.MULTILINE,
)
_OPERATOR_START = re.compile(r"^\s*[A-Z][A-Z0-9_]{1,40}\(\w+=(?!.*\): +(?:not supported|OK|FAIL))")
_OPERATOR_DEVICE = re.compile(r"^\s*Device description: (?P<device>.{1,200})")
_OPERATOR_UNITS = {
    "FLOP": 1.0,
    "kFLOP": 1e3,
    "KFLOP": 1e3,
    "MFLOP": 1e6,
    "GFLOP": _GFLOP,
    "TFLOP": _TFLOP,
    "kB": 2.0**10,
}
_OPTION = re.compile(r"(?P<name>\w+)=(?P<value>\[[^\]]*\]|[^,]*)")


_USUAL_OPTIONS = {
    "type_b": "f32", "bs": "[1,1]", "nr": "[1,1]", "per": "[0,1,2,3]", "v": "0", "k_v": "0", "o": "1", "b": "0",
}  # fmt: skip
"""Options of products whose values say nothing: one matrix, contiguous, with numbers of 32 bits."""
_OF_SHAPE = ("m", "n", "k", "type_a")


def _variant(options: dict[str, str]) -> str | None:
    """Return the options of a product beside its sizes and format that are not the usual ones; None if all are."""
    others = [f"{name}={value}" for name, value in options.items()
              if name not in _OF_SHAPE and _USUAL_OPTIONS.get(name) != value]  # fmt: skip
    return ", ".join(others) or None


def read_ggml_operators(path: Path, findings: Findings) -> None:
    """Read what ggml's ``test-backend-ops perf`` prints: one operator in a line, with its FLOPs or its bandwidth.

    Its GB are 2^30 bytes (``eval_perf`` divides by 1024 three times). The kB beside a bandwidth are left out, because
    they are counted in another way than it.
    """
    device = None
    incomplete = 0
    for line in find_lines(path, ("Device description: ", "(")):
        if described := _OPERATOR_DEVICE.match(line):
            device = described["device"].strip()
            findings.record(gpu=device)
        elif match := _OPERATOR.match(line):
            options = {option["name"]: option["value"] for option in _OPTION.finditer(match["options"])}
            seconds = scaled(match["us"], _US)
            flops = scaled(match["flops"], _OPERATOR_UNITS[match["unit"]]) if match["flops"] else None
            sizes = [options[name] for name in "mnk" if name in options]
            findings.add(
                "kernel",
                operation=match["operation"],
                gpu=device,
                precision=options.get("type_a") or options.get("type") or options.get("type_KV"),
                shape="x".join(sizes) if len(sizes) == 3 else match["options"],
                variant=_variant(options) if len(sizes) == 3 else None,
                time_s=seconds,
                flops=flops,
                flops_per_s=ratio(flops, seconds),
                bytes_per_s=scaled(match["gb_per_s"], _GIB),
            )
            if match["gb_per_s"]:
                findings.doubt("the GB/s of this tool are 2^30 bytes/s, and are shown as 10^9 bytes/s, 7.4% more")
        elif _OPERATOR_START.match(line):
            incomplete += 1
    if incomplete:
        rows = "1 row is" if incomplete == 1 else f"{incomplete} rows are"
        findings.doubt(f"{rows} incomplete and left out: the file may be cut")
    findings.doubt("runs follow one another on the same tensors, so that small ones are in a cache")


FORMATS = (
    ResultFormat("cutlass", "cutlass_profiler", "the CSV of cutlass_profiler", read_cutlass, sign=_CUTLASS),
    ResultFormat("hipblaslt", "hipblaslt-bench", "hipblaslt-bench and rocblas-bench", read_blas, sign=_BLAS),
    ResultFormat(
        "nvbench", "nvbench", "the JSON of nvbench", read_nvbench, keys=("benchmarks", "states", "summaries"),
    ),
    ResultFormat(
        "flash-attention", "FlashAttention's benchmark", "the benchmarks of FlashAttention and cuDNN", read_attention,
        sign=_ATTENTION, markers=("fwd: ",),
    ),
    ResultFormat(
        "ggml-operators", "ggml's test-backend-ops", "what `test-backend-ops perf` of llama.cpp prints",
        read_ggml_operators, sign=_OPERATOR, markers=(" us/run - ",),
    ),
    ResultFormat("triton", "Triton's perf_report", "the CSV of Triton's `perf_report`", read_triton, sign=_TRITON),
)  # fmt: skip
