"""Readers of published tables of kernels of inference engines: aiconfigurator's, by device, engine and format.

Every table becomes cells: the measurements of one class of kernels on one device, under one engine, in one format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paleo_lite.distributed.links import LinkRate, device_link, link_rate
from paleo_lite.engines.constants import Cell
from paleo_lite.engines.exchanges import EXCHANGE_MODES
from paleo_lite.engines.formulas import KernelRates
from paleo_lite.engines.kernel_formats import kernel_rates
from paleo_lite.engines.records import KERNELS
from paleo_lite.engines.routing import expert_load
from paleo_lite.errors import UnknownPrecision
from paleo_lite.machines import find_device

if TYPE_CHECKING:
    import pandas as pd

DEVICES = {
    "a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200", "l40s": "l40s",
    "b60": "arc-pro-b60", "b300_sxm": "b300", "gb200": "gb200", "gb300": "gb300",
    "rtx_pro_6000_server": "rtx-pro-6000",
    "A100 SXM4 80GB": "a100-sxm-80gb", "B300": "b300", "B200": "b200", "H100 SXM5 80GB": "h100-sxm", "L40S": "l40s",
    "NVIDIA GB200": "gb200", "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
}  # fmt: skip
"""Devices of the tables, in the names of paleo-lite."""

ENGINES = {"trtllm": "tensorrt-llm", "sglang": "sglang", "vllm": "vllm", "TensorRT-LLM torch_flow": "tensorrt-llm"}

PRODUCT_FORMATS = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4", "int8_wo": "int8", "int4_wo": "int4",
    "sq": "w8a8",
}  # fmt: skip

EXPERT_FORMATS = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4", "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4-mxfp8",
}  # fmt: skip

FALLBACK_KERNELS = ("Triton", "Fp8BlockScaledMM")
"""Kernels of fp8 in blocks that vLLM's table timed without captured graphs, or that a server uses only as fallbacks."""

SHARED_EXPERTS = "oaitriton"
"""Part of the name of OpenAI's kernels of experts in mxfp4, which vLLM's table timed on Hopper.

SGLang's servers launch them there as well (`ServerArgs`, `moe_runner_backend`). Its own table has Triton's kernels for
16 bits, which take as long as reading four times the bytes does. Those of an L40S are of the same kernel, and stay:
what servers launch there is not known, and without them an RTX PRO 6000 would be forecast faster than a B200.
"""

MINORITY = 0.2
"""Kernels that make less than this share of a cell are fallbacks for unusual shapes, and are left out."""


class TimedKernels(NamedTuple):
    """Measurements of a cell.

    Attributes
    ----------
    cell : Cell
        Class of kernels, device, engine and format.
    shapes : dict of str to ndarray
        Arguments of the formula of the class, with those of its record of sizes.
    rates : KernelRates or None
        Rates of the device; None for communication.
    time_s : ndarray
        Measured seconds.
    """

    cell: Cell
    shapes: dict[str, Any]
    rates: KernelRates | None
    time_s: Any


def published_kernels(data: Path) -> list[TimedKernels]:
    """Return the cells of all tables in a folder of data."""
    cells: list[TimedKernels] = []
    for read in READERS:
        cells += read(data)
    return cells


def _has_rates(gpu: str, form: str) -> bool:
    """Return whether a device has a peak in the precision of a format; fp8 on an Arc Pro B60 is converted."""
    try:
        kernel_rates(find_device(gpu), form)
    except UnknownPrecision:
        return False
    return True


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    frame = pd.read_csv(path, low_memory=False)
    if "framework" in frame.columns:
        frame = frame.rename(columns={"framework": "engine"})
    frame["gpu"] = frame["gpu"].map(DEVICES)
    if "engine" in frame.columns:
        frame["engine"] = frame["engine"].map(lambda name: ENGINES.get(name, name))
    return frame


