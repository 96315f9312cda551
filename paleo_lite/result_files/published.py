"""Results that projects publish with their whole configuration: InferenceX and the ML.ENERGY leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .serving_rows import add_server
from .text import product, ratio, to_number

_LATENCIES = {
    "ttft_s": "mean_ttft", "ttft_median_s": "median_ttft", "ttft_p99_s": "p99_ttft", "tpot_reported_s": "mean_tpot",
    "tpot_median_s": "median_tpot", "tpot_p99_s": "p99_tpot", "itl_s": "mean_itl", "itl_median_s": "median_itl",
    "itl_p99_s": "p99_itl", "e2e_s": "mean_e2el", "e2e_median_s": "median_e2el", "e2e_p99_s": "p99_e2el",
}  # fmt: skip
"""Figures, and the keys of InferenceX: vLLM's in seconds, without their suffix."""

_FACTS = {
    "gpu": "hw", "engine": "framework", "precision": "precision", "tensor": "tp", "expert_parallel": "ep",
    "image": "image", "speculative": "spec_decoding", "disaggregated": "disagg", "data_attention": "dp_attention",
}  # fmt: skip

_OF_RUNS = ("network", "gpu", "engine", "precision", "weights", "tensor", "devices", "expert_parallel",
            "data_attention", "disaggregated", "speculative")  # fmt: skip
"""Facts that rows have, where the runs of a file differ in them."""

_ENGINES = {"trt": "tensorrt-llm", "trtllm": "tensorrt-llm"}

_DRAWN = 0.9
"""Mean of the lengths that InferenceX draws, between 0.8 and 1.0 of those asked (its `RANDOM_RANGE_RATIO`)."""


def read_inferencex(path: Path, findings: Findings) -> None:
    """Read the results of InferenceX (formerly InferenceMAX): vLLM's figures in seconds, aggregated or of one run.

    An aggregated file has many configurations; what they have in common is that of the file.
    """
    runs = [run for run in read_documents(path, findings) if "median_ttft" in run or "tput_per_gpu" in run]
    facts = [_facts_of_run(run) for run in runs]
    first = facts[0] if facts else {}
    common = {name: value for name, value in first.items() if all(run_facts.get(name) == value for run_facts in facts)}
    findings.record(**common)
    for run, run_facts in zip(runs, facts):
        of_run = {name: value for name, value in run_facts.items() if name in _OF_RUNS and name not in common}
        of_run |= {
            "gpu": run_facts.get("gpu"),
            "tensor": to_number(run_facts.get("tensor")),
            "devices": run_facts.get("devices"),
        }
        figures: dict[str, Any] = {name: to_number(run.get(key)) for name, key in _LATENCIES.items()}
        devices = to_number(run_facts.get("devices"))
        lengths: dict[str, Any]
        requested_lengths = {"input_tokens": to_number(run.get("isl")), "output_tokens": to_number(run.get("osl"))}
        if run.get("total_input_tokens") is None and run.get("total_output_tokens") is None:
            lengths = {name: product(length, _DRAWN) for name, length in requested_lengths.items()}
            findings.doubt(
                f"the lengths that came are not in the file: {_DRAWN:g} of those asked are taken, the mean of what "
                "InferenceX draws"
            )
        else:
            lengths = {f"{name}_asked": length for name, length in requested_lengths.items()}
        per_gpu, per_gpu_out = (to_number(run.get(key)) for key in ("tput_per_gpu", "output_tput_per_gpu"))
        if to_number(run.get("median_intvty")) and figures["tpot_median_s"] is None:
            figures["tpot_median_s"] = 1 / run["median_intvty"]
        is_aggregated = "tput_per_gpu" in run
        add_server(
            findings,
            **of_run,
            **lengths,
            requests=to_number(run.get("completed")),
            duration_s=to_number(run.get("duration")),
            request_rate=to_number(run.get("request_rate")),
            concurrency_limit=to_number(run.get("max_concurrency")) or to_number(run.get("conc")),
            input_total=to_number(run.get("total_input_tokens")),
            output_total=to_number(run.get("total_output_tokens")),
            requests_per_s=to_number(run.get("request_throughput")),
            output_tokens_per_s=to_number(run.get("output_throughput")) or product(per_gpu_out, devices),
            tokens_per_s=to_number(run.get("total_token_throughput")) or product(per_gpu, devices),
            tokens_per_s_per_device=per_gpu,
            power_w=to_number(run.get("avg_power_w")),
            energy_per_token_j=to_number(run.get("joules_per_output_token")),
            **figures,
        )
        if is_aggregated:
            findings.doubt("the tokens per second and GPU count prompts and answers")
        if run.get("power_valid") is False:
            findings.doubt("the file itself calls its power not valid")


