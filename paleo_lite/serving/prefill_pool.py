"""What an answer says of the prefill pool of a split deployment."""

from __future__ import annotations

import msgspec

from .pools import Simulated
from .prepared import PreparedDeployment
from .requests import Traffic
from .steady import MeasuredSpan, work_in


class PrefillPool(msgspec.Struct, frozen=True):
    """Replicas that compute prompts, and send their keys and values to those that decode.

    Attributes
    ----------
    gpu, gpu_name, precision, weights, kv_cache, engine, engine_limits : str
        Device, formats, and engine with its limits as text.
    tensor, pipeline, expert_parallel, attention_data_parallel, replicas, devices : int
        Division of a replica, replicas, and devices of the pool.
    weights_bytes, activations_bytes, cache_bytes : float
        Memory of one device.
    cache_tokens : int
        Tokens that the cache of one replica holds.
    utilisation : float
        Share of the time in iterations.
    transfer_s : float
        Seconds from the end of a prompt of the mean length until the decode pool runs it; the sum of the following.
    transfer_bytes_s, transfer_blocks_s, transfer_messages_s, transfer_iterations_s : float
        Seconds in which its keys and values are sent, in which the reads of their blocks are made, of messages of the
        router and between the engines, and of the iterations of the decode pool in which its scheduler looks for it.
    transferred_bytes : float
        Bytes of its keys and values, as all devices of a replica send them.
    transfer_link : str
        The slower of the links at both ends, in the devices of one computer or between computers.
    launch_command : str or None
        The engine's own command for a replica of the pool; None if the engine cannot be launched like this.
    longest_request : int or None
        Tokens of a request for which this command starts its servers; None without such a limit.
    price_usd_per_h : float or None
        Price of one device per hour; None if it is unknown.
    """

    gpu: str
    gpu_name: str
    precision: str
    weights: str
    kv_cache: str
    engine: str
    engine_limits: str
    tensor: int
    pipeline: int
    expert_parallel: int
    attention_data_parallel: int
    replicas: int
    devices: int
    weights_bytes: float
    activations_bytes: float
    cache_bytes: float
    cache_tokens: int
    utilisation: float
    transfer_s: float
    transfer_bytes_s: float
    transfer_blocks_s: float
    transfer_messages_s: float
    transfer_iterations_s: float
    transferred_bytes: float
    transfer_link: str
    launch_command: str | None = None
    longest_request: int | None = None
    price_usd_per_h: float | None = None


def describe_prefill(
    prepared: PreparedDeployment,
    traffic: Traffic,
    simulated: Simulated,
    span: MeasuredSpan,
    launch_command: str | None,
    longest_request: int | None,
) -> PrefillPool | None:
    """Return what an answer says of the prefill pool; None without one."""
    if prepared.prefill is None:
        return None
    pool = prepared.prefill.deployment
    on_device, room = pool.on_device, prepared.prefill.room
    transfer, tokens = prepared.transfer, float(traffic.input_tokens.mean())
    decoding = [outcome for outcome in simulated.outcomes if outcome.iterations]
    iteration_s = sum(outcome.busy_s for outcome in decoding) / sum(outcome.iterations for outcome in decoding)
    iterations_s = prepared.engine.handover.iterations * iteration_s
    return PrefillPool(
        gpu=on_device.machine.device.id,
        gpu_name=on_device.machine.device.name,
        precision=on_device.workload.precision,
        weights=pool.timer.weights,
        kv_cache=on_device.kv_cache,
        engine=pool.engine.name,
        engine_limits=pool.engine.describe(on_device.division.attention_data_parallel),
        tensor=on_device.tensor,
        pipeline=on_device.pipeline.degree,
        expert_parallel=on_device.division.expert_parallel,
        attention_data_parallel=on_device.division.attention_data_parallel,
        replicas=pool.replicas,
        devices=pool.devices,
        weights_bytes=room.weights_bytes,
        activations_bytes=room.activations_bytes,
        cache_bytes=room.cache_bytes,
        cache_tokens=room.tokens,
        utilisation=min(work_in(simulated.prefill, span).busy_s / (span.seconds * pool.replicas), 1.0),
        transfer_s=float(transfer.seconds(tokens)) + iterations_s,
        transfer_bytes_s=float(transfer.bytes_s(tokens)),
        transfer_blocks_s=float(transfer.blocks_s(tokens)),
        transfer_messages_s=transfer.messages_s,
        transfer_iterations_s=iterations_s,
        transferred_bytes=transfer.token_bytes * tokens * on_device.devices,
        transfer_link=transfer.slowest_link(tokens).name,
        launch_command=launch_command,
        longest_request=longest_request,
        price_usd_per_h=pool.price_usd_per_h,
    )
