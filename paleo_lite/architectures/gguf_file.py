"""Headers of GGUF files: the settings of the network and the type of every tensor, without reading a tensor.

The reader is written by hand: the ``gguf`` package maps whole files, keeps an object per word of the vocabulary and
trusts the lengths in a file. This one skips vocabularies and has a limit for everything
that a file can ask for. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import re
import struct
from math import prod
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..errors import BadFile
from ..files import check_regular
from ..gguf_types import GGUF_TYPES

MAGIC = b"GGUF"
VERSIONS = (2, 3)

MOST_FIELDS, MOST_TENSORS, MOST_FILES = 10_000, 100_000, 1_000
LONGEST_TEXT = 1 << 20
LONGEST_ARRAY = 1 << 24
KEPT_ELEMENTS = 1024
"""Arrays with more elements than this, such as vocabularies, are skipped: only their length is kept."""
MOST_HEADER_BYTES = 1 << 26
ALIGNMENT = 32
"""Bytes to a multiple of which the data of tensors are aligned, unless ``general.alignment`` says otherwise."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9

_TYPE_NUMBERS = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k",
    13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl",
    21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
}  # fmt: skip
"""Types of tensors by the numbers of ``ggml.h``."""

_SPLIT = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor of a GGUF file."""

    name: str  # name, such as ``blk.0.attn_q.weight``
    shape: tuple[int, ...]  # sizes, the numbers of a row first
    type: str  # one of `paleo_lite.gguf_types.GGUF_TYPES`

    @property
    def numbers(self) -> int:
        """Numbers of the tensor."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        kind = GGUF_TYPES[self.type]
        return self.numbers // kind.block_numbers * kind.block_bytes


