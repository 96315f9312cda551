"""The names that rows of result files use: one record per fact or figure, with its title and unit.

A *fact* identifies the question that a row answers (batch size, tokens, devices), a *figure* is what was measured.
Rows hold SI units: seconds, bytes, watts, joules, and rates per second.
"""

from __future__ import annotations

from typing import NamedTuple

KINDS = {
    "server": "requests to a server",
    "prompt": "prompts",
    "decode": "generated tokens",
    "step": "steps of training, or passes of a network",
    "collective": "collectives",
    "copy": "copies",
    "power": "power",
    "kernel": "kernels",
    "picture": "pictures",
}
"""Kinds of rows, and what a table of them is called."""


class RowKey(NamedTuple):
    """What the value under one key of a row is."""

    title: str  # heading of its column
    unit: str = ""  # SI unit; empty for a count or a text, "%" for a fraction
    is_fact: bool = False  # identifies the question instead of answering it


def _facts(unit: str = "", **titles: str) -> dict[str, RowKey]:
    return {name: RowKey(title, unit, True) for name, title in titles.items()}


def _figures(unit: str = "", **titles: str) -> dict[str, RowKey]:
    return {name: RowKey(title, unit) for name, title in titles.items()}


QUANTITIES: dict[str, RowKey] = {
    **_facts(
        label="run",
        network="network",
        gpu="GPU",
        device="device",
        phase="phase",
        operation="operation",
        variant="variant",
        path="path",
        shape="shape",
        engine="engine",
        precision="precision",
        weights="format of weights",
        speculative="drafting",
        scenario="scenario",
        dataset="data set",
        stage="stage",
    ),
    **_facts(
        devices="devices",
        nodes="nodes",
        tensor="tensor parallel",
        expert_parallel="expert parallel",
        data_attention="attention by data",
        disaggregated="split pools",
        batch_size="batch",
        global_batch_size="global batch",
        image_size="image size",
        width="width",
        height="height",
        steps="steps",
        iteration="iteration",
        tokens="tokens",
        depth="tokens before",
        generated="generated tokens",
        prompts="prompts",
        micro_batch="micro-batch",
        max_num_seqs="max num seqs",
        concurrency_limit="concurrency asked",
        input_tokens_asked="input asked",
        output_tokens_asked="output asked",
        sequence_length="sequence length",
    ),
    **_facts("1/s", request_rate="requests/s asked"),
    **_facts("B", bytes="size"),
    **_facts("W", power_limit_w="power limit"),
    **_figures(
        requests="requests",
        failed="failed",
        input_tokens="input tokens",
        output_tokens="output tokens",
        concurrency="mean concurrency",
        running="running",
        waiting="waiting",
        samples="samples",
        parameters="parameters",
        flops="FLOPs",
        wrong="wrong values",
        acceptance_length="tokens per verification",
    ),
    **_figures("%", acceptance="accepted", cache_used="KV cache used", cache_hits="prefix hits"),
    **_figures("%", mfu="MFU", utilisation="utilization", of_peak="of peak"),
    **_figures(
        "s",
        duration_s="duration",
        ttft_s="first token",
        ttft_median_s="median first token",
        ttft_p99_s="p99 first token",
        tpot_s="per token",
        tpot_reported_s="per token as reported",
        tpot_median_s="median per token",
        tpot_p99_s="p99 per token",
        itl_s="gap between tokens",
        itl_median_s="median gap",
        itl_p99_s="p99 gap",
        e2e_s="whole request",
        e2e_median_s="median request",
        e2e_p99_s="p99 request",
        time_s="time",
        time_low_s="shortest",
        time_high_s="longest",
        step_s="step",
        forward_s="forward",
        backward_s="backward",
        update_s="update",
        communication_s="communication",
        load_s="loading",
        encoder_s="text encoder",
        denoiser_s="denoiser",
        decoder_s="image decoder",
        cold_s="cold cache",
        hot_s="back to back",
        host_s="host",
        transfer_s="copies",
    ),
    **_figures(
        "1/s",
        requests_per_s="requests/s",
        input_tokens_per_s="input tokens/s",
        output_tokens_per_s="output tokens/s",
        tokens_per_s="tokens/s",
        tokens_per_s_per_device="tokens/s per device",
        tokens_per_s_per_user="tokens/s per user",
        samples_per_s="samples/s",
        samples_per_s_per_device="samples/s per device",
        steps_per_s="steps/s",
        pictures_per_s="pictures/s",
    ),
    **_figures("FLOP/s", flops_per_s="FLOP/s per device"),
    **_figures(
        "B/s",
        bytes_per_s="bandwidth",
        algorithm_bytes_per_s="algorithm bandwidth",
        bus_bytes_per_s="bus bandwidth",
        in_place_bus_bytes_per_s="in place",
    ),
    **_figures("B", memory_bytes="memory", weight_bytes="weights", moved_bytes="bytes"),
    **_figures("W", power_w="power", power_low_w="lowest", power_high_w="highest", power_busy_w="busy"),
    **_figures("J", energy_j="energy", energy_per_token_j="per token", energy_per_picture_j="per picture"),
    **_figures("Hz", clock_hz="clock"),
}
"""All keys of a row beside its kind, in the order of the columns."""
