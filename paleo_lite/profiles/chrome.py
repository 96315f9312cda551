"""Streaming reader of the Chrome traces of PyTorch's profiler, plain or gzip.

The trace is decoded in pieces, and only the fields declared in `chrome_events` are built. Rows are written to a
temporary Arrow file until the end of the trace is read, because only then are all operations and the base time known
(``baseTimeNanoseconds`` is often the last key). Memory use is one piece, the distinct names and, to link kernels to
operations, about 200 bytes per CPU operation (a sixth of the size of the trace). The latter is not needed without the
columns op, params, direction, execution, step, launch_ns and layer.

Pieces of a large trace are converted by several processes, each to columns with its own codes of names, parameters and
threads; `_Rows.merge` translates the codes. Whatever a process cannot convert is read in this process, in file order,
so that the result and the errors are the same.

Python functions other than calls of modules, flow arrows, synchronisation and overhead events are skipped.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import BadFile, BadProfile
from ..executor import count_cores, is_worker, map_in_order
from .ascend import TRACE_SIGN as ASCEND
from .chrome_columns import (
    ABSENT,
    API,
    CODES,
    CPU,
    IS_ON_DEVICE,
    KINDS,
    MARKER,
    device_columns,
    fill_absent,
    flops_column,
    integer_column,
    kinds_of,
    launch_columns,
    to_integers,
)
from .chrome_events import (
    CATEGORIES,
    COUNTED,
    LATEST_US,
    Args,
    Decoded,
    Event,
    Whole,
    bad_element,
    decode_events,
    times_ns,
)
from .detect import is_gzip
from .json_stream import Elements, JsonArray, TextSpan, decode_around, doubts_of_array
from .launches import (
    BPROP,
    LAUNCH,
    OPERATION,
    PROFILER_STEP,
    STEP,
    HostRange,
    Integers,
    Launched,
    Links,
    MarkedSteps,
    ProgramPaths,
    direction_of,
    find_steps,
)
from .onnxruntime import HEAD as ONNX_RUNTIME
from .table import Records, batch_of, encode_names, encode_text, from_numpy, text_array, to_numpy
from .unitrace import TRACE_SIGN as UNITRACE
from .xla import SIGN

_Key = TypeVar("_Key")
_KEY = re.compile(rb'"(traceEvents|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:')
_LINKED = ("op", "params", "direction", "execution", "step", "launch_ns")

_BY_NUMBERS = re.compile(
    r"attention|conv|pool|norm|upsample|gelu|mean|sum|amax|amin|argm|var|std|::a(?:ll|ny)$|::m(?:ax|in)$"
)
"""Operations with work that depends on scalar arguments: masks, strides, windows, reduced dimensions. Scalars of other
operations (a learning rate) are ignored, because they would split equal operations."""

_COLLECTIVE = "record_param_comms"
"""Operation with the message of a collective in its arguments."""

_CACHED_PARAMS = 2**14

_LARGE = 32 * 2**20
"""Bytes of a trace from which several processes are faster than one."""

_LARGE_GZIP = 3 * 2**20
"""The same for gzip, which makes traces about ten times smaller."""

_MOST_PROCESSES = 8  # more would wait for this process, which finds the cuts and writes the rows
_SPANS_AHEAD = 2  # spans of 4 MiB per process that are read before their results are needed


_MESSAGE = b'{"collective":%s,"dtype":%s,"in":%s,"out":%s,"group":%s}'
_NO_ARGS = Args()


class _TraceHeader(msgspec.Struct):
    """What a trace says before or after its events."""

    base: int | str = msgspec.field(name="baseTimeNanoseconds", default=0)


class ChromeTrace:
    """Reader of this format; see `detect.Reader`."""

    name = "chrome-trace"
    description = "Chrome traces of the PyTorch profiler (.json, .json.gz)"

    def recognises(self, path: Path, head: bytes) -> bool:
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if start[:1] == b"{":
            of_others = SIGN.search(head) or UNITRACE.search(head)
            return _KEY.search(head) is not None and of_others is None and b'"BeginNs"' not in head
        is_list = re.match(rb"\[\s*\{", start) is not None and re.search(rb'"ph"\s*:', head) is not None
        return is_list and ONNX_RUNTIME.match(start) is None and ASCEND.search(start) is None

    def doubts(self, path: Path) -> list[str]:
        """Return a sentence about a trace whose end is missing."""
        return doubts_of_array(path)

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the events of `CATEGORIES` in file order.

        A kernel, copy or runtime call inherits `op`, `params`, `direction` and `execution` from the operation that
        launched it (see `launches`). `params` are the ``Input Dims``, the ``Input type`` and, if they affect the work,
        the ``Concrete Inputs`` as JSON; for a collective they are its message. `layer` is the path of the enclosing
        modules and ranges, `step` the iteration that launched the event, `launch_ns` the start of the launching call.
        ``metric.est_achieved_occupancy`` is a fraction. Kernels measured by CUPTI's range profiler have no duration;
        their FLOPs follow from the counters where possible (see `ncu`).
        """
        with tempfile.TemporaryFile() as spool:
            needs_layer = columns is None or "layer" in columns
            rows = _Rows(
                linked=needs_layer or not set(_LINKED).isdisjoint(columns or ()),
                placed=needs_layer,
                launched=columns is None or "launched" in columns,
            )
            try:
                base_ns = _spool(path, rows, spool)
            except OSError as error:  # from the temporary file: errors of the trace are already BadProfile
                raise BadFile(f"{tempfile.gettempdir()}: cannot hold the rows of {path} ({error.strerror})") from None
            launched = rows.steps() if rows.linked else None
            links = rows.links() if rows.linked else None
            places = None if launched is None else rows.places(launched.steps)
            placed = None if places is None or links is None else places.of(links)
            names, params = text_array(rows.names), text_array(rows.params)
            spool.seek(0)
            for batch in pa.ipc.open_stream(spool):
                values = {name: batch.column(name) for name in batch.schema.names}
                external, correlation, own_operation = (
                    to_numpy(values.pop(key)) for key in ("external", "correlation", "own")
                )
                start_ns = to_numpy(values["start_ns"])
                if launched is not None:
                    values |= launched.columns(correlation, start_ns, base_ns)
                values["start_ns"] = from_numpy(start_ns + base_ns, pa.int64())
                if links is not None:
                    at = np.where(own_operation >= 0, own_operation, links.find(external, correlation))
                    values |= links.columns(at, names, params)
                if places is not None and placed is not None:
                    values["layer"] = encode_text(np.where(at >= 0, placed[at], -1), places.names)
                yield batch_of(values, batch.num_rows, columns)


