"""State and cost of optimizers, against the optimizers of torch and against their papers."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import INPUT, Layer
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import RooflineModel
from paleo_lite.timing.optimizers import (
    OPTIMIZERS,
    SHAMPOO_BLOCK,
    embedding_shapes,
    matrix_product_flops,
    matrix_state_elements,
    update_cost,
    uses_products,
)
from paleo_lite.timing.training import micro_batch
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload


def linear(rows: int, columns: int) -> Layer:
    shapes = (((1, columns),), ((1, rows),))
    return Layer("fc", "linear", *shapes, ((rows, columns), (rows,)), (INPUT,), rows * columns + rows)


TORCH = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adafactor": ("Adafactor", {}),
}


@pytest.mark.parametrize("name", TORCH)
def test_state_is_that_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    class_name, options = TORCH[name]
    module = torch.nn.Linear(48, 96)
    optimizer = getattr(torch.optim, class_name)(module.parameters(), **options)
    module(torch.randn(2, 48)).sum().backward()
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    elements = sum(tensor.numel() for tensor in tensors if tensor.numel() > 1)  # without the number of steps
    assert update_cost(OPTIMIZERS[name], linear(96, 48)).state_elements == elements


def test_muon_keeps_one_moment_of_matrices_and_two_of_vectors() -> None:
    """Jordan et al. 2024: momentum for hidden matrices, AdamW for the rest."""
    assert update_cost(OPTIMIZERS["muon"], linear(96, 48)).state_elements == 96 * 48 + 2 * 96


def embedding(rows: int, columns: int) -> Layer:
    shapes = (((1, 5),), ((1, 5, columns),))
    return Layer("table", "embedding", *shapes, ((rows, columns),), (INPUT,), rows * columns)


def test_muon_and_shampoo_leave_embedding_and_output_head_to_adamw() -> None:
    """Jordan et al. 2024: the embedding and the final output layer are optimized by AdamW, with two moments."""
    layers = [embedding(96, 48), linear(48, 48), linear(96, 48)]
    tables = embedding_shapes(layers)
    for name in ("muon", "shampoo"):
        table, hidden, head = (update_cost(OPTIMIZERS[name], layer, tables) for layer in layers)
        assert (table.state_elements, table.product_flops) == (2 * 96 * 48, 0)
        assert (head.state_elements, head.product_flops) == (2 * (96 * 48 + 96), 0)
        assert hidden.product_flops > 0


def test_adafactor_factors_an_embedding_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Embedding(96, 48)
    optimizer = torch.optim.Adafactor(module.parameters())
    module(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    elements = sum(tensor.numel() for tensor in tensors if tensor.numel() > 1)
    layer = embedding(96, 48)
    assert update_cost(OPTIMIZERS["adafactor"], layer, embedding_shapes([layer])).state_elements == elements


def test_muon_multiplies_as_often_as_newton_schulz_in_torch() -> None:
    """Five iterations on a wide matrix, counted by torch while it runs them."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    matrix = torch.randn(16, 48)
    with FlopCounterMode(display=False) as counter:
        for _ in range(5):
            product = matrix @ matrix.T
            matrix = 3.4 * matrix + (-4.8 * product + 2.0 * product @ product) @ matrix
    for rows, columns in ((16, 48), (48, 16)):
        assert matrix_product_flops("orthogonalized", rows, columns) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("kind", "weights", "matrices"),
    [
        ("linear", ((96, 48), (96,)), [(96, 48)]),
        ("grouped_matmul", ((8, 48, 96),), [(48, 96)] * 8),  # one matrix for each expert
        ("conv2d", ((64, 3, 3, 5), (64,)), [(64, 45)]),
        ("conv1d", ((64, 3, 5),), [(64, 15)]),
        ("batch_norm", ((64,), (64,)), []),
    ],
)
def test_matrices_of_each_kind_of_layer(kind: str, weights: tuple, matrices: list) -> None:
    """Jordan et al. 2024: filters are flattened, and vectors are left to AdamW with two moments."""
    parameters = sum(map(prod, weights))
    layer = Layer("it", kind, ((1, 48),), ((1, 48),), weights, (INPUT,), parameters)
    found = update_cost(OPTIMIZERS["muon"], layer)
    in_matrices = sum(rows * columns for rows, columns in matrices)
    assert found.state_elements == in_matrices + 2 * (parameters - in_matrices)
    assert found.product_flops == sum(matrix_product_flops("orthogonalized", *sizes) for sizes in matrices)
    assert found.flops == 12 * parameters
    shared = update_cost(OPTIMIZERS["muon"], layer._replace(parameters=parameters - weights[-1][0]))
    assert shared.product_flops == 0 and shared.state_elements == 2 * (parameters - weights[-1][0])
    factored = update_cost(OPTIMIZERS["adafactor"], layer)
    vectors = parameters - in_matrices
    assert factored.state_elements == sum(map(sum, matrices)) + vectors * OPTIMIZERS["adafactor"].state_per_parameter
    assert factored.product_flops == 0


