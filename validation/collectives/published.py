"""Published collectives and exchanges between devices.

A platform is a kind of machine that one source measured. Rows that cannot be used are omitted and counted by reason.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import msgspec

from paleo_lite.errors import BadFile

from ..tables import rows_of


class MeasuredPlatform(msgspec.Struct, frozen=True):
    """A kind of machine that a source measured."""

    link: str  # id of the link
    description: str
    software: str
    source: str
    is_default_for_link: bool = False  # whether the calibration applies to other machines with this link


FILES = ("allreduce_deepbench.csv", "nccl_modern.csv")

_AIC = "ai-dynamo/aiconfigurator 095f58a (Apache-2.0)"
_VIDUR = "microsoft/vidur 7d47513 (MIT)"
_DEEPBENCH = "baidu-research/DeepBench da81ba7 (Apache-2.0)"

PLATFORMS = {
    "a100-sxm": MeasuredPlatform("nvlink3-x12", "8 A100 SXM, NVSwitch", "NCCL 2.27", _AIC, True),
    "h100-sxm": MeasuredPlatform("nvlink4-x18", "8 H100 SXM, NVSwitch", "NCCL 2.29", _AIC, True),
    "h200-sxm": MeasuredPlatform("nvlink4-x18", "8 H200 SXM, NVSwitch", "NCCL 2.29", _AIC),
    "b200-sxm": MeasuredPlatform("nvlink5-x18", "8 B200 SXM, NVSwitch", "NCCL 2.29", _AIC, True),
    "gb200": MeasuredPlatform("nvlink5-x18", "4 GB200 of a rack", "NCCL 2.29", _AIC),
    # Eight devices achieve a tenth of the bandwidth of two: a property of that server, not of PCIe.
    "l40s-server": MeasuredPlatform("pcie4-x16", "8 L40S in a server", "NCCL 2.27", _AIC),
    "rtx-pro-6000-server": MeasuredPlatform("pcie5-x16", "8 RTX PRO 6000 in a server", "NCCL 2.29", _AIC, True),
    "a100-dgx": MeasuredPlatform("nvlink3-x12", "DGX A100, one node", "NCCL, version not given", _VIDUR),
    "h100-dgx": MeasuredPlatform("nvlink4-x18", "DGX H100, one node", "NCCL, version not given", _VIDUR),
    "a100-bridged": MeasuredPlatform("nvlink3-x12", "2 A100 PCIe with a bridge", "NCCL, version not given", _VIDUR),
    "h100-bridged": MeasuredPlatform(
        "nvlink4-x12", "2 H100 PCIe with a bridge", "NCCL, version not given", _VIDUR, True
    ),
    # DeepBench's README: 8 devices under two sockets, or 10 under one; InfiniBand FDR between nodes.
    "pcie3-two-sockets": MeasuredPlatform(
        "pcie3-x16", "8 TITAN X, M40 or P100 under two CPU sockets", "NCCL 2.0", _DEEPBENCH, True
    ),
    "pcie3-one-socket": MeasuredPlatform(
        "pcie3-x16", "GTX 1080 Ti or TITAN X (Pascal) under one CPU socket", "NCCL 2.0", _DEEPBENCH
    ),
    "fdr-nodes": MeasuredPlatform("infiniband-fdr", "2 and 4 nodes of PCIe devices", "NCCL 2.0", _DEEPBENCH, True),
    "omnipath-knl": MeasuredPlatform("omnipath-100", "Xeon Phi 7250, one per node", "Intel MLSL", _DEEPBENCH, True),
}
"""Platforms by the name of their file in ``calibrations/links``."""

_MODERN = {
    "a100_sxm": "a100-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "gb200": "gb200",
    "l40s": "l40s-server",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
    "a100_dgx": "a100-dgx",
    "h100_dgx": "h100-dgx",
    "a100_pairwise_nvlink": "a100-bridged",
    "h100_pairwise_nvlink": "h100-bridged",
}
_DEEPBENCH_PLATFORMS = {
    "GTX TITAN X (Maxwell)": "pcie3-two-sockets",
    "M40": "pcie3-two-sockets",
    "P100": "pcie3-two-sockets",
    "GTX 1080 Ti": "pcie3-one-socket",
    "TITAN X (Pascal)": "pcie3-one-socket",
    "Xeon Phi 7250 (KNL)": "omnipath-knl",
}
_OPERATIONS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "send_recv": "point-to-point",
}


class MeasuredExchange(msgspec.Struct, frozen=True, order=True):
    """A measured collective: message bytes per device (total bytes for an all-gather), and seconds."""

    platform: str
    operation: str
    workers: int
    message_bytes: int
    time_s: float
    device: str


class Exchanges(msgspec.Struct, frozen=True):
    """Exchanges that were read, and the number of omitted rows by reason."""

    exchanges: list[MeasuredExchange]
    left_out: dict[str, int]


def published_exchanges(folder: Path) -> Exchanges:
    """Read both files of published collectives.

    Raises
    ------
    BadFile
        If a file is missing or a row cannot be read.
    """
    left_out = Counter[str]()
    exchanges = [*_deepbench(folder / FILES[0], left_out), *_modern(folder / FILES[1], left_out)]
    return Exchanges(sorted(exchanges), dict(left_out))


def _modern(path: Path, left_out: Counter[str]) -> list[MeasuredExchange]:
    """Read NCCL collectives from aiconfigurator and Vidur."""
    exchanges = []
    for row in rows_of(path):
        try:
            workers, per_node = int(row["n_gpus"]), row["devices_per_node"]
            nodes = workers / float(per_node) if per_node else 1
            # Sizes are in fp16 elements in one source and in bytes in the other, as given in the row: interpreted as
            # bytes, a B200 would achieve half the bandwidth of an H100.
            unit = 2 if row["size_unit"].startswith("fp16 elements") else 1
            size, time_s = unit * int(row["message_size"]), float(row["value"]) / 1e3
            machine, operation = row["interconnect"], _OPERATIONS[row["collective"]]
        except (KeyError, ValueError) as error:
            raise BadFile(f"{path}: a row cannot be read ({error!r})") from None
        if nodes > 1:
            left_out["between nodes, over a network that the source does not name"] += 1
        elif machine == "a40_pairwise_nvlink":
            left_out["A40 pairs at 4 GB/s: unknown link, slower than an NVLink bridge and than PCIe"] += 1
        elif "pairwise" in machine and operation == "point-to-point":
            # The rows of both devices are identical, at up to 342 GB/s: more than either bridge's bandwidth.
            left_out["point-to-point between bridged pairs: identical rows for A100 and H100"] += 1
        elif "pairwise" in machine and workers > 2:
            left_out["four devices in bridged pairs: two kinds of links"] += 1
        elif machine not in _MODERN:
            left_out["unknown machine"] += 1
        else:
            exchanges.append(
                _checked(MeasuredExchange(_MODERN[machine], operation, workers, size, time_s, row["gpu"]), path)
            )
    return exchanges


def _deepbench(path: Path, left_out: Counter[str]) -> list[MeasuredExchange]:
    """Read DeepBench's all-reduce, which gives the time of the fastest library of each row."""
    exchanges = []
    for row in rows_of(path):
        try:
            platform, workers = _DEEPBENCH_PLATFORMS[row["gpu"]], int(row["n_gpus"])
            size, time_s = int(row["bytes"]), float(row["value"]) / 1e3
        except (KeyError, ValueError) as error:
            raise BadFile(f"{path}: a row cannot be read ({error!r})") from None
        if row["algorithm"].startswith(("Baidu", "OSU")):
            # On 16 and 32 devices, where NCCL was not measured, 67 MB take longer than 153 MB.
            left_out["library differs from that of the platform's other rows (Baidu, OSU)"] += 1
            continue
        if platform != "omnipath-knl" and workers > 8:
            platform = "fdr-nodes"
        exchanges.append(_checked(MeasuredExchange(platform, "all-reduce", workers, size, time_s, row["gpu"]), path))
    return exchanges


def _checked(exchange: MeasuredExchange, path: Path) -> MeasuredExchange:
    """Return the exchange if its workers, bytes and seconds are valid.

    Raises
    ------
    BadFile
        If they are not.
    """
    if exchange.workers < 2 or exchange.message_bytes < 1 or not 0 < exchange.time_s < math.inf:
        raise BadFile(f"{path}: a row cannot be read ({exchange})")
    return exchange
