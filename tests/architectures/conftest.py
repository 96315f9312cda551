"""Fixtures of the tests of architectures."""

from __future__ import annotations

import msgspec
import pytest

from paleo_lite.architectures import trace_process


@pytest.fixture
def traced_here(monkeypatch):
    """Configs are traced in this process, which imports torch and transformers once.

    test_trace_process.py tests the process with limits that traces them otherwise.
    """

    def answer_here(request, file):
        data = trace_process.encode_answer(trace_process.answer(request), request.path)
        return msgspec.json.decode(data, type=trace_process.TraceReply)

    monkeypatch.setattr(trace_process, "_ask", answer_here)
