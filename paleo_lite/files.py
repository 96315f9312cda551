"""Files: written aside and renamed, found beside the package or in the repository, cached under the user's folder."""

from __future__ import annotations

import os
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


def shipped(folder: str) -> Path:
    """The folder of shipped data: ``models``, ``hardware`` or ``calibrations``.

    In the wheel they lie inside the package, in a checkout beside it.
    """
    package = Path(__file__).parent
    inside = package / "data" / folder
    return inside if inside.is_dir() else package.parent / folder


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
    path : Path
    kind : type
        A msgspec struct.
    what : str
        What such a file is, for the message: ``"calibration"``.
    bytes_at_most : int
    raised : type
        The class of the error.

    Raises
    ------
    BadFile
        Or `raised`: if it cannot be read, is larger, or does not hold what it must; the message names file and field.
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
    """Refuse before any work what would replace a file unasked.

    Raises
    ------
    BadValue
        If a file is there and not to be replaced.
    """
    for path in paths:
        if path is not None and path.exists() and not force:
            raise BadValue(f"{path} already exists: choose another name, or --force to replace it")
