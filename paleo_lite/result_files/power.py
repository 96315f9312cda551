"""Logs of power: nvidia-smi, dcgmi, rocm-smi and amd-smi, tegrastats, powermetrics, Zeus and CodeCarbon.

A row is a device over the whole log: mean, lowest and highest power, and the mean while it was busy, which is from the
middle of the two upwards unless the log itself has a utilization.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .text import UNITS, all_lines, find_lines, mean, product, ratio, read_table, split_csv, to_number

_BUSY_SHARE = 0.5
STEADY_RATIO = 1.2
"""A log whose highest sample is no more above its lowest one has no idle time."""


class _Trace:
    """Sums over the samples of one device; a log of days has too many samples to keep."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_w = self.high_w = self.high_clock = 0.0
        self.low_w = float("inf")
        self.histogram: dict[float, tuple[int, float]] = {}  # samples and their sum, by watts of three digits
        self.busy_sum_w, self.busy_count, self.has_utilisation = 0.0, 0, False
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.name: str | None = None
        self.limit_w: float | None = None
        self.energies_j: list[float] = []

    def add(self, watts: float | None, time_s: float | None = None, utilisation: float | None = None) -> None:
        """Add a sample."""
        if time_s is not None:
            self.first_s = time_s if self.first_s is None else self.first_s
            self.last_s = time_s
        if watts is None:
            return
        self.count += 1
        self.sum_w += watts
        self.low_w, self.high_w = min(self.low_w, watts), max(self.high_w, watts)
        rounded = float(f"{watts:.3g}")
        count, total = self.histogram.get(rounded, (0, 0.0))
        self.histogram[rounded] = (count + 1, total + watts)
        if utilisation is not None:
            self.has_utilisation = True
            if utilisation > _BUSY_SHARE:
                self.busy_sum_w += watts
                self.busy_count += 1

    def busy_w(self) -> float | None:
        """Return the mean of the samples in which the device was busy; None where it always drew the same."""
        if self.has_utilisation:
            return ratio(self.busy_sum_w, float(self.busy_count))
        if self.high_w <= STEADY_RATIO * self.low_w:
            return None
        middle = (self.low_w + self.high_w) / 2
        busy = [pair for watts, pair in self.histogram.items() if watts >= middle]
        return ratio(sum(total for _, total in busy), float(sum(count for count, _ in busy)))


def _add_traces(traces: dict[str, _Trace], findings: Findings) -> None:
    """Add a row for each device."""
    for device, trace in traces.items():
        if not trace.count and not trace.energies_j:
            if trace.first_s is not None or trace.name:
                place = f"device {device}" if device else "the device"
                findings.doubt(f"the log has no number for the power of {place}, which is left out")
            continue
        duration_s = None if trace.first_s is None or trace.last_s is None else trace.last_s - trace.first_s
        energy_j = trace.energies_j[-1] - trace.energies_j[0] if len(trace.energies_j) > 1 else None
        average_w = trace.sum_w / trace.count if trace.count else None
        findings.add(
            "power",
            device=device or None,
            gpu=trace.name,
            power_limit_w=trace.limit_w,
            samples=trace.count or None,
            duration_s=duration_s or None,
            power_w=average_w,
            power_low_w=trace.low_w if trace.count else None,
            power_high_w=trace.high_w if trace.count else None,
            power_busy_w=trace.busy_w() if trace.count else None,
            energy_j=energy_j if energy_j is not None else product(average_w, duration_s) or None,
            clock_hz=trace.high_clock or None,
        )
    names = {trace.name for trace in traces.values() if trace.name}
    if len(names) == 1:
        findings.record(gpu=names.pop())


POWER_COLUMNS = ("power.draw", "power.draw.average", "power.draw.instant")
"""Columns of power in a log of nvidia-smi, the preferred one first; the unit follows in brackets."""

_SMI_HEADING = re.compile(
    r"^\ufeff?(?:[\w.]+(?: \[[\w%]+\])?, ?)*power\.draw(?:\.\w+)?(?: \[W\])?(?:,|\s*$)", re.MULTILINE
)
_SMI_BARE = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+, .*?\d+(?:\.\d*)? W\b", re.MULTILINE)
_TIMES = ("%Y/%m/%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f")


def _time_of(text: str | None) -> float | None:
    """Return the seconds of a timestamp; None for any other text."""
    for form in _TIMES:
        try:
            return datetime.strptime((text or "").strip(), form).timestamp()
        except (ValueError, OverflowError):
            continue
    return None


