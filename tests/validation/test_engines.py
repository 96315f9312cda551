"""Readers of tables of engines' kernels, and the fits of their constants."""

from __future__ import annotations

import gzip
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from measured import DATA
from paleo_lite.engines.constants import (
    Cell,
    CellFit,
    CellTraits,
    EngineConstants,
    Host,
    MeasuredServers,
    ServerSpread,
    predict_constants,
    traits_of,
)
from paleo_lite.engines.formulas import KERNEL_CLASSES, KernelRates
from paleo_lite.engines.kernel_formats import KERNEL_FORMATS, kernel_rates
from paleo_lite.engines.step import UNKNOWN_HOST
from paleo_lite.machines import find_device
from validation.engines import deviations, simulated, steps, tables
from validation.engines.deviations import between_sources
from validation.engines.fit import MOST_ROWS, draw_rows, fit_cell, fit_class, fit_constants, kernel_times
from validation.engines.priors import PRIORS
from validation.engines.scripts import cache_format, script_of
from validation.engines.servers import PublishedServer, _mark_drafting, _parallelism, _users, published_servers
from validation.engines.steps import _pausing_share
from validation.engines.tables import READERS, TimedKernels, attention_pairs

# Readers -------------------------------------------------------------------------------------------------------------


@cache
def cells() -> dict[str, list[TimedKernels]]:
    """Return the cells of all tables by their reader."""
    return {read.__name__: list(read(DATA)) for read in READERS}


def rows(name: str, *conditions: str) -> int:
    """Count the lines of a table, without its header, that contain the words."""
    with gzip.open(DATA / "engines" / f"{name}.csv.gz", "rt") as stream:
        next(stream)
        return sum(all(condition in line for condition in conditions) for line in stream)


@pytest.mark.thorough
@pytest.mark.needs_data
@pytest.mark.slow
def test_every_cell_is_of_a_known_device_class_and_format() -> None:
    names = [timed.cell for found in cells().values() for timed in found]
    assert len(names) == len(set(names)) > 100
    for cell in names:
        assert find_device(cell.gpu).id == cell.gpu
        assert cell.kernels in KERNEL_CLASSES and cell.engine in ("vllm", "sglang", "tensorrt-llm")
        if cell.kernels in ("products", "experts"):
            assert cell.format in KERNEL_FORMATS


@pytest.mark.needs_data
@pytest.mark.slow
def test_every_row_has_a_time_and_sizes() -> None:
    for found in cells().values():
        for timed in found:
            sizes = [np.broadcast_to(value, timed.time_s.shape) for value in timed.shapes.values()]
            assert all(np.all(np.isfinite(size)) for size in sizes)
            assert np.all(timed.time_s > 1e-7) and np.all(timed.time_s < 100), timed.cell


@pytest.mark.needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("reader", "table", "total"), [("products", "gemm", 141_000), ("experts", "moe", 210_203)])
def test_most_rows_of_a_table_are_read(reader: str, table: str, total: int) -> None:
    """The rows that the folder's description counts; fallbacks and formats without a peak are left out."""
    assert rows(table) == total
    read = sum(len(timed.time_s) for timed in cells()[reader])
    if reader == "products":  # two further tables have other devices
        main = {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "l40s", "arc-pro-b60"}
        read = sum(len(timed.time_s) for timed in cells()[reader] if timed.cell.gpu in main)
    assert 0.75 * total <= read <= total


@pytest.mark.thorough
@pytest.mark.needs_data
@pytest.mark.slow
def test_experts_in_mxfp4_that_sglang_shares_with_vllm_are_read_under_both() -> None:
    """SGLang's own rows on Hopper take at least as long as reading weights in 16 bits, four times the bytes of mxfp4.

    Balanced rows of 64 tokens choose all 32 experts of gpt-oss-20b: 3 * 2,880^2 numbers each, at 3.35 TB/s.
    """
    frame = tables._read(DATA / "engines/moe.csv.gz")
    own = frame[(frame.gpu == "h100-sxm") & (frame.kernel_source == "sglang_fused_moe_triton")]
    own = own[(own.moe_dtype == "w4a16_mxfp4") & (own.hidden_size == 2880) & (own.num_experts == 32)]
    undivided = own[(own.moe_tp_size == 1) & (own.moe_ep_size == 1) & (own.num_tokens >= 64)]
    assert len(undivided) > 10 and undivided.latency.min() * 1e-3 > 32 * 3 * 2880**2 * 2 / 3.35e12
    mxfp4 = {(timed.cell.gpu, timed.cell.engine): timed for timed in cells()["experts"] if timed.cell.format == "mxfp4"}
    for gpu, name in (("h100-sxm", "h100_sxm"), ("h200-sxm", "h200_sxm")):
        shared = mxfp4[gpu, "sglang"].time_s
        assert len(shared) == rows("moe", f"{name},vllm", "oaitriton") and set(shared) <= set(mxfp4[gpu, "vllm"].time_s)
    assert len(mxfp4["l40s", "sglang"].time_s) == rows("moe", "l40s,sglang", "w4a16_mxfp4")