def _groups(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    for key, group in frame.groupby(list(columns), sort=True):
        yield tuple(str(part) for part in key), group


def _without_fallbacks(group: pd.DataFrame, column: str) -> pd.DataFrame:
    shares = group[column].value_counts(normalize=True)
    common = shares[shares >= min(MINORITY, shares.max())].index
    return group[group[column].isin(common)]


def _product_rows(data: Path) -> pd.DataFrame:
    """Return the rows of all tables of products, of each device from the largest table only."""
    import pandas as pd

    main = _read(data / "engines/gemm.csv.gz")
    main = main[~main.kernel_source.str.contains("|".join(FALLBACK_KERNELS))]
    more = _read(data / "modern/gemm_more_frameworks.csv.gz")
    more = more.rename(columns={"dtype": "gemm_dtype", "time_ms": "latency"})
    more = more[~more.gpu.isin(main.gpu.unique())]
    modern = _read(data / "measured/gemm_modern.csv")
    modern = modern.rename(columns={"precision": "gemm_dtype", "value": "latency", "M": "m", "N": "n", "K": "k"})
    modern = modern[~modern.gpu.isin(main.gpu.unique()) & modern.gpu.notna()]
    return pd.concat([main, more, modern])


def products(data: Path) -> Iterator[TimedKernels]:
    """Read matrix products."""
    frame = _product_rows(data)
    frame["format"] = frame.gemm_dtype.map(PRODUCT_FORMATS)
    for (gpu, engine, name), group in _groups(frame, "gpu", "engine", "format"):
        if not _has_rates(gpu, name):
            continue
        rates, weight_bytes, operand_bytes = kernel_rates(find_device(gpu), name)
        shapes = {size: group[size].to_numpy(float) for size in ("m", "n", "k")}
        shapes |= {"weight_bytes": weight_bytes, "operand_bytes": operand_bytes}
        yield TimedKernels(Cell("products", gpu, engine, name), shapes, rates, group.latency.to_numpy() * 1e-3)


def _expert_rows(data: Path) -> pd.DataFrame:
    """Return the rows of the table of experts, with the kernels that two engines share under both."""
    import pandas as pd

    frame = _read(data / "engines/moe.csv.gz")
    shared = frame[frame.kernel_source.str.contains(SHARED_EXPERTS)].assign(engine="sglang")
    replaced = (frame.engine == "sglang") & (frame.moe_dtype == "w4a16_mxfp4") & frame.gpu.isin(shared.gpu.unique())
    return pd.concat([frame[~replaced], shared], ignore_index=True)


def experts(data: Path) -> Iterator[TimedKernels]:
    """Read layers of experts."""
    frame = _expert_rows(data)
    frame["format"] = frame.moe_dtype.map(EXPERT_FORMATS)
    for (gpu, engine, name), all_rows in _groups(frame, "gpu", "engine", "format"):
        if not _has_rates(gpu, name):
            continue
        group = _without_fallbacks(all_rows, "kernel_source")
        rates, weight_bytes, operand_bytes = kernel_rates(find_device(gpu), name)
        alpha = group.distribution.map(lambda text: 0.0 if text == "balanced" else float(text.rpartition("_")[2]))
        rows, distinct = np.empty(len(group)), np.empty(len(group))
        tokens = group.num_tokens.to_numpy(float)
        settings = group[["topk", "num_experts", "moe_ep_size"]].assign(alpha=alpha)
        for (active, count, ranks, exponent), places in settings.groupby(list(settings.columns)).indices.items():
            load = expert_load(
                tokens[places],
                active=int(active),
                experts=int(count),
                ranks=int(ranks),
                alpha=exponent,
                is_random=False,
            )
            rows[places], distinct[places] = load.rows, load.distinct
        shapes = {
            "tokens": tokens,
            "rows": rows,
            "distinct": distinct,
            "active": group.topk.to_numpy(float),
            "hidden_size": group.hidden_size.to_numpy(float),
            "inner_size": group.inter_size.to_numpy(float) / group.moe_tp_size.to_numpy(float),
            "matrices": np.where(group.kernel_source.str.contains("nongated"), 2.0, 3.0),
            "weight_bytes": weight_bytes,
            "operand_bytes": operand_bytes,
        }
        yield TimedKernels(Cell("experts", gpu, engine, name), shapes, rates, group.latency.to_numpy() * 1e-3)


def attention_pairs(length: Any, window: Any, cached: Any = 0) -> Any:
    """Return the pairs of a query and a key under a causal mask, within a window (0: unlimited)."""
    full = length * cached + length * (length + 1) / 2
    inside = np.minimum(length, np.maximum(window - cached, 0))
    limited = inside * cached + inside * (inside + 1) / 2 + (length - inside) * window
    return np.where((window > 0) & (length + cached > window), limited, full)


_CACHE_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
_DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}


