"""Tracing: modules with counts known by hand, modules that cannot be traced, and restored state.

Tests: architectures/torch_modes.py, architectures/recorder.py, architectures/user_code.py.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import random
import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given

from strategies import small_networks

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402
from torch.nn.modules import module as nn_module  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from paleo_lite.architectures.inputs import Values  # noqa: E402
from paleo_lite.architectures.torch_modes import OperationRecorder  # noqa: E402
from paleo_lite.architectures.trace import trace  # noqa: E402
from paleo_lite.counting import CONSTANT, INPUT, count  # noqa: E402
from paleo_lite.errors import TraceFailed  # noqa: E402

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """A module with the given forward function and attributes."""

    def __init__(self, function, **members):
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


@dataclasses.dataclass
class Pair:
    left: object
    right: object = None


def macs(network, phase="inference"):
    return int(count(network.layers).column("macs", phase).sum())


def names(network):
    return [(layer.name, layer.kind) for layer in network.layers]


def linear(size=3):
    return nn.Linear(size, size)


def parameter(*shape):
    return nn.Parameter(torch.zeros(*shape))


def two_parents():
    shared = linear(100)
    inner = {key: Net(lambda self, x: self.shared(x), shared=shared) for key in ("a", "b")}
    return Net(lambda self, x: self.b(self.a(x)), **inner)


def with_gradient(self, x):
    with torch.enable_grad():
        return F.scaled_dot_product_attention(x * self.scale, x, x)


# The answers of the first block are those that counters disagree about; each follows from the shapes by hand.
PROBES = {
    "linear on three dimensions": (100_000, lambda: nn.Sequential(linear(100)), [(2, 5, 100)]),
    "a bare linear": (10_000, lambda: linear(100), [(1, 100)]),
    "convolution": (18_432, lambda: nn.Conv2d(4, 8, 3), [(1, 4, 10, 10)]),
    "depthwise": (4_608, lambda: nn.Conv2d(8, 8, 3, groups=8), [(1, 8, 10, 10)]),
    "transposed": (12_800, lambda: nn.ConvTranspose2d(4, 8, 2, stride=2), [(1, 4, 10, 10)]),
    "called twice": (20_000, lambda: Net(lambda self, x: self.a(self.a(x)), a=linear(100)), [(1, 100)]),
    "two parents": (20_000, two_parents, [(1, 100)]),
    "F.conv2d": (18_432, lambda: Net(lambda self, x: F.conv2d(x, self.w), w=parameter(8, 4, 3, 3)), [(1, 4, 10, 10)]),
    "F.linear": (2_048, lambda: Net(lambda self, x: F.linear(x, self.w), w=parameter(16, 16)), [(8, 16)]),
    "@": (2_048, lambda: Net(lambda self, x: x @ self.w, w=parameter(16, 16)), [(8, 16)]),
    "bmm": (6_400, lambda: Net(lambda self, x, y: torch.bmm(x, y)), [(4, 10, 16), (4, 16, 10)]),
    "einsum": (6_400, lambda: Net(lambda self, x, y: torch.einsum("bik,bkj->bij", x, y)), [(4, 10, 16), (4, 16, 10)]),
    "attention": (25_600, lambda: Net(lambda self, x: F.scaled_dot_product_attention(x, x, x)), [(2, 4, 10, 16)]),
    "attention with gradients": (25_600, lambda: Net(with_gradient, scale=parameter(1)), [(2, 4, 10, 16)]),
    "MultiheadAttention": (
        176_640, lambda: Net(lambda self, x: self.a(x, x, x)[0], a=nn.MultiheadAttention(64, 4)), [(10, 1, 64)],
    ),
    "TransformerEncoderLayer": (340_480, lambda: nn.TransformerEncoderLayer(64, 4, 128), [(10, 1, 64)]),
    "its batch-first fast path": (
        340_480, lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), [(1, 10, 64)],
    ),
    "LSTM": (30_720, lambda: nn.LSTM(16, 32), [(5, 1, 16)]),
    # 5 steps of 3 gates: (16 + 32) * 3 * 32
    "GRU": (23_040, lambda: nn.GRU(16, 32), [(5, 1, 16)]),
    "TransformerEncoder": (
        680_960, lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2),
        [(1, 10, 64)],
    ),
    "a ModuleDict": (
        18, lambda: Net(lambda self, x: self.d["b"](self.d["a"](x)), d=nn.ModuleDict({"a": linear(), "b": linear()})),
        [(1, 3)],
    ),
    "a ParameterList": (
        9, lambda: Net(lambda self, x: x @ self.p[0], p=nn.ParameterList([torch.ones(3, 3)])), [(1, 3)],
    ),
    "DataParallel": (9, lambda: nn.DataParallel(linear()), [(1, 3)]),
    "a checkpoint": (9, lambda: Net(lambda self, x: checkpoint(self.a, x, use_reentrant=False), a=linear()), [(1, 3)]),
    "a reentrant checkpoint": (
        9, lambda: Net(lambda self, x: checkpoint(self.a, x, use_reentrant=True), a=linear()), [(1, 3)],
    ),
    "weight norm": (9, lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(linear())), [(1, 3)]),
    "a graph module": (9, lambda: torch.fx.symbolic_trace(nn.Sequential(linear(), nn.ReLU())), [(1, 3)]),
    "on the meta device already": (9, lambda: linear().to("meta"), [(1, 3)]),
    "double precision": (9, lambda: linear().double(), [torch.zeros(1, 3, dtype=torch.float64)]),
    "unbatched": (3 * 4 * 9 * 16, lambda: nn.Conv2d(3, 4, 3, padding=1), [(3, 4, 4)]),
    "embedding": (
        9, lambda: Net(lambda self, i: self.a(self.e(i)), e=nn.Embedding(10, 3), a=linear()),
        [torch.zeros(1, 1, dtype=torch.long)],
    ),
    "an autograd.grad within": (18, lambda: Net(force, a=linear()), [(1, 3)]),
    "a write to its own weight": (
        9, lambda: Net(lambda self, x: (self.a.weight.data.mul_(2), self.a(x))[1], a=linear()), [(1, 3)],
    ),
    "recursion": (27, lambda: Net(lambda self, x, d=3: x if d == 0 else self(self.a(x), d - 1), a=linear()), [(1, 3)]),
    "an exception that it catches": (9, lambda: Net(second_choice, a=nn.Linear(4, 3), b=linear()), [(1, 3)]),
}  # fmt: skip

PROBES |= {
    "a learned input of a linear layer": (18, lambda: Net(lambda self, x: self.a(self.p) + self.a(x), a=linear(),
                                                          p=parameter(1, 3)), [(1, 3)]),
    "a scripted function": (18, lambda: Net(lambda self, x: scripted(x, self.w), w=parameter(3, 6)), [(1, 3)]),
    "a traced function": (32, lambda: calling(torch.jit.trace(lambda x: x @ x.t(), torch.zeros(2, 8))), [(2, 8)]),
    "each sample by itself": (
        36, lambda: Net(lambda self, x: torch.vmap(self.a)(x), a=linear()), [(4, 3)]
    ),
    "the gradient of each sample": (
        72, lambda: Net(lambda self, x: torch.vmap(torch.func.grad(lambda y: self.a(y).sum()))(x), a=linear()), [(4, 3)]
    ),
}  # fmt: skip


@torch.jit.script
def scripted(x, weight):
    return torch.relu(x @ weight)


def calling(function):
    return Net(lambda self, x: function(x))


def force(self, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.a(x).sum(), x)
    return gradient


def second_choice(self, x):
    try:
        return self.a(x)
    except RuntimeError:
        return self.b(x)


@pytest.mark.parametrize("name", PROBES)
def test_probes(name):
    expected, make, inputs = PROBES[name]
    assert macs(trace(make(), *inputs)) == expected


@pytest.mark.parametrize(
    "look_up",
    [lambda m, i: F.embedding(i, m.table), lambda m, i: torch.embedding(m.table, i),
     lambda m, i: torch.ops.aten.embedding(m.table, i)],
    ids=["functional", "torch", "aten"],
)  # fmt: skip
def test_the_table_of_an_embedding_is_its_weight(look_up):
    """``F.embedding(indices, table)`` and ``torch.embedding(table, indices)`` take them in different orders."""
    module = Net(look_up, table=nn.Parameter(torch.zeros(10, 4)))
    (layer,) = trace(module, torch.zeros(1, 3, dtype=torch.long)).layers
    assert (layer.kind, layer.inputs, layer.weights) == ("embedding", ((1, 3),), ((10, 4),))


INDICES = torch.zeros(6, dtype=torch.long)
RULES = {  # the module, its input, and FLOPs and bytes of forward at fp32, by hand
    "cumsum": (lambda self, x: x.cumsum(1), (6, 6), 36, 4 * 72),
    "sort": (lambda self, x: x.sort(1).values, (4, 8), 32 * 3, 4 * 64 + 8 * 32),
    "topk": (lambda self, x: x.topk(2, 1).values, (4, 8), 32, 4 * (32 + 8) + 8 * 8),
    "scatter_add": (lambda self, x: x.scatter_add(1, INDICES[None], x[:1]), (6, 6), 6, 4 * (36 + 6 + 36) + 8 * 6),
    "index_add": (lambda self, x: x.index_add(0, INDICES, x), (6, 6), 36, 4 * 108 + 8 * 6),
    # in place: the old values and the new ones are read, and the places written
    "index_add_": (lambda self, x: (x * 1).index_add_(0, INDICES, x), (6, 6), 36, 4 * 108 + 8 * 6),
    "index_copy_": (lambda self, x: (x * 1).index_copy_(0, INDICES, x), (6, 6), 0, 4 * 72 + 8 * 6),
    # 4 neighbours, 7 operations for each of 3 x 5 x 5 outputs
    "grid_sample": (lambda self, x: F.grid_sample(x, self.grid), (1, 3, 6, 6), 7 * 75, 4 * (108 + 50 + 75)),
    # 15 rows of 4 numbers
    "embedding_bag": (lambda self, x: F.embedding_bag(x, self.table), torch.zeros(3, 5, dtype=torch.long), 60,
                      4 * (60 + 12) + 8 * 15),
    # 2.5 N log2 N of 2 x 16 real numbers, 9 complex ones each
    "rfft": (lambda self, x: torch.fft.rfft(x), (2, 16), 320, 4 * (32 + 36)),
    "fft": (lambda self, x: torch.fft.fft(x), torch.zeros(2, 16) + 0j, 5 * 32 * 4, 4 * 128),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_operations_that_move_or_sort_data(name):
    function, given_, flops, moved = RULES[name]
    module = Net(function, grid=nn.Buffer(torch.zeros(1, 5, 5, 2)), table=parameter(10, 4))
    layers = trace(module, given_).layers
    work = count(layers)
    (at,) = [index for index, layer in enumerate(layers) if layer.kind not in ("mul", "slice", "view")]
    assert work.unknown == ()
    assert [int(work.column(column, "inference")[0][at]) for column in ("flops", "bytes")] == [flops, moved]


# Multiply-accumulates forward, and backward where the input of the network has no gradient: by the formulas.
PRODUCTS = {
    "addbmm": (lambda self, x: torch.addbmm(self.c, self.b(x), x), (2, 6, 6), 2 * 432, 2 * 432),
    "bilinear": (lambda self, x: F.bilinear(x, x, self.w), (2, 3), 2 * 5 * 9, 2 * 5 * 9),
    "grouped": (lambda self, x: torch._grouped_mm(x, self.g, offs=torch.tensor([4, 8], dtype=torch.int32)),
                torch.zeros(8, 16, dtype=torch.bfloat16), 8 * 16 * 32, 8 * 16 * 32),
    "grouped by the inner size": (
        lambda self, x: torch._grouped_mm(x, x.t(), offs=torch.tensor([8, 16], dtype=torch.int32)),
        torch.zeros(16, 16, dtype=torch.bfloat16), 16**3, 0,
    ),
    "scaled": (lambda self, x: torch._scaled_mm(x, x.t(), self.one, self.one, out_dtype=torch.bfloat16),
               torch.zeros(16, 32, dtype=torch.float8_e4m3fn), 16 * 16 * 32, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_many_kinds(name):
    function, given_, forward, backward = PRODUCTS[name]
    module = Net(function, c=parameter(6, 6), b=linear(6), w=parameter(5, 3, 3), one=nn.Buffer(torch.ones(())),
                 g=nn.Parameter(torch.zeros(2, 16, 32, dtype=torch.bfloat16)))  # fmt: skip
    network = trace(module, given_)
    assert count(network.layers).unknown == ()
    assert (macs(network), macs(network, "backward")) == (forward, backward)


LEARNED = {
    "linear": (linear(), (1, 3)),
    "a view": (nn.Sequential(nn.Flatten(0), linear(9)), (3, 3)),
    "1-D convolution": (nn.Conv1d(4, 6, 3), (1, 4, 8)),
    "2-D convolution": (nn.Conv2d(4, 6, 3), (1, 4, 8, 8)),
    "3-D convolution": (nn.Conv3d(4, 6, 3), (1, 4, 8, 8, 8)),
    "transposed convolution": (nn.ConvTranspose2d(4, 6, 3), (1, 4, 8, 8)),
    "batch norm": (nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3)), (1, 4, 8, 8)),
    "layer norm": (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6)), (1, 8)),
    "maximum pooling": (nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 6, 3)), (1, 4, 8, 8)),
    "adaptive pooling": (nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Conv2d(4, 6, 3)), (1, 4, 8, 8)),
    "interpolation": (nn.Sequential(nn.Upsample(scale_factor=2, mode="bicubic"), nn.Conv2d(4, 6, 3)), (1, 4, 8, 8)),
    "softmax": (nn.Sequential(nn.Softmax(-1), linear(8)), (1, 8)),
    "attention": (Net(lambda self, p: F.scaled_dot_product_attention(p, p, p)), (1, 2, 5, 8)),
}


@pytest.mark.parametrize("name", LEARNED)
def test_parameters_as_data_operands(name):
    """Its gradient is counted as that of data."""
    inner, shape = LEARNED[name]
    module = Net(lambda self, x: self.inner(self.p).sum() + x, inner=inner, p=parameter(*shape))
    network = trace(module, (1, 1))
    module.to("meta")
    with FlopCounterMode(display=False) as forward:
        result = module(torch.empty(1, 1, device="meta"))
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    assert 2 * macs(network, "inference") == forward.get_total_flops() > 0
    assert 2 * macs(network, "backward") == backward.get_total_flops()
    assert network.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert sum(layer.parameters for layer in network.layers) == network.parameters


def test_exported_program_has_the_counts_of_its_module():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    program = torch.export.export(module, (torch.zeros(1, 3, 8, 8),))
    written = trace(module, (1, 3, 8, 8))
    exported = trace(program.module(), (1, 3, 8, 8))
    assert exported.notes == ()
    assert [layer[1:5] for layer in exported.layers] == [layer[1:5] for layer in written.layers]
    assert exported.parameters == written.parameters


def test_a_product_of_complex_numbers_is_the_four_of_its_parts():
    """(a + ib)(c + id) = ac - bd + i(ad + bc): four real products."""
    network = trace(Net(lambda self, x: torch.fft.fft(x) @ self.w, w=nn.Parameter(torch.zeros(8, 8) + 0j)), (2, 8))
    assert network.notes == ("1 product of complex numbers: counted as four real products each",)
    real = trace(Net(lambda self, x: x @ self.w, w=nn.Parameter(torch.zeros(8, 8))), (2, 8))
    for phase in ("inference", "backward"):
        both = [
            count(net.layers).column(name, phase)[:, -1].sum() for name in ("macs", "bytes") for net in (network, real)
        ]
        assert both[0] == 4 * both[1]
        assert both[2] == 2 * both[3]


class Tagger(nn.Module):
    """Recurrent network on padded sentences; the cell processes only the words."""

    def __init__(self, cell=nn.LSTM):
        super().__init__()
        self.cell, self.head = cell(4, 6, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(12, 3)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.cell(packed)[0], batch_first=True)[0])


@pytest.mark.parametrize("cell", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.thorough)])
def test_lengths_are_given_as_values(cell):
    """FlopCounterMode counts the real run, which sees 10, 6 and 3 words."""
    module, x, lengths = Tagger(cell), torch.zeros(3, 10, 4), [10, 3, 6]
    network = trace(module, x, Values(lengths))
    with FlopCounterMode(display=False) as forward:
        result = module(x, torch.tensor(lengths))
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    for phase, counter in {"inference": forward, "backward": backward}.items():
        assert 2 * count(network.layers).column("macs", phase).sum() == counter.get_total_flops()
    one = trace(module, (1, 10, 4), lengths=Values([6]))
    assert (one.notes, count(one.layers).unknown) == ((), ())
    three = trace(module, x, lengths=Values([6] * 3))
    assert (
        count(one.layers).column("macs", "inference", 3).sum() == count(three.layers).column("macs", "inference").sum()
    )


def test_in_place_views_are_not_layers():
    network = trace(Net(lambda self, x: self.a(x).transpose_(0, 1).squeeze_(0).unsqueeze_(0), a=linear()), (1, 3))
    assert names(network) == [("a", "linear")]


def test_an_added_operand_has_a_gradient_only_where_a_parameter_lies_behind():
    """The added operand of ``torch.addmm`` has no gradient if it does not depend on a parameter."""
    network = trace(Net(lambda self, x: torch.addmm(x * 2, x, x) @ x), (6, 6))
    assert (macs(network), macs(network, "backward")) == (432, 0)
    network = trace(Net(lambda self, x: torch.addmm(self.a(x), x, x) @ x, a=linear(6)), (6, 6))
    assert macs(network, "backward") == 216 + 216  # the last product's left side, and the weight


def test_operations_are_recorded_without_the_compiler():
    """torch wraps the dispatch of a mode in a function that imports the compiler, unless the mode opts out."""
    dispatch = OperationRecorder.__torch_dispatch__
    assert inspect.unwrap(dispatch) is dispatch


def test_a_module_that_was_compiled_runs_as_written():
    assert names(trace(torch.compile(nn.Sequential(linear(), nn.ReLU())), (1, 3)))[0][1] == "linear"


def test_names_follow_the_module_paths():
    module = nn.Sequential(linear(), nn.ReLU(), Net(lambda self, x: self.a(x) + self.a(x), a=linear()))
    assert names(trace(module, (1, 3))) == [
        ("0", "linear"), ("1", "relu"), ("2.a", "linear"), ("2.a#2", "linear"), ("2.add", "add"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"), [(linear(), "linear"), (nn.ReLU(), "relu"), (nn.Conv1d(3, 3, 1), "conv1d")]
)
def test_a_root_that_is_one_operation_has_its_name(module, name):
    assert [layer.name for layer in trace(module, (1, 3, 3)).layers] == [name]


def test_a_shared_parameter_counts_once():
    network = trace(PROBES["two parents"][1](), (1, 100))
    assert [layer.parameters for layer in network.layers] == [10_100, 0]
    assert network.parameters == 10_100


def test_parents_are_the_producers_of_operands():
    network = trace(Net(lambda self, x, y: self.a(x) + y + torch.ones(3), a=linear()), (1, 3), (1, 3))
    assert [(layer.kind, layer.parents) for layer in network.layers] == [
        ("linear", (INPUT,)), ("add", (0, INPUT)), ("fill", ()), ("add", (1, 2)),
    ]  # fmt: skip
    assert trace(Net(lambda self, x: x + self.b, b=nn.Buffer(torch.ones(3))), (1, 3)).layers[0].parents == (
        INPUT,
        CONSTANT,
    )


def test_nested_inputs_and_outputs():
    def forward(self, pair, *, table):
        return {"a": Pair(self.a(pair.left)), "b": (None, [self.a(table["x"][0])])}

    network = trace(Net(forward, a=linear()), Pair(torch.zeros(1, 3)), table={"x": [(2, 3)]})
    assert network.inputs == ((1, 3), (2, 3))
    assert [layer.parents for layer in network.layers] == [(INPUT,), (INPUT,)]


def write(index, value):
    def forward(self, x):
        y = self.a(x)
        y[index(y)] = value(x)
        return self.b(y)

    return Net(forward, a=linear(), b=linear())


WRITES = {
    "a part": write(lambda y: (slice(None), 0), lambda x: 1.0),
    "a part from a tensor": write(lambda y: (slice(None), 0), lambda x: x[:, 0]),
    "where a mask says": write(lambda y: y > 0, lambda x: 0.0),
    "a view": Net(lambda self, x: (y := self.a(x), y[:, 0].zero_(), self.b(y))[2], a=linear(), b=linear()),
    "a copy into a view": Net(
        lambda self, x: (y := self.a(x), y[:, 0].copy_(x[:, 1]), self.b(y))[2], a=linear(), b=linear()
    ),
    "a sum into a part": Net(lambda self, x: (y := self.a(x), y[:, 1].add_(1), self.b(y))[2], a=linear(), b=linear()),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_keep_the_producer_of_the_rest(name):
    """Both layers see the batch, and the gradient reaches the first through the part that stays."""
    work = count(trace(WRITES[name], (1, 3)).layers)
    assert int(work.column("macs", "inference", 7).sum()) == 7 * 18
    assert [int(number) for number in work.column("macs", "backward", 7).sum(axis=1)] == [7 * 9, 7 * 18]


def test_constants_keep_their_values():
    def forward(self, x):
        steps = int(torch.arange(4).sum() // 3)
        return self.a(x) if steps == 2 and self.flag.sum().item() == 3 else x

    assert macs(trace(Net(forward, a=linear(), flag=nn.Buffer(torch.ones(3))), (1, 3))) == 9


def test_moves_between_devices_are_no_layers():
    def forward(self, x):
        x = x.to(self.a.weight.device).cpu().to("cpu", torch.float32) + torch.zeros(3, device=self.a.weight.device)
        return self.a(x.type(torch.FloatTensor).type_as(self.a.weight) + torch.tensor([1.0, 2, 3], device=x.device))

    assert [kind for _, kind in names(trace(Net(forward, a=linear()), (1, 3)))] == [
        "fill",
        "add",
        "fill",
        "add",
        "linear",
    ]


def test_gradients_stop_where_forward_switches_them_off():
    def forward(self, x):
        with torch.no_grad():
            x = self.a(x)
        return self.b(x)

    network = trace(Net(forward, a=linear(), b=linear()), (1, 3))
    assert macs(network, "backward_weight") == 9
    assert macs(network, "backward_data") == 0


def test_unknown_operations_keep_their_name():
    network = trace(Net(lambda self, x: torch.erfinv(x) + torch.atan2(x, x)), (1, 3))
    assert count(network.layers).unknown == ("aten.atan2 (1)", "aten.erfinv (1)")


def test_data_dependent_conditions_are_assumed_true_with_a_note():
    network = trace(Net(lambda self, x: self.a(x) if x.sum() > 0 else x, a=linear()), (1, 3))
    assert macs(network) == 9
    assert "a data-dependent condition at test_trace.py:" in network.notes[0]


def loop(self, x):
    while x.sum() > 0:
        x = self.a(x)
    return x


def threads(self, x):
    runs = [threading.Thread(target=lambda module=module: swallow(module, x)) for module in (self.a, self.a)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    return x


def swallow(module, x):
    with contextlib.suppress(TraceFailed):
        module(x)


def raise_(error):
    raise error


class Unprintable(Exception):
    def __str__(self):
        raise ValueError


FAILURES = {
    "an item": (lambda self, x: x * x.sum().item(), r"the value of a tensor is needed at test_trace\.py:\d+"),
    "a list": (lambda self, x: x.tolist(), r"at test_trace\.py:\d+, but tracing knows only shapes"),
    "an index": (lambda self, x: x[: int(x.sum())], "the value of a tensor"),
    "numpy": (lambda self, x: x.numpy(), "the value of a tensor"),
    "nonzero": (lambda self, x: x.nonzero(), "shape of nonzero's result depends on the values"),
    "a mask": (lambda self, x: x[x > 0], "shape of getitem's result depends"),
    "masked_select": (lambda self, x: torch.masked_select(x, x > 0), "masked_select"),
    "unique": (lambda self, x: torch.unique(x), "depends on the values"),
    "a loop": (loop, r"the loop at test_trace\.py:\d+ has a data-dependent number of iterations"),
    "threads": (threads, "a is called in another thread"),
    "its own error": (lambda self, x: raise_(KeyError("lost\nin space")), r"KeyError at test_trace\.py:\d+: "),
    "an error that cannot be printed": (lambda self, x: raise_(Unprintable()), "Unprintable at .*: no message"),
    "exit": (lambda self, x: raise_(SystemExit(3)), "SystemExit"),
    "endless recursion": (lambda self, x: self.function(self, x), "RecursionError"),
    "shapes that do not fit": (lambda self, x: self.a(x @ x.t()), r"cannot be traced in a: RuntimeError"),
    "flexible attention": (
        lambda self, x: flex_attention(*[x.view(1, 1, 1, 3)] * 3),
        "flex_attention runs on real dev",
    ),
    "a loop that torch knows": (
        lambda self, x: while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 2), (torch.tensor(0), x)),
        r"while_loop at test_trace\.py:\d+ calls functions a data-dependent number of times: trace the function",
    ),
    "sparse": (lambda self, x: torch.sparse.mm(torch.eye(3).to_sparse(), x.t()), "sparse"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_untraceable_modules_raise_one_line_errors(name):
    function, message = FAILURES[name]
    with pytest.raises(TraceFailed, match=message) as caught:
        trace(Net(function, a=linear()), (1, 3))
    assert "\n" not in str(caught.value)


def test_torch_cond_takes_the_true_branch():
    def either(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.b(self.a(x)), self.b, (x,))

    network = trace(Net(either, a=linear(4), b=linear(4)), (1, 4))
    assert macs(network) == 2 * 16
    assert [layer.name for layer in network.layers if layer.kind == "linear"] == ["a", "b"]
    assert any(note.startswith("a data-dependent condition at") for note in network.notes)


def test_sharded_parameters_belong_to_their_layers():
    """FSDP2 puts shards together while a module is called: counts, gradients and parameters are as without it."""
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    unsharded = trace(nn.Sequential(linear(8), nn.ReLU(), linear(8)), (1, 8))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        module = nn.Sequential(linear(8), nn.ReLU(), linear(8))
        fully_shard(module[0])
        fully_shard(module)
        network = trace(module, (1, 8))
    finally:
        distributed.destroy_process_group()
    assert [macs(network, phase) for phase in ("inference", "backward")] == [128, 192]
    assert [macs(unsharded, phase) for phase in ("inference", "backward")] == [128, 192]
    with_parameters = [(layer.name, layer.parameters) for layer in network.layers if layer.parameters]
    assert with_parameters == [(layer.name, layer.parameters) for layer in unsharded.layers if layer.parameters]
    assert not network.notes


@pytest.mark.parametrize(
    ("make", "inputs", "message"),
    [
        (lambda: 3, [(1, 3)], r"only a torch.nn.Module can be traced \(got int\)"),
        (linear, [], "missing 1 required positional argument"),
        (linear, [(1, -3)], "negative dimension"),
        (lambda: nn.LazyLinear(3), [(1, 3)], "parameter weight has no shape yet"),
        (lambda: torch.jit.script(linear()), [(1, 3)], "is TorchScript"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_wrong_modules_and_inputs(make, inputs, message):
    with pytest.raises(TraceFailed, match=message):
        trace(make(), *inputs)


class Meddler(nn.Module):
    """Changes everything it can reach."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.frozen = linear().eval()
        self.scale = nn.Buffer(torch.ones(3))
        self.history = [1]
        self.cache = {"deep": {"er": []}}
        self.norm.register_forward_hook(lambda module, args, result: result + 1)

    def forward(self, x, fail=False):
        self.norm.train()
        self.train()
        y = self.norm(x) * self.scale + torch.rand(3) + random.random() + self.frozen(x)
        self.scale += 1
        self.scale = self.scale * 2
        self.scale.data.fill_(7)
        self.norm.running_mean[0] = 3
        self.norm.num_batches_tracked.add_(5)
        self.frozen.weight.data.clamp_(-0.1, 0.1)
        self.frozen.weight.data = self.frozen.weight.data * 2
        self.frozen.weight.requires_grad_(False)
        self.frozen.bias.requires_grad = False
        self.history.append(x)
        self.cache["deep"]["er"].append(x)
        self.extra = x
        self.register_buffer("more", x)
        self.added = linear()
        self.norm.register_forward_pre_hook(lambda module, args: None)
        torch.manual_seed(3)
        if fail:
            raise RuntimeError("on purpose")
        return y


