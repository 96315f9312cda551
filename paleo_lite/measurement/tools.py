"""Public benchmarks that measure this machine or a server: their commands, and runs of them within a time budget.

A tool is a record of `TOOLS`: where its program is, and the commands that measure what a calibration learns most from,
the most informative first. Each command writes one file that `paleo_lite.result_files` reads.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import BadValue
from ..files import save

MOST_OUTPUT_BYTES = 64 * 2**20
"""Output of a command above which it is not kept: no benchmark prints as much."""

MOST_ERROR_CHARACTERS = 200


class ToolTarget(NamedTuple):
    """What is to be measured."""

    model: str | None = None  # file of a network, or the name under which a server has it
    address: str | None = None  # of a server, such as http://localhost:8000
    workers: int | None = None  # devices of collectives


class ToolCommand(NamedTuple):
    """A command of a tool, and the file that it fills."""

    tool: str
    words: tuple[str, ...]
    file: str  # name of the result file in the folder of results
    writes_file: bool = False  # whether the command writes the file itself; otherwise it is what it prints

    @property
    def text(self) -> str:
        """The command as it is typed."""
        words = shlex.join(self.words)
        return words if self.writes_file else f"{words} > {shlex.quote(self.file)}"


class ToolRun(NamedTuple):
    """What became of a command."""

    command: ToolCommand
    outcome: str  # one of `DONE`, `ABSENT`, `NO_TIME`, or why it failed
    path: Path | None = None  # file that it filled


DONE, ABSENT, NO_TIME = "done", "not installed", "no time left"


class Tool(NamedTuple):
    """A public benchmark."""

    program: str
    needs: str  # option without which it measures nothing, as a field of `ToolTarget`
    commands: Callable[[ToolTarget, Path], Iterator[ToolCommand]]
    source: str  # where it is published


def _llama_bench(target: ToolTarget, folder: Path) -> Iterator[ToolCommand]:
    """Yield a token and a prompt, then a long prompt and a token behind a long context."""
    sizes = (("-p", "512", "-n", "128"), ("-p", "4096", "-n", "0"), ("-p", "0", "-n", "64", "-d", "8192"))
    for number, size in enumerate(sizes):
        words = ("llama-bench", "-m", str(target.model), *size, "-o", "jsonl")
        yield ToolCommand("llama-bench", words, f"llama-bench-{number + 1}.jsonl")


def _nccl_tests(target: ToolTarget, folder: Path) -> Iterator[ToolCommand]:
    """Yield all-reduces from small to large messages, then exchanges of experts."""
    for name in ("all_reduce_perf", "alltoall_perf"):
        words = (name, "-b", "8K", "-e", "256M", "-f", "8", "-g", str(target.workers))
        yield ToolCommand("nccl-tests", words, f"{name}.log")


USERS = (8, 1, 32)
"""Users of a server, in the order in which they are measured."""


def _vllm_bench(target: ToolTarget, folder: Path) -> Iterator[ToolCommand]:
    """Yield closed loops of a few users, with answers of a fixed length."""
    for users in USERS:
        file = f"vllm-{users}.json"
        yield ToolCommand(
            "vllm",
            (
                "vllm", "bench", "serve", "--base-url", str(target.address), "--model", str(target.model),
                "--dataset-name", "random", "--random-input-len", "1024", "--random-output-len", "256", "--ignore-eos",
                "--max-concurrency", str(users), "--num-prompts", str(4 * users + 16),
                "--save-result", "--result-dir", str(folder), "--result-filename", file,
            ),
            file,
            writes_file=True,
        )  # fmt: skip


TOOLS = {
    "llama-bench": Tool("llama-bench", "model", _llama_bench, "github.com/ggml-org/llama.cpp"),
    "nccl-tests": Tool("all_reduce_perf", "workers", _nccl_tests, "github.com/NVIDIA/nccl-tests"),
    "vllm": Tool("vllm", "address", _vllm_bench, "github.com/vllm-project/vllm"),
}


def plan(names: Sequence[str], target: ToolTarget, folder: Path) -> list[ToolCommand]:
    """Return the commands of some tools; raise BadValue if one lacks what it measures."""
    for name in ("model", "address"):
        text = getattr(target, name)
        if text is not None and (not text.strip() or text.startswith("-")):
            raise BadValue(f"`--{name}` must not be empty or begin with a dash (got {text!r})")
    if target.address is not None and not target.address.startswith(("http://", "https://")):
        raise BadValue(f"`--address` must begin with http:// or https:// (got {target.address!r})")
    if target.workers is not None and target.workers < 2:
        raise BadValue(f"`--workers` must be an integer >= 2 (got {target.workers})")
    commands: list[ToolCommand] = []
    for name in names:
        tool = TOOLS[name]
        needed_options = dict.fromkeys((tool.needs, "model")) if name == "vllm" else (tool.needs,)
        for option in needed_options:
            if getattr(target, option) is None:
                raise BadValue(f"`--tools {name}` needs `--{option}`: {_NEEDED[name, option]}")
        commands += tool.commands(target, folder)
    return commands


_NEEDED = {
    ("llama-bench", "model"): "the GGUF file that it runs",
    ("nccl-tests", "workers"): "the number of devices that exchange data",
    ("vllm", "address"): "the running server, such as http://localhost:8000",
    ("vllm", "model"): "the name of the network as the server has it",
}


def run_commands(commands: Sequence[ToolCommand], folder: Path, budget_s: float) -> Iterator[ToolRun]:
    """Run commands one after another and yield what became of each; none begins after the budget is spent."""
    deadline = time.monotonic() + budget_s
    for command in commands:
        program = shutil.which(command.words[0])
        remaining_s = deadline - time.monotonic()
        if program is None:
            yield ToolRun(command, ABSENT)
        elif remaining_s <= 0:
            yield ToolRun(command, NO_TIME)
        else:
            yield _run(command, program, folder, remaining_s)


def _run(command: ToolCommand, program: str, folder: Path, limit_s: float) -> ToolRun:
    """Run a command, which is ended after the time limit, and keep what it wrote."""
    path = folder / command.file
    path.unlink(missing_ok=True)  # of an earlier run, which this one might leave as it is
    try:
        with subprocess.Popen(
            [program, *command.words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                printed, errors = process.communicate(timeout=limit_s)
            except BaseException as error:  # also an interrupt, which does not reach a session of its own
                with suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)  # with its children, which would keep the output open
                process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    return ToolRun(command, NO_TIME)
                raise
    except OSError as error:
        return ToolRun(command, f"cannot be started ({error.strerror})")
    if process.returncode:
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][:MOST_ERROR_CHARACTERS]
        return ToolRun(command, f"failed with {process.returncode}: {last}".removesuffix(": "))
    if len(printed) > MOST_OUTPUT_BYTES:
        return ToolRun(command, f"printed more than {MOST_OUTPUT_BYTES:,} bytes")
    if not command.writes_file:
        save(path, printed)
    return ToolRun(command, DONE, path) if path.is_file() else ToolRun(command, f"did not write {command.file}")
