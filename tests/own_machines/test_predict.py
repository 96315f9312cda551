"""llama.cpp on one's own machine: bytes, published speeds, placement, and what is not possible.

Tests: own_machines/step.py, own_machines/memory.py, reporting/local.py, api/local.py.
"""

from __future__ import annotations

import math

import pytest

import paleo_lite as pl
from paleo_lite.api.local import advise_local, predict_local
from paleo_lite.architectures import find_network
from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.machines import find_device
from paleo_lite.own_machines.contents import group_of, read_contents
from paleo_lite.own_machines.memory import usable_bytes
from paleo_lite.own_machines.predict import OFFLOAD_DEVIATION
from paleo_lite.own_machines.question import LocalQuestion
from paleo_lite.own_machines.split import split_layers


def test_contents_of_a_file() -> None:
    """39.59 GiB as published; keys and values of 8 heads of 128 in 80 blocks, in 16 bits."""
    contents = read_contents(find_network("llama-3-70b"), "q4_k_m")
    assert contents.stored_bytes / 2**30 == pytest.approx(39.59, rel=0.01)
    assert contents.cache_bytes(1) == 2 * 80 * 8 * 128 * 2
    assert contents.merged().stored_bytes == pytest.approx(contents.stored_bytes)


@pytest.mark.parametrize(("board", "device"), [("k80", "k80-die"), ("m60", "m60-die"), ("mi250x", "mi250x-gcd")])
def test_a_program_sees_the_devices_of_a_board(board: str, device: str) -> None:
    """A board of two devices has no bandwidth for one program that one of them has not."""
    named, one = (predict_local("llama-3.1-8b", gpu) for gpu in (board, device))
    assert (named.token_s, named.prompt_s, named.usable_bytes) == (one.token_s, one.prompt_s, one.usable_bytes)
    assert sum(note.startswith("one of the 2 GPUs of ") for note in named.notes) == 1
    both = predict_local("llama-3.1-8b", board, LocalQuestion(gpus=2))
    assert both.gpu == device and both.gpus == 2 and not any("one of the 2" in note for note in both.notes)
    served, alone = (pl.serve("llama-3.1-8b", gpu=gpu, engine="llama.cpp", concurrency=1) for gpu in (board, device))
    assert served.latencies == alone.latencies


def test_windows_bound_the_cache() -> None:
    """Half of the 24 layers of gpt-oss-20b see 128 tokens (its model card): 8 heads of 64 numbers in 16 bits."""
    contents = read_contents(find_network("gpt-oss-20b"), "mxfp4_moe")
    token_bytes = 2 * 8 * 64 * 2
    assert contents.cache_bytes(32768) == 12 * token_bytes * (32768 + 128)
    assert contents.positions == 131072


def test_a_cache_in_8_bits() -> None:
    network = find_network("llama-3.1-8b")
    wide, narrow = (read_contents(network, "q8_0", cache).cache_bytes(1000) for cache in ("f16", "q8_0"))
    assert narrow / wide == pytest.approx(34 / 64)


def test_a_token_reads_the_experts_that_it_selects() -> None:
    """gpt-oss-20b: 3.6 billion active parameters of 20.9, and the table of 0.58 billion (its model card)."""
    contents = read_contents(find_network("gpt-oss-20b"), "mxfp4_moe")
    assert sum(piece.numbers for piece in contents.pieces) == pytest.approx(3.6e9, rel=0.02)


@pytest.mark.parametrize(
    ("network", "gpu", "weights", "rate"),
    [
        # XiongjieDai/GPU-Benchmarks-on-LLM-Inference, of 2024: 1024 tokens after a short prompt
        ("llama-3-8b", "rtx3090", "f16", 46.51), ("llama-3-8b", "rtx-a6000", "q4_k_m", 102.22),
        ("llama-3-70b", "l40s", "q4_k_m", 15.31), ("llama-3-8b", "apple-m2-ultra", "f16", 36.25),
    ],
)  # fmt: skip
def test_published_speeds(network: str, gpu: str, weights: str, rate: float) -> None:
    found = predict_local(network, gpu, LocalQuestion(weights=weights, context=512))
    assert 1 / found.token_s == pytest.approx(rate, rel=0.15)
    assert found.token_interval_s[0] < 1 / rate < found.token_interval_s[1]