def test_shampoo_multiplies_both_statistics_and_roots_of_each_block() -> None:
    """For m x n: g g' and g' g take 2 m n (m + n) FLOPs, and the products with both roots as many."""
    assert matrix_product_flops("preconditioned", 16, 48) == 4 * 16 * 48 * (16 + 48)
    size = SHAMPOO_BLOCK
    blocks = 2 * 4 * size * size * (2 * size) + 2 * 4 * size * 7 * (size + 7)
    assert matrix_product_flops("preconditioned", 2 * size, size + 7) == blocks


def test_shampoo_keeps_statistics_and_roots_of_both_sides() -> None:
    """Gupta et al. 2018, algorithm 1: m x m and n x n; with their roots, and the moments that graft Adam's steps."""
    assert matrix_state_elements("preconditioned", 16, 48) == 2 * (16**2 + 48**2) + 2 * 16 * 48
    # A larger matrix is split into blocks, each with preconditioners of its own.
    size = SHAMPOO_BLOCK
    whole_block = 4 * size**2
    assert matrix_state_elements("preconditioned", 2 * size, size) == 2 * whole_block + 4 * size**2


def test_states_in_8_bits_take_two_bytes_per_parameter() -> None:
    """Dettmers et al. 2022: two states of one byte instead of four; the scales of blocks add little."""
    optimizer = OPTIMIZERS["adamw-8bit"]
    assert optimizer.state_bytes is not None
    assert 2 < optimizer.state_per_parameter * optimizer.state_bytes < 2.05


def test_shared_and_missing_parameters_cost_nothing() -> None:
    for name, optimizer in OPTIMIZERS.items():
        assert sum(update_cost(optimizer, linear(96, 48)._replace(parameters=0))) == 0, name


def test_only_muon_and_shampoo_multiply_matrices() -> None:
    assert [name for name in OPTIMIZERS if uses_products(name)] == ["muon", "shampoo"]


def test_shampoo_multiplies_as_often_as_torch() -> None:
    """Gupta et al. 2018, algorithm 1: G G' and G' G are added to the statistics, and L G R is the step."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    gradient, left, right = torch.randn(16, 48), torch.randn(16, 16), torch.randn(48, 48)
    with FlopCounterMode(display=False) as counter:
        _ = gradient @ gradient.T, gradient.T @ gradient, left @ gradient @ right
    assert matrix_product_flops("preconditioned", 16, 48) == counter.get_total_flops()
    assert matrix_product_flops("preconditioned", 2 * SHAMPOO_BLOCK, SHAMPOO_BLOCK) == 2 * 8 * SHAMPOO_BLOCK**3
    assert matrix_product_flops("factored", 16, 48) == 0


@pytest.mark.parametrize("name", ["muon", "shampoo"])
def test_products_of_an_update_run_on_tensor_cores_in_16_bits(name: str) -> None:
    """By the roofline on an H100: products at the bf16 peak, all else at the vector peak."""
    machine = Machine(find_device("h100-sxm"))
    network = find_network("gpt2", options=SequenceOptions(64, phase="training"))
    workload = Workload(network, "bf16", 1, "training", training=TrainingOptions(name, mixed_precision=True))
    counted = micro_batch(workload, machine)
    terms = RooflineModel().evaluate(counted, machine)
    tables = embedding_shapes(network.layers)
    costs = [update_cost(OPTIMIZERS[name], layer, tables) for layer in network.layers]
    products = np.array([cost.product_flops for cost in costs])
    vector_per_s = machine.vector_peak("bf16").per_s
    expected = products / machine.peak("bf16").per_s + np.array([cost.flops for cost in costs]) / vector_per_s
    update = terms.passes.index("update")
    assert terms.compute_s[update].sum() == pytest.approx(expected.sum(), rel=1e-6)
    assert counted.work.column("flops", "update").sum() == sum(cost.flops + cost.product_flops for cost in costs)
