"""Parallel execution of independent tasks: in this process, in a process pool, or on a Dask cluster.

Every task returns one small result, so memory does not grow with the size of the input. A task whose worker process
dies is run again, and no result is returned twice.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .errors import BadProfile, BadValue, ClusterLost, PaleoError
from .extras import require
from .text import clean_message
from .version import __version__

_T = TypeVar("_T")
_Task = TypeVar("_Task")
Work = Callable[[_Task], _T]

_POOL_ATTEMPTS = 2  # pools that are tried before every remaining task gets a process of its own
_SCHEDULER_TIMEOUT_S = 30


def run_tasks(
    tasks: Sequence[_Task],  # arguments of `work`, usually paths of files
    # From a task to a result; both must be picklable. It handles the errors of a single file itself.
    work: Work[_Task, _T],
    jobs: int | None = None,  # number of processes; by default one per core; with 1 the tasks run in this process
    # Address of a Dask scheduler, ``tcp://host:8786``; its workers must see the same files.
    scheduler: str | None = None,
    # Function from a task and an error to a result, called for a task that kills its process even when it runs alone.
    # By default the error is raised.
    died: Callable[[_Task, PaleoError], _T] | None = None,
) -> Generator[tuple[_Task, _T], None, None]:
    """Run a function on every task and yield pairs of task and result, in order of completion."""
    if scheduler is not None:
        yield from _run_on_cluster(tasks, work, scheduler)
        return
    jobs = min(jobs or count_cores(), len(tasks))
    if jobs <= 1:
        for task in tasks:
            yield task, work(task)
        return
    remaining = list(tasks)
    for _ in range(_POOL_ATTEMPTS):
        with closing(_run_in_pool(remaining, work, jobs)) as results:
            for task, result in results:
                remaining.remove(task)
                yield task, result
        if not remaining:
            return
    for task in remaining:
        completed = next(_run_in_pool([task], work, 1), None)
        if completed is not None:
            yield completed
            continue
        error = BadProfile(f"{task}: the process that read it died (out of memory?)")
        if died is None:
            raise error
        yield task, died(task, error)


def map_in_order(tasks: Iterable[_Task], work: Work[_Task, _T], jobs: int, ahead: int) -> Generator[_T, None, None]:
    """Run a function on every task in a process pool and yield the results in the order of the tasks.

    Ends early, without an error, if a process of the pool dies: the caller must count the results. At most `ahead`
    tasks are read before their results are yielded, which bounds memory. Tasks and results must be picklable.
    """
    pending: deque[Future[_T]] = deque()
    with _open_pool(jobs, work) as pool:
        for task in tasks:
            with _interrupts_postponed():
                pending.append(pool.submit(work, task))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def is_worker() -> bool:
    """Return whether this process was started by a process pool, which should not start another one."""
    return multiprocessing.parent_process() is not None


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_in_pool(tasks: Sequence[_Task], work: Work[_Task, _T], jobs: int) -> Generator[tuple[_Task, _T], None, None]:
    """Yield the results of a process pool; stop early if a process dies."""
    with (
        _open_pool(jobs, work) as pool,
        closing(_collect_results(lambda task: pool.submit(work, task), tasks)) as results,
    ):
        yield from results


@contextmanager
def _open_pool(jobs: int, work: Work[Any, Any]) -> Generator[ProcessPoolExecutor, None, None]:
    """Open a process pool; end without an error if one of its processes dies, and at once if the caller stops."""
    processes_before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=_process_context(work), initializer=_follow_parent)
    try:
        yield pool
    except BrokenProcessPool:
        # A process started while the pool broke never receives the signal to end: the shutdown would hang.
        _kill(set(multiprocessing.active_children()) - processes_before)
    except BaseException:  # interrupted, or the caller does not need the remaining results: stop at once
        _kill(set(multiprocessing.active_children()) - processes_before)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _kill(processes: Iterable[multiprocessing.process.BaseProcess]) -> None:
    for process in processes:
        process.kill()


def _collect_results(
    submit: Callable[[_Task], Future[_T]], tasks: Sequence[_Task]
) -> Generator[tuple[_Task, _T], None, None]:
    with _interrupts_postponed():
        futures: dict[Future[_T], _Task] = {submit(task): task for task in tasks}
    pool_error: BrokenProcessPool | None = None
    for future in as_completed(futures):
        try:
            result = future.result()
        except BrokenProcessPool as error:  # other tasks may have completed before
            pool_error = error
            continue
        except Exception:  # of a task, or of Dask, whose lost scheduler fails only some futures
            yield from [(futures[ended], ended.result()) for ended in futures if _has_result(ended)]
            raise
        task = futures.pop(future)  # release the result that the future holds
        del future
        yield task, result
    if pool_error is not None:
        raise pool_error


def _has_result(future: Future[Any]) -> bool:
    """Return whether a task has ended, and neither was cancelled nor raised an error."""
    return future.done() and not future.cancelled() and future.exception() is None


@contextmanager
def _interrupts_postponed() -> Iterator[None]:
    """Receive interrupts afterwards; the processes that start meanwhile inherit this, and get none."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _process_context(work: Work[Any, Any]) -> multiprocessing.context.BaseContext:
    """Return how worker processes start: by fork where that is safe, as it saves repeating all imports.

    Forking a process with several threads may copy locked locks. In this case the workers are forked from a server
    process with a single thread, which imports the module of `work` once.
    """
    methods = multiprocessing.get_all_start_methods()
    if sys.platform == "linux" and threading.active_count() == 1:
        return multiprocessing.get_context("fork")
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([getattr(work, "func", work).__module__])
    return context