def _quantity(text: str | None) -> float | None:
    """Return the number of a cell such as ``22.89 W`` or ``[N/A]``."""
    return to_number((text or "").strip().split(" ")[0])


def read_nvidia_smi(path: Path, findings: Findings) -> None:
    """Read `nvidia-smi --query-gpu=... --format=csv`; rows of several GPUs follow each other."""
    traces: dict[str, _Trace] = {}
    shifted = False
    for row in _smi_rows(path):
        power = next((row[name] for name in POWER_COLUMNS if name in row), None)
        index, other = row.get("index", ""), row.get("gpu", row.get("id", ""))
        # A log that labels its columns itself may count devices in a column before.
        if other.isdigit() and other != index:
            shifted = shifted or bool(index)
            index = other
        device = index or row.get("uuid") or row.get("pci.bus_id") or ""
        trace = traces.setdefault(device, _Trace())
        percent = _quantity(row.get("utilization.gpu"))
        trace.add(_quantity(power), _time_of(row.get("timestamp")), None if percent is None else percent / 100)
        trace.name = trace.name or row.get("name") or row.get("gpu_name")
        trace.limit_w = _quantity(row.get("power.limit")) or trace.limit_w
        clock = _quantity(row.get("clocks.sm", row.get("clocks.current.sm", row.get("clocks.gr"))))
        trace.high_clock = max(trace.high_clock, (clock or 0.0) * UNITS["MHz"])
    _add_traces(traces, findings)
    if shifted:
        findings.doubt(
            "the heading is shifted against the rows (index is the same everywhere): devices are told by `gpu`"
        )
    if any(trace.high_w <= STEADY_RATIO * trace.low_w for trace in traces.values() if trace.count):
        findings.doubt("the power hardly changes: an idle device, or a log of the plateau only")
    findings.doubt(
        "power.draw is the mean of a second on GA100 and later, and of 25 to 100 ms before; what ran is not in the log"
    )