def test_several_devices_take_turns() -> None:
    one, two = (predict_local("llama-3-8b", "rtx3090", LocalQuestion(gpus=gpus)) for gpus in (1, 2))
    assert two.token_s == one.token_s and two.usable_bytes == 2 * one.usable_bytes


def test_what_does_not_fit_is_on_the_host() -> None:
    partly = predict_local("llama-3-70b", "rtx3090")
    whole = predict_local("llama-3-70b", "rtx3090", LocalQuestion(gpus=2))
    assert 0 < partly.gpu_blocks < 80 == whole.gpu_blocks
    assert partly.weight_bytes + partly.cache_bytes + partly.buffer_bytes <= partly.usable_bytes
    assert partly.cpu == "Ryzen 9 7950X" and whole.cpu is None
    assert partly.token_s > 3 * whole.token_s
    assert partly.host_bytes > 15e9


def test_experts_on_the_host() -> None:
    found = predict_local("gpt-oss-120b", "rtx3060", LocalQuestion(weights="mxfp4_moe", cpu_experts=True))
    assert found.gpu_blocks == 36 and found.weight_bytes < 3e9
    assert found.host_bytes > 55e9


def test_experts_of_the_first_blocks_on_the_host() -> None:
    """``--n-cpu-moe 9`` of llama.cpp leaves a quarter of 36 equal blocks' experts on the host."""
    device_bytes = {
        number: predict_local(
            "gpt-oss-120b", "rtx-pro-6000", LocalQuestion(weights="mxfp4_moe", cpu_expert_blocks=number)
        ).weight_bytes
        for number in (0, 9, 36, 99)
    }
    assert device_bytes[36] == device_bytes[99]
    assert device_bytes[0] - device_bytes[9] == pytest.approx((device_bytes[0] - device_bytes[36]) / 4)


def test_the_largest_context_fits() -> None:
    found = predict_local("llama-3.1-8b", "rtx3060", LocalQuestion(context=8192))
    again = predict_local("llama-3.1-8b", "rtx3060", LocalQuestion(context=found.largest_context, gpu_layers=33))
    assert again.cpu is None
    with pytest.raises(DoesNotFit, match=r"use `--gpu-layers 32`, which fits, narrower weights or a shorter context"):
        predict_local("llama-3.1-8b", "rtx3060", LocalQuestion(context=found.largest_context + 1024, gpu_layers=33))


def test_more_layers_than_blocks_are_all_of_them() -> None:
    every, many = (predict_local("llama-3-8b", "rtx3090", LocalQuestion(gpu_layers=layers)) for layers in (33, 99))
    assert many == every and many.is_whole


def test_the_head_is_the_last_layer_and_the_first_on_the_device() -> None:
    """llama.cpp: a layer is on the processor below n_layer + 1 - n_gpu_layers, and the head is layer n_layer."""
    none, head, all_but_one, every = (
        predict_local("llama-3.1-8b", "rtx4090", LocalQuestion(weights="q4_k_m", gpu_layers=layers))
        for layers in (0, 1, 32, 33)
    )
    assert [found.gpu_blocks for found in (none, head, all_but_one, every)] == [0, 0, 31, 32]
    assert none.token_s > head.token_s > all_but_one.token_s > every.token_s
    assert every.is_whole and not all_but_one.is_whole


