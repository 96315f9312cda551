"""A made-up engine, added as CONTRIBUTING.md says, and what a record forgets.

Tests: engines/records/__init__.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import paleo_lite as pl
from paleo_lite.api.local import predict_local
from paleo_lite.engines import records
from paleo_lite.engines.records.record import Engine, Kernels, Launcher, LocalEngine, Server, Versions
from paleo_lite.engines.step import UNKNOWN_HOST
from paleo_lite.gguf_types import MIXTURES
from paleo_lite.machines import find_device
from paleo_lite.own_machines.question import LocalQuestion
from paleo_lite.own_machines.step import local_constants
from paleo_lite.questions.option import options_of
from paleo_lite.questions.serve_options import Serve
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.launch import launch_settings

SOURCES = ("https://example.com/made-up",)

STATED = (
    {"devices", "group_devices"}, {"stages"}, {"sequences", "group_sequences"}, {"tokens", "group_tokens"},
    {"memory_fraction"}, {"kv_cache"},
)  # fmt: skip
"""Settings that every launch command states, one of each set."""


def made_up(**changes: Any) -> Server:
    """Return the record of an engine that serves many users and runs on one's own machine."""
    launcher = Launcher(
        command="made-up serve",
        options=(
            ("--devices", "devices"), ("--stages", "stages"), ("--sequences", "sequences"), ("--tokens", "tokens"),
            ("--memory", "memory_fraction"), ("--cache", "kv_cache"),
        ),
        weights={"fp8": "fp8"},
        kv_cache={"fp8": "fp8"},
        partial_experts=True,
        partial_groups=True,
        sources=SOURCES,
    )  # fmt: skip
    local = LocalEngine(
        "made-up", "a made-up engine", {"NVIDIA": ("cuda",)}, MIXTURES, "q8_0", ("f16",), ("f16", "q8_0")
    )
    server = Server(
        name="made-up", versions=Versions(first="1.0"), kernels=Kernels("made-up", {}, SOURCES), launcher=launcher,
        local=None, sources=SOURCES, max_batched_tokens=4096, max_sequences=48,
        limits_per_rank=True, block_tokens=16, memory_fraction=0.8,
        is_fraction_of_free=False, chunked_prefill=4096, mixes_phases=True, reserved_output=0.0, overhead_s=1e-3,
        overhead_range_s=(0.5e-3, 2e-3), request_overhead_s=5e-3,
    )  # fmt: skip
    return structs.replace(server, **{"local": local, **changes})


def forgotten(engine: Engine, settings: set[str]) -> list[str]:
    """Return what a record lacks, a sentence each; `settings` are those that a launch command can state."""
    found = [f"{engine.name}: say in `sources` where its figures can be read"] if not engine.sources else []
    is_server = isinstance(engine, Server)
    if not is_server and engine.kernels is None and engine.local is None:
        found.append(f"{engine.name}: describe `kernels`, a `Server` or `local`, or no question knows it")
    if is_server and not (engine.versions.first or engine.versions.last):
        found.append(f"{engine.name}: name the `versions` that have these defaults")
    if is_server and engine.kernels is not None and not engine.versions.last and engine.launcher is None:
        found.append(f"{engine.name}: add a `launcher`, or answers of `serve` name no command")
    if engine.kernels is not None and not engine.kernels.sources:
        found.append(f"{engine.name}: say in `kernels.sources` where its kernels can be read")
    return [*found, *_forgotten_options(engine, settings), *_forgotten_formats(engine)]


def _forgotten_options(engine: Engine, settings: set[str]) -> list[str]:
    if engine.launcher is None:
        return []
    given = [setting for _, setting in (*engine.launcher.options, *engine.launcher.file_options)]
    needed = [*STATED, {"receive_interval"}] if getattr(engine, "receive_option", "") else list(STATED)
    missing = [" or ".join(sorted(names)) for names in needed if not names & set(given)]
    unknown = sorted(set(given) - settings)
    return [
        *[f"{engine.name}: `launcher.options` has no option for {names}" for names in missing],
        *[f"{engine.name}: `launcher.options` names {name}, which serving/launch.py does not know" for name in unknown],
    ]


