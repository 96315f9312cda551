"""Regression tests of earlier findings of the fuzz test, and some random commands: see `fuzz.py`.

Each file of ``found`` lies in a folder named for the sample that it was made of.
"""

from __future__ import annotations

import gzip
import importlib.util
import random
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import fuzz
import fuzz_guided

pytestmark = pytest.mark.slow

FOUND = sorted((Path(__file__).parent / "found").glob("*/*"))


@pytest.fixture(scope="module")
def known():
    return fuzz.samples()


@pytest.mark.spread(7)
@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_earlier_findings_stay_fixed(path, known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / path.parent.name
    copy.write_bytes(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    sample = next(sample for sample in known if sample.name == path.parent.name)
    for command in sample.commands:
        assert fuzz.wrong_with(command.format(file=copy).split()) is None


def test_some_fuzzed_commands(known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, again = (fuzz.asked(7, 0, known, tmp_path) for _ in range(2))
    assert first == again  # a number gives the same question whoever asks it
    for number in range(40):
        _, words = fuzz.asked(number, 0, known, tmp_path)
        assert fuzz.wrong_with(words) is None, f"{words}: python tests/fuzz.py --from {number} --seconds 5"


@pytest.mark.thorough
def test_a_sample_is_right_before_it_is_changed(known, tmp_path, monkeypatch):
    """Samples must be valid: mutations of an invalid file would test nothing."""
    from click.testing import CliRunner

    from paleo_lite.cli import main

    monkeypatch.chdir(tmp_path)
    for sample in known:
        path = tmp_path / (sample.name if "." in sample.name else "file")
        path.write_bytes(sample.data)
        refused = []
        for command in sample.commands:
            result = CliRunner().invoke(main, command.format(file=path).split())
            if result.exit_code == 0:
                break
            refused.append(result.output[-300:])
        assert len(refused) < len(sample.commands), (sample.name, refused)


@pytest.mark.thorough
def test_guided_inputs_are_the_same_for_the_same_seed_and_are_answered(known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = fuzz_guided.Target(known, tmp_path)
    seeds = target.seeds()
    assert len(set(seeds)) == len(seeds) > sum(len(sample.commands) for sample in known)
    rng = random.Random(2017)
    for number in range(40):
        data = rng.choice(seeds)
        changed = target.mutate(data, number)
        if not data.startswith(b"sweep.parquet") and not data.startswith(b"pyprof"):  # pyarrow writes its own metadata
            assert changed == target.mutate(data, number)
        assert target.parse(changed) is not None
        assert target.run(changed) is None, f"python tests/fuzz_guided.py: {changed[:200]!r}"


@pytest.mark.parametrize("data", [b"", b"command line\n{", b"command line\n[1]", b"unknown 1\n", b"pyprof x\n"])
def test_what_is_no_input_is_not_run(data, known, tmp_path):
    assert fuzz_guided.Target(known, tmp_path).parse(data) is None


def test_a_defect_is_stored_once_and_runs_again(known, tmp_path, monkeypatch, capsys):
    """The same message with other numbers is the same defect; another exception is another one."""
    monkeypatch.chdir(tmp_path)
    data = fuzz_guided.encode("paleo.json", 0, b"{}")
    assert fuzz_guided.store(tmp_path, data, "KeyError: 12\nmore")
    assert not fuzz_guided.store(tmp_path, data + b" ", "KeyError: 13")
    assert fuzz_guided.store(tmp_path, data, "IndexError: 12")
    paths = sorted(path for path in tmp_path.iterdir() if path.suffix != ".txt")
    assert [path.read_bytes() for path in paths] == [data, data]
    assert fuzz_guided.run_again(paths) == 0
    assert capsys.readouterr().out.count("nothing is wrong") == 2


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_atheris_runs_a_few_inputs_and_stores_a_corpus(tmp_path):
    command = [sys.executable, fuzz_guided.__file__, "--runs", "300", "--folder", str(tmp_path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "0 new findings" in answer.stdout
    assert len(list((tmp_path / "corpus").iterdir())) > 100


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("nsys-sqlite", [b"CREATE VIEW", b"GENERATED ALWAYS", b"WITH RECURSIVE"]),
        ("net.onnx", [b"f19", b"f199", b"\x04body"]),
        ("device.toml", [b"[[[", b"{ value = { value", b"a.a.a.a.a"]),
        ("config.json", [b"auto_map", b"custom_pipelines", b'"text_config": {"auto_map"']),
    ],
)
def test_mutants_hold_code_views_functions_and_nesting(name, parts, known):
    sample = next((sample for sample in known if sample.name == name), None)
    if sample is None:
        pytest.skip("onnx is not installed")
    mutants = b"".join(fuzz.mutated(sample.data, sample.kind, b"", random.Random(number)) for number in range(300))
    assert [part for part in parts if part not in mutants] == []


def test_a_long_key_is_not_multiplied():
    """A key of 16 kB, repeated 30,000 times, took all memory and more than 20 s of the processor."""
    for number in range(20):
        assert len(fuzz._deep_toml(f"{'a.' * 8000} = 1", random.Random(number))) < 2_000_000


def test_code_beside_the_file_that_runs_is_found(tmp_path):
    fuzz.plant(tmp_path, random.Random(next(n for n in range(100) if random.Random(n).random() < 0.1)))
    planted = [*tmp_path.glob("*.py"), *tmp_path.glob("*/__init__.py")]
    assert planted and fuzz.planted_code_ran(tmp_path) is None
    runpy.run_path(str(planted[0]))
    assert fuzz.planted_code_ran(tmp_path)


def test_an_input_whose_processes_take_long_is_a_finding(known, tmp_path, monkeypatch):
    target = fuzz_guided.Target(known, tmp_path)
    taken_s = iter([3.0, 3.0 + fuzz_guided.SLOW_S, 30.0, 31.0 + fuzz_guided.SLOW_S])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fuzz_guided, "processor_s", lambda: next(taken_s))
    monkeypatch.setattr(fuzz, "wrong_with", lambda words: None)
    assert target.run(b"paleo.json 0\n{}") is None
    assert "more than 20 s of the processor" in target.run(b"paleo.json 0\n{}")


def test_the_input_of_a_process_that_a_signal_ended_is_a_finding(tmp_path):
    """A loop of C, which no exception of Python's ends, is ended by the system."""
    (tmp_path / "findings").mkdir()
    endless = "import fuzz_guided, itertools; fuzz_guided.end_after(0); all(itertools.repeat(1))"
    ended = subprocess.run([sys.executable, "-c", endless], cwd=Path(__file__).parent, check=False)
    assert ended.returncode == -signal.SIGXCPU
    assert not fuzz_guided.store_pending(tmp_path, ended.returncode)  # before the first input
    (tmp_path / fuzz_guided.PENDING).write_bytes(b"that ran an input\npaleo.json 0\n{}")
    assert not fuzz_guided.store_pending(tmp_path, 1)
    assert fuzz_guided.store_pending(tmp_path, ended.returncode)
    (stored,) = (path for path in (tmp_path / "findings").iterdir() if path.suffix != ".txt")
    assert stored.read_bytes() == b"paleo.json 0\n{}"
    assert stored.with_name(f"{stored.name}.txt").read_text() == "SIGXCPU ended the process that ran an input\n"