def _spool(path: Path, rows: _Rows, spool: IO[bytes]) -> int:
    """Write the rows of the whole trace to the temporary file and return the base time in ns."""
    array = JsonArray(path, "traceEvents", decode_events)
    jobs = _processes_for(path)
    run = partial(_convert_spans, path=path, linked=rows.linked, placed=rows.placed, launched=rows.launched, jobs=jobs)
    writer, count = None, 0
    for piece in array.pieces() if jobs == 1 else array.pieces_ahead(run):
        if isinstance(piece, _Converted):
            count += piece.elements
            batch = None if piece.batch is None else rows.merge(piece.rows, piece.batch)
        else:
            count += piece.decoded.count
            batch = _batch_of(path, piece, rows)
        if batch is not None:
            writer = writer or pa.ipc.new_stream(spool, batch.schema)
            writer.write_batch(batch)
    if writer is None:
        raise BadProfile(
            f"{path}: none of its {count} events is an operation or kernel of the PyTorch profiler "
            f"({', '.join(CATEGORIES)}): did anything run while it recorded?"
        )
    writer.close()
    header = decode_around(array, _TraceHeader)
    base = 0 if header is None else header.base
    try:
        base_ns = int(base)
    except ValueError:
        raise BadProfile(f"{path}: baseTimeNanoseconds is {str(base)[:80]!r}, not a whole number") from None
    if not 0 <= base_ns <= LATEST_US * 1000:
        raise BadProfile(f"{path}: baseTimeNanoseconds is {base_ns}, outside the years 1970 to 2096")
    return base_ns


def _batch_of(path: Path, piece: Elements[Decoded], rows: _Rows) -> pa.RecordBatch | None:
    """Return the columns of a piece; None if it has no events of `CATEGORIES`."""
    if piece.decoded.fault:
        index, problem = piece.decoded.fault
        raise bad_element(path, piece, index, problem)
    return rows.batch(path, piece) if piece.decoded.wanted else None


