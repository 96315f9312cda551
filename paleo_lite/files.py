"""Reading and writing of files: atomic writes, locks, shipped data, the cache folder and typed TOML or JSON."""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import msgspec

from .errors import BadFile, BadValue, PaleoError

_T = TypeVar("_T")

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, or a sequence of paths."""

NOT_TEXT = "not a text file in UTF-8"
"""What is wrong with a file whose bytes cannot be decoded."""


def to_paths(paths: Paths) -> list[Path]:
    """Return a path or a sequence of paths as a list."""
    if isinstance(paths, (str, os.PathLike)):
        return [Path(paths)]
    return [Path(path) for path in paths]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or not at all: write a temporary file, flush it and rename it."""
    import tempfile

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, which is read in pieces; raise BadFile if it cannot be read."""
    import hashlib

    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None


def without_copies(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files without those that have the content of an earlier one, and a sentence about each of these."""
    if len(paths) < 2:
        return list(paths), []
    sizes = Counter(path.stat().st_size for path in paths)
    distinct, sentences = list[Path](), list[str]()
    originals: dict[str, Path] = {}  # the first file of each content
    for path in paths:
        if path in distinct:
            sentences.append(f"{path} is given twice, and counts once")
            continue
        original = path if sizes[path.stat().st_size] == 1 else originals.setdefault(sha256_of(path), path)
        if original == path:
            distinct.append(path)
        else:
            sentences.append(f"{path} has the content of {original}, and counts once")
    return distinct, sentences


def discard(path: Path) -> None:
    """Remove a derived file that is damaged, if the folder allows it; it is written again when it is next needed."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def save(path: Path, data: bytes) -> None:
    """Write an output file that the user requested, with `write_atomically`; raise BadFile if it cannot be written."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise BadFile(f"{path}: cannot be written ({error.strerror})") from None


@contextmanager
def lock_file(path: Path, activity: str) -> Iterator[None]:
    """Hold an exclusive lock on a file, to keep other processes from doing the same work.

    The folder of the file is created if necessary. The operating system releases the lock when the process ends for any
    reason; processes forked in the meantime hold it, too. On exit the file is removed, and its folder if it is empty.
    Raise BadValue, with the activity (``"a sweep is being written"``), if another process holds the lock.
    """
    file = None
    try:
        while file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b", buffering=0)
            if not _try_lock(file.fileno()):
                file.seek(0)
                owner = file.read(200).decode(errors="replace").strip() or "another process"
                raise BadValue(f"{path.parent}: {activity} by {owner}")
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                file.close()  # the previous owner has just removed the file: open a new one
                file = None
        try:
            file.truncate(0)
            host = os.uname().nodename if hasattr(os, "uname") else "this machine"
            file.write(f"process {os.getpid()} on {host}\n".encode())
            yield
        finally:
            if sys.platform == "win32":  # where an open file cannot be removed
                file.close()
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder is not empty
                path.parent.rmdir()
    finally:
        if file is not None:
            file.close()


