"""Networks for a range of sequence lengths, against traces at single lengths and torch's counter."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.architectures.inputs import Input, read_input
from paleo_lite.errors import BadValue, PaleoError, TraceFailed

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Reader(nn.Module):
    """Embedding, learned positions, unfused causal attention, and a second input of the same length."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Parameter(torch.zeros(4096, 16))
        self.three, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, words, kept):
        x = self.words(words) + self.places[: words.shape[1]]
        query, key, value = self.three(self.norm(x)).chunk(3, -1)
        scores = query @ key.transpose(1, 2)
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        x = x + scores.masked_fill(hidden, -1e9).softmax(-1) @ value
        return self.out(torch.cat([x, x * kept.unsqueeze(-1)], 1)).sort(1).values


INPUTS = ["int64:16-4096", "kept=16-4096"]


@pytest.fixture(scope="module")
def network():
    return pl.layers(Reader(), inputs=INPUTS).network


@pytest.mark.parametrize("length", [16, 17, 1000, 4095])
def test_every_length_equals_a_trace_at_that_length(network, length):
    from torch.utils.flop_counter import FlopCounterMode

    module = Reader()
    traced = pl.trace(module, torch.zeros(1, length, dtype=torch.long), kept=torch.zeros(1, length))
    made = pl.layers(network, sequence_length=length, convention="macs")
    assert made.network.layers == traced.layers
    assert made.network.inputs == traced.inputs
    with torch.device("meta"), FlopCounterMode(display=False) as peer:
        module.to("meta")(torch.zeros(1, length, dtype=torch.long), torch.zeros(1, length))
    assert 2 * made.total == peer.get_total_flops()
    assert pl.layers(Reader(), inputs=INPUTS, sequence_length=length).network.layers == traced.layers


def test_a_descriptor_has_all_lengths_without_torch(network, tmp_path):
    path = tmp_path / "reader.json"
    pl.export(network, path)
    for length in (16, 777, 4096):
        counts = pl.layers(str(path), sequence_length=length)
        assert counts.network.layers == pl.layers(network, sequence_length=length).network.layers
        prediction = pl.predict(str(path), gpu="k80-die", sequence_length=length, phase="training")
        assert prediction.time_s == pl.predict(network, gpu="k80-die", sequence_length=length, phase="training").time_s
    assert "assumed to read 4096 tokens; set them with --sequence-length" in pl.layers(str(path)).notes
    question = pl.Predict(str(path), gpu="k40m", sequence_length="16:4096:x4")
    rows = pl.sweep(question, tmp_path / "sweep.csv", jobs=1).to_frame()
    assert list(rows.sequence_length) == [16, 64, 256, 1024, 4096]
    for row in rows.itertuples():
        prediction = pl.predict(str(path), gpu="k40m", sequence_length=row.sequence_length)
        assert row.time_s == pytest.approx(prediction.time_s, rel=1e-12)


def test_strided_lengths_are_exact_or_an_error():
    """Two strides of 2: lengths with the same remainder equal a trace, others are refused."""
    audio = nn.Sequential(*(nn.Conv1d(4, 4, 3, stride=2, padding=1) for _ in range(2)))
    network = pl.layers(audio, inputs=["4x100-3000"]).network
    assert pl.layers(network, sequence_length=1000).network.layers == pl.trace(audio, (1, 4, 1000)).layers
    with pytest.raises(BadValue, match="has no integer size at a length of 1001, unlike at 100, 1060 and 3000"):
        pl.layers(network, sequence_length=1001)


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (nn.LSTM(4, 4, batch_first=True), ["16-64x4"], "operations for 16 tokens and .* for 32: .*give one length"),
        (nn.AdaptiveAvgPool1d(8), ["4x5-14"], ""),
        (nn.Unfold((3, 1), padding=(1, 0)), ["4x16-17x1"], "too short to interpolate: give one length"),
    ],
)
def test_sizes_that_are_not_polynomials_are_an_error(module, inputs, message):
    if not message:
        network = pl.layers(module, inputs=inputs).network
        assert pl.layers(network, sequence_length=9).network.layers == pl.trace(module, (1, 4, 9)).layers
        return
    with pytest.raises(PaleoError, match=message):
        pl.layers(module, inputs=inputs)