@pytest.mark.needs_data
@pytest.mark.slow
def test_all_reduces_in_captured_graphs_are_read() -> None:
    assert rows("all_reduce") == 1_725
    read = sum(len(timed.time_s) for timed in cells()["all_reduces"])
    assert read == 1_725 - rows("all_reduce", "eager") > 1000


@pytest.mark.needs_data
@pytest.mark.slow
def test_all_rows_of_latent_attention_are_read() -> None:
    read = dict.fromkeys(("latent prompt attention", "latent decode attention"), 0)
    for timed in cells()["latent_attention"]:
        read[timed.cell.kernels] += len(timed.time_s)
    assert read == {"latent prompt attention": 12_880, "latent decode attention": 13_162}


@pytest.mark.needs_data
def test_no_format_of_a_table_is_unmapped() -> None:
    for name, column, mapped in (
        ("gemm", "gemm_dtype", tables.PRODUCT_FORMATS),
        ("moe", "moe_dtype", tables.EXPERT_FORMATS),
    ):
        frame = tables._read(DATA / "engines" / f"{name}.csv.gz")
        assert set(frame[column]) <= set(mapped) and set(mapped.values()) <= set(KERNEL_FORMATS)
        assert frame.gpu.notna().all() and set(frame.engine) <= set(tables.ENGINES.values())


@pytest.mark.parametrize(("length", "window", "cached"), [(5, 0, 0), (5, 0, 3), (6, 2, 0), (6, 4, 3), (3, 2, 5)])
def test_pairs_of_a_table_are_those_of_a_mask(length: int, window: int, cached: int) -> None:
    query, key = np.indices((length, length + cached))
    distance = query + cached - key
    mask = (distance >= 0) & (distance < (window or 10**9))
    assert attention_pairs(length, window, cached) == mask.sum()


# Fits ----------------------------------------------------------------------------------------------------------------


def synthetic(name: str, theta: np.ndarray, shapes: dict[str, np.ndarray | float], noise: float = 0.0) -> TimedKernels:
    """Return times that a formula gives at some constants, on an H100 in bf16."""
    rates = kernel_rates(find_device("h100-sxm"), "bf16")[0]
    exact = TimedKernels(Cell(name, "h100-sxm", "vllm", "bf16"), shapes, rates, np.ones(1))
    times = np.asarray(kernel_times(exact, theta))
    return exact._replace(time_s=times * np.exp(noise * np.random.default_rng(3).standard_normal(len(times))))


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_constants_of_a_pointwise_cell_are_recovered(noise: float) -> None:
    theta = np.log([0.55, 8e3])
    shapes = {"moved_bytes": np.geomspace(1e3, 1e10, 400)}
    fitted = fit_cell(synthetic("pointwise", theta, shapes, noise))
    assert fitted.theta[:2] == pytest.approx(theta, abs=0.03)
    assert fitted.error < noise + 0.01 and fitted.measurements == 400


def test_the_constants_of_products_are_recovered_where_sizes_speak_of_them() -> None:
    theta = np.log([0.6, 0.75, 1.4e4, 2e13, 150.0, 2.0, 1.0])
    m, n, k = (axis.ravel() for axis in np.meshgrid(*[np.geomspace(16, 16384, 9)] * 3))
    shapes = {"m": m, "n": n, "k": k, "weight_bytes": 2.0, "operand_bytes": 2.0}
    fitted = fit_cell(synthetic("products", theta, shapes, 0.02))
    assert fitted.theta[:3] == pytest.approx(theta[:3], abs=0.05)
    assert fitted.theta[3:5] == pytest.approx(theta[3:5], abs=0.3) and fitted.error < 0.03


def test_a_constant_without_evidence_stays_typical_and_uncertain() -> None:
    """Operands of 16 bits are not quantised: nothing speaks of the traffic of the quantisation."""
    theta = np.log([0.6, 0.75, 1.4e4, 2e13, 150.0, 2.0, 3.0])
    sizes = np.geomspace(64, 8192, 200)
    shapes = {"m": sizes, "n": sizes, "k": sizes, "weight_bytes": 2.0, "operand_bytes": 2.0}
    fitted = fit_cell(synthetic("products", theta, shapes))
    last, prior = list(KERNEL_CLASSES["products"].parameters).index("quantisation"), PRIORS["products"]["quantisation"]
    assert fitted.theta[last] == pytest.approx(np.log(prior.typical), abs=0.01)
    assert fitted.deviation[last] > 0.9 * prior.deviation > 4 * fitted.deviation[0]


