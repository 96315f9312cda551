"""Run the commands in README.md and docs in order, and insert their output into the pages.

``python docs/examples.py`` (``make examples``) rewrites the output below every ``$ paleo-lite`` of a ``console`` block.
``tests/test_docs.py`` runs the same commands and compares the output. A page is one session: its commands run from top
to bottom in one folder. A block with ``title="FILE"`` is the content of that file; `example_files` creates the other
files that the commands read.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
from example_files import DATA_FILES, FILES, bring, data_folder

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - set((ROOT / "docs/notebooks").glob("*.md")))]
"""Pages with examples. docs/notebooks.py runs the notebooks and writes their pages."""

NOT_RUN = {
    r"make \w+": "sets up environments, or runs the tests themselves",
    r"pip install ": "needs a package index",
    r"conda (build|install) ": "needs conda; tests/test_release.py compares the recipe with pyproject.toml",
    r"paleo-lite measure\b": "takes minutes; tests/measurement runs it",
    r"paleo-lite predict .*--gpu ID": "needs the file that measure writes",
    r"paleo-lite layers timm:": "needs timm, which the tests do not install",
    r"paleo-lite (layers|predict|local) (\S+\.(onnx|pt2|gguf)|hf:)": "needs a file or a model; see tests/architectures",
    r"paleo-lite diffusion ./my-sdxl": "needs diffusers; see tests/architectures/test_pipeline_folder.py",
    r"paleo-lite compare --predict config.json": "needs the trace of a language model; see tests/calibration",
    r"paleo-lite ui\b": "runs until it is stopped; tests/web runs it",
    r"paleo-lite kernels ranks/": "needs the profiles of all ranks of a job; see tests/profile_analysis/test_ranks.py",
    r"paleo-lite efficiency .*markers/": "needs three kinds of profiles; see tests/profile_analysis/test_durations.py",
    r"paleo-lite efficiency .*--capture-trace": "needs two traces; see tests/profile_analysis/test_captured_graphs.py",
}
"""Patterns of commands that are not run, with the reason."""

_SHELL = ("sh", "bash", "shell", "console")
_COMMAND = re.compile("|".join([r"paleo-lite ", r"python -m validation ", *NOT_RUN]))


class NeedsDataError(Exception):
    """A command needs published measurements that are not available."""


@dataclass(frozen=True)
class Step:
    """A file, command or piece of Python code on a page.

    Parameters
    ----------
    kind : {"file", "command", "python"}
    text : str
        Content of the file, the command without its prompt, or the code.
    line : int
        Line number on the page, from 1.
    name : str
        Name of the file.
    shown : (int, int), optional
        Lines of the page (from 0, half open) with the command's output.
    """

    kind: str
    text: str
    line: int
    name: str = ""
    shown: tuple[int, int] | None = None


def steps_of(page: str) -> list[Step]:
    """Return the steps on a page, from top to bottom."""
    lines = page.splitlines()
    steps: list[Step] = []
    for language, title, first, last in _blocks(lines):
        indent = len(lines[first]) - len(lines[first].lstrip()) if first < last else 0
        block = [line[indent:] for line in lines[first:last]]
        if title:
            steps.append(Step("file", "\n".join(block) + "\n", first + 1, title))
        elif language == "python":
            steps.append(Step("python", "\n".join(block), first + 1))
        elif language == "console":
            steps += _console(block, first)
        elif language in _SHELL or (not language and block and _COMMAND.match(block[0])):
            steps += [Step("command", text, first + at + 1) for at, _, text in _commands(block)]
    return steps


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield language, title, first line and end of each block of code, fenced or indented by four spaces."""
    at = 0
    while at < len(lines):
        fence = re.match(r" *```(\w*)(.*)$", lines[at])
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            title = re.search(r'title="([^"]+)"', fence[2])
            yield fence[1], title[1] if title else "", at + 1, end
            at = end + 1
        elif lines[at].startswith("    ") and not (at and lines[at - 1].strip()):
            end = next((i for i in range(at, len(lines)) if lines[i].strip() and lines[i][0] != " "), len(lines))
            yield "", "", at, end
            at = end
        else:
            at += 1


