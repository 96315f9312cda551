"""Parts of steps that sources publish apart: transfers of weights, and passes of trainers without the tuned stack.

They tell apart what the totals of steps do not; every source has the same weight, however many rows it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.api.reinforcement import make_job, predict_trainer, predict_transfer
from paleo_lite.api.reinforcement_devices import Devices, find_devices
from paleo_lite.api.reinforcement_state import offloaded_state
from paleo_lite.errors import PaleoError
from paleo_lite.questions.records import settings_of
from paleo_lite.reinforcement.constants import RlConstants
from paleo_lite.reinforcement.frameworks import BROADCAST, GATHERED, PAIRED, RESHARDED
from paleo_lite.reinforcement.weights import UNIT_PASSES_OF_GATHERED_BLOCKS

from .published import TRANSFER, RlMeasurement

SHARES = {
    BROADCAST: "broadcast_share",
    RESHARDED: "resharding_share",
    PAIRED: "resharding_share",
    GATHERED: "port_share",
}
"""Constants of the rates of the ways of weights."""


FITTED_TOGETHER = {"gathered_blocks_bytes_per_s": "gathered_master_bytes_per_s"}
"""Constants that have the value of another, as published steps do not tell them apart."""


UNPINNED_SHARES = (1 / 8, 1 / 16)
"""Two shares of the link to the host, at which no number of devices reaches the whole link."""


SHARDED_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""Shares of the links at which the waiting for sharded parameters is evaluated; between them it is interpolated."""


class FittedPart(NamedTuple):
    """What the constants multiply in a part of a step."""

    row: RlMeasurement
    measured_s: float
    scaled_s: dict[str, float]  # seconds that a constant multiplies
    divided_s: dict[str, float]  # seconds that a constant divides
    host_s: dict[str, float]  # seconds that a constant multiplies, of the host at the same time
    fixed_s: float = 0.0  # seconds that no constant changes, while the host works
    state_s: float = 0.0  # seconds that no constant changes, while nothing else does
    exchange_s: tuple[float, ...] = ()  # seconds beside kernels at each of `SHARDED_SHARES`; empty of transfers


def parts_of(rows: Sequence[RlMeasurement], constants: RlConstants) -> list[FittedPart]:
    """Return the parts of the rows that can be asked for."""
    parts: list[FittedPart] = []
    for row in rows:
        try:
            if "transfer" in row.phases:
                parts.append(_transfer_part(row, constants))
            if row.question.sharding == "full-shard" and (row.question.lora is None or has_units(row)):
                parts += _trainer_parts(row, constants)
        except PaleoError:
            continue  # which the page of errors names
    return parts


def _transfer_part(row: RlMeasurement, constants: RlConstants) -> FittedPart:
    """Return the transfer of a row; in that of a whole step the engines wake on the same devices."""
    bare = dict.fromkeys(("tensor_s", "resharded_tensor_s", "converted_s", "handover_s", "unit_s"), 0.0)
    full_shares = dict.fromkeys(SHARES.values(), 1.0)
    gathering = dict.fromkeys(("gathered_master_bytes_per_s", *FITTED_TOGETHER), 1.0)
    without_gathering = dict.fromkeys(gathering, math.inf)
    at_full_rates = msgspec.structs.replace(constants, **bare, **full_shares, **without_gathering)
    devices = find_devices(row.question)
    wires = predict_transfer(row.question, at_full_rates)
    job = make_job(row.question, devices.device, row.question.response_tokens)
    state_s = offloaded_state(row.question, devices, job.workload.network).parameters_s
    gathered = predict_transfer(row.question, msgspec.structs.replace(at_full_rates, **gathering))
    divided = {"gathered_master_bytes_per_s": gathered.time_s - wires.time_s}
    scaled = {"handover_s": 1.0}
    if has_units(row):  # whose engine takes its weights back at the rate of pinned memory
        scaled["unit_s"] = float(UNIT_PASSES_OF_GATHERED_BLOCKS * wires.tensors)
        fixed_s = wires.time_s - state_s
        return FittedPart(row, row.phases["transfer"], scaled, divided, {}, fixed_s=fixed_s, state_s=state_s)
    divided[share_of(row, devices)] = wires.time_s - state_s
    scaled["resharded_tensor_s" if path_of(row) == RESHARDED else "tensor_s"] = float(wires.tensors)
    if row.question.rollout_precision == "fp8" and row.has_conversion:
        scaled["converted_s"] = float(wires.tensors)
    if row.part != TRANSFER:
        scaled["wake_s"] = 1.0
    return FittedPart(row, row.phases["transfer"], scaled, divided, {}, state_s=state_s)