def test_something_is_expected_of_every_constant() -> None:
    expected = {name: set(constants) for name, constants in PRIORS.items()}
    assert expected == {name: set(kernels.parameters) for name, kernels in KERNEL_CLASSES.items()}


def test_outliers_do_not_move_a_fit() -> None:
    theta = np.log([0.55, 8e3])
    timed = synthetic("pointwise", theta, {"moved_bytes": np.geomspace(1e3, 1e10, 400)})
    slow = timed.time_s.copy()
    slow[::20] *= 30
    assert fit_cell(timed._replace(time_s=slow)).theta[:2] == pytest.approx(theta, abs=0.05)


def test_the_scatter_of_a_cell_contains_nine_kernels_of_ten() -> None:
    """Normal errors of 7%, which the quantile of their absolute values at 90% tells from their median."""
    theta = np.log([0.55, 8e3])
    fitted = fit_cell(synthetic("pointwise", theta, {"moved_bytes": np.geomspace(1e3, 1e10, 2000)}, 0.07))
    assert np.exp(fitted.theta[-1]) == pytest.approx(0.07, rel=0.05)


def test_rows_are_drawn_together_with_their_times() -> None:
    count = 2 * MOST_ROWS
    rates = KernelRates(1e15, 1e12, 100.0, 2e9)
    timed = TimedKernels(
        Cell("products", "b200", "vllm", "fp8"), {"m": np.arange(count), "n": 7.0}, rates, np.arange(count)
    )
    drawn = draw_rows(timed)
    assert len(drawn.time_s) == MOST_ROWS and np.array_equal(drawn.shapes["m"], drawn.time_s)
    assert drawn.shapes["n"] == 7.0 and len(np.unique(drawn.time_s)) == MOST_ROWS


def drawn_cells(engine_deviation: float, device_deviation: float) -> list[CellFit]:
    """Return cells whose constants are a sum of effects of engines and of devices, known to 1%."""
    generator = np.random.default_rng(5)
    engines = {name: engine_deviation * generator.standard_normal(2) for name in ("vllm", "sglang", "tensorrt-llm")}
    fits = []
    for gpu in ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "l40s", "rtx4090", "rtx3090", "gb200"):
        own = device_deviation * generator.standard_normal(2)
        for engine, shift in engines.items():
            theta = tuple(float(value) for value in np.array([-0.5, 8.0]) + own + shift)
            fits.append(CellFit(gpu, engine, "bf16", (*theta, np.log(0.1)), (0.01, 0.01, 0.1), 500, 0.05))
    return fits


def test_the_effect_that_cells_differ_by_has_the_variance() -> None:
    """Cells that differ by device only, by effects of 0.5: devices explain them, and engines do not."""
    fitted = fit_class("pointwise", drawn_cells(0.0, 0.5))
    of_devices = ("device", "chip", "generation", "generation and format", "memory", "engine, format and generation")
    drawn = np.var([cell.theta[:2] for cell in drawn_cells(0.0, 0.5)], axis=0)
    for index, variance in enumerate(drawn):
        by_device = sum(fitted.variances[name][index] for name in of_devices)
        assert by_device == pytest.approx(variance, rel=0.25)
        assert by_device > 50 * (fitted.variances["engine"][index] + fitted.variances["cell"][index])
    assert fitted.mean[:2] == pytest.approx((-0.5, 8.0), abs=0.6)


def test_a_device_that_no_cell_is_of_is_predicted_within_its_interval() -> None:
    """Four times out of five at least: variances that were chosen from seven devices are themselves uncertain."""
    found = drawn_cells(0.3, 0.2)
    inside = []
    for gpu in sorted({cell.gpu for cell in found}):
        known = [cell for cell in found if cell.gpu != gpu]
        fitted = fit_class("pointwise", known)
        traits = [traits_of(find_device(cell.gpu), cell.engine, cell.format) for cell in known]
        for cell in (cell for cell in found if cell.gpu == gpu):
            wanted: CellTraits = traits_of(find_device(gpu), cell.engine, cell.format)
            predicted = predict_constants(fitted, wanted, traits)
            inside += (np.abs(np.array(cell.theta[:2]) - predicted.theta) < 1.96 * predicted.deviation).tolist()
    assert 0.8 <= np.mean(inside) < 1


# Servers -------------------------------------------------------------------------------------------------------------

