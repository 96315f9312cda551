"""Recognition of result files by content, and reading of many of them in parallel."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..errors import BadFile, PaleoError, UnknownFormat
from ..executor import run_tasks
from ..files import NO_SUCH_FILE, file_exists
from ..profiles.detect import HEAD, read_head
from ..progress import report as report_progress
from ..result import Result
from . import (
    aiperf,
    deepbench,
    kernel_tables,
    links,
    llama_bench,
    load_clients,
    local_runs,
    megatron,
    mlperf,
    nccl_tests,
    network_tables,
    pictures,
    power,
    published,
    server_logs,
    sglang,
    torchtitan,
    training_logs,
    trtllm_bench,
    vllm,
)
from .archives import unpacked
from .configuration import complete
from .findings import MOST_READINGS, Findings, ResultFormat
from .json_text import is_damaged_json
from .peak_rates import doubt_impossible_rates
from .repeated import note_repeated_rows
from .text import is_cut, launcher_prefix, number_at_end, plain_text, read_chunks

FORMATS: tuple[ResultFormat, ...] = (
    *published.FORMATS,
    *trtllm_bench.FORMATS,
    *sglang.FORMATS,
    *vllm.FORMATS,
    *aiperf.FORMATS,
    *load_clients.FORMATS,
    *llama_bench.FORMATS,
    *server_logs.FORMATS,
    *local_runs.FORMATS,
    *mlperf.FORMATS,
    *megatron.FORMATS,
    *torchtitan.FORMATS,
    *training_logs.FORMATS,
    *nccl_tests.FORMATS,
    *links.FORMATS,
    *power.FORMATS,
    *pictures.FORMATS,
    *network_tables.FORMATS,
    *kernel_tables.FORMATS,
    *deepbench.FORMATS,
)
"""All formats, in the order in which they are tried: those with more keys come before those whose keys they share."""

_ADVICE = (
    (re.compile(r"^\ufeff?(?:epoch|step),.*(?:loss|acc)", re.IGNORECASE), "a table of losses without times, as "
     "Lightning writes it: ThroughputMonitor or DeviceStatsMonitor add times to metrics.csv"),
    (re.compile(r'"experiments"\s*:\s*\[\s*\{\s*"experiment"'), "raw timestamps of perf_analyzer: give the "
     "profile_export_genai_perf.json beside it"),
    (re.compile(r"\A\ufeff*\s*(?:\{\s*\}|\[\s*\]|null)?\s*\Z"), "it holds nothing: no row, or an empty JSON"),
    (re.compile(r"\A\s*\[?\{'[^'\n]*': "), "printed by Python, with single quotes: write it by json.dump"),
    (re.compile(r'\A\ufeff*(?:[\w."]+;){3,}[\w."]+\s*$', re.MULTILINE), "the columns are divided by semicolons, as "
     "Excel writes them in some languages: save the table with commas, and numbers with points"),
)  # fmt: skip
"""What to do with files beside results, which hold no result."""

_MOST_FILES = 100_000
_MOST_SEARCHED = 64  # megabytes of a log in which its first measurement must come


class Measurements(Result):
    """What result files say.

    Attributes
    ----------
    files : list of Findings
        What each file says, in the order of the paths.
    failed : list of dict
        ``file`` and ``error`` of the files that could not be read.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.measurements:measurements_page"

    def __init__(self, files: list[Findings], failed: list[dict[str, str]]) -> None:
        self.files, self.failed = files, failed

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {"files": [findings.to_dict() for findings in self.files], "failed": self.failed}


def recognise(path: Path) -> ResultFormat:
    """Return the format of a file; raise UnknownFormat with the formats there are if it has none of them."""
    head = read_head(path)
    prefix = launcher_prefix(head)
    if prefix is not None:
        head = prefix.sub(b"", head)
    text = plain_text(head)
    for candidate in FORMATS:
        if candidate.recognises(head, text):
            return candidate
    behind_head = _search_behind_head(path)
    if behind_head is not None:
        return behind_head
    for sign, advice in _ADVICE:
        if sign.search(text):
            raise UnknownFormat(f"{path}: {advice}")
    nearest = "; ".join(_described(candidate) for candidate in _nearest_formats(text))
    damage = " (its JSON is cut off or damaged)" if len(head) < HEAD and is_damaged_json(text, path) else ""
    raise UnknownFormat(
        f"{path}: not a result file that paleo-lite reads{damage}: the nearest of {len(FORMATS)} formats: {nearest}"
    )


def _nearest_formats(text: str) -> list[ResultFormat]:
    """Return the three formats of which a text has most of the keys or words by which they are recognised."""
    lower = text.lower()
    matches = {}
    is_json = text.lstrip().startswith(("{", "["))
    for number, candidate in enumerate(FORMATS):
        if bool(candidate.keys) is not is_json or candidate.magic:
            continue
        pattern = "" if candidate.sign is None else candidate.sign.pattern
        words = candidate.keys or re.findall(r"(?<!\\)[A-Za-z]{4,}", pattern)
        present = sum(word.lower() in lower for word in words)
        matches[number] = (present, present / max(len(words), 1))
    nearest = [FORMATS[number] for number in sorted(matches, key=lambda number: matches[number], reverse=True)]
    by_description = {_described(candidate): candidate for candidate in reversed(nearest)}  # tools have several formats
    return [candidate for candidate in nearest if by_description[_described(candidate)] is candidate][:3]


