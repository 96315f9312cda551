"""User-defined rules for operations and modules, compared with rules of torch's counter.

Tests: questions/layers.py.
"""

from __future__ import annotations

from math import prod

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.architectures.network import Network
from paleo_lite.cli import main
from paleo_lite.counting import INPUT, KINDS, MATRIX_KINDS, Layer, count
from paleo_lite.counting.kinds import USER_MODULES, USER_RULES, class_of, gemm_of, saved_tensors
from paleo_lite.counting.kinds.products import count_half_of_causal
from paleo_lite.counting.layer import Gemm
from paleo_lite.errors import CountFailed, PaleoError

ERFINV = Layer("it", "aten.erfinv", ((1, 4),), ((1, 4),), (), (INPUT,))
NETWORK = Network("inverted", ((1, 4),), (ERFINV,), 0)


@pytest.fixture(autouse=True)
def as_found():
    """Rules are the process's: each test leaves none."""
    kept = [(table, table.copy()) for table in (KINDS, MATRIX_KINDS, USER_RULES, USER_MODULES)]
    yield
    for table, before in kept:
        table.clear()
        table.update(before)


def test_rule_of_an_operation_and_its_note():
    pl.rule("erfinv", lambda layer: 20 * prod(layer.outputs[0]))
    counts = pl.layers(NETWORK, batch_size=3)
    assert counts.total == 240
    note = "counted by a rule of your own: aten.erfinv (1)"
    assert counts.notes == (note,)
    assert note in pl.predict(NETWORK, gpu="k80-die", time_model="roofline").notes


def test_rule_may_depend_on_the_pass():
    weighted = Layer("first", "linear", ((1, 4),), ((1, 4),), ((4, 4),), (INPUT,), 16)
    pl.rule("my.thing", lambda layer: (10, 20, 40), macs=True)
    own = Layer("own", "my.thing", ((1, 4),), ((1, 2),), ((3, 3),), (0,), 9)
    work = count((weighted, own))
    assert [int(work.column("macs", part, 5)[0, 1]) for part in ("forward", "backward_data", "backward_weight")] == [
        50, 100, 200,
    ]  # fmt: skip
    assert bool(work.matrix[1])
    # a kernel that reads operands and weights once and writes its result, in fp32
    assert int(work.column("bytes", "forward", 5)[0, 1]) == 4 * (5 * 4 + 9 + 5 * 2)


def test_rule_of_multiply_accumulates_is_a_product_of_its_output():
    """60 multiply-accumulates for 2 x 3 outputs: rows and columns are the output's, and the inner size is 10."""
    pl.rule("my.thing", lambda layer: 60, macs=True)
    own = Layer("own", "my.thing", ((2, 5),), ((2, 3),), ((3, 3),), (INPUT,), 9)
    assert gemm_of(own, "forward") == Gemm(2, 3, 10, groups=1, grows="rows")
    assert gemm_of(own._replace(outputs=((7, 2, 3),)), "forward") == Gemm(14, 3, 1, groups=1, grows="rows")
    # 66 outputs are more than its operations: no product is thinner than 1
    assert gemm_of(own._replace(outputs=((11, 2, 3),)), "forward") == Gemm(22, 3, 1, groups=1, grows="rows")
    work = count((own,))
    assert int(work.column("flops", "forward", 4)[0, 0]) == 4 * 120
    assert class_of(own) == "gemm" and saved_tensors(own, [True], True).inputs == (0,)
    pl.rule("other.thing", lambda layer: 60)
    assert gemm_of(own._replace(kind="other.thing"), "forward") is None


@pytest.mark.parametrize("given", [-1, (1, 2), float("nan"), None])
def test_invalid_count_is_an_error(given):
    pl.rule("aten.erfinv", lambda layer: given)
    with pytest.raises(CountFailed, match=r"layer 'it'.*aten\.erfinv"):
        pl.layers(NETWORK)


def test_a_rule_is_a_function():
    with pytest.raises(PaleoError, match=r"a function from a layer to a number \(got 7\)"):
        pl.rule("aten.erfinv", 7)


@pytest.mark.slow
def test_rule_gives_the_count_of_torch():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

        def forward(self, x):
            return torch.erfinv(self.last(torch.erfinv(self.first(x))))

    pl.rule("aten.erfinv", lambda layer: prod(layer.outputs[0]), macs=True)
    rules = {torch.ops.aten.erfinv: lambda x, out_shape=None, **_: 2 * prod(out_shape)}
    module = Net().to("meta")
    with FlopCounterMode(display=False, custom_mapping=rules) as peer:
        module(torch.empty(6, 8, device="meta"))
    network = pl.trace(module, (1, 8))
    assert 2 * pl.layers(network, convention="macs", batch_size=6).total == peer.get_total_flops()

    pl.rule(Net, lambda layer: 1000)  # a module is one layer, whatever is inside
    (whole,) = pl.trace(torch.nn.Sequential(module), (1, 8)).layers
    assert (whole.name, whole.kind, whole.outputs, whole.parameters) == ("0", "Net", ((1, 4),), 8 * 16 + 16 + 68)
    assert pl.layers(pl.trace(module, (1, 8)), batch_size=2).total == 2000


def test_a_file_on_the_command_line(tmp_path):
    from paleo_lite.architectures import write_descriptor

    write_descriptor(NETWORK, tmp_path / "net.json")
    rules = tmp_path / "rules.py"
    rules.write_text("import paleo_lite as pl\npl.rule('aten.erfinv', lambda layer: 77)\n")
    done = CliRunner().invoke(main, ["layers", str(tmp_path / "net.json"), "--rules", str(rules)])
    assert done.exit_code == 0 and "77 FLOP" in done.stdout
    rules.write_text("1 / 0")
    done = CliRunner().invoke(main, ["layers", str(tmp_path / "net.json"), "--rules", str(rules)])
    assert done.exit_code == 1 and "rules.py: ZeroDivisionError: division by zero" in done.output


@pytest.mark.parametrize(("length", "heads", "size"), [(512, 32, 64), (16384, 16, 128), (7, 1, 8)])
def test_causal_attention_has_half_the_flops_as_in_flashattention(length, heads, size):
    # benchmarks/benchmark_flash_attention.py: 4 * batch * seqlen**2 * nheads * headdim // (2 if causal else 1),
    # 2.5 times as much backward, the recomputation of scores included: 2 without
    batch, shape = 3, (1, heads, length, size)
    own = Layer("w", "linear", ((1, 4),), (shape,), ((4, 4),), (INPUT,), 16)
    layer = Layer("it", "attention", (shape,) * 3, (shape,), (), (0, 0, 0), 0, {"causal": True})
    network = Network("attends", ((1, 4),), (own, layer), 0)
    halved, number = count_half_of_causal(network.layers)
    assert number == 1
    for causal, part in (("full", 1), ("half", 2)):
        layers = halved if causal == "half" else network.layers
        flops = 4 * batch * length**2 * heads * size // part
        assert 2 * int(count(layers).column("macs", "forward", batch)[0, 1]) == flops
        assert 2 * int(count(layers).column("macs", "backward_data", batch)[0, 1]) == 2 * flops
    assert any("in 1 layer;" in note for note in pl.layers(network, causal="half").notes)
