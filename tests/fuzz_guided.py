"""Coverage-guided fuzzing in one process: atheris (libFuzzer) selects inputs, `fuzz` changes them.

    python tests/fuzz_guided.py [--seconds 600] [--runs N] [--folder build/fuzz]   fuzz; exit 1 after a finding
    python tests/fuzz_guided.py FINDING...                                         run inputs again

An input is one file: a line with the name of a sample and the number of one of its commands, and then the bytes that
the command reads; or the line ``command line`` and the words as JSON. Inputs that reach new branches of ``paleo_lite``
are stored in ``corpus``, with which the next run starts. The first input of each defect is stored in ``findings``; an
input is one, too, if it takes more than `SLOW_S` seconds of the processor, whatever the reason: in processes that it
starts, in code that no exception ends, or while it is changed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import mmap
import os
import pkgutil
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [path for path in (str(HERE.parent), str(HERE)) if path not in sys.path]

import fuzz  # noqa: E402

COMMAND_LINE = "command line"
PENDING = "pending"
"""File with what the process does at the moment, and in further lines the input."""

LARGEST_BYTES = 64_000
SLOW_S = 20  # of the processor: a process for a trace, which imports torch, takes some 6
PATIENCE_S = 600  # for an input that waits
RUNS_PER_PROCESS = 50_000  # functions remember networks and devices, some 20 kB per input


def encode(name: str, command: int, data: bytes) -> bytes:
    """Return the input that gives `data` to a command of a sample."""
    return f"{name} {command}\n".encode() + data


def processor_s() -> float:
    """Return the seconds of the processor that this process and those that it has started and seen end have taken."""
    taken = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in taken)


def end_after(seconds: int) -> None:
    """Let the system end this process, by SIGXCPU, after some more seconds of the processor.

    No exception of Python's can end a loop of C, and code that catches it goes on.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + seconds, most))


class Target:
    """Runs and changes inputs.

    Parameters
    ----------
    samples : list of fuzz.Sample
    folder : Path
        An existing folder for the file that a command reads.
    """

    def __init__(self, samples: list[fuzz.Sample], folder: Path) -> None:
        self.samples: dict[str, fuzz.Sample] = {}
        for sample in samples:
            same = sum(other.name == sample.name for other in self.samples.values())
            self.samples[f"{sample.name}-{same + 1}" if same else sample.name] = sample
        self.folder = folder

    def seeds(self) -> list[bytes]:
        """Return one input per command of each sample, and one command line."""
        words = json.dumps(["predict", "alexnet", "--gpu", "k40m"]).encode()
        seeds = [f"{COMMAND_LINE}\n".encode() + words]
        for name, sample in self.samples.items():
            seeds += [encode(name, number, sample.data) for number in range(len(sample.commands))]
        return seeds

    def parse(self, data: bytes) -> tuple[str, list[str]] | None:
        """Write the input's file and return the sample's name and the words; None if it is not an input."""
        head, _, content = data.partition(b"\n")
        name, _, number = head.decode("utf-8", "replace").rpartition(" ")
        if head == COMMAND_LINE.encode():
            try:
                words = json.loads(content)
            except ValueError:
                return None
            is_words = isinstance(words, list) and all(isinstance(word, str) for word in words)
            return (COMMAND_LINE, words) if is_words else None
        if name not in self.samples or not number.isdecimal():
            return None
        commands = self.samples[name].commands
        path = self.folder / (self.samples[name].name if "." in name else "file")
        path.write_bytes(content)
        fuzz.plant(self.folder, random.Random(len(content)))
        words = commands[int(number) % len(commands)].format(file=path).split()
        if "--force" not in words and int(number) >= len(commands):
            words += ["--format", fuzz.TABLES[int(number) // len(commands) % len(fuzz.TABLES)]]
        return name, words

    def run(self, data: bytes) -> str | None:
        """Run one input; return what is wrong with the answer, or None."""
        parsed = self.parse(data)
        if parsed is None:
            return None
        size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_AS, (size_bytes + fuzz.MEMORY, resource.RLIM_INFINITY))
        previous = signal.signal(signal.SIGPROF, raise_hang)
        before_s = processor_s()
        signal.setitimer(signal.ITIMER_PROF, fuzz.CPU_S)
        try:
            problem = fuzz.wrong_with(parsed[1]) or fuzz.planted_code_ran(self.folder)
            if problem is None and processor_s() - before_s > SLOW_S:
                return f"more than {SLOW_S} s of the processor, with the processes that it started"
            return problem
        except fuzz.Hang:
            return f"more than {fuzz.CPU_S} s of the processor"
        except MemoryError:
            return f"more than {fuzz.MEMORY >> 20} MiB"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, previous)
            resource.setrlimit(resource.RLIMIT_AS, unlimited)

    def mutate(self, data: bytes, seed: int) -> bytes:
        """Return the input changed as the kind of file that it is, or another command for the same file."""
        rng = random.Random(seed)
        head, _, content = data.partition(b"\n")
        name, _, number = head.decode("utf-8", "replace").rpartition(" ")
        if name not in self.samples:
            return f"{COMMAND_LINE}\n".encode() + json.dumps(self._change_words(content, rng)).encode()
        sample = self.samples[name]
        command = int(number) if number.isdecimal() else 0
        if rng.random() < 0.2:
            command = rng.randrange(len(sample.commands) * len(fuzz.TABLES))
        other = rng.choice(list(self.samples.values()))
        return encode(name, command, fuzz.mutated(content, sample.kind, other.data, rng))

    @staticmethod
    def _change_words(content: bytes, rng: random.Random) -> list[str]:
        new = fuzz.command_line(rng)
        try:
            words = json.loads(content)
        except ValueError:
            return new
        if rng.random() < 0.4 or not isinstance(words, list) or not words:
            return new
        place = rng.randrange(len(words))
        return [*words[:place], rng.choice(new), *words[place + rng.randrange(2) :]]


