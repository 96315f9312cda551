"""Archives of result files: their members are unpacked, within bounds, into a folder that is removed afterwards."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import BadFile, PaleoError
from .deepbench import is_spreadsheet

MOST_MEMBERS = 20_000
MOST_BYTES = 4 * 2**30
"""Most files of an archive, and most bytes of all of them together when they are unpacked."""

_CHUNK_BYTES = 2**20


@contextmanager
def unpacked(paths: list[Path], keep_going: bool) -> Iterator[tuple[list[tuple[Path, str]], list[dict[str, str]]]]:
    """Yield files with the names by which the user knows them, and the archives that could not be read.

    A member of an archive lies in a temporary folder, under a number instead of the path that the archive gives it.
    """
    files: list[tuple[Path, str]] = []
    refused: list[dict[str, str]] = []
    folder: Path | None = None
    try:
        for path in paths:
            kind = _kind_of(path)
            if not kind:
                files.append((path, ""))
                continue
            folder = folder or Path(tempfile.mkdtemp(prefix="paleo-lite-"))
            try:
                files += _unpack(path, kind, folder / str(len(files)))
            except PaleoError as error:
                if not keep_going:
                    raise
                refused.append({"file": str(path), "error": str(error)})
        yield files, refused
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _kind_of(path: Path) -> str:
    """Return ``zip`` or ``tar`` for an archive; empty for another file."""
    try:
        if path.is_file() and zipfile.is_zipfile(path):
            return "" if is_spreadsheet(path) else "zip"
        named = path.name.endswith((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz"))
        return "tar" if named and tarfile.is_tarfile(path) else ""
    except OSError:
        return ""


def _unpack(path: Path, kind: str, folder: Path) -> list[tuple[Path, str]]:
    """Unpack the members of an archive; raise BadFile if it is damaged or too large."""
    members: list[tuple[Path, str]] = []
    remaining_bytes = MOST_BYTES
    try:
        with zipfile.ZipFile(path) if kind == "zip" else tarfile.open(path) as archive:
            for name, member in _members(archive):
                if len(members) >= MOST_MEMBERS:
                    raise BadFile(
                        f"{path}: an archive of more than {MOST_MEMBERS:,} files: unpack it, and give its folders"
                    )
                # The file keeps the end of its name, which formats and guesses read, and nothing of its path.
                target = folder / str(len(members)) / (Path(name).name[-100:].lstrip(".") or "file")
                target.parent.mkdir(parents=True)
                remaining_bytes = _copy(member, target, remaining_bytes, path)
                members.append((target, f"{path}/{name}"))
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError,
            ValueError) as error:  # fmt: skip
        raise BadFile(f"{path}: an archive that cannot be unpacked ({error})") from None
    return members


def _members(archive: zipfile.ZipFile | tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of the regular files that are not hidden."""
    if isinstance(archive, zipfile.ZipFile):
        for info in archive.infolist():
            if not info.is_dir() and not _is_hidden(info.filename):
                with archive.open(info) as member:
                    yield info.filename, member
        return
    for entry in archive:
        if entry.isreg() and not _is_hidden(entry.name):
            opened = archive.extractfile(entry)
            if opened is not None:
                yield entry.name, opened


def _is_hidden(name: str) -> bool:
    parts = [part for part in Path(name).parts if part not in (".", "..")]
    return any(part.startswith((".", "__MACOSX")) for part in parts) or name.endswith(".toml")


def _copy(member: IO[bytes], target: Path, remaining_bytes: int, path: Path) -> int:
    """Copy a member; return how many bytes remain for the others."""
    with target.open("wb") as file:
        while piece := member.read(_CHUNK_BYTES):
            remaining_bytes -= len(piece)
            if remaining_bytes < 0:
                raise BadFile(f"{path}: an archive that holds more than {MOST_BYTES:,} bytes: unpack it")
            file.write(piece)
    return remaining_bytes
