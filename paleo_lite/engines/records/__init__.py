"""The engines: one file for each, with a record for every range of versions, and the list of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import structs

from ...errors import BadValue, UnknownName
from ...machines import Device
from . import exllama, llama_cpp, mlx, sglang, tensorrt_llm, vllm
from .record import Engine, Server

FILES = (vllm, tensorrt_llm, sglang, llama_cpp, mlx, exllama)
"""The files, in the order in which commands name their engines."""

ENGINES: dict[str, Engine] = {record.name: record for file in FILES for record in file.RECORDS}
"""All engines by name."""

SERVERS = {name: engine for name, engine in ENGINES.items() if isinstance(engine, Server)}
"""Engines that serve requests of many users."""

KERNELS = {engine.kernels.engine: engine.kernels for engine in reversed(ENGINES.values()) if engine.kernels is not None}
"""Kernels of the newest version by the engine under whose name their times were fitted."""

KERNEL_ENGINES = tuple(name for name, engine in ENGINES.items() if engine.kernels is not None)
"""Engines whose kernels are known, as names of executions."""

USUAL_ENGINE = vllm.VLLM.name
"""Engine whose kernels are timed where the question names none."""

LOCAL_ENGINES = {name: engine.local for name, engine in ENGINES.items() if engine.local is not None}
"""Engines that run a language model on one's own machine."""

BACKENDS = tuple(
    dict.fromkeys(
        backend for local in LOCAL_ENGINES.values() for backends in local.backends.values() for backend in backends
    )
)
"""Backends of these engines, each with constants of its own."""

LOCAL_EXECUTIONS = {name: local.description for name, local in LOCAL_ENGINES.items()}
"""Their names, with a description in one line."""


def find_server(name: str, device: Device | None = None, **changes: Any) -> Server:
    """Return an engine's server, one of `SERVERS`, with its defaults for a device.

    Limits of some engines depend on the device. The changes are limits to replace, where None keeps the default. Raise
    UnknownName if there is no such engine, and BadValue if a value is outside its range.
    """
    if name not in SERVERS:
        raise UnknownName("serving engine", name, SERVERS)
    defaults = SERVERS[name]
    if device is not None and defaults.vendors and device.vendor not in defaults.vendors:
        raise BadValue(f"`--engine {name}` is for devices of {' and '.join(defaults.vendors)}, not for {device.name}")
    replacements = {key: value for key, value in changes.items() if value is not None}
    _check_settings(defaults, replacements)
    if "max_batched_tokens" in replacements and defaults.chunked_prefill:
        replacements.setdefault("chunked_prefill", replacements["max_batched_tokens"])
    if "overhead_s" in replacements:
        replacements["overhead_range_s"] = (replacements["overhead_s"], replacements["overhead_s"])
    device_limits = defaults.limits_on(device) if device is not None and defaults.limits_on is not None else {}
    server = structs.replace(defaults, **{**device_limits, **replacements})
    if server.needs_token_per_sequence and server.max_sequences > server.max_batched_tokens:
        if "max_sequences" in replacements:
            raise BadValue(
                f"{name} starts no server of more sequences than an iteration has tokens: `--max-sequences` "
                f"{server.max_sequences:,} must be at most `--max-batched-tokens` {server.max_batched_tokens:,}"
            )
        server = structs.replace(server, max_sequences=server.max_batched_tokens)
    if not server.chunked_prefill and not server.mixes_whole_prompts:
        server = structs.replace(server, mixes_phases=False)
    if not server.works_between_looks and "overhead_s" not in replacements:
        looks, (shortest_s, longest_s) = server.receive_interval, server.overhead_range_s
        range_s = (shortest_s / looks, longest_s / looks)
        server = structs.replace(server, overhead_s=server.overhead_s / looks, overhead_range_s=range_s)
    return server


class _SettingOfSome(NamedTuple):
    """A setting that only some engines have."""

    name: str  # as it is typed
    has: Callable[[Server], bool]


_SETTINGS_OF_SOME = {
    "receive_interval": _SettingOfSome("receive-interval", lambda server: bool(server.receive_option)),
    "batch_wait_iterations": _SettingOfSome(
        "batch-wait-iterations", lambda server: server.batch_wait_iterations is not None
    ),
    "batch_wait_share": _SettingOfSome("batch-wait-share", lambda server: server.batch_wait_iterations is not None),
    "stream_interval": _SettingOfSome("stream-interval", lambda server: server.response_s > 0),
    "captured_sequences": _SettingOfSome("captured-sequences", lambda server: server.captures_graphs),
}


def _check_settings(defaults: Server, replacements: Mapping[str, Any]) -> None:
    """Raise BadValue for a setting that an engine does not have, with the engines that have it."""
    for key, setting in _SETTINGS_OF_SOME.items():
        if key in replacements and not setting.has(defaults):
            owners = sorted(server.name for server in SERVERS.values() if setting.has(server))
            raise BadValue(
                f"`--engine-settings {setting.name}` is for {' and '.join(owners)} (the engine is {defaults.name})"
            )


def kernels_of(name: str) -> str:
    """Return the engine whose kernels an engine launches: ``vllm`` for ``vllm-0.5``; raise UnknownName for others."""
    engine = ENGINES.get(name)
    if engine is None or engine.kernels is None:
        raise UnknownName("engine with kernels of its own", name, KERNELS)
    return engine.kernels.engine