def name_of_defect(label: str, problem: str) -> str:
    """Return a name that is the same for the same message about the same sample, whatever its numbers."""
    general = re.sub(r"'.*?'|\d+|\\x..", "#", problem.split("\n", maxsplit=1)[0])
    return f"{re.sub(r'[^a-z0-9.]+', '-', label)}-{hashlib.sha256(general[:120].encode()).hexdigest()[:8]}"


def store(findings: Path, data: bytes, problem: str) -> bool:
    """Store the first input of a defect; return whether the defect is new."""
    label = data.partition(b"\n")[0].decode("utf-8", "replace").rpartition(" ")[0]
    path = findings / name_of_defect(label, problem)
    if path.exists():
        return False
    path.write_bytes(data)
    path.with_name(path.name + ".txt").write_text(problem + "\n", encoding="utf-8", errors="replace")
    print(f"{path}: {problem}", file=sys.stderr, flush=True)
    return True


def store_pending(folder: Path, code: int) -> bool:
    """Store the input with which a process ended by a signal; return whether this is a new defect."""
    data = (folder / PENDING).read_bytes() if (folder / PENDING).exists() else b""
    if code >= 0 or not data:
        return False
    what, _, data = data.partition(b"\n")
    return store(folder / "findings", data, f"{signal.Signals(-code).name} ended the process {what.decode()}")


def import_everything() -> None:
    """Import every module of the package, so that no input pays for it."""
    import paleo_lite

    for module in pkgutil.walk_packages(paleo_lite.__path__, "paleo_lite."):
        if not module.name.endswith("__main__") and ".web" not in module.name:
            importlib.import_module(module.name)


def raise_hang(*_: Any) -> None:
    """Handle the signal of the processor's timer."""
    raise fuzz.Hang


