"""Device and settings with which torch runs, and errors for unsupported ones."""

from __future__ import annotations

import sys

import pytest

from paleo_lite.errors import BadValue, MissingExtra
from paleo_lite.measurement.clock import EventClock, HostClock
from paleo_lite.measurement.running import set_up

pytestmark = pytest.mark.slow  # importing torch takes seconds


@pytest.mark.parametrize(
    ("device", "precision", "message"),
    [
        ("cpu", "tf32", "tensor cores"),
        ("cpu", "fp8", "cannot run whole networks in fp8"),
        ("tpu", "fp32", "cpu or cuda"),
    ],
)
def test_refusals(device: str, precision: str, message: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(BadValue, match=message), set_up(device, precision):
        pass


def test_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadValue, match="no CUDA device"), set_up("cuda", "fp32"):
        pass


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"paleo-lite\[torch\]"), set_up("cpu", "fp32"):
        pass


def test_torch_is_left_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    other = 1 if threads > 1 else 2
    with pytest.raises(RuntimeError, match="on purpose"), set_up("cpu", "fp32", threads=other):
        assert torch.get_num_threads() == other
        assert not torch.backends.cudnn.allow_tf32  # torch's default for convolutions is True
        raise RuntimeError("on purpose")
    assert torch.get_num_threads() == threads
    assert torch.backends.cudnn.allow_tf32 == tf32


def test_clock_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    with set_up("cpu", "bf16", threads=1, channels_last=True) as setup:
        assert isinstance(setup.clock, HostClock)
        assert setup.software.endswith(" 1 thread channels-last")
        images = setup.images(2, 3, 4, 4)
        assert images.dtype is torch.bfloat16
        assert images.is_contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with set_up("cuda", "tf32") as setup:
        assert isinstance(setup.clock, EventClock)
        assert torch.backends.cuda.matmul.allow_tf32
