"""Optimizers of training: the state that each keeps per parameter, and the cost of its update."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..counting import Layer, Shape
from ..counting.kinds import is_convolution

if TYPE_CHECKING:
    from ..architectures import Network

MASTER_BYTES = 4
"""Bytes of a master weight, and of each element of optimizer state, in mixed precision."""

NEWTON_SCHULZ_ITERATIONS = 5
"""Iterations with which Muon orthogonalizes a gradient (Jordan et al. 2024, "Muon")."""

SHAMPOO_BLOCK = 1024
"""Rows and columns of the blocks into which Shampoo splits a matrix: ``max_preconditioner_dim`` of Distributed
Shampoo (Shi et al. 2023)."""

EMBEDDING = "embedding"
"""Kind of the layers with a table of embeddings."""

QUANTIZATION_BLOCK = 256
"""Elements of 8-bit state that share an fp32 scale in bitsandbytes (Dettmers et al. 2022)."""


class Optimizer(NamedTuple):
    """An optimizer's update rule."""

    state_per_parameter: int  # elements of state per parameter
    # FLOPs of an update per parameter; a multiplication, an addition and a square root are one each.
    flops_per_parameter: int
    formula: str  # the update, with weight w, gradient g and learning rate r
    # Bytes of each element of state; None for the bytes of a weight, or of a master weight in mixed precision.
    state_bytes: float | None = None
    # Rule for parameters with at least two dimensions, one of ``""`` (as any other parameter), ``"factored"``,
    # ``"orthogonalized"`` and ``"preconditioned"``; see `matrix_state_elements` and `matrix_product_flops`
    matrix_rule: str = ""
    # Whether the driver moves state to the memory of the host when the device is full, and back for the update
    # (unified memory).
    is_paged: bool = False


OPTIMIZERS = {
    "sgd": Optimizer(0, 2, "w -= r g"),
    "momentum": Optimizer(1, 4, "v = m v + g; w -= r v"),
    "adam": Optimizer(2, 12, "m = a m + (1 - a) g; v = b v + (1 - b) g^2; w -= r m / (sqrt(v) + e)"),
    "adamw": Optimizer(2, 12, "m = a m + (1 - a) g; v = b v + (1 - b) g^2; w -= r m / (sqrt(v) + e) + d w"),
    "adamw-8bit": Optimizer(
        2, 16, "adamw, with m and v in 8 bits and a scale per block", state_bytes=1 + 4 / QUANTIZATION_BLOCK
    ),
    "paged-adamw": Optimizer(2, 12, "adamw, with m and v in fp32 and in unified memory", state_bytes=4, is_paged=True),
    "paged-adamw-8bit": Optimizer(
        2, 16, "adamw-8bit, with m and v in unified memory", state_bytes=1 + 4 / QUANTIZATION_BLOCK, is_paged=True
    ),
    "adafactor": Optimizer(
        1, 12, "R, C = means of g^2 by row and column; w -= r g / sqrt(R C / mean(R))", matrix_rule="factored"
    ),
    "lion": Optimizer(1, 8, "w -= r (sign(a m + (1 - a) g) + d w); m = b m + (1 - b) g"),
    "muon": Optimizer(
        2, 12, "m = a m + g; w -= r orthogonalize(m); adamw for other parameters", matrix_rule="orthogonalized"
    ),
    "shampoo": Optimizer(
        2, 12, "L += g g', R += g' g; w -= r L^(-1/4) g R^(-1/4); adamw for other parameters",
        matrix_rule="preconditioned",
    ),
}  # fmt: skip
"""Update rules by name.

Adam follows Kingma and Ba 2015, with the bias corrections folded into r and e. AdamW (Loshchilov and Hutter 2019) has
the same state and is counted as Adam: its weight decay of 2 FLOPs per parameter is left out. AdamW in 8 bits follows
Dettmers et al. 2022, its paged forms QLoRA (Dettmers et al. 2023, section 3) and bitsandbytes, which keeps their state
in managed memory and prefetches it before each update. Adafactor without momentum follows Shazeer and Stern 2018, Lion
Chen et al. 2023, Muon Jordan et al. 2024, Shampoo Gupta et al. 2018 with the state that grafts the step size of Adam.
"""

DEFAULT_OPTIMIZERS = "adamw of networks that read tokens, sgd of others"
"""Optimizers of networks that are trained without a given one, as text."""


def default_optimizer(network: Network) -> str:
    """Return the optimizer with which a network is trained if none is given: AdamW of networks that read tokens."""
    return "adamw" if network.tokens else "sgd"


def resident_optimizer(name: str) -> str:
    """Return the name of an optimizer with the same update whose state stays on the device."""
    return name.removeprefix("paged-")