def _processes_for(path: Path) -> int:
    """Return the number of processes to convert a trace with."""
    is_large = path.stat().st_size >= (_LARGE_GZIP if is_gzip(path) else _LARGE)
    return min(count_cores(), _MOST_PROCESSES) if is_large and not is_worker() else 1


class _Converted(NamedTuple):
    """Result of a process for one span."""

    elements: int  # number of elements
    batch: pa.RecordBatch | None  # as of `_Rows.batch`; None without events of `CATEGORIES`
    rows: _Rows  # operations and launches of the span alone


def _convert_spans(
    spans: Iterator[TextSpan], path: Path, linked: bool, placed: bool, launched: bool, jobs: int
) -> Generator[_Converted | None, None, None]:
    """Convert spans in several processes and yield the results in file order."""
    work = partial(_convert, path=path, linked=linked, placed=placed, launched=launched)
    yield from map_in_order(spans, work, jobs, ahead=_SPANS_AHEAD * jobs)


def _convert(span: TextSpan, path: Path, linked: bool, placed: bool, launched: bool) -> _Converted | None:
    """Convert one span; None if it is not a series of complete elements, or has an error to report in file order."""
    text = span.text
    if text is None:
        with path.open("rb") as file:
            file.seek(span.start)
            text = file.read(span.length)
    text = b"".join((b"[", memoryview(text)[: span.length], b"]"))
    rows = _Rows(linked, placed, launched)
    try:
        piece = Elements(span.start - 1, text, decode_events(text))
        return _Converted(piece.decoded.count, _batch_of(path, piece, rows), rows)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, BadProfile):
        return None


