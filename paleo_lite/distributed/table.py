"""`ScaleTable`: what `paleo_lite.scale` returns, rows with what they were computed from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from ..result import Result
from .step import ScaleRow


class ScaleTable(Result, msgspec.Struct, frozen=True):
    """Training, or reading and writing text, on several numbers of devices; as advice, by several strategies on one.

    Attributes
    ----------
    network, gpu, gpu_name, precision : str
        `gpu` is the device's id.
    scaling : str
        ``weak`` or ``strong``.
    batch_size : int
        As asked for: per worker for weak scaling, of all workers for strong.
    topology : str
        The machine in words.
    links : tuple of str
        Its links, with what they reach.
    model : str
        The time model that compute times come from.
    memory_bytes : float or None
        Of a device; None where its memory plays no part.
    images, epochs, price_usd_per_h : float or None
        What hours and cost are for.
    why : str
        For advice: a sentence on the best.
    refused : dict of str to str
        For advice: strategies that are impossible, and why.
    is_forecast : bool
        Whether the times are what to expect; else they are the best case: what data sheets allow.
    phase : {"training", "prefill", "decode"}
    """

    _page: ClassVar[str] = "paleo_lite.report.scale:scale_page"

    network: str
    gpu: str
    gpu_name: str
    precision: str
    scaling: str
    batch_size: int
    topology: str
    links: tuple[str, ...]
    model: str
    memory_bytes: float | None
    rows: list[ScaleRow]
    images: float | None = None
    epochs: float | None = None
    price_usd_per_h: float | None = None
    why: str = ""
    refused: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    is_forecast: bool = True
    phase: str = "training"

    def __iter__(self) -> Iterator[ScaleRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> ScaleRow:
        return self.rows[place]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        names = (
            "network", "gpu", "precision", "phase", "scaling", "batch_size", "topology", "model", "is_forecast",
            "images", "epochs", "price_usd_per_h",
        )  # fmt: skip
        answer = {name: getattr(self, name) for name in names}
        if self.why:
            fitting = [row for row in self.rows if row.fits]
            answer |= {
                "best": fitting[0].strategy if fitting else None,
                "runner_up": fitting[1].strategy if len(fitting) > 1 else None,
                "why": self.why,
                "refused": self.refused,
            }
        return answer | {"rows": [row.to_dict() for row in self.rows], "notes": list(self.notes)}
