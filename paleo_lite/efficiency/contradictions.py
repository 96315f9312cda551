"""What in a profile speaks against what it is said to be: another device, network or precision."""

from __future__ import annotations

import re

from ..errors import BadProfile
from ..hardware import Device
from ..hardware.registry import key
from ..profiles.detect import Profile
from ..profiles.evidence import FAMILY, KEPLER_ENDS, Evidence, evidence_of


def contradictions(
    evidence: Evidence, device: Device | None = None, network: str | None = None, precision: str | None = None
) -> list[str]:
    """Each piece of evidence against the claim, as the end of a sentence that begins with the profile.

    Parameters
    ----------
    network, precision : str, optional
        What is claimed; what is left out is not questioned.
    """
    against = []
    told = evidence.configuration
    if network is not None and told.get("network", network) != network:
        against.append(f"its name tells of {told['network']}, not of {network}")
    if precision is not None:
        named = told.get("compute_precision", precision)
        if named != precision:
            against.append(f"its name tells of {named}, not of {precision}")
        elif evidence.precision is not None and evidence.precision != FAMILY.get(precision, evidence.precision):
            family = {"half": "half precision"}.get(evidence.precision, evidence.precision)
            against.append(f"its kernels multiply in {family}, by their names, not in {precision}")
    if device is not None:
        against += _device(evidence, device)
    return against


def question(
    profile: Profile, device: Device | None = None, network: str | None = None, precision: str | None = None
) -> None:
    """Refuse a profile that tells of something else than is claimed.

    Raises
    ------
    BadProfile
        If something in it speaks against the claim, or it cannot be read.
    """
    against = contradictions(evidence_of(profile), device, network, precision)
    if against:
        raise BadProfile(f"{profile.path}: {'; '.join(against)}")


def doubts(evidence: Evidence, device: Device) -> list[str]:
    """What an analysis against the peaks of a device should say first: that the profile is of another."""
    return [f"{text}: shares of peak are of the wrong peak" for text in _device(evidence, device)]


def _device(evidence: Evidence, device: Device) -> list[str]:
    keys = [key(name) for name in (device.id, device.name, *device.aliases)]
    if evidence.gpus and not any(_model(name) in known for name in evidence.gpus for known in keys):
        return [f"it was taken on {', '.join(evidence.gpus)}, not on {device.name}"]
    if not re.fullmatch(r"\d+\.\d+", device.capability):  # only NVIDIA's are numbers
        return []
    own = float(device.capability)
    if evidence.capability is not None and evidence.capability[0] > own:
        least, kernel = evidence.capability
        return [f"its kernel {kernel[:60]} needs compute capability {least:g}, {device.name} has {own:g}"]
    if evidence.kepler and own >= KEPLER_ENDS:
        return [f"its kernel {evidence.kepler[:60]} is one of Kepler's, {device.name} is {device.architecture}"]
    return []


def _model(name: str) -> str:
    """The first word of a GPU's name that has a digit: what variants of one model share."""
    words = re.findall(r"[a-z]*\d[a-z0-9]*", name.lower())
    return words[0] if words else key(name)