def state(module):
    """Return the visible state of a module: objects by identity, tensors by value."""
    seen = {}
    for path, submodule in module.named_modules():
        for key, value in submodule.__dict__.items():
            held = list(value.items()) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
            seen[path, key] = (id(value), copy.copy(held) if not isinstance(held, torch.Tensor) else None)
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    values = {key: (id(t), t.tolist(), t.requires_grad, t._version, t.device) for key, t in tensors.items()}
    return seen, values, repr(module.cache)


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_module_is_restored(fail, training):
    module = Meddler().train(training)
    module.frozen.eval()
    before, seed, python_seed = state(module), torch.get_rng_state(), random.getstate()
    hooks = len(nn_module._global_forward_hooks), len(nn_module._global_forward_pre_hooks)
    try:
        trace(module, (4, 3), fail=fail)
    except TraceFailed:
        assert fail
    assert state(module) == before
    assert torch.equal(torch.get_rng_state(), seed)
    assert random.getstate() == python_seed
    assert torch.is_grad_enabled()
    assert (len(nn_module._global_forward_hooks), len(nn_module._global_forward_pre_hooks)) == hooks


class Frozen(dict):
    """A dict that raises on every change, as the configurations of diffusers do."""

    def _refuse(self, *_):
        raise TypeError("frozen")

    __setitem__ = clear = update = pop = _refuse


