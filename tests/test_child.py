"""Processes that the package starts: nothing of the current folder runs in them, and they end with their parent."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paleo_lite import child
from paleo_lite.api import serving

SWIN = {"model_type": "swin", "architectures": ["SwinModel"], "num_labels": 2}
EVIL = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}


def importable_names() -> list[str]:
    """Return the name of every module that Python or an installed package offers, and of this package's own."""
    names = set(sys.stdlib_module_names) | set(importlib.metadata.packages_distributions()) | {"paleo_lite", "evil"}
    return sorted(name for name in names if name.isidentifier())


@pytest.fixture
def planted(tmp_path):
    """A folder with a module of every name, each of which leaves a mark where it is imported, and a config of one."""
    folder, mark = tmp_path / "downloaded", tmp_path / "mark"
    folder.mkdir()
    for name in importable_names():
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r} + '\\n')\nraise SystemExit(7)\n")
    (folder / "config.json").write_text(json.dumps({**SWIN, "auto_map": EVIL}))
    return folder, mark


IMPORTER = """
import os, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
import json, click, msgspec, numpy, paleo_lite.cli
print(os.environ.get("SECRET"), os.environ["PYTHONSAFEPATH"])
"""


def test_a_child_imports_nothing_from_the_current_folder(planted, tmp_path, monkeypatch):
    folder, mark = planted
    script = tmp_path / "script.py"
    script.write_text(IMPORTER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SECRET", "1")
    command = child.child_command(script, [])
    done = subprocess.run(
        command, cwd=folder, env=child.child_environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, mark.exists()) == (0, "None 1\n", False), done.stderr


def test_the_page_starts_by_its_file_with_the_environment_of_a_child(planted, monkeypatch):
    started = {}

    class Process:
        def __init__(self, command, **settings):
            started.update(command=command, **settings)

        def terminate(self):
            """Called at the end of the process."""

    monkeypatch.chdir(planted[0])
    monkeypatch.setattr(serving.subprocess, "Popen", Process)
    page = serving.ui(port=None, browser=False)
    python, isolated, script, folders, parent, *arguments = started["command"]
    assert (python, isolated, parent) == (sys.executable, "-P", str(os.getpid()))
    assert Path(script).is_absolute() and Path(script).parts[-2:] == ("web", "serve.py")
    assert all(Path(folder).is_absolute() for folder in folders.split(os.pathsep))
    assert started["stdin"] == subprocess.DEVNULL and started["env"]["PYTHONSAFEPATH"] == "1"
    assert arguments == list(page.arguments)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_downloaded_folder_runs_nothing(planted, tmp_path):
    """Tracing its config imports torch and transformers, whose names are all there; no yes is read."""
    pytest.importorskip("transformers")
    folder, mark = planted
    program = (
        "import sys\nfrom paleo_lite.cli import main\ntry:\n    main()\nfinally:\n    print(len(sys.stdin.read()))"
    )
    command = [sys.executable, "-P", "-c", program, "predict", ".", "--gpu", "v100-sxm2"]
    root = str(Path(child.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "PALEO_LITE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment, input="y\n" * 50, capture_output=True, text=True, check=False
    )
    assert not mark.exists(), mark.read_text()
    assert (done.returncode, done.stderr) == (0, "") and "Tesla V100" in done.stdout
    assert done.stdout.splitlines()[-1] == "100"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_a_child_ends_with_a_parent_that_is_killed(tmp_path):
    """The child closes a pipe when it ends, so that nothing has to wait for a time."""
    reading, writing = os.pipe()
    script = tmp_path / "sleeper.py"
    script.write_text(
        "import os, sys, time\nsys.path[:0] = sys.argv[1].split(os.pathsep)\n"
        "from paleo_lite.child import die_with_parent\ndie_with_parent(int(sys.argv[2]))\n"
        "os.write(1, b'ready')\ntime.sleep(1000)\n"
    )
    program = (
        "import os, subprocess, sys\nfrom pathlib import Path\nfrom paleo_lite.child import child_command\n"
        f"command = child_command(Path({str(script)!r}), [str(os.getpid())])\n"
        f"subprocess.run(command, stdout={writing}, pass_fds=({writing},))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(child.__file__).parents[1])}
    parent = subprocess.Popen([sys.executable, "-c", program], pass_fds=(writing,), env=environment)
    os.close(writing)
    assert os.read(reading, 5) == b"ready"
    parent.kill()
    parent.wait()
    assert os.read(reading, 1) == b""  # the end of the file: nobody holds the pipe any more
    os.close(reading)


TERMINATED = """
import os, signal, sys, tempfile
from paleo_lite.child import Terminated, end_orderly_when_terminated
end_orderly_when_terminated()
try:
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("ready", flush=True)
        signal.pause()
except Terminated:
    sys.exit(143)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_the_signal_to_end_removes_what_was_made(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(child.__file__).parents[1])}
    command = [sys.executable, "-c", TERMINATED, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout.readline() == b"ready\n" and len(list(tmp_path.iterdir())) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143 and list(tmp_path.iterdir()) == []


def test_a_signal_that_somebody_handles_is_left_alone(monkeypatch):
    def handler(number, frame):
        """Of the program that imports the package."""

    before = signal.signal(signal.SIGTERM, handler)
    try:
        child.end_orderly_when_terminated()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
