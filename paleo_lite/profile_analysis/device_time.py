"""Busy and idle time of the devices of a profile, launch delays, collectives and the critical path.

Definitions follow HolisticTraceAnalysis where it has them. Computation is every kernel except collectives, copies and
fills. A device is busy while anything runs on it. The overlap of communication is the fraction of its time during which
something computes. A device waits for the host if the next event was launched after the device had become idle;
HolisticTraceAnalysis applies this to each stream, here a device is idle when all of its streams are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..profiles.names import classify
from ..profiles.table import Records
from .activity import (
    API,
    COMMUNICATION,
    COMPUTE,
    COPY,
    FILL,
    MARK,
    ActivityRecorder,
    Recording,
    covered_ns,
    positions_by_value,
)
from .collectives import CollectiveCalls, Message, collective_times, list_collectives
from .critical_path import CriticalPath, find_critical_path
from .steady import SteadyIteration

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAUSES = {
    "between_steps": "between steps",
    "host": "the host was late",
    "device": "launched in time but not started",
    "unknown": "the profile does not say why",
}
"""Causes of idle time, by the event that ended it."""

MAX_GAPS = 5
"""Number of gaps that are described."""


class Gap(msgspec.Struct, frozen=True):
    """A time during which a device was idle."""

    start_s: float  # start in seconds after the profile's first kernel, copy or collective
    time_s: float  # length in seconds
    cause: str  # one of `CAUSES`
    before: str  # the kernel that ended the gap
    host: str | None  # the host's call that covers most of the gap; None if the profile shows no long call


LARGE_IDLE_SHARE = 0.1
"""Share of the time above which a cause of idle time has its remedy named."""

REMEDIES = {
    "_SingleProcessDataLoaderIter": "the DataLoader loads in the process of the steps: `num_workers` of one or more "
    "loads the next batches meanwhile, in processes of its own (PyTorch, torch.utils.data)",
    "_MultiProcessingDataLoaderIter": "the workers of the DataLoader are too slow: more of them, or samples that take "
    "less time to decode; `paleo-lite feeding` says how many are enough",
}
"""What shortens the idle time in which the host is in a function, by a part of its name."""

LATE_HOST = (
    "the host launches kernels later than the device runs them: larger batches, or fewer launches by CUDA graphs or "
    "torch.compile(mode='reduce-overhead')"
)
"""What shortens the idle time in which the host has not yet launched the next kernel."""


class TimeBreakdown(msgspec.Struct, frozen=True):
    """Busy and idle time, summed over the devices of a profile."""

    recorded_devices: int  # devices over which times are summed
    busy_share: float  # fraction of the window during which anything ran
    window_s: float  # time from the first start to the last end on each device
    computing_s: float  # time during which a kernel computed
    # Time of collectives, overlaps counted once, and the part of it during which nothing computed.
    communication_s: float
    exposed_communication_s: float
    communication_overlap: float | None  # fraction of the communication that overlaps with computation
    exposed_copy_s: float  # time of copies during which nothing computed or communicated
    exposed_fill_s: float  # time of fills of memory during which nothing computed, communicated or copied
    idle_s: dict[str, float]  # idle time by cause (`CAUSES`)
    gaps: list[Gap]  # the longest gaps


def idle_remedies(breakdown: TimeBreakdown) -> list[str]:
    """Return a sentence on what shortens each large part of the idle time, the largest first."""
    sentences = []
    for cause, idle_s in sorted(breakdown.idle_s.items(), key=lambda item: -item[1]):
        share = idle_s / breakdown.window_s if breakdown.window_s else 0.0
        if share < LARGE_IDLE_SHARE:
            continue
        hosts = [gap.host for gap in breakdown.gaps if gap.cause == cause and gap.host]
        named = [text for part, text in REMEDIES.items() if any(part in host for host in hosts)]
        remedy = named[0] if named else LATE_HOST if cause == "host" else ""
        if remedy:
            sentences.append(f"{share:.1%} of the time the device is idle ({CAUSES[cause]}): {remedy}")
    return sentences


class LaunchQueue(msgspec.Struct, frozen=True):
    """Launch queue length of a stream: mean over all changes, and maximum."""

    device: int
    stream: int
    mean: float
    longest: int


class LaunchStatistics(msgspec.Struct, frozen=True):
    """Launch delays and launch queues."""

    launches: int  # kernels, copies and collectives with a recorded launch
    # Median and maximum of the launch delays; None if the profile records launches without the calls.
    delay_s: float | None
    longest_delay_s: float | None
    queues: list[LaunchQueue]  # queue lengths by device and stream


class DeviceTime(msgspec.Struct, frozen=True):
    """Use of time by the devices of a profile."""

    # Wall-clock time of an iteration: the median of the marked steps that count, from the end of the work before
    # it to the end of its own, else the window over the iterations; not less than the busy time of an iteration.
    step_s: float
    breakdown: TimeBreakdown  # busy and idle time
    collectives: list[CollectiveCalls]  # collectives by message
    launching: LaunchStatistics | None  # None if the profile records no launches
    # Seconds of each collective in time order, for comparison with other ranks.
    collective_times_s: dict[Message, list[float]]
    critical_path: CriticalPath  # path of the first step that counts; of the whole profile if no steps are marked

    def to_dict(self) -> dict[str, Any]:
        """Return the values of a row of `Efficiency`, with the keys `TIME_KEYS`."""
        other_figures = {name: getattr(self, name) for name in _OTHER_KEYS}
        return {**msgspec.to_builtins(self.breakdown), **msgspec.to_builtins(other_figures)}


_OTHER_KEYS = ("step_s", "collectives", "launching", "critical_path")

TIME_KEYS = (*TimeBreakdown.__struct_fields__, *_OTHER_KEYS)
"""Keys of `DeviceTime.to_dict`; a row of `Efficiency` has None for all of them if the profile has no start times."""


def analyse_device_time(
    recorder: ActivityRecorder, steady: SteadyIteration, only_counting_steps: bool
) -> DeviceTime | None:
    """Return the devices' use of time; None if the profile has no start times.

    The recorder has the events of the whole profile; `only_counting_steps` restricts the analysis to the iterations
    that count.
    """
    counting = [step.name for step in steady.steps if step.counts]
    whole_profile = recorder.recording()
    selected = recorder.recording(counting) if only_counting_steps else whole_profile
    if selected is None or whole_profile is None:
        return None
    path_step = next((name for name in counting if name in whole_profile.steps), None)
    breakdown = break_down_time(selected)
    marks = selected.calls[selected.calls["kind"] == MARK]
    counting_codes = [code for code, name in enumerate(selected.names) if name in counting]
    lengths_ns = _step_lengths_ns(whole_profile, marks[np.isin(marks["name"], counting_codes)])
    step_s = float(np.median(lengths_ns)) * 1e-9 if len(lengths_ns) else 0.0
    if not step_s:
        iterations = len(counting) if only_counting_steps else steady.iterations
        step_s = breakdown.window_s / max(iterations, 1)
        if len(counting) < steady.iterations:  # the others may be longer or shorter
            step_s = _step_distance_s(whole_profile, counting) or step_s
    step_s = max(step_s, steady.busy_s or 0.0)
    return DeviceTime(
        step_s=step_s,
        breakdown=breakdown,
        collectives=list_collectives(selected),
        launching=launch_statistics(selected),
        collective_times_s=collective_times(selected),
        critical_path=find_critical_path(whole_profile, path_step),
    )


def _step_lengths_ns(recording: Recording, marks: Records) -> NDArray[np.int64]:
    """Return the length of each marked step, from the end of the work before it to the end of its own.

    A host that runs ahead marks a step while the device still computes the one before, and ends the mark before the
    device does. The critical path begins at the same time.
    """
    events = recording.events[np.argsort(recording.events["start"], kind="stable")]
    latest_end = np.maximum.accumulate(events["end"])
    lengths: NDArray[np.int64] = marks["end"] - marks["start"]
    for position, mark in enumerate(marks):
        name = recording.names[mark["name"]]
        if name not in recording.steps:
            continue
        own = np.flatnonzero(events["step"] == recording.steps.index(name))
        if not len(own):
            continue
        before_ns = latest_end[own[0] - 1] if own[0] else mark["start"]
        end_ns = max(mark["end"], events["end"][own].max())
        lengths[position] = end_ns - max(mark["start"], before_ns)
    return lengths


def _step_distance_s(recording: Recording, counting: list[str]) -> float | None:
    """Return the median time from the first event of an iteration that counts to that of the next; None without any."""
    events = recording.events[recording.events["step"] >= 0]
    starts = np.full(len(recording.steps), np.iinfo(np.int64).max)
    np.minimum.at(starts, events["step"], events["start"])
    recorded = np.unique(events["step"])
    order = recorded[np.argsort(starts[recorded])]
    distances = [
        starts[following] - starts[code] for code, following in pairwise(order) if recording.steps[code] in counting
    ]
    return float(np.median(distances)) * 1e-9 if distances else None


def break_down_time(recording: Recording) -> TimeBreakdown:
    """Return busy and idle time, summed over the devices."""
    window_ns = busy_ns = compute_ns = communication_ns = exposed_ns = exposed_copy_ns = exposed_fill_ns = 0
    idle_ns = dict.fromkeys(CAUSES, 0)
    gaps_of_devices = []
    for _, on_device in positions_by_value(recording.events["device"]):
        events = recording.events[on_device]
        compute = events[events["lane"] == COMPUTE]
        communication = events[events["lane"] == COMMUNICATION]
        copies = events[events["lane"] == COPY]
        device_compute_ns = covered_ns(compute)
        compute_or_communication_ns = covered_ns(compute, communication)
        filled = events[events["lane"] == FILL]
        without_fills_ns = covered_ns(compute, communication, copies)
        device_busy_ns = covered_ns(compute, communication, copies, filled)
        window_ns += int(events["end"].max() - events["start"].min())
        busy_ns += device_busy_ns
        compute_ns += device_compute_ns
        communication_ns += covered_ns(communication)
        exposed_ns += compute_or_communication_ns - device_compute_ns
        exposed_copy_ns += without_fills_ns - compute_or_communication_ns
        exposed_fill_ns += device_busy_ns - without_fills_ns
        gaps = _find_gaps(events)
        for cause, length in zip(gaps["cause"], gaps["end"] - gaps["start"]):
            idle_ns[cause] += int(length)
        gaps_of_devices.append(gaps)
    all_gaps: Records = np.concatenate(gaps_of_devices)
    longest_gaps = all_gaps[np.argsort(all_gaps["start"] - all_gaps["end"], kind="stable")][:MAX_GAPS]
    window_s = window_ns * 1e-9
    communication_s = communication_ns * 1e-9
    exposed_s = exposed_ns * 1e-9
    return TimeBreakdown(
        recorded_devices=len(gaps_of_devices),
        busy_share=busy_ns * 1e-9 / window_s if window_s else 1.0,
        window_s=window_s,
        computing_s=compute_ns * 1e-9,
        communication_s=communication_s,
        exposed_communication_s=exposed_s,
        communication_overlap=1 - exposed_s / communication_s if communication_s else None,
        exposed_copy_s=exposed_copy_ns * 1e-9,
        exposed_fill_s=exposed_fill_ns * 1e-9,
        idle_s={cause: length * 1e-9 for cause, length in idle_ns.items()},
        gaps=[_describe_gap(gap, recording) for gap in longest_gaps],
    )


def _describe_gap(gap: Any, recording: Recording) -> Gap:
    names = recording.names
    calls = recording.calls
    overlap = np.minimum(calls["end"], gap["end"]) - np.maximum(calls["start"], gap["start"])
    covering = np.flatnonzero(2 * overlap > gap["end"] - gap["start"])
    host = None
    if len(covering):
        # Of nested calls the innermost is the most specific: the shortest.
        shortest = covering[np.argmin((calls["end"] - calls["start"])[covering])]
        host = names[calls["name"][shortest]]
    return Gap(
        start_s=int(gap["start"] - recording.events["start"].min()) * 1e-9,
        time_s=int(gap["end"] - gap["start"]) * 1e-9,
        cause=str(gap["cause"]),
        before=classify(names[gap["name"]]).name if gap["name"] >= 0 else "",
        host=host,
    )


_GAP = np.dtype([("start", "i8"), ("end", "i8"), ("name", "i4"), ("cause", "U13")])


def _find_gaps(events: Records) -> Records:
    """Return the idle times of one device, with the event that ended each and the cause."""
    events = events[np.argsort(events["start"], kind="stable")]
    latest_end = np.maximum.accumulate(events["end"])
    following_index = np.flatnonzero(events["start"][1:] > latest_end[:-1]) + 1
    is_latest = events["end"] == latest_end
    last_ended = np.maximum.accumulate(np.where(is_latest, np.arange(len(events)), 0))
    preceding = events[last_ended[following_index - 1]]
    following = events[following_index]
    gaps: Records = np.empty(len(following_index), _GAP)
    gaps["start"] = latest_end[following_index - 1]
    gaps["end"] = following["start"]
    gaps["name"] = following["name"]
    is_between_steps = (following["step"] != preceding["step"]) & (following["step"] >= 0)
    gaps["cause"] = np.select(
        [is_between_steps, following["launch"] < 0, following["launch"] >= gaps["start"]],
        ["between_steps", "unknown", "host"],
        "device",
    )
    return gaps


# Launch delays and queues ---------------------------------------------------------------------------------------------
#
# HolisticTraceAnalysis' definitions: the delay of an event is the time from the end of the call that launched it to its
# start, 0 if it started earlier. The queue of a stream holds the events that were launched and have not started; its
# mean is over all changes.


def launch_statistics(recording: Recording) -> LaunchStatistics | None:
    """Return launch delays and queue lengths; None if the profile records no launches."""
    events = recording.events[recording.events["launch"] >= 0]
    if not len(events):
        return None
    delays_ns = launch_delays_ns(recording, events)
    delays_ns = delays_ns[delays_ns >= 0]
    queues = []
    stream_key = (events["device"].astype(np.int64) << 32) + events["stream"]
    for _, of_stream in positions_by_value(stream_key):
        in_stream = events[of_stream]
        times = np.concatenate([in_stream["launch"], in_stream["start"]])
        changes = np.repeat([1, -1], len(in_stream))
        queue_length = np.cumsum(changes[np.argsort(times, kind="stable")])
        queues.append(
            LaunchQueue(
                device=int(in_stream["device"][0]),
                stream=int(in_stream["stream"][0]),
                mean=float(queue_length.mean()),
                longest=int(queue_length.max()),
            )
        )
    return LaunchStatistics(
        launches=len(events),
        delay_s=float(np.median(delays_ns)) * 1e-9 if len(delays_ns) else None,
        longest_delay_s=float(delays_ns.max()) * 1e-9 if len(delays_ns) else None,
        queues=queues,
    )


def launch_delays_ns(recording: Recording, events: Records) -> NDArray[np.int64]:
    """Return the launch delay of each event in nanoseconds; -1 if the launching call is not recorded."""
    calls = recording.calls[recording.calls["kind"] == API]
    if not len(calls):
        return np.full(len(events), -1)
    call = np.minimum(np.searchsorted(calls["start"], events["launch"]), len(calls) - 1)
    is_recorded = calls["start"][call] == events["launch"]
    return np.where(is_recorded, np.maximum(events["start"] - calls["end"][call], 0), -1)
