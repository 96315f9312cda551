"""Start of a process that traces a network, run by its path: ``python -P trace_child.py FOLDERS PARENT CPU_S BYTES``.

It binds its life to its parent's and limits its processor time and its memory. It reads its question from standard
input, which is then empty, and writes its answer to what was standard output: whatever a library prints goes to
standard error.
"""

from __future__ import annotations

import os
import sys


def limit_resources(processor_s: int, data_bytes: int) -> None:
    """Limit the processor time and the data of this process, where the operating system can."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    for kind, limit in ((resource.RLIMIT_CPU, processor_s), (resource.RLIMIT_DATA, data_bytes)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def main(folders: str, parent: str, processor_s: str, data_bytes: str) -> None:
    """Answer one question."""
    sys.path[:0] = folders.split(os.pathsep)
    from paleo_lite.child import die_with_parent

    die_with_parent(int(parent))
    limit_resources(int(processor_s), int(data_bytes))
    question = sys.stdin.buffer.read()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from paleo_lite.architectures.trace_process import answer_bytes

    answers.write(answer_bytes(question))
    answers.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
