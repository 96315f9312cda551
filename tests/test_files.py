"""Files: atomic writes, shipped files in wheel and checkout, and the cache folder of the XDG specification."""

from __future__ import annotations

import ast
import builtins
import errno
import io
import os
import stat
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from paleo_lite import files
from paleo_lite.cli import main
from paleo_lite.errors import BadDevice, BadFile
from paleo_lite.files import (
    cache_folder,
    lock_file,
    read_typed,
    shipped_folder,
    without_copies,
    write_atomically,
)

READ = [
    "predict absent.json --gpu k80", "predict absent.gguf --gpu k80", "predict absent.prototxt --gpu k80",
    "predict absent.safetensors --gpu k80", "predict ./absent --gpu k80", "predict hf:absent --gpu k80",
    "predict absent.json,vgg16 --gpu k80", "layers /absent/folder", "networks show absent.json",
    "train absent.json --gpu k80 --link pcie3 --workers 1,2", "feeding absent.json --gpu k80",
    "predict absent.json --gpu k80 -o out.csv", "predict absent.json --gpu k80 --report out.html",
    "predict vgg16 --gpu k80 --hardware-file absent.toml", "hardware list --hardware-file absent.toml",
    "predict vgg16 --gpu k80 --calibration absent.toml", "predict vgg16 --gpu k80 --calibration ./absent",
    "calibrations show absent.toml", "calibrations show ../absent", "calibrate absent.csv --gpu k80",
    "validate --data absent.csv", "kernels absent.sqlite", "efficiency absent.csv --gpu k80", "efficiency absent",
    "compare absent.csv other.csv", "efficiency absent.csv --gpu k80 --report out.html", "best absent.csv --minimise x",
    "train vgg16 --gpu k80 --workers 2 --platform absent.toml", "plot timeline absent.json -o out.svg",
]  # fmt: skip


@pytest.mark.parametrize("command", READ)
def test_a_missing_file_has_one_exit_code_and_one_sentence(command: str, tmp_path, monkeypatch) -> None:
    """1, as `cat` has for a file that is not there (POSIX: above 0); 2 is for the wrong use of a command."""
    for library in ("pyarrow", "vl_convert", "altair", "jinja2", "scipy"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, command.split(), prog_name="paleo-lite")
    assert (answer.exit_code, answer.stdout) == (1, ""), answer.stderr
    assert answer.stderr.startswith("paleo-lite: ") and answer.stderr.count("\n") == 1
    assert "absent" in answer.stderr and ("o such file" in answer.stderr or "there is no" in answer.stderr)
    assert not list(tmp_path.iterdir())


WRITTEN = [
    "predict vgg16 --gpu k40m --plot absent/a.svg", "predict --flops 1G --gpu k40m --plot absent/b/a.png",
    "train vgg16 --gpu k40m --link pcie3 --workers 1,2 --plot absent/a.html",
    "serve llama-3-8b --gpu h100-sxm --rate 1 --plot absent/a.svg",
    "predict vgg16 --gpu k40m -o absent/a.csv", "networks export vgg16 -o absent/a.json",
    "predict vgg16 --gpu k40m --report absent/a.html", "calibrate steps.csv --gpu k40m -o absent/a.toml",
    "kernels trace.json --plot absent/a.svg", "plot roofline vgg16 --gpu k40m -o absent/a.svg",
    "plot timeline trace.json -o absent/a.svg", "measure --gpu k40m -o absent/a.csv",
]  # fmt: skip


@pytest.mark.parametrize("command", WRITTEN)
def test_an_output_in_a_missing_folder_is_refused_at_once(command: str, tmp_path, monkeypatch) -> None:
    """As a shell refuses ``> absent/a``: before the program starts, so before the files that it would read are opened.

    The files steps.csv and trace.json are not there, which would be the message of a command that had begun.
    """
    for library in ("pyarrow", "vl_convert", "altair", "jinja2", "scipy"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, command.split(), prog_name="paleo-lite")
    assert (answer.exit_code, answer.stdout) == (1, ""), answer.stderr
    assert "cannot be written: there is no folder " in answer.stderr and answer.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: int
    y: int = 0