def _try_lock(descriptor: int) -> bool:
    """Try to lock an open file; return whether this succeeded."""
    try:
        if sys.platform == "win32":
            import msvcrt

            # A locked byte cannot be read: lock one far behind the text that names the owner.
            os.lseek(descriptor, 2**30, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:
        if sys.platform != "win32":
            raise
        return False
    return True


def shipped_folder(folder: str) -> Path:
    """Return the path of a folder of shipped data: ``models``, ``hardware`` or ``calibrations``.

    In the wheel these folders are inside the package, in a checkout next to it.
    """
    package = Path(__file__).parent
    inside = package / "data" / folder
    return inside if inside.is_dir() else package.parent / folder


def file_exists(path: str | Path, test: Callable[[Path], bool] = Path.is_file) -> bool:
    """Return whether a file exists; False also for a text that is too long to be a file name.

    The test is `Path.is_file`, or another one such as `Path.exists`.
    """
    try:
        return test(Path(path))
    except OSError:
        return False


def is_missing_path(name: str) -> bool:
    """Return whether a text is the path of a file or folder that does not exist, and cannot be another kind of name."""
    return name.startswith(("/", "./", "../", "~/")) and not file_exists(name, Path.exists)


NO_SUCH_FILE = "cannot be read (No such file or directory)"
"""What is wrong with a path for which `is_missing_path` holds."""


def cache_folder() -> Path:
    """Return the folder of derived files.

    This is ``PALEO_LITE_CACHE`` if set, else ``paleo-lite`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    configured = os.environ.get("PALEO_LITE_CACHE")
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME")
    parent = Path(base) if base else Path.home() / ".cache"
    return parent / "paleo-lite"


class FileVersion(NamedTuple):
    """A file as it is now; the time and size tell its versions apart, where its contents are kept in memory."""

    path: Path
    modified_ns: int
    size: int


def version_of(path: Path) -> FileVersion:
    """Return the version of a file; one that cannot be read has no time and no size."""
    try:
        status = path.stat()
    except OSError:
        return FileVersion(path, 0, 0)
    return FileVersion(path, status.st_mtime_ns, status.st_size)


_KERNEL_FOLDERS = (Path("/proc"), Path("/sys"))
"""Folders whose files the kernel makes as they are read: reading one may wait or never end."""


def check_regular(path: Path, error_class: type[PaleoError] = BadFile) -> None:
    """Check, before a file is opened, that it ends: that it is a regular file, also behind a symbolic link.

    A pipe of the shell is accepted as well, that is ``<(command)`` or ``/dev/stdin``: its writer is there. Raise
    OSError if there is no such file, and an error of the class if it is a folder, a device, a socket, a pipe with a
    name or a file of the kernel.
    """
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        if _has_name(path.resolve()):
            raise error_class(
                f"{path}: cannot be read (it is a named pipe, which may never have a writer: give a file, or "
                "`<(command)`)"
            )
        return
    is_kernel = any(path.resolve().is_relative_to(folder) for folder in _KERNEL_FOLDERS)
    if not stat.S_ISREG(mode) or (is_kernel and sys.platform == "linux"):
        raise error_class(f"{path}: cannot be read (it is not a regular file)")


def _has_name(pipe: Path) -> bool:
    """Return whether a pipe lies in a folder; otherwise it is open already, as a descriptor of this process."""
    return pipe.exists() and pipe.parent != Path(
        "/dev/fd"
    )  # where Linux shows a link to no place, other systems a file


def read_limited(path: Path, max_bytes: int, description: str, error_class: type[PaleoError] = BadFile) -> bytes:
    """Return the bytes of a file, of which no more is read than a description of this kind may have.

    Raise OSError if it cannot be read, and an error of the class if it is not a regular file, or larger.
    """
    check_regular(path, error_class)
    pieces, remaining_bytes = [], max_bytes + 1
    with path.open("rb") as file:
        at_once = max(os.fstat(file.fileno()).st_size + 1, 2**16)  # `read` allocates all requested bytes first
        while remaining_bytes > 0 and (piece := file.read(min(at_once, remaining_bytes))):
            pieces.append(piece)
            remaining_bytes -= len(piece)
    data = b"".join(pieces)
    if len(data) > max_bytes:
        raise error_class(f"{path}: larger than {max_bytes} bytes, too large for a {description}")
    return data


_LOOKED_AT: set[Any] = set()
_LOOKING = Lock()


def typed(struct: type[_T]) -> type[_T]:
    """Return a type once msgspec has looked at its fields: two threads that look at once would end the process."""
    if struct not in _LOOKED_AT:
        with _LOOKING:
            msgspec.json.Decoder(struct)
            _LOOKED_AT.add(struct)
    return struct


def read_typed(
    path: Path,
    struct: type[_T],  # a msgspec struct that defines the fields
    description: str,  # kind of file for error messages, such as ``"calibration"``
    max_bytes: int,
    error_class: type[PaleoError] = BadFile,  # class of the raised error
) -> _T:
    """Read and validate a TOML or JSON file; the suffix selects the format."""
    try:
        data = read_limited(path, max_bytes, description, error_class)
        if not data.strip():
            raise error_class(f"{path}: the file is empty, not a {description}")
        if path.suffix == ".json":
            return msgspec.json.decode(data, type=typed(struct))
        return msgspec.convert(_decode_toml(data), typed(struct), str_keys=True)
    except OSError as error:
        raise error_class(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise error_class(f"{path}: {NOT_TEXT}, and therefore no {description}") from None
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: a null byte in the name
        raise error_class(f"{path}: {error}") from None
    except RecursionError:
        raise error_class(f"{path}: nested too deeply for a {description}") from None


_MAX_CALIBRATION_BYTES = 2**22


def read_shipped(name: str, struct: type[_T]) -> _T:
    """Read and validate a file of the shipped calibrations."""
    return read_typed(shipped_folder("calibrations") / name, struct, "calibration", _MAX_CALIBRATION_BYTES)


MOST_KEY_PARTS = 32
"""Most parts of a dotted key: the memory of the parser grows with their square."""

_STRINGS_AND_COMMENTS = re.compile(
    r"""
    \"{3} (?: [^"\\] | \\. | "(?!"") )*+ (?: \"{3} | \Z )  # an open one reaches to the end
    | \'{3} (?: [^'] | '(?!'') )*+ (?: \'{3} | \Z )
    | " (?: [^"\\\n] | \\[^\n] )*+ "?
    | ' [^'\n]*+ '?
    | \# [^\n]*+
    """,
    re.DOTALL | re.VERBOSE,
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_KEY_PARTS}}}")


def _decode_toml(data: bytes) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raise ValueError if it is no TOML, a key has too many parts, or a number is infinite or none (nan).
    """
    import tomllib

    text = data.decode("utf-8")
    long_key = _LONG_KEY.search(_STRINGS_AND_COMMENTS.sub("key", text))
    if long_key is not None:
        raise ValueError(f"a key has more than {MOST_KEY_PARTS} parts: {long_key[0][:40]}...")
    tree = tomllib.loads(text)
    _check_numbers(tree)
    return tree


def _check_numbers(tree: dict[str, Any]) -> None:
    """Raise ValueError for the first number that is infinite or none, with its place as msgspec writes it."""
    pending: list[tuple[str, Any]] = [("$", tree)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{place} is {value}, expected a finite number")
        if isinstance(value, dict):
            pending += [(f"{place}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{place}[{index}]", item) for index, item in enumerate(value)]


def check_outputs(*paths: Path | None, force: bool) -> None:
    """Check that output files can be written, before the computation starts; None is skipped.

    With `force` existing files may be replaced. Raise BadValue if a path is a folder, or a file exists that may not be
    replaced, and BadFile if the folder of a file does not exist, is not writable or not a folder.
    """
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise BadValue(f"{path} is a folder: give a file name inside it")
        if path.exists() and not force:
            raise BadValue(f"{path} already exists: choose another name, or `--force` to replace it")
        folder = path.absolute().parent
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        if not nearest.is_dir():
            raise BadFile(f"{path} cannot be written: {nearest} is not a folder")
        if nearest != folder:
            raise BadFile(f"{path} cannot be written: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise BadFile(f"{path} cannot be written: no permission to write in {folder}")