def _follow_parent() -> None:
    """Leave interrupts to the parent process, and end this process when the parent ends, even if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # returns when the parent's end of a pipe closes, for every start method
        os._exit(1)


@contextmanager
def _connect_to_cluster(address: str) -> Iterator[Executor]:
    if not re.fullmatch(r"\w+://.+|[^/]+:\d+", address):
        raise BadValue(f"the address of a Dask scheduler must be such as tcp://host:8786 (got {address!r})")
    distributed = require("distributed", "a scheduler", "cluster")
    for name in ("distributed", "distributed.client", "distributed.core", "tornado.application", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what they log of a lost scheduler are tracebacks
    try:
        client = distributed.Client(address, timeout=_SCHEDULER_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BadValue(f"no Dask scheduler answers at {address!r} ({clean_message(str(error))})") from None
    with client, client.get_executor(pure=False) as executor:
        yield executor


def _cluster_error(error: Exception, address: str) -> ClusterLost | None:
    """Return the sentence for an error of a Dask cluster; None for an error of another kind."""
    distributed = require("distributed", "a scheduler", "cluster")
    closed = getattr(distributed.client, "ClosedClientError", CancelledError)  # which old versions of Dask lack
    if isinstance(error, (CancelledError, distributed.comm.CommClosedError, TimeoutError, closed)):
        reason = clean_message(str(error)) if isinstance(error, OSError) else ""
        return ClusterLost(f"the Dask scheduler at {address} ended during the computation{reason and f' ({reason})'}")
    if isinstance(error, distributed.KilledWorker):
        return ClusterLost(f"the workers of the Dask scheduler at {address} died one after another (out of memory?)")
    is_unknown_there = isinstance(error, AttributeError) and str(error).startswith("Can't get attribute")
    if is_unknown_there or isinstance(error, (ImportError, pickle.UnpicklingError)):
        return ClusterLost(
            f"the workers of the Dask scheduler at {address} cannot run paleo-lite ({clean_message(str(error))}): "
            f"install version {__version__} and the same Python packages on them"
        )
    return None


class _CallWhereRead:
    """A call that takes place where it is unpickled, which gives its result.

    Dask says nothing of a task that a worker cannot unpickle, for lack of the package, and waits for ever. So a worker
    gets bytes and `pickle.loads`, which every Python has: whatever it cannot import is then an error of the task.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def _run_pickled(version: str, pickled: bytes) -> Any:
    """Run a pickled task on a worker; raise ImportError if the worker has another version of this package."""
    if version != __version__:
        raise ImportError(f"version {__version__} is installed there")
    work, task = pickle.loads(pickled)
    return work(task)


def _submit_bytes(executor: Executor, work: Work[_Task, _T], task: _Task) -> Future[_T]:
    """Submit a task to a Dask cluster as bytes."""
    dumps = require("cloudpickle", "a scheduler", "cluster").dumps  # a function of a notebook travels by value
    call = _CallWhereRead(_run_pickled, __version__, dumps((work, task)))
    return executor.submit(pickle.loads, pickle.dumps(call))


def _run_on_cluster(
    tasks: Sequence[_Task], work: Work[_Task, _T], address: str
) -> Generator[tuple[_Task, _T], None, None]:
    """Run tasks on a Dask cluster. The scheduler reruns tasks whose worker died."""
    absolute = [task.absolute() if isinstance(task, Path) else task for task in tasks]
    try:
        with (
            _connect_to_cluster(address) as executor,
            closing(_collect_results(partial(_submit_bytes, executor, work), absolute)) as results,
        ):
            yield from results
    except PaleoError:
        raise
    except Exception as error:
        lost = _cluster_error(error, address)
        if lost is None:
            raise
        raise lost from None