class UpdateCost(NamedTuple):
    """Cost of the update of some parameters."""

    state_elements: int  # elements of optimizer state
    flops: int  # FLOPs of element-wise arithmetic
    product_flops: int  # FLOPs of matrix products


def embedding_shapes(layers: Iterable[Layer]) -> frozenset[Shape]:
    """Return the shapes of the tables of all embeddings; the matrix of an output head has one of them."""
    return frozenset(shape for layer in layers if layer.kind == EMBEDDING for shape in layer.weights)


def update_cost(optimizer: Optimizer, layer: Layer, tables: Collection[Shape] = ()) -> UpdateCost:
    """Return the cost of the update of the parameters that a layer is the first to use.

    `tables` are the shapes of the embedding tables of the network, from `embedding_shapes`. Muon and Shampoo leave
    matrices of these shapes, the embeddings and the output head, to AdamW (Jordan et al. 2024).
    """
    parameters = layer.parameters
    if not optimizer.matrix_rule or not parameters:
        elementwise_flops = parameters * optimizer.flops_per_parameter
        return UpdateCost(parameters * optimizer.state_per_parameter, elementwise_flops, 0)
    left_out = () if optimizer.matrix_rule == "factored" else tables
    state_elements = product_flops = matrix_parameters = 0
    for rows, columns in _matrices(layer, left_out):
        state_elements += matrix_state_elements(optimizer.matrix_rule, rows, columns)
        product_flops += matrix_product_flops(optimizer.matrix_rule, rows, columns)
        matrix_parameters += rows * columns
    state_elements += (parameters - matrix_parameters) * optimizer.state_per_parameter
    return UpdateCost(state_elements, parameters * optimizer.flops_per_parameter, product_flops)


def _matrices(layer: Layer, left_out: Collection[Shape]) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of the parameter matrices of a layer, except those of the shapes in `left_out`.

    The experts of a grouped product are one matrix each; a convolution's weight is flattened to (output channels,
    inputs). A layer that uses parameters of an earlier layer has none of its own.
    """
    if sum(map(prod, layer.weights)) != layer.parameters:
        return
    for shape in layer.weights:
        if shape in left_out:
            continue
        is_group = len(shape) == 3 and not is_convolution(layer)
        if is_group:
            for _ in range(shape[0]):
                yield shape[1], shape[2]
        elif len(shape) >= 2:
            yield shape[0], prod(shape[1:])


def matrix_state_elements(rule: str, rows: int, columns: int) -> int:
    """Return the elements of state of a matrix.

    Adafactor keeps the mean squares of every row and column, Muon the momentum of every weight. Shampoo keeps two
    statistics and their inverse roots for each of its blocks, and the two moments of Adam.
    """
    if rule == "factored":
        return rows + columns
    if rule == "orthogonalized":
        return rows * columns
    assert rule == "preconditioned"
    state = 2 * rows * columns
    for block_rows, row_blocks in _block_sizes(rows):
        for block_columns, column_blocks in _block_sizes(columns):
            state += row_blocks * column_blocks * 2 * (block_rows**2 + block_columns**2)
    return state


def matrix_product_flops(rule: str, rows: int, columns: int) -> int:
    """Return the FLOPs of the matrix products in the update of a matrix.

    A Newton-Schulz iteration of Muon on X with m <= n rows and columns multiplies A = X X', A A, and their combination
    by X: 4 m^2 n + 2 m^3 FLOPs. Shampoo updates both statistics and multiplies the gradient by both roots: 4 m n (m +
    n) FLOPs per block. The roots themselves, computed about every hundred steps, are not counted.
    """
    if rule == "orthogonalized":
        short, long = min(rows, columns), max(rows, columns)
        return NEWTON_SCHULZ_ITERATIONS * (4 * short**2 * long + 2 * short**3)
    if rule != "preconditioned":
        return 0
    flops = 0
    for block_rows, row_blocks in _block_sizes(rows):
        for block_columns, column_blocks in _block_sizes(columns):
            flops += row_blocks * column_blocks * 4 * block_rows * block_columns * (block_rows + block_columns)
    return flops


def _block_sizes(size: int) -> list[tuple[int, int]]:
    """Return size and number of the blocks into which Shampoo splits a dimension."""
    full_blocks, rest = divmod(size, SHAMPOO_BLOCK)
    return [(length, number) for length, number in ((SHAMPOO_BLOCK, full_blocks), (rest, 1)) if length and number]


def uses_products(optimizer: str) -> bool:
    """Return whether the update of an optimizer consists mostly of matrix products."""
    return OPTIMIZERS[optimizer].matrix_rule in ("orthogonalized", "preconditioned")
