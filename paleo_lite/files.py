"""Files: written aside and renamed, found beside the package or in the repository, cached under the user's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import BadFile, BadValue, PaleoError

_T = TypeVar("_T")


def write_aside(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all: aside, flushed, renamed."""
    import tempfile

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    aside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(0o644)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def save(path: Path, data: bytes) -> None:
    """Write what a user asked for; see `write_aside`.

    Raises
    ------
    BadFile
        If it cannot be written.
    """
    try:
        write_aside(path, data)
    except OSError as error:
        raise BadFile(f"{path}: cannot be written ({error.strerror})") from None


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a file, in a folder that is made for it, so that no other process does what it stands for.

    The system frees it when the process ends, of whatever. Processes forked in the meantime hold it, too. Afterwards
    it is gone, and so is the folder if it is empty.

    Raises
    ------
    BadValue
        If another process holds it; the sentence names `what` is going on there and who does it.
    """
    file = None
    try:
        while file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
            if not _lock(file.fileno()):
                file.seek(0)
                raise BadValue(f"{path.parent}: {what} by {file.read(200).strip() or 'another process'}")
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                file.close()  # whoever held it was done and took it away
                file = None
        file.truncate(0)
        host = os.uname().nodename if hasattr(os, "uname") else "this machine"
        file.write(f"process {os.getpid()} on {host}\n")
        file.flush()
        try:
            yield
        finally:
            if sys.platform == "win32":  # where what is open stays
                file.close()
            path.unlink(missing_ok=True)
            with suppress(OSError):  # there is something in it
                path.parent.rmdir()
    finally:
        if file is not None:
            file.close()


def _lock(number: int) -> bool:
    """Whether a file became this process's."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(number, 2**30, os.SEEK_SET)  # what is locked cannot be read there, and others read who holds it
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:
        if sys.platform != "win32":
            raise
        return False
    return True


def shipped(folder: str) -> Path:
    """The folder of shipped data: ``models``, ``hardware`` or ``calibrations``.

    In the wheel they lie inside the package, in a checkout beside it.
    """
    package = Path(__file__).parent
    inside = package / "data" / folder
    return inside if inside.is_dir() else package.parent / folder


def is_there(path: str | Path, kind: Callable[[Path], bool] = Path.is_file) -> bool:
    """Whether there is such a file (or what else `kind` asks), also of a text that can be no name of one: too long."""
    try:
        return kind(Path(path))
    except OSError:
        return False


def cache_folder() -> Path:
    """Where derived files are kept: ``PALEO_LITE_CACHE``, else ``paleo-lite`` in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get("PALEO_LITE_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "paleo-lite"


def read_typed(path: Path, kind: type[_T], what: str, bytes_at_most: int, raised: type[PaleoError] = BadFile) -> _T:
    """Read a TOML or JSON file (by its ending) into a type that says what it must hold.

    Parameters
    ----------
    kind : type
        A msgspec struct.
    what : str
        What such a file is, for the message: ``"calibration"``.
    raised : type
        The class of the error.
    """
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        if path.stat().st_size > bytes_at_most:
            raise raised(f"{path}: larger than {bytes_at_most} bytes, too large for a {what}")
        return decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise raised(f"{path}: cannot be read ({error.strerror})") from None
    except (msgspec.DecodeError, ValueError) as error:  # also NUL in a name
        raise raised(f"{path}: {error}") from None
    except RecursionError:
        raise raised(f"{path}: nested too deeply for a {what}") from None


def check_new(*paths: Path | None, force: bool) -> None:
    """Refuse before any work what could not be written, or would replace a file unasked. Folders are made.

    Raises
    ------
    BadValue
        If it is a folder, or a file is there and not to be replaced.
    BadFile
        If its folder cannot be written, or is a file.
    """
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise BadValue(f"{path} is a folder: name a file in it")
        if path.exists() and not force:
            raise BadValue(f"{path} already exists: choose another name, or --force to replace it")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if not folder.is_dir():
            raise BadFile(f"{path} cannot be written: {folder} is not a folder")
        if not os.access(folder, os.W_OK):
            raise BadFile(f"{path} cannot be written: no permission to write in {folder}")