SERVER = PublishedServer(
    source="serving", name="any", network="llama-3.1-8b", gpu="h100-sxm", engine="sglang", version="0.5",
    precision="bf16", weights=None, kv_cache="bf16", devices=1, experts=1, attention_data=1, input_tokens=1024.0,
    output_tokens=128.0, concurrency=16, is_drawn=False, ttft_s=1.0, tpot_s=0.01, tokens_per_s=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 0.25),  # two chunks of 8,192 tokens: half of the users wait for the other half
        ({"concurrency": 8}, 0.0),  # one chunk
        ({"concurrency": 512}, 0.5),  # nearly: 64 chunks, of which half are later than one's own
        ({"is_drawn": True}, 1.0),
        ({"engine": "vllm"}, 1.0),
    ],
)
def test_users_who_keep_step_are_paused_by_later_prompts_only(changes: dict[str, object], share: float) -> None:
    assert _pausing_share(msgspec.structs.replace(SERVER, **changes)) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "has_nucleus"),
    [
        ({"source": "mlenergy"}, True),  # top_p 0.95 and temperature 0.8, mlenergy/llm/benchmark.py
        ({"source": "mlenergy", "engine": "vllm"}, True),
        ({"engine": "vllm"}, True),  # AIPerf sends no temperature: vLLM takes generation_config.json
        ({"engine": "vllm", "is_drawn": True}, False),  # InferenceX: temperature 0, benchmark_serving.py
        ({"engine": "tensorrt-llm"}, False),
        ({"source": "loads", "engine": "vllm"}, False),
    ],
)
def test_clients_sample_as_their_sources_say(changes: dict[str, object], has_nucleus: bool) -> None:
    assert msgspec.structs.replace(SERVER, **changes).has_nucleus is has_nucleus


@pytest.mark.parametrize(
    ("gpu", "users", "name", "interval"),
    [
        ("b200", 8, "2026_04_06_any", 10),  # InferenceX, benchmarks of SGLang on B200: 10, from 16 users on 30
        ("b200", 16, "2026_04_06_any", 30),
        ("h200-sxm", 16, "2026_04_06_any", 1),  # its scripts for H200 set none
        ("b200", 16, "any_cfg1", 1),
    ],
)
def test_inferencex_lets_sglang_look_now_and_then_on_blackwell(gpu: str, users: int, name: str, interval: int) -> None:
    server = msgspec.structs.replace(SERVER, gpu=gpu, concurrency=users, name=name, is_drawn=True)
    assert script_of(server).receive_interval == interval
    assert script_of(msgspec.structs.replace(server, is_drawn=False)).receive_interval == 1


@pytest.mark.parametrize(
    ("tpot_s", "ttft_s", "drafts"),
    [
        (0.0075, 0.9, True),  # of 10 ms: three quarters
        (0.0082, 1.4, True),  # less of it, and the first token comes 1.4 times as late
        (0.0082, 1.0, False),
        (0.0095, 1.4, False),
    ],
)
def test_servers_that_draft_are_faster_but_for_the_first_token(tpot_s: float, ttft_s: float, drafts: bool) -> None:
    plain = msgspec.structs.replace(SERVER, network="deepseek-r1")
    other = msgspec.structs.replace(plain, tpot_s=tpot_s - 1e-5, ttft_s=ttft_s)
    assert [server.is_speculative for server in _mark_drafting([plain, other])] == [False, drafts]


@pytest.mark.parametrize(
    ("changes", "drafts"),
    [
        ({"experts": 4}, True),  # the experts are divided in another way
        ({"output_tokens": 8192.0}, True),  # contexts are longer
        ({"output_tokens": 100.0}, False),
        ({"output_tokens": 8192.0, "concurrency": 128}, False),  # others send prompts less often
        ({"experts": 4, "network": "llama-3.1-8b"}, False),
        ({"attention_data": 4}, False),
    ],
)
def test_servers_that_draft_divide_experts_differently_or_answer_for_longer(
    changes: dict[str, Any], drafts: bool
) -> None:
    plain = msgspec.structs.replace(SERVER, network="deepseek-r1")
    shared = {name: changes[name] for name in ("concurrency", "network") if name in changes}
    other = msgspec.structs.replace(plain, tpot_s=0.7 * plain.step_s, **changes)
    found = _mark_drafting([msgspec.structs.replace(plain, **shared), other])
    assert [server.is_speculative for server in found] == [False, drafts]


@pytest.mark.parametrize(
    ("engine", "network", "precision", "gpu", "is_drawn", "form"),
    [
        ("tensorrt-llm", "llama-3.1-8b", "fp8", "h100-sxm", False, "fp8"),
        ("tensorrt-llm", "llama-3.1-8b", "bf16", "h100-sxm", False, "bf16"),
        ("sglang", "deepseek-r1", "fp4", "b200", True, "fp8"),  # InferenceX, dsr1_fp4_b200.sh
        ("sglang", "deepseek-r1", "fp8", "h200-sxm", True, "bf16"),  # dsr1_fp8_h200.sh states none
        ("sglang", "deepseek-r1", "fp8", "b200", False, "bf16"),  # not InferenceX's
        ("vllm", "llama-3.1-70b", "fp8", "h200-sxm", True, "fp8"),  # 70b_fp8_h200_slurm.sh
        ("vllm", "gpt-oss-120b", "bf16", "h200-sxm", True, "bf16"),  # gptoss_fp4_h200.sh states none
        ("vllm", "kimi-k2", "bf16", "b200", True, "bf16"),  # kimik2.5_int4_b200.sh states none
    ],
)  # fmt: skip
def test_caches_have_the_format_that_scripts_state(
    engine: str, network: str, precision: str, gpu: str, is_drawn: bool, form: str
) -> None:
    asked = {"engine": engine, "network": network, "precision": precision, "gpu": gpu, "is_drawn": is_drawn}
    assert cache_format(msgspec.structs.replace(SERVER, **asked)) == form