def test_a_window_inside_the_range_is_detected():
    """Keys of the last 256 tokens are not a polynomial of the length from 16 to 4096, only up to and from 256."""

    class Windowed(nn.Module):
        def forward(self, x):
            return x @ x[:, -256:].transpose(1, 2)

    with pytest.raises(TraceFailed, match="getitem is not a polynomial of the sequence length between 16 and 4096"):
        pl.layers(Windowed(), inputs=["16-4096x8"])
    network = pl.layers(Windowed(), inputs=["256-4096x8"]).network
    assert pl.layers(network, sequence_length=1000, convention="macs").total == 1000 * 256 * 8


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sequence_length": 5000}, r"--sequence-length must be an integer from 16 to 4,096 \(got 5000\)"),
        ({"sequence_length": 15}, r"from 16 to 4,096 \(got 15\)"),
        (
            {"phase": "decode", "context": 9},
            "phases prefill and decode, and --context, need a network from a config",
        ),
    ],
)
def test_unsupported_options_of_a_traced_network(network, asked, message):
    with pytest.raises(BadValue, match=message):
        pl.predict(network, gpu="k80-die", **asked)


def test_ranges_of_lengths_are_read():
    assert read_input("input_ids=int64:1-4096") == Input(((1, 4096),), "int64", "input_ids")
    assert read_input("3x16-64x2") == Input((3, (16, 64), 2))
    for wrong in ("4-4", "9-4", "1-2-3", "-4", "4-"):
        with pytest.raises(BadValue, match="is not a shape"):
            read_input(wrong)
    with pytest.raises(BadValue, match=r"the same range of sequence lengths \(got 1-4 and 1-8\)"):
        pl.layers(Reader(), inputs=["int64:1-4", "1-8"])
    with pytest.raises(BadValue, match="--sequence-length needs an input with a range of lengths"):
        pl.layers(Reader(), inputs=["int64:4", "4"], sequence_length=3)


def test_a_context_applies_to_several_networks():
    asked = {"sequence_length": None, "context": 512, "precision": "fp16"}
    several = pl.predict(["gpt2", "gpt2-xl"], gpu="v100-sxm2", phase="decode", precision="fp16", context=512)
    row = several.rows[0]
    one = pl.predict("gpt2", gpu="v100-sxm2", phase="decode", **asked)
    other = pl.predict("gpt2", gpu="v100-sxm2", phase="decode", **{**asked, "context": 1000})
    assert row["time_s"] == one.time_s != other.time_s
    assert pl.predict(one.workload.network, gpu="v100-sxm2", phase="decode", precision="fp16").time_s == one.time_s


@pytest.mark.thorough
def test_sweep_over_sequence_lengths_of_shipped_networks(tmp_path):
    pytest.importorskip("pyarrow")
    question = pl.Predict(
        "gpt2", gpu="v100-sxm2", precision="fp32", sequence_length=[128, 1024], batch_size=[1, 2],
        phase="inference,training",
    )  # fmt: skip
    rows = pl.sweep(question, tmp_path / "gpt2.csv", jobs=1).to_frame()
    assert len(rows) == 8
    for row in rows.itertuples():
        asked = {
            "precision": "fp32",
            "phase": row.phase,
            "batch_size": row.batch_size,
            "sequence_length": row.sequence_length,
        }
        assert row.time_s == pytest.approx(pl.predict("gpt2", gpu="v100-sxm2", **asked).time_s, rel=1e-12)
    with pytest.raises(BadValue, match="alexnet does not read sequences"):
        pl.sweep(pl.Predict("alexnet", gpu="k40m", sequence_length=128), tmp_path / "no.csv")
