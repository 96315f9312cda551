"""What cannot be: properties of the answers to questions of every kind, with the options that people give.

Each property asks a question twice, the same but for one option, and compares the answers. Questions are drawn from a
seed, the same everywhere; `make thorough` draws more of them. A refusal is an answer, too; other errors are not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.engines.kernel_formats import has_constants
from paleo_lite.errors import PaleoError
from paleo_lite.formats import FORMATS
from paleo_lite.machines import Device, find_device, list_devices
from paleo_lite.questions.kind import find_kind
from paleo_lite.questions.option import command_words

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 30))]
KINDS = ("predict", "train", "serve", "local", "diffusion")

GPUS = ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "l40s", "rtx4090", "v100-sxm2", "mi300x", "t4", "rtx3060"]
WRITERS = ["gpt2", "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "gemma-3-1b", "gpt-oss-20b", "mixtral-8x7b"]
SEERS = ["alexnet", "resnet18", "mobilenet_v2", "densenet121", "vgg16"]
PAINTERS = ["sdxl", "flux.1-dev", "wan-2.1-1.3b", "sd3-medium"]
LINKS = ["nvlink4-x18", "pcie4", "ethernet20", "infiniband-hdr"]
QUANTIZED = sorted(
    ["bf16", "fp8", "int8", "fp4", "nvfp4", "int4", "gptq", "awq", "nf4"],
    key=lambda name: -FORMATS[name].bits_per_number,
)
"""Formats of all matrices, the widest first."""
GGUF = [["f16", "q8_0", "q5_0", "q4_0"], ["f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k"]]
"""Families of formats, the widest first; formats of two families keep different tensors in wider types."""
ROUNDING = 1 + 1e-9


class Answered:
    """An answer, in the words that answers of every kind have, with the command that asks for it."""

    def __init__(self, kind: str, question: Any) -> None:
        self.command = " ".join(word if " " not in word else f"'{word}'" for word in command_words(kind, question))
        self.found = find_kind(kind).answer(question)
        rows = getattr(self.found, "rows", None)
        self.row = rows[-1] if isinstance(rows, list) else self.found
        if kind == "diffusion" and question.workers is not None and question.phase == "inference":
            self.row = self.found.found[-1].prediction  # the pictures of all devices
        self.notes = {*getattr(self.found, "notes", ()), *getattr(self.row, "notes", ())}
        self.time_s = self.row.time_s if self.row.time_s is not None else math.nan

    def __repr__(self) -> str:
        return f"{self.command} ({self.time_s:.6g} s)"


def ask(kind: str, **options: Any) -> Answered | None:
    """The answer to a question; None if it is refused."""
    question = None
    try:
        question = find_kind(kind).record(**options)
        return Answered(kind, question)
    except PaleoError:
        return None
    except Exception as error:
        asked = " ".join(command_words(kind, question)) if question else options
        raise AssertionError(f"{asked}: {type(error).__name__}") from error


Check = Callable[[random.Random], str | None]
"""Draws one question; returns what is impossible about its answers, "" if nothing is, and None if it is refused."""


def impossible(check: Check, seed: int, many: int) -> list[str]:
    """What is impossible about the answers to so many questions."""
    choose, told = random.Random(seed), []
    while len(told) < many:
        said = check(choose)
        if said is not None:
            told.append(said)
    return [said for said in told if said]


@cache
def _all_gpus() -> list[str]:
    return [device.id for device in list_devices([])]


def _gpu(choose: random.Random) -> str:
    return choose.choice(GPUS if choose.random() < 0.7 else _all_gpus())


def _given(**options: Any) -> dict[str, Any]:
    """The options without those that are None, which are left out."""
    return {name: value for name, value in options.items() if value is not None}


def drawn(kind: str, choose: random.Random) -> dict[str, Any]:
    """The options of a question."""
    return {"gpu": _gpu(choose), **_DRAWN[kind](choose)}


def _predict_options(choose: random.Random) -> dict[str, Any]:
    phase = choose.choice(["decode", "decode", "prefill", "inference", "training"])
    options = _given(
        phase=phase, batch_size=choose.choice([1, 2, 8, 64]), memory=True,
        precision=choose.choice([None, None, "fp16", "bf16", "fp32"]),
    )  # fmt: skip
    if phase in ("inference", "training"):
        execution = choose.choice([None, "compiled", "autocast"])
        return options | _given(network=choose.choice([*SEERS, "bert-base", "gpt2"]), execution=execution)
    return options | _given(
        network=choose.choice(WRITERS), kv_cache=choose.choice([None, None, "fp8"]),
        engine=choose.choice([None, None, "sglang", "tensorrt-llm"]),
        **({"context": choose.choice([64, 1000, 8000])} if phase == "decode" else {"sequence_length": 500}),
    )  # fmt: skip


def _train_options(choose: random.Random) -> dict[str, Any]:
    options = _given(
        network=choose.choice([*WRITERS[:3], "llama-3.1-8b", "bert-base", *SEERS]),
        precision=choose.choice([None, None, "bf16", "fp16", "fp8"]),
        execution=choose.choice([None, "eager", "compiled", "megatron"]),
        mixed_precision=choose.choice([None, True]), recompute=choose.choice([None, None, "full", "none"]),
    )  # fmt: skip
    if options["network"] not in SEERS:
        options["sequence_length"] = choose.choice([128, 512])
    if choose.random() < 0.5:
        return options | {"batch_size": choose.choice([1, 4, 16])}
    return options | _given(
        workers=choose.choice([2, 4, 8, 16]), global_batch_size=choose.choice([16, 64, 256]),
        strategy=choose.choice([None, None, "zero-1", "full-shard"]), link=choose.choice([None, None, *LINKS]),
        tensor=choose.choice([None, None, None, 2]), pipeline=choose.choice([None, None, None, 2]),
    )  # fmt: skip


def _serve_options(choose: random.Random) -> dict[str, Any]:
    load = choose.choice([{"rate": choose.choice([0.5, 2, 8])}, {"concurrency": choose.choice([1, 8, 32])}])
    return load | _given(
        network=choose.choice(WRITERS), num_requests=40, output_tokens=64, tensor=choose.choice([None, None, 2]),
        input_tokens=choose.choice([128, 1024]), engine=choose.choice([None, None, "sglang", "tensorrt-llm"]),
        arrivals=choose.choice(["poisson", "fixed"]),
    )  # fmt: skip


def _local_options(choose: random.Random) -> dict[str, Any]:
    return _given(
        network=choose.choice(WRITERS), weights=choose.choice([None, *GGUF[1]]),
        context=choose.choice([None, 1024, 8192]), prompt=choose.choice([None, 64]),
        kv_cache=choose.choice([None, None, "q8_0"]),
        workers=choose.choice([None, None, None, 2]), cpu_cache=choose.choice([None, None, None, True]),
    )  # fmt: skip


def _diffusion_options(choose: random.Random) -> dict[str, Any]:
    options = {"network": choose.choice(PAINTERS), "batch_size": choose.choice([1, 2, 4])}
    if choose.random() < 0.2:
        return options | {"phase": "training", "lora": 8}
    return options | _given(
        steps=choose.choice([None, 4]), offload=choose.choice([None, None, "model", "sequential"]),
        execution=choose.choice([None, None, "compiled"]), workers=choose.choice([None, None, None, 2]),
    )  # fmt: skip


_DRAWN = {
    "predict": _predict_options,
    "train": _train_options,
    "serve": _serve_options,
    "local": _local_options,
    "diffusion": _diffusion_options,
}


_SLACK = {"serve": 1.02, "train": 1.00001}
"""Ratios of times above which one is longer: simulated requests arrive earlier or later within an iteration, and the
longer of computing and communicating is a smooth maximum."""

WAITING = "the device waits for the host"


def adapters_are_slower(choose: random.Random) -> str | None:
    """Adapters are fused by default; a step that waits for the host, which launches more kernels, says so."""
    options = drawn("train", choose)
    if options["network"] in SEERS:
        options |= {"network": "llama-3.2-1b", "sequence_length": 512}
    whole = ask("train", **options)
    adapters = ask("train", **options, lora=choose.choice([1, 8, 16]))
    if whole is None or adapters is None:
        return None
    if adapters.time_s <= whole.time_s * ROUNDING or _says(adapters, WAITING):
        return ""
    return f"{adapters} is slower than {whole}"


def _says(answer: Answered, words: str) -> bool:
    return any(words in note for note in answer.notes)


def narrower_weights_need_more(kind: str, choose: random.Random) -> str | None:
    """Bytes and memory; time is another question, as kernels that unpack narrow formats are slower on some devices."""
    options = drawn(kind, choose)
    if kind == "predict":
        options = {"gpu": options["gpu"], **_decode_options(choose)}
    formats = choose.choice(GGUF if kind == "local" else [QUANTIZED])
    wide, narrow = (formats[place] for place in sorted(choose.sample(range(len(formats)), 2)))
    if FORMATS[narrow].bits_per_number == FORMATS[wide].bits_per_number:
        return None
    if wide in ("fp4", "nvfp4") and kind != "local" and find_network(options["network"]).is_mixture:
        return None  # integers in 4 bits are for the experts only, and these formats for all matrices
    less, more = (ask(kind, **options | {"weights": name}) for name in (narrow, wide))
    if less is None or more is None:
        return None
    if kind != "local" and less.row.precision != more.row.precision:
        return None  # the weights have chosen the precision of everything else, too
    for name in _BYTES[kind]:
        if getattr(less.row, name) > getattr(more.row, name) * ROUNDING:
            return f"{less} has more {name} than {more}: {getattr(less.row, name)}, {getattr(more.row, name)}"
    return ""


def _decode_options(choose: random.Random) -> dict[str, Any]:
    while True:
        options = _predict_options(choose)
        if options["phase"] == "decode":
            return options


_BYTES = {
    "predict": ("bytes", "memory_bytes"),
    "serve": ("weights_bytes",),
    "local": ("file_bytes",),
}


def lower_power_limits_are_faster(kind: str, choose: random.Random) -> str | None:
    """See `test_a_lower_power_limit_is_never_faster_in_steps_that_wait_for_the_host` for the exception."""
    options = drawn(kind, choose)
    rated_w = find_device(options["gpu"], []).power_w
    if rated_w is None:
        return None
    limits_w = [round(rated_w * choose.uniform(0.1, 1.1), 1) for _ in range(2)]
    return _slower_in_this_order(kind, options, "power_limit", sorted(limits_w))


def lower_clocks_are_faster(kind: str, choose: random.Random) -> str | None:
    options = drawn(kind, choose)
    device = find_device(options["gpu"], [])
    # Without an option it runs at the clock of its peaks: that of tensor cores, or the base clock of a K40, whose boost
    # clock has to be asked for.
    usual_hz = [device.clock_hz(clock) for clock in ("tensor", device.find_peak("fp32").clock)]
    highest_hz = min((clock_hz for clock_hz in usual_hz if clock_hz), default=None)
    if highest_hz is None:
        return None
    clocks_hz = sorted(highest_hz * choose.uniform(0.2, 1.0) for _ in range(2))
    return _slower_in_this_order(kind, options, "clock", [f"{clock_hz:.0f} Hz" for clock_hz in clocks_hz])


def _slower_in_this_order(kind: str, options: dict[str, Any], name: str, values: Sequence[Any]) -> str | None:
    """Return what is faster with the first value of an option than with the second, or with that than without it."""
    free = ask(kind, **options)
    low, high = (ask(kind, **options, **{name: value}) for value in values)
    answers = [answer for answer in (free, high, low) if answer is not None]
    if low is None and high is None:
        return None
    for faster, slower in pairwise(answers):
        if not 0 < slower.time_s < math.inf:
            return f"{slower} is not a time"
        if faster.time_s > slower.time_s * _SLACK.get(kind, ROUNDING) and not _says(slower, WAITING):
            return f"{slower} is faster than {faster}"
    return ""


def more_devices_are_slower(kind: str, choose: random.Random) -> str | None:
    options = drawn(kind, choose)
    name = "replicas" if kind == "serve" else "workers"
    if kind == "train":
        options.pop("batch_size", None)
        options.setdefault("global_batch_size", 64)
    if options.get("phase") == "training":
        return None  # the batch of a denoiser is that of each device, so that more devices do more
    few, many = sorted(choose.sample([1, 2, 4, 8, 16], 2))
    fewer, more = (ask(kind, **options | {name: number}) for number in (few, many))
    if fewer is None or more is None:
        return None
    if more.time_s <= fewer.time_s * _SLACK.get(kind, ROUNDING):
        return ""
    is_said = not more.notes <= fewer.notes
    if kind == "train":  # each row says what limits it: here, what several devices do besides computing
        others_s = [answer.time_s - answer.row.compute_s for answer in (fewer, more)]
        is_said = is_said or (bool(more.row.limited_by) and others_s[0] < others_s[1])
    return "" if is_said else f"{more} is slower than {fewer}, without a note"


def faster_links_are_slower(choose: random.Random) -> str | None:
    """Links of a server's devices: the device's own one, and slower ones that nobody has measured."""
    own = choose.choice(sorted(OWN_LINKS))
    parallelism = {"tensor": choose.choice([2, 4, 8]), "pipeline": choose.choice([None, 2])}
    options = drawn("serve", choose) | {"gpu": own} | _given(**parallelism)
    links = [None, *(f"{gbytes} GB/s" for gbytes in OWN_LINKS[own]), "infiniband-hdr", "ethernet20"]
    fast, slow = (links[place] for place in sorted(choose.sample(range(len(links)), 2)))
    faster, slower = (ask("serve", **options, **_given(link=name)) for name in (fast, slow))
    if faster is None or slower is None:
        return None
    return "" if faster.time_s <= slower.time_s * _SLACK["serve"] else f"{faster} is slower than {slower}"


OWN_LINKS = {"h100-sxm": [400, 100], "a100-sxm-80gb": [250, 50], "b200": [800, 200]}
"""Devices, and rates in GB/s below that of their own link. Devices joined by PCIe are not among them: measured PCIe
reaches 38% of its data sheet, and networks 67%.
"""


def below_the_bound(kind: str, choose: random.Random) -> str | None:
    answer = ask(kind, **drawn(kind, choose))
    if answer is None:
        return None
    bound_s = answer.row.bound_s
    says = any("bound" in note or "faster than" in note for note in answer.notes)
    if not 0 < answer.time_s < math.inf:
        return f"{answer} is not a time"
    return f"{answer} is below its bound of {bound_s:.6g} s" if bound_s and answer.time_s < bound_s and not says else ""


def larger_batches_are_worse(choose: random.Random) -> str | None:
    options = drawn("predict", choose)
    few, many = sorted(choose.sample([1, 2, 3, 4, 7, 8, 16, 17, 32, 33, 64, 65, 100, 128, 129, 256], 2))
    small, large = (ask("predict", **options | {"batch_size": number}) for number in (few, many))
    if small is None or large is None:
        return None
    if large.row.throughput_per_s < 0.8 * small.row.throughput_per_s:
        return f"{large} has a lower throughput than {small}"
    less, more = small.row.memory_bytes, large.row.memory_bytes
    return f"{large} needs less memory than {small}: {more}, {less}" if less and more < less else ""


MANY = 3
"""Questions per test and seed."""


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_adapters_are_never_slower_than_training_all_parameters(seed: int) -> None:
    assert impossible(adapters_are_slower, seed, 2) == []


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", _BYTES)
def test_narrower_weights_never_need_more_bytes_or_memory(seed: int, kind: str) -> None:
    assert impossible(partial(narrower_weights_need_more, kind), seed, MANY) == []


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lower_power_limit_is_never_faster(seed: int, kind: str) -> None:
    assert impossible(partial(lower_power_limits_are_faster, kind), seed, MANY) == []


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["predict", "train", "serve", "diffusion"])
def test_a_lower_clock_is_never_faster(seed: int, kind: str) -> None:
    assert impossible(partial(lower_clocks_are_faster, kind), seed, MANY) == []


def _knows_clock_of_products(device: Device) -> bool:
    """Return whether the clock of the peak in bf16 is on record, which a locked clock is compared with."""
    return any(peak.precision == "bf16" and device.clock_hz(peak.clock) for peak in device.peaks)


@pytest.mark.parametrize(
    "gpu", [device.id for device in list_devices() if has_constants(device) and _knows_clock_of_products(device)]
)
def test_half_the_clock_makes_prompts_longer_on_every_device_with_kernels(gpu: str) -> None:
    """Prompts are limited by arithmetic, which half of the clock halves; what waits and moves data does not change."""
    device = find_device(gpu)
    half_hz = (device.clock_hz("tensor") or device.clock_hz("boost") or 0.0) / 2
    asked = {"network": "llama-3.2-1b", "gpu": gpu, "phase": "prefill", "sequence_length": 8192}
    free, slow = (_asked("predict", **asked, **clock) for clock in ({}, {"clock": f"{half_hz:.0f} Hz"}))
    assert 1.3 * free.time_s <= slow.time_s <= 2.01 * free.time_s


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["train", "serve", "diffusion"])
def test_more_devices_are_never_slower_without_a_reason(seed: int, kind: str) -> None:
    assert impossible(partial(more_devices_are_slower, kind), seed, MANY) == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_a_faster_link_is_never_slower(seed: int) -> None:
    assert impossible(faster_links_are_slower, seed, MANY) == []


@pytest.mark.thorough
def test_a_link_that_nobody_measured_has_latencies_as_others() -> None:
    """InfiniBand's data sheet states no latency, and 50 of the 450 GB/s of eight H100."""
    asked: dict[str, Any] = {
        "network": "llama-3.1-70b", "gpu": "h100-sxm", "tensor": 8, "pipeline": 2, "rate": 2, "num_requests": 50,
    }  # fmt: skip
    assert _asked("serve", **asked).time_s < _asked("serve", **asked, link="infiniband-ndr").time_s


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_forecast_is_never_below_its_bound_without_a_note(seed: int, kind: str) -> None:
    assert impossible(partial(below_the_bound, kind), seed, MANY) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_larger_batch_lowers_no_throughput_and_needs_no_less_memory(seed: int) -> None:
    assert impossible(larger_batches_are_worse, seed, MANY) == []