SHORT: dict[str, Any] = {"is_drawn": True, "input_tokens": 1024.0, "output_tokens": 1024.0}
LLAMA: dict[str, Any] = {**SHORT, "network": "llama-3.1-70b", "devices": 4}
DEEPSEEK: dict[str, Any] = {
    **SHORT, "network": "deepseek-r1", "gpu": "b200", "precision": "fp8", "devices": 8, "version": "1.2.0rc6.post2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "gathering"),
    [
        # InferenceX, 70b_fp8_h200_trt_slurm.sh: 1,024 tokens each and tensor parallelism below 8.
        (LLAMA, (20, 0.9, 2248)),
        ({**LLAMA, "devices": 8}, None),
        ({**LLAMA, "output_tokens": 8192.0}, None),
        ({**SHORT, "network": "gpt-oss-120b", "devices": 4}, None),
        # dsr1_fp8_b200_trt.sh: `DELAY_BATCHING` from 64 to 255 users; `attention_dp_config` with `DP_ATTENTION`.
        ({**DEEPSEEK, "concurrency": 64}, (40, 0.8, None)),
        ({**DEEPSEEK, "concurrency": 256}, None),
        ({**DEEPSEEK, "concurrency": 64, "precision": "fp4"}, None),
        ({**DEEPSEEK, "concurrency": 256, "attention_data": 8}, (60, None, None)),
        # gptoss_fp4_b200_trt_slurm.sh states `enable_balance` alone.
        ({**SHORT, "network": "gpt-oss-120b", "attention_data": 2}, (50, None, None)),
    ],
)
def test_first_tokens_of_servers_that_gather_prompts_are_not_fitted(
    changes: dict[str, Any], gathering: tuple[object, ...] | None
) -> None:
    server = msgspec.structs.replace(SERVER, engine="tensorrt-llm", **changes)
    gathered = msgspec.structs.replace(server, script=script_of(server))
    assert gathered.script.gathering == gathering
    if server.attention_data == 1 and server.concurrency <= steps.MOST_USERS:
        assert steps.informs_first_token(gathered) == (gathering is None)


@pytest.mark.parametrize(
    ("changes", "most_tokens", "memory_fraction"),
    [
        # InferenceX, dsr1_fp8_h200_trt_slurm.sh: MAX_NUM_TOKENS=$(( ($CONC+$ISL+64+63)/64*64 )), 0.75
        ({"version": "", "gpu": "h200-sxm", "concurrency": 64}, 1152, 0.75),
        ({"version": "1.1.0rc2.post2", "precision": "fp4", "concurrency": 256}, 1344, 0.8),  # dsr1_fp4_b200_trt.sh
        ({"concurrency": 256}, 8192, 0.8),  # dsr1_fp8_b200_trt.sh of 1.2: at least 8,192
        ({"concurrency": 32, "devices": 4, "input_tokens": 8192.0}, 8320, 0.75),
        ({"network": "gpt-oss-120b"}, 20_000, 0.85),  # gptoss_fp4_b200_trt_slurm.sh
        ({"network": "llama-3.1-70b"}, None, None),
        ({"engine": "sglang"}, None, 0.82),  # dsr1_fp8_b200.sh: --mem-fraction-static
        ({"is_drawn": False}, None, None),  # another source
    ],
)
def test_servers_are_read_with_the_limits_of_their_scripts(
    changes: dict[str, Any], most_tokens: int | None, memory_fraction: float | None
) -> None:
    server = msgspec.structs.replace(SERVER, **{"engine": "tensorrt-llm", **DEEPSEEK, **changes})
    script = script_of(server)
    assert (script.most_tokens, script.memory_fraction) == (most_tokens, memory_fraction)


