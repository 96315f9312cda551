"""Headers of safetensors files: name, type, shape and bytes of every tensor of a checkpoint, without reading a tensor.

A file begins with eight bytes, the length of its header, and the header in JSON
(https://github.com/huggingface/safetensors#format). All lengths are checked against the file and against limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from ..errors import BadDescriptor
from ..files import check_regular, file_exists
from .descriptor import read_bounded

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

MOST_HEADER_BYTES = 100_000_000
"""Longest header, the limit of the library that writes such files."""

MOST_FILES, MOST_TENSORS, MOST_TOTAL_BYTES = 2_000, 2_000_000, 500_000_000
"""Limits of a checkpoint: files, tensors, and bytes of all headers."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64,
    "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of a number by the name of its type."""

_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class _Entry(msgspec.Struct, frozen=True):
    """A tensor of a header."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=16)]
    data_offsets: tuple[_Size, _Size]


class _Index(msgspec.Struct, frozen=True):
    """An index of several files."""

    weight_map: dict[str, str]


class FileTensor(NamedTuple):
    """A tensor of a checkpoint."""

    # Name, and type of its numbers, one of `BITS`
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes of the tensor in the file."""
        return prod(self.shape) * BITS[self.dtype] // 8


class Stamp(NamedTuple):
    """The size and the time of the last change of a file, by which a changed file is recognised."""

    path: str
    size: int
    modified_ns: int


def stamp_checkpoint(folder: Path) -> tuple[Stamp, ...]:
    """Return the stamps of the files of the checkpoint in a folder; none without a checkpoint, or if a file is missing.

    Raise BadDescriptor if an index is malformed.
    """
    stamps = []
    for file in _files_of(folder) or ():
        status = file.stat()
        stamps.append(Stamp(str(file), status.st_size, status.st_mtime_ns))
    return tuple(stamps)


def _files_of(folder: Path) -> list[Path] | None:
    """Return the files of the checkpoint in a folder; None if there is none, or one of them is missing."""
    index = folder / INDEX
    if not file_exists(index):
        return [folder / SINGLE] if file_exists(folder / SINGLE) else None
    try:
        names = sorted(set(msgspec.json.decode(read_bounded(index), type=_Index).weight_map.values()))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDescriptor(f"{index}: {error}") from None
    if len(names) > MOST_FILES:
        raise BadDescriptor(f"{index}: {len(names)} files are more than {MOST_FILES}")
    for name in names:
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise BadDescriptor(f"{index}: {name[:100]!r} is not a name of a .safetensors file in the index's folder")
    files = [folder / name for name in names]
    return files if files and all(file_exists(file) for file in files) else None


def read_tensors(stamps: Iterable[Stamp]) -> tuple[FileTensor, ...]:
    """Return the tensors of some files.

    Raise BadDescriptor if a header is malformed or larger than any.
    """
    tensors: list[FileTensor] = []
    header_bytes = 0
    for stamp in stamps:
        header, file_tensors = read_header(Path(stamp.path), stamp.size)
        header_bytes += header
        tensors += file_tensors
        if header_bytes > MOST_TOTAL_BYTES or len(tensors) > MOST_TENSORS:
            raise BadDescriptor(f"{stamp.path}: the headers of the checkpoint are longer than any")
    return tuple(tensors)


def read_header(path: Path, size: int) -> tuple[int, list[FileTensor]]:
    """Return the length of the header of a file of a given size, and its tensors.

    Raise BadDescriptor if the header is not that of a safetensors file, or does not fit the file.
    """
    try:
        check_regular(path, BadDescriptor)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MOST_HEADER_BYTES):
                raise BadDescriptor(
                    f"{path}: is not a safetensors file: its header of {length:,} bytes does not fit a file of {size:,}"
                )
            data = file.read(length)
    except OSError as error:
        raise BadDescriptor(f"{path}: cannot be read ({error.strerror})") from None
    try:
        raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadDescriptor(f"{path}: the header is malformed: {error}") from None
    tensors = []
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        if entry.dtype not in BITS:
            raise BadDescriptor(f"{path}: tensor {name[:100]!r} has the type {entry.dtype[:20]!r}, which is not known")
        tensor = FileTensor(name, entry.dtype, entry.shape)
        if not begin <= end <= size - 8 - length or end - begin != tensor.stored_bytes:
            raise BadDescriptor(
                f"{path}: tensor {name[:100]!r} has {tensor.stored_bytes:,} bytes by its shape, but lies at {begin:,} "
                f"to {end:,} of {size - 8 - length:,}"
            )
        tensors.append(tensor)
    return length, tensors
