"""Comparison of counts with torch's counter: ``python -m benchmarks.random_networks --networks 10000 --seed 0``.

Each random network is a chain of operations on images or on rows. It is determined by the seed and its number, so
``--first NUMBER --networks 1`` reproduces it. Networks are listed if their forward or backward multiply-accumulates
differ from those of `FlopCounterMode`, or if their counts do not scale from a batch of one to a batch of three.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from .timm_families import peer_counter

Step = tuple[Any, Callable[[Any, Any], Any], tuple[int, ...]]
"""A module or None, what is done with it and a tensor, and the shape that comes out."""


def images(choose: random.Random, shape: tuple[int, ...]) -> Step:
    """Draw an operation on ``(channels, height, width)``."""
    from torch import nn
    from torch.nn import functional as F

    channels, height, width = shape
    out, kernel = choose.choice((2, 4, 8)), choose.choice((1, 3))
    groups = choose.choice([number for number in (1, 2, channels) if channels % number == out % number == 0])
    same = [
        (nn.BatchNorm2d(channels), lambda m, x: m(x)), (nn.GroupNorm(1, channels), lambda m, x: m(x)),
        (nn.PReLU(), lambda m, x: m(x)), (None, lambda m, x: F.gelu(x) * x.sigmoid()),
        (None, lambda m, x: F.avg_pool2d(x, 3, 1, 1)), (None, lambda m, x: x + x.mean((2, 3), keepdim=True)),
        (None, lambda m, x: x.flip(3).roll(1, 2)), (None, lambda m, x: x.clamp(-1, 1).exp()),
        (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1)), lambda m, x: x * m(x)),
    ]  # fmt: skip
    convolved = (out, height, width)
    others: list[Step] = [
        (nn.Conv2d(channels, out, kernel, 1, kernel // 2, groups=groups), lambda m, x: m(x), convolved),
        (nn.Conv2d(channels, out, 3, 1, 2, dilation=2, bias=False), lambda m, x: m(x), convolved),
        (nn.ConvTranspose2d(channels, out, 2, 2), lambda m, x: m(x), (out, 2 * height, 2 * width)),
        (nn.Conv2d(channels, out, 2, 2), lambda m, x: m(x), (out, height // 2, width // 2)),
        (None, lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear"), (channels, 2 * height, 2 * width)),
    ]
    largest = 2 * max(height, width) > 64 or min(height, width) < 4
    if choose.random() < 0.5 or largest:
        return (*choose.choice(same), shape)
    return choose.choice(others)


def rows(choose: random.Random, shape: tuple[int, ...]) -> Step:
    """Draw an operation on ``(rows, width)``."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    many, width = shape
    out = choose.choice((4, 8, 12))
    attention = nn.MultiheadAttention(width, 2, batch_first=True)
    return choose.choice([
        (nn.Linear(width, out, bias=choose.random() < 0.5), lambda m, x: m(x), (many, out)),
        (nn.LSTM(width, out, batch_first=True), lambda m, x: m(x)[0], (many, out)),
        (nn.GRU(width, out, batch_first=True, bidirectional=True), lambda m, x: m(x)[0], (many, 2 * out)),
        (attention, lambda m, x: m(x, x, x, need_weights=False)[0], shape),
        (nn.TransformerEncoderLayer(width, 2, out, batch_first=True), lambda m, x: m(x), shape),
        (nn.LayerNorm(width), lambda m, x: m(x), shape),
        (nn.Linear(width, 3 * width), lambda m, x: F.scaled_dot_product_attention(*m(x).chunk(3, -1)), shape),
        (nn.Linear(width, width), lambda m, x: (m(x) @ x.transpose(1, 2)).softmax(-1) @ x, shape),
        (nn.Linear(width, width), lambda m, x: torch.einsum("bnd,bmd,bme->bne", m(x), x, x), shape),
        (nn.Linear(width, 1), lambda m, x: torch.baddbmm(x, m(x), x[:, :1]), shape),
        (nn.Conv1d(width, out, 3, padding=1), lambda m, x: m(x.transpose(1, 2)).transpose(1, 2), (many, out)),
        (nn.Parameter(torch.zeros(width, out)), lambda m, x: x @ m, (many, out)),
        (nn.Parameter(torch.zeros(1, 2, width)), lambda m, x: torch.cat([m.expand(len(x), -1, -1), x], 1),
         (many + 2, width)),
        (None, lambda m, x: F.silu(x) + x.cumsum(1), shape),
        (None, lambda m, x: x.sort(-1).values * x.std(-1, keepdim=True), shape),
    ])  # fmt: skip


def make(number: int, seed: int) -> tuple[Any, tuple[int, ...]]:
    """Draw a network; return it with the shape of one sample."""
    from torch import nn

    choose = random.Random(f"{seed}/{number}")
    draw = choose.choice((images, rows))
    shape = first = (choose.choice((2, 4)), 8, 12) if draw is images else (choose.randint(1, 9), choose.choice((4, 8)))
    steps = []
    for _ in range(choose.randint(1, 8)):
        step = draw(choose, shape)
        steps.append(step)
        shape = step[2]

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for place, (held, _, _) in enumerate(steps):
                setattr(self, f"step{place}", held)
            self.head = nn.Linear(shape[-1], 3)

        def forward(self, x: Any) -> Any:
            for place, (_, call, _) in enumerate(steps):
                x = call(getattr(self, f"step{place}"), x)
            return self.head(x)

    return Chain().eval(), first


def differences(number: int, seed: int) -> str:
    """Return a description of the differences, or an empty one."""
    import torch

    import paleo_lite as pl

    module, shape = make(number, seed)
    network = pl.trace(module, (1, *shape))
    counted = {phase: pl.layers(network, convention="macs", phase=phase) for phase in ("inference", "backward")}
    three = pl.layers(pl.trace(module, (3, *shape)), convention="macs", phase="backward").total
    module.to("meta")
    with peer_counter() as forward:
        result = module(torch.empty(1, *shape, device="meta"))
    with peer_counter() as backward:
        result.sum().backward()
    theirs = {"inference": forward.get_total_flops() // 2, "backward": backward.get_total_flops() // 2}
    ours = {phase: counts.total for phase, counts in counted.items()}
    sentences = [f"{phase} {ours[phase]:,} for {theirs[phase]:,}" for phase in counted if ours[phase] != theirs[phase]]
    from_one = pl.layers(network, convention="macs", phase="backward", batch_size=3).total
    sentences += [f"a batch of three {from_one:,} for {three:,}"] if from_one != three else []
    sentences += [f"not counted: {', '.join(counted['inference'].unknown)}"] if counted["inference"].unknown else []
    return "; ".join(sentences)


def main() -> int:
    """Draw the networks, count them and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from paleo_lite.architectures.torch_import import import_torch

    import_torch().set_num_threads(1)
    start, outcomes = time.perf_counter(), Counter[str]()
    for number in range(arguments.first, arguments.first + arguments.networks):
        try:
            difference = differences(number, arguments.seed)
        except Exception as error:  # any failure is listed
            difference = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        outcomes["differ" if difference else "equal"] += 1
        if difference:
            print(f"{number}: {difference}", flush=True)
    print(f"{arguments.networks:,} networks of seed {arguments.seed}, from {arguments.first}: "
          f"{outcomes['equal']:,} equal, {outcomes['differ']:,} not, {time.perf_counter() - start:.0f} s")  # fmt: skip
    return bool(outcomes["differ"])


if __name__ == "__main__":
    raise SystemExit(main())