def _facts_of_run(run: dict[str, Any]) -> dict[str, Any]:
    """Return what a run of InferenceX records of its configuration."""
    facts = {name: run[key] for name, key in _FACTS.items() if run.get(key) not in (None, "none", "")}
    facts["network"] = run.get("model") or run.get("model_id")
    facts["devices"] = _gpu_count(run)
    facts["weights"] = _weight_format(str(run.get("precision")), str(facts["network"]), str(run.get("hw")))
    if "engine" in facts:
        facts["engine"] = _ENGINES.get(str(facts["engine"]), facts["engine"])
    return {name: value for name, value in facts.items() if value is not None}


def _weight_format(precision: str, network: str, device: str) -> str | None:
    """Return the format of the weights: AMD's devices and gpt-oss have other 4-bit numbers than NVIDIA's."""
    if precision != "fp4":
        return precision if precision == "fp8" else None
    is_mx = "mxfp4" in network.lower() or "gpt-oss" in network.lower() or device.lower().startswith("mi")
    return "mxfp4" if is_mx else "nvfp4"


def _gpu_count(run: dict[str, Any]) -> float | None:
    """Return the GPUs of a run; the prefill's and the decoder's together where they are apart."""
    prefill, decode = to_number(run.get("num_prefill_gpu")), to_number(run.get("num_decode_gpu"))
    if run.get("disagg") and prefill is not None and decode is not None:
        return prefill + decode
    return to_number(run.get("num_gpus")) or to_number(run.get("tp"))


def read_ml_energy(path: Path, findings: Findings) -> None:
    """Read a model of the ML.ENERGY leaderboard: a row for each configuration."""
    for model in read_documents(path, findings):
        configurations = model.get("configurations")
        findings.record(network=model.get("model_id"), precision=model.get("weight_precision"))
        for run in configurations if isinstance(configurations, list) else []:
            if isinstance(run, dict):
                _add_ml_energy(run, findings)
    findings.doubt("the power is that of all GPUs together in the steady state, without their computer")


def _add_ml_energy(run: dict[str, Any], findings: Findings) -> None:
    shared: dict[str, Any] = {"gpu": run.get("gpu_model"), "devices": to_number(run.get("num_gpus"))}
    if "batch_latency_s" in run:
        batch, latency_s = to_number(run.get("batch_size")), to_number(run.get("batch_latency_s"))
        steps = to_number(run.get("inference_steps"))
        findings.add(
            "picture",
            **shared,
            batch_size=batch,
            width=to_number(run.get("image_width") or run.get("width")),
            height=to_number(run.get("image_height") or run.get("height")),
            steps=steps,
            time_s=latency_s,
            pictures_per_s=to_number(run.get("throughput_images_per_sec")) or ratio(batch, latency_s),
            power_w=to_number(run.get("avg_power_watts")),
            energy_per_picture_j=to_number(run.get("energy_per_image_joules") or run.get("energy_per_video_joules")),
        )
        return
    power_w, energy_j = to_number(run.get("avg_power_watts")), to_number(run.get("energy_per_token_joules"))
    output_tokens_per_s = to_number(run.get("output_throughput_tokens_per_sec"))
    doubts = []
    expected_w = product(energy_j, output_tokens_per_s)
    if power_w and expected_w and abs(power_w - expected_w) > 0.05 * power_w:
        doubts.append(f"energy and throughput give {expected_w:,.4g} W where {power_w:,.4g} W are reported")
    findings.add(
        "server",
        tuple(doubts),
        **shared,
        tensor=to_number(dig(run, "parallelization", "tensor_parallel")),
        max_num_seqs=to_number(run.get("max_num_seqs")),
        concurrency=to_number(run.get("avg_batch_size")),
        output_tokens=to_number(run.get("avg_output_len")),
        itl_median_s=_milliseconds(run.get("median_itl_ms")),
        itl_p99_s=_milliseconds(run.get("p99_itl_ms")),
        output_tokens_per_s=output_tokens_per_s,
        tpot_s=ratio(to_number(run.get("avg_batch_size")), output_tokens_per_s),
        power_w=power_w,
        energy_per_token_j=energy_j,
    )


def _milliseconds(value: Any) -> float | None:
    number = to_number(value)
    return None if number is None else number / 1000


FORMATS = (
    ResultFormat(
        "inferencex-aggregate", "InferenceX", "the aggregated results of InferenceX", read_inferencex,
        keys=("hw", "conc", "tput_per_gpu"),
    ),
    ResultFormat(
        "inferencex", "InferenceX", "the results of InferenceX, in seconds", read_inferencex,
        keys=("model_id", "max_concurrency", "median_ttft", "median_tpot"),
    ),
    ResultFormat(
        "ml-energy", "the ML.ENERGY leaderboard", "a model of the ML.ENERGY leaderboard", read_ml_energy,
        keys=("configurations", "gpu_model", "avg_power_watts"),
    ),
)  # fmt: skip
