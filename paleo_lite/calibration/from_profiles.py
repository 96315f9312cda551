"""Measurements from profiles: what one steady iteration's forward and backward kernels take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ..efficiency.contradictions import question
from ..efficiency.files import Finding, examine, find_files
from ..errors import BadProfile
from ..executor import run_files
from ..hardware import find_device
from ..profiles.detect import open_profile
from .measurements import Measurement, medians


def measure_profiles(
    paths: Iterable[Path],
    gpu: str,
    network: str,
    precision: str,
    batch_size: int | None = None,
    name_pattern: str | None = None,
    hardware_files: Iterable[Path] = (),
) -> list[Measurement]:
    """The forward and backward passes of profiles; several of one configuration become their median.

    Parameters
    ----------
    paths : iterable of Path
        Profiles and folders of them. What was run comes from their names, see `profiles.detect`.
    gpu, network, precision : str
        What was profiled; profiles whose names tell of another network are left out.
    batch_size : int, optional
        Only profiles of this batch size; and theirs, where a name does not tell.
    hardware_files : iterable of Path
        Where the device may be, too.

    Raises
    ------
    BadProfile
        If a profile cannot be read, tells of another device or precision, its batch size is unknown, or none is left.
    """
    measurements: list[Measurement] = []
    seen: set[str] = set()
    read = run_files(find_files(paths), partial(examine, name_pattern=name_pattern))
    for path, finding in sorted(read, key=lambda pair: pair[0]):
        if finding.error:
            raise BadProfile(finding.error)
        size = finding.configuration.get("batch_size", batch_size)
        if size is None:
            raise BadProfile(f"{path}: its name does not give the batch size: use --batch-size")
        own = finding.configuration.get("network", network)
        seen.add(f"{own} with batch size {size}")
        if own == network and batch_size in (None, size):
            question(open_profile(path, name_pattern), find_device(gpu, hardware_files), precision=precision)
            measurements += _passes(finding, gpu, network, precision, int(size))
    if not measurements:
        raise BadProfile(
            f"no forward or backward pass of {network}{'' if batch_size is None else f' with batch size {batch_size}'}"
            f" in these profiles: there are {', '.join(sorted(seen)) or 'none'}"
        )
    return medians(measurements)


def _passes(finding: Finding, gpu: str, network: str, precision: str, batch_size: int) -> Sequence[Measurement]:
    steady = finding.steady
    times = {} if steady is None else {"forward": steady.forward_s, "backward": steady.backward_s}
    return [
        Measurement(gpu, network, batch_size, phase, precision, seconds, source=f"profiles ({finding.format})")
        for phase, seconds in times.items()
        if seconds is not None
    ]