def _attention_format(group: pd.DataFrame, dtype: str) -> tuple[str, float, Any]:
    """Return format, bytes of the cache, and precision of the arithmetic of rows that are alike."""
    arithmetic, cache = group[dtype].iloc[0], group.kv_cache_dtype.iloc[0]
    return f"{_DTYPES[arithmetic]}/{_DTYPES[cache]}", _CACHE_BYTES[cache], _DTYPES[arithmetic]


def grouped_attention(data: Path) -> Iterator[TimedKernels]:
    """Read attention of prompts and of decoding.

    Of engines with two kernels of decoding, rows whose heads of queries all have keys of their own are a table as well;
    the other kernel keeps the whole one, without a part of which it is forecast no better on other devices.
    """
    import pandas as pd

    modern = _read(data / "modern/attention_modern.csv.gz")
    names = {
        "kernel": "kernel_source", "batch": "batch_size", "heads": "num_heads", "kv_heads": "num_key_value_heads",
        "window": "window_size", "dtype": "attn_dtype", "kv_dtype": "kv_cache_dtype", "time_ms": "latency",
    }  # fmt: skip
    modern = modern.rename(columns=names)
    modern = modern[modern.gpu == "b300"]
    for phase, name, file in (
        ("context", "prompt attention", "attention_context"),
        ("decode", "decode attention", "attention_generation"),
    ):
        frame = _read(data / f"engines/{file}.csv.gz")
        added = modern[modern.phase == phase]
        added = added.assign(isl=added.q_len, step=added.kv_len - 1)
        frame = pd.concat([frame, added])
        for (gpu, engine, _, _), all_rows in _groups(frame, "gpu", "engine", "attn_dtype", "kv_cache_dtype"):
            group = _without_fallbacks(all_rows, "kernel_source")
            form, cache_bytes, precision = _attention_format(group, "attn_dtype")
            rates, _, _ = kernel_rates(find_device(gpu), precision)
            size = group.head_dim.to_numpy(float)
            window = group.window_size.fillna(0).to_numpy(float)
            shapes = {
                "sequences": group.batch_size.to_numpy(float),
                "heads": group.num_heads.to_numpy(float),
                "kv_heads": group.num_key_value_heads.to_numpy(float),
                "key_size": size,
                "value_size": size,
                "cache_bytes": cache_bytes,
            }
            if phase == "context":
                length = group.isl.to_numpy(float)
                shapes |= {"length": length, "pairs": attention_pairs(length, window)}
            else:
                keys = group.step.to_numpy(float) + 1
                shapes["keys"] = np.where(window > 0, np.minimum(keys, window), keys)
            timed = TimedKernels(Cell(name, gpu, engine, form), shapes, rates, group.latency.to_numpy() * 1e-3)
            yield timed
            if phase == "decode" and KERNELS[engine].has_single_decode:
                is_single = shapes["heads"] == shapes["kv_heads"]
                yield _rows_of(timed, is_single)._replace(cell=Cell(f"single {name}", gpu, engine, form))


def _rows_of(timed: TimedKernels, chosen: Any) -> TimedKernels:
    """Return some of the rows of a table."""
    shapes = {name: value[chosen] if np.ndim(value) else value for name, value in timed.shapes.items()}
    return timed._replace(shapes=shapes, time_s=timed.time_s[chosen])


LATENT_RANK, LATENT_ROTARY, PLAIN_SIZE, VALUE_SIZE = 512, 64, 128, 128
"""Sizes of DeepSeek's latent attention: the latent vector, the rotated part, and the rest of a head's key and value."""


