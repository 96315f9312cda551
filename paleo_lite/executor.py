"""The same work on many files or other tasks: in this process, in a pool of one process per core, or on a Dask cluster.

Each task gives one small result, so that memory does not grow with the input, a worker that dies loses no task, and
none counts twice.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .errors import BadProfile, BadValue, PaleoError
from .extras import need

_T = TypeVar("_T")
_Task = TypeVar("_Task")
Work = Callable[[_Task], _T]

_ROUNDS = 2  # pools that are tried before every file left gets a process of its own
_ANSWER_S = 10  # what a scheduler is given to answer


def run_tasks(
    tasks: Sequence[_Task],
    work: Work[_Task, _T],
    jobs: int | None = None,
    scheduler: str | None = None,
    died: Callable[[_Task, PaleoError], _T] | None = None,
) -> Generator[tuple[_Task, _T], None, None]:
    """Do some work on every file or other task; results come as they are done, each with its task.

    Parameters
    ----------
    work : callable
        From a task to a result; both travel between processes. It answers for what is wrong with a file itself.
    jobs : int, optional
        Processes, one per core without it; 1 stays in this process.
    scheduler : str, optional
        Address of a Dask scheduler, ``tcp://host:8786``, whose workers see the same files.
    died : callable, optional
        From a task of which a process dies, tried alone, and the error that says so, to what is its result.
    """
    if scheduler is not None:
        yield from _on_cluster(tasks, work, scheduler)
        return
    jobs = min(jobs or cores(), len(tasks))
    if jobs <= 1:
        for task in tasks:
            yield task, work(task)
        return
    left = list(tasks)
    for _ in range(_ROUNDS):
        with closing(_in_pool(left, work, jobs)) as results:
            for task, result in results:
                left.remove(task)
                yield task, result
        if not left:
            return
    for task in left:
        if (alone := next(_in_pool([task], work, 1), None)) is not None:
            yield alone
            continue
        error = BadProfile(f"{task}: the process that read it died (out of memory?)")
        if died is None:
            raise error
        yield task, died(task, error)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_pool(tasks: Sequence[_Task], work: Work[_Task, _T], jobs: int) -> Generator[tuple[_Task, _T], None, None]:
    """Results of a pool; where a process dies it ends early, and the tasks without a result are left over."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=_context(work), initializer=_live_with_the_parent)
    try:
        with closing(_collect(pool, tasks, work)) as results:
            yield from results
    except BrokenProcessPool:
        # A process started while the pool broke was never told to end: the shutdown would wait for it for ever.
        _kill(set(multiprocessing.active_children()) - before)
    except BaseException:  # interrupted, or the rest is not wanted: what runs is stopped at once
        _kill(set(multiprocessing.active_children()) - before)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _kill(processes: Iterable[multiprocessing.process.BaseProcess]) -> None:
    for process in processes:
        process.kill()


def _collect(
    executor: Executor, tasks: Sequence[_Task], work: Work[_Task, _T]
) -> Generator[tuple[_Task, _T], None, None]:
    futures: dict[Future[_T], _Task] = {executor.submit(work, task): task for task in tasks}
    broken: BrokenProcessPool | None = None
    for future in as_completed(futures):
        try:
            result = future.result()
        except BrokenProcessPool as error:  # others may have been done before
            broken = error
            continue
        task = futures.pop(future)  # with the result that it holds
        del future
        yield task, result
    if broken is not None:
        raise broken


def _context(work: Work[Any, Any]) -> multiprocessing.context.BaseContext:
    """How processes start: forked from this one where that is safe, which saves them all their imports.

    A fork of a process with several threads could copy locks that are held: then they are forked from a clean process,
    which imports what the work needs once.
    """
    methods = multiprocessing.get_all_start_methods()
    if sys.platform == "linux" and threading.active_count() == 1:
        return multiprocessing.get_context("fork")
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([getattr(work, "func", work).__module__])
    return context


def _live_with_the_parent() -> None:
    """Interrupts are the parent's business; a process ends with it, also where it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_after_the_parent, daemon=True).start()


def _end_after_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # its end of a pipe closes whatever it dies of, however this process was started
        os._exit(1)


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    distributed = need("distributed", "a scheduler", "cluster")
    try:
        client = distributed.Client(address, timeout=_ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BadValue(f"no Dask scheduler answers at {address!r} ({error})") from None
    with client, client.get_executor(pure=False) as executor:
        yield executor


def _on_cluster(tasks: Sequence[_Task], work: Work[_Task, _T], address: str) -> Generator[tuple[_Task, _T], None, None]:
    """A task whose worker dies is done again by another worker: the scheduler sees to it."""
    absolute = [task.absolute() if isinstance(task, Path) else task for task in tasks]
    with _cluster(address) as executor, closing(_collect(executor, absolute, work)) as results:
        yield from results