def _forgotten_formats(engine: Engine) -> list[str]:
    local = engine.local
    if local is None:
        return []
    backends = [name for names in local.backends.values() for name in names]
    unknown = [name for name in (local.default_weights, *local.advised) if name not in local.mixtures]
    return [
        *[
            f"{engine.name}: fit constants of the backend {name} with validation/local"
            for name in backends
            if name not in local_constants().backends
        ],
        *[f"{engine.name}: `local.mixtures` has no format {name}" for name in dict.fromkeys(unknown)],
        *([] if local.caches else [f"{engine.name}: name the types of keys and values in `local.caches`"]),
    ]


@pytest.fixture
def settings(deployment: Deployment) -> set[str]:
    launcher = deployment.engine.launcher
    assert launcher is not None
    return set(launch_settings(launcher, deployment))


def test_every_file_is_in_the_list() -> None:
    folder = Path(records.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "record"}
    listed = {file.__name__.rpartition(".")[2] for file in records.FILES}
    assert files == listed, f"name in FILES of engines/records/__init__.py: {', '.join(sorted(files - listed))}"


def test_no_engine_forgets_anything(settings: set[str]) -> None:
    problems = [problem for engine in records.ENGINES.values() for problem in forgotten(engine, settings)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sources": ()}, "say in `sources` where its figures can be read"),
        ({"versions": Versions()}, "name the `versions` that have these defaults"),
        ({"launcher": None}, "add a `launcher`, or answers of `serve` name no command"),
        ({"kernels": Kernels("made-up", {}, ())}, "say in `kernels.sources` where its kernels can be read"),
        ({"receive_option": "--look-every"}, "`launcher.options` has no option for receive_interval"),
    ],
)
def test_a_forgotten_part_is_named(changes: dict[str, Any], sentence: str, settings: set[str]) -> None:
    assert forgotten(made_up(), settings) == []
    assert forgotten(made_up(**changes), settings) == [f"made-up: {sentence}"]


def test_a_forgotten_option_is_named(settings: set[str]) -> None:
    launcher = made_up().launcher
    assert launcher is not None
    options = (*launcher.options[1:], ("--devices", "number_of_devices"))
    found = forgotten(made_up(launcher=structs.replace(launcher, options=options)), settings)
    assert found == [
        "made-up: `launcher.options` has no option for devices or group_devices",
        "made-up: `launcher.options` names number_of_devices, which serving/launch.py does not know",
    ]


def test_a_forgotten_format_or_backend_is_named(settings: set[str]) -> None:
    local = LocalEngine("made-up", "", {"Intel": ("sycl",)}, {"f16": MIXTURES["f16"]}, "q8_0", (), ("f16",))
    assert forgotten(made_up(local=local), settings) == [
        "made-up: fit constants of the backend sycl with validation/local",
        "made-up: `local.mixtures` has no format q8_0",
        "made-up: name the types of keys and values in `local.caches`",
    ]


def test_an_engine_without_parts_is_named(settings: set[str]) -> None:
    engine = Engine(
        name="made-up", versions=Versions(), kernels=None, launcher=None, local=None, sources=SOURCES
    )  # fmt: skip
    assert forgotten(engine, settings) == [
        "made-up: describe `kernels`, a `Server` or `local`, or no question knows it"
    ]


def test_a_made_up_engine_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits are simulated and launched; its host is that of an engine without fitted servers."""
    record = made_up(local=None)
    monkeypatch.setitem(records.ENGINES, record.name, record)
    monkeypatch.setitem(records.SERVERS, record.name, record)
    monkeypatch.setitem(records.KERNELS, record.name, record.kernels)
    monkeypatch.setattr(options_of(Serve)["engine"].type, "choices", (record.name,))  # it keeps the list that it read
    found = pl.serve("llama-3-8b", gpu="h100-sxm", engine="made-up", concurrency=4, num_requests=8)
    assert found.launch_command == (
        "made-up serve meta-llama/Meta-Llama-3-8B --sequences 48 --tokens 4096 --memory 0.8"
    )
    assert found.is_forecast and found.overhead_s == UNKNOWN_HOST.iteration_s


def test_a_made_up_engine_runs_on_ones_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the constants of its backend, so that its times are those of llama.cpp."""
    monkeypatch.setitem(records.LOCAL_ENGINES, "made-up", made_up().local)
    device = find_device("rtx3090")
    found, other = (
        predict_local("llama-3-8b", device, LocalQuestion(execution=name, weights="q8_0"))
        for name in ("made-up", "llama.cpp")
    )
    assert found.token_s == other.token_s and found.execution == "made-up"