def latent_attention(data: Path) -> Iterator[TimedKernels]:
    """Read latent attention: prompts with keys and values of every head, decoding against latent vectors."""
    for phase, name in (("context", "latent prompt attention"), ("generation", "latent decode attention")):
        frame = _read(data / f"engines/mla_{phase}.csv.gz")
        for (gpu, engine, _, _), group in _groups(frame, "gpu", "engine", "mla_dtype", "kv_cache_dtype"):
            form, cache_bytes, precision = _attention_format(group, "mla_dtype")
            rates, _, _ = kernel_rates(find_device(gpu), precision)
            heads = group.num_heads.to_numpy(float)
            shapes = {"sequences": group.batch_size.to_numpy(float), "heads": heads, "cache_bytes": cache_bytes}
            if phase == "context":
                length = group.isl.to_numpy(float)
                shapes |= {"length": length, "pairs": attention_pairs(length, np.zeros(len(group)))}
                shapes |= {"kv_heads": heads, "key_size": float(PLAIN_SIZE + LATENT_ROTARY), "value_size": VALUE_SIZE}
            else:
                shapes |= {"keys": group.step.to_numpy(float) + 1, "kv_heads": np.ones(len(group))}
                shapes |= {"key_size": float(LATENT_RANK + LATENT_ROTARY), "value_size": 0.0}
            yield TimedKernels(Cell(name, gpu, engine, form), shapes, rates, group.latency.to_numpy() * 1e-3)


def fastest_link(gpu: str) -> LinkRate:
    """Return the fastest links of a device."""
    return link_rate(device_link(find_device(gpu)))


def all_reduces(data: Path) -> Iterator[TimedKernels]:
    """Read the engines' own all-reduces in captured graphs."""
    frame = _read(data / "engines/all_reduce.csv.gz")
    frame = frame[~frame.kernel_source.str.contains("eager")]
    for (gpu, engine), group in _groups(frame, "gpu", "engine"):
        link = fastest_link(gpu)
        shapes = {
            "ranks": group.num_gpus.to_numpy(float),
            "message_bytes": group.message_size.to_numpy(float) * 2,
            "link_bytes_per_s": link.bandwidth_bytes_per_s,
            "sums_in_switch": link.sums_in_switch,
        }
        yield TimedKernels(Cell("all-reduce", gpu, engine, "bf16"), shapes, None, group.latency.to_numpy() * 1e-3)


def expert_exchanges(data: Path) -> Iterator[TimedKernels]:
    """Read the dispatch and combination of tokens by DeepEP's kernels, apart for its normal and its low-latency mode.

    Normal kernels are timed with several numbers of multiprocessors, of which the fastest counts. Between nodes they
    begin with an exchange of the numbers of tokens, which belongs to the time.
    """
    import pandas as pd

    tables = _read(data / "engines/moe_all_to_all.csv.gz")
    tables = tables[~tables.comm_backend.str.contains("v2")]
    tables["mode"] = np.where(tables.comm_backend.str.endswith("_ll"), "low-latency", "normal")
    tables["dispatched"] = tables.comm_dtype.map(
        {"bfloat16": 2.0, "default": 2.0, "fp8": 1.0, "nvfp4": 0.5625, "fp4": 2.0}
    )
    tables["seconds"] = tables.latency * 1e-6
    keys = [
        "gpu", "engine", "phase", "mode", "ep_size", "node_num", "hidden_size", "topk", "num_tokens", "dispatched",
    ]  # fmt: skip
    frames = [tables[[*keys, "seconds"]]]
    for file, mode, columns in (
        ("deepep_low_latency", "low-latency", ("{}_avg_t_us",)),
        ("deepep_normal", "normal", ("{}_transmit_us", "{}_notify_us")),
    ):
        frame = _read(data / f"engines/{file}.csv.gz")
        if mode == "normal":
            frame = frame[frame.node_num <= MOST_NORMAL_NODES]
        for phase, width in (("dispatch", 1.0), ("combine", 2.0)):
            seconds = sum(frame[column.format(phase)] for column in columns) * 1e-6
            frames.append(pd.DataFrame({
                "gpu": frame.gpu, "engine": frame.engine, "phase": phase, "mode": mode,
                "ep_size": DEVICES_PER_NODE * frame.node_num, "node_num": frame.node_num,
                "hidden_size": frame.hidden_size, "topk": frame.num_topk, "num_tokens": frame.num_token,
                "dispatched": width, "seconds": seconds,
            }))  # fmt: skip
    fastest = pd.concat(frames).groupby(keys, as_index=False).seconds.min()
    for (gpu, engine, phase, mode), group in _groups(fastest, "gpu", "engine", "phase", "mode"):
        copies, prefix = EXCHANGE_MODES[mode]
        nodes = group.node_num.to_numpy(float)
        sent = copies(group.topk.to_numpy(float), group.ep_size.to_numpy(float), nodes)
        width = group.dispatched.to_numpy(float) if phase == "dispatch" else 2.0
        tokens_bytes = group.num_tokens.to_numpy(float) * group.hidden_size.to_numpy(float) * width
        shapes = {
            "sent_bytes": sent.inside * tokens_bytes,
            "node_bytes": sent.between * tokens_bytes,
            "nodes": nodes,
            "link_bytes_per_s": fastest_link(gpu).bandwidth_bytes_per_s,
            "node_link_bytes_per_s": NODE_LINK_BYTES_PER_S,
        }
        cell = Cell("expert exchange", gpu, engine, f"{prefix}{phase}")
        yield TimedKernels(cell, shapes, None, group.seconds.to_numpy())


