"""llama-bench in all its forms: JSON, lines of JSON, CSV, SQL and the table that it prints; and llama-batched-bench."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..text import format_plural
from ..units import format_si
from .findings import Findings, ResultFormat
from .json_text import read_documents
from .text import all_lines, find_lines, ratio, read_table, scaled, split_csv, to_number

_NS = 1e-9
_BACKENDS = ("cuda", "opencl", "vulkan", "kompute", "metal", "sycl", "gpu_blas", "blas")
_GPU_BACKENDS = ("CUDA", "ROCm", "Vulkan", "SYCL", "HIP", "MUSA", "CANN")
_NAMELESS_BUILD = 3500  # builds before left the name of a Vulkan or Metal device empty
_LEAST_GENERATED = 16

_FACTS = {
    "gpu": "gpu_info", "cpu": "cpu_info", "backend": "backends", "batch_tokens": "n_batch", "chunk_tokens": "n_ubatch",
    "threads": "n_threads", "kv_cache": "type_k", "blocks_on_gpu": "n_gpu_layers", "experts_on_cpu": "n_cpu_moe",
    "split_mode": "split_mode", "flash_attention": "flash_attn",
}  # fmt: skip
_PLACED = re.compile(r"ggml_(?:cuda|vulkan|metal|sycl)\w*: ?\d+ = (.+?)(?: \([\w -]+\))? \||^\s*Device \d+: (.+?), ")
_FOUND = re.compile(r"ggml_(cuda_init|vulkan|metal|sycl)\S* ?.*(?:found|Found|using device|picking default device)")


def read_json(path: Path, findings: Findings) -> None:
    """Read the array of `-o json`, or the lines of `-o jsonl`."""
    _add_rows(read_documents(path, findings), findings)


def read_csv(path: Path, findings: Findings) -> None:
    """Read the table of `-o csv`."""
    _add_rows(read_table(path, re.compile(r"build_commit,build_number")), findings)


_INSERTED = re.compile(r"INSERT INTO (?:llama_bench|test) \(([^)]*)\) VALUES \((.*)\);?\s*$")


def read_sql(path: Path, findings: Findings) -> None:
    """Read the statements of `-o sql`, without running them."""
    _add_rows(_inserted_rows(path), findings)


def _inserted_rows(path: Path) -> Iterator[dict[str, str]]:
    for line in find_lines(path, ("INSERT INTO",)):
        match = _INSERTED.search(line)
        if match is None:
            continue
        names = [name.strip() for name in match[1].split(",")]
        values = [value.strip(" '") for value in split_csv(match[2].replace("'", '"'))]
        yield dict(zip(names, values, strict=False))


def _add_rows(rows: Any, findings: Findings) -> None:
    """Add the tests; one with prompt and generation mixes both rates."""
    partly_on_cpu = set()
    for row in rows:
        seconds = scaled(row.get("avg_ns"), _NS)
        tokens, generated = to_number(row.get("n_prompt")) or 0, to_number(row.get("n_gen")) or 0
        if seconds is None or not tokens + generated:
            continue
        findings.version = findings.version or f"{row.get('build_number')} ({row.get('build_commit')})"
        backend = _backend(row)
        name = Path(str(row.get("model_filename") or "").replace("\\", "/")).name
        findings.record(engine="llama.cpp", network=name, backend=backend)
        findings.record(**{fact: row.get(key) for fact, key in _FACTS.items()})
        doubts = _doubts_of(row, backend, generated)
        if to_number(row.get("n_cpu_moe")):
            partly_on_cpu.add(f"{row['n_cpu_moe']} blocks keep their experts on the CPU")
        depth = to_number(row.get("n_depth"))
        shared = {
            "network": name,
            "gpu": row.get("gpu_info") or None,
            "depth": depth or None,
            "weight_bytes": to_number(row.get("model_size")),
            "parameters": to_number(row.get("model_n_params")),
            "tokens_per_s": to_number(row.get("avg_ts")) or ratio(tokens + generated, seconds),
            "time_s": seconds,
            "batch_size": 1,
        }
        doubts += doubts_of_rate(tokens + generated, seconds, to_number(row.get("avg_ts")))
        if generated and tokens:
            findings.add("decode", (*doubts, "the rate mixes a prompt and what is generated after it"),
                         variant="prompt and generation", tokens=tokens, generated=generated, **shared)  # fmt: skip
        elif generated:
            findings.add("decode", doubts, generated=generated, tpot_s=seconds / generated, **shared)
        else:
            findings.add("prompt", doubts, tokens=tokens, **shared)
    for sentence in sorted(partly_on_cpu):
        findings.doubt(sentence)


_TOLERATED_RATE = 0.15  # a mean of rates is above the rate of the mean time, by the square of their deviation


def doubts_of_rate(tokens: float, seconds: float | None, stated_per_s: float | None) -> tuple[str, ...]:
    """Return a sentence if tokens in a time are another rate than the one that is stated."""
    computed = ratio(tokens, seconds)
    if not computed or not stated_per_s or abs(computed / stated_per_s - 1) <= _TOLERATED_RATE:
        return ()
    return (
        f"{tokens:,g} tokens in {format_si(seconds, 's')} are {computed:,.4g} tokens/s, and {stated_per_s:,.4g} "
        "tokens/s are stated: one of them is wrong",
    )


def _backend(row: dict[str, Any]) -> str:
    """Return the backend, also of builds that wrote a column for each."""
    named = row.get("backends") or row.get("backend")
    if named:
        return str(named)
    on = [name for name in _BACKENDS if str(row.get(name)).lower() in ("true", "1")]
    return on[0].upper() if on else "CPU"


def _doubts_of(row: dict[str, Any], backend: str, generated: float) -> tuple[str, ...]:
    doubts = []
    build = to_number(row.get("build_number")) or 0
    names_gpu = any(name.lower() in backend.lower() for name in _GPU_BACKENDS)
    if names_gpu and not row.get("gpu_info") and to_number(row.get("n_gpu_layers")) != 0:
        is_old = build < _NAMELESS_BUILD and "CUDA" not in backend.upper()
        doubts.append(
            f"the backend is {backend} and no GPU is named: old builds leave the name out, so say which it was"
            if is_old
            else f"the backend is {backend} and no GPU is named: it did not start, and the CPU computed"
        )
    if "," in str(row.get("gpu_info") or ""):
        doubts.append("all GPUs that are visible are named; split_mode and main_gpu say which were used")
    if 0 < generated < _LEAST_GENERATED:
        doubts.append(f"only {format_plural(round(generated), 'generated token')}: too few for a rate")
    return tuple(doubts)


_TABLE = re.compile(r"^\| *model +\|.*\bt/s *\|", re.MULTILINE)
_TEST = re.compile(r"^(?:pp(\d{1,15}))?\+?(?:tg(\d{1,15}))?(?: @ d(\d{1,15}))?$")
_SIZE = re.compile(r"(\d+(?:\.\d*)?) (GiB|MiB|B|M)")
_FACTORS = {"GiB": 2.0**30, "MiB": 2.0**20, "B": 1e9, "M": 1e6}
_BUILD = re.compile(r"^build: (\w+) \((\d{1,15})\)")


def read_markdown(path: Path, findings: Findings) -> None:
    """Read the table that llama-bench prints, with the lines of ggml above it that name the GPUs."""
    names: list[str] = []
    gpus: list[str] = []
    label = ""
    findings.record(engine="llama.cpp")
    for line in all_lines(path):
        placed = _PLACED.search(line)
        if _FOUND.search(line):
            gpus = []
        if placed:
            gpus.append((placed[1] or placed[2]).strip())
            findings.record(gpu=gpus[-1])
        elif line.startswith("###"):
            label = line.strip("# ")
        elif build := _BUILD.match(line):
            findings.version = findings.version or f"{build[2]} ({build[1]})"
        elif _TABLE.match(line):
            names = [cell.strip() for cell in line.strip("| ").split("|")]
        elif line.startswith("|") and names and not line.startswith("| -"):
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            if len(cells) == len(names):
                _add_printed(dict(zip(names, cells, strict=True)), gpus, label, findings)


def _add_printed(row: dict[str, str], gpus: list[str], label: str, findings: Findings) -> None:
    test = _TEST.match(row.get("test", ""))
    rate = to_number(row.get("t/s", "").partition("±")[0])
    if test is None or not rate or not (test[1] or test[2]):
        return
    findings.guess("the type that llama-bench prints", network=row.get("model"))
    findings.record(backend=row.get("backend"), blocks_on_gpu=row.get("ngl"), flash_attention=row.get("fa"))
    tokens, generated, depth = (to_number(text) or 0 for text in test.groups())
    doubts = []
    backend = row.get("backend", "")
    if not gpus and any(name in backend for name in _GPU_BACKENDS):
        doubts.append("the lines above the table that name the GPU are missing")
    if len(gpus) > 1:
        doubts.append(f"{len(gpus)} GPUs were found; the table does not say which were used")
    shared = {
        "label": label or None,
        "network": row.get("model"),
        "gpu": gpus[0] if gpus else None,
        "depth": depth or None,
        "batch_size": 1,
        "weight_bytes": _size(row.get("size")),
        "parameters": _size(row.get("params")),
        "tokens_per_s": rate,
        "time_s": (tokens + generated) / rate,
    }
    if tokens and generated:
        doubts.append("the rate mixes a prompt and what is generated after it")
        findings.add("decode", tuple(doubts), variant="prompt and generation", tokens=tokens, generated=generated,
                     **shared)  # fmt: skip
    elif generated:
        findings.add("decode", tuple(doubts), generated=generated, tpot_s=1 / rate, **shared)
    else:
        findings.add("prompt", tuple(doubts), tokens=tokens, **shared)


def _size(text: str | None) -> float | None:
    match = _SIZE.match(text or "")
    return float(match[1]) * _FACTORS[match[2]] if match else None


_BATCHED = re.compile(r"^\| *PP \| *TG \| *B \| *N_KV \|", re.MULTILINE)


def read_batched(path: Path, findings: Findings) -> None:
    """Read the table of llama-batched-bench: prompts and generation of several sequences at once."""
    names: list[str] = []
    findings.record(engine="llama.cpp")
    for line in all_lines(path):
        if _BATCHED.match(line):
            names = [cell.strip() for cell in line.strip("| ").split("|")]
        elif names and line.startswith("|"):
            row = dict(zip(names, (to_number(cell) for cell in line.strip("| ").split("|")), strict=False))
            prompt, generated, batch = row.get("PP"), row.get("TG"), row.get("B")
            if prompt is None or generated is None or not batch:
                continue
            prompt_rate, prompt_s = row.get("S_PP t/s"), row.get("T_PP s")
            doubts = doubts_of_rate(prompt * batch, prompt_s, prompt_rate)
            if not doubts_of_rate(prompt, prompt_s, prompt_rate):  # a shared prompt is computed once for all sequences
                doubts = ()
            findings.add("prompt", doubts, batch_size=batch, tokens=prompt, time_s=prompt_s, tokens_per_s=prompt_rate)
            rate = row.get("S_TG t/s")
            time_s = row.get("T_TG s")
            doubts = doubts_of_rate(generated * batch, time_s, rate)
            findings.add("decode", doubts, batch_size=batch, depth=prompt, generated=generated, time_s=time_s,
                         tokens_per_s=rate, tpot_s=ratio(batch, rate))  # fmt: skip


_METADATA = re.compile(r"^([a-z_]+): (.+)$")


def read_campaign(path: Path, findings: Findings) -> None:
    """Read the description of a campaign of llama-bench runs; it holds no measurement."""
    fact_names = {
        "backend": "backend",
        "flash_attention": "flash_attention",
        "kernel": "kernel",
        "llama_build": "build",
    }
    for line in all_lines(path):
        match = _METADATA.match(line)
        if match and match[1] in fact_names:
            findings.record(**{fact_names[match[1]]: match[2]})
    findings.record(engine="llama.cpp")
    findings.doubt("a description of runs, without measurements: give the files that llama-bench wrote beside it")


FORMATS = (
    ResultFormat(
        "llama-bench", "llama-bench", "llama-bench's `-o json`, jsonl, csv, sql and md", read_json,
        keys=("build_commit", "n_prompt", "n_gen", "avg_ns"),
    ),
    ResultFormat(
        "llama-bench-csv", "llama-bench", "", read_csv, sign=re.compile(r"^\"?build_commit\"?,\"?build_number", re.M),
    ),
    ResultFormat(
        "llama-bench-sql", "llama-bench", "", read_sql,
        sign=re.compile(r"(?:CREATE TABLE IF NOT EXISTS|INSERT INTO) (?:llama_bench|test) \("),
    ),
    ResultFormat("llama-bench-md", "llama-bench", "", read_markdown, sign=_TABLE, markers=("t/s |",)),
    ResultFormat(
        "llama-batched-bench", "llama-batched-bench", "the table of llama-batched-bench", read_batched,
        sign=_BATCHED, markers=("N_KV |",),
    ),
    ResultFormat(
        "llama-bench-campaign", "llama-bench", "", read_campaign,
        sign=re.compile(r"^llama_build: (?s:.*)^(?:depths|generation_tokens): ", re.MULTILINE),
    ),
)  # fmt: skip
