"""Execution of a sweep: chunks in parallel processes, written to a folder and then merged into one file.

While a sweep runs, the folder ``NAME.partial`` holds a manifest and a Parquet file for every finished chunk. Each file
is written under another name and renamed, so that an interrupted sweep resumes from there. At the end the chunks are
merged into one file, which is verified before it replaces the chunks. The folder is locked against a second sweep with
the same output. Memory is that of one chunk per process, whatever the number of chunks.

Just before the merged file gets its name, its time and size are written into the folder as well: a run that is killed
after that leaves a folder which the next one knows to be useless, and removes.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import msgspec
import numpy as np

from ..errors import BadFile, BadValue, ClusterLost, Interrupted, PaleoError, SweepStopped
from ..executor import run_tasks
from ..extras import require
from ..files import check_outputs, lock_file, version_of, write_atomically
from ..result import Result
from ..text import clean_message
from .cases import forget_cases
from .chunk import compute_chunk
from .columns import StringColumn
from .grid import load_machine
from .inputs import COMBINATIONS, shared_inputs
from .questions import QuestionChunk, QuestionSpace, compute_question_chunk
from .space import Chunk, Space

AnySpace = Space | QuestionSpace
AnyChunk = Chunk | QuestionChunk

COMPUTE: dict[type, Callable[..., Any]] = {Space: compute_chunk, QuestionSpace: compute_question_chunk}
"""Function from a space, one of its chunks and the callable that answers to the columns of the chunk, by the kind of
space."""

FORMATS = (".parquet", ".csv")
_MANIFEST = "manifest.json"
_FORMAT = 2
_LOCK = ".lock"
_FINISHED = "finished"
_MAX_MANIFEST_BYTES = 2**26

Progress = Callable[[int, int], None]
"""Function called with the number of finished chunks and of all chunks."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity of the sweep that a folder of chunks belongs to."""

    format: int  # version of the folder's format
    inputs: dict[str, str]  # hashes of what the rows depend on, see `AxisSpace.inputs`
    rows: int
    chunks: int
    as_of: date  # day of the first run, which decides what prices are old