def _smi_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows by column, also of a log without heading."""
    names: list[str] = []
    for line in all_lines(path):
        cells = split_csv(line)
        if any(re.split(r"[ \[]", cell)[0] in POWER_COLUMNS for cell in cells):
            names = [cell.split(" [")[0] for cell in cells]
        elif not names and _SMI_BARE.match(line):
            watts = next((cell for cell in cells if re.fullmatch(r"\d+(?:\.\d*)? W", cell)), "")
            yield {"timestamp": cells[0], "power.draw": watts, "index": cells[1] if cells[1].isdigit() else ""}
        elif names and len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))


_DCGM_HEADING = re.compile(r"^\s*#\s*Entity\s+(.*)$", re.MULTILINE)
_DCGM_ROW = re.compile(r"^\s*(?:GPU|MIG|GPU-I)\s+(\S+)\s+(.*)$")


def read_dcgmi(path: Path, findings: Findings) -> None:
    """Read `dcgmi dmon`, whose headings are repeated."""
    traces: dict[str, _Trace] = {}
    names: list[str] = []
    activity: dict[str, list[float]] = {}
    for line in all_lines(path):
        if heading := _DCGM_HEADING.match(line):
            names = heading[1].split()
        elif names and (row := _DCGM_ROW.match(line)):
            cells = dict(zip(names, row[2].split(), strict=False))
            trace = traces.setdefault(row[1], _Trace())
            trace.add(to_number(cells.get("POWER", cells.get("POWR"))))
            energy = to_number(cells.get("TOTEC"))
            if energy is not None:
                trace.energies_j = [*trace.energies_j[:1], energy * UNITS["mJ"]]
            trace.high_clock = max(trace.high_clock, (to_number(cells.get("SMCLK")) or 0.0) * UNITS["MHz"])
            for name in ("TENSO", "DRAMA", "SMACT", "FP32A"):
                if (share := to_number(cells.get(name))) is not None and len(activity.get(name, ())) < 10**6:
                    activity.setdefault(name, []).append(share)
    _add_traces(traces, findings)
    findings.record(**{_DCGM_FACTS[name]: mean(shares) for name, shares in activity.items()})


_DMON_HEADING = re.compile(r"^#\s*(?:Date\s+)?(?:Time\s+)?gpu\s+pwr\b", re.MULTILINE)


def read_dmon(path: Path, findings: Findings) -> None:
    """Read `nvidia-smi dmon`, whose headings are repeated."""
    traces: dict[str, _Trace] = {}
    names: list[str] = []
    for line in all_lines(path):
        if _DMON_HEADING.match(line):
            names = line.lstrip("# ").split()
            continue
        cells = line.split()
        if line.startswith("#") or len(cells) != len(names):
            continue
        row = dict(zip(names, cells, strict=True))
        percent = to_number(row.get("sm"))
        trace = traces.setdefault(row.get("gpu", ""), _Trace())
        trace.add(to_number(row.get("pwr")), None, None if percent is None else percent / 100)
        trace.high_clock = max(trace.high_clock, (to_number(row.get("pclk")) or 0.0) * UNITS["MHz"])
    _add_traces(traces, findings)


_DCGM_FACTS = {
    "TENSO": "tensor_active",
    "DRAMA": "memory_active",
    "SMACT": "multiprocessors_active",
    "FP32A": "fp32_active",
}

_ROCM_LINE = re.compile(
    r"^\s*GPU\[(\d{1,15})\]\s*: (?:Average|Current)[\w ]*Power \(W\): (\d+(?:\.\d*)?)", re.MULTILINE
)


def read_rocm_text(path: Path, findings: Findings) -> None:
    """Read what `rocm-smi --showpower` prints, once for each call."""
    traces: dict[str, _Trace] = {}
    for line in find_lines(path, ("Power (W): ",), findings):
        match = _ROCM_LINE.match(line)
        if match:
            traces.setdefault(f"card{match[1]}", _Trace()).add(float(match[2]))
    _add_traces(traces, findings)
    _doubt_snapshot(traces, findings)


_ROCM_POWER = re.compile(r"(?:Average|Current)(?: Socket)? (?:Graphics Package|Package) Power \(W\)|Socket Power \(W\)")


def read_rocm_json(path: Path, findings: Findings) -> None:
    """Read `rocm-smi --json`, one object for each call."""
    traces: dict[str, _Trace] = {}
    for document in read_documents(path, findings):
        for card, values in document.items():
            if not isinstance(values, dict) or not card.startswith("card"):
                continue
            power = next((value for key, value in values.items() if _ROCM_POWER.search(key)), None)
            percent = to_number(values.get("GPU use (%)"))
            trace = traces.setdefault(card, _Trace())
            trace.add(to_number(power), None, None if percent is None else percent / 100)
            trace.limit_w = to_number(values.get("Max Graphics Package Power (W)")) or trace.limit_w
            trace.name = (
                trace.name or values.get("Card Series") or values.get("Card series") or values.get("Device Name")
            )
    _add_traces(traces, findings)
    _doubt_snapshot(traces, findings)


def _doubt_snapshot(traces: dict[str, _Trace], findings: Findings) -> None:
    if traces and all(trace.count <= 1 for trace in traces.values()):
        idle = all(trace.has_utilisation and not trace.busy_count for trace in traces.values())
        of_idle = " of an idle device" if idle else ""
        findings.doubt(f"a single reading{of_idle} says nothing about the power under load")


def read_rocm_csv(path: Path, findings: Findings) -> None:
    """Read `rocm-smi --csv`, whose table is repeated."""
    traces: dict[str, _Trace] = {}
    for row in read_table(path, re.compile(r"^\ufeff?device,|^timestamp,.*device,")):
        power = next((value for key, value in row.items() if _ROCM_POWER.search(key)), None)
        percent = to_number(row.get("GPU use (%)"))
        traces.setdefault(row.get("device", ""), _Trace()).add(
            to_number(power), None, None if percent is None else percent / 100
        )
    _add_traces(traces, findings)
    _doubt_snapshot(traces, findings)


def read_amd_smi(path: Path, findings: Findings) -> None:
    """Read the JSON of `amd-smi metric`."""
    traces: dict[str, _Trace] = {}
    for document in read_documents(path, findings):
        listed = document.get("gpu_data")
        for gpu in listed if isinstance(listed, list) else [document]:
            power = dig(gpu, "power", "socket_power")
            watts = to_number(power["value"] if isinstance(power, dict) and "value" in power else power)
            percent = to_number(dig(gpu, "usage", "gfx_activity", "value"))
            trace = traces.setdefault(str(dig(gpu, "gpu")), _Trace())
            trace.add(watts, None, None if percent is None else percent / 100)
    _add_traces(traces, findings)
    _doubt_snapshot(traces, findings)


_RAIL = re.compile(r"\b((?:VDD|VIN|POM|VDDQ|CPU|GPU|SOC|CV|SYS)[A-Z0-9_]*) (\d{1,15})(?:mW)?/(\d{1,15})(?:mW)?")
_WHOLE = ("VDD_IN", "VIN", "VIN_SYS_5V0", "POM_5V_IN")


def read_tegrastats(path: Path, findings: Findings) -> None:
    """Read tegrastats, which writes the present and the mean milliwatts of each rail: the first is taken."""
    traces: dict[str, _Trace] = {}
    for line in find_lines(path, ("GR3D_FREQ", "VDD_", "VIN"), findings):
        for rail, now_mw, _ in _RAIL.findall(line):
            traces.setdefault(rail, _Trace()).add(float(now_mw) * UNITS["mW"])
    module_rails = [rail for rail in _WHOLE if rail in traces]
    _add_traces(dict(sorted(traces.items(), key=lambda item: item[0] not in module_rails)), findings)
    findings.doubt(
        f"{module_rails[0]} is the whole module; the other rails are parts of it"
        if module_rails
        else "no rail is that of the whole module"
    )


_POWERMETRICS = re.compile(
    r"^(CPU|GPU|ANE|DRAM|Combined|Package) Power(?: \(CPU \+ GPU \+ ANE\))?: (\d{1,15}) mW", re.MULTILINE
)


def read_powermetrics(path: Path, findings: Findings) -> None:
    """Read powermetrics of macOS; with two samplers it prints the GPU twice in a sample."""
    traces: dict[str, _Trace] = {}
    sampled_parts: set[str] = set()
    for line in find_lines(path, (" Power", "Sampled system activity"), findings):
        if "Sampled system activity" in line:
            sampled_parts = set()
        match = _POWERMETRICS.match(line)
        if match and match[1] not in sampled_parts:
            sampled_parts.add(match[1])
            traces.setdefault(match[1], _Trace()).add(float(match[2]) * UNITS["mW"])
    _add_traces(traces, findings)
    findings.doubt("estimates of the chip itself, without its memory")


_ZEUS = re.compile(r"^\ufeff?start_time,window_name,elapsed_time,(?:gpu|cpu)\d+_energy", re.MULTILINE)
_ZEUS_TRACE = re.compile(r"^\ufeff?dataset,network,batch_size,optimizer,power_limit,", re.MULTILINE)


def read_zeus(path: Path, findings: Findings) -> None:
    """Read the windows of the Zeus monitor: joules from the counters of the devices."""
    for row in read_table(path, _ZEUS):
        elapsed = to_number(row.get("elapsed_time"))
        for name, value in row.items():
            if name.endswith("_energy") and (energy := to_number(value)) is not None:
                findings.add("power", label=row.get("window_name"), device=name.removesuffix("_energy"),
                             duration_s=elapsed, energy_j=energy, power_w=ratio(energy, elapsed))  # fmt: skip
    findings.doubt("windows below a tenth of a second are shorter than the counter's steps")


def read_zeus_trace(path: Path, findings: Findings) -> None:
    """Read the trace of Zeus' paper: seconds of an epoch and watts under power limits."""
    named = re.search(r"_([a-z]+\d+\w*)\.csv$", path.name)
    if named:
        findings.guess("the name of the file", gpu=named[1])
    for row in read_table(path, _ZEUS_TRACE):
        findings.add(
            "power",
            network=row.get("network"),
            dataset=row.get("dataset"),
            variant=row.get("optimizer"),
            batch_size=to_number(row.get("batch_size")),
            power_limit_w=to_number(row.get("power_limit")),
            time_s=to_number(row.get("time_per_epoch")),
            power_w=to_number(row.get("average_power")),
            energy_j=product(to_number(row.get("time_per_epoch")), to_number(row.get("average_power"))),
        )
    findings.doubt("the time is that of an epoch of the data set")