def test_a_network_for_pictures_is_refused() -> None:
    with pytest.raises(BadValue, match="runs language models from a config or a file, not resnet50"):
        predict_local("resnet50", "rtx3090")
    with pytest.raises(BadValue, match="not the pipeline sdxl"):
        predict_local("sdxl", "rtx3090")
    with pytest.raises(BadValue, match="not resnet50"):
        advise_local("resnet50", ["rtx3090"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "fp8"}, "llama.cpp stores weights in f16"),
        ({"kv_cache": "q4_k_m"}, "llama.cpp keeps keys and values in"),
        ({"cpu_experts": True}, "is for mixtures of experts"),
        ({"cpu_expert_blocks": 4}, "`--cpu-expert-blocks` is for mixtures of experts"),
        ({"cpu_experts": True, "cpu_expert_blocks": 4}, "give only one of `--cpu-experts`"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        predict_local("llama-3-8b", "rtx3090", LocalQuestion(**options))  # type: ignore[arg-type]


def test_networks_without_a_cache() -> None:
    with pytest.raises(BadValue, match="vgg16"):
        predict_local("vgg16", "rtx3090")


@pytest.mark.parametrize(
    ("device", "backend"),
    [("rtx3090", "cuda"), ("apple-m4", "metal"), ("rx7900xtx", "vulkan"), ("raspberry-pi-5", "cpu")],
)
def test_backends(device: str, backend: str) -> None:
    assert LOCAL_ENGINES["llama.cpp"].backend_of(find_device(device)) == backend


def test_memory_that_the_gpu_may_use() -> None:
    """Metal's recommended working set of 64 GB is 48 GB (llama.cpp logs 49,152 MiB)."""
    assert usable_bytes(find_device("apple-m1-max")) == 49152 * 2**20


def test_groups_of_types() -> None:
    assert [group_of(name) for name in ("bf16", "q8_0", "iq4_nl", "q4_k", "iq2_xxs", "mxfp4")] == [
        "wide", "legacy", "legacy", "k", "table", "mxfp4",
    ]  # fmt: skip


def test_page() -> None:
    found = predict_local("llama-3-8b", "rtx3090", LocalQuestion(gpus=2))
    document = found.document()
    assert document.title.startswith("llama-3-8b in q4_k_m on 2 x GeForce RTX 3090, llama.cpp: ")
    assert dict(document.facts)["blocks"] == "32 of 32 on the devices"


@pytest.mark.parametrize(
    ("limit_w", "answer_per_s", "prompt_per_s"), [(300, 260.42, 12802), (250, 237, None), (200, 189.82, 9115)]
)
def test_a_power_limit_slows_prompts_more_than_answers(limit_w, answer_per_s, prompt_per_s) -> None:
    """llama-bench of an RTX PRO 6000 (Llama 2 7B in Q4_0): memory keeps its clock, arithmetic does not."""
    limited = predict_local(
        "llama-2-7b", "rtx-pro-6000", LocalQuestion(weights="q4_0", context=64, power_limit=limit_w)
    )
    assert 1 / limited.token_s == pytest.approx(answer_per_s, rel=0.1)
    assert prompt_per_s is None or 512 / limited.prompt_s == pytest.approx(prompt_per_s, rel=0.1)


@pytest.mark.parametrize("layers", [33, 17])
def test_watts_are_those_of_the_devices_where_the_processor_works_too(layers: int) -> None:
    found = predict_local("llama-3.1-8b", "rtx3090", LocalQuestion(weights="q4_k_m", gpu_layers=layers))
    assert any("the processor's are not included" in note for note in found.notes) == (layers < 33)


def test_a_limit_above_the_power_changes_nothing() -> None:
    free = predict_local("llama-3.1-8b", "rtx3090", LocalQuestion(weights="q4_k_m"))
    limited = predict_local("llama-3.1-8b", "rtx3090", LocalQuestion(weights="q4_k_m", power_limit=200))
    assert limited.energy is not None and limited.energy.token_w <= 200
    assert limited.prompt_s > free.prompt_s
    same = predict_local("llama-3.1-8b", "rtx3090", LocalQuestion(weights="q4_k_m", power_limit="400 W"))
    assert (same.token_s, same.prompt_s) == (free.token_s, free.prompt_s)
    with pytest.raises(BadValue, match=r"above the \d+ W that GeForce RTX 3090 draws while it waits \(got 60 W\)"):
        predict_local("llama-3.1-8b", "rtx3090", LocalQuestion(power_limit=60))


@pytest.mark.parametrize(
    ("network", "gpu", "weights", "answer_per_s", "prompt_per_s"),
    [  # no constant is fitted to these speeds: brand-o/normiebench issue 3, and a user's M1 Max with build 9100
        ("llama-3.1-8b", "apple-m4", "q4_k_m", 20.87, 224.81),
        ("gpt-oss-20b", "apple-m1-max", "mxfp4_moe", 59.67, 755.59),
    ],
)
def test_speeds_of_macs(network: str, gpu: str, weights: str, answer_per_s: float, prompt_per_s: float) -> None:
    found = predict_local(network, gpu, LocalQuestion(weights=weights, context=64))
    assert 1 / found.token_s == pytest.approx(answer_per_s, rel=0.2)
    assert found.prompt_interval_s[0] < 512 / prompt_per_s < found.prompt_interval_s[1]


def test_a_part_on_the_host_is_at_least_as_uncertain_as_the_worst_of_both() -> None:
    partly = predict_local("llama-3-70b", "rtx3090")
    for seconds, (_, most) in ((partly.token_s, partly.token_interval_s), (partly.prompt_s, partly.prompt_interval_s)):
        # A normal distribution has 5% above 1.645 standard deviations: the ends of a 90% interval
        assert math.log(most / seconds) >= 1.64 * OFFLOAD_DEVIATION


@pytest.mark.parametrize(
    ("proportions", "most"),
    [((3, 1), 61), ((1, 3), 60), ((1, 2, 1), 40), ((1, 0), 81), ((0, 0, 5), 81), ((1, 1), 40.5), (None, 40.5)],
)
def test_blocks_are_split_as_llama_cpp_splits_them(proportions: tuple[float, ...] | None, most: float) -> None:
    """By hand of 80 blocks and the head: number / 81 is below 3/4 up to number 60, and below 1/4 up to number 20."""
    question = LocalQuestion(gpus=len(proportions or (1, 1)), tensor_split=proportions)
    (kind,) = split_layers([find_device("rtx3090")], question, 80)
    assert kind.largest_share == pytest.approx(most / 81)


def test_an_uneven_split_holds_less_and_overlaps_less() -> None:
    asked = {"weights": "q4_k_m", "gpus": 2, "prompt_tokens": 4096}
    even = predict_local("qwen3-32b", "rtx3090", LocalQuestion(**asked))  # type: ignore[arg-type]
    uneven = predict_local("qwen3-32b", "rtx3090", LocalQuestion(**asked, tensor_split=(3, 1)))  # type: ignore[arg-type]
    share = 49 / 65  # of 64 blocks and the head
    assert uneven.usable_bytes == pytest.approx(even.usable_bytes / 2 / share)
    assert uneven.token_s == even.token_s  # devices take turns
    assert uneven.prompt_s > 1.1 * even.prompt_s
    assert any(note.startswith("75% of the blocks are on one device") for note in uneven.notes)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tensor_split": (3, 1)}, "gives 2 proportions for 1 device: give one for each"),
        ({"tensor_split": (3, 1), "gpus": 2, "execution": "mlx"}, r"is for `--engine llama\.cpp` \(got mlx\)"),
    ],
)
def test_a_split_that_is_not_possible(asked: dict[str, object], said: str) -> None:
    with pytest.raises(BadValue, match=rf"^`--tensor-split` {said}"):
        predict_local("llama-3.1-8b", "rtx3090", LocalQuestion(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "low_mib", "high_mib"),
    [("rtx4090", 23_633, 23_818), ("rtx3090", 23_641, 23_982), ("rtx5090", 31_518, 31_600)],
)
def test_memory_is_what_llama_cpp_prints_as_free(device: str, low_mib: float, high_mib: float) -> None:
    """``using device CUDA0 (NVIDIA GeForce RTX 3090) - 23982 MiB free`` and others, where nothing else ran."""
    free_mib = usable_bytes(find_device(device)) / 2**20
    assert 0.99 * low_mib < free_mib < 1.01 * high_mib


