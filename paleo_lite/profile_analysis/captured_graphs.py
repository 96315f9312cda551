"""Operations of captured graphs: the kernels of a graph launch, matched to the trace of the graph's capture.

A captured graph (CUDA graph, HIP graph) is replayed by a single call. A trace of the replay has the kernels, but not
the operations, shapes and modules that launched them. A trace of the capture has those: each launch is recorded with
the operation around it, and nothing runs on the device. The launches of a capture and the kernels of a replay are
matched in one of these ways, from the strictest to the loosest:

1. *exact*: the same kernels and copies in the same order;
2. *subsequence*: in the same order, but the trace of the capture has further launches, such as those of a warm-up;
3. *by name*: in another order, because the graph has parallel branches; each name occurs equally often.

ROCm's profiler records the name and the grid of the kernel in each launch. CUDA's does not: its graphs can only be
matched exactly, by the number and the kinds of the launches. A graph is matched as a whole or not at all.

TraceLens matches the traces of vLLM and SGLang in the same three ways (``trace_capture_merge_experimental.py``).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import BadProfile
from ..profiles.detect import Profile, Reader, find_files, open_profile
from ..profiles.table import HOST, encode_text, float_column, from_numpy, integer_column, values_of
from .serving_steps import parse_annotation

_CAPTURE_COLUMNS = (
    "category", "kernel", "start_ns", "duration_ns", "op", "params", "direction", "execution", "layer", "grid",
    "launched",
)  # fmt: skip
_REPLAY_COLUMNS = ("category", "kernel", "start_ns", "duration_ns", "launch_ns", "grid")
_TEXT_COLUMNS = ("op", "params", "direction", "layer")
"""Columns that the launches of a capture have and the kernels of a replay lack; `execution` is the fifth."""

_GRAPH_LAUNCH = re.compile(r"GraphLaunch")
_BEGIN_CAPTURE = re.compile(r"StreamBeginCapture")
_END_CAPTURE = re.compile(r"StreamEndCapture")
_KERNEL_LAUNCH = re.compile(r"Launch\w*Kernel")
_SIZE_IN_NAME = re.compile(r"(?:^|[_-])bs_?(\d+)(?=[_.-])")
"""SGLang writes one trace per captured batch size: ``bs_32_rank0.json.gz``."""

_FIRST_EXECUTION = 2**40
"""Number of the first execution of a replayed operation: above those of any trace."""


class GraphNode(NamedTuple):
    """A kernel, copy or fill of a graph: what must be equal in capture and replay."""

    kind: str  # ``kernel``, ``memcpy`` or ``memset``
    name: str | None  # name of a kernel; None for copies and fills, and where the profiler does not record it


class _Capture(msgspec.Struct, frozen=True):
    """A captured graph."""

    nodes: list[GraphNode]
    grids: list[str | None]
    rows: list[dict[str, Any]]  # ``op``, ``params``, ``direction``, ``layer`` and ``execution`` of each launch
    requests: int | None  # batch size of the graph, from an annotation or the name of the file


class _Replay(NamedTuple):
    """The kernels of one graph launch, in order of their starts."""

    rows: NDArray[np.int64]  # row numbers in the profile
    nodes: tuple[GraphNode, ...]
    grids: tuple[str | None, ...]
    requests: int | None  # requests in the batch, from the annotation around the launch


class CapturedGraphs(msgspec.Struct, frozen=True):
    """How many of the graph launches in a trace were matched to captured graphs."""

    captures: int  # captured graphs in the traces of captures
    # Graph launches, and the kernels, copies and fills that they replay.
    launches: int
    kernels: int
    # Those that have the operations of a captured graph.
    matched_launches: int
    matched_kernels: int
    # Number of launches by the way in which they were matched: ``exact``, ``subsequence``, ``by name``
    ways: dict[str, int]
    # Launches not matched because several captured graphs with other shapes have the same kernels.
    ambiguous_launches: int

    def describe(self) -> str:
        """Return a sentence with the numbers."""
        text = (
            f"operations of {self.matched_kernels} of {self.kernels} kernels in {self.launches} graph launches are "
            f"from {self.captures} captured graphs"
        )
        if self.ways:
            text += f" (launches matched: {', '.join(f'{count} {way}' for way, count in self.ways.items())})"
        if self.ambiguous_launches:
            text += (
                f"; {self.ambiguous_launches} launches fit several captured graphs with different shapes: "
                "give only the trace of the graph that ran"
            )
        return text


def add_captured_operations(profile: Profile, capture_paths: Sequence[Path]) -> tuple[Profile, CapturedGraphs]:
    """Return the profile with the operations of captured graphs, and how many graph launches were matched.

    The profile is a trace of replayed graphs; `capture_paths` are traces of captures, and folders of them. Raise
    BadProfile if the profile has no graph launch, a trace of a capture has no kernel launch, or no graph launch
    matches.
    """
    captures = [capture for path in find_files(capture_paths) for capture in _read_captures(path)]
    replays = _read_replays(profile)
    if not replays:
        raise BadProfile(
            f"{profile.path}: has no kernels of a graph launch (cudaGraphLaunch, hipGraphLaunch), "
            "so a trace of a capture adds nothing"
        )
    assigned: dict[int, tuple[_Capture, list[int]]] = {}  # by index of the replay
    matcher = _Matcher(captures)
    for index, replay in enumerate(replays):
        match = matcher.match(replay)
        if match is not None:
            assigned[index] = match
    kernels = sum(len(replay.rows) for replay in replays)
    summary = CapturedGraphs(
        captures=len(captures),
        launches=len(replays),
        kernels=kernels,
        matched_launches=len(assigned),
        matched_kernels=sum(len(replays[index].rows) for index in assigned),
        ways=dict(matcher.ways),
        ambiguous_launches=matcher.ambiguous,
    )
    if not assigned and not matcher.ambiguous:
        sizes = ", ".join(str(size) for size in sorted({len(capture.nodes) for capture in captures})[:8])
        raise BadProfile(
            f"{profile.path}: none of its {len(replays)} graph launches has the kernels of a captured graph: the first "
            f"replays {len(replays[0].rows)} kernels and copies, the captures have {sizes} launches"
        )
    reader = _WithOperations(profile.reader, _replacements(replays, assigned))
    return msgspec.structs.replace(profile, reader=reader), summary


# The capture ----------------------------------------------------------------------------------------------------------


def _read_captures(path: Path) -> list[_Capture]:
    """Return the captured graphs of a trace: one per begin and end of a capture, or the whole trace without these."""
    launches: list[tuple[int, GraphNode, str | None, dict[str, Any]]] = []
    begins: list[int] = []
    ends: list[int] = []
    annotations: list[tuple[int, int, int]] = []  # start, end, requests
    profile = open_profile(path)
    if not profile.has_starts:
        raise BadProfile(f"{path}: {profile.format} has no start times, so the order of the launches is unknown")
    for batch in profile.batches(_CAPTURE_COLUMNS):
        columns = batch.select([name for name in _CAPTURE_COLUMNS if name in batch.schema.names])
        annotations += _annotated_requests(batch)
        calls = columns.filter(_is_category(batch, "api")).to_pylist()
        for row in calls:
            if row["start_ns"] is None:
                raise BadProfile(f"{path}: a call of {str(row['kernel'])[:80]} has no start time")
            name, start = str(row["kernel"]), int(row["start_ns"])
            if _BEGIN_CAPTURE.search(name):
                begins.append(start)
            elif _END_CAPTURE.search(name):
                ends.append(start)
            else:
                node = _launched_node(name, row.get("launched"))
                if node is not None:
                    launches.append((start, node, row.get("grid"), row))
    launches.sort(key=lambda launch: launch[0])
    windows = list(zip(sorted(begins), sorted(ends)))
    if not windows and launches:
        windows = [(launches[0][0], launches[-1][0] + 1)]
    named_size = _SIZE_IN_NAME.search(path.name)
    captures = []
    for begin, end in windows:
        inside = [launch for launch in launches if begin <= launch[0] < end]
        if not inside:
            continue
        requests = _requests_at(annotations, begin)
        if requests is None and named_size is not None:
            requests = int(named_size[1])
        captures.append(
            _Capture(
                nodes=[node for _, node, _, _ in inside],
                grids=[grid for _, _, grid, _ in inside],
                rows=[{name: row.get(name) for name in (*_TEXT_COLUMNS, "execution")} for _, _, _, row in inside],
                requests=requests,
            )
        )
    if not captures:
        raise BadProfile(
            f"{path}: has no kernel launches of a capture (cudaLaunchKernel, hipLaunchKernel): expected the trace of "
            "the run that captured the graphs"
        )
    return captures


def _launched_node(call: str, launched: str | None) -> GraphNode | None:
    """Return what a call of the runtime puts on the device; None for other calls."""
    if _GRAPH_LAUNCH.search(call):
        return None
    if "Memcpy" in call:
        return GraphNode("memcpy", None)
    if "Memset" in call:
        return GraphNode("memset", None)
    return GraphNode("kernel", launched) if _KERNEL_LAUNCH.search(call) else None


def _is_category(batch: pa.RecordBatch, category: str) -> pa.Array:
    codes, names = values_of(batch, "category")
    return pa.array(codes == (names.index(category) if category in names else -1))


def _annotated_requests(batch: pa.RecordBatch) -> list[tuple[int, int, int]]:
    """Return start, end and number of requests of the annotations of inference engines in a batch."""
    codes, names = values_of(batch, "kernel")
    steps = {code: parse_annotation(name) for code, name in enumerate(names) if name}
    requests = {code: step.requests for code, step in steps.items() if step is not None}
    if not requests:
        return []
    starts = integer_column(batch, "start_ns")
    durations = np.nan_to_num(float_column(batch, "duration_ns"))
    spans = []
    for row in np.flatnonzero(np.isin(codes, list(requests))).tolist():
        spans.append((int(starts[row]), int(starts[row] + durations[row]), requests[int(codes[row])]))
    return spans


def _requests_at(annotations: list[tuple[int, int, int]], time_ns: int) -> int | None:
    """Return the requests of the last annotation that began before a time and contains it; None without one."""
    around = [item for item in annotations if item[0] <= time_ns < item[1]]
    return max(around)[2] if around else None


# The replay -----------------------------------------------------------------------------------------------------------


def _read_replays(profile: Profile) -> list[_Replay]:
    """Return the graph launches of a profile that replay kernels, in order of time."""
    graph_launches: set[int] = set()
    annotations: list[tuple[int, int, int]] = []
    members: defaultdict[int, list[tuple[int, int, GraphNode, str | None]]] = defaultdict(list)
    first_row = 0
    for batch in profile.batches(_REPLAY_COLUMNS):
        annotations += _annotated_requests(batch)
        category, categories = values_of(batch, "category")
        kernel, kernels = values_of(batch, "kernel")
        grid, grids = values_of(batch, "grid")
        starts, launches = integer_column(batch, "start_ns"), integer_column(batch, "launch_ns")
        graph_calls = [code for code, name in enumerate(kernels) if name and _GRAPH_LAUNCH.search(name)]
        host = np.isin(category, [code for code, name in enumerate(categories) if name in HOST])
        graph_launches.update(starts[host & np.isin(kernel, graph_calls)].tolist())
        for row in np.flatnonzero(~host & (launches >= 0)).tolist():
            kind = categories[int(category[row])]
            if kind == "communication":
                kind = "kernel"
            node = GraphNode(kind, kernels[int(kernel[row])] if kind == "kernel" else None)
            item = (int(starts[row]), first_row + row, node, grids[int(grid[row])])
            members[int(launches[row])].append(item)
        first_row += batch.num_rows
    replays = []
    for launch in sorted(graph_launches & set(members)):
        items = sorted(members[launch], key=lambda item: item[:2])
        replays.append(
            _Replay(
                np.array([row for _, row, _, _ in items], np.int64),
                tuple(node for _, _, node, _ in items),
                tuple(grid for _, _, _, grid in items),
                _requests_at(annotations, launch),
            )
        )
    return replays


# Matching -------------------------------------------------------------------------------------------------------------


class _Matcher:
    """Finds the captured graph of each graph launch."""

    def __init__(self, captures: Sequence[_Capture]) -> None:
        self.ways: Counter[str] = Counter()  # matched launches by the way of matching
        self.ambiguous = 0  # launches that fit several captures with different shapes
        self._captures = captures
        self._uses = [0] * len(captures)
        self._fits: dict[tuple[tuple[GraphNode, ...], tuple[str | None, ...]], list[tuple[str, int, list[int]]]] = {}

    def match(self, replay: _Replay) -> tuple[_Capture, list[int]] | None:
        """Return the captured graph and the index of the launch of each kernel; None without a unique match."""
        key = replay.nodes, replay.grids
        if key not in self._fits:
            self._fits[key] = self._best_fits(replay)
        fits = self._fits[key]
        if not fits:
            return None
        fits = self._of_batch_size(fits, replay.requests)
        operations = {self._operations(index, launches) for _, index, launches in fits}
        if len(operations) > 1:
            self.ambiguous += 1
            return None
        # Graphs of equal layers are captured and replayed in the same order.
        way, index, launches = min(fits, key=lambda fit: (self._uses[fit[1]], fit[1]))
        self._uses[index] += 1
        self.ways[way] += 1
        return self._captures[index], launches

    def _best_fits(self, replay: _Replay) -> list[tuple[str, int, list[int]]]:
        """Return way, index and launches of the captures that fit best: in the strictest way, with most equal grids."""
        best: list[tuple[str, int, list[int]]] = []
        best_rank = (0, 0)
        for index, capture in enumerate(self._captures):
            match = match_nodes(capture.nodes, replay.nodes)
            if match is None:
                continue
            way, launches = match
            equal_grids = sum(capture.grids[launch] == grid for launch, grid in zip(launches, replay.grids))
            rank = (-_WAYS.index(way), equal_grids)
            if not best or rank > best_rank:
                best, best_rank = [], rank
            if rank == best_rank:
                best.append((way, index, launches))
        return best

    def _of_batch_size(
        self, fits: list[tuple[str, int, list[int]]], requests: int | None
    ) -> list[tuple[str, int, list[int]]]:
        """Return the fits with the smallest batch size that has room for the requests; all if sizes are unknown."""
        if requests is None:
            return fits
        sizes = [self._captures[index].requests for _, index, _ in fits]
        large_enough = [size for size in sizes if size is not None and size >= requests]
        if not large_enough:
            return fits
        return [fit for fit, size in zip(fits, sizes) if size == min(large_enough)]

    def _operations(self, index: int, launches: list[int]) -> tuple[tuple[Any, Any], ...]:
        rows = self._captures[index].rows
        return tuple((rows[launch]["op"], rows[launch]["params"]) for launch in launches)


_WAYS = ("exact", "subsequence", "by name")


def match_nodes(captured: Sequence[GraphNode], replayed: Sequence[GraphNode]) -> tuple[str, list[int]] | None:
    """Match the kernels of a replay to the launches of a capture, each a kind and a name.

    Return the way, and for each replayed kernel the index of its launch; None if some kernel has no launch.
    """
    names_known = all(node.name is not None for node in captured if node.kind == "kernel")
    if not names_known:
        has_equal_kinds = [node.kind for node in captured] == [node.kind for node in replayed]
        return ("exact", list(range(len(captured)))) if has_equal_kinds else None
    if list(captured) == list(replayed):
        return "exact", list(range(len(captured)))
    launches = []
    position = 0
    for node in replayed:
        while position < len(captured) and captured[position] != node:
            position += 1
        if position == len(captured):
            return _match_by_name(captured, replayed)
        launches.append(position)
        position += 1
    return "subsequence", launches


def _match_by_name(captured: Sequence[GraphNode], replayed: Sequence[GraphNode]) -> tuple[str, list[int]] | None:
    """Match the n-th kernel of each name to its n-th launch; None if a name does not occur equally often."""
    captured_counts = Counter(captured)
    if any(captured_counts[node] != count for node, count in Counter(replayed).items()):
        return None
    positions: defaultdict[GraphNode, list[int]] = defaultdict(list)
    for position in range(len(captured) - 1, -1, -1):
        positions[captured[position]].append(position)
    return "by name", [positions[node].pop() for node in replayed]


# The result -----------------------------------------------------------------------------------------------------------


class _Replacements(NamedTuple):
    """Values for some rows of a profile."""

    rows: NDArray[np.int64]  # row numbers, ascending
    codes: dict[str, NDArray[np.int64]]  # for each text column the index of each row's text in `texts`; -1 for absent
    texts: dict[str, list[str]]
    execution: NDArray[np.int64]  # -1 for absent


def _replacements(replays: Sequence[_Replay], assigned: dict[int, tuple[_Capture, list[int]]]) -> _Replacements:
    rows: list[int] = []
    values: list[dict[str, Any]] = []
    executions: list[int] = []
    numbers: dict[tuple[int, int], int] = {}  # by graph launch and execution in the capture
    for index, (capture, launches) in assigned.items():
        rows += replays[index].rows.tolist()
        for launch in launches:
            row = capture.rows[launch]
            values.append(row)
            key = index, row["execution"]
            has_execution = row["execution"] is not None
            executions.append(_FIRST_EXECUTION + numbers.setdefault(key, len(numbers)) if has_execution else -1)
    order = np.argsort(np.array(rows, np.int64), kind="stable")
    codes: dict[str, NDArray[np.int64]] = {}
    texts: dict[str, list[str]] = {}
    for name in _TEXT_COLUMNS:
        index_of: dict[str, int] = {}
        text_codes = [-1 if row[name] is None else index_of.setdefault(row[name], len(index_of)) for row in values]
        codes[name] = np.array(text_codes, np.int64)[order]
        texts[name] = list(index_of)
    return _Replacements(np.array(rows, np.int64)[order], codes, texts, np.array(executions, np.int64)[order])


class _WithOperations:
    """Reader that adds the operations of captured graphs to the batches of another reader."""

    def __init__(self, reader: Reader, replacements: _Replacements) -> None:
        self.name = reader.name
        self.description = reader.description
        self._reader = reader
        self._replacements = replacements

    def recognises(self, path: Path, head: bytes) -> bool:
        return self._reader.recognises(path, head)

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        first_row = 0
        for batch in self._reader.batches(path, columns):
            yield self._replace(batch, first_row)
            first_row += batch.num_rows

    def _replace(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        new = self._replacements
        low, high = np.searchsorted(new.rows, [first_row, first_row + batch.num_rows])
        if low == high:
            return batch
        rows = new.rows[low:high] - first_row
        columns = list(batch.columns)
        for position, name in enumerate(batch.schema.names):
            if name in _TEXT_COLUMNS:
                codes, names = values_of(batch, name)
                added = new.codes[name][low:high]
                codes[rows] = np.where(added >= 0, added + len(names), 0)
                columns[position] = encode_text(codes - 1, [*names[1:], *new.texts[name]])
            elif name == "execution":
                values = integer_column(batch, name).copy()
                values[rows] = new.execution[low:high]
                columns[position] = from_numpy(values, pa.int64(), values >= 0)
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