def _asked(kind: str, **options: Any) -> Answered:
    answer = ask(kind, **options)
    assert answer is not None
    return answer


@pytest.mark.xfail(
    strict=True,
    reason="the waiting of the host is divided among passes in proportion to their device time (calibrated.py, "
    "host_slowdown); of several micro-batches forward and backward count as often, the update once: where the limit "
    "slows the update more than them, it takes a larger share of the waiting, and less is multiplied",
)
def test_a_lower_power_limit_is_never_faster_in_steps_that_wait_for_the_host() -> None:
    asked: dict[str, Any] = {
        "network": "gpt2", "sequence_length": 128, "gpu": "h200-sxm", "mixed_precision": True, "workers": 4,
        "tensor": 2, "precision": "fp8", "global_batch_size": 16, "execution": "compiled",
    }  # fmt: skip
    assert _asked("train", **asked, power_limit=435.3).time_s >= _asked("train", **asked).time_s


@pytest.mark.thorough
def test_a_larger_tensor_group_that_is_slower_says_why() -> None:
    asked: dict[str, Any] = {
        "network": "gemma-3-1b", "gpu": "rtx4090", "rate": 8, "arrivals": "fixed", "output_tokens": 64,
        "num_requests": 40, "engine": "sglang",
    }  # fmt: skip
    one, four = (_asked("serve", **asked, tensor=tensor) for tensor in (1, 4))
    assert four.time_s > one.time_s and _says(four, "prompts take longer on 4 devices than on one")
    assert not _says(_asked("serve", **asked | {"gpu": "h100-sxm"}, tensor=2), "take longer")


