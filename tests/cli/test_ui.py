"""``paleo-lite ui``: the server that it starts, and its error messages.

Tests: api/serving.py.
"""

from __future__ import annotations

import socket
import sys

import pytest
from click.testing import CliRunner

from paleo_lite.api.serving import ADDRESS, FIRST_PORT, free_port, server_options
from paleo_lite.cli import main
from paleo_lite.errors import BadValue


@pytest.fixture
def taken():
    """A port that another program listens on."""
    with socket.socket() as other:
        other.bind((ADDRESS, 0))
        other.listen()
        yield other.getsockname()[1]


def run(*arguments):
    return CliRunner().invoke(main, ["ui", *map(str, arguments)], prog_name="paleo-lite")


def test_occupied_port_is_an_error(taken):
    pytest.importorskip("streamlit")
    result = run("--port", taken)
    assert result.exit_code == 2
    assert f"port {taken} is not available" in result.stderr and "--port" in result.stderr


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_invalid_port_is_an_error(port):
    assert run("--port", port).exit_code == 2


def test_default_is_the_next_free_port(monkeypatch, taken):
    monkeypatch.setattr("paleo_lite.api.serving.FIRST_PORT", taken)
    try:
        assert taken < free_port(None) < taken + 100
    except BadValue:  # at the end of the range there is no next
        assert taken > 65535 - 100
    assert FIRST_PORT == 8501  # Streamlit's own


@pytest.mark.parametrize("absent", ["streamlit", "altair", "pyarrow"])
def test_a_missing_extra_is_named(monkeypatch, absent):
    for module in ("streamlit", "altair", "pyarrow", "scipy"):
        pytest.importorskip(module)
    monkeypatch.setitem(sys.modules, absent, None)
    result = run()
    assert result.exit_code == 1
    assert "pip install 'paleo-lite[ui]'" in result.stderr


def test_server_is_local_and_sends_no_statistics():
    options = dict(option.removeprefix("--").split("=") for option in server_options(8600, True))
    assert options["server.address"] == "127.0.0.1"
    assert options["browser.gatherUsageStats"] == "false"
    assert options["server.maxUploadSize"] == "200"
    assert options["server.port"] == "8600"
    assert options["server.headless"] == "true"
