"""A small deployment that the tests of serving share."""

from __future__ import annotations

import pytest

from paleo_lite.api.question import Question, resolve_question
from paleo_lite.engines.records import find_server
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.placement import ModelOnDevice


@pytest.fixture(scope="session")
def on_device() -> ModelOnDevice:
    """Llama 3 8B on an H100."""
    workload, machine, model = resolve_question(
        Question("llama-3-8b", "h100-sxm", precision="bf16", phase="decode", execution="engine")
    )
    return ModelOnDevice(workload, machine, model, None, "bf16")


@pytest.fixture(scope="session")
def deployment(on_device: ModelOnDevice) -> Deployment:
    """One replica of it under vLLM, without overhead."""
    return Deployment(on_device, find_server("vllm", on_device.machine.device, overhead_s=0.0))
