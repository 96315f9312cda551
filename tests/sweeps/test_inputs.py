"""What an interrupted sweep depends on: networks, hardware, shipped data and versions. An edit refuses to resume it."""

from __future__ import annotations

import csv
import json
import os
from datetime import date
from pathlib import Path

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.calibration.choose import choose_model
from paleo_lite.errors import BadFile, BadValue, Interrupted, SweepStopped
from paleo_lite.files import shipped_folder
from paleo_lite.sweeps import chunk, inputs, questions, rows, run
from paleo_lite.sweeps.inputs import files_of_network, hash_of_file, shared_inputs
from paleo_lite.sweeps.run import run_sweep
from paleo_lite.sweeps.space import Space

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}  # fmt: skip


def write_folder(path: Path, **changes) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return str(path)


def interrupt(space, output: Path) -> None:
    """Leave the folder of a sweep whose last chunk is missing."""
    run_sweep(space, output, choose_model, jobs=1)
    kept = output.with_name(f"{output.name}.partial")
    output.unlink()

    def stop(done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(Exception, match="interrupted"):
        run_sweep(space, output, choose_model, jobs=1, progress=stop)
    assert kept.is_dir()


@pytest.mark.parametrize("kind", ["a folder", "its config", "a descriptor"])
def test_a_network_edited_between_kill_and_resume_is_not_mixed_with_itself(tmp_path, kind):
    output = tmp_path / "sweep.parquet"
    if kind == "a descriptor":
        edited = tmp_path / "mine.json"
        edited.write_bytes((shipped_folder("models") / "alexnet.json").read_bytes())
        name = str(edited)
    else:
        folder = write_folder(tmp_path / "model")
        edited = tmp_path / "model" / "config.json"
        name = folder if kind == "a folder" else str(edited)
    space = Space((name,), ("t4", "k40m"), batch_sizes=(1,)).resolve_names()
    interrupt(space, output)
    if kind == "a descriptor":
        edited.write_bytes((shipped_folder("models") / "vgg16.json").read_bytes())
    else:
        write_folder(tmp_path / "model", hidden_size=128)
    with pytest.raises(BadValue, match=rf"before .*{edited.name} changed: delete it to start again"):
        run_sweep(space, output, choose_model, jobs=1)
    assert not output.exists()


@pytest.mark.spread(3)
@pytest.mark.parametrize("kind", ["a folder", "a descriptor", "a device"])
@pytest.mark.parametrize("edit", ["change", "remove", "change and interrupt"])
def test_a_file_that_is_edited_while_a_sweep_runs_is_noticed_at_its_end(tmp_path, kind, edit):
    """Its rows may be of both versions, and are kept neither as the output nor for a later run."""
    network, other, device, hardware_files = "alexnet", "gpt2", "k40m", ()
    if kind == "a folder":
        network, other = write_folder(tmp_path / "model"), "alexnet"
        edited = tmp_path / "model" / "config.json"
    elif kind == "a descriptor":
        edited = tmp_path / "mine.json"
        edited.write_bytes((shipped_folder("models") / "alexnet.json").read_bytes())
        network = str(edited)
    else:
        edited = tmp_path / "mine.toml"
        edited.write_bytes((shipped_folder("hardware") / "k40m.toml").read_bytes())
        device, hardware_files = "mine", (str(edited),)
    space = Space((network, other), (device,), batch_sizes=(1,), hardware_files=hardware_files).resolve_names()
    output = tmp_path / "out" / "sweep.parquet"
    output.parent.mkdir()
    before = edited.read_bytes()

    def change(done, total):
        if done == total - ("interrupt" in edit):
            edited.unlink() if edit == "remove" else edited.write_bytes(before + b"\n")
            if "interrupt" in edit:
                raise KeyboardInterrupt

    expected = "none of 2 chunks was finished" if "interrupt" in edit else r"changed while the sweep ran: its rows"
    with pytest.raises((SweepStopped, Interrupted), match=expected) as error:
        run_sweep(space, output, choose_model, jobs=1, progress=change)
    assert "interrupt" in edit or str(error.value).startswith(f"{edited} changed while")
    assert not list(output.parent.iterdir())
    edited.write_bytes(before)
    assert run_sweep(space, output, choose_model, jobs=1).resumed == 0


def test_a_sweep_of_the_same_files_is_resumed(tmp_path):
    space = Space((write_folder(tmp_path / "model"),), ("t4", "k40m"), batch_sizes=(1,)).resolve_names()
    interrupt(space, tmp_path / "sweep.csv")
    assert run_sweep(space, tmp_path / "sweep.csv", choose_model, jobs=1).resumed == 1


def test_every_file_that_a_network_is_read_from_counts(tmp_path):
    folder = Path(write_folder(tmp_path / "model"))
    index = folder / "model.safetensors.index.json"
    index.write_text("{}")
    assert files_of_network(f"hf:{folder}") == files_of_network(str(folder)) == [folder / "config.json", index]
    weights = folder / "a.gguf"
    weights.write_bytes(b"GGUF")
    assert files_of_network(str(weights)) == [weights, folder / "config.json", index]
    further = folder / "a-00002-of-00002.gguf"
    further.write_bytes(b"GGUF")
    assert files_of_network(str(weights)) == sorted([weights, further, folder / "config.json", index])
    assert files_of_network(str(folder / "config.json")) == [folder / "config.json", index]
    assert files_of_network("vgg16") == []


def test_a_file_of_weights_is_hashed_by_its_head_its_size_and_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "HEAD_BYTES", 8)
    path = tmp_path / "weights.gguf"
    hashes = set()
    for content in (b"header", b"header++", b"header+++", b"header++++"):
        path.write_bytes(content)
        hashes.add(hash_of_file(path))
    assert len(hashes) == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the operating system has no pipes with names")