_CARBON = re.compile(r"^\ufeff?\s*timestamp\s*,.*\b(?:gpu_energy|emissions|energy_consumed)\b", re.MULTILINE)


def read_codecarbon(path: Path, findings: Findings) -> None:
    """Read `emissions.csv` of CodeCarbon: kilowatt-hours of a run, of all visible GPUs together."""
    for row in read_table(path, _CARBON):
        seconds = to_number(row.get("duration"))
        kwh = to_number(row.get("gpu_energy"))
        energy_j = None if kwh is None else kwh * UNITS["kWh"]
        findings.record(gpu=row.get("gpu_model"), cpu=row.get("cpu_model"))
        findings.version = findings.version or row.get("codecarbon_version", "")
        if energy_j is not None:
            findings.add("power", label=row.get("project_name"), gpu=row.get("gpu_model"), device="all GPUs",
                         duration_s=seconds, energy_j=energy_j, power_w=ratio(energy_j, seconds))  # fmt: skip
        if kwh is None:  # versions that only add up
            total_kwh = to_number(row.get("energy_consumed"))
            total_j = None if total_kwh is None else total_kwh * UNITS["kWh"]
            findings.add("power", label=row.get("project_name"), device="all", duration_s=seconds, energy_j=total_j,
                         power_w=ratio(total_j, seconds))  # fmt: skip
        cpu = to_number(row.get("cpu_energy"))
        cpu_j = None if cpu is None else cpu * UNITS["kWh"]
        findings.add("power", label=row.get("project_name"), device="CPU", duration_s=seconds, energy_j=cpu_j,
                     power_w=ratio(cpu_j, seconds))  # fmt: skip
    findings.doubt(
        "the energy is that of the whole run, with loading and waiting, of all GPUs that are visible; the CPU's is "
        "often its rated power times a load"
    )


