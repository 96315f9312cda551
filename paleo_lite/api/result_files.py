"""`measurements`: what the files of benchmarks say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .arguments import Paths, to_paths

if TYPE_CHECKING:
    from ..result_files.detect import Measurements


def measurements(
    paths: Paths,
    *,
    gpu: str | None = None,
    devices: int | None = None,
    network: str | None = None,
    precision: str | None = None,
    tensor: int | None = None,
    engine: str | None = None,
    link: str | None = None,
    sequence_length: int | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    keep_going: bool = False,
    on_done: Callable[[int, int], None] | None = None,
) -> Measurements:
    """Read the files that benchmarks wrote, whatever tool they are of.

    Every file is recognised by its content. What a file does not record is listed as missing, unless an argument or a
    sidecar ``NAME.toml`` beside the file gives it.

    Parameters
    ----------
    paths : path, or sequence of paths
        Result files, folders of them, or archives (zip, tar); several are read in parallel.
    gpu, network, precision, engine, link : str, optional
        What the files do not record: device, network, precision, engine and link between devices.
    devices, tensor, sequence_length : int, optional
        Likewise the number of devices, the tensor parallelism, and the tokens per sequence.
    jobs : int, optional
        Number of processes; by default one per core.
    scheduler : str, optional
        Address of a Dask scheduler, ``tcp://host:8786``, on whose workers the files are read.
    keep_going : bool
        List unreadable files in `failed` instead of raising an error.
    on_done : callable, optional
        Called with the number of completed files and the number of all files.

    Returns
    -------
    Measurements

    Raises
    ------
    PaleoError
        For a file that no reader recognises, or one that cannot be read.
    """
    from ..result_files.detect import read_results

    given = {
        "gpu": gpu,
        "devices": devices,
        "network": network,
        "precision": precision,
        "tensor": tensor,
        "engine": engine,
        "link": link,
        "sequence_length": sequence_length,
    }
    known = {name: value for name, value in given.items() if value is not None}
    return read_results(to_paths(paths), known, jobs, scheduler, keep_going, on_done)
