"""Programs on one's own machine, their backends and formats, and questions that are checked when they are made.

Tests: own_machines/question.py.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from paleo_lite.api.local import advise_local, predict_local
from paleo_lite.architectures import find_network
from paleo_lite.cli import main
from paleo_lite.engines.records import BACKENDS, LOCAL_ENGINES
from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device
from paleo_lite.own_machines.contents import read_contents
from paleo_lite.own_machines.question import LocalQuestion
from paleo_lite.own_machines.step import constants_of, local_constants
from paleo_lite.questions.names import LocalFormatNames


def test_every_backend_has_constants() -> None:
    named = {name for engine in LOCAL_ENGINES.values() for names in engine.backends.values() for name in names}
    assert named == set(BACKENDS) == set(local_constants().backends)


@pytest.mark.parametrize(
    ("gpu", "backend", "network", "weights", "rate"),
    [
        # ggml-org/llama.cpp, pull request 26284 (64 tokens), and LocalScore, issue 9
        ("rx7900xtx", "rocm", "llama-3.1-8b", "q4_k_m", 105.81),
        # R9700 Benchmark Results (AMD Radeon GFX1201), llama.cpp 073bb2c: both backends of one card
        ("radeon-ai-pro-r9700", "rocm", "qwen3.5-27b", "q4_k_m", 27.42),
        ("radeon-ai-pro-r9700", "vulkan", "qwen3.5-27b", "q4_k_m", 30.33),
    ],
)
def test_backends_of_a_radeon(gpu: str, backend: str, network: str, weights: str, rate: float) -> None:
    found = predict_local(network, gpu, LocalQuestion(backend=backend, weights=weights, context=64))
    assert found.backend == backend
    assert found.tokens_per_s == pytest.approx(rate, rel=0.2)
    assert found.token_interval_s[0] < 1 / rate < found.token_interval_s[1]


@pytest.mark.parametrize(
    ("weights", "rate", "prompt_rate"),
    [("f16", 52.47, 1780.63), ("mlx-8bit", 86.907, 1606.57), ("mlx-4bit", 134.52, 1622.27)],
)
def test_mlx(weights: str, rate: float, prompt_rate: float) -> None:
    """Qwen3 4B on an M4 Max, 128 tokens behind a prompt of 2048 (mlx-lm, BENCHMARKS.md)."""
    question = LocalQuestion(execution="mlx", weights=weights, context=2048, prompt_tokens=2048)
    found = predict_local("qwen3-4b", "apple-m4-max", question)
    assert found.backend == "mlx"
    assert found.tokens_per_s == pytest.approx(rate, rel=0.25)
    assert found.prompt_tokens_per_s == pytest.approx(prompt_rate, rel=0.3)


def test_sizes_of_mlx() -> None:
    """Peak memory of the same table: 3.35 GB in 4 bits, 5.254 GB in 8, of which some 0.9 GB are cache and buffers."""
    network = find_network("qwen3-4b")
    narrow, wide = (
        read_contents(network, weights, None, LOCAL_ENGINES["mlx"]).stored_bytes for weights in ("mlx-4bit", "mlx-8bit")
    )
    assert wide - narrow == pytest.approx((5.254 - 3.35) * 1e9, rel=0.07)


@pytest.mark.parametrize(
    ("named", "weights", "bits"),
    [
        # mlx.core.quantize: bits of a number, and of its share of the scale (and the bias) of a group
        ("mxfp4", "mlx-mxfp4", 4 + 8 / 32),
        ("nvfp4", "mlx-nvfp4", 4 + 8 / 16),
        ("mxfp8", "mlx-mxfp8", 8 + 8 / 32),
        ("mlx-8bit", "mlx-8bit", 8 + 2 * 16 / 64),
    ],
)
def test_modes_of_mlx(named: str, weights: str, bits: float) -> None:
    network = find_network("qwen3-4b")
    whole, narrow = (read_contents(network, name, None, LOCAL_ENGINES["mlx"]) for name in ("f16", named))
    assert narrow.weights == weights
    assert narrow.stored_bytes / whole.stored_bytes == pytest.approx(bits / 16, rel=1e-3)


def test_experts_of_gpt_oss_keep_mxfp4_under_mlx() -> None:
    """19.1 of 20.9 billion parameters are experts in 4.25 bits, all others have 8.5 bits (gpt-oss model card)."""
    contents = read_contents(find_network("gpt-oss-20b"), "mlx-mxfp4-q8", None, LOCAL_ENGINES["mlx"])
    assert {piece.type for piece in contents.pieces if piece.is_expert} == {"mxfp4"}
    assert contents.stored_bytes == pytest.approx((19.1e9 * 4.25 + 1.8e9 * 8.5) / 8, rel=0.03)


@pytest.mark.parametrize(
    ("typed", "listed"),
    [("8bit", "mlx-8bit"), ("4BIT", "mlx-4bit"), ("mxfp4-q8", "mlx-mxfp4-q8"), ("4.0bpw", "exl2-4.0bpw"),
     ("mxfp4", "mxfp4"), ("UD-Q4_K_XL", "q4_k_xl")],
)  # fmt: skip
def test_formats_have_the_names_of_repositories(typed: str, listed: str) -> None:
    assert LocalFormatNames("format of weights", ".formats:FORMATS").convert(typed, None, None) == listed


def test_a_maker_without_measurements_has_wider_prompts() -> None:
    """With Intel's cards left out, the prompts of an Arc B580 are forecast 1.9 and 2.2 times too fast."""
    question = LocalQuestion(backend="vulkan")
    card, measured = (predict_local("llama-3.1-8b", gpu, question) for gpu in ("rtx4090", "rx7900xtx"))
    assert card.backend == "vulkan"
    width, narrower = (found.prompt_interval_s[1] / found.prompt_s for found in (card, measured))
    assert width > 2.2 > narrower
    assert any("no device of NVIDIA was measured under vulkan, only those of AMD and Intel" in n for n in card.notes)
    assert not any("was measured under" in note for note in measured.notes)
    assert constants_of("cuda", find_device("rtx4090")) == local_constants().backends["cuda"]


