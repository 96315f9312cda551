"""Engines: defaults of their repositories by device, and replaced limits.

Tests: engines/records/vllm.py, engines/records/sglang.py.
"""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.engines.constants import Host
from paleo_lite.engines.records import KERNELS, SERVERS, find_server, kernels_of
from paleo_lite.engines.records.record import SAMPLINGS
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.machines import find_device
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.iteration import with_host


@pytest.mark.parametrize(
    ("device", "tokens", "sequences"),
    [("h100-sxm", 8192, 1024), ("h200-sxm", 8192, 1024), ("a100-sxm-80gb", 2048, 256), ("l40s", 2048, 256)],
)
def test_vllm_defaults_of_its_server(device: str, tokens: int, sequences: int) -> None:
    """`EngineArgs.get_batch_defaults` of vLLM: 70 GiB and no A100."""
    engine = find_server("vllm", find_device(device))
    assert (engine.max_batched_tokens, engine.max_sequences) == (tokens, sequences)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("vllm", "0.17 and later"),
        ("vllm-0.16", "0.14 to 0.16"),
        ("vllm-0.13", "0.8 to 0.13"),
        ("vllm-0.7", "0.6 to 0.7"),
        ("vllm-0.5", "0.5 and earlier"),
        ("sglang", "0.5 and later"),
        ("sglang-0.3", "0.3 and earlier"),
    ],
)
def test_versions_are_data(policy: str, text: str) -> None:
    """Versions by the notes of vLLM's releases.

    The V1 engine is the default from 0.8 on, and it schedules ahead from 0.14 on; its sampler sorts no logits from 0.17
    on (https://github.com/llm-d-incubation/llm-d-planner/pull/205); before 0.6 the scheduler waited (its
    blog). SGLang schedules ahead from 0.4 on (lmsys.org/blog/2024-12-04-sglang-v0-4).
    """
    engine = SERVERS[policy]
    assert engine.versions.describe() == text and f"versions {text}" in engine.describe()


def test_policies_launch_the_kernels_of_an_engine() -> None:
    assert {kernels_of(policy) for policy in SERVERS if policy != "llama.cpp"} == set(KERNELS)
    assert kernels_of("vllm-0.5") == "vllm"
    for policy in ("vllmish", "llama.cpp"):
        with pytest.raises(UnknownName, match="no engine with kernels of its own"):
            kernels_of(policy)


def test_older_versions_state_what_differs() -> None:
    newest, before, oldest = (SERVERS[name] for name in ("vllm", "vllm-0.7", "vllm-0.5"))
    assert (newest.block_tokens, newest.memory_fraction) == (before.block_tokens, before.memory_fraction)
    assert newest.schedules_ahead and not before.schedules_ahead and not oldest.schedules_ahead
    assert before.mixes_phases and not oldest.mixes_phases and oldest.chunked_prefill == 0 == oldest.context_share
    assert newest.overhead_s < before.overhead_s < oldest.overhead_s


@pytest.mark.parametrize(
    ("gpu", "tokens"), [("t4", 2048), ("a10", 2048), ("l40s", 4096), ("h100-sxm", 8192), ("h200-sxm", 8192),
                        ("b200", 16_384)],
)  # fmt: skip
def test_sglang_divides_prompts_by_the_memory_of_the_device(gpu: str, tokens: int) -> None:
    """`_handle_gpu_memory_settings` of `server_args.py`, below 20, 35, 60, 90 and 160 GiB, and above."""
    assert find_server("sglang", find_device(gpu)).chunked_prefill == tokens


@pytest.mark.parametrize(("older", "newer"), [("vllm-0.13", "vllm-0.16"), ("sglang-0.3", "sglang")])
def test_scheduling_ahead_came_with_a_version(older: str, newer: str) -> None:
    assert not SERVERS[older].schedules_ahead and SERVERS[newer].schedules_ahead
    device = find_device("h100-sxm")
    limits = [find_server(name, device) for name in (older, newer)]
    assert limits[0].max_batched_tokens == limits[1].max_batched_tokens


def test_multi_step_scheduling_pays_the_host_once_per_look() -> None:
    """`--num-scheduler-steps 10` of vLLM 0.6: ten decoding steps for one pass of the scheduler (its blog)."""
    single, several = find_server("vllm-0.7"), find_server("vllm-0.7", receive_interval=10)
    assert several.receive_interval == 10 and several.overhead_s == pytest.approx(single.overhead_s / 10)
    assert several.overhead_range_s[1] == pytest.approx(single.overhead_range_s[1] / 10)


