"""`measure --tools`: run public benchmarks on this machine or against a server, and learn from what they wrote."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from ..calibration.evidence_file import EvidenceCalibration
from ..calibration.store import write_calibration
from ..errors import BadValue, PaleoError
from ..files import check_outputs, file_exists, to_paths
from ..measurement.tools import ABSENT, ToolRun, ToolTarget, plan, run_commands
from ..progress import announce
from ..questions.measured import MeasuringQuestion
from ..questions.values import flatten
from ..reporting.tools import ToolReport
from ..units import check_positive
from .observations import calibrate_from_results

_OF_STEPS = (
    "steps", "device", "quick", "threads", "precision", "phases", "channels_last", "compiled", "output", "hardware_out",
)  # fmt: skip
"""Options of steps that torch runs."""

OF_TOOLS = ("model", "address", "workers", "tensor", "network", "minutes", "results")
"""Options of public tools."""


def measure_with_tools(question: MeasuringQuestion) -> ToolReport:
    """Return what the commands of some tools measured, the calibration by it, and what is left to run elsewhere.

    Raise PaleoError for an option of steps, for one that a tool lacks, or an existing output file.
    """
    for name in question.given():
        if name in _OF_STEPS:
            raise BadValue(f"`--{name.replace('_', '-')}` is for steps that torch runs: leave it out with `--tools`")
    check_positive("`--minutes`", question.minutes, f"{question.minutes:g}", "> 0")
    calibration_path = None if question.calibration_out is None else Path(question.calibration_out)
    folder = Path(question.results or "results")
    wanted = ToolTarget(question.model, question.address, question.workers)
    commands = plan(list(dict.fromkeys(flatten(question.tools))), wanted, folder)
    if any(command.tool == "llama-bench" for command in commands) and not file_exists(question.model or ""):
        raise BadValue(f"`--model` must be the GGUF file that llama-bench runs: {question.model} is no file")
    earlier = [path for command in commands if file_exists(path := folder / command.file)]
    check_outputs(calibration_path, *earlier, force=question.force)
    runs: list[ToolRun] = []
    had_folder = file_exists(folder, Path.exists)
    folder.mkdir(parents=True, exist_ok=True)
    for run in run_commands(commands, folder, 60 * question.minutes):
        if run.outcome != ABSENT:  # which the table of the report says of all commands of a tool
            announce(f"{run.command.text}: {run.outcome}")
        runs.append(run)
    if not had_folder and not any(folder.iterdir()):
        folder.rmdir()
    calibration, notes = _learn([run.path for run in runs if run.path is not None], question)
    if calibration is not None and calibration_path is not None:
        write_calibration(calibration, calibration_path, question.force)
    return ToolReport([(run.command.tool, run.command.text, run.outcome) for run in runs], calibration, notes)


def _learn(files: Sequence[Path], question: MeasuringQuestion) -> tuple[EvidenceCalibration | None, list[str]]:
    """Return the calibration by result files, or why there is none."""
    if not files:
        return None, []
    facts = {"gpu": question.gpu, "tensor": question.tensor, "network": question.network, "devices": question.workers}
    user_facts: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
    hardware_files = to_paths(question.hardware_files)
    today = date.today().isoformat()
    try:
        learned = calibrate_from_results(files, user_facts, hardware_files=hardware_files, date=today)
    except PaleoError as error:
        return None, [f"nothing was learned: {error}"]
    return learned, []