DEVICES_PER_NODE = 8
"""Devices of the nodes of DeepEP's tables."""

NODE_LINK_BYTES_PER_S = 50e9
"""One port of 400 Gbit/s per device between nodes, as DeepEP's tables state."""

MOST_NORMAL_NODES = 4
"""Most nodes of the tables of normal kernels that are read.

On eight, to four of which each token's experts are limited, they reach 17 GB/s of a port, after 43 and 47 GB/s on two
and four. DeepEP states 51 GB/s there, of which 7/8 cross the network (docs/legacy.md): settings are to blame.
"""


POINTWISE_DEVICES = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H200": "h200-sxm",
    "NVIDIA GB200": "gb200",
}  # fmt: skip

SHORT_BYTES = 1e5
"""Products that move less than this many bytes take the time of the shortest kernel."""


def pointwise(data: Path) -> Iterator[TimedKernels]:
    """Read kernels that only move numbers: norms of Liger and cuDNN, and products so small that only bytes count."""
    import pandas as pd

    liger = pd.read_csv(data / "modern/elementwise_norm_liger.csv")
    is_norm = liger.kernel.isin(("rms_norm", "layer_norm")) & liger.provider.str.startswith("liger")
    liger = liger[is_norm & (liger["mode"] == "forward")]
    rows = liger.config.str.extract(r'"M": (\d+)')[0].astype(float)
    width = np.where(liger.config.str.contains("float32"), 4.0, 2.0)
    frames = [
        pd.DataFrame({"gpu": liger.gpu, "bytes": 2 * rows * liger.swept_value * width, "seconds": liger.time_ms * 1e-3})
    ]
    cudnn = pd.read_csv(data / "modern/norms_cudnn.csv")
    cudnn = cudnn[(cudnn["pass"] == "forward") & (cudnn.backend == "cudnn")]
    cudnn = cudnn.assign(bytes=4.0 * cudnn["rows"] * cudnn["columns"], seconds=cudnn.time_ms * 1e-3)
    frames.append(cudnn[["gpu", "bytes", "seconds"]])
    norms = pd.concat(frames)
    norms["gpu"] = norms.gpu.map(POINTWISE_DEVICES)
    small = _product_rows(data)
    small = small[small.gemm_dtype == "bfloat16"]
    small = small.assign(
        bytes=2 * (small.m * small.n + small.m * small.k + small.n * small.k), seconds=small.latency * 1e-3
    )
    frame = pd.concat([norms, small[small.bytes < SHORT_BYTES][["gpu", "engine", "bytes", "seconds"]]])
    for (gpu,), group in _groups(frame, "gpu"):
        rates, _, _ = kernel_rates(find_device(gpu), "bf16")
        shapes = {"moved_bytes": group.bytes.to_numpy(float)}
        yield TimedKernels(Cell("pointwise", gpu, "vllm", "bf16"), shapes, rates, group.seconds.to_numpy())


READERS: tuple[Callable[[Path], Iterator[TimedKernels]], ...] = (
    products, experts, grouped_attention, latent_attention, all_reduces, expert_exchanges, pointwise,
)  # fmt: skip
"""Readers of all tables."""
