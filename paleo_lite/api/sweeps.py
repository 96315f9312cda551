"""Public function `best`: the best rows of a file that a sweep wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..arguments import check_arguments
from ..sweeps.best import Best, Goal, find_best
from ..sweeps.space import parse_columns
from ..timing.facility import facility_of_site

Names = str | Sequence[str]
"""Names as a sequence, or as a text with commas."""


@check_arguments
def best(
    file: str | Path,
    *,
    minimise: str | None = None,
    by: str | None = None,
    maximise: str | None = None,
    pareto: Names = (),
    where: str | None = None,
    bounds: bool = False,
    site: Mapping[str, float | str] | None = None,
    top: int = 10,
    sample: int = 0,
) -> Best:
    """Find the best feasible rows of a sweep, or its Pareto front.

    Parameters
    ----------
    file : path
        Output file of `sweep`.
    minimise, maximise : str, optional
        Column to minimise or maximise, such as ``cost``, ``time_s``, ``hours`` or ``throughput_per_s``.
    by : {"joules", "cost"}, optional
        What to minimise: the energy or the cost, in whichever column the sweep has for it.
    pareto : names
        Columns of a Pareto front: rows that no other row dominates in all of these columns.
    where : str, optional
        Filter condition, such as ``"time_s < 0.1 and (gpu == k80 or workers >= 4)"``.
    bounds : bool
        Include rows with times that are lower bounds (default: rank forecasts only).
    site : dict, optional
        As for `predict`; adds the columns ``site_energy_j``, ``electricity_usd`` and ``co2_g`` of the energy in a row.
    top : int
        Maximum number of rows.
    sample : int
        Number of further rows that a chart shows as background.

    Returns
    -------
    Best

    Raises
    ------
    PaleoError
        If the file is not the output of a sweep, a column is unknown, or no row matches.
    """
    columns = parse_columns(pareto) if pareto else ()
    return find_best(
        Path(file),
        Goal(minimise=minimise, by=by, maximise=maximise, pareto=columns),
        where=where,
        bounds=bounds,
        top=top,
        sample=sample,
        facility=facility_of_site(site),
    )
