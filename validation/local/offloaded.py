"""Forecasts of networks of which a part is in the memory of the host, beside speeds that people published.

``python -m validation compare offloaded`` prints them. Nothing was fitted to these rows. `host` says whether the source
names the processor of the host.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from paleo_lite.architectures import find_network
from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.machines import find_device
from paleo_lite.own_machines.contents import read_contents
from paleo_lite.own_machines.placement import place
from paleo_lite.own_machines.predict import OFFLOAD_DEVIATION, device_token_s, host_token_s
from paleo_lite.own_machines.step import DEVIATIONS_AT_90, local_constants
from paleo_lite.reporting.document import Column, Document, Table

from ..comparisons import describe_errors
from ..tables import rows_of

PUBLISHED = Path(__file__).parent / "offloaded.csv"


def predict_rate(line: dict[str, str]) -> float:
    """Return the forecast of tokens per second of a row."""
    device, cpu = find_device(line["device"]), find_device(line["cpu"])
    contents = read_contents(find_network(line["network"]), line["weights"])
    placed = place(contents, int(line["gpu_layers"]), int(line["cpu_expert_blocks"]), False)
    backends = local_constants().backends
    of_device = backends[LOCAL_ENGINES["llama.cpp"].backend_of(device, line["backend"])]
    context = int(line["context"]) + int(line["tokens"]) / 2
    device_s = device_token_s(contents, placed, device, of_device, context)
    return 1 / (device_s + host_token_s(contents, placed, cpu, backends["cpu"], context))


class Offloaded(msgspec.Struct, frozen=True):
    """A published speed and its forecast, in tokens per second."""

    network: str
    device: str
    cpu: str
    host: str  # whether the source names the processor
    measured_per_s: float
    rate_per_s: float

    @property
    def error(self) -> float:
        """Forecast over measured speed, minus 1."""
        return self.rate_per_s / self.measured_per_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the 90% interval contains the measured speed."""
        return bool(abs(np.log(self.rate_per_s / self.measured_per_s)) <= DEVIATIONS_AT_90 * OFFLOAD_DEVIATION)


def offloaded_speeds() -> list[Offloaded]:
    """Return all published speeds with their forecasts."""
    return [
        Offloaded(
            line["network"], line["device"], line["cpu"], line["host"], float(line["tokens_per_s"]), predict_rate(line)
        )
        for line in rows_of(PUBLISHED)
    ]


def compare_page(data: Path | None) -> Document:
    """Return the page of the speeds, and of the errors of those with a named and with an assumed processor."""
    speeds = offloaded_speeds()
    by_host = {
        "processor named": [speed for speed in speeds if speed.host.startswith("named")],
        "processor assumed": [speed for speed in speeds if not speed.host.startswith("named")],
    }
    columns = [
        Column("network", "network", left=True),
        Column("device", "device", left=True),
        Column("cpu", "processor", left=True),
        Column("measured_per_s", "measured\ntokens/s", "{:.1f}".format),
        Column("rate_per_s", "forecast\ntokens/s", "{:.1f}".format),
        Column("host", "host", left=True),
    ]
    return Document(
        f"Partly or wholly in the memory of the host: {describe_errors(speeds)}",
        [(name, describe_errors(speeds_of_host)) for name, speeds_of_host in by_host.items()],
        [Table("Tokens per second of answers", columns, [msgspec.structs.asdict(speed) for speed in speeds])],
    )
