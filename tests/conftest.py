"""Fixtures that several tests share: every network is built and traced once."""

from __future__ import annotations

import signal
from functools import lru_cache

import pytest


@pytest.fixture(scope="session")
def traced():
    """From a network's name, and an image size where it is not the network's own, to its trace."""
    from paleo_lite.networks import trace_named

    return lru_cache(None)(trace_named)


@pytest.fixture(scope="session")
def built():
    """From a torchvision model's name to the module, all on the meta device in evaluation mode, and its image size."""
    from paleo_lite.networks.build import torchvision_model

    @lru_cache(4)
    def build(name):
        module, size = torchvision_model(name)
        return module.eval().to("meta"), size

    return build


@pytest.fixture
def interruptible():
    """Processes started by a test take an interrupt, also where the tests themselves run in the background without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