class _Rows:
    """Convert events to columns, and record operations and launches to link kernels to.

    `linked` says whether operations and launches are recorded, `placed` whether the ranges of the program (modules,
    annotations) are too, and `launched` whether the names and grids of kernels are read from the launches that record
    them.
    """

    def __init__(self, linked: bool, placed: bool = False, launched: bool = False) -> None:
        self.linked, self.placed, self.launched = linked, placed, launched
        self._names: dict[str, int] = {}
        self._params: dict[bytes, int] = {}
        self._codes_of_raws: dict[tuple[bytes, ...], int] = {}  # as written in the trace
        self._by_numbers: dict[str, bool] = {}
        self._threads: dict[tuple[Whole, str], int] = {}
        self._operations: list[Records] = []
        self._launches: list[Records] = []
        self._marks: list[tuple[str, int, int]] = []
        self._device_marks: dict[str, tuple[int, int]] = {}
        self._ranges: list[HostRange] = []
        self._count = 0  # operations so far
        self._with_both = self._alike = 0  # events with external and correlation id, and those where they are equal

    @property
    def names(self) -> list[str]:
        """Operation names, indexed by the codes of `OPERATION`."""
        return list(self._names)

    @property
    def params(self) -> list[str]:
        """Parameter texts, indexed by the codes of `OPERATION`."""
        return [text.decode("utf-8", "replace") for text in self._params]

    def links(self) -> Links | None:
        """Return the links after all events have been added; None for a trace without CPU operations."""
        if not self._count:
            return None
        operations, self._operations = np.concatenate(self._operations), []
        launches, self._launches = np.concatenate(self._launches), []
        return Links(operations, launches, external_ids=2 * self._alike <= self._with_both)

    def places(self, steps: MarkedSteps) -> ProgramPaths | None:
        """Return the paths of the program's ranges; None if they were not requested."""
        return ProgramPaths(self._ranges, steps) if self.placed else None

    def steps(self) -> Launched:
        """Return the iterations after all events have been added."""
        launches = np.concatenate(self._launches) if self._launches else np.empty(0, LAUNCH)
        names, starts, ends = zip(*self._marks) if self._marks else ((), (), ())
        steps = find_steps(names, np.array(starts, np.int64), np.array(ends, np.int64), launches["start"])
        on_device = [self._device_marks.get(name) for name in steps.names]
        ranges = np.array([mark for mark in on_device if mark is not None], np.int64).reshape(-1, 2)
        ran = MarkedSteps(steps.names, *ranges.T) if len(ranges) == len(on_device) else steps
        return Launched(steps, ran, launches)

    def merge(self, other: _Rows, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the operations and launches of a later piece, and return its columns with the codes of this object.

        `other` has the one piece that `batch` was made of; it is changed.
        """
        if not self.linked:
            return batch
        names = _translation(self._names, other._names)
        params = _translation(self._params, other._params)
        threads = _translation(self._threads, other._threads)
        operations, launches = other._operations[0], other._launches[0]
        operations["name"] = names[operations["name"]]
        operations["params"] = params[operations["params"]]
        operations["thread"] = threads[operations["thread"]]
        launches["thread"] = threads[launches["thread"]]
        self._operations.append(operations)
        self._launches.append(launches)
        self._marks += other._marks
        self._device_marks |= other._device_marks
        self._ranges += [item._replace(thread=int(threads[item.thread])) for item in other._ranges]
        own_operation = to_numpy(batch.column("own"))
        position = batch.schema.get_field_index("own")
        columns = batch.columns
        columns[position] = from_numpy(np.where(own_operation >= 0, own_operation + self._count, -1), pa.int64())
        self._count += other._count
        self._with_both += other._with_both
        self._alike += other._alike
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def batch(self, path: Path, piece: Elements[Decoded]) -> pa.RecordBatch:
        """Return the columns stored in the events, and `external`, `correlation` and `own` for linking.

        `own` is the index of an operation's own record. A value of -1 means absent in all three.
        """
        events = piece.decoded.wanted
        args = [event.args or _NO_ARGS for event in events]
        names = encode_names([event.name for event in events])
        name_codes, distinct_names = to_numpy(names.indices), names.dictionary.to_pylist()
        category = np.array([CODES[event.cat] for event in events])
        kind = kinds_of(category, name_codes, distinct_names)
        start_ns, duration_ns = times_ns(path, piece)
        external = to_integers([of.external if of.external is not None else of.external_2021 for of in args])
        ids = {
            "external": np.where(kind == MARKER, -1, fill_absent(external, -1)),
            "correlation": fill_absent(to_integers([of.correlation for of in args]), -1),
            "own": np.full(len(events), -1),
        }
        if self.linked:
            end_ns = start_ns + np.nan_to_num(duration_ns).astype(np.int64)
            self._record_operations(events, args, kind, start_ns, end_ns, ids)
            self._record_launches(events, kind, start_ns, ids)
            marks = np.array([name.startswith(PROFILER_STEP) for name in distinct_names])
            marked = np.flatnonzero((kind == MARKER) | marks[name_codes])
            self._record_marks(events, marked.tolist(), start_ns, end_ns)
        on_device, counted = IS_ON_DEVICE[category], category == CODES[COUNTED]
        unknown = np.isnan(duration_ns) | counted
        columns = {
            "category": encode_text(kind, KINDS),
            "kernel": names,
            "start_ns": from_numpy(start_ns, pa.int64()),
            "duration_ns": from_numpy(duration_ns, pa.float64(), ~unknown),
            "flops": flops_column(piece.text, counted),
            "calls": from_numpy(np.ones(len(events), dtype=np.int64), pa.int64()),
            "thread": integer_column(np.where(on_device, ABSENT, to_integers([event.tid for event in events]))),
            **device_columns(path, piece, args, on_device),
            **{name: from_numpy(values, pa.int64()) for name, values in ids.items()},
        }
        if self.launched:
            columns |= launch_columns(args, columns["grid"])
        return pa.RecordBatch.from_pydict(columns)

    def _record_operations(
        self,
        events: list[Event],
        args: list[Args],
        kind: NDArray[np.int8],
        start_ns: Integers,
        end_ns: Integers,
        ids: dict[str, Integers],
    ) -> None:
        is_cpu = kind == CPU
        steps = [i for i in np.flatnonzero(kind == MARKER) if events[i].name.startswith(STEP)]
        is_recorded = is_cpu.copy()
        is_recorded[steps] = True
        at = np.flatnonzero(is_recorded)
        ids["own"] = np.where(is_cpu, self._count + np.cumsum(is_recorded) - 1, -1)
        self._count += len(at)
        recorded, their_args = [events[i] for i in at], [args[i] for i in at]
        names = [event.name for event in recorded]
        record = np.empty(len(at), OPERATION)
        record["external"], record["start"], record["end"] = ids["external"][at], start_ns[at], end_ns[at]
        record["thread"] = self._thread_codes(recorded)
        record["name"] = np.where(is_cpu[at], [self._names.setdefault(name, len(self._names)) for name in names], -1)
        record["params"] = [self._params_code(name, arg) for name, arg in zip(names, their_args)]
        record["sequence"] = fill_absent(to_integers([of.sequence for of in their_args]), -1)
        forward_thread = fill_absent(to_integers([of.forward_thread for of in their_args]), 0)
        direction_by_name = {name: direction_of(name) for name in {*names}}
        directions = np.array([direction_by_name[name] for name in names], dtype=np.int8)
        record["direction"] = np.where((directions < 0) & (forward_thread > 0), BPROP, directions)
        self._operations.append(record)

    def _record_launches(
        self, events: list[Event], kind: NDArray[np.int8], start_ns: Integers, ids: dict[str, Integers]
    ) -> None:
        has_both = (ids["external"] >= 0) & (ids["correlation"] >= 0) & (kind != CPU)
        self._with_both += int(has_both.sum())
        self._alike += int((has_both & (ids["external"] == ids["correlation"])).sum())
        calls = np.flatnonzero((kind == API) & (ids["correlation"] >= 0))
        record = np.empty(len(calls), LAUNCH)
        record["correlation"], record["start"] = ids["correlation"][calls], start_ns[calls]
        record["thread"] = self._thread_codes([events[i] for i in calls])
        self._launches.append(record)

    def _record_marks(self, events: list[Event], marked: list[int], start_ns: Integers, end_ns: Integers) -> None:
        for index in marked:
            event = events[index]
            if event.cat == "user_annotation" or (event.cat == "Operator" and event.name.startswith(PROFILER_STEP)):
                self._marks.append((event.name, int(start_ns[index]), int(end_ns[index])))
            elif event.cat == "gpu_user_annotation":
                self._device_marks[event.name] = int(start_ns[index]), int(end_ns[index])
            if self.placed and event.cat in ("user_annotation", "python_function"):
                thread = self._thread_codes([event])[0]
                self._ranges.append(HostRange(event.name, thread, int(start_ns[index]), int(end_ns[index])))

    def _params_code(self, name: str, args: Args) -> int:
        """Return the code of the parameter text: shapes, types and, if recorded, scalars, separated by spaces."""
        if name == _COLLECTIVE and args.collective:
            message = (args.collective, args.message_type, args.numbers_in, args.numbers_out, args.group_size)
            raws: tuple[bytes, ...] = (_MESSAGE % message,)
        else:
            has_numbers = self._by_numbers.get(name)
            if has_numbers is None:
                has_numbers = self._by_numbers[name] = _BY_NUMBERS.search(name) is not None
            raws = (bytes(args.dims), bytes(args.types), bytes(args.numbers) if has_numbers else b"")
        code = self._codes_of_raws.get(raws)
        if code is None:
            if len(self._codes_of_raws) >= _CACHED_PARAMS:
                self._codes_of_raws.clear()
            dims, *rest = (b"".join(raw.split()) for raw in raws)
            text = b" ".join([dims, *rest]).rstrip()
            code = -1 if dims in (b"", b"null") else self._params.setdefault(text, len(self._params))
            self._codes_of_raws[raws] = code
        return code

    def _thread_codes(self, events: list[Event]) -> list[int]:
        pairs = [(event.pid, event.tid) for event in events]
        codes: dict[tuple[Whole, Whole], int] = {}
        for pair in dict.fromkeys(pairs):
            codes[pair] = self._threads.setdefault((pair[0], str(pair[1])), len(self._threads))
        return [codes[pair] for pair in pairs]


def _translation(codes: dict[_Key, int], of_piece: Iterable[_Key]) -> NDArray[np.int32]:
    """Return the code of each key of a piece, adding new keys; the last entry translates -1 to itself."""
    return np.array([*(codes.setdefault(key, len(codes)) for key in of_piece), -1], np.int32)