def _commands(block: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the first line, the line after the last, and the text of each command, joined at backslashes."""
    at = 0
    while at < len(block):
        start, text = at, block[at]
        while text.endswith("\\"):
            at += 1
            text = text[:-1] + block[at].strip()
        at += 1
        if text.strip() and not text.lstrip().startswith("#"):
            yield start, at, text.strip()


def _console(block: Sequence[str], first: int) -> Iterator[Step]:
    prompts = [at for at, line in enumerate(block) if line.startswith("$ ")]
    for at, following in zip(prompts, [*prompts[1:], len(block)]):
        _, after, text = next(_commands(block[at:following]))
        yield Step("command", text[2:], first + at + 1, shown=(first + at + after, first + following))


@dataclass
class Session:
    """The commands of a page, run in order in one folder, each at its first use.

    Parameters
    ----------
    page : str
        Text of the page.
    folder : Path
        Working folder.
    columns : int
        Width of the terminal, in characters.
    """

    page: str
    folder: Path
    columns: int = 80
    steps: list[Step] = field(init=False)
    done: dict[int, tuple[int, str] | NeedsDataError] = field(default_factory=dict)
    names: dict[str, object] = field(default_factory=dict)
    unmade: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.steps = steps_of(self.page)

    def outcome(self, at: int) -> tuple[int, str]:
        """Return the exit code and the output of a step, after running the preceding steps.

        Raises
        ------
        NeedsDataError
            If the step reads measured data that is not available, or the output of such a step.
        """
        for earlier in range(at + 1):
            if earlier not in self.done:
                with _inside(self.folder):
                    self.done[earlier] = self._run(self.steps[earlier])
        result = self.done[at]
        if isinstance(result, NeedsDataError):
            raise result
        return result

    def _run(self, step: Step) -> tuple[int, str] | NeedsDataError:
        if step.kind == "file":
            Path(step.name).parent.mkdir(parents=True, exist_ok=True)
            Path(step.name).write_text(step.text)
            return 0, ""
        if step.kind == "python":
            try:
                self._bring(re.findall(r'"([^"\n]+)"', step.text))  # files that the code names
            except NeedsDataError as error:
                return error
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(step.text, f"line {step.line}", "exec"), self.names)
            return 0, printed.getvalue()
        if why_not_run(step.text):
            return 0, ""
        words = shlex.split(step.text, comments=True)
        written = {
            after for word, after in pairwise(words) if word == ">" or re.fullmatch(r"-o|--(\w+-)?out(put)?", word)
        }
        try:
            if words[0] == "python" and "--data" not in words and data_folder() is None:
                raise NeedsDataError("no measured data to hold out: set PALEO_LITE_DATA")
            self._bring([word for word in words if word not in written])
        except NeedsDataError as error:
            self.unmade |= written
            return error
        for name in written:  # an earlier example on the page may have written the same file
            Path(name).unlink(missing_ok=True)
        return self._call(words)

    def _bring(self, words: Sequence[str]) -> None:
        for name in {part for word in words for part in re.split(r"[,=:]", word)}:
            if name in self.unmade:
                raise NeedsDataError(
                    f"reads {name}, made from published measurements; name their folder in PALEO_LITE_DATA"
                )
            if Path(name).exists():
                continue
            if name in DATA_FILES and data_folder() is None:
                raise NeedsDataError(f"reads {name} of published measurements; name their folder in PALEO_LITE_DATA")
            if name in FILES or name in DATA_FILES:
                bring(name)

    def _call(self, words: list[str]) -> tuple[int, str]:
        from click.testing import CliRunner

        from paleo_lite.cli import main
        from validation.__main__ import main as validation

        command, first = (validation, 3) if words[0] == "python" else (main, 1)  # python -m validation, or paleo-lite
        target = words[words.index(">") + 1] if ">" in words else None
        arguments = [
            path
            for word in words[first : words.index(">") if target else None]
            for path in (sorted(map(str, Path().glob(word))) if "*" in word and "/" not in word else []) or [word]
        ]
        environment = {"COLUMNS": str(self.columns), "PALEO_LITE_DATA": str(data_folder() or "")}
        ran = CliRunner(env=environment).invoke(command, arguments, prog_name=" ".join(words[:first]))
        if ran.exit_code == 0 and target:
            if target in FILES:
                bring(target)  # the template as a reader would complete it
            else:
                Path(target).write_text(ran.stdout)
        return ran.exit_code, ran.stdout if ran.exit_code == 0 else ran.output


def why_not_run(command: str) -> str:
    """Return the reason for not running a command; empty if it is run.

    Raises
    ------
    ValueError
        If the command is neither one of paleo-lite nor in `NOT_RUN`.
    """
    for pattern, reason in NOT_RUN.items():
        if re.match(pattern, command):
            return reason
    if not command.startswith(("paleo-lite ", "python -m validation ")):
        raise ValueError(f"cannot run {command!r}: use a command of paleo-lite, or add a reason to NOT_RUN")
    return ""


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Change into a folder, and make its modules importable, until the end of the block."""
    before, imported_before = Path.cwd(), set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - imported_before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def as_shown(output: str, shown: Sequence[str]) -> list[str]:
    """Return the lines of an output that a page shows: all, or as many as before if the last shown line is ``...``."""
    lines = [line.rstrip() for line in output.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return [*lines[: len(shown) - 1], "..."] if shown and shown[-1] == "..." else lines


def shown_lines(page: str, step: Step) -> list[str]:
    """Return the output that a page shows below a command."""
    assert step.shown is not None
    lines = page.splitlines()[slice(*step.shown)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def refill(page: str, folder: Path, columns: int) -> tuple[str, list[str]]:
    """Return a page with updated output, and the failures; the output of failed commands is not changed."""
    session = Session(page, folder, columns)
    lines, fresh, failed = page.splitlines(), [], []
    for at, step in enumerate(session.steps):
        try:
            code, output = session.outcome(at)
        except NeedsDataError as missing:
            failed.append(f"line {step.line}: {missing}")
            continue
        if code:
            failed.append(f"line {step.line}: {step.text}\n{output}")
        elif step.shown is not None:
            gap = [""] if lines[step.shown[1]].startswith("$ ") else []
            fresh.append((step.shown, [*as_shown(output, shown_lines(page, step)), *gap]))
    for (first, last), output_lines in reversed(fresh):
        lines[first:last] = output_lines
    return "\n".join(lines) + "\n", failed


def columns_of(page: Path) -> int:
    """Return the width of the terminal for a page, which fits the site next to its navigation, or GitHub."""
    return 100 if page.name == "README.md" else 80


def main() -> None:
    """Update the named pages, or all pages; exit with 1 if a command failed."""
    failures = []
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        before = page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            after, failed = refill(before, Path(folder), columns_of(page))
        failures += [f"{page.relative_to(ROOT)}: left as it is: {failure}" for failure in failed]
        if after != before:
            page.write_text(after)
            print(f"{page.relative_to(ROOT)}: written")
    sys.exit("\n".join(failures) if failures else 0)


if __name__ == "__main__":
    main()
