"""Requests that no browser of the page's own makes: each is refused, and the page answers on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("streamlit")

from paleo_lite.api.serving import ADDRESS
from patience import PATIENCE_S

pytestmark = pytest.mark.slow

STREAM, UPLOAD = "/_stcore/stream", "/_stcore/upload_file/nobody/nothing"
MASK = bytes(4)
FORM = b'--b\r\nContent-Disposition: form-data; name="f"; filename="../../x"\r\n\r\n'


class Server(NamedTuple):
    """A running page."""

    port: int
    pid: int

    @property
    def host(self) -> str:
        return f"{ADDRESS}:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection((ADDRESS, self.port), timeout=PATIENCE_S)

    def send(self, data: bytes) -> bytes:
        """Send bytes and return the beginning of the answer, which is empty where the server closes at once."""
        with self.connect() as connection:
            try:
                connection.sendall(data)
                return connection.recv(4096)
            except (ConnectionResetError, BrokenPipeError):
                return b""

    def status(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> int:
        fields = {"Host": self.host, "Connection": "close", **{k.replace("_", "-"): v for k, v in headers.items()}}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        answer = self.send("\r\n".join(lines).encode() + body)
        return int(answer.split()[1]) if answer else 0

    def handshake(self, host: str, origin: str) -> int:
        return self.status(STREAM, Host=host, Origin=origin, **UPGRADE)

    def is_healthy(self) -> bool:
        with urllib.request.urlopen(f"http://{self.host}/_stcore/health", timeout=PATIENCE_S) as answer:
            return answer.status == 200


UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with socket.socket() as probe:  # any port: other tests take the first free one at the same time
        probe.bind((ADDRESS, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "paleo_lite", "ui", "--port", str(port), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            running = Server(port, process.pid)
            while process.poll() is None:
                try:
                    running.is_healthy()
                    break
                except OSError:
                    time.sleep(0.1)
            yield running
            assert running.is_healthy()
        finally:
            process.terminate()
            process.wait()


def test_a_name_that_is_made_to_resolve_here_is_refused(server: Server) -> None:
    """By DNS rebinding the page of another site has the origin of this server, under a name of its own."""
    assert server.handshake(server.host, f"http://{server.host}") == 101
    for name in (f"evil.example:{server.port}", "evil.example", f"127.0.0.1.evil.example:{server.port}"):
        assert server.handshake(name, f"http://{name}") == 403, name


@pytest.mark.parametrize("prefix", ["/static/", "/media/", "/component/x/", "/app/static/", "/_stcore/", "/"])
@pytest.mark.parametrize("up", ["../", "..%2f", "%2e%2e/", "..\\", "%00/"])
def test_no_path_leaves_the_files_of_the_page(server: Server, prefix: str, up: str) -> None:
    path = f"{prefix}{up * 8}etc/passwd"
    answer = server.send(f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\nConnection: close\r\n\r\n".encode())
    assert b"root:" not in answer
    assert not answer or int(answer.split()[1]) in (200, 400, 403, 404)


@pytest.mark.parametrize(
    "headers",
    [{"X": "a" * 200_000}, {f"X{number}": "a" for number in range(20_000)}, {"Content_Length": "-5"}],
    ids=["long", "many", "negative"],
)
def test_oversized_headers_are_refused(server: Server, headers: dict[str, str]) -> None:
    assert server.status("/", **headers) in (0, 400, 431)


def test_an_oversized_question_is_refused(server: Server) -> None:
    assert server.status("/?" + "a=b&" * 100_000) in (0, 400, 414)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_an_upload_needs_a_session(server: Server) -> None:
    """It is refused before its body is held: memory grows by less than the body."""
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * page

    before, body = resident(), FORM + bytes(2**26)
    found = server.status(
        UPLOAD, "PUT", body, Content_Type="multipart/form-data; boundary=b", Content_Length=str(len(body))
    )
    assert found in (0, 403)
    assert resident() - before < 2**25


def test_unfinished_requests_keep_nobody_out(server: Server) -> None:
    waiting = [server.connect() for _ in range(30)]
    try:
        for connection in waiting:
            connection.sendall(b"GET / HTTP/1.1\r\nX")
        assert server.is_healthy()
    finally:
        for connection in waiting:
            connection.close()


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "frame",
    [
        b"\x82\x85" + MASK + b"hello",  # no message of Streamlit
        b"\x81\x85" + MASK + b"hello",  # text
        b"\x82\x05hello",  # not masked
        b"\xf2\x85" + MASK + b"hello",  # reserved bits
        b"\x82\xff\x7f" + b"\xff" * 7 + MASK,  # 2^63 bytes
        b"\x89\xfe\xff\xff" + MASK + bytes(65535),  # a ping that is too long
        b"\x88\x81" + MASK + b"x",  # half a code
    ],
)
def test_malformed_frames_end_their_own_connection_only(server: Server, frame: bytes) -> None:
    with server.connect() as connection:
        fields = {"Host": server.host, "Origin": f"http://{server.host}", **UPGRADE}
        lines = [f"GET {STREAM} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(4096).split()[1] == b"101"
        connection.sendall(frame)
    assert server.is_healthy()