def test_more_devices_that_take_longer_for_a_picture_say_why() -> None:
    asked = {"network": "sd3-medium", "gpu": "rtx-6000-ada", "steps": 4}
    two, four = (_asked("diffusion", **asked, workers=workers) for workers in (2, 4))
    assert four.time_s > two.time_s and _says(four, "4 devices take longer than 2")
    assert not _says(two, "take longer")


@pytest.mark.xfail(
    strict=True,
    reason="the constants of products of engines that unpack a format are slower than the bytes they save, and no note "
    "says so",
)
@pytest.mark.parametrize(
    ("kind", "asked", "narrow", "wide"),
    [
        ("serve", {"network": "gpt2", "gpu": "a100-sxm-80gb", "input_tokens": 128, "rate": 0.5}, "nf4", "int8"),
    ],
)
def test_narrower_weights_that_are_slower_say_why(kind: str, asked: dict[str, Any], narrow: str, wide: str) -> None:
    less, more = (_asked(kind, **asked, weights=name) for name in (narrow, wide))
    assert less.time_s <= more.time_s or not less.notes <= more.notes


def test_a_narrower_format_that_is_slower_to_unpack_says_so() -> None:
    asked = {"network": "llama-3.2-3b", "gpu": "intel-n150"}
    narrow, wide = (_asked("local", **asked, weights=name) for name in ("iq4_xs", "q5_0"))
    assert narrow.time_s > wide.time_s and _says(narrow, "unpacks the numbers of iq4_xs for longer than it reads them")
    assert not _says(_asked("local", network="llama-3.2-3b", gpu="rtx4090", weights="q8_0"), "unpacks the numbers")


def test_a_narrower_cache_moves_fewer_bytes() -> None:
    asked: dict[str, Any] = {"network": "llama-3.2-3b", "gpu": "h200-sxm", "phase": "decode", "context": 8000}
    narrow, wide = (_asked("predict", **asked, batch_size=64, kv_cache=name) for name in ("fp8", "bf16"))
    assert narrow.row.bound_s < wide.row.bound_s
    assert narrow.row.bytes < wide.row.bytes