def test_a_file_appears_whole_and_everybody_may_read_it(tmp_path) -> None:
    path = tmp_path / "new" / "point.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 or os.name == "nt"
    assert [file.name for file in path.parent.iterdir()] == ["point.json"]


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "point.json"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_location_of_shipped_files(tmp_path, monkeypatch) -> None:
    package = tmp_path / "paleo_lite"
    package.mkdir()
    monkeypatch.setattr(files, "__file__", str(package / "files.py"))
    assert shipped_folder("hardware") == tmp_path / "hardware"  # a checkout
    (package / "data" / "hardware").mkdir(parents=True)
    assert shipped_folder("hardware") == package / "data" / "hardware"  # a wheel


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"PALEO_LITE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        # The XDG Base Directory Specification: $XDG_CACHE_HOME, and $HOME/.cache where that is unset or empty.
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/paleo-lite"),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/paleo-lite"),
        ({"HOME": "/c"}, "/c/.cache/paleo-lite"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="tests the folders of Unix (XDG), which Windows does not have")
def test_the_cache_is_where_it_is_looked_for(variables, folder, monkeypatch) -> None:
    for name in ("PALEO_LITE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)


@pytest.mark.parametrize(("name", "text"), [("a.json", '{"x": 1, "y": 2}'), ("a.toml", "x = 1\ny = 2\n")])
def test_file_format_follows_the_extension(name, text, tmp_path) -> None:
    (tmp_path / name).write_text(text)
    assert read_typed(tmp_path / name, Point, "point", 100) == Point(1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        ('{"x": 1, "y": 2, "z": 3}', "unknown field `z`"),
        ('{"y": 2}', "missing required field `x`"),
        ('{"x": "1"}', r"Expected `int`, got `str` - at `\$\.x`"),
        ('{"x": 1', "Input data was truncated"),
        (" \n", "the file is empty, not a point"),
        ('{"x": 1}' + " " * 100, "larger than 100 bytes, too large for a point"),
    ],
)
def test_message_names_the_file_and_the_problem(text, message, tmp_path) -> None:
    path = tmp_path / "point.json"
    if text is not None:
        path.write_text(text)
    for raised in (BadFile, BadDevice):
        with pytest.raises(raised, match=message) as caught:
            read_typed(path, Point, "point", 100, raised)
        assert str(caught.value).startswith(f"{path}: ")


AT_ONCE = """
import sys
from pathlib import Path
from threading import Barrier, Thread
import msgspec
from paleo_lite.files import read_typed

sys.setswitchinterval(1e-6)
for number in range(120):
    inner = msgspec.defstruct(f"Inner{number}", [("c", "int | None", None), ("d", "list[str]", [])])
    outer = msgspec.defstruct(f"Outer{number}", [("a", "int", 0), ("b", inner | None, None)])
    barrier = Barrier(4)
    read = lambda: barrier.wait() >= 0 and read_typed(Path(sys.argv[1]), outer, "file", 100)
    threads = [Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_read_files_of_a_type_at_once(tmp_path) -> None:
    """As visitors of the page do, who come first at the same time; a crash would end the process."""
    path = tmp_path / "file.toml"
    path.write_text("a = 1\n[b]\nc = 2\n")
    done = subprocess.run([sys.executable, "-c", AT_ONCE, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_binary_file_is_named_as_such(tmp_path) -> None:
    path = tmp_path / "point.toml"
    path.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(BadFile, match=r"point\.toml: not a text file in UTF-8, and therefore no point"):
        read_typed(path, Point, "point", 100)


def test_invalid_file_name_is_a_bad_file() -> None:
    with pytest.raises(BadFile, match=r"null (byte|character)"):
        read_typed(Path("a\0b.json"), Point, "point", 100)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "absent"])
def test_invalid_file_name_does_not_exist(name) -> None:
    assert not files.file_exists(name)
    assert not files.file_exists(name, Path.exists)


class Anything(msgspec.Struct):
    a: object = None


def read_text(tmp_path, text):
    path = tmp_path / "some.toml"
    path.write_text(text)
    return read_typed(path, Anything, "table", 10**8)


def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(tmp_path) -> None:
    """The parser keeps every prefix of a key: 32,000 parts in 64 KB took 4 GB."""
    for text in (".".join("a" * 32_000) + " = 1", "[" + " . ".join("a" * 100) + "]", "x.'y'." * 20 + "z = 1"):
        with pytest.raises(BadFile, match="a key has more than 32 parts: "):
            read_text(tmp_path, text)


def test_dots_in_strings_and_comments_are_no_keys(tmp_path) -> None:
    dots = "a." * 100
    for quote in ('"', "'", '"""', "'''"):
        assert read_text(tmp_path, f"# {dots}a\na = {quote}{dots}{quote}  # {dots}a").a == dots


