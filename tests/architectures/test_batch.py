"""Batch scaling: counts of a batch computed from a trace of one sample equal those of a trace of the whole batch.

Tests: architectures/trace.py.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from paleo_lite.architectures.trace import trace  # noqa: E402
from paleo_lite.counting import count  # noqa: E402

pytestmark = pytest.mark.slow

BATCH = 16


class Net(nn.Module):
    """A module with the given forward function and attributes."""

    def __init__(self, function, **members):
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args):
        return self.function(self, *args)


def attention():
    return nn.MultiheadAttention(16, 2, batch_first=True)


def queries():
    return nn.Parameter(torch.zeros(1, 5, 16))


def zeros_attend(self, x):
    zeros = torch.zeros(x.shape[0], 10, 16, device=x.device)
    return self.a(zeros, zeros, zeros)[0] + x


def queries_attend(self, x):
    query = self.q.expand(x.shape[0], -1, -1)
    return self.b(self.a(query, query, query)[0], x, x)[0]


def filled(self, x):
    state = torch.empty(x.shape[0], 16, device=x.device)
    state.zero_()
    return self.l(state) + x


def positions(self, x):
    return self.l(self.e(torch.arange(10, device=x.device)).expand(x.shape[0], -1, -1)) + x


def shared(self, x):
    return self.l(torch.zeros(5, 16, device=x.device))[0] + x


CREATED_WITH_BATCH_SIZE = {
    "an LSTM cell without state": (nn.LSTMCell(16, 32), (16,)),
    "an LSTM without state": (nn.LSTM(16, 32, batch_first=True), (4, 16)),
    "a GRU of two layers": (nn.GRU(16, 8, 2, batch_first=True), (4, 16)),
    "zeros that attend": (Net(zeros_attend, a=attention()), (10, 16)),
    "learned queries": (Net(lambda self, x: self.a(self.q.expand(x.shape[0], -1, -1), x, x)[0], a=attention(),
                            q=queries()), (10, 16)),
    "learned queries that attend to themselves": (Net(queries_attend, a=attention(), b=attention(), q=queries()),
                                                  (10, 16)),
    "repeated queries": (Net(lambda self, x: self.l(self.q.repeat(x.shape[0], 1, 1)).sum() + x, l=nn.Linear(16, 16),
                             q=queries()), (10, 16)),
    "positions of each sample": (Net(positions, l=nn.Linear(16, 16), e=nn.Embedding(10, 16)), (10, 16)),
    "memory that is filled": (Net(filled, l=nn.Linear(16, 16)), (16,)),
    "a tensor shared by all samples": (Net(shared, l=nn.Linear(16, 16)), (16,)),
}  # fmt: skip


def columns(network, batch_size=1):
    work = count(network.layers)
    return {
        (name, phase): int(work.column(name, phase, batch_size).sum())
        for name in ("macs", "flops")
        for phase in ("inference", "backward")
    }


@pytest.mark.spread(5)
@pytest.mark.parametrize("name", CREATED_WITH_BATCH_SIZE)
def test_a_batch_follows_from_one_sample(name):
    module, shape = CREATED_WITH_BATCH_SIZE[name]
    network = trace(module, (1, *shape))
    assert columns(network, BATCH) == columns(trace(module, (BATCH, *shape)))
    assert network.notes == ()
    with FlopCounterMode(display=False) as counter:
        module.to("meta")(torch.empty(BATCH, *shape, device="meta"))
    assert 2 * columns(network, BATCH)["macs", "inference"] == counter.get_total_flops()


def test_an_input_that_all_samples_share():
    """Position ids without a batch dimension: their embedding is computed once for any batch size."""
    module = Net(lambda self, x, p: self.a(self.e(p).expand(x.shape[0], -1, -1) + x),
                 e=nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 16)), a=nn.Linear(16, 16))  # fmt: skip
    network = trace(module, (1, 10, 16), torch.zeros(10, dtype=torch.long))
    assert columns(network, 7)["macs", "inference"] == (7 + 1) * 10 * 16 * 16


def test_a_note_states_unknown_batch_dependence():
    def pairs(self, x):
        return self.l(torch.zeros(x.shape[0], x.shape[0], 16)).sum() + x

    (note,) = trace(Net(pairs, l=nn.Linear(16, 16)), (1, 16)).notes
    assert note.startswith("two samples have +300% multiply-accumulates relative to twice one sample")

    def single_sample(self, x):
        if x.shape[0] > 1:
            raise ValueError("one at a time")
        return self.l(torch.zeros(x.shape[0], 16)) + x

    (note,) = trace(Net(single_sample, l=nn.Linear(16, 16)), (1, 16)).notes
    assert note.startswith("two samples cannot be traced; ") and "one at a time" in note