def test_whole_prompts_of_the_first_engine_of_vllm_pause_decoding() -> None:
    """Without chunks the V0 scheduler runs prompts in iterations of their own (vllm/core/scheduler.py of 0.6)."""
    assert find_server("vllm-0.7").mixes_phases
    assert not find_server("vllm-0.7", chunked_prefill=0).mixes_phases
    assert find_server("vllm", chunked_prefill=0).mixes_phases


def test_given_limits_replace_defaults() -> None:
    engine = find_server("vllm", find_device("h100-sxm"), max_batched_tokens=4096, overhead_s=2e-3)
    assert engine.chunked_prefill == 4096 and engine.max_sequences == 1024
    assert engine.overhead_range_s == (2e-3, 2e-3)


def test_vllm_runs_no_more_sequences_than_an_iteration_has_tokens() -> None:
    """`SchedulerConfig` raises "max_num_batched_tokens (512) must be greater than or equal to max_num_seqs (1024)".

    Without `--max-num-seqs` `EngineArgs` takes `min(self.max_num_seqs, self.max_num_batched_tokens)`.
    """
    device = find_device("h100-sxm")
    assert find_server("vllm", device, max_batched_tokens=512).max_sequences == 512
    with pytest.raises(BadValue, match="`--max-sequences` 1,024 must be at most `--max-batched-tokens` 512"):
        find_server("vllm", device, max_batched_tokens=512, max_sequences=1024)
    assert find_server("vllm", device, max_batched_tokens=512, max_sequences=512).max_sequences == 512
    assert find_server("tensorrt-llm", device, max_batched_tokens=512).max_sequences > 512


def test_every_engine_names_its_sources() -> None:
    for engine in SERVERS.values():
        assert engine.sources and all("https://" in source for source in engine.sources)
        assert engine.overhead_range_s[0] <= engine.overhead_s <= engine.overhead_range_s[1]


def test_sorting_a_nucleus_takes_time_by_the_logit() -> None:
    host = Host(1e-3, 1e-11, 5e-3, 1e-6, 2.0, 0.2, nucleus_logit_s=3e-10)
    nucleus, greedy = (with_host(SERVERS["vllm-0.16"], host, 128_000, sampling) for sampling in SAMPLINGS)
    assert nucleus.sequence_overhead_s == pytest.approx(128_000 * 3.1e-10)
    assert greedy.sequence_overhead_s == pytest.approx(128_000 * 1e-11)
    assert with_host(SERVERS["vllm-0.16"], host, 128_000) == nucleus


def test_requests_wait_by_the_kernels_of_a_prompt() -> None:
    host = Host(1e-3, 1e-11, 5e-3, 1e-6, 2.0, 0.2, request_kernel_s=3e-5)
    assert with_host(SERVERS["vllm"], host, 128_000, prompt_launches=400).request_kernels_s == pytest.approx(12e-3)


def test_requests_wait_by_the_layers_of_experts_of_a_prompt() -> None:
    """400 kernels of 30 us, and 36 layers of experts of 1 ms, as gpt-oss-120b has."""
    host = Host(1e-3, 1e-11, 5e-3, 1e-6, 2.0, 0.2, request_kernel_s=3e-5, request_expert_s=1e-3)
    server = with_host(SERVERS["vllm"], host, 128_000, prompt_launches=400, expert_layers=36)
    assert server.request_kernels_s == pytest.approx(48e-3)


def test_vllm_searches_for_the_nucleus_since_0_17() -> None:
    """Pull request 33538: 512 sequences of 32,768 logits take 0.70 ms with top-p, and 1,024 take 1.38 ms."""
    host = Host(1e-3, 0.0, 5e-3, 1e-6, 2.0, 0.2, nucleus_logit_s=3e-10)
    sequence_s = with_host(SERVERS["vllm"], host, 32_768).sequence_overhead_s
    assert [512 * sequence_s, 1024 * sequence_s] == pytest.approx([0.70e-3, 1.38e-3], rel=0.03)