@pytest.mark.parametrize(
    ("text", "place"), [("a = nan", r"\$\.a is nan"), ("a = [1, {b = 1e999}]", r"\$\.a\[1\]\.b is inf")]
)
def test_numbers_are_finite(tmp_path, text, place) -> None:
    with pytest.raises(BadFile, match=f"some.toml: {place}, expected a finite number"):
        read_text(tmp_path, text)


@pytest.mark.skipif(sys.platform != "linux", reason="devices and files of the kernel are those of Linux")
@pytest.mark.parametrize("target", ["/dev/zero", "/proc/kmsg", "/sys/kernel/notes", "/dev"])
def test_a_link_to_what_never_ends_is_no_file(tmp_path, target) -> None:
    link = tmp_path / "some.toml"
    link.symlink_to(target)
    if not link.exists():
        pytest.skip(f"there is no {target}")
    with pytest.raises(BadFile, match=r"cannot be read .it is not a regular file"):
        read_typed(link, Anything, "table", 1000)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="the operating system has no such folder")
def test_a_file_in_shared_memory_is_a_file() -> None:
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm", suffix=".toml") as file:
        file.write("a = 1")
        file.flush()
        assert read_typed(Path(file.name), Anything, "table", 1000).a == 1


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the operating system has no names for descriptors")
def test_a_pipe_of_the_shell_is_read_and_no_more_of_it_than_allowed(tmp_path) -> None:
    """As in ``--hardware-file <(command)``, also through a link, which can have the suffix that a reader needs."""
    for max_bytes in (5, 4):
        reading, writing = os.pipe()
        os.write(writing, b"a = 1")
        os.close(writing)
        link = tmp_path / f"{max_bytes}.toml"
        link.symlink_to(f"/dev/fd/{reading}")
        if max_bytes == 5:
            assert read_typed(link, Anything, "table", max_bytes).a == 1
        else:
            with pytest.raises(BadFile, match="larger than 4 bytes"):
                read_typed(Path(f"/dev/fd/{reading}"), Anything, "table", max_bytes)
        os.close(reading)


COMMANDS_WITH_A_FILE = {
    "x.json": "predict {} --gpu t4",
    "x.prototxt": "predict {} --gpu t4",
    "x.onnx": "layers {}",
    "x.gguf": "predict {} --gpu t4",
    "config.json": "predict {} --gpu t4",
    "x.toml": "predict alexnet --gpu t4 --calibration {}",
    "t4.toml": "predict alexnet --gpu t4 --hardware-file {}",
    "x.csv": "calibrate {} --gpu t4",
    "x.sqlite": "kernels {} --gpu t4",
}


def open_no_pipes(monkeypatch) -> None:
    """Fail where a pipe is opened, which would wait for a writer, perhaps for ever."""
    real_open = io.open

    def checked_open(file, *arguments, **options):
        assert isinstance(file, int) or not Path(file).is_fifo(), "a pipe is opened"
        return real_open(file, *arguments, **options)

    monkeypatch.setattr(io, "open", checked_open)
    monkeypatch.setattr(builtins, "open", checked_open)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the operating system has no pipes with names")
