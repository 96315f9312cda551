"""What random tests draw, every idea once: numbers, links, models, kernels, layers, networks, and damage to files.

Values that need no argument are in capitals. No test sets a deadline or a number of examples: `conftest.py` does, and
`costly` here.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from paleo_lite.counting import CONSTANT, INPUT, KINDS, Layer
from paleo_lite.distributed.collectives import COLLECTIVES
from paleo_lite.distributed.links import LinkRate
from paleo_lite.input_pipeline.feeding import InputPipeline, Store
from paleo_lite.timing import OverlappingPppModel, PeakModel, PppModel, RooflineModel

costly = settings(max_examples=max(1, settings().max_examples // 10))
"""A decorator for a test whose single example takes long: a tenth of the examples of the profile."""

# Numbers -------------------------------------------------------------------------------------------------------------

SECONDS = st.floats(0, 1e3)
MESSAGE_BYTES = st.integers(0, 10**12)
BANDWIDTHS_BYTES_PER_S = st.floats(1e6, 1e12)
PPP = st.floats(0.01, 2)
MORE = st.floats(1, 100)
"""By how much something grows."""
WORKERS = st.integers(1, 5000)
SEVERAL_WORKERS = st.integers(2, 5000)

# Machines ------------------------------------------------------------------------------------------------------------

COLLECTIVE_NAMES = st.sampled_from(sorted(COLLECTIVES))
_PLAIN = {"latency_s": st.floats(0, 1e-2), "ppp": PPP}
PLAIN_LINKS = st.builds(LinkRate, st.just("plain"), BANDWIDTHS_BYTES_PER_S, **_PLAIN)
LINKS = st.builds(
    LinkRate,
    st.just("any"),
    BANDWIDTHS_BYTES_PER_S,
    **_PLAIN,
    start_s=st.floats(0, 1e-2),
    ramp_s=st.floats(0, 1e-3),
    switch_s=st.floats(0, 1e-2),
    small_share=st.floats(0.01, 1),
    ppp_at=st.sampled_from([(), ((2, 0.5),), ((2, 0.9), (8, 0.1), (64, 0.4))]),
)
MODELS = st.one_of(
    st.just(PeakModel()),
    st.just(RooflineModel()),
    st.builds(PppModel, ppp=PPP),
    st.builds(OverlappingPppModel, ppp=PPP),
)
FEEDINGS = st.builds(
    InputPipeline,
    device_per_s=st.floats(1e-2, 1e6),
    batch_size=st.integers(1, 1000),
    sample_bytes=st.floats(1, 1e8),
    decoded_bytes=st.floats(1, 1e8),
    store=st.sampled_from([None, Store("hdd", 150e6, 86, 150e6), Store("nvme", 3e9, 330e3, 3e9)]),
    access=st.sampled_from(["sequential", "random"]),
    workers=st.integers(1, 200),
    decode_per_worker_s=st.none() | st.floats(1, 1e5),
    link=st.just("any"),
    link_bytes_per_s=BANDWIDTHS_BYTES_PER_S,
    pinned=st.booleans(),
)


@st.composite
def _views(draw):
    from paleo_lite.questions.completion import device_ids
    from paleo_lite.questions.values import WholeNumber
    from paleo_lite.web import uploads, view, wanted

    asked = draw(st.sampled_from(list(wanted.WANTED)))
    # A few of each list, as reading a network takes a while.
    networks = uploads.NETWORKS[wanted.WANTED[asked].networks]()[::40]
    options = {}
    for name, declared in wanted.offered_options(asked).items():
        if names := view.shipped_names(asked, name):
            text = st.sampled_from(names)
        elif view.is_flag(asked, name):
            text = st.just("yes")
        elif isinstance(declared.type, WholeNumber):
            text = st.integers(1, 16).map(str)
        else:
            continue
        options[name] = st.just("") | text
    return view.View(
        asked,
        draw(st.sampled_from(networks)) if networks else "",
        tuple(draw(st.lists(st.sampled_from(device_ids()), max_size=wanted.DEVICES_AT_MOST, unique=True))),
        draw(st.fixed_dictionaries(options)),
        draw(st.sampled_from(["", *device_ids()])),
    ).normalized()


VIEWS = _views()
"""What the controls of the page ask."""

# Kernels -------------------------------------------------------------------------------------------------------------


def kernels(of):
    """Draw kernels as (start in ns, length in ns, value drawn from `of`), dense enough to overlap."""
    return st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30), of), min_size=1, max_size=40)


COUNTED_KERNELS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 10**9), *[st.none() | st.integers(0, 10**12)] * 2),
    min_size=1,
    max_size=60,
)
"""Rows of name, duration in ns, FLOPs and bytes."""


@st.composite
def nested_calls(draw):
    """Draw rows of (thread, start, end) in any order, with nested and adjacent calls on three threads."""
    rows, free = [], dict.fromkeys(range(3), 0)

    def lay_out(thread, inner, start):
        end = start
        for one in inner:
            end = lay_out(thread, one, end + 1)
        rows.append((thread, start, end + 1))
        return end + 1

    trees = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=25)
    for thread, tree in draw(st.lists(st.tuples(st.sampled_from(list(free)), trees), max_size=6)):
        free[thread] = lay_out(thread, tree, free[thread])
    return draw(st.permutations(rows))


# Layers and networks -------------------------------------------------------------------------------------------------


def behind_a_layer(kind, inputs, output, weights=(), **attributes):
    """Return a layer after a trainable layer, so that its data gradient is needed."""
    first = Layer("first", "linear", ((1, 2),), tuple(inputs[:1]), ((2, 2),), (INPUT,), 4)
    sizes = sum(int(np.prod(shape)) for shape in weights)
    parents = (0, *[CONSTANT] * (len(inputs) - 1)) if inputs else ()
    return [first, Layer("it", kind, tuple(inputs), (output,), tuple(weights), parents, sizes, attributes)]


@st.composite
def any_layer(draw, channels=None):
    """A layer of a random kind with shapes that fit it, behind another."""
    size = st.integers(1, 6)
    kind, mode = draw(st.sampled_from(sorted(KINDS))), draw(st.sampled_from(["nearest", "linear", "cubic"]))
    return layer_of_kind(kind, channels or draw(size), draw(size), draw(size), mode, draw(st.booleans()))


def layer_of_kind(kind, c=2, n=3, out=4, mode="linear", weighted=False):
    """A layer of a kind with shapes that fit it, behind another: of c channels and n positions."""
    layer = behind_a_layer
    if kind.startswith("conv"):
        rank = int(kind[-2])
        shape, weight = (1, c, *[n + 2] * rank), (out, c, *[3] * rank)
        if "transpose" in kind:
            return layer(kind, [shape], (1, weight[0], *[n + 4] * rank), [(c, weight[0], *[3] * rank)], transposed=True)
        return layer(kind, [shape], (1, weight[0], *[n] * rank), [weight, (weight[0],)])
    if kind == "linear":
        return layer(kind, [(1, n, c)], (1, n, 4), [(4, c), (4,)])
    if kind == "grouped_matmul":
        return layer(kind, [(n, c)], (n, 4), [(2, c, 4)])
    if kind == "matmul":
        return layer(kind, [(1, n, c), (1, c, 4)], (1, n, 4), inner=c)
    if kind == "attention":
        return layer(kind, [(1, n, c)] * 3, (1, n, c))
    if kind == "embedding":
        return layer(kind, [(1, n)], (1, n, c), [(10, c)])
    if kind.endswith("pool"):
        attributes = {} if "adaptive" in kind else {"kernel": [2, 2]}
        return layer(kind, [(1, c, 2 * n, 2 * n)], (1, c, n, n), **attributes)
    if kind == "interpolate":
        return layer(kind, [(1, c, n, n)], (1, c, 2 * n, 2 * n), mode=mode)
    if kind == "selective_scan":
        return layer(kind, [(1, c, n), (1, c, n), (1, 4, n), (1, 4, n), (1, c, n)], (1, c, n), [(c, 4), (c,)], states=4)
    if kind == "state_space_dual":
        return layer(kind, [(1, c, n, 2), (1, 1, n, 4), (1, 1, n, 4), (1, c, n)], (1, c, n, 2), [(c,)], chunk=2)
    if kind == "gated_delta_rule":
        return layer(kind, [(1, c, n, 4), (1, c, n, 4), (1, c, n, 2), (1, c, n), (1, c, n)], (1, c, n, 2), chunk=2)
    if kind == "glu":
        return layer(kind, [(1, 2 * c)], (1, c))
    if kind == "concat":
        return layer(kind, [(1, c, n), (1, c, n)], (1, c, 2 * n))
    if kind == "reduce":
        return layer(kind, [(1, c, n)], (1, c))
    if kind in ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "prelu") and weighted:
        return layer(kind, [(1, c, n)], (1, c, n), [(c,)])
    return layer(kind, [(1, c, n)], (1, c, n))


@st.composite
def small_networks(draw):
    """A torch module in evaluation mode, and the shape of its input.

    Up to five layers of convolution (transposed or not), norm, activation and pooling; then a linear one.
    """
    from torch import nn

    channels = draw(st.sampled_from([2, 4]))
    shape = (channels, *[draw(st.integers(6, 12))] * 2)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 5))):
        out = draw(st.sampled_from([2, 4, 6]))
        kind = draw(st.sampled_from(["conv", "transposed", "norm", "relu", "pool"]))
        bias = draw(st.booleans())
        if kind == "conv":
            kernel, stride = draw(st.sampled_from([1, 3])), draw(st.integers(1, 2))
            layers.append(nn.Conv2d(channels, out, kernel, stride, 1, bias=bias))
            channels = out
        elif kind == "transposed":
            layers.append(nn.ConvTranspose2d(channels, out, 2, 2, bias=bias))
            channels = out
        elif kind == "norm":
            layers.append(nn.BatchNorm2d(channels))
        else:
            layers.append(nn.ReLU() if kind == "relu" else nn.AvgPool2d(2, 1, 1))
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 5, bias=draw(st.booleans()))]
    return nn.Sequential(*layers).eval(), (draw(st.integers(1, 3)), *shape)


# Files, damaged or in pieces -----------------------------------------------------------------------------------------

# A position in a file of any size, as a multiple of 2**-24 of its length: Hypothesis draws such integers uniformly.
_PLACE_BITS = 24
PLACES = st.integers(0, 2**_PLACE_BITS - 1)
CUTS = st.lists(PLACES, max_size=6)


def at(place, length):
    """The byte or row, from 0 to the length, that a place of `PLACES` is."""
    return place * (length + 1) >> _PLACE_BITS


def pieces(cuts, length):
    """Where each piece of a table begins and ends that was cut at places of `CUTS`."""
    return list(pairwise(sorted({0, length, *(at(place, length) for place in cuts)})))


# What readers stumble over: marks of CSV, JSON, XML and prototxt, numbers that are none, and bytes that are no text.
_MARKS = [bytes([mark]) for mark in b"\"',;:#\\\t\n\r -<>{}[]"]
_WORDS = [
    b"nan", b"-1", b"1e308", b"1e999", b"inf", b"0x1", b"1.5", b"9" * 19, b"9" * 400, b"null", b"\0", b"\xff\xfe",
    b"\xef\xbb\xbf", b"&a;", b"},{", b"==7== ", "µs".encode(), b"%", b"---  ---", b"Name", b"</profile_xml>",
]  # fmt: skip
_NEW = st.binary(max_size=8) | st.sampled_from(_MARKS) | st.sampled_from(_WORDS)

_IN_PLACE = ("cut", "overwrite", "flip")  # a file that is full of offsets is read no further after any other accident
_KINDS = (*_IN_PLACE, "drop", "repeat", "insert", "replace", "splice")


def _accidents(kinds):
    one = st.tuples(st.sampled_from(kinds), PLACES, PLACES, st.integers(0, 90), _NEW)
    return st.lists(one, min_size=1, max_size=5)


ACCIDENTS = _accidents(_KINDS) | _accidents(_IN_PLACE)
"""What happens to a file, for `damaged`."""


def damaged(raw, happened, other=None):
    """Draw a file with several kinds of damage; `other` is a file whose end may replace its own."""
    for kind, place, second, length, new in happened:
        begin = at(place, len(raw))
        if kind == "cut":
            raw = raw[:begin]
        elif kind == "drop":
            raw = raw[:begin] + raw[begin + length :]
        elif kind == "repeat":
            again = at(second, len(raw))
            raw = raw[:begin] + raw[again : again + length] + raw[begin:]
        elif kind == "insert":
            raw = raw[:begin] + new + raw[begin:]
        elif kind == "replace":
            raw = raw[:begin] + new + raw[begin + length :]
        elif kind == "splice":
            source = raw if other is None else other
            raw = raw[:begin] + source[at(second, len(source)) :]
        elif kind == "overwrite":
            raw = raw[:begin] + new + raw[begin + len(new) :]
        elif kind == "flip" and begin < len(raw):
            raw = raw[:begin] + bytes([raw[begin] ^ (1 << length % 8)]) + raw[begin + 1 :]
    return raw
