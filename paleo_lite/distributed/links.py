"""From what people call a link to its `LinkRate`: a name of the registry, a calibrated platform, or ``25 GB/s``."""

from __future__ import annotations

import re

import msgspec

from ..errors import AmbiguousName, BadQuantity, BadValue, UnknownName
from ..hardware import Device, Link, read_links
from ..hardware.registry import key
from ..units import parse_quantity
from .collectives import LinkRate
from .link_calibration import link_rate_of, shipped_link_calibrations

_RATE = re.compile(r"[-+.]?\d[\d.]*(e[-+]?\d+)?(\s+[^x×\s].*|[a-z]*(/s|bps))?|.*/s", re.IGNORECASE)
_SEVERAL = re.compile(r"(\d{1,9})\s*[xX×]\s+(.*\S)")


def link_rate(name_or_link: str | Link | LinkRate, ppp: float | None = None, operation: str = "all-reduce") -> LinkRate:
    """The rate of a link.

    Parameters
    ----------
    name_or_link : str, Link or LinkRate
        A link of ``hardware/links.toml`` by id, alias or name, with what a shipped calibration that stands for it has
        measured, if any; a shipped calibration by name; a rate of one direction, such as ``"20 Gbit/s"``; or several
        of these side by side: ``"8x infiniband-hdr"``.
    ppp : float, optional
        The share of the data sheet's bandwidth that is reached; calibrations are not used then.
    operation : str
        What it is used for, one of `OPERATIONS`: calibrations differ.
    """
    if isinstance(name_or_link, LinkRate):
        rate = name_or_link
    elif isinstance(name_or_link, Link):
        rate = _sheet_rate(name_or_link.name, name_or_link)
    else:
        rate = _named(name_or_link.strip(), operation, calibrated=ppp is None)
    if ppp is None:
        return rate
    label = f"{rate.label}, PPP as given"
    return LinkRate(rate.name, rate.bandwidth_bytes_per_s, rate.latency_s, ppp, label, per=rate.per)


def _named(text: str, operation: str, calibrated: bool) -> LinkRate:
    several = _SEVERAL.fullmatch(text)
    if several:
        count, one = int(several[1]), _named(several[2], operation, calibrated)
        if count < 1:
            raise BadValue(f"{text!r}: links side by side must be 1 or more")
        return msgspec.structs.replace(
            one,
            name=f"{count}x {one.name}",
            bandwidth_bytes_per_s=count * one.bandwidth_bytes_per_s,
            per=f"{count} {one.per}s" if one.per else "",
        )
    if _RATE.fullmatch(text):
        return LinkRate(text, parse_rate(text), label="given", kind="network")
    calibrations = shipped_link_calibrations()
    if text in calibrations:
        identity, named = calibrations[text].link, {text: calibrations[text]}
    else:
        identity = find_link(text)[0]
        named = {name: fit for name, fit in calibrations.items() if fit.link == identity and fit.stands_for_link}
    for name, fit in named.items():
        rate = link_rate_of(name, fit, operation) if calibrated else None
        if rate is not None:
            return msgspec.structs.replace(rate, per=read_links().link[identity].per)
    return _sheet_rate(identity, read_links().link[identity])


def parse_rate(text: str) -> float:
    """Bytes per second from ``"25 GB/s"`` or ``"20 Gbit/s"``.

    Raises
    ------
    BadQuantity
        If it is neither.
    BadValue
        If it is not above 0.
    """
    form = "expected one with its unit, such as '25 GB/s' or '20 Gbit/s'"
    if not text.endswith(("/s", "bps")):
        raise BadQuantity(f"{text!r} is not the rate of a link: {form}")
    for unit, per_byte in (("B/s", 1), ("bit/s", 8)):
        try:
            rate = parse_quantity(text, unit) / per_byte
        except BadQuantity:
            continue
        if not rate > 0:
            raise BadValue(f"a link needs a rate above 0, not {text!r}")
        return rate
    raise BadQuantity(f"{text!r} is not the rate of a link: {form}")


def find_link(name: str) -> tuple[str, Link]:
    """The id and link that a name means: an id, else an alias or name, else PALEO's name of a link without ``paleo-``.

    Raises
    ------
    UnknownName, AmbiguousName
        If no link, or more than one, is called that.
    """
    links = read_links().link
    if name in links:
        return name, links[name]
    wanted = key(name)
    matches = [
        identity
        for identity, link in links.items()
        if wanted in {key(known) for known in (identity, link.name, *link.aliases)}
    ]
    matches = matches or [identity for identity in links if identity == f"paleo-{name.lower()}"]
    if len(matches) == 1:
        return matches[0], links[matches[0]]
    candidates = matches or [identity for identity in links if wanted and key(identity).startswith(wanted)]
    if candidates:
        raise AmbiguousName("link", name, candidates)
    known = [*links, *shipped_link_calibrations()]
    raise UnknownName("link", name, known, "'paleo-lite hardware links' shows all; '25 GB/s' is a link as well.")


def lanes_note(rate: LinkRate, device: Device) -> str | None:
    """That a link is one lane of several that the device has; None where it is not."""
    whole = [attached.link for attached in device.links if attached.link.startswith(f"{rate.name}-x")]
    if rate.per != "lane" or not whole:
        return None
    count = whole[0].removeprefix(f"{rate.name}-x")
    return f"{rate.name} is one lane of the {count} that {device.name} has: --link {whole[0]} is all of them"


def _sheet_rate(identity: str, link: Link) -> LinkRate:
    latency_s = parse_quantity(link.latency.value, "s") if link.latency else 0.0
    return LinkRate(identity, link.bandwidth_bytes_per_s, latency_s, kind=link.kind, per=link.per)