@pytest.mark.parametrize("name", COMMANDS_WITH_A_FILE)
def test_a_named_pipe_is_not_opened(name, tmp_path, monkeypatch) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    open_no_pipes(monkeypatch)
    answer = CliRunner().invoke(main, COMMANDS_WITH_A_FILE[name].format(pipe).split())
    assert answer.exit_code == 1 and answer.stderr.count("\n") == 1, answer.output
    assert "cannot be read (it is a named pipe, " in answer.stderr or "(it is a pipe or device, " in answer.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the operating system has no pipes with names")
def test_a_named_pipe_in_a_folder_is_no_file(tmp_path, monkeypatch) -> None:
    open_no_pipes(monkeypatch)
    for name in ("config.json", "x.gguf", "x.json", "x.safetensors", "model_index.json"):
        os.mkfifo(tmp_path / name)
    answer = CliRunner().invoke(main, ["predict", str(tmp_path), "--gpu", "t4"])
    assert answer.exit_code == 1 and "neither a config.json nor a .gguf file is in the folder" in answer.stderr
    answer = CliRunner().invoke(main, ["kernels", str(tmp_path), "--gpu", "t4"])
    assert answer.exit_code == 2 and "no files in " in answer.stderr


def test_a_lock_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    """As on a full disk, where the file can be created and not filled."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "getpid", full)
    with pytest.raises(OSError, match="No space left"), lock_file(tmp_path / "folder" / ".lock", "something is done"):
        raise AssertionError("the lock is not held")
    assert not list(tmp_path.iterdir())


WRITERS = {"write_text", "write_bytes", "savefig", "to_csv", "to_parquet", "to_json", "OSFile", "mkstemp", "symlink_to"}
IN_FOLDERS_OF_THEIR_OWN = {
    "files.py": 2,  # the atomic writer, and the lock
    "result_files/archives.py": 1,  # members of archives, in a temporary folder
    "sweeps/run.py": 1,  # the merged chunks, which are renamed when they are complete
    "web/answers.py": 2,  # profiles, in temporary folders
    "web/uploads.py": 1,  # uploads, in temporary folders
}
"""Calls that write into a file in place, by module; whatever else is written goes through `write_atomically`."""


def is_writing(call: ast.Call) -> bool:
    """Return whether a call opens or writes a file: by its name, or by the mode of `open`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name != "open":
        return name in WRITERS
    values = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return any(set(mode) <= set("rwaxb+t") and set(mode) & set("wax") for mode in modes)


def test_every_output_is_written_atomically():
    package = Path(files.__file__).parent
    found = Counter()
    for path in package.rglob("*.py"):
        text = path.read_text("utf-8")
        if not any(f"{name}(" in text for name in ("open", *WRITERS)):
            continue
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        found[path.relative_to(package).as_posix()] += sum(map(is_writing, calls))
    assert +found == IN_FOLDERS_OF_THEIR_OWN


def test_a_small_file_needs_little_memory_whatever_its_limit(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(b"x" * 100_000)
    tracemalloc.start()
    try:
        assert files.read_limited(path, 2**28, "table") == b"x" * 100_000
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert len(files.read_limited(path, 100_000, "table")) == 100_000
    with pytest.raises(BadFile, match="larger than 99999 bytes, too large for a table"):
        files.read_limited(path, 99_999, "table")


def test_copies_are_known_by_their_content(tmp_path: Path) -> None:
    names = ("a", "of_the_same_size", "copy", "longer", "copy_of_copy")
    paths = [tmp_path / name for name in names]
    for path, text in zip(paths, ("one", "two", "one", "three", "one")):
        path.write_text(text)
    kept, sentences = without_copies([*paths, paths[1]])
    assert kept == [paths[0], paths[1], paths[3]]
    assert sentences == [
        f"{paths[2]} has the content of {paths[0]}, and counts once",
        f"{paths[4]} has the content of {paths[0]}, and counts once",
        f"{paths[1]} is given twice, and counts once",
    ]