class Cache:
    """A cache of keys, as an object of the caller."""

    def __init__(self):
        self.keys, self.length = [torch.zeros(1, 2, 3)], 2

    def append(self, row):
        self.keys[0] = torch.cat([self.keys[0], row[None]], 1)
        self.keys.append(row)
        self.length += 1
        self.last = row


def everything(self, x, cache):
    """Change attributes, containers, buffers and arguments, with an operation between any two changes."""
    self.train()
    y = self.a(x)
    self.steps.append(y)
    y = y + 1
    self.cache.append(y)
    y = y.relu()
    self.extra, self.flags["seen"] = y, True
    y = self.a(y)
    cache.append(y)
    self.count.add_(1)
    random.random()
    return y.sigmoid() * torch.rand(3)


def seen_of(module, cache):
    held = [copy.copy(vars(cache)), list(cache.keys), copy.copy(vars(module.cache)), list(module.cache.keys)]
    flags = [dict(module.frozen), dict(module.flags), list(module.steps), module.count.tolist()]
    modes = [submodule.training for submodule in module.modules()]
    return repr((held, flags, modes, sorted(vars(module)), random.getstate(), torch.get_rng_state().tolist()))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_state_is_restored_after_an_error_in_any_operation(error, monkeypatch):
    """Raise in each operation in turn, until all operations have run."""
    from paleo_lite.architectures.recorder import Recorder

    record = Recorder.record
    module = Net(everything, a=linear(), frozen=Frozen(a=1), flags={}, steps=[0], cache=Cache(),
                 count=nn.Buffer(torch.zeros(1)))  # fmt: skip
    cache = Cache()
    before = seen_of(module, cache)
    for step in range(100):
        left = [step]

        def failing(self, *args, left=left, **named):
            left[0] -= 1
            if left[0] < 0:
                raise error
            return record(self, *args, **named)

        monkeypatch.setattr(Recorder, "record", failing)
        try:
            trace(module, (1, 3), cache=cache)
        except (TraceFailed, KeyboardInterrupt):
            assert seen_of(module, cache) == before
        else:
            break
    assert seen_of(module, cache) == before
    assert 8 <= step < 99