def path_of(row: RlMeasurement) -> str:
    """Return the way of the weights of a row."""
    framework = row.question.framework_rules
    usual = framework.transfer if row.question.rollout_workers is None else framework.transfer_apart
    return str(settings_of(row.question.engine_settings).get("transfer", usual))


def share_of(row: RlMeasurement, devices: Devices) -> str:
    """Return the constant of the rate at which weights travel: inside a node all ways have that of the ports."""
    return "port_share" if devices.topology.nodes == 1 else SHARES[path_of(row)]


def _trainer_parts(row: RlMeasurement, constants: RlConstants) -> list[FittedPart]:
    """Return the passes of a row whose trainer has not the tuned stack."""
    bare = msgspec.structs.replace(constants, unit_s=0.0, unpinned_share=UNPINNED_SHARES[0], sharded_share=1.0)
    without = msgspec.structs.replace(bare, other_slowdown=0.0)  # of kernels
    times = predict_trainer(row.question, msgspec.structs.replace(bare, other_slowdown=1.0))
    slower = predict_trainer(row.question, msgspec.structs.replace(without, unpinned_share=UNPINNED_SHARES[1]))
    host = predict_trainer(row.question, msgspec.structs.replace(without, unit_s=1.0))
    waiting = [
        predict_trainer(row.question, msgspec.structs.replace(without, sharded_share=share)) for share in SHARDED_SHARES
    ]
    state = times.offloaded
    parts = []
    for phase, name, state_s in (
        ("update", "update_s", state.parameters_s + state.optimizer_s),
        ("old_log_probs", "forward_s", state.parameters_s),
    ):
        if not row.phases.get(phase):
            continue
        first, second = (1 / share for share in UNPINNED_SHARES)
        waiting_s = [getattr(each, name) for each in waiting]
        moved_s = (getattr(slower, name) - waiting_s[0]) / (second - first)  # over a whole link
        device_s = getattr(times, name) - waiting_s[0]
        host_s = {"unit_s": getattr(host, name) - state_s} if has_units(row) else {}
        scaled, divided = {"other_slowdown": device_s}, {"unpinned_share": moved_s}
        exchange_s = tuple(seconds - first * moved_s - state_s for seconds in waiting_s)
        measured_s = row.phases[phase]
        parts.append(FittedPart(row, measured_s, scaled, divided, host_s, exchange_s=exchange_s, state_s=state_s))
    return parts


def has_units(row: RlMeasurement) -> bool:
    """Return whether the adapters of a row are units of FSDP."""
    return row.question.lora is not None and row.question.framework_rules.has_adapter_units


def part_s(part: FittedPart, constants: dict[str, float]) -> float:
    """Return the seconds of a part under some constants."""
    device_s = part.fixed_s + sum(constants[name] * amount for name, amount in part.scaled_s.items())
    device_s += sum(amount / constants[name] for name, amount in part.divided_s.items())
    if part.exchange_s:  # nearly in proportion to the time of the wires
        device_s += float(np.interp(1 / constants["sharded_share"], 1 / np.array(SHARDED_SHARES), part.exchange_s))
    host_s = sum(constants[name] * amount for name, amount in part.host_s.items())
    return max(device_s, host_s) + part.state_s
