"""Parallel processing of files: each exactly once, even if workers die, and without leftover processes."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from paleo_lite import executor
from paleo_lite.errors import BadFile, BadProfile, BadValue, ClusterLost
from paleo_lite.executor import map_in_order, run_tasks
from paleo_lite.profiles.detect import find_files
from paleo_lite.text import clean_message
from paleo_lite.version import __version__

WORK = """
import os, pathlib, signal, time
def length(path):
    return len(path.read_bytes())
def process(path):
    return os.getpid()
def dies_once(path):
    marker = pathlib.Path(str(path) + ".seen")
    if path.name == "3" and not marker.exists():
        marker.touch()
        os._exit(1)
    return path.name
def dies(path):
    if path.name == "3":
        os._exit(1)
    return path.name
def blocked_signals(path):
    return " ".join(s.name for s in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
def sleeps(path):
    (path.parent / f"pid.{os.getpid()}").touch()
    time.sleep(60)
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module that the processes of a pool can import."""
    (tmp_path / "pool_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    import pool_work

    yield pool_work
    del sys.modules["pool_work"]


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(8):
        (folder / str(number)).write_bytes(bytes(number))
    return find_files([folder])


@pytest.mark.parametrize("jobs", [1, 2, 20])
def test_every_file_once(work, files, jobs):
    found = list(run_tasks(files, work.length, jobs))
    assert sorted(found) == [(path, int(path.name)) for path in files]


@pytest.mark.parametrize("cores", [1, 2])
def test_without_a_number_of_jobs_every_core_has_a_process(work, files, cores, monkeypatch):
    monkeypatch.setattr(executor, "count_cores", lambda: cores)
    own = {pid == os.getpid() for _, pid in run_tasks(files, work.process)}
    assert own == {cores == 1}


def test_a_process_that_dies_loses_no_file(work, files):
    found = [path for path, _ in run_tasks(files, work.dies_once, 2)]
    assert sorted(found) == files


def test_a_file_that_kills_is_named_and_the_others_are_done(work, files):
    found = []
    with pytest.raises(BadProfile, match=r"/3: the process that read it died"):
        for path, _ in run_tasks(files, work.dies, 2):
            found.append(path.name)
    assert len(found) == len(set(found)) and "3" not in found


def test_a_file_that_kills_can_have_a_result(work, files):
    found = dict(run_tasks(files, work.dies, 2, died=lambda path, error: str(error)))
    assert set(found) == {*files}
    assert found[files[3]] == f"{files[3]}: the process that read it died (out of memory?)"


def test_numbers_in_names_count_as_numbers(tmp_path):
    for name in ("run_16", "run_2", "run_1", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    assert [path.name for path in find_files([tmp_path])] == ["run_1", "run_2", "run_16"]
    again = find_files([tmp_path / "run_2", tmp_path, tmp_path / "run_2"])
    assert [path.name for path in again] == ["run_2", "run_1", "run_16"]


def test_folders_without_files_are_refused(tmp_path):
    with pytest.raises(BadValue, match="no files in"):
        find_files([tmp_path])
    with pytest.raises(BadFile, match="No such file or directory"):
        find_files([tmp_path / "absent"])


@pytest.mark.parametrize(
    ("platform", "threads", "method"),
    [("linux", 1, "fork"), ("linux", 2, "forkserver"), ("darwin", 1, "forkserver"), ("darwin", 2, "forkserver")],
)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has one way to start a process")
def test_processes_are_forked_where_that_is_safe(platform, threads, method, monkeypatch):
    """Python's documentation of multiprocessing: not with several threads, and not on macOS."""
    monkeypatch.setattr(executor.sys, "platform", platform)
    monkeypatch.setattr(executor.threading, "active_count", lambda: threads)
    assert executor._process_context(find_files).get_start_method() == method


@pytest.fixture
def sleeping(work, files, tmp_path):
    """Start a process with two sleeping workers, which share its standard error."""
    made = []

    def start(method):
        script = tmp_path / "script.py"
        script.write_text(
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
            "import multiprocessing, pathlib, pool_work\n"
            "from paleo_lite import executor\n"
            f"executor._process_context = lambda work: multiprocessing.get_context({method!r})\n"
            f"files = sorted(pathlib.Path({str(files[0].parent)!r}).iterdir())\n"
            "if __name__ == '__main__':\n"
            "    try: list(executor.run_tasks(files, pool_work.sleeps, 2))\n"
            "    except KeyboardInterrupt: sys.exit(130)\n"
        )
        # A group of its own, which gets an interrupt as a terminal sends it: to all of them.
        made.append(subprocess.Popen([sys.executable, str(script)], start_new_session=True, stderr=subprocess.PIPE))
        return made[-1], wait_for(lambda: list(files[0].parent.glob("pid.*")), 2)

    yield start
    for process in made:
        process.kill()
        process.wait()


ON_LINUX = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc, which only Linux has")


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs the signals of POSIX")
def test_a_process_that_starts_gets_no_interrupt(work, files):
    """Between its start and `_follow_parent` it would end with a traceback; this process gets it afterwards."""
    blocked = {names for _, names in run_tasks(files, work.blocked_signals, 2)}
    assert blocked == {"SIGINT"}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.slow
@ON_LINUX
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_the_processes(sleeping):
    process, workers = sleeping("fork")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert errors == b""
    assert wait_for(lambda: [0] if not any(alive(path) for path in workers) else [], 1) == [0]


@pytest.mark.slow
@ON_LINUX
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_their_parent_whatever_it_dies_of(sleeping, method, sent):
    process, workers = sleeping(method)
    process.send_signal(sent)
    process.communicate()  # returns when nobody holds its output any more
    wait_for(lambda: [0] if not any(alive(path) for path in workers) else [], 1)


def alive(marker: Path) -> bool:
    return Path(f"/proc/{marker.suffix[1:]}").exists()


def wait_for(look, number):
    """Look until there are so many; where that never comes the limit of every test ends it."""
    while len(found := look()) < number:
        time.sleep(0.05)
    return found


def test_results_come_in_order_and_tasks_are_read_only_as_far_as_needed(files, work):
    read = []

    def tasks():
        for path in files * 5:
            read.append(path)
            yield path

    lengths = []
    for length in map_in_order(tasks(), work.length, jobs=2, ahead=3):
        lengths.append(length)
        assert len(read) <= len(lengths) + 3
    assert lengths == [path.stat().st_size for path in files * 5]


def test_results_end_before_a_task_whose_process_dies(files, work):
    names = list(map_in_order(files, work.dies, jobs=2, ahead=1))
    assert names == [path.name for path in files][:3]


class WorkerOfDask:
    """A worker in this process, without paleo-lite or with another version: it reads a task, then runs it."""

    def __init__(self, monkeypatch, version=None):
        self.monkeypatch, self.version = monkeypatch, version

    @contextmanager
    def connect(self, address):
        yield self

    def submit(self, function, argument):
        sent = pickle.dumps((function, argument))
        future = Future()
        with self.monkeypatch.context() as there:
            if self.version is None:
                for name in [name for name in sys.modules if name.startswith("paleo_lite")]:
                    there.setitem(sys.modules, name, None)
            else:
                there.setattr(executor, "__version__", self.version)
            function, argument = pickle.loads(sent)  # of an error here, Dask tells nobody
            try:
                future.set_result(function(argument))
            except Exception as error:
                future.set_exception(error)
        return future


@pytest.mark.parametrize(
    ("version", "reason"),
    [(None, "import of paleo_lite.executor halted"), ("0.0.1", "version 0.0.1 is installed there")],
)
def test_a_worker_of_dask_that_lacks_this_version_is_one_sentence(monkeypatch, version, reason):
    """Dask waited for ever: a worker that could not read a task told nobody."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(executor, "_connect_to_cluster", WorkerOfDask(monkeypatch, version).connect)
    expected = rf"at tcp://host:8786 cannot run paleo-lite \({reason}.*\): install version {re.escape(__version__)} and"
    with pytest.raises(ClusterLost, match=expected):
        list(run_tasks(["a", "b c"], clean_message, scheduler="tcp://host:8786"))


def test_a_worker_of_dask_runs_what_was_sent_as_bytes(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(executor, "_connect_to_cluster", WorkerOfDask(monkeypatch, __version__).connect)
    assert sorted(run_tasks(["ab", "c"], lambda text: text * 2, scheduler="tcp://host:8786")) == [
        ("ab", "abab"), ("c", "cc")
    ]  # fmt: skip


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), FileNotFoundError(2, "mine")])
def test_an_error_of_the_work_itself_is_raised_as_it_is(monkeypatch, error):
    def fail(task):
        raise error

    pytest.importorskip("distributed")
    monkeypatch.setattr(executor, "_connect_to_cluster", WorkerOfDask(monkeypatch, __version__).connect)
    with pytest.raises(type(error), match="mine"):
        list(run_tasks(["a"], fail, scheduler="tcp://host:8786"))
