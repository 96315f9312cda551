"""Reader of TAU's merged XML profile (``TAU_PROFILE_FORMAT=merged``): timers and message sizes of every thread.

A file is a sequence of ``<profile_xml>`` documents: definitions of events, one document per thread with a line of
numbers per event, then totals and means over the threads, which are skipped. The outputs of processes are separated
by a zero byte. The meaning of the numbers is described in `tau`.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

import pyarrow as pa

from ..errors import BadProfile
from .detect import open_decompressed
from .lines import number_of, quoted
from .table import batches_of
from .tau import category_of

_CHUNK = 2**16
_LONGEST_TEXT = 2**16
_LONGEST_TOKEN = 2**22
_MOST_EVENTS = 2**20
_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}\?>)?")
_STRING_END = re.compile(rb"\0(?=<profile_xml|\Z)")
_DOCUMENT = re.compile(rb"(?:\xef\xbb\xbf)?\s*<[^\0]{0,4096}?<?profile_xml[\s>]", re.DOTALL)


def _as_latin_1(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("paleo-latin-1", _as_latin_1)


class TauXml:
    """Reader of TAU's merged XML, also as gzip. `device` is the process (TAU's node), `thread` the thread."""

    name = "tau-xml"
    description = "TAU merged XML"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether the first element is ``<profile_xml>``."""
        return bool(_DOCUMENT.match(head[:8192]))

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all threads, 16,384 at a time."""
        yield from batches_of(_rows(path), _FIELDS, columns)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    reader = _TauReader(path)
    for chunk in _chunks(path):
        reader.feed(chunk)
        yield from reader.rows
        reader.rows = []
    reader.finish()
    yield from reader.rows


class _TauReader:
    """Incremental XML parser; the caller removes the finished `rows`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.names: dict[tuple[str, str, str], tuple[str, str]] = {}  # (kind, thread, id): name, group
        self.time: dict[str, str] = {}  # thread: id of the metric that is time
        self.stack: list[str] = []
        self.scope = "*"  # thread of the definitions, * for all
        self.thread = ""
        self.seen: set[str] = set()
        self.event: dict[str, str] = {}
        self.metrics: list[str] = []
        self.text = ""
        self.line = 1
        self.fed = 0
        self.parser = parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        # TAU declares no entities. Entities can expand a small file without limit, or include other files.
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        self._parse(b"<profiles>")  # the documents of a file need one root

    def feed(self, chunk: bytes) -> None:
        self._parse(chunk)
        if self.fed - self.parser.CurrentByteIndex > _LONGEST_TOKEN:
            raise BadProfile(f"{self.path}: line {self.parser.CurrentLineNumber}: a tag of more than 4 MiB")

    def finish(self) -> None:
        self._parse(b"</profiles>", True)
        if not self.seen:
            raise BadProfile(f"{self.path}: no <profile> of a thread, expected TAU's XML")

    def _parse(self, chunk: bytes, last: bool = False) -> None:
        self.fed += len(chunk)
        try:
            self.parser.Parse(chunk, last)
        except expat.ExpatError as error:
            problem = expat.ErrorString(error.code)
            raise BadProfile(f"{self.path}: line {error.lineno}: XML that is cut or corrupted ({problem})") from None

    def _refuse(self, *_: Any) -> None:
        raise BadProfile(
            f"{self.path}: line {self.parser.CurrentLineNumber}: a DOCTYPE or entity, which TAU never writes"
        )

    def _bad(self, text: str) -> BadProfile:
        return BadProfile(f"{self.path}: line {self.line}: {text}")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.line = self.parser.CurrentLineNumber
        if len(self.stack) > 16:
            raise self._bad("more than 16 elements within each other")
        self.stack.append(tag)
        self.text = ""
        if tag == "definitions":
            self.scope = attributes.get("thread", "*")
        elif tag in ("event", "userevent", "metric"):
            self.event = {"id": attributes.get("id", "")}
        elif tag == "profile":
            self.thread = attributes.get("thread", "")
            if self.thread in self.seen:
                raise self._bad(
                    f"a second profile of thread {quoted(self.thread)}: snapshots add up, merge them with TAU"
                )
            self.seen.add(self.thread)
        elif tag == "interval_data":
            self.metrics = attributes.get("metrics", "0").split()

    def _characters(self, text: str) -> None:
        tag = self.stack[-1]
        if tag in ("interval_data", "atomic_data"):
            *lines, self.text = (self.text + text).split("\n")
            for line in lines:
                self._numbers(tag, line)
                self.line += 1
        elif tag in ("name", "group", "units") and len(self.stack) >= 2:
            self.text += text
        if len(self.text) > _LONGEST_TEXT:
            raise self._bad(f"a text of more than {_LONGEST_TEXT:,} characters")

    def _end(self, tag: str) -> None:
        self.stack.pop()
        if tag in ("interval_data", "atomic_data"):
            self._numbers(tag, self.text)
        elif tag in ("name", "group") and self.stack[-1] in ("event", "userevent", "metric"):
            self.event[tag] = self.text
        elif tag in ("event", "userevent"):
            if len(self.names) >= _MOST_EVENTS:
                raise self._bad(f"more than {_MOST_EVENTS:,} events")
            kind = "interval_data" if tag == "event" else "atomic_data"
            named = (self.event.get("name", ""), self.event.get("group", ""))
            self.names[kind, self.scope, self.event["id"]] = named
        elif tag == "metric" and "TIME" in self.event.get("name", "").upper():
            self.time.setdefault(self.scope, self.event["id"])
        self.text = ""

    def _numbers(self, kind: str, line: str) -> None:
        """Add the row of a line of numbers: the id of an event and its measurements on `thread`."""
        words = line.split()
        if not words:
            return
        expected = 3 + 2 * len(self.metrics) if kind == "interval_data" else 6
        name, group = self.names.get((kind, self.thread, words[0])) or self.names.get((kind, "*", words[0])) or ("", "")
        if not name:
            raise self._bad(f"event {quoted(words[0])} is not defined")
        try:
            values = [number_of(word) for word in words[1:]]
        except ValueError as error:
            raise self._bad(f"{quoted(str(error))} is not a number") from None
        if len(words) != expected:
            raise self._bad(f"{len(words)} numbers, expected {expected}")
        if not 0 <= values[0] < 2**53:
            raise self._bad("a number of calls out of range")
        row: dict[str, Any] = {"kernel": name, "calls": int(values[0])}
        row["category"] = "message" if "MPI" in group.split("|") else category_of(name)
        row["device"], row["thread"] = self._process_and_thread()
        if kind == "interval_data":
            row |= self._times(values)
        elif values[0] and not 0 <= min(values[1:4]) <= max(values[1:4]) < 2**53:
            raise self._bad("a message size is negative or out of range")
        elif values[0]:
            row |= {"bytes": float(round(values[0] * values[3]))}
            row |= {"metric.message_min_bytes": values[2], "metric.message_max_bytes": values[1]}
        else:
            row["bytes"] = 0.0
        self.rows.append(row)

    def _times(self, values: list[float]) -> dict[str, float | None]:
        time = self.time.get(self.thread) or self.time.get("*")
        if time not in self.metrics:
            raise self._bad("no metric of time")
        exclusive, inclusive = values[2 + 2 * self.metrics.index(time) :][:2]
        if not max(abs(exclusive), abs(inclusive)) < 2**53:
            raise self._bad("a time out of range")
        return {"duration_ns": inclusive * 1e3 if inclusive >= 0 else None, "metric.exclusive_ns": exclusive * 1e3}

    def _process_and_thread(self) -> tuple[int, int]:
        """Return process and thread from ``node.context.thread`` or ``node.context.thread.pid``."""
        parts = self.thread.split(".")
        if len(parts) not in (3, 4) or not all(part.isdecimal() and len(part) <= 18 for part in parts):
            raise self._bad(f"the thread is called {quoted(self.thread)}, expected node.context.thread")
        return int(parts[0]), int(parts[2])


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the file as UTF-8 without the XML declaration; bytes that are not UTF-8 are read as Latin-1."""
    decoder = codecs.getincrementaldecoder("utf-8")("paleo-latin-1")
    first = True
    try:
        with open_decompressed(path) as file:
            while chunk := file.read(_CHUNK):
                if first:
                    declaration = _DECLARATION.match(chunk)
                    if declaration:  # keep its line breaks, so that the line numbers of errors are right
                        line_breaks = b"\n" * chunk.count(b"\n", 0, declaration.end())
                        chunk = line_breaks + chunk[declaration.end() :]
                    first = False
                yield decoder.decode(_STRING_END.sub(b" ", chunk)).encode()
        yield decoder.decode(b"", final=True).encode()
    except OSError as error:
        raise BadProfile(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error) as error:
        raise BadProfile(f"{path}: gzip that is cut or corrupted ({error})") from None


_FIELDS = (
    *("category", "kernel", "duration_ns", "calls", "bytes", "device", "thread", "metric.exclusive_ns"),
    *("metric.message_min_bytes", "metric.message_max_bytes"),
)
