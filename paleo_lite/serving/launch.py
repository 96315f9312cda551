"""Commands that launch a deployment under an engine, with the options of the engine's record."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..architectures import Network
from ..architectures.network import MODEL_CARDS
from ..distributed.platforms import usual_computer
from ..engines.records import SERVERS
from ..engines.records.record import HEAD, DraftWords, Launcher, NodeWords
from ..formats import FORMATS
from ..machines import Device
from .drafts import find_published
from .products import FP4_WEIGHTS, converts_weights, has_units

if TYPE_CHECKING:
    from .deployment import Deployment
    from .prepared import PreparedDeployment
    from .requests import Traffic

Value = str | int | float | bool | None

CONFIGURATION = "options.yaml"
"""File of the options that a command reads from a file."""

DTYPES = {"fp16": "float16", "fp32": "float32"}
"""Names of precisions besides bf16, which checkpoints state themselves."""


class Launch(msgspec.Struct, frozen=True):
    """The command that launches a replica of a deployment, or those of a replica of each pool."""

    command: str | None  # the command in a shell; None if the engine cannot be launched like this
    prefill_command: str | None = None  # that of a replica that computes prompts; None without such a pool
    notes: tuple[str, ...] = ()  # what the command does not state, or why there is none


def find_repository(network: Network) -> str:
    """Return the repository of a network on Hugging Face, or the name of the network if its publisher is not known."""
    if network.publication is not None and network.publication.card.startswith(MODEL_CARDS):
        return network.publication.card.removeprefix(MODEL_CARDS)
    return network.name


class LaunchParts(NamedTuple):
    """What the command of a replica is made of."""

    command: list[str]  # the program, which the repository and the options follow
    repository: str
    options: list[str]
    environment: dict[str, str]
    lines: list[str]  # of the file with further options; empty if the command states all of them
    entries: dict[str, Any]  # entries of that file that only some deployments have
    node_options: tuple[str, ...]  # of the first of several nodes, which operators of clusters add themselves
    file_option: str  # option that names this file


def launch(deployment: Deployment) -> Launch:
    """Return the command that launches a replica of a deployment, with the limits of its engine."""
    pools = pools_of(deployment)
    if deployment.engine.launcher is None and not any(map(why_not_run, pools.values())):
        return Launch(None)
    for role, pool in pools.items():
        reason = why_not_launched(pool, role)
        if reason:
            return Launch(None, notes=(f"no launch command: {reason}",))
    commands = {role: _command_of(launch_parts(pool, role)) for role, pool in pools.items()}
    notes = [note for pool in pools.values() for note in launch_notes(pool)]
    if deployment.prefill is not None:
        notes.append("the launch commands leave the router before both pools to `--report`, which writes its command")
    decode = commands.get("decode", commands.get("worker"))
    notes += [note for pool in pools.values() for note in _node_notes(pool)]
    return Launch(decode, commands.get("prefill"), tuple(dict.fromkeys(notes)))


def to_launch(prepared: PreparedDeployment, traffic: Traffic) -> Deployment:
    """Return the deployment whose servers are started for the requests that are asked for, and that caches hold.

    Engines refuse to start where the cache does not hold a request of all positions of the network.
    """
    deployment = prepared.deployment
    longest = int((traffic.input_tokens + traffic.output_tokens).max())
    groups = deployment.on_device.division.attention_data_parallel
    held = prepared.room.tokens // groups  # of the group that has the request
    lengths = deployment.on_device.workload.network.lengths
    positions = None if lengths is None else lengths.longest
    accepted = None
    if positions is None or held < positions:
        accepted = min(1 << (longest - 1).bit_length(), held)
    if positions is not None and accepted is not None:
        accepted = min(accepted, positions)
    prefill = None if prepared.prefill is None else to_launch(prepared.prefill, traffic)
    return msgspec.structs.replace(deployment, longest_request=accepted, prefill=prefill)


def pools_of(deployment: Deployment) -> dict[str, Deployment]:
    """Return the pools by their role: ``prefill`` and ``decode``, or ``worker`` where every replica does both.

    Heads that draft have keys and values of the prompt too, which the prefill pool computes.
    """
    if deployment.prefill is None:
        return {"worker": deployment}
    prefill, speculation = deployment.prefill, deployment.options.speculation
    if speculation.heads:
        options = msgspec.structs.replace(prefill.options, speculation=speculation)
        prefill = msgspec.structs.replace(prefill, options=options)
    return {"prefill": prefill, "decode": deployment}


def _command_of(parts: LaunchParts) -> str:
    """Return a command in a shell."""
    command = shlex.join([*parts.command, parts.repository, *parts.options, *parts.node_options])
    for name, value in parts.environment.items():
        command = f"{name}={value} {command}"
    if parts.lines:
        written = f"printf '%s\\n' {shlex.join(parts.lines)} > {CONFIGURATION}"
        command = f"{written} && {command} {parts.file_option} {CONFIGURATION}"
    return command


def launch_parts(deployment: Deployment, role: str) -> LaunchParts:
    """Return the parts of the command of a replica in a role, whose engine has one."""
    launcher = deployment.engine.launcher
    assert launcher is not None
    settings = launch_settings(launcher, deployment)
    options: list[str] = []
    for option, setting in launcher.options:
        value = settings[setting]
        if value is not None and value is not False:
            options += [option] if value is True else [option, str(value)]
    environment = {}
    if _converts_weights(deployment):
        name, _, value_of_it = launcher.converts_weights.partition("=")
        environment[name] = value_of_it
    if deployment.on_device.pipeline.blocks:
        environment[launcher.stage_blocks] = ",".join(map(str, deployment.on_device.pipeline.blocks))
    repository = find_repository(deployment.on_device.workload.network)
    lines = _file_lines(launcher, settings)
    if deployment.has_priorities:
        options += launcher.priorities
    admission = deployment.admission
    if admission is not None and admission.most_queued is not None:
        options += [launcher.queue_limit, str(admission.most_queued)]
    if admission is not None and admission.waiting_timeout_s is not None:
        environment[launcher.waiting_timeout] = f"{admission.waiting_timeout_s:g}"
    drafting = _draft_words(deployment)
    options += drafting.options
    lines += [f"{name}: {_in_flow_style(entry)}" for name, entry in drafting.file_entries.items()]
    if role != "worker":
        assert launcher.pools is not None
        options += launcher.pools.options[role]
        lines += launcher.pools.file_lines.get(role, ())
    entries = dict(drafting.file_entries)
    spread = _node_words(deployment)
    node_options = () if spread is None else spread.options
    command = launcher.command.split()
    return LaunchParts(command, repository, options, environment, lines, entries, node_options, launcher.file_option)


USUAL_HOST_DEVICES = 8
"""Devices of a host, where neither the question nor the usual computer of the device says how many."""


def host_devices(deployment: Deployment) -> int:
    """Return the devices that a command starts a server on: those of a node, and of a rack those of a tray."""
    on_device = deployment.on_device
    computer = usual_computer(on_device.machine.device.id)
    devices = USUAL_HOST_DEVICES if computer is None else computer.devices_per_host or computer.devices_per_node
    group = on_device.group
    return devices if group is None or group.between is None else min(devices, group.devices_per_node)


def count_nodes(deployment: Deployment) -> int:
    """Return the number of hosts that a replica is on."""
    devices = deployment.on_device.devices
    return 1 if devices == 1 else -(-devices // host_devices(deployment))


def _node_words(deployment: Deployment) -> NodeWords | None:
    """Return what starts a replica on several nodes; None where it is on one, or nothing is known of it."""
    nodes, launcher = count_nodes(deployment), deployment.engine.launcher
    if nodes == 1 or launcher is None or launcher.nodes is None:
        return None
    return launcher.nodes(nodes, deployment.on_device.division.attention_data_parallel)


def _node_notes(deployment: Deployment) -> list[str]:
    """Return how the other nodes of a replica are started; nothing where it is on one."""
    words, nodes = _node_words(deployment), count_nodes(deployment)
    if words is None:
        return []
    of_first = f", and {HEAD} is the address of the first" if words.options else ""
    return [f"a replica is on {nodes} nodes{of_first}: {words.others}"]


def _draft_words(deployment: Deployment) -> DraftWords:
    """Return what starts the speculative decoding of a deployment, whose engine can draft like it."""
    launcher, tokens = deployment.engine.launcher, deployment.options.speculation.draft_length
    assert launcher is not None
    if not tokens:
        return DraftWords()
    return launcher.drafts[_draft_method(deployment)](tokens, _draft_checkpoint(deployment))


def _draft_method(deployment: Deployment) -> str:
    """Return the way in which a deployment drafts tokens, one of those of launchers."""
    heads = deployment.options.speculation.heads
    if not heads:
        return "n-grams" if deployment.draft is None else "network"
    published = find_published(deployment.on_device.workload.network.name, heads)
    return heads if published is None else published.method or heads


def _draft_checkpoint(deployment: Deployment) -> str:
    """Return the checkpoint of what drafts; a word that stands for one that nobody has published."""
    if deployment.draft is not None:
        return find_repository(deployment.draft.workload.network)
    heads = deployment.options.speculation.heads
    published = find_published(deployment.on_device.workload.network.name, heads)
    return f"{heads.upper()}-HEADS" if published is None else published.checkpoint


def _in_flow_style(value: Any) -> str:
    """Return a value of a YAML file in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_in_flow_style(item)}' for name, item in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def launch_settings(launcher: Launcher, deployment: Deployment) -> dict[str, Value]:
    """Return all settings of a deployment by name; None where an engine needs no option.

    The names with ``group`` are those of one attention group, which engines launch as a data-parallel rank.
    """
    engine, on_device = deployment.engine, deployment.on_device
    _, stages, experts, groups = on_device.division
    workload = on_device.workload
    form, adapters = workload.weights or workload.precision, deployment.adapters
    chunk, usual = engine.chunked_prefill, SERVERS[engine.name]
    return {
        "devices": _above_one(on_device.tensor),
        "group_devices": _above_one(on_device.tensor // groups),
        "groups": _above_one(groups),
        "has_groups": groups > 1,
        "experts": _above_one(experts),
        "divides_experts": experts > 1,
        "stages": _above_one(stages),
        "sequences": engine.max_sequences,
        "tokens": engine.max_batched_tokens,
        "has_chunks": bool(chunk),
        "has_whole_prompts": not chunk,
        "chunk_or_none": chunk or -1,
        "given_block_tokens": None if engine.block_tokens == usual.block_tokens else engine.block_tokens,
        "memory_fraction": engine.memory_fraction,
        "receive_interval": _above_one(engine.receive_interval),
        "stream_interval": _above_one(engine.stream_interval),
        "given_captured": engine.captured_sequences,
        "captured": engine.captured_sequences or engine.max_sequences,
        "pads_captured": True,
        "batch_wait_iterations": (groups == 1 and engine.batch_wait_iterations) or None,
        "batch_wait_share": (groups == 1 and engine.batch_wait_share) or None,
        "balances_ranks": groups > 1 and bool(engine.batch_wait_iterations),
        "balance_iterations": (groups > 1 and engine.batch_wait_iterations) or None,
        "longest_request": deployment.longest_request,
        "has_adapters": adapters is not None,
        "adapters": None if adapters is None else adapters.count,
        "adapter_slots": None if adapters is None else adapters.slots,
        "adapter_rank": None if adapters is None else adapters.rank,
        "compiled_adapter_rank": None if adapters is None else _compiled_rank(adapters.rank),
        "dtype": DTYPES.get(workload.precision),
        "weights": None if _is_published_narrow(workload.network) else launcher.weights.get(form),
        "kv_cache": launcher.kv_cache.get(_plain_name(on_device.kv_cache)),
    }


COMPILED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that vLLM takes (`vllm/config/lora.py`, ``MaxLoRARanks``)."""


def _compiled_rank(rank: int) -> int:
    """Return the least of the ranks of `COMPILED_RANKS` that holds adapters of a rank."""
    return next((compiled for compiled in COMPILED_RANKS if compiled >= rank), rank)


def _is_published_narrow(network: Network) -> bool:
    """Return whether the published checkpoint has narrower weights than 16 bits, which engines do not convert."""
    return network.publication is not None and bool(network.publication.weights)


def _converts_weights(deployment: Deployment) -> bool:
    """Return whether the engine converts 8-bit weights to 16 bits where it would compute in 8 bits by itself."""
    workload, device = deployment.on_device.workload, deployment.on_device.machine.device
    return converts_weights(workload.weights, workload.precision, device)


def _above_one(degree: int) -> int | None:
    return degree if degree > 1 else None


def _plain_name(form: str) -> str:
    return "nvfp4" if form == "fp4" else form


_VERSION = re.compile(r"-[\d.]+$")
"""Version in the name of an engine: ``vllm-0.16``."""


def why_not_run(deployment: Deployment) -> str:
    """Return why the engine of a deployment does not run on its devices, and which do; empty if it runs.

    The forecast stays: it is that of the kernels on these devices, which forks and other builds of an engine have.
    """
    engine, on_device = deployment.engine, deployment.on_device
    device, weights = on_device.machine.device, on_device.workload.weights
    is_mixture = on_device.workload.has_experts
    lacking = engine.capability.why_not_on(device, weights, is_mixture=is_mixture)
    if not lacking:
        return ""
    others = engines_on(device, weights, is_mixture=is_mixture)
    verb = "runs" if len(others) == 1 else "run"
    instead = f"; {' and '.join(others)} {verb} there" if others else ""
    return f"{engine.name} ({engine.versions.describe()}) {lacking}{instead}"


def engines_on(device: Device, weights: str | None, *, is_mixture: bool) -> list[str]:
    """Return the options of the newest versions of each engine that are known to run on a device with a format."""
    options: dict[str, str] = {}  # by program
    for name, server in SERVERS.items():
        if server.vendors and device.vendor not in server.vendors:
            continue
        needed = server.capability
        if needed.lowest and not needed.why_not_on(device, weights, is_mixture=is_mixture):
            options.setdefault(_VERSION.sub("", name), f"`--engine {name}`")
    return list(options.values())


def why_not_launched(deployment: Deployment, role: str) -> str:
    """Return why the engine of a pool cannot be launched like it in a role; empty if it can."""
    on_device, engine, launcher = deployment.on_device, deployment.engine.name, deployment.engine.launcher
    lacking = why_not_run(deployment)
    if lacking:
        return lacking
    if launcher is None:
        return f"nothing is known of how to start {engine}"
    if role != "worker" and launcher.pools is None:
        return f"nothing is known of how to start split pools of {engine}"
    devices, _, experts, groups = on_device.division
    if not launcher.partial_experts and experts not in (1, devices):
        return f"{engine} divides experts among all {devices} devices or none (got {experts})"
    if not launcher.partial_groups and groups not in (1, devices):
        return f"{engine} divides attention into as many groups as devices, {devices}, or one (got {groups})"
    if deployment.options.speculation.draft_length and _draft_method(deployment) not in launcher.drafts:
        return f"nothing is known of how {engine} drafts tokens with {_draft_method(deployment)}"
    if deployment.adapters is not None and all(setting != "adapters" for _, setting in launcher.options):
        return f"nothing is known of how {engine} is started with adapters"
    device = on_device.machine.device
    if _converts_weights(deployment) and not (launcher.converts_weights and device.vendor == "NVIDIA"):
        return (
            f"{engine} computes products with weights in {on_device.workload.weights} in fp8 on {device.name}, which "
            "`serve` predicts without `--precision`"
        )
    stored = on_device.workload.weights
    if stored in FP4_WEIGHTS and not has_units(device, "fp4") and not launcher.converts_fp4:
        others = " and ".join(
            name for name, server in SERVERS.items() if server.launcher and server.launcher.converts_fp4
        )
        return (
            f"{engine} multiplies weights in {stored} in fp4, for which {device.name} has no units, so that the "
            f"forecast is of kernels that it does not have: {others} convert these weights to 16 bits"
        )
    cache = FORMATS[on_device.kv_cache]
    if cache.is_quantized and _plain_name(cache.name) not in launcher.kv_cache:
        return f"{engine} has no KV cache in {cache.name}; it has {', '.join(launcher.kv_cache)}"
    return ""


def _file_lines(launcher: Launcher, settings: dict[str, Value]) -> list[str]:
    """Return the lines of the YAML file with further options; empty if the command states all of them."""
    stated = {setting for _, setting in launcher.options}
    stated_entries = [
        (key, setting) for key, setting in launcher.file_options if settings[setting] not in (None, False)
    ]
    needed = {key.rpartition(".")[0] for key, setting in stated_entries if setting not in stated}
    mappings: dict[str, dict[str, str]] = {}
    for key, setting in stated_entries:
        mapping, _, name = key.rpartition(".")
        if mapping in needed:
            mappings.setdefault(mapping, {})[name] = str(settings[setting]).lower()
    lines = []
    for mapping, entries in mappings.items():
        texts = [f"{name}: {value}" for name, value in entries.items()]
        lines += [f"{mapping}: {{{', '.join(texts)}}}"] if mapping else texts
    return lines


def _chunk_notes(deployment: Deployment, launcher: Launcher) -> list[str]:
    """Return a note where the simulated chunks of prompts are smaller than the iterations, and no option says so."""
    engine = deployment.engine
    states_chunks = any(setting == "chunk_or_none" for _, setting in launcher.options)
    if states_chunks or engine.chunked_prefill in (0, engine.max_batched_tokens):
        return []
    return [
        f"the launch command leaves the chunks of {engine.chunked_prefill:,} tokens out: under {engine.name} prompts "
        f"fill an iteration up to its {engine.max_batched_tokens:,} tokens together, which "
        f"`--chunked-prefill {engine.max_batched_tokens}` predicts"
    ]


def launch_notes(deployment: Deployment) -> list[str]:
    """Return notes on simulated settings that the launch command does not contain."""
    launcher = deployment.engine.launcher
    assert launcher is not None
    workload = deployment.on_device.workload
    form = FORMATS[workload.weights or workload.precision]
    notes = _chunk_notes(deployment, launcher)
    is_made = form.name in launcher.weights and not _is_published_narrow(workload.network)
    published = "" if workload.network.publication is None else workload.network.publication.weights
    if form.is_quantized and not is_made and form.name != published:
        repository = find_repository(workload.network)
        notes.append(
            f"the launch command needs a checkpoint with weights in {form.name}: name it instead of {repository} "
            "if that has other weights"
        )
    if deployment.adapters is not None:
        notes.append("adapters are named when the servers run, or by further options of the launch command")
    if deployment.admission is not None and deployment.admission.gateway_words():
        notes.append(f"the gateway before the replicas is started with {deployment.admission.gateway_words()}")
    if deployment.has_priorities:
        notes.append("requests state their priority in the field `priority` of their body")
    heads = deployment.options.speculation.heads
    if heads not in ("", "mtp") and find_published(workload.network.name, heads) is None:
        placeholder = _draft_checkpoint(deployment)
        notes.append(f"the launch command needs a checkpoint of {heads} heads: name it instead of {placeholder}")
    return notes
