"""A small deployment that tests of engines share."""

from __future__ import annotations

import pytest

from paleo_lite.api.question import Question, resolve_question
from paleo_lite.serving.placement import ModelOnDevice


@pytest.fixture(scope="session")
def on_device() -> ModelOnDevice:
    """Llama 3 8B on an H100."""
    workload, machine, model = resolve_question(
        Question("llama-3-8b", "h100-sxm", precision="bf16", phase="decode", execution="engine")
    )
    return ModelOnDevice(workload, machine, model, None, "bf16")
