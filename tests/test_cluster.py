"""Sweeps on a real Dask cluster of two workers, one of which is killed.

Tests: executor.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paleo_lite import executor
from paleo_lite.errors import BadValue, MissingExtra
from paleo_lite.executor import run_tasks
from paleo_lite.machines import find_device
from paleo_lite.profile_analysis.analysis import measure_efficiency
from paleo_lite.profile_analysis.one_file import ReadOptions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    for nodes in range(12):
        columns = {
            "Kernel": ["gemm", "copy"],
            "Sil(ns)": [100 + nodes, 50],
            "FLOPs": [400.0, 0.0],
            "Bytes": [80.0, 0.0],
        }
        pq.write_table(pa.table(columns), folder / f"nodes_{nodes}")
    return folder


def test_as_in_this_process(cluster, folder):
    device = find_device("k40m")
    options = {"reading": ReadOptions("notebook", r"nodes_(?P<nodes>\d+)"), "group_by": ["nodes"]}
    there = measure_efficiency([folder], device, scheduler=cluster.scheduler_address, **options)
    here = measure_efficiency([folder], device, jobs=1, **options)
    assert there.to_dict() == here.to_dict()
    assert [row["nodes"] for row in there.rows] == list(range(12))


@pytest.mark.thorough
def test_a_worker_that_is_killed_loses_no_file_and_counts_none_twice(cluster, folder, tmp_path):
    def slow(path):  # travels by value, as the test's module is not there on the workers
        import os
        import time

        (tmp_path / f"pid.{os.getpid()}").touch()
        time.sleep(0.3)
        return path.name

    files = sorted(folder.iterdir())
    found = []
    killed = None
    for path, name in run_tasks(files, slow, scheduler=cluster.scheduler_address):
        assert path.name == name
        found.append(name)
        if killed is None and len(found) == 3:
            killed = next(iter(sorted(tmp_path.glob("pid.*"))))
            os.kill(int(killed.suffix[1:]), signal.SIGKILL)
            time.sleep(0.1)
    assert killed is not None
    assert sorted(found) == sorted(path.name for path in files)


def test_unreachable_scheduler_is_an_error(folder, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(executor, "_SCHEDULER_TIMEOUT_S", 1)
    with pytest.raises(BadValue, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"):
        list(run_tasks(sorted(folder.iterdir()), len, scheduler="tcp://127.0.0.1:9"))
    with pytest.raises(BadValue, match="must be such as tcp://host:8786"):
        list(run_tasks(sorted(folder.iterdir()), len, scheduler="nonsense"))


def test_without_dask(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"paleo-lite\[cluster\]"):
        list(run_tasks(sorted(folder.iterdir()), len, scheduler="tcp://127.0.0.1:9"))


@pytest.mark.thorough
def test_a_real_worker_without_the_package_is_one_sentence(tmp_path):
    """A package of this name that cannot be imported stands for none; the command has a limit, as Dask would wait."""
    distributed = pytest.importorskip("distributed")
    (tmp_path / "paleo_lite").mkdir()
    (tmp_path / "paleo_lite" / "__init__.py").write_text("raise ModuleNotFoundError('no paleo-lite here')")
    options = ["--nworkers", "1", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    sweep = ["predict", "alexnet", "--gpu", "k40m", "-o", str(tmp_path / "sweep.csv"), "--scheduler"]
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as cluster:
        worker = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, *options],
            env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            asked = subprocess.run(
                [sys.executable, "-m", "paleo_lite", *sweep, cluster.scheduler_address],
                capture_output=True, text=True, timeout=600, check=False,
            )  # fmt: skip
        finally:
            worker.terminate()
            worker.wait()
    assert asked.returncode == 1 and not asked.stdout
    assert "cannot run paleo-lite (no paleo-lite here): install version" in asked.stderr
    assert len(asked.stderr.splitlines()) == 1 and not (tmp_path / "sweep.csv.partial").exists()
