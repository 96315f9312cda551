"""Running a sweep: chunks beside each other in a folder, then one file.

While it runs, ``NAME.partial`` holds a manifest and a Parquet file for every finished chunk, each written aside and
renamed; what is interrupted goes on from there. At the end the chunks are written one after another into one file,
which is looked at, takes its name when it is whole, and only then do the chunks go. The folder is locked, so that two
sweeps with one output do not write into each other. Memory is that of a chunk in each process, however many there are.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import msgspec
import numpy as np

from ..errors import BadFile, BadValue, Interrupted, PaleoError, SweepStopped
from ..executor import run_tasks
from ..extras import need
from ..files import locked, write_aside
from ..result import Result
from .chunk import ModelOf, Words, compute_chunk
from .space import Chunk, Space

FORMATS = (".parquet", ".csv")
_MANIFEST = "manifest.json"
_LOCK = ".lock"
_BYTES_AT_MOST = 2**26

Progress = Callable[[int, int], None]
"""Called with the chunks that are done and all of them."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a folder of chunks is part of."""

    format: int
    digest: str
    rows: int
    chunks: int


class Sweep(Result, msgspec.Struct, frozen=True):
    """A finished sweep.

    Attributes
    ----------
    chunks, resumed : int
        Chunks, and how many of them an earlier run had left.
    seconds : float
        How long this run took.
    samples : float
        What hours, cost and energy are for.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.sweep:sweep_page"

    path: Path
    rows: int
    feasible: int
    chunks: int
    resumed: int
    seconds: float
    samples: float

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        return {
            "output": str(self.path),
            "rows": self.rows,
            "feasible": self.feasible,
            "chunks": self.chunks,
            "resumed": self.resumed,
            "seconds": self.seconds,
        }

    def to_frame(self) -> Any:
        """The rows that were written, as a pandas DataFrame."""
        pandas = need("pandas", "a data frame", "profiles")
        return pandas.read_csv(self.path) if self.path.suffix == ".csv" else pandas.read_parquet(self.path)


def run_sweep(
    space: Space,
    output: Path,
    model_of: ModelOf,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Sweep:
    """Predict every combination of a space into a file.

    Parameters
    ----------
    output : Path
        ``.parquet`` or ``.csv``.
    model_of : callable
        A function of a module, as it travels between processes; see `chunk.ModelOf`.
    jobs : int, optional
        Processes, one per core without it.
    scheduler : str, optional
        Address of a Dask scheduler, whose workers have paleo-lite; they send chunks back and need no common files.
    force : bool
        Whether an output that exists is replaced.

    Raises
    ------
    BadValue
        If the output exists or has another ending, its folder of chunks belongs to another sweep, or a process is
        at work on it.
    SweepStopped
        If it is interrupted or a file cannot be written: the chunks that are done are kept.
    PaleoError
        If the space is impossible.
    """
    need("pyarrow", "a sweep's output", "profiles")
    started = time.perf_counter()
    space.check()
    if output.suffix not in FORMATS:
        raise BadValue(f"{output}: a sweep is written as {' or '.join(FORMATS)}")
    if output.exists() and not force:
        raise BadValue(f"{output} already exists: choose another name, or --force to replace it")
    folder, chunks = output.with_name(f"{output.name}.partial"), list(space.chunks())
    try:
        manifest = Manifest(1, space.digest(), space.size, len(chunks))
        with locked(folder / _LOCK, "it is being swept"):
            if output.exists() and not force:  # whoever held the lock has written it meanwhile
                raise BadValue(f"{output} already exists: choose another name, or --force to replace it")
            _open(folder, manifest)
            done = {chunk.number for chunk in chunks if _file(folder, chunk.number).is_file()}
            kept = len(done)
            if progress:
                progress(kept, len(chunks))
            left = [chunk for chunk in chunks if chunk.number not in done]
            work = partial(encode_chunk, space, model_of, folder if scheduler is None else None)
            for chunk, data in run_tasks(left, work, jobs, scheduler, _died):
                if data is not None:
                    write_aside(_file(folder, chunk.number), data)
                done.add(chunk.number)  # one that comes twice takes the place of itself
                if progress:
                    progress(len(done), len(chunks))
            rows, feasible = _merge([_file(folder, chunk.number) for chunk in chunks], folder, space, output)
            for file in folder.iterdir():
                if file.name != _LOCK:
                    file.unlink()
    except KeyboardInterrupt:
        raise Interrupted(f"the sweep was interrupted; {_what_is_kept(folder, space)}") from None
    except OSError as error:
        raise SweepStopped(_why_unwritten(error, folder, space)) from None
    seconds = time.perf_counter() - started
    return Sweep(output, rows, feasible, len(chunks), kept, seconds, space.samples)


def _died(chunk: Chunk, error: PaleoError) -> NoReturn:
    raise SweepStopped(f"the process that computed chunk {chunk.number} died (out of memory?): take fewer --jobs")


def _what_is_kept(folder: Path, space: Space) -> str:
    return f"{_done(folder)} of {space.chunk_count} chunks are kept in {folder}: the same command goes on from there"


def _why_unwritten(error: OSError, folder: Path, space: Space) -> str:
    state = _what_is_kept(folder, space)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"no room left to write {error.filename or folder} ({error.strerror}); {state} once there is room"
    if _done(folder):
        return f"the sweep cannot be written ({error}); {state}"
    return f"the sweep cannot be written: {error}"


def _done(folder: Path) -> int:
    return len(list(folder.glob("chunk-*.parquet"))) if folder.is_dir() else 0


def _open(folder: Path, manifest: Manifest) -> None:
    """Make the folder, or take up the one that is there if it is of the same sweep."""
    path = folder / _MANIFEST
    if not path.exists():
        if any(file.name != _LOCK for file in folder.iterdir()):
            raise BadValue(f"{folder} is not the folder of a sweep: delete it or choose another name for the output")
        write_aside(path, msgspec.json.format(msgspec.json.encode(manifest)))
        return
    if path.stat().st_size > _BYTES_AT_MOST:
        raise BadFile(f"{path}: larger than any manifest of a sweep")
    try:
        other = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: {error}; delete {folder} to start again") from None
    if other != manifest:
        raise BadValue(
            f"{folder} is left over from another sweep ({other.rows:,} combinations): delete it or choose another name"
        )
    for stray in folder.glob(".*"):  # what was being written when an earlier run was killed
        if stray.name != _LOCK:
            stray.unlink()


def _file(folder: Path, index: int) -> Path:
    return folder / f"chunk-{index:06d}.parquet"


def encode_chunk(space: Space, model_of: ModelOf, folder: Path | None, chunk: Chunk) -> bytes | None:
    """A chunk as a Parquet file in the folder; without one, of a machine that has no such folder, its bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays: dict[str, Any] = {}
    for name, column in compute_chunk(space, chunk, model_of).items():
        if isinstance(column, Words):
            codes = pa.array(column.codes, mask=column.codes < 0)
            arrays[name] = pa.DictionaryArray.from_arrays(codes, pa.array(list(column.values), pa.string()))
        elif column.dtype.kind == "i":
            arrays[name] = pa.array(column, mask=column < 0)
        else:
            arrays[name] = pa.array(column, mask=np.isnan(column))  # from_pandas would import pandas
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink, compression="zstd", compression_level=1)
    data = bytes(sink.getvalue())
    if folder is None:
        return data
    write_aside(_file(folder, chunk.number), data)
    return None