class GgufHeader(msgspec.Struct, frozen=True):
    """What the headers of a GGUF file, or of all its parts, say."""

    # Metadata by key, such as ``llama.block_count``; of long arrays only the length, as ``KEY.length``
    fields: dict[str, Any]
    tensors: tuple[StoredTensor, ...]  # all tensors

    @property
    def architecture(self) -> str:
        """Architecture, such as ``llama``."""
        return str(self.fields.get("general.architecture", ""))

    @property
    def types(self) -> dict[str, str]:
        """Type of each tensor by its name."""
        return {tensor.name: tensor.type for tensor in self.tensors}

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of the architecture, such as ``block_count``."""
        return self.fields.get(f"{self.architecture}.{name}", default)


def read_gguf_header(path: str | Path) -> GgufHeader:
    """Read the header of a GGUF file; of a split file those of all parts, wherever one is named.

    Raise BadFile if a file is missing, damaged, truncated, or asks for more than any real file. A file that ends with
    its header is read: the data of the tensors are not needed.
    """
    path = Path(path)
    files = _parts_of(path)
    fields: dict[str, Any] = {}
    tensors: list[StoredTensor] = []
    for file in files:
        header = _read_one(file)
        fields = {**header.fields, **fields}
        tensors += header.tensors
    expected = fields.get("split.tensors.count")
    if isinstance(expected, int) and len(files) > 1 and expected != len(tensors):
        raise BadFile(f"{path}: its {len(files)} parts have {len(tensors)} tensors, but should have {expected}")
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        raise BadFile(f"{path}: a tensor occurs twice")
    return GgufHeader(fields, tuple(tensors))


def _parts_of(path: Path) -> list[Path]:
    """Return all files of a split model; the file itself if it is not split."""
    match = _SPLIT.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= MOST_FILES:
        raise BadFile(f"{path}: a model has 1 to {MOST_FILES} parts, not {count}")
    parts = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise BadFile(f"{path}: the part {missing[0]} of the model is missing: put all {count} files into one folder")
    return parts


def _read_one(path: Path) -> GgufHeader:
    try:
        check_regular(path)
        with path.open("rb") as file:
            return _GgufReader(file, path).header()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror or error})") from None


class _GgufReader:
    """Bounded reader of one header."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path

    def header(self) -> GgufHeader:
        if self.file.read(4) != MAGIC:
            raise BadFile(f"{self.path}: not a GGUF file: it does not start with {MAGIC.decode()!r}")
        version = self.scalar("I")
        if version not in VERSIONS:
            raise BadFile(f"{self.path}: version {version} of GGUF is not supported, only {VERSIONS}")
        tensors, fields = self.scalar("Q"), self.scalar("Q")
        if tensors > MOST_TENSORS or fields > MOST_FIELDS:
            raise BadFile(f"{self.path}: {tensors} tensors and {fields} fields: no real file has as many")
        metadata: dict[str, Any] = {}
        for _ in range(fields):
            key = self.text()
            if key in metadata:
                raise BadFile(f"{self.path}: the field {key!r} occurs twice")
            value, length = self.value(self.scalar("I"))
            if length is not None:
                metadata[f"{key}.length"] = length
            else:
                metadata[key] = value
        tensors_with_offsets = [self.tensor() for _ in range(tensors)]
        self.check_size(max((offset + tensor.bytes for tensor, offset in tensors_with_offsets), default=0), metadata)
        return GgufHeader(metadata, tuple(tensor for tensor, _ in tensors_with_offsets))

    def check_size(self, data_bytes: int, metadata: dict[str, Any]) -> None:
        """Check that the file has the data of all tensors, or of none."""
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise BadFile(f"{self.path}: general.alignment is {alignment!r}, not a number of bytes")
        start = -(-self.file.tell() // alignment) * alignment
        size = self.file.seek(0, SEEK_END)
        if start < size < start + data_bytes:
            raise BadFile(
                f"{self.path}: the file ends after {size:,} of {start + data_bytes:,} bytes: it is damaged or "
                "incomplete"
            )

    def tensor(self) -> tuple[StoredTensor, int]:
        """Return a tensor, and where its data start."""
        name, dimensions = self.text(), self.scalar("I")
        if not 1 <= dimensions <= 4:
            raise BadFile(f"{self.path}: the tensor {name!r} has {dimensions} dimensions, not 1 to 4")
        shape = tuple(self.scalar("Q") for _ in range(dimensions))
        number = self.scalar("I")
        offset = self.scalar("Q")
        if number not in _TYPE_NUMBERS:
            raise BadFile(f"{self.path}: the tensor {name!r} has the unknown type {number}")
        kind = _TYPE_NUMBERS[number]
        if min(shape) < 1 or prod(shape) >= 1 << 50 or shape[0] % GGUF_TYPES[kind].block_numbers:
            raise BadFile(f"{self.path}: the tensor {name!r} has the impossible shape {shape} for {kind}")
        return StoredTensor(name, shape, kind), offset

    def value(self, kind: int) -> tuple[Any, int | None]:
        """Return a value, or the length of an array that is skipped."""
        if kind == _TEXT:
            return self.text(), None
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind]), None
        if kind != _ARRAY:
            raise BadFile(f"{self.path}: a field has the unknown type {kind}")
        element, length = self.scalar("I"), self.scalar("Q")
        if length > LONGEST_ARRAY:
            raise BadFile(f"{self.path}: an array of {length} elements: no real file has one")
        if element == _TEXT:
            if length <= KEPT_ELEMENTS:
                return [self.text() for _ in range(length)], None
            for _ in range(length):
                self.skip(self.text_length())
            return None, length
        if element not in _SCALARS:
            raise BadFile(f"{self.path}: an array has elements of the unsupported type {element}")
        code = _SCALARS[element]
        size = struct.calcsize(f"<{code}") * length
        if length > KEPT_ELEMENTS:
            self.skip(size)
            return None, length
        return list(struct.unpack(f"<{length}{code}", self.read(size))), None

    def text_length(self) -> int:
        length: int = self.scalar("Q")
        if length > LONGEST_TEXT:
            raise BadFile(f"{self.path}: a text of {length} bytes: no real file has one")
        return length

    def text(self) -> str:
        return self.read(self.text_length()).decode("utf-8", "replace")

    def scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.read(struct.calcsize(f"<{code}")))[0]

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        if len(content) < size or self.file.tell() > MOST_HEADER_BYTES:
            raise BadFile(f"{self.path}: the file ends, or its header does not: it is damaged or incomplete")
        return content

    def skip(self, size: int) -> None:
        """Skip bytes piece by piece, so that a truncated file is noticed."""
        while size > 0:
            size -= len(self.read(min(size, 1 << 16)))