_ENERGY_TABLE = re.compile(r"^\ufeff?metric,value\s*$\n(?s:.*)^[\w ]+energy \(kWh\)", re.MULTILINE | re.IGNORECASE)


def read_energy_table(path: Path, findings: Findings) -> None:
    """Read a table of metrics and values with kilowatt-hours, such as a summary made from CodeCarbon."""
    values: dict[str, Any] = {}
    for line in all_lines(path):
        cells = split_csv(line)
        if len(cells) == 2:
            values[cells[0].lower()] = cells[1]
    findings.record(network=values.get("model benchmarked"))
    tokens = to_number(values.get("total output tokens"))
    for device in ("gpu", "cpu", "ram"):
        kwh = to_number(values.get(f"{device} energy (kwh)"))
        energy_j = None if kwh is None else kwh * UNITS["kWh"]
        findings.add(
            "power",
            device=device.upper(),
            output_tokens=tokens,
            energy_j=energy_j,
            energy_per_token_j=ratio(energy_j, tokens) if device == "gpu" else None,
        )
    findings.doubt("no duration is recorded, so the power is unknown")


FORMATS = (
    ResultFormat(
        "nvidia-smi", "nvidia-smi", "the CSV of nvidia-smi", read_nvidia_smi,
        sign=re.compile(f"{_SMI_HEADING.pattern}|{_SMI_BARE.pattern}", re.MULTILINE),
    ),
    ResultFormat(
        "dcgmi", "dcgmi dmon", "what `dcgmi dmon` prints", read_dcgmi,
        sign=re.compile(r"^\s*#\s*Entity\s+.*\b(?:POWER|TOTEC|SMCLK|TENSO|DRAMA)\b", re.MULTILINE),
    ),
    ResultFormat(
        "rocm-smi", "rocm-smi", "rocm-smi and amd-smi", read_rocm_json,
        sign=re.compile(r'"card\d+": ?\{[^}]*Power \(W\)"'),
    ),
    ResultFormat(
        "nvidia-smi-dmon", "nvidia-smi dmon", "what `nvidia-smi dmon` prints", read_dmon, sign=_DMON_HEADING,
    ),
    ResultFormat(
        "rocm-smi-text", "rocm-smi", "", read_rocm_text, sign=_ROCM_LINE, markers=("Power (W): ",),
    ),
    ResultFormat(
        "rocm-smi-csv", "rocm-smi", "", read_rocm_csv,
        sign=re.compile(r"^\ufeff?(?:timestamp,)?device,.*Power \(W\)", re.MULTILINE),
    ),
    ResultFormat("amd-smi", "amd-smi", "", read_amd_smi, keys=("gpu", "power", "socket_power")),
    ResultFormat(
        "tegrastats", "tegrastats", "tegrastats of Jetson", read_tegrastats,
        sign=re.compile(r"RAM \d+/\d+MB .*\b(?:VDD|VIN|POM)\w* \d+(?:mW)?/\d+"), markers=("GR3D_FREQ",),
    ),
    ResultFormat(
        "powermetrics", "powermetrics", "powermetrics of macOS", read_powermetrics, sign=_POWERMETRICS,
        markers=(" Power: ",),
    ),
    ResultFormat("zeus", "Zeus", "windows of the Zeus monitor", read_zeus, sign=_ZEUS),
    ResultFormat("zeus-trace", "Zeus", "", read_zeus_trace, sign=_ZEUS_TRACE),
    ResultFormat("codecarbon", "CodeCarbon", "`emissions.csv` of CodeCarbon", read_codecarbon, sign=_CARBON),
    ResultFormat("energy-table", "a summary of energy", "", read_energy_table, sign=_ENERGY_TABLE),
)  # fmt: skip