def _merge(files: list[Path], folder: Path, space: Space, output: Path) -> tuple[int, int]:
    """All chunks in one file, one row group each; how many rows there are, and how many are feasible."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    aside = folder / f".whole.{os.getpid()}{output.suffix}"
    rows = feasible = 0
    writer = sink = None
    try:
        for file in files:
            try:
                table = pq.read_table(file, partitioning=None)
            except (ValueError, KeyError) as error:
                raise BadFile(f"{file}: {error}; delete it and give the same command") from None
            if writer is None or sink is None:
                sink = pa.OSFile(str(aside), "wb")
                writer = _writer(sink, output.suffix, table.schema, space)
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
                _abandon(open_file)
    if rows != space.size:
        raise BadFile(
            f"{folder}: its chunks have {rows:,} rows, the sweep has {space.size:,}: delete it to start again"
        )
    _check_whole(aside, length, rows)
    aside.replace(output)
    return rows, feasible


def _check_whole(aside: Path, length: int, rows: int) -> None:
    """Look at what was written before it takes the place of its chunks: on the disk, as long as it was made.

    Raises
    ------
    SweepStopped
        If it is not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with aside.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        whole = aside.stat().st_size == length and (
            aside.suffix != ".parquet" or pq.read_metadata(aside).num_rows == rows
        )
    except (pa.ArrowException, ValueError):
        whole = False
    if not whole:
        raise SweepStopped(f"{aside} is not what was written: the disk lost some of it; the chunks are kept beside it")


def _writer(sink: Any, suffix: str, schema: Any, space: Space) -> Any:
    import pyarrow as pa

    about = msgspec.json.encode({"samples": space.samples, "optimizer": space.optimizer, "ppp": space.ppp})
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        schema = schema.with_metadata({b"paleo_lite.sweep": about})
        return pq.ParquetWriter(sink, schema, compression="zstd", compression_level=1)
    from pyarrow import csv

    return csv.CSVWriter(sink, pa.schema([(field.name, _plain_type(field.type)) for field in schema]))


def without_dictionaries(table: Any) -> Any:
    """A table with words in place of dictionaries, which CSV has not and which differ from row group to row group."""
    import pyarrow as pa

    words = [(field.name, _plain_type(field.type)) for field in table.schema]
    return table.cast(pa.schema(words))


def _plain_type(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _abandon(writer: Any) -> None:
    """Close a file that will not be used, on a disk that may be full."""
    try:
        writer.close()
    except OSError:
        return