@pytest.mark.parametrize(
    ("changes", "groups", "users"),
    [
        ({"batch_size": "56"}, 4, 224),  # sequences of each of four ranks
        ({"batch_size": "224"}, 1, 224),
        ({"attention_dp_size": "1.0", "batch_size": "13"}, 1, 13),  # of each of several replicas
        ({"attention_dp_size": "4.0", "batch_size": ""}, 4, 224),
    ],
)
def test_users_are_divided_among_ranks_and_replicas(changes: dict[str, str], groups: int, users: int) -> None:
    row = {"id": "any_tp4_epnone_1", "engine": "trtllm", "tp_size": "4.0", "attention_dp_size": "",
           "moe_ep_size": "4.0", "batch_size": "", "concurrency": "224", **changes}  # fmt: skip
    assert (_parallelism(row)[2], _users(row)) == (groups, users)


@pytest.mark.thorough
@pytest.mark.needs_data
def test_servers_whose_users_are_unknown_are_left_out() -> None:
    """Six rows of 512 users, of which the script let its server run one tenth of the requests at a time."""
    servers = published_servers(DATA)
    oss = [server for server in servers if server.network == "gpt-oss-120b" and server.gpu == "h100-sxm"]
    assert {server.concurrency for server in oss if server.engine == "vllm" and server.source == "serving"} <= {
        4, 8, 16, 32, 64, 128,
    }  # fmt: skip
    uncaptured = [server for server in servers if not server.is_captured]
    assert len(uncaptured) == 9 and not any(map(steps.is_fitted, uncaptured))


def test_first_tokens_wait_for_the_host_by_the_kernels_of_a_prompt() -> None:
    """The formula of `validation.engines.steps`; the time per token has no such part."""
    times = steps.StepTimes({("products", "bf16"): 0.001}, {("products", "bf16"): 0.004})
    few, many = (
        steps.StepParts(
            SERVER, times, times, times, prompts_per_token=0.1, logits=1e5, prompt_launches=count, variance=0.01
        )
        for count in (400, 1000)
    )
    host = Host(1e-3, 0.0, 5e-3, 0.0, 1.0, 0.2, request_kernel_s=3e-5)
    constants = EngineConstants({}, hosts={SERVER.engine: host})
    (few_tpot_s, few_s), (many_tpot_s, many_s) = (steps.predict_steps(one, constants) for one in (few, many))
    assert many_s - few_s == pytest.approx(600 * 3e-5)
    assert many_tpot_s == few_tpot_s


def test_first_tokens_wait_for_the_host_by_the_layers_of_experts() -> None:
    """58 layers of 1 ms each; the time per token has no such part."""
    times = steps.StepTimes({("products", "bf16"): 0.001}, {("products", "bf16"): 0.004})
    dense, mixture = (
        steps.StepParts(
            SERVER, times, times, times, prompts_per_token=0.1, logits=1e5, prompt_launches=400, variance=0.01,
            expert_layers=layers,
        )
        for layers in (0, 58)
    )  # fmt: skip
    host = Host(1e-3, 0.0, 5e-3, 0.0, 1.0, 0.2, request_expert_s=1e-3)
    constants = EngineConstants({}, hosts={SERVER.engine: host})
    (dense_tpot_s, dense_s), (mixture_tpot_s, mixture_s) = (
        steps.predict_steps(one, constants) for one in (dense, mixture)
    )
    assert mixture_s - dense_s == pytest.approx(58e-3)
    assert mixture_tpot_s == dense_tpot_s


def test_times_of_requests_need_the_first_tokens_of_two_networks() -> None:
    """Under SGLang they are of one network here, and 0.05 is the deviation; under vLLM of two."""
    names = [("sglang", "qwen3-8b"), ("vllm", "qwen3-8b"), ("vllm", "llama-3.1-8b")]
    servers = [
        msgspec.structs.replace(SERVER, engine=engine, network=network, is_drawn=True) for engine, network in names
    ]
    model: Any = SimpleNamespace(engines=["sglang", "vllm"])
    found = steps._Model._host_deviations(model, servers).reshape(-1, 2)
    by_time = dict(zip(steps.TYPICAL_HOST, found.tolist()))
    assert by_time["iteration_s"] == [steps.HOST_DEVIATION] * 2
    assert [by_time[name] for name in ("request_s", "request_token_s")] == [[0.05, steps.REQUEST_DEVIATION]] * 2
    # Engines launch kernels and look for requests alike; what starts a layer of experts is their own, and says nothing
    # of the first tokens of networks without.
    assert [by_time[name] for name in ("request_iterations", "request_kernel_s")] == [[0.05, steps.HOST_DEVIATION]] * 2
    assert by_time["request_expert_s"] == [steps.REQUEST_DEVIATION] * 2


def test_first_tokens_of_unstated_versions_of_sglang_are_left_out() -> None:
    drawn = msgspec.structs.replace(SERVER, is_drawn=True)
    assert steps.informs_first_token(drawn)
    assert not steps.informs_first_token(msgspec.structs.replace(drawn, version=""))
    assert steps.informs_first_token(msgspec.structs.replace(drawn, version="", engine="vllm"))
    first_token_of, _ = simulated.FIGURES["TTFT"]
    assert first_token_of(SERVER) == SERVER.ttft_s
    assert first_token_of(msgspec.structs.replace(SERVER, version="")) is None


