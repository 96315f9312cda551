"""One row per shipped network and pipeline, for lists of them.

Counting all of them takes seconds, so their rows are shipped in ``models/listing/rows.json``, each with a digest of the
files it was counted from. A network whose file is new or has changed is counted. To write the rows again::

    python -m paleo_lite.architectures.listing
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ..counting import count
from ..files import read_typed, shipped_folder, write_atomically
from .catalog import find_network, find_network_name, is_network_file, network_names
from .pipelines.records import Pipeline, pipelines
from .pipelines.sampling import make_sampling, part_runs, path_of_part

FILE = Path("listing") / "rows.json"
_MAX_FILE_BYTES = 2**22


class ListedNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The row of a network or pipeline in a list.

    Input shape, MACs and FLOPs are those of one sample; of a pipeline those of one picture or video with all steps.
    """

    group: str
    name: str
    input_shape: list[int]
    layers: int
    parameters: int
    active_parameters: int
    publisher: str | None
    year: int | None
    macs: int
    flops: int
    source: str


class _Shipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row with the digest of the files it was counted from."""

    digest: str
    row: ListedNetwork


def network_rows(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return one row per network, by name or file, with the fields of `ListedNetwork`."""
    return [msgspec.structs.asdict(_network_row(name)) for name in names]


def pipeline_rows() -> list[dict[str, Any]]:
    """Return one row per shipped pipeline, with the fields of `ListedNetwork`."""
    return [msgspec.structs.asdict(_pipeline_row(pipeline)) for pipeline in pipelines().values()]


def _network_row(name: str) -> ListedNetwork:
    if is_network_file(name):
        return row_of_network(name)
    shipped_name = find_network_name(name)
    shipped = _shipped_rows().get(shipped_name)
    if shipped is None or shipped.digest != _digest_of_network(shipped_name):
        return row_of_network(shipped_name)
    return shipped.row


def _pipeline_row(pipeline: Pipeline) -> ListedNetwork:
    shipped = _shipped_rows().get(pipeline.name)
    if shipped is None or shipped.digest != _digest_of_pipeline(pipeline):
        return row_of_pipeline(pipeline)
    return shipped.row


@cache
def _shipped_rows() -> dict[str, _Shipped]:
    path = shipped_folder("models") / FILE
    if not path.is_file():
        return {}
    rows = read_typed(path, list[_Shipped], "rows of networks", _MAX_FILE_BYTES)
    return {shipped.row.name: shipped for shipped in rows}


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _digest_of_network(name: str) -> str:
    return _digest([(shipped_folder("models") / f"{name}.json").read_bytes()])


def _digest_of_pipeline(pipeline: Pipeline) -> str:
    files = [path_of_part(part.descriptor).read_bytes() for part in pipeline.parts]
    return _digest([msgspec.json.encode(pipeline), *files])


def row_of_network(name: str) -> ListedNetwork:
    """Count a network and return its row."""
    network = find_network(name)
    work = count(network.layers)
    publication = network.publication
    return ListedNetwork(
        group=network.group,
        name=network.name,
        input_shape=list(network.inputs[0][1:]),
        layers=len(network.layers),
        parameters=network.parameters,
        active_parameters=network.active_parameters,
        publisher=publication.publisher if publication else None,
        year=publication.year if publication else None,
        macs=int(work.column("macs", "inference").sum()),
        flops=int(work.column("flops", "inference").sum()),
        source=publication.card if publication else network.source,
    )


def row_of_pipeline(pipeline: Pipeline) -> ListedNetwork:
    """Count a pipeline with its publisher's options and return its row."""
    sampling = make_sampling(pipeline)
    runs = part_runs(pipeline, sampling)
    parameters = sum(run.part.copies * run.network.parameters for run in runs if not run.part.is_loaded_before)
    works = [count(run.network.layers) for run in runs]
    macs, flops = (
        sum(
            run.runs * int(work.column(column, "inference", run.samples).sum())
            for run, work in zip(runs, works, strict=True)
        )
        for column in ("macs", "flops")
    )
    return ListedNetwork(
        group="pipelines for videos" if pipeline.is_video else "pipelines for pictures",
        name=pipeline.name,
        input_shape=[*([sampling.frames] if pipeline.is_video else []), sampling.height, sampling.width],
        layers=sum(len(run.network.layers) for run in runs),
        parameters=parameters,
        active_parameters=parameters,
        publisher=pipeline.publisher,
        year=pipeline.year,
        macs=macs,
        flops=flops,
        source=f"https://huggingface.co/{pipeline.card}",
    )


def counted_rows() -> list[tuple[str, ListedNetwork]]:
    """Count all shipped networks and pipelines; return their rows, each after the digest of its files."""
    networks = [(_digest_of_network(name), row_of_network(name)) for name in network_names()]
    return networks + [(_digest_of_pipeline(pipeline), row_of_pipeline(pipeline)) for pipeline in pipelines().values()]


def main() -> None:
    """Write the rows of all shipped networks and pipelines."""
    lines = [msgspec.json.encode({"digest": digest, "row": row}) for digest, row in counted_rows()]
    write_atomically(shipped_folder("models") / FILE, b"[\n" + b",\n".join(lines) + b"\n]\n")


if __name__ == "__main__":
    main()