def run_engine(folder: Path, options: list[str]) -> None:
    """Fuzz in this process until libFuzzer ends it."""
    import atheris
    from click.testing import CliRunner

    with atheris.instrument_imports(include=["paleo_lite"]):
        import_everything()
    from paleo_lite.architectures.torch_import import import_torchvision
    from paleo_lite.cli import main

    import_torchvision()
    CliRunner().invoke(main, ["efficiency", "--help"])
    findings, corpus = (folder / name for name in ("findings", "corpus"))
    if Path("/dev/shm").is_dir():
        tempfile.tempdir = "/dev/shm"  # every input writes a file: in memory that takes a quarter less time
    with tempfile.TemporaryDirectory() as place, (folder / "count").open("r+b") as file:
        os.chdir(place)
        target, count = Target(fuzz.samples(), Path(place)), mmap.mmap(file.fileno(), 8)
        for seed in target.seeds():
            (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)

        def begin(what: str, data: bytes) -> None:
            (folder / PENDING).write_bytes(f"{what}\n".encode() + data)
            end_after(SLOW_S)

        def run_one(data: bytes) -> None:
            begin("that ran an input", data)
            count[:8] = struct.pack("<q", struct.unpack("<q", count[:8])[0] + 1)
            problem = target.run(data)
            if problem is not None:
                store(findings, data, problem)

        def mutate(data: bytes, max_size: int, seed: int) -> bytes:
            begin(f"that changed an input with the seed {seed}", data)
            changed = target.mutate(data, seed)
            return changed if len(changed) <= max_size else data[:max_size]

        limits = [f"-max_len={LARGEST_BYTES}", "-len_control=0", "-rss_limit_mb=0"]
        limits += [f"-timeout={PATIENCE_S}", f"-report_slow_units={PATIENCE_S}"]  # of the clock
        limits += ["-reload=0", f"-artifact_prefix={findings}/", *options, str(corpus)]
        atheris.Setup([sys.argv[0], *limits], run_one, custom_mutator=mutate)
        atheris.Fuzz()


def fuzz_for(seconds: float, runs: int, folder: Path) -> tuple[int, int]:
    """Fuzz in one child process after another, which may die; return the inputs run and the new findings."""
    for name in ("corpus", "findings"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    findings, counter = folder / "findings", folder / "count"
    before = set(findings.iterdir())
    counter.write_bytes(bytes(8))
    count: Callable[[], int] = lambda: struct.unpack("<q", counter.read_bytes())[0]  # noqa: E731
    until_s = time.monotonic() + seconds
    while (left_s := int(until_s - time.monotonic())) > 0 and (left := runs - count()) > 0:
        started = count()
        options = ["--", f"-max_total_time={left_s}", f"-runs={min(left, RUNS_PER_PROCESS)}"]
        with (folder / "log.txt").open("ab") as log:
            command = [sys.executable, __file__, "--engine", "--folder", str(folder), *options]
            (folder / PENDING).unlink(missing_ok=True)
            code = subprocess.run(command, check=False, stderr=log).returncode
        store_pending(folder, code)
        if count() == started and code:
            raise SystemExit(f"the fuzzer ended with {code} before its first input: see {folder / 'log.txt'}")
    new = {path for path in findings.iterdir() if path not in before and path.suffix != ".txt"}
    for path in sorted(new):
        print(f"python tests/fuzz_guided.py {path}")
    return count(), len(new)


def run_again(paths: list[Path]) -> int:
    """Run stored inputs; return the number that still show a defect."""
    contents = [(path, path.read_bytes()) for path in paths]
    defects = 0
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        target = Target(fuzz.samples(), Path(place))
        for path, data in contents:
            parsed = target.parse(data)
            problem = target.run(data)
            defects += problem is not None
            print(f"{path}: {parsed[1] if parsed else 'no input'}\n  {problem or 'nothing is wrong'}")
    return defects


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("inputs", nargs="*", type=Path, metavar="FINDING", help="stored inputs to run again")
    parser.add_argument("--seconds", type=float, default=600, help="time to fuzz")
    parser.add_argument("--runs", type=int, default=sys.maxsize, help="inputs at most")
    parser.add_argument("--folder", type=Path, default=fuzz.ROOT / "build" / "fuzz", help="corpus and findings")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    arguments, separator, options = sys.argv[1:], "--", []
    if separator in arguments:
        place = arguments.index(separator)
        arguments, options = arguments[:place], arguments[place + 1 :]
    asked = parser.parse_args(arguments)
    if asked.engine:
        run_engine(asked.folder.resolve(), options)
        return 0
    if asked.inputs:
        return bool(run_again(asked.inputs))
    start_s = time.monotonic()
    count, new = fuzz_for(asked.seconds, asked.runs, asked.folder.resolve())
    seconds = time.monotonic() - start_s
    print(f"{count:,} inputs in {seconds:.0f} s ({count / seconds:.0f} per second), {new} new findings")
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())
