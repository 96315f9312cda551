"""Comparison of counts with torch's counter for every model of timm: ``python -m benchmarks.timm_families``.

Models are built and counted on the meta device, without weights, at batch size 1. Models are listed if they cannot be
counted, or if their parameters or forward or backward multiply-accumulates differ from those of `FlopCounterMode`. The
counter's rule for the backward pass of a convolution is replaced, because it is too large by the number of groups.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

COLUMNS = ("models", "counted", "refused", "parameters equal", "forward", "equal", "backward", "equal")


class Row(NamedTuple):
    """Result for a model: numbers of multiply-accumulates, None if a counter failed."""

    name: str
    family: str
    refused: str = ""
    forward: int | None = None
    backward: int | None = None
    parameters_equal: bool = False
    peer_forward: int | None = None
    peer_backward: int | None = None
    seconds: float = 0.0
    peer_seconds: float = 0.0
    notes: tuple[str, ...] = ()


def _backward_of_convolution(gradient: Any, x: Any, weight: Any, *rest: Any, out_shape: Any = None, **_: Any) -> int:
    """Return the FLOPs of the backward pass: each required gradient costs as much as the forward pass."""
    transposed, mask = rest[4], rest[7]
    return 2 * prod(x if transposed else gradient) * prod(weight[1:]) * sum(mask[:2])


def peer_counter() -> Any:
    """Count with torch's counter."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    rules = {torch.ops.aten.convolution_backward: _backward_of_convolution}
    return FlopCounterMode(display=False, custom_mapping=rules)


def _peer(module: Any, x: Any, backward: bool) -> tuple[int | None, int | None]:
    import torch

    forward = None
    try:
        with peer_counter() as counter:
            result = module(x)
            forward = counter.get_total_flops() // 2
            if not backward:
                return forward, None
            results = [result] if isinstance(result, torch.Tensor) else torch.utils._pytree.tree_leaves(result)
            sum(tensor.sum() for tensor in results if isinstance(tensor, torch.Tensor)).backward()
            return forward, counter.get_total_flops() // 2 - forward
    except Exception:  # the other counter failed; the table shows no count
        return forward, None


def count_model(name: str, backward: bool) -> Row:
    """Count a model with both counters."""
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision()
    import timm
    import torch

    import paleo_lite as pl
    from paleo_lite.errors import PaleoError

    torch.set_num_threads(1)
    family = str(timm.models._registry._model_to_module[name])
    try:
        with torch.device("meta"):
            module = timm.create_model(name)
    except Exception:  # some constructors compute with values
        module = timm.create_model(name).to("meta")
    module.eval()
    shape = (1, *module.default_cfg.get("input_size", (3, 224, 224)))
    row, start = Row(name, family), time.perf_counter()
    try:
        network = pl.trace(module, shape)
        totals = {phase: pl.layers(network, convention="macs", phase=phase) for phase in ("inference", "backward")}
        row = row._replace(
            forward=totals["inference"].total, backward=totals["backward"].total, notes=totals["inference"].notes,
            parameters_equal=network.parameters == sum(parameter.numel() for parameter in module.parameters()),
        )  # fmt: skip
    except PaleoError as error:
        row = row._replace(refused=str(error))
    seconds, start = time.perf_counter() - start, time.perf_counter()
    peer_forward, peer_backward = _peer(module, torch.empty(shape, device="meta"), backward)
    peer_seconds = time.perf_counter() - start
    return row._replace(
        peer_forward=peer_forward,
        peer_backward=peer_backward,
        seconds=seconds,
        peer_seconds=peer_seconds,
    )


def table(rows: list[Row]) -> str:
    """Return a Markdown table by family, and lists of differences, failures and notes."""
    families = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    lines = [f"| family | {' | '.join(COLUMNS)} |", "|:--" + "|--:" * len(COLUMNS) + "|"]
    for family, members in [*sorted(families.items()), ("all", rows)]:
        lines.append(f"| {family} | {' | '.join(str(number) for number in _numbers(members))} |")
    for row in rows:
        for part in ("forward", "backward"):
            ours, theirs = getattr(row, part), getattr(row, f"peer_{part}")
            if ours is not None and theirs is not None and ours != theirs:
                more = f"{ours / max(theirs, 1) - 1:+.2%}"
                lines.append(f"\n{row.name} {part}: {ours:,}, FlopCounterMode {theirs:,} ({more})")
        if row.refused:
            lines.append(f"\n{row.name}: {row.refused}")
    notes = Counter(note for row in rows for note in row.notes)
    lines += [f"\n{number} x {note}" for note, number in notes.most_common()]
    slow = max(rows, key=lambda row: row.seconds)
    lines.append(f"\nslowest: {slow.name}, {slow.seconds:.1f} s; all {sum(row.seconds for row in rows):.0f} s, "
                 f"FlopCounterMode {sum(row.peer_seconds for row in rows):.0f} s")  # fmt: skip
    return "\n".join(lines)


def _numbers(rows: list[Row]) -> list[int]:
    ahead = [row for row in rows if row.forward is not None and row.peer_forward is not None]
    back = [row for row in rows if row.backward is not None and row.peer_backward is not None]
    return [
        len(rows), sum(row.forward is not None for row in rows), sum(bool(row.refused) for row in rows),
        sum(row.parameters_equal for row in rows), len(ahead), sum(row.forward == row.peer_forward for row in ahead),
        len(back), sum(row.backward == row.peer_backward for row in back),
    ]  # fmt: skip


def main() -> None:
    """Count the models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help="or a pattern of timm's; all, unless named")
    parser.add_argument("--per-family", type=int, metavar="N", help="only the N with the shortest names of each family")
    parser.add_argument("--forward", action="store_true", help="without the peer's backward pass, which takes long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="a line of JSON for each model; goes on from there")
    arguments = parser.parse_args()
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision()
    import timm

    names = [name for pattern in arguments.names or ["*"] for name in timm.list_models(pattern)]
    if arguments.per_family:
        of = timm.models._registry._model_to_module
        ranked = sorted(names, key=lambda name: (len(name), name))
        chosen = {f: [name for name in ranked if of[name] == f][: arguments.per_family] for f in {of[n] for n in names}}
        names = sorted(name for members in chosen.values() for name in members)
    lines = arguments.rows.read_text().splitlines() if arguments.rows and arguments.rows.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    counted = {row.name for row in rows}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(
            partial(count_model, backward=not arguments.forward), [n for n in names if n not in counted]
        ):
            rows.append(row)
            print(f"{len(rows)}/{len(names)} {row.name}", flush=True)
            if arguments.rows:
                with arguments.rows.open("a") as file:
                    file.write(json.dumps(row._asdict()) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