def test_error_correction_takes_memory_of_ones_own_card() -> None:
    """An L40S of 48 GB reports 46,068 MiB (nvidia-smi); its specimen of half the memory has half."""
    card = find_device("l40s")
    assert usable_bytes(card) < 46_068 * 2**20
    assert usable_bytes(card, card.memory_bytes / 2) == pytest.approx(card.reported_memory_bytes / 2 - 0.5e9)


def test_a_processor_has_no_other_memory_than_its_own():
    """DeepSeek-R1's q2_k file has 244 GB; a desktop takes 128 GiB, which were counted as device and as host."""
    with pytest.raises(DoesNotFit, match=r"needs 24\d\.\d GB .* may use 13\d\.\d GB: .*`--device-memory`"):
        pl.local("deepseek-r1", gpu="ryzen-9-7950x", weights="q2_k")
    assert pl.local("deepseek-r1", gpu="ryzen-9-7950x", weights="q2_k", device_memory="256GB").is_whole
    with pytest.raises(BadValue, match="is the processor itself: leave `--cpu-experts`"):
        pl.local("qwen3-30b-a3b", gpu="ryzen-9-7950x", cpu_experts=True)


def test_the_context_holds_the_prompt():
    asked = {"network": "llama-3-8b", "gpu": "rtx4090"}  # 8,192 positions
    assert pl.local(**asked).context == 4096
    assert pl.local(**asked, prompt=6000).context == 6000
    with pytest.raises(BadValue, match="knows 8192 positions; a prompt of 9000 is too long"):
        pl.local(**asked, prompt=9000)
    shorter = pl.local(**asked, prompt=6000, context=2048)
    assert any("the prompt of 6,000 tokens is timed by itself" in note for note in shorter.notes)


