"""Processes that this package starts: by the path of their file, without the current folder, and not outliving it.

``python -m`` would look for modules in the current folder first, where any downloaded folder may have them.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # of Linux, <sys/prctl.h>

_KEPT_VARIABLES = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LC_.*|TZ|TMPDIR|TEMP|TMP|SYSTEMROOT|WINDIR|USERPROFILE|APPDATA|LOCALAPPDATA|COMSPEC|"
    "PATHEXT|DISPLAY|WAYLAND_DISPLAY|BROWSER|LD_LIBRARY_PATH|DYLD_.*|VIRTUAL_ENV|CONDA_PREFIX|PYTHONHOME|"
    "PYTHONUSERBASE|PYTHONHASHSEED|XDG_.*|OPENBLAS_.*|COV_.*|COVERAGE_.*|STREAMLIT_LOGGER_.*|"
    "STREAMLIT_SERVER_ALLOWED_HOSTS|PALEO_LITE_.*"
)
"""Variables of the environment that a child process needs: where programs, libraries and temporary files are."""


def child_command(script: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a file of this package.

    Its first argument is the list of folders to import from, which the file puts at the start of ``sys.path``; the
    given ones follow.
    """
    return [sys.executable, "-P", str(script), os.pathsep.join(child_folders()), *arguments]


def child_folders() -> list[str]:
    """Return the folders that a child process imports from, besides those of its Python.

    That of this package, and those of the variable PYTHONPATH which do not depend on the current folder.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(__file__).parents[1]), *(folder for folder in named if Path(folder).is_absolute())]


def child_environment() -> dict[str, str]:
    """Return the environment of a child process: what it needs, no way to a hub, and no import from its folder."""
    variables = {name: value for name, value in os.environ.items() if _KEPT_VARIABLES.fullmatch(name)}
    return variables | {
        "PYTHONSAFEPATH": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def die_with_parent(parent: int) -> None:
    """Let the operating system kill this process when the thread that started it ends, where it can (Linux).

    `parent` is the number of the parent's process, as the parent knows it.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def follow_parent(parent: int) -> None:
    """End this process soon after its parent, even if the thread that started it ends before the parent does."""
    threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: int) -> None:
    while os.getppid() == parent:  # Windows tells the same number for ever
        time.sleep(_PAUSE_S)
    os._exit(1)


_PAUSE_S = 0.5  # between two looks at the parent


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, so that child processes are ended and temporary files are removed."""


def end_orderly_when_terminated() -> None:
    """Let SIGTERM end this process as an interrupt does, unless somebody else handles it."""
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _raise_terminated)
    except ValueError:  # signals belong to the main thread
        return


def _raise_terminated(number: int, frame: object) -> None:
    raise Terminated