def _described(candidate: ResultFormat) -> str:
    return f"{candidate.tool} ({candidate.description})" if candidate.description else candidate.tool


def _search_behind_head(path: Path) -> ResultFormat | None:
    """Return the format of a log whose measurements start behind its first 64 KiB."""
    marked = [
        (candidate, [marker.encode() for marker in candidate.markers]) for candidate in FORMATS if candidate.markers
    ]
    for number, chunk in enumerate(read_chunks(path)):
        if number >= _MOST_SEARCHED:
            break
        for candidate, markers in marked:
            if candidate.sign is None or not any(marker in chunk for marker in markers):
                continue
            if candidate.sign.search(plain_text(chunk)):
                return candidate
    return None


def read_result(path: Path, user_facts: dict[str, Any] | None = None, source: str = "") -> Findings:
    """Read one file, with facts that the user gives."""
    file_format = recognise(path)
    findings = Findings(path, file_format.name, file_format.tool, source=source)
    try:
        file_format.read(path, findings)
    except RecursionError:
        raise BadFile(f"{path}: nested too deeply for a file of results") from None
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror or error})") from None
    if is_cut(path):
        findings.doubt("the end of the gzip is missing: what came before it was read")
    if file_format.sign is not None and (number := number_at_end(path)):
        findings.doubt(f"the text ends with {number} and no line break: this number may be cut")
    findings.doubt_not_numbers()
    if findings.dropped:
        findings.doubt(f"{findings.dropped:,} rows over {MOST_READINGS:,} are left out")
    if not findings.readings:
        findings.doubt("no measurement was found in it")
    complete(findings, user_facts or {})
    doubt_impossible_rates(findings)
    return findings


class _FileToRead(NamedTuple):
    """A file to read, and the name by which the user knows it."""

    path: Path
    source: str = ""

    def __str__(self) -> str:
        return self.source or str(self.path)


class _Outcome(NamedTuple):
    findings: Findings | None
    error: str = ""


def _read_task(task: _FileToRead, user_facts: dict[str, Any], keep_going: bool) -> _Outcome:
    """Read a file; with `keep_going` an error is part of the outcome."""
    try:
        return _Outcome(read_result(task.path, user_facts, task.source))
    except PaleoError as error:
        message = str(error).replace(str(task.path), task.source) if task.source else str(error)
        if not keep_going:
            raise type(error)(message) if isinstance(error, BadFile) else error from None
        return _Outcome(None, message)


def _died(task: _FileToRead, error: PaleoError) -> _Outcome:
    return _Outcome(None, str(error))


def read_results(
    paths: Iterable[Path],
    user_facts: dict[str, Any] | None = None,  # facts that hold for all files, such as ``gpu``
    jobs: int | None = None,  # see `executor.run_tasks`
    scheduler: str | None = None,  # see `executor.run_tasks`
    keep_going: bool = False,
) -> Measurements:
    """Read files, all files in folders, and the files in archives."""
    with unpacked(list_paths(paths), keep_going) as (files, refused):
        tasks = [_FileToRead(path, source) for path, source in files]
        work = partial(_read_task, user_facts=user_facts or {}, keep_going=keep_going)
        outcomes: dict[_FileToRead, _Outcome] = {}
        for done, (task, outcome) in enumerate(run_tasks(tasks, work, jobs, scheduler, _died), 1):
            outcomes[task] = outcome
            report_progress(done, len(tasks))
    read = [outcomes[task] for task in tasks]
    all_findings = [outcome.findings for outcome in read if outcome.findings is not None]
    note_repeated_rows(all_findings)
    failed = [{"file": str(task), "error": outcomes[task].error} for task in tasks if outcomes[task].error]
    return Measurements(all_findings, [*refused, *failed])


def list_paths(paths: Iterable[Path]) -> list[Path]:
    """Return the given files, and all files in the given folders and below; hidden ones and sidecars are left out."""
    listed: dict[Path, None] = {}
    for path in paths:
        if file_exists(path, Path.is_dir):
            inside = sorted(file for file in path.rglob("*") if file.is_file() and not _is_beside(file, path))
            listed.update(dict.fromkeys(inside))
        elif file_exists(path, Path.exists):
            listed[path] = None
        else:
            raise BadFile(f"{path}: {NO_SUCH_FILE}")
        if len(listed) > _MOST_FILES:
            raise BadFile(f"{path}: more than {_MOST_FILES:,} files: give the folders one by one")
    if not listed:
        raise BadFile("no files in the given folders")
    return list(listed)


def _is_beside(file: Path, folder: Path) -> bool:
    """Return whether a file in a folder is hidden, or a sidecar of another file."""
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return hidden or file.suffix == ".toml"