def test_benchmarks_of_old_versions_ask_for_the_most_likely_token() -> None:
    """`vllm bench serve` sent temperature 0 until pull request 32723 of January 2026 (0.15)."""
    host = Host(1e-3, 1e-11, 5e-3, 1e-6, 2.0, 0.2, nucleus_logit_s=3e-10)
    assert with_host(SERVERS["vllm-0.13"], host, 128_000).sequence_overhead_s == pytest.approx(128_000 * 1e-11)
    sorts = with_host(SERVERS["vllm-0.13"], host, 128_000, "nucleus")
    assert sorts.sequence_overhead_s == pytest.approx(128_000 * 3.1e-10)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.11.1", "vllm-0.13"), ("0.13.2", "vllm-0.13"), ("0.16.0", "vllm-0.16"), ("0.17", "vllm"),
        ("1.0.0rc3", "vllm"), ("0.7.3", "vllm-0.7"), ("0.2", "vllm-0.5"), ("", None), ("LMDeploy 0.1", None),
    ],
)  # fmt: skip
def test_a_version_has_one_record(version: str, name: str | None) -> None:
    found = [one.name for one in SERVERS.values() if one.name.startswith("vllm") and one.versions.include(version)]
    assert found == ([] if name is None else [name])


def test_some_engines_look_for_requests_now_and_then() -> None:
    """`--scheduler-recv-interval`, 1 by default (docs.sglang.io/advanced_features/server_arguments)."""
    assert {engine.receive_interval for engine in SERVERS.values()} == {1}
    options = {engine.receive_option: engine.name for engine in SERVERS.values() if engine.receive_option}
    assert options == {"--scheduler-recv-interval": "sglang", "--num-scheduler-steps": "vllm-0.7"}
    assert find_server("sglang", receive_interval=30).receive_interval == 30
    with pytest.raises(BadValue, match="is for sglang and vllm"):
        find_server("vllm", receive_interval=30)
    with pytest.raises(BadValue, match="receive-interval"):
        find_server("sglang", receive_interval=0)


@pytest.mark.parametrize(("chunk", "tokens"), [(8192, 16384), (65536, 65536), (262144, 131072)])
def test_ranks_of_sglang_share_a_chunk_but_not_the_tokens_of_a_prefill(chunk: int, tokens: int) -> None:
    """`ServerArgs` divides `chunked_prefill_size` by `dp_size`; each rank has all of `max_prefill_tokens`, 16,384."""
    degrees = {"tensor": 8, "expert_parallel": 8, "attention_data_parallel": 8}
    question = pl.Serve("deepseek-r1", gpu="h200-sxm", engine="sglang", chunked_prefill=chunk, **degrees)
    engine = make_deployment(question).replica_engine()
    assert (engine.chunked_prefill, engine.max_batched_tokens, engine.max_sequences) == (chunk, tokens, 4096)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_of_vllm_have_its_limits_each(ranks: int) -> None:
    """Each data-parallel rank is an engine with a scheduler of its own (docs.vllm.ai, data parallel deployment)."""
    degrees = {"tensor": ranks, "expert_parallel": ranks, "attention_data_parallel": ranks}
    limits = {"max_sequences": 100, "max_batched_tokens": 4096}
    deployment = make_deployment(pl.Serve("deepseek-r1", gpu="b300", chunked_prefill=2048, **limits, **degrees))
    engine = deployment.replica_engine()
    assert (engine.max_sequences, engine.max_batched_tokens) == (100 * ranks, 4096 * ranks)
    assert engine.chunked_prefill == 2048 * ranks
    assert deployment.with_sequences(100 * ranks + 1).engine.max_sequences == 101  # rounded up


@pytest.mark.thorough
def test_a_larger_chunk_of_a_prefill_pool_computes_more_prompts_at_a_time() -> None:
    degrees = "replicas=1,tensor=8,expert-parallel=8,attention-data-parallel=8"
    waits_s = [
        pl.serve(
            "deepseek-r1", gpu="h200-sxm", engine="sglang", concurrency=32, num_requests=32, input_tokens=4096,
            output_tokens=8, prefill_pool=f"{degrees},chunked-prefill={chunk}", decode_pool=degrees,
        ).latencies["ttft_s"]["p90"].value
        for chunk in (16384, 131072)
    ]  # fmt: skip
    assert waits_s[1] is not None and waits_s[0] is not None and waits_s[1] < 0.9 * waits_s[0]


def test_bad_values() -> None:
    with pytest.raises(UnknownName, match="vllm"):
        find_server("vlm")
    for name, value in (("max_sequences", 0), ("memory_fraction", 1.5), ("chunked_prefill", -1), ("overhead_s", -1.0)):
        with pytest.raises(BadValue, match="--"):
            find_server("vllm", **{name: value})
