"""Streaming of one array of a JSON document that may be larger than memory.

msgspec parses the pieces; this module decides where to cut. A piece that ends between two elements becomes a JSON
array when it is enclosed in brackets. A piece that ends elsewhere does not, because an open string or bracket
remains. The cut can therefore be guessed from the bytes, and the decoder accepts or rejects it. After a rejected
guess the brackets outside strings are counted.

Pieces can also be decoded ahead by other processes. All cuts are then guesses, and results are used in file order: a
piece that starts between two elements and is accepted by the decoder also ends between two elements, so the next one
starts there too. From the first piece that is not accepted, the document is read sequentially.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import msgspec

from ..errors import BadProfile
from .detect import is_gzip, open_decompressed

T = TypeVar("T")
R = TypeVar("R")

PIECE = 2**20
"""Bytes per read. Gzip is expanded by at most this much per step."""

SPAN = 2**22
"""Bytes of a span that another process decodes: several times a piece, because each span has a fixed cost."""

ELEMENT_LIMIT = 32 * 2**20
"""Maximum bytes of one element, and of the document outside the array."""

CUT_OFF = "it is cut off or damaged: copy it again, or record it again"
"""What to do about a file that does not end as it should."""

_WINDOW = 2**18  # bytes at the end of a span that are searched for a cut if the file is not compressed
_SMALLEST_WINDOW = 2**8  # bytes in which the end of a small array is searched first
_LONGEST_KEY = 2**12  # bytes of a key with white space that can be split between two reads
_BYTE = re.compile(r"\(byte (\d+)\)")
_BOM = b"\xef\xbb\xbf"


class Elements(NamedTuple, Generic[T]):
    """A piece of consecutive complete elements."""

    start: int  # byte offset of `text` in the (decompressed) document
    text: bytes  # the elements as a JSON array, in brackets
    decoded: T  # result of the decoder for the text


class TextSpan(NamedTuple):
    """Text between two guessed cuts: elements without brackets, if both cuts are between elements."""

    # Byte offset in the (decompressed) document, and number of bytes.
    start: int
    length: int
    text: bytes | None  # the text, followed by the comma of the cut; None for a file that is not compressed


class JsonArray(Generic[T]):
    """An array that is the whole document or the value of a key of the outermost object, in a plain or gzip file.

    `key` is that of the array, such as ``"traceEvents"``. `decode` makes a result of the bytes of a JSON array, and
    raises `msgspec.DecodeError` for invalid JSON. `around` is the document with an empty array, available when `pieces`
    is exhausted.
    """

    def __init__(self, path: Path, key: str, decode: Callable[[bytes], T]) -> None:
        self.path = path
        self.key = key
        self.decode = decode
        self.around = b""
        self._buffer = b""
        self._offset = 0  # of the buffer's first byte in the document
        self._ended = False
        self._after_comma = False
        self._is_document = False  # whether the array is the whole document
        self._ahead: deque[TextSpan] = deque()  # spans whose results are not known yet
        self._returned = io.BytesIO()  # text that is read before the rest of the file
        self._failure: Exception | None = None  # of reading the file

    def pieces(self) -> Iterator[Elements[T]]:
        """Yield the elements in file order."""
        with open_decompressed(self.path) as file:
            head = self._find_array(file)
            yield from self._elements(file)
            self.around = head + self._rest(file)

    def pieces_ahead(
        self, run: Callable[[Iterator[TextSpan]], Generator[R | None, None, None]]
    ) -> Iterator[R | Elements[T]]:
        """Yield the results of a function for as many pieces as possible, then the remaining elements.

        `run` goes from spans to their results in the same order; it may read spans ahead and end early. The result must
        be None for a span that is not a JSON array when enclosed in brackets, or that contains an error.
        """
        with open_decompressed(self.path) as file:
            head = self._find_array(file)
            is_compressed = is_gzip(self.path)
            end = self._offset
            with closing(run(self._read_spans(file) if is_compressed else self._find_spans(file))) as results:
                for result in results:
                    if result is None:
                        break
                    span = self._ahead.popleft()
                    end = span.start + span.length + 1
                    self._after_comma = True
                    yield result
            if is_compressed:
                self._return_spans()
            else:
                file.seek(end)
                self._buffer, self._offset, self._ended = b"", end, False
            yield from self._elements(file)
            self.around = head + self._rest(file)

    def _return_spans(self) -> None:
        """Go back to the start of the first span without a result."""
        spans = b"".join(span.text for span in self._ahead if span.text is not None)
        self._ahead.clear()
        self._returned = io.BytesIO(spans + self._buffer)
        self._buffer = b""
        self._offset -= len(spans)
        self._ended = False

    def _find_spans(self, file: BinaryIO) -> Iterator[TextSpan]:
        """Yield the spans of a file that is not compressed, up to the last piece; only their ends are read."""
        start, file_end = self._offset, os.fstat(file.fileno()).st_size
        while start + SPAN < file_end:
            window_start = max(start, start + SPAN - _WINDOW)
            try:
                file.seek(window_start)
                cut = last_seam(file.read(start + SPAN - window_start))
            except OSError:  # raised again after the pieces before it
                return
            if cut is None:
                return
            span = TextSpan(start, window_start + cut - start, None)
            self._ahead.append(span)
            start += span.length + 1
            yield span

    def _read_spans(self, file: BinaryIO) -> Iterator[TextSpan]:
        """Yield the spans of a compressed file, up to the last piece."""
        while True:
            try:
                self._fill(file, SPAN)
            except BadProfile:  # raised again after the pieces before it
                return
            cut = None if self._ended else last_seam(self._buffer)
            if cut is None:
                return
            span = TextSpan(self._offset, cut, self._buffer[: cut + 1])
            self._ahead.append(span)
            self._drop(cut + 1)
            yield span

    def _elements(self, file: BinaryIO) -> Iterator[Elements[T]]:
        """Yield the elements from the start of the buffer up to the bracket that closes the array."""
        fill_bytes = PIECE
        while True:
            self._fill(file, fill_bytes)
            piece = self._guess()
            if piece is not None:
                yield piece
                fill_bytes = PIECE
                continue
            comma, end = last_comma_and_end(self._buffer)
            if end is not None:
                yield self._take(end, end)
                return
            if comma is not None:
                yield self._take(comma, comma + 1)
                fill_bytes = PIECE
                continue
            if self._ended:
                if self._is_document:
                    self._close()
                    continue
                end = self._offset + len(self._buffer)
                raise self._bad(0, f"the file ends at byte {end} inside the element: {CUT_OFF}")
            if len(self._buffer) >= ELEMENT_LIMIT:
                raise self._bad(0, f"an element is larger than {ELEMENT_LIMIT // 2**20} MiB")
            fill_bytes = 2 * len(self._buffer)

    def _close(self) -> None:
        """Add the bracket that a program which ended early did not write; the Trace Event Format makes it optional."""
        self._is_document = False
        whole = self._buffer.rstrip()
        if whole.endswith((b"}", b"},")) or not whole:
            self._after_comma = False
            self._buffer = whole.removesuffix(b",") + b"]"

    def _find_array(self, file: BinaryIO) -> bytes:
        fill_bytes = PIECE
        while True:
            self._fill(file, fill_bytes)
            start = array_start(self._buffer, self.key.encode())
            if start is not None:
                break
            if self._ended:
                raise self._bad(len(self._buffer), f"the file ends and no array {self.key!r} has begun")
            if len(self._buffer) >= ELEMENT_LIMIT:
                raise self._bad(0, f"no array {self.key!r} in the first {ELEMENT_LIMIT // 2**20} MiB")
            fill_bytes = 2 * len(self._buffer)
        head = self._buffer[:start].removeprefix(_BOM)
        self._is_document = head.strip() == b"["
        self._drop(start)
        return head

    def _rest(self, file: BinaryIO) -> bytes:
        self._fill(file, ELEMENT_LIMIT)
        if not self._ended:
            raise self._bad(0, f"more than {ELEMENT_LIMIT // 2**20} MiB follow the array {self.key!r}")
        return self._buffer

    def _guess(self) -> Elements[T] | None:
        """Return the piece up to the last `}, {` of the buffer, or None if that is not between two elements."""
        cut = last_seam(self._buffer)
        if cut is None:
            return None
        text = b"[" + self._buffer[:cut] + b"]"
        try:
            decoded = self.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            position = _position_of(error)
            if position is not None and position < len(text) - 1 and "trailing characters" not in str(error):
                raise self._undecoded(text, error) from None  # invalid before the cut: no other cut helps
            return None
        piece = Elements(self._offset - 1, text, decoded)
        self._after_comma = True
        self._drop(cut + 1)
        return piece

    def _take(self, cut: int, after: int) -> Elements[T]:
        if (self._after_comma or after > cut) and not self._buffer[:cut].strip():
            raise self._bad(cut, "a comma without an element")
        text = b"[" + self._buffer[:cut] + b"]"
        try:
            decoded = self.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise self._undecoded(text, error) from None
        piece = Elements(self._offset - 1, text, decoded)
        self._after_comma = after > cut
        self._drop(after)
        return piece

    def _undecoded(self, text: bytes, error: Exception) -> BadProfile:
        if isinstance(error, RecursionError):
            return self._bad(0, "brackets are nested too deeply")
        if isinstance(error, UnicodeDecodeError):
            return self._bad(0, "a text that is not UTF-8 follows")
        position = _position_of(error)
        if position is None:
            return self._bad(0, f"not JSON ({error})")
        return self._bad(min(position, len(text)) - 1, f"not JSON ({_BYTE.sub('', str(error)).strip()})")

    def _bad(self, position: int, problem: str) -> BadProfile:
        return bad_at(self.path, self._offset + position, problem)

    def _drop(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._offset += count

    def _read(self, file: BinaryIO, size: int) -> bytes:
        piece = self._returned.read(size)
        if piece:
            return piece
        if self._failure is not None:
            raise self._failure
        return file.read(size)

    def _fill(self, file: BinaryIO, size: int) -> None:
        pieces, length = [self._buffer], len(self._buffer)
        while length < size and not self._ended:
            try:
                piece = self._read(file, min(PIECE, size - length))
            except (EOFError, OSError, zlib.error) as error:
                self._failure = error
                self._buffer = b"".join(pieces)
                raise self._bad(length, f"the file cannot be read further ({error}): {CUT_OFF}") from None
            self._ended = not piece
            pieces.append(piece)
            length += len(piece)
        self._buffer = b"".join(pieces)


def doubts_of_array(path: Path) -> list[str]:
    """Return a sentence about a document that is an array without its closing bracket; nothing about any other."""
    with open_decompressed(path) as file:
        last = file.read(_SMALLEST_WINDOW)
        if last.removeprefix(_BOM).lstrip()[:1] != b"[":
            return []
        while piece := file.read(PIECE):
            last = (last + piece)[-_SMALLEST_WINDOW:]
    is_closed = last.rstrip().endswith(b"]")
    return [] if is_closed else ["the list of events has no closing bracket: its last events may be missing, too"]


class NestedArrays(JsonArray[T]):
    """The arrays with given keys, at any depth of a document; all other parts are skipped.

    A key in quotes before a colon and a bracket cannot occur inside a string, because the quotes are escaped there.
    `end` is the pattern of the end of a complete document, because the skipped parts are not parsed. The rest is as for
    `JsonArray`.
    """

    def __init__(self, path: Path, keys: Sequence[str], decode: Callable[[bytes], T], end: re.Pattern[bytes]) -> None:
        super().__init__(path, " or ".join(keys), decode)
        alternatives = b"|".join(re.escape(key.encode()) for key in keys)
        self._end = end
        self._pattern = re.compile(rb'"(' + alternatives + rb')"\s*:\s*\[')

    def arrays(self) -> Iterator[tuple[str, Elements[T]]]:
        """Yield key and elements, piece by piece, in file order.

        Raise BadProfile if the document ends inside an array, or without its closing bracket.
        """
        with open_decompressed(self.path) as file:
            while True:
                self._fill(file, PIECE)
                yield from self._small_arrays()
                key = self._find_key(file)
                if key is None:
                    break
                for piece in self._elements(file):
                    yield key, piece
            if self._end.search(self._buffer) is None:
                raise self._bad(len(self._buffer), "the file ends inside the document")

    def _small_arrays(self) -> Iterator[tuple[str, Elements[T]]]:
        """Yield the arrays that are whole in the buffer, up to one with an error, and drop them together.

        A file may have an array per 20 bytes: the buffer must not be copied or searched whole for each of them.
        """
        position = 0
        while (match := self._pattern.search(self._buffer, position)) is not None:
            start, window, end = match.end(), _SMALLEST_WINDOW, None
            while end is None and window < 2 * (len(self._buffer) - start):
                _, end = last_comma_and_end(self._buffer[start : start + window])
                window *= 2
            if end is None:
                break
            text = b"[" + self._buffer[start : start + end] + b"]"
            try:
                decoded = self.decode(text)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                break  # reported when the elements are read one piece after another
            yield match[1].decode(), Elements(self._offset + start - 1, text, decoded)
            position = start + end
        self._drop(position)

    def _find_key(self, file: BinaryIO) -> str | None:
        """Skip to the next array; return its key, or None at the end of the file."""
        while True:
            self._fill(file, PIECE)
            match = self._pattern.search(self._buffer)
            if match is not None:
                self._drop(match.end())
                self._after_comma = False
                return match[1].decode()
            if self._ended:
                return None
            self._drop(max(len(self._buffer) - _LONGEST_KEY, 0))


def bad_at(path: Path, byte: int, problem: str) -> BadProfile:
    """Return the error for a byte offset of the (decompressed) document."""
    where = " of the decompressed text" if is_gzip(path) else ""
    return BadProfile(f"{path}: at byte {byte}{where}: {problem}")


def decode_around(array: JsonArray[Any], type_: type[T]) -> T | None:
    """Decode the document outside the array; None if the document is the array itself.

    Raise BadProfile if it is not JSON or not of this type.
    """
    try:
        if array.around.lstrip()[:1] == b"[":
            msgspec.json.decode(array.around, type=list[Any])
            return None
        return msgspec.json.decode(array.around, type=type_)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadProfile(
            f"{array.path}: the document outside {array.key!r}, up to byte {array._offset + len(array._buffer)}, "
            f"cannot be read ({_BYTE.sub('', str(error)).strip()})"
        ) from None


def _position_of(error: Exception) -> int | None:
    match = _BYTE.search(str(error))
    return int(match.group(1)) if match else None


_GUESSES = 200
_TOKEN = re.compile(rb'["{}\[\],]')
_BRACKET = re.compile(rb'["{}\[\]]')
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


def last_seam(buffer: bytes) -> int | None:
    """Return the position of the comma of the last ``} , {`` with any white space."""
    end = len(buffer)
    for _ in range(_GUESSES):
        brace = buffer.rfind(b"{", 0, end)
        if brace < 0:
            return None
        before = buffer[max(brace - 256, 0) : brace].rstrip(b" \t\r\n")
        if before.endswith(b",") and before[:-1].rstrip(b" \t\r\n").endswith(b"}"):
            return max(brace - 256, 0) + len(before) - 1
        end = brace
    return None


def _string_end(buffer: bytes, start: int) -> int | None:
    """Return the position after the closing quote of the string that starts here."""
    quote = buffer.find(b'"', start)
    while quote >= 0:
        back = quote
        while back > start and buffer[back - 1] == 0x5C:
            back -= 1
        if (quote - back) % 2 == 0:
            return quote + 1
        quote = buffer.find(b'"', quote + 1)
    return None


def last_comma_and_end(buffer: bytes) -> tuple[int | None, int | None]:
    """Return the last comma between elements and the bracket that closes the array, if it is in the buffer.

    The search stops where a string directly follows another string, because the text is not JSON.
    """
    depth, position, comma, string = 0, 0, None, -1
    while True:
        # Commas are searched for only between elements.
        match = (_TOKEN if depth == 0 else _BRACKET).search(buffer, position)
        if match is None:
            return comma, None
        token, position = match.group(), match.end()
        if token == b'"':
            end = _string_end(buffer, position)
            if end is None or match.start() == string:
                return comma, None
            position = string = end
        elif token in b"{[":
            depth += 1
        elif token == b",":
            comma = match.start()
        elif depth == 0:
            return comma, match.start()
        else:
            depth -= 1


def array_start(buffer: bytes, key: bytes) -> int | None:
    """Return the position after the bracket that opens the array: the outermost one, or the value of the key."""
    depth, position, last = 0, 0, (0, 0)
    while (match := _BRACKET.search(buffer, position)) is not None:
        token, position = match.group(), match.end()
        if token == b'"':
            end = _string_end(buffer, position)
            if end is None:
                return None
            last, position = (position, end), end
        elif token in b"{[":
            if token == b"[" and depth == 0:
                return match.end()
            is_key = depth == 1 and last[1] - last[0] == len(key) + 1 and buffer.startswith(key, last[0])
            if token == b"[" and is_key and _COLON.fullmatch(buffer, last[1], match.start()):
                return match.end()
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                return None
    return None
