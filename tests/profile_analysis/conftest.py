"""Timelines as HolisticTraceAnalysis sees them, and the traces of a job's ranks."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from measured import DATA
from paleo_lite.profile_analysis.activity import COLUMNS, ActivityRecorder, Recording
from paleo_lite.profiles.detect import open_profile


@pytest.fixture(scope="session")
def without_last_step() -> Callable[[Path], Recording]:
    """A trace without its last step, which HolisticTraceAnalysis drops."""

    def read(path: Path) -> Recording:
        activity, steps = ActivityRecorder(), []
        for batch in open_profile(path).batches(COLUMNS):
            steps = batch.column("step").dictionary.to_pylist()
            activity.add(batch)
        return activity.recording(steps[:-1] or None)

    return read


@pytest.fixture(scope="session")
def dlrm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of eight traces, one for each rank of a job."""
    folder = tmp_path_factory.mktemp("dlrm")
    with tarfile.open(DATA / "profiles" / "param" / "dlrm_kineto.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "dlrm_kineto"
