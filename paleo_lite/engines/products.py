"""Times of single matrix products by the kernels that inference engines launch."""

from __future__ import annotations

import math

import msgspec

from ..errors import BadValue
from ..machines import Machine
from ..text import format_plural
from ..timing.energy import speed_under_limit
from ..timing.intervals import Z_90
from .activity import kernel_activity
from .constants import ClassFit, engine_constants
from .formulas import RESULT_BYTES
from .kernel_formats import SIMILAR_FORMATS, Formats, choose_formats, has_constants, kernel_rates, products_precision
from .kernels import CountedKernel, Load, ProductKernel
from .step import EngineStep

ANY_ENGINE = ""
"""Engine of a forecast for no engine in particular: the mean of all engines, with the deviation between them."""

PRECISIONS = ("fp16", "bf16", "fp8", "int8", "fp4")
"""Precisions of products whose kernels were measured."""


def has_product_kernels(machine: Machine, precision: str) -> bool:
    """Return whether fitted engine kernels cover matrix products on a machine with its default unit."""
    return machine.unit is None and precision in PRECISIONS and has_constants(machine.device)


class EngineProductTimer:
    """Times of products by the kernels of an engine: a `paleo_lite.timing.gemm.ProductTimer`.

    Launches follow one another without gaps, as in a captured graph. `has_product_kernels` holds for the machine. The
    weights are the format of the right operand, of `paleo_lite.formats.FORMATS`, by default that of the precision of
    the products; the engine is by default the mean of all. Raise BadValue if no kernels exist for the format.
    """

    model = "kernels"

    def __init__(self, machine: Machine, precision: str, weights: str | None = None, engine: str | None = None) -> None:
        machine = machine.with_locked_clock(precision)
        self.machine = machine
        chosen = choose_formats(precision, weights, "bf16", has_experts=False, has_latent_attention=False)
        self.form = chosen.experts  # the only part that is in every format
        formats = Formats(self.form, self.form, self.form, self.form, chosen.attention)
        isolated_constants = msgspec.structs.replace(engine_constants(), company=())
        self.step = EngineStep(machine.device, engine or ANY_ENGINE, formats, constants=isolated_constants)
        _, self.weight_bytes, self.operand_bytes = kernel_rates(machine.device, self.form)
        rate = machine.device.find_peak(products_precision(self.form), clock=machine.clock)
        self.peak_per_s, self.peak_description = rate.per_s, rate.describe()
        self.label = _describe_fit(isolated_constants.classes["products"], machine.device.id, self.form, engine)

    def moved_bytes(self, m: int, n: int, k: int, groups: int) -> int:
        """Return the bytes of both operands, each read once, and of the result in 16 bits."""
        return math.ceil(groups * (m * k * self.operand_bytes + k * n * self.weight_bytes + m * n * RESULT_BYTES))

    def time_s(self, m: int, n: int, k: int, groups: int, launches: int) -> tuple[float, tuple[float, float]]:
        """Return the seconds of launches of `groups` products each, and their 90% interval."""
        kernels = [CountedKernel(ProductKernel("product", n, k, groups), launches)]
        load = Load(tokens=float(m))
        time_s = float(self.step.total_s(kernels, load))
        factor = math.exp(Z_90 * math.sqrt(float(self.step.variance(kernels, load))))
        time_s /= float(
            speed_under_limit(self.machine.device, kernel_activity(self.step, kernels, load).shares_of(time_s))
        )
        return time_s, (time_s / factor, time_s * factor)

    def notes(self, products: int) -> list[str]:
        """Return no notes: the kernels were measured alone."""
        return []


def check_product_options(weights: str | None, policy: str | None) -> None:
    """Check that no option asks for kernels of engines where they were not measured for a product.

    Raise BadValue if a format of the right operand or an engine is given.
    """
    for option, value in (("--weights", weights), ("--engine", policy)):
        if value is not None:
            raise BadValue(
                f"`{option}` is for products in {', '.join(PRECISIONS)} on NVIDIA's GPUs from Ampere on and Intel's "
                "Xe2, with the default unit, and without a time model or calibration"
            )


def _describe_fit(fit: ClassFit, device_id: str, form: str, engine: str | None) -> str:
    """Return the origin of the constants of a format on a device, as text."""
    fitted = SIMILAR_FORMATS.get(form, form)
    cells = [cell for cell in fit.cells if cell.format == fitted and engine in (None, cell.engine)]
    device_tables = sum(cell.gpu == device_id for cell in cells)
    named = f"{form} kernels of {engine or 'engines'}"
    if device_tables:
        return f"{named}, fitted to {format_plural(device_tables, 'table')} of this device"
    if cells:
        return f"{named}, fitted to {format_plural(len(cells), 'table')} of other devices"
    return f"{named}, without tables: fitted to other formats and engines"