SHARED_CONSTANT = torch.ones(3)


def test_tensors_outside_the_module_are_not_written():
    trace(Net(lambda self, x: x + SHARED_CONSTANT.add_(1) + SHARED_CONSTANT[0].fill_(7)), (1, 3))
    assert SHARED_CONSTANT.tolist() == [1, 1, 1]


def test_large_tensors_are_not_allocated():
    """A weight of 4 GB, and a mask and a table of 40 GB, are never allocated."""
    import tracemalloc

    with torch.device("meta"):
        module = nn.Linear(2**15, 2**15)

    def forward(self, x):
        mask = torch.triu(torch.full((100_000, 100_000), float("-inf")), 1)
        steps = torch.arange(100_000)
        return self.a(x) + mask[0, 0] + (steps[:, None] - steps[None])[0, 0]

    tracemalloc.start()
    network = trace(Net(forward, a=module), (64, 2**15))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert macs(network) == 64 * 2**30
    assert peak < 20e6


@given(small_networks())
def test_random_networks_agree_with_flop_counter_mode(case):
    module, shape = case
    network = trace(module, shape)
    module.to("meta")
    with FlopCounterMode(display=False) as forward:
        result = module(torch.empty(shape, device="meta"))
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    assert 2 * macs(network, "forward") == forward.get_total_flops()
    assert 2 * macs(network, "backward") == backward.get_total_flops()


@given(
    batch=st.lists(st.integers(1, 3), max_size=2),
    rows=st.integers(1, 5),
    inner=st.integers(1, 5),
    columns=st.integers(1, 5),
    weight=st.booleans(),
)
def test_random_products_agree_with_flop_counter_mode(batch, rows, inner, columns, weight):
    left = parameter(*batch, rows, inner)
    module = Net(lambda self, x: self.left @ x if weight else torch.matmul(self.left * 2, x), left=left)
    network = trace(module, (*batch, inner, columns))
    module.to("meta")
    with FlopCounterMode(display=False) as forward:
        result = module(torch.empty(*batch, inner, columns, device="meta"))
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    assert 2 * macs(network, "forward") == forward.get_total_flops()
    assert 2 * macs(network, "backward") == backward.get_total_flops()


def test_generators_are_exhausted():
    class Yields(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 8)

        def forward(self, x):
            for _ in range(3):
                yield self.linear(x)

    assert macs(trace(Yields(), (2, 4))) == 3 * 2 * 4 * 8
