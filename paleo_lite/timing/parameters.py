"""Parameters of the calibrated time model, and which of them apply to which entry of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..counting.kinds.products import MATRIX_CLASSES
from .features import CLASSES, UPDATE, Features, GroupSums, are_products

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_BANDWIDTH_PARAMETER = {
    **dict.fromkeys(MATRIX_CLASSES, "share_matrix"),
    "norm": "share_other",
    "elementwise": "share_other",
    "pool": "share_other",
    "copy": "share_other",
}
"""Parameter of the share of bandwidth for each class of work."""

PARAMETERS: dict[str, str] = {
    **{f"efficiency_{name}": "share of peak" for name in MATRIX_CLASSES},
    "factor_data_gradient": "relative to forward, of convolutions",
    "factor_weight_gradient": "relative to forward, of convolutions",
    "share_matrix": "share of bandwidth",
    "share_other": "share of bandwidth",
    "half": "tiles per multiprocessor at half efficiency",
    "half_3x3": "the same, of 3x3 convolutions",
    "floor_s": "s, the shortest kernel",
    "overhead_s": "s of the host per kernel",
    "overhead_backward_s": "s of the host per kernel of a backward pass",
    "overhead_gradient_s": "s of the host per parameter tensor of a backward pass",
    "step_s": "s per step",
}
"""All parameters with their units. All are positive, and their logarithms are fitted."""

NAMES = tuple(PARAMETERS)
INDEX = {name: index for index, name in enumerate(NAMES)}
OVERHEADS = ("overhead_s", "overhead_backward_s", "overhead_gradient_s")
NO_PARAMETER = len(NAMES)
"""Parameter index of entries that have no such parameter; its value is 1."""


class StepPlan(NamedTuple):
    """Assignment of entries to steps and parameters, independent of batch size and device."""

    # Index in `NAMES` of the parameter of each entry; `NO_PARAMETER` if it has none; shape (entries,).
    efficiency: Ints
    factor: Ints
    share: Ints
    half: Ints  # index in `NAMES` of the saturation parameter of each product; shape (products,)
    products: slice | Ints  # entries that consist of multiply-accumulates
    by_step: GroupSums  # sums of entries by step
    # Sums by step and parameter: of the compute terms of products, of memory terms, and of the share of compute
    # that is due to too few tiles.
    by_compute: GroupSums
    by_memory: GroupSums
    by_half: GroupSums


class Steps(NamedTuple):
    """Quantities of whole steps at some batch sizes, independent of the device."""

    plan: StepPlan  # assignment of entries to steps and parameters
    work: Floats  # FLOPs including padding; shape of `Features.flops`
    # Number of kernels of forward passes, kernels of backward passes, and gradients, that the host launches;
    # shape (3, runs) or (3, runs, batch sizes).
    launched: Floats


def prepare_steps(features: Features, run: Ints, runs: int, plan: StepPlan | None = None) -> Steps:
    """Return the device-independent part of `step_times` and `sensitivities`, to be reused for several devices.

    `run` has the step of each entry, shape (entries,) or (entries, 1), of `runs` steps; the plan is a result of
    `plan_steps` for these entries.
    """
    plan = plan or plan_steps(features.work_class, features.pass_number, run, runs)
    is_backward = (features.pass_number == 1) | (features.pass_number == 2)
    columns = (features.calls * ~is_backward, features.calls * is_backward, features.gradients)
    launched = np.array([plan.by_step.sum(column) for column in columns])
    return Steps(plan, features.flops * features.padding, launched)


def plan_steps(work_class: Ints, pass_number: Ints, run: Ints, runs: int) -> StepPlan:
    """Return the assignment of entries to steps and parameters.

    All arrays have the shape (entries,) or (entries, 1): class and pass are as in `Features`, and `run` has the step of
    each entry, of `runs` steps.
    """
    is_product = are_products(work_class, pass_number)
    product_indices = np.flatnonzero(is_product)
    num_products = len(product_indices)
    factor_of_pass = np.array(
        [NO_PARAMETER, INDEX["factor_data_gradient"], INDEX["factor_weight_gradient"], NO_PARAMETER]
    )
    # Gradients of a matrix product are products of the same sizes, which libraries compute as fast.
    has_factor = is_product & (work_class != CLASSES.index("gemm"))
    share_of_class = np.array([INDEX[_BANDWIDTH_PARAMETER[name]] for name in CLASSES])
    efficiency = np.where(is_product, work_class, NO_PARAMETER)
    factor = np.where(has_factor, factor_of_pass[pass_number], NO_PARAMETER)
    # An update is elementwise work.
    share = np.where(pass_number == UPDATE, INDEX["share_other"], share_of_class[work_class])
    # Winograd's algorithm computes many products of few rows each.
    half = np.where(work_class == CLASSES.index("conv_3x3"), INDEX["half_3x3"], INDEX["half"])[product_indices]
    # If the products are the first entries, a slice selects them without a copy.
    products = slice(0, num_products) if is_product[:num_products].all() else product_indices
    first, groups = run * (NO_PARAMETER + 1), runs * (NO_PARAMETER + 1)
    return StepPlan(
        efficiency=efficiency,
        factor=factor,
        share=share,
        half=half,
        products=products,
        by_step=GroupSums(runs, run),
        by_compute=GroupSums(groups, first[products] + efficiency[products], first[products] + factor[products]),
        by_memory=GroupSums(groups, first + share),
        by_half=GroupSums(groups, first[products] + half),
    )