def test_graphics_that_share_the_memory_of_the_host_may_use_most_of_it():
    """Strix Halo: 124 of 128 GiB at most, half of them by default (AMD); a DGX Spark reports 121.69 GiB."""
    strix_halo, spark = find_device("strix-halo"), find_device("dgx-spark")
    assert usable_bytes(strix_halo) == pytest.approx(124 * 2**30, rel=0.01)
    assert usable_bytes(spark) == pytest.approx(121.69 * 2**30, rel=0.01)
    half = 64 * 2**30
    for network, weights in (("qwen3-235b-a22b", "iq4_xs"), ("gpt-oss-120b", "mxfp4")):
        answer = pl.local(network, gpu="strix-halo", weights=weights)
        assert any("ttm.pages_limit" in note for note in answer.notes) == (answer.memory_bytes > half)


def test_a_processor_is_named_only_where_the_rest_of_the_memory_is_enough():
    with pytest.raises(DoesNotFit, match="or name a `--cpu`, which may use the rest"):
        pl.local("glm-4.5-air", gpu="apple-m4-max", weights="q8_0")
    assert pl.local("glm-4.5-air", gpu="apple-m4-max", weights="q8_0", cpu="apple-m2-max-cpu").host_bytes > 0
    with pytest.raises(DoesNotFit, match=r"or a shorter context$"):
        pl.local("qwen3-235b-a22b", gpu="apple-m4-max", weights="q6_k")
    with pytest.raises(DoesNotFit, match=r"or a shorter context$"):  # 64 GB in all
        pl.local("glm-4.5-air", gpu="apple-m4-max", weights="q8_0", device_memory="64GB")


def test_a_narrower_cache_that_makes_room_for_everything_is_named():
    """What the note states is the answer to the question that it names."""
    asked = {"network": "qwen3-32b", "gpu": "rtx4090", "weights": "q4_k_m", "context": 32768}
    answer, narrower = pl.local(**asked), pl.local(**asked, kv_cache="q8_0")
    assert narrower.is_whole and not answer.is_whole
    (note,) = [note for note in answer.notes if "--kv-cache" in note]
    assert note.endswith(f"{narrower.tokens_per_s:.1f} tokens/s instead of {answer.tokens_per_s:.1f}")
    assert not any("--kv-cache" in note for note in pl.local(**asked, cpu_cache=True).notes)