def test_a_named_pipe_beside_a_config_is_not_hashed(tmp_path, monkeypatch):
    """Opening it would wait for a writer, perhaps for ever."""
    folder = write_folder(tmp_path / "model")
    for name in ("other.json", "x.gguf"):
        os.mkfifo(tmp_path / "model" / name)
    config = tmp_path / "model" / "config.json"
    assert files_of_network(folder) == [config]
    assert files_of_network(str(config)) == [config]
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it is opened"))
    with pytest.raises(BadFile, match="it is a named pipe"):
        hash_of_file(tmp_path / "model" / "other.json")


def test_shipped_data_and_versions_count(monkeypatch, tmp_path):
    before = shared_inputs()
    assert {"the shipped models", "the shipped hardware", "the shipped calibrations"} <= before.keys()
    (tmp_path / "links.toml").write_text("")
    monkeypatch.setattr(inputs, "shipped_folder", lambda name: tmp_path)
    monkeypatch.setattr(inputs, "version", lambda library: "0.0")
    after = shared_inputs()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == before.keys() - {"the version of paleo-lite"}


def test_shipped_data_that_is_edited_counts_again(monkeypatch, tmp_path):
    """The hash of a folder is kept while its files stay as they are."""
    monkeypatch.setattr(inputs, "shipped_folder", lambda name: tmp_path)
    (tmp_path / "deeper").mkdir()
    file = tmp_path / "deeper" / "links.toml"
    hashes = set()
    for text in ("", "a = 1", "a = 23"):
        file.write_text(text)
        hashes.add(shared_inputs()["the shipped hardware"])
    file.rename(tmp_path / "deeper" / "other.toml")
    hashes.add(shared_inputs()["the shipped hardware"])
    assert len(hashes) == 4


def read_times(output: Path) -> list[float]:
    with output.open() as file:
        return [float(row["time_s"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("kind", ["a config", "a descriptor", "a device"])
def test_a_second_sweep_of_a_process_reads_an_edited_file_again(tmp_path, kind):
    """As in a notebook, or on a worker of Dask, whose process computes chunks of sweep after sweep."""
    network, device = "alexnet", "k40m"
    hardware = tmp_path / "mine.toml"
    hardware.write_bytes((shipped_folder("hardware") / "k40m.toml").read_bytes())
    if kind == "a config":
        network = write_folder(tmp_path / "model")
    elif kind == "a descriptor":
        network = str(tmp_path / "mine.json")
        Path(network).write_bytes((shipped_folder("models") / "alexnet.json").read_bytes())
    else:
        device = "mine"
    space = Space((network,), (device,), batch_sizes=(1,), time_models=("roofline",), hardware_files=(str(hardware),))
    run_sweep(space, tmp_path / "before.csv", choose_model, jobs=1)
    if kind == "a config":
        write_folder(tmp_path / "model", hidden_size=128)
    elif kind == "a descriptor":
        Path(network).write_bytes((shipped_folder("models") / "vgg16.json").read_bytes())
    else:
        hardware.write_bytes((shipped_folder("hardware") / "t4.toml").read_bytes())
    run_sweep(space, tmp_path / "after.csv", choose_model, jobs=1)
    before, after = (read_times(tmp_path / f"{name}.csv") for name in ("before", "after"))
    expected = pl.predict(network, gpu=device, batch_size=1, time_model="roofline", hardware_files=[hardware])
    assert after == pytest.approx([expected.time_s], rel=1e-5)
    assert before != pytest.approx(after, rel=1e-3)


def test_a_network_that_becomes_a_language_model_gets_a_chunk_of_its_own(tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes((shipped_folder("models") / "alexnet.json").read_bytes())
    space = Space(("vgg16", str(path)), ("k40m",))
    assert len(list(space.chunks())) == space.chunk_count == 1
    path.write_text(json.dumps(LLAMA))
    assert len(list(space.chunks())) == space.chunk_count == 2


@pytest.mark.parametrize("kind", ["of a step", "of a picture"])
def test_a_resumed_sweep_has_the_day_of_its_first_run(tmp_path, monkeypatch, kind):
    """Whether a price is older than a year does not change within a file, wherever the clock jumps to."""
    days = [date(2015, 1, 1)]

    class Clock(date):
        @classmethod
        def today(cls):
            return days[-1]

    with pytest.raises(msgspec.ValidationError):  # the types of a manifest are read once, before the clock is replaced
        msgspec.json.decode(b"{}", type=run.Manifest)
    for module in (run, chunk, rows):
        monkeypatch.setattr(module, "date", Clock)
    if kind == "of a step":
        question = pl.Predict("alexnet", gpu="h100-sxm", precision="fp16,bf16")
    else:
        question = pl.Diffusion("sd-1.5", gpu="h100-sxm", precision="fp16,bf16")
        monkeypatch.setattr(questions, "MAX_CHUNK_ROWS", 1)
    output = tmp_path / "sweep.csv"

    def stop_later(done, total):
        days.append(date(2090, 1, 1))
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        pl.sweep(question, output, jobs=1, on_done=stop_later)
    assert pl.sweep(question, output, jobs=1).resumed == 1
    assert "older than a year" not in output.read_text()
    pl.sweep(question, output, jobs=1, force=True)
    assert output.read_text().count("older than a year") == 2