class Sweep(Result, msgspec.Struct, frozen=True):
    """A finished sweep.

    Attributes
    ----------
    path : Path
        Output file.
    rows, feasible : int
        Number of rows, and of feasible rows.
    chunks, resumed : int
        Number of chunks, and of chunks left by an interrupted run.
    seconds : float
        Duration of this run.
    samples : float or None
        Number of samples that hours, cost and energy refer to; None where each row has its own amount.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.sweep:sweep_page"

    path: Path
    rows: int
    feasible: int
    chunks: int
    resumed: int
    seconds: float
    samples: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "output": str(self.path),
            "rows": self.rows,
            "feasible": self.feasible,
            "chunks": self.chunks,
            "resumed": self.resumed,
            "seconds": self.seconds,
        }

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        pandas = require("pandas", "a data frame", "profiles")
        if self.path.suffix == ".csv":
            return pandas.read_csv(self.path)
        return pandas.read_parquet(self.path)


def run_sweep(
    space: AnySpace,
    output: Path,
    # `chunk.ChooseModel` for a `Space`, `questions.Answer` for a `QuestionSpace`; a function of a module, since it is
    # sent to other processes.
    answer: Callable[..., Any],
    *,
    jobs: int | None = None,  # number of processes; by default one per core
    # Address of a Dask scheduler; its workers need paleo-lite, but no common file system: they send chunks back.
    scheduler: str | None = None,
    force: bool = False,  # whether to replace an existing output
    progress: Progress | None = None,
) -> Sweep:
    """Predict every combination of a space into a ``.parquet`` or ``.csv`` file.

    Raise BadValue if the output exists or has another suffix, if its folder of chunks belongs to another sweep or
    another process is working on it, and BadFile if the folder of the output does not exist.

    Raise SweepStopped if the sweep is interrupted or a file cannot be written; finished chunks are kept. Raise it also
    if a file that the rows depend on has changed since the start; no chunk is kept then.
    """
    require("pyarrow", "a sweep's output", "profiles")
    start = time.perf_counter()
    space.check()
    chunks: list[AnyChunk] = [*space.chunks()]
    if output.suffix not in FORMATS:
        raise BadValue(f"the output of a sweep must end in {' or '.join(FORMATS)} (got {output})")
    folder = output.with_name(f"{output.name}.partial")
    asked_space = space
    try:
        _remove_leftovers(folder, output)
        check_outputs(output, force=force)
        manifest = Manifest(_FORMAT, space.inputs(), space.size, len(chunks), date.today())
        with lock_file(folder / _LOCK, "a sweep is being written"), ExitStack() as at_end:
            check_outputs(output, force=force)  # the previous owner of the lock may have written it
            as_of = _prepare_folder(folder, manifest)
            space = msgspec.structs.replace(space, as_of=as_of)
            at_end.callback(_remove_empty_manifest, folder)
            at_end.push(partial(_forget_mixed_chunks_after, folder, asked_space, manifest.inputs))
            finished = {chunk.number for chunk in chunks if _chunk_file(folder, chunk.number).is_file()}
            resumed = len(finished)
            if progress:
                progress(resumed, len(chunks))
            remaining = [chunk for chunk in chunks if chunk.number not in finished]
            files = tuple(item for item in manifest.inputs.items() if item[0] != COMBINATIONS)
            compute = partial(encode_chunk, space, answer, files, folder if scheduler is None else None)
            for chunk, data in run_tasks(remaining, compute, jobs, scheduler, _stop_for_dead_process):
                if data is not None:
                    write_atomically(_chunk_file(folder, chunk.number), data)
                finished.add(chunk.number)  # a chunk that arrives twice replaces itself
                if progress:
                    progress(len(finished), len(chunks))
            changed = _forget_mixed_chunks(folder, asked_space, manifest.inputs)
            if changed:
                raise SweepStopped(
                    f"{clean_message(', '.join(changed[:3]))} changed while the sweep ran: its rows may be of both "
                    "versions and are not kept; the same command begins anew"
                )
            chunk_files = [_chunk_file(folder, chunk.number) for chunk in chunks]
            rows, feasible = _merge(chunk_files, folder, space, output)
            _clear_folder(folder)
    except KeyboardInterrupt:
        if _is_finished(folder, output):
            _remove_leftovers(folder, output)
            raise Interrupted(f"the sweep was interrupted when {output} was complete") from None
        raise Interrupted(f"the sweep was interrupted; {_describe_progress(folder, space)}") from None
    except ClusterLost as error:
        raise SweepStopped(f"{error}; {_describe_progress(folder, space)}") from None
    except OSError as error:
        raise SweepStopped(_describe_write_error(error, folder, space)) from None
    seconds = time.perf_counter() - start
    return Sweep(output, rows, feasible, len(chunks), resumed, seconds, space.samples)


def _is_finished(folder: Path, output: Path) -> bool:
    """Return whether the output is the merged file of this folder."""
    try:
        finished = (folder / _FINISHED).read_bytes()
    except OSError:
        return False
    return finished == _identity_of(output)


def _identity_of(merged: Path) -> bytes:
    """Return what identifies a merged file, whether it still has its own name or that of the output."""
    version = version_of(merged)
    return f"{version.modified_ns} {version.size}".encode()


def _remove_leftovers(folder: Path, output: Path) -> None:
    """Remove the folder of a sweep that was killed after its output was complete."""
    if not folder.is_dir():
        return
    if _is_finished(folder, output) or [file.name for file in folder.iterdir()] == [_LOCK]:
        with lock_file(folder / _LOCK, "a sweep is being written"):
            if _is_finished(folder, output):
                _clear_folder(folder)


def _clear_folder(folder: Path) -> None:
    """Remove all files but the lock, last the one that marks the sweep as finished."""
    for file in sorted(folder.iterdir(), key=lambda file: file.name == _FINISHED):
        if file.name != _LOCK:
            file.unlink()


def _changed_inputs(space: AnySpace, before: dict[str, str]) -> list[str]:
    """Return the names of those inputs of the rows that have changed."""
    try:
        now = space.inputs()
    except OSError as error:  # a file is gone
        now = {**before, str(error.filename): ""}
    except PaleoError:  # a folder has no network any more, or a file became a pipe
        now = {COMBINATIONS: before[COMBINATIONS], **shared_inputs()}
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _forget_mixed_chunks(folder: Path, space: AnySpace, inputs: dict[str, str]) -> list[str]:
    """Remove the chunks if what they depend on has changed since the run began; return its names.

    Some of the chunks may have been computed from the old files, and others from the new ones.
    """
    changed = _changed_inputs(space, inputs)
    if changed:
        for file in folder.glob("chunk-*.parquet"):
            file.unlink()
    return changed


def _forget_mixed_chunks_after(folder: Path, space: AnySpace, inputs: dict[str, str], *error: object) -> None:
    """Remove mixed chunks if the run ends early: a later run could not notice that the old files were put back."""
    if any(error) and _count_chunk_files(folder):
        _forget_mixed_chunks(folder, space, inputs)


def _remove_empty_manifest(folder: Path) -> None:
    """Remove the manifest of a sweep that has no chunk yet, so that a sweep that cannot start leaves nothing."""
    if not _count_chunk_files(folder):
        (folder / _MANIFEST).unlink(missing_ok=True)


def _stop_for_dead_process(chunk: AnyChunk, error: PaleoError) -> NoReturn:
    raise SweepStopped(f"the process that computed chunk {chunk.number} died (out of memory?): use fewer `--jobs`")


def _describe_progress(folder: Path, space: AnySpace) -> str:
    finished = _count_chunk_files(folder)
    if not finished:
        return f"none of {space.chunk_count} chunks was finished: the same command begins anew"
    return f"{finished} of {space.chunk_count} chunks are kept in {folder}: the same command resumes the sweep"


def _describe_write_error(error: OSError, folder: Path, space: AnySpace) -> str:
    state = _describe_progress(folder, space)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"no space left to write {error.filename or folder} ({error.strerror}); {state} once there is space"
    if _count_chunk_files(folder):
        return f"the sweep cannot be written ({error}); {state}"
    return f"the sweep cannot be written: {error}"


def _count_chunk_files(folder: Path) -> int:
    return len(list(folder.glob("chunk-*.parquet"))) if folder.is_dir() else 0


def _prepare_folder(folder: Path, manifest: Manifest) -> date:
    """Write the manifest into a new folder, or check that an existing one is of the same sweep; return its day."""
    path = folder / _MANIFEST
    if not path.exists():
        if any(file.name not in (_LOCK, _FINISHED) for file in folder.iterdir()):
            raise BadValue(f"{folder} is not the folder of a sweep: delete it or choose another name for the output")
        (folder / _FINISHED).unlink(missing_ok=True)
        write_atomically(path, msgspec.json.format(msgspec.json.encode(manifest)))
        return manifest.as_of
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise BadFile(f"{path}: too large for the manifest of a sweep")
    try:
        existing = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: {error}; delete {folder} to start again") from None
    if existing != msgspec.structs.replace(manifest, as_of=existing.as_of):
        raise BadValue(_describe_difference(folder, existing, manifest))
    (folder / _FINISHED).unlink(missing_ok=True)  # of an output that was removed or replaced
    for temporary in folder.glob(".*"):  # unfinished files of an earlier run that was killed
        if temporary.name != _LOCK:
            temporary.unlink()
    return existing.as_of


def _describe_difference(folder: Path, existing: Manifest, manifest: Manifest) -> str:
    """Return the sentence for a folder of chunks that were computed from something else."""
    changed = sorted(
        name for name in {*existing.inputs, *manifest.inputs} if existing.inputs.get(name) != manifest.inputs.get(name)
    )
    if changed and COMBINATIONS not in changed:
        return (
            f"{folder} holds rows that were computed before {clean_message(', '.join(changed[:3]))} changed: delete it "
            "to start again, or choose another name"
        )
    return f"{folder} belongs to another sweep ({existing.rows:,} combinations): delete it or choose another name"


def _chunk_file(folder: Path, number: int) -> Path:
    return folder / f"chunk-{number:06d}.parquet"


@lru_cache(1)
def _forget_other_inputs(inputs: tuple[tuple[str, str], ...]) -> None:
    """Empty the caches of this process if its last chunk was computed from other inputs.

    A process may compute the chunks of several sweeps: with one job it is the caller's, and that of a Dask worker.
    """
    forget_cases()
    load_machine.cache_clear()


def encode_chunk(
    space: AnySpace,
    answer: Callable[..., Any],
    inputs: tuple[tuple[str, str], ...],
    folder: Path | None,
    chunk: AnyChunk,
) -> bytes | None:
    """Predict a chunk and write it to the folder as a Parquet file.

    Without a folder, on a machine that does not share it, return the bytes of the file instead. `inputs` are the hashes
    of the files that the rows depend on; what this process keeps of others is forgotten.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    _forget_other_inputs(inputs)
    columns = COMPUTE[type(space)](space, chunk, answer)
    arrays: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column, StringColumn):
            codes = pa.array(column.codes, mask=column.codes < 0)
            arrays[name] = pa.DictionaryArray.from_arrays(codes, pa.array(list(column.values), pa.string()))
        elif column.dtype.kind == "i":
            arrays[name] = pa.array(column, mask=column < 0)
        else:
            arrays[name] = pa.array(column, mask=np.isnan(column))  # from_pandas=True would import pandas
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink, compression="zstd", compression_level=1)
    data = bytes(sink.getvalue())
    if folder is None:
        return data
    write_atomically(_chunk_file(folder, chunk.number), data)
    return None


