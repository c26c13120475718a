"""Malformed requests, for a while: no 500, no traceback, and no waiter or connection is left behind.

Schemathesis reads the OpenAPI document that the server serves and calls every operation in it with good and bad
data, and checks that every answer is one that the document knows. The second fuzzer speaks no HTTP at all, or nearly.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.serving import Serving

SECONDS = float(os.environ.get("QO_FUZZ_SECONDS", "10"))
SEED = int(os.environ.get("QO_FUZZ_SEED", "0")) or random.randrange(1 << 32)
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
SETTINGS = {"QO_LIMITS_WAIT_MS": "50", "QO_LIMITS_REQUEST_SECONDS": "2", "QO_LIMITS_KEEP_ALIVE_SECONDS": "1"}


@pytest.fixture
def server(tmp_path):
    with Serving(tmp_path, environment=SETTINGS) as server:
        yield server


def connections(server: Serving) -> int:
    """Its sockets; those of its own are there from the start."""
    files = Path(f"/proc/{server.process.pid}/fd").iterdir()
    return sum(_target(each).startswith("socket:") for each in files)


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # it was closed meanwhile
        return ""


def metrics(server: Serving) -> dict:
    with urlopen(f"{server.url}/metrics", timeout=10) as answer:
        return json.load(answer)


def check_whole(server: Serving, connections_before: int) -> None:
    """Nothing broke, nothing is left behind, and it still works."""
    statuses = {sample["labels"]["status"] for sample in metrics(server)["qo_http_requests_total"]["samples"]}
    assert not statuses & {"500", "502"}
    assert "Traceback" not in server.said()
    deadline = time.monotonic() + 20
    while connections(server) > connections_before or metrics(server)["qo_http_waiters"]["samples"][0]["value"]:
        assert time.monotonic() < deadline, f"{connections(server)} sockets are open, {connections_before} were"
        time.sleep(0.1)
    assert server.stop() == 0


def test_every_answer_is_one_that_the_document_knows(server, tmp_path):
    before = connections(server)
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/v1/openapi.json",
            "--max-time", str(int(SECONDS)), "--checks", ",".join(CHECKS), "--exclude-operation-id", "stream",
            "--suppress-health-check", "all", "--no-shrink", "--continue-on-failure", "--request-timeout", "10",
            "--warnings", "off", "--generation-database", "none", "--no-color",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    check_whole(server, before)


GOOD = [
    b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b'POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 13\r\n\r\n{"payload":1}',
    b"POST /v1/queues/q/claim?wait=true&timeout_ms=50 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n",
    b'POST /v1/settle HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nc\r\n{"items":[]}\r\n0\r\n\r\n',
    b"GET /v1/queues/q/stream?messages=1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: text/plain\r\nconnection: close\r\n\r\n",
]
PIECES = [
    b"\r\n", b"\r\n\r\n", b"\x00", b"\xff\xfe", b": ", b" ", b"%", b"%zz", b"%ff", b"/../", b"?" * 50, b"HTTP/9.9",
    b"-1",
    b"content-length: 99999999999999999999\r\n", b"content-length: -5\r\n",
    b"content-length: 5\r\ncontent-length: 6\r\n",
    b"transfer-encoding: chunked\r\n", b"expect: 100-continue\r\n", b"upgrade: websocket\r\nconnection: upgrade\r\n",
    b"ffffffffffffffff\r\n", b'{"payload":', b"[" * 2000, b"x" * 40_000, b"authorization: Bearer \xe9\r\n",
    b"idempotency-key: \xff\r\n", b"host: [\r\n", b"origin: http://[\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]  # fmt: skip


def malformed(draw: random.Random) -> bytes:
    """A request, or a few, with something wrong in it."""
    data = bytearray(b"".join(draw.choice(GOOD) for _ in range(draw.choice([1, 1, 1, 2, 5]))))
    for _ in range(draw.randrange(6)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0:
                data[at:at] = draw.choice(PIECES)
            case 1:
                del data[at : at + draw.randrange(1, 20)]
            case 2:
                data[at : at + 1] = bytes([draw.randrange(256)])
            case 3:
                data = data[:at] or data
            case _:
                data[at:at] = draw.randbytes(draw.randrange(30))
    return draw.randbytes(draw.randrange(200)) if draw.randrange(20) == 0 else bytes(data)


def test_bytes_that_are_not_quite_http(server):
    print("seed", SEED)
    draw = random.Random(SEED)
    host, _, port = server.url.removeprefix("http://").partition(":")
    before = connections(server)
    until = time.monotonic() + SECONDS
    held: list[socket.socket] = []
    sent = 0
    while time.monotonic() < until:
        connection = socket.create_connection((host, int(port)), timeout=5)
        try:
            connection.sendall(malformed(draw))
            sent += 1
            match draw.randrange(4):
                case 0:
                    held.append(connection)  # says no more, for a while
                    continue
                case 1:
                    connection.settimeout(0.05)
                    connection.recv(65536)
                case 2:
                    connection.shutdown(socket.SHUT_WR)
                case _:
                    pass
        except OSError:
            pass
        connection.close()
        if len(held) > 50:
            held.pop(draw.randrange(len(held))).close()
    for connection in held:
        connection.close()
    print(sent, "malformed requests")
    assert sent > 100
    check_whole(server, before)