@pytest.mark.needs_data
def test_first_tokens_of_unstated_versions_of_sglang_contain_one_stall() -> None:
    """Ten times what the mean is above that of 0.5.9 is 69 s from 32 users on, and 2 s below, whatever the users."""
    first_s: dict[tuple[bool, int], float] = {}
    for server in published_servers(DATA):
        is_asked = (server.network, server.precision, server.output_tokens) == ("deepseek-r1", "fp4", 8192.0)
        if server.engine == "sglang" and is_asked and (not server.version or server.devices == 4):
            assert server.ttft_s is not None
            first_s[server.was_warm, server.concurrency] = server.ttft_s
    stalls_s = {users: 10 * (first_s[False, users] - first_s[True, users]) for users in (4, 8, 16, 32, 64, 128)}
    assert [stalls_s[users] for users in (32, 64, 128)] == pytest.approx([68.6] * 3, rel=0.03)
    assert [stalls_s[users] for users in (4, 8, 16)] == pytest.approx([2.2] * 3, rel=0.15)


def test_sources_differ_by_the_root_mean_square_of_their_biases() -> None:
    biases = {"a": 0.3, "b": -0.4, "c": 0.0}
    assert between_sources(biases) == pytest.approx(np.sqrt(0.25 / 3) * 2.353 / 1.645, abs=1e-3)
    assert between_sources(biases, "b") == pytest.approx(np.sqrt(0.09 / 2) * 2.920 / 1.645, abs=1e-3)


def test_sources_differ_by_less_without_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source is off by 0.1, and with experts by 0.5; of three times 0.1 and of 0.1, 0.1 and 0.5 are the means."""
    times = steps.StepTimes({("products", "bf16"): 0.001}, {("products", "bf16"): 0.001})
    experts = steps.StepTimes({("experts", "bf16"): 0.001}, {("experts", "bf16"): 0.001})
    of_source = {"a": [times], "b": [times], "c": [times, experts, experts]}
    parts: Any = [
        steps.StepParts(
            msgspec.structs.replace(SERVER, source=source),
            one, one, one, prompts_per_token=0.0, logits=1e5, prompt_launches=100, variance=0.0,
        )
        for source, decodes in of_source.items() for one in decodes
    ]  # fmt: skip
    known: list[set[str]] = []

    def fit(rest: Any, constants: EngineConstants, tolerance: float) -> EngineConstants:
        known.append({part.server.source for part in rest})
        return constants

    def predict(part: Any, fitted: EngineConstants) -> tuple[float, float]:
        return part.server.step_s * float(np.exp(0.5 if part.has_experts else 0.1)), 1.0

    monkeypatch.setattr(deviations, "fit_steps", fit)
    monkeypatch.setattr(deviations, "predict_steps", predict)
    biases = deviations.source_biases(parts, EngineConstants({}))
    assert known == [{"b", "c"}, {"a", "c"}, {"a", "b"}]
    assert biases.every == pytest.approx({"a": 0.1, "b": 0.1, "c": 0.5})
    assert biases.dense == pytest.approx({"a": 0.1, "b": 0.1, "c": 0.1})
    fitted = deviations.with_source_deviations(EngineConstants({}), biases)
    assert fitted.spread.source == pytest.approx(between_sources(biases.every))
    assert fitted.dense_spread.source == pytest.approx(0.1 * 2.353 / 1.645, abs=1e-3)
    without_c = deviations.with_source_deviations(EngineConstants({}), biases, "c")
    assert without_c.spread.source == pytest.approx(0.1 * 2.920 / 1.645, abs=1e-3)


def test_kernels_add_no_more_to_servers_of_which_several_networks_were_measured() -> None:
    """One network says nothing of another: the second of vLLM's counts, the only one of SGLang does not."""
    times = steps.StepTimes({("products", "bf16"): 0.001}, {("products", "bf16"): 0.001})
    parts: Any = [
        steps.StepParts(
            msgspec.structs.replace(SERVER, gpu="h100-sxm", engine=engine, network=network),
            times, times, times, prompts_per_token=0.0, logits=1e5, prompt_launches=100, variance=0.25,
        )
        for engine, network in (("vllm", "a"), ("vllm", "b"), ("sglang", "a"), ("sglang", "a"))
    ]  # fmt: skip
    kinds = steps.kinds_of(parts)
    assert kinds == (MeasuredServers("vllm", "h100-sxm", has_experts=False),)
    hosts = dict.fromkeys(("vllm", "sglang"), Host(0.0, 0.0, 5e-3, 1e-6, 1.5, first_token_deviation=0.01))
    known = EngineConstants({}, hosts=hosts, dense_spread=ServerSpread(0.12, 0.09), measured=kinds)
    found = [deviations.step_deviation(part, known) for part in parts]
    assert found == pytest.approx([(2 * 0.12**2 + 0.09**2) ** 0.5] * 2 + [(0.25 + 0.15**2) ** 0.5] * 2)