def _merge(files: list[Path], folder: Path, space: AnySpace, output: Path) -> tuple[int, int]:
    """Merge all chunks into one file, with a row group per chunk; return the number of rows and of feasible rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    merged = folder / f".whole.{os.getpid()}{output.suffix}"
    rows = feasible = 0
    writer = sink = None
    try:
        for file in files:
            try:
                table = pq.read_table(file, partitioning=None)
            except (ValueError, KeyError) as error:
                raise BadFile(f"{file}: {error}; delete it and run the same command") from None
            if writer is None or sink is None:
                sink = pa.OSFile(str(merged), "wb")
                writer = _open_writer(sink, output.suffix, table.schema, space)
            writer.write(table if output.suffix == ".parquet" else without_dictionaries(table))
            rows += table.num_rows
            feasible += table.column("reason").null_count
        assert writer is not None and sink is not None
        writer.close()
        length = sink.tell()
        sink.close()
        writer = sink = None
    finally:
        for open_file in (writer, sink):
            if open_file is not None:
                _close_quietly(open_file)
    if rows != space.size:
        raise BadFile(
            f"{folder}: the chunks have {rows:,} rows instead of {space.size:,}: delete the folder to start again"
        )
    _verify_merged_file(merged, length, rows)
    write_atomically(folder / _FINISHED, _identity_of(merged))
    merged.replace(output)
    return rows, feasible


def _verify_merged_file(merged: Path, length: int, rows: int) -> None:
    """Check that the merged file is complete on the disk before it replaces the chunks; else raise SweepStopped."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with merged.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        is_complete = merged.stat().st_size == length
        if is_complete and merged.suffix == ".parquet":
            is_complete = pq.read_metadata(merged).num_rows == rows
    except (pa.ArrowException, ValueError):
        is_complete = False
    if not is_complete:
        raise SweepStopped(f"{merged} is incomplete: the disk lost part of it; the chunks are kept in the same folder")


def _open_writer(sink: Any, suffix: str, schema: Any, space: AnySpace) -> Any:
    """Return a Parquet or CSV writer."""
    import pyarrow as pa

    if suffix == ".parquet":
        import pyarrow.parquet as pq

        metadata = msgspec.json.encode(space.metadata)
        schema = schema.with_metadata({b"paleo_lite.sweep": metadata})
        return pq.ParquetWriter(sink, schema, compression="zstd", compression_level=1)
    from pyarrow import csv

    return csv.CSVWriter(sink, pa.schema([(field.name, _value_type(field.type)) for field in schema]))


def without_dictionaries(table: Any) -> Any:
    """Return a table with strings instead of dictionaries.

    CSV does not support dictionaries, and those of different row groups differ.
    """
    import pyarrow as pa

    return table.cast(pa.schema([(field.name, _value_type(field.type)) for field in table.schema]))


def _value_type(type_: Any) -> Any:
    """Return the type of a dictionary's values, and any other type unchanged."""
    import pyarrow as pa

    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _close_quietly(writer: Any) -> None:
    """Close a file that will not be used, on a disk that may be full."""
    try:
        writer.close()
    except OSError:
        return