@pytest.mark.parametrize(("gpu", "rate"), [("rtx3090ti", 164.0), ("rtx4090", 197.0)])
def test_exllama(gpu: str, rate: float) -> None:
    """Llama 2 7B at 4 bits (README of turboderp/exllamav2, September 2023)."""
    found = predict_local("llama-2-7b", gpu, LocalQuestion(execution="exllama", context=64))
    assert found.weights == "exl2-4.0bpw"
    assert found.tokens_per_s == pytest.approx(rate, rel=0.15)
    assert any("prompts on those of one" in note for note in found.notes)


def test_advice_of_mlx_ranks_its_own_formats_and_devices() -> None:
    advice = advise_local("qwen3-14b", ["apple-m4"], LocalQuestion(execution="mlx", device_memory="16GB"))
    assert {row.weights for row in advice.rows} <= set(LOCAL_ENGINES["mlx"].advised)
    everywhere = advise_local("qwen3-14b", None, LocalQuestion(execution="mlx"))
    assert {row.device.split()[0] for row in everywhere.rows} == {"Apple"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"execution": "vllm"}, "`--engine` must be one of llama.cpp, mlx, exllama (got 'vllm')"),
        ({"context": 0}, "`--context` must be an integer >= 1 (got 0)"),
        ({"gpus": 0}, "`--workers` must be an integer >= 1 (got 0)"),
        ({"gpu_layers": -1}, "`--gpu-layers` must be an integer >= 0 (got -1)"),
        ({"device_memory": 16}, "`--device-memory` must be at least 1 GB, such as 16GB (got 16 B)"),
        ({"kv_cache": "fp8"}, "llama.cpp keeps keys and values in f16, bf16, q8_0"),
        ({"execution": "mlx", "gpu_layers": 3}, "`--gpu-layers` is for `--engine llama.cpp`: under mlx everything"),
        ({"execution": "mlx", "kv_cache": "q8_0"}, "mlx keeps keys and values in f16 (got 'q8_0')"),
    ],
)
def test_questions_are_checked_when_made(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadValue) as error:
        LocalQuestion(**options)  # type: ignore[arg-type]
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("network", "gpu", "options", "message"),
    [
        ("llama-3.1-8b", "rtx3090", {"execution": "mlx"}, "`--engine mlx` is for devices of Apple, not for GeForce"),
        ("llama-3.1-8b", "apple-m4", {"execution": "exllama"}, "`--engine exllama` is for devices of NVIDIA, not"),
        ("llama-3.1-8b", "apple-m4", {"execution": "mlx", "weights": "q4_k_m"}, "mlx stores weights in f16, mlx-3bit"),
        ("llama-3.1-8b", "rtx3090", {"weights": "mlx-4bit"}, "llama.cpp stores weights in f16, q8_0"),
        (
            "llama-3.1-8b",
            "rtx3090",
            {"backend": "rocm"},
            "`--backend` of GeForce RTX 3090 must be cuda or vulkan (got 'rocm')",
        ),
        ("llama-3.1-8b", "rx7900xtx", {"backend": "cuda"}, "must be vulkan or rocm (got 'cuda')"),
    ],
)
def test_options_that_a_program_lacks_are_refused(
    network: str, gpu: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(BadValue) as error:
        predict_local(network, gpu, LocalQuestion(**options))  # type: ignore[arg-type]
    assert message in str(error.value)


def test_devices_of_peoples_own_machines_answer() -> None:
    """Every device that llama.cpp has a backend for has lanes, a clock and a peak on record."""
    for name in (
        "apple-m1-7", "apple-m2-max-30", "apple-m3-ultra-60", "apple-m5-max", "ryzen-ai-max-395", "radeon-ai-pro-r9700",
        "rx7900xtx", "rx9070xt", "dgx-spark", "rtx5090-laptop", "rtx4060-laptop", "epyc-9654", "xeon-8480",
        "ryzen-9-9950x", "apple-m2-max-cpu", "core-i9-14900k",
    ):  # fmt: skip
        found = predict_local("llama-3.2-3b", name, LocalQuestion(context=512))
        low_s, high_s = found.token_interval_s
        assert low_s < found.token_s < high_s, name
        least_s = found.weight_bytes / find_device(name).bandwidth_bytes_per_s
        assert found.token_s > least_s, name


def test_command() -> None:
    words = ["local", "llama-3.1-8b", "--gpu", "rx7900xtx", "--engine", "llama.cpp", "--backend", "rocm"]
    answer = json.loads(CliRunner().invoke(main, [*words, "--format", "json"]).stdout)
    assert answer["backend"] == "rocm" and answer["execution"] == "llama.cpp"
    found = CliRunner().invoke(main, [*words, "--clock", "boost"])
    assert found.exit_code == 2 and "`--clock` is for `predict`" in found.output