def test_the_host_adds_its_own_deviation_to_that_of_a_step() -> None:
    """A host of 2 ms, known to a factor of 2.5 at 90%, beside kernels of 2 ms: half of the time."""
    times = steps.StepTimes({("products", "bf16"): 0.001}, {("products", "bf16"): 0.001})
    part: Any = steps.StepParts(
        msgspec.structs.replace(SERVER, gpu="h100-sxm", engine="vllm"),
        times, times, times, prompts_per_token=0.0, logits=1e5, prompt_launches=100, variance=0.01,
    )  # fmt: skip
    host = Host(2e-3, 0.0, 5e-3, 1e-6, 1.5, first_token_deviation=0.01)
    known = EngineConstants({}, hosts={"vllm": host}, dense_spread=ServerSpread(0.1, 0.0))
    assert deviations.step_deviation(part, known) == pytest.approx(
        np.hypot(0.02**0.5, 0.5 * np.log(2.5) / 1.645), abs=1e-3
    )


def test_first_tokens_deviate_as_those_of_unseen_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every forecast of a held-out network is off by exp(0.329), of which 1.645 deviations are the 90% quantile."""
    servers = [
        msgspec.structs.replace(SERVER, network=name, is_drawn=True)
        for name in ("llama-3.1-8b", "qwen3-8b", "qwen3-8b")
    ]
    servers.append(msgspec.structs.replace(SERVER, concurrency=512))
    parts: Any = [SimpleNamespace(server=server) for server in servers]
    host = Host(1e-3, 1e-10, 5e-3, 1e-6, 1.5, first_token_deviation=0.01)
    fitted = EngineConstants({}, hosts={"sglang": host, "vllm": host})
    known: list[set[str]] = []

    def fit(rest: Any, constants: EngineConstants, tolerance: float) -> EngineConstants:
        known.append({part.server.network for part in rest})
        return constants

    monkeypatch.setattr(deviations, "fit_steps", fit)
    monkeypatch.setattr(deviations, "predict_steps", lambda part, held_out: (0.0, part.server.ttft_s * np.exp(0.329)))
    hosts = deviations.with_first_token_deviations(fitted, parts, fitted).hosts
    assert hosts["sglang"].first_token_deviation == pytest.approx(0.2, abs=1e-3)
    assert hosts["vllm"].first_token_deviation == UNKNOWN_HOST.first_token_deviation  # no server says it
    assert known == [{"qwen3-8b"}, {"llama-3.1-8b"}]


def test_first_tokens_of_one_network_deviate_as_those_of_all_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under SGLang one network is off by exp(0.1), under vLLM two by exp(0.4), of which the quantile of all is 0.4."""
    names = [("sglang", "deepseek-r1"), ("vllm", "qwen3-8b"), ("vllm", "llama-3.1-8b")]
    servers = [
        msgspec.structs.replace(SERVER, engine=engine, network=network, is_drawn=True) for engine, network in names
    ]
    parts: Any = [SimpleNamespace(server=server) for server in servers for _ in range(10)]
    host = Host(1e-3, 1e-10, 5e-3, 1e-6, 1.5, first_token_deviation=0.01)
    fitted = EngineConstants({}, hosts={"sglang": host, "vllm": host})
    errors = {"sglang": 0.1, "vllm": 0.4}

    def predict(part: Any, held_out: EngineConstants) -> tuple[float, float]:
        return 0.0, part.server.ttft_s * float(np.exp(errors[part.server.engine]))

    monkeypatch.setattr(deviations, "fit_steps", lambda rest, constants, tolerance: constants)
    monkeypatch.setattr(deviations, "predict_steps", predict)
    hosts = deviations.with_first_token_deviations(fitted, parts, fitted).hosts
    assert hosts["sglang"].first_token_deviation == pytest.approx(0.4 / 1.645, abs=1e-3)
    assert hosts["vllm"].first_token_deviation == pytest.approx(0.4 / 1.645, abs=1e-3)


# Classes -------------------------------------------------------------------------------------------------------------


def test_classes_are_fitted_apart() -> None:
    found = drawn_cells(0.1, 0.1)
    cells_of = [(Cell("pointwise", cell.gpu, cell.engine, cell.format), cell) for cell in found]
    fitted = fit_constants(cells_of[:12])
    assert set(fitted.classes) == {"pointwise"} and len(fitted.classes["pointwise"].cells) == 12
