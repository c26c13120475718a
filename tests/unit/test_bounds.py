"""What a stranger or a careless client can make a server hold: memory, connections, time."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import socket

import pytest

from qo.core.errors import Invalid
from qo.core.names import suggestion
from qo.server import protocol, router
from qo.server.protocol import Connections
from qo.server.router import Router
from qo.server.routes import v1
from qo.server.settings import LimitSettings
from tests.unit.test_server import ask, connection, opened, waiting

MIB = 1024 * 1024


# What is remembered of what strangers send


def test_long_paths_are_not_remembered():
    """Nobody has said yet who sends them."""
    routes = Router(v1.ROUTES)
    for number in range(50):
        found, taken = routes.find("POST", b"/v1/queues/%06d%s/messages" % (number, b"a" * 20_000))
        assert (found.name, len(taken["queue"])) == ("push", 20_006)
    assert not routes._known
    for number in range(router.KNOWN_PATHS + 10):
        routes.find("GET", b"/v1/queues/q%d" % number)
    assert 0 < len(routes._known) <= router.KNOWN_PATHS


async def test_an_unknown_field_of_any_length_is_refused_shortly():
    async with opened() as (running, session):
        running.session = session
        for name in ("x" * (8 * MIB), "payl" * MIB, "é" * MIB):
            body = json.dumps({name: 1}, ensure_ascii=False).encode()
            async with session.post("/v1/queues/q/messages", data=io.BytesIO(body)) as answer:
                said = await answer.read()
            assert answer.status == 400
            assert len(said) < 4000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/queues/q/messages", {"payload": 1, "id": "x" * MIB}),
        ("POST", "/v1/queues/q/messages", {"payload": 1, "kind": "x" * MIB}),
        ("POST", "/v1/queues/q/messages", {"payload": 1, "due_at": "x" * MIB}),
        ("POST", "/v1/queues/q/messages", {"payload": 1, "headers": {"x" * MIB: 1}}),
        ("POST", "/v1/claim", {"queues": ["x" * MIB]}),
        ("POST", "/v1/claim", {"queues": ["q"], "start": "x" * MIB}),
        ("POST", "/v1/settle", {"items": [{"token": "t", "lane": 1, "offset": 0, "report": "x" * MIB}]}),
        ("PATCH", "/v1/queues/q", {"x" * MIB: 1}),
        ("PATCH", "/v1/queues/q", {"history": "x" * MIB}),
        ("POST", "/v1/jobs/lookup", {"ids": ["x" * MIB]}),
        ("POST", "/v1/tokens", {"name": "x" * MIB, "scopes": ["read"]}),
        ("POST", "/api/v1/push", {"items": [{"queue": "x" * MIB, "payload": 1}]}),
        ("POST", "/api/v1/configure", {"queue": "q", "options": {"x" * MIB: 1}}),
    ],
)
async def test_no_error_echoes_what_is_long(method, path, body):
    async with opened() as (running, session):
        running.session = session
        async with session.request(method, path, data=io.BytesIO(json.dumps(body).encode())) as answer:
            said = await answer.read()
        assert answer.status < 500
        assert len(said) < 8000, path


def test_a_long_word_is_not_compared_with_others():
    assert suggestion("prioritty", ["priority"]) != ""
    assert suggestion("p" * 65, ["p" * 66]) == ""


def test_an_error_of_ours_is_short():
    error = Invalid("f" * MIB, "p" * MIB)
    assert len(str(error)) < 2000
    assert "1048576 characters" in str(error)


# Connections


async def test_too_many_connections_are_refused_and_the_log_says_so(caplog):
    async with opened(limits=LimitSettings(connections=3)) as (running, _):
        held = [await connection(running) for _ in range(3)]
        while running.connections < 3:
            await asyncio.sleep(0.001)
        with caplog.at_level(logging.WARNING, "qo.server"):
            for _ in range(5):
                reader, writer = await connection(running)
                said = await asyncio.wait_for(reader.read(), 10)
                assert said.startswith(b"HTTP/1.1 503")
                assert b"3 connections are open already (limits.connections)" in said
                assert b"retry-after: 1" in said
                writer.close()
        assert len([each for each in caplog.records if "connections are refused" in each.getMessage()]) == 1
        for _, writer in held:
            writer.close()
        while running.connections:
            await asyncio.sleep(0.001)
        reader, writer = await connection(running)
        writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_connections_of_one_address_are_limited():
    async with opened(limits=LimitSettings(connections_per_address=2)) as (running, _):
        held = [await connection(running) for _ in range(2)]
        while running.connections < 2:
            await asyncio.sleep(0.001)
        reader, writer = await connection(running)
        assert b"2 connections of 127.0.0.1 are open already" in await asyncio.wait_for(reader.read(), 10)
        host, _, port = running.url.removeprefix("http://").partition(":")
        reader, other = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
        other.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200"), "another address is served"
        for each in (writer, other, *(writer for _, writer in held)):
            each.close()


def test_connections_are_counted_and_forgotten():
    counted = Connections(2, 1)
    assert counted.opened("a") is None
    assert "limits.connections_per_address" in (counted.opened("a") or "")
    assert "limits.connections)" in (counted.opened("b") or "")
    for address in ("a", "a", "b"):
        counted.closed(address)
    assert len(counted) == 0
    assert not counted._of, "no address is kept"


def test_there_are_never_more_connections_than_descriptors(monkeypatch):
    monkeypatch.setattr(protocol, "most_descriptors", lambda: 1000)
    assert protocol.protocol_with(LimitSettings(connections=20_000)).all_connections._limit == 800
    monkeypatch.setattr(protocol, "most_descriptors", lambda: 1 << 20)
    assert protocol.protocol_with(LimitSettings(connections=20_000)).all_connections._limit == 20_000


async def test_streams_of_one_client_are_limited():
    async with opened(limits=LimitSettings(streams_per_client=2)) as (running, session):
        running.session = session
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                answer = await stack.enter_async_context(session.get("/v1/queues/q/stream"))
                assert answer.status == 200
            status, _, problem = await ask(running, "GET", "/v1/queues/q/stream")
            assert (status, "limits.streams_per_client" in problem["detail"]) == (429, True)
        while running.context.streams:
            await asyncio.sleep(0.001)
        async with session.get("/v1/queues/q/stream") as answer:
            assert answer.status == 200
        await waiting(running, 0)


async def test_an_empty_line_does_not_hold_a_connection():
    async with opened(limits=LimitSettings(request_seconds=0.1, keep_alive_seconds=0.2)) as (running, _):
        reader, writer = await connection(running)
        writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
        writer.write(b"\r\n")
        async with asyncio.timeout(10):
            while running.connections:
                await asyncio.sleep(0.01)
        writer.close()


# Slow clients


async def test_a_steady_slow_reader_gets_all_of_its_answer():
    """It takes longer than the limit for all of it, though the system passes what it takes on in bursts."""
    async with opened(limits=LimitSettings(stall_seconds=0.5)) as (running, session):
        running.session = session
        await ask(running, "POST", "/v1/queues/q/messages", {"messages": [{"payload": "x" * (MIB - 100)}] * 8})
        loop, client = asyncio.get_running_loop(), socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        await loop.sock_connect(client, address(running))
        asked = "POST /v1/queues/q/claim?messages=8 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        head = f"{asked}content-length: 0\r\n\r\n".encode()
        await loop.sock_sendall(client, head)
        taken = 0
        while piece := await asyncio.wait_for(loop.sock_recv(client, 32 * 1024), 10):
            taken += len(piece)
            await asyncio.sleep(0.015)
        client.close()
        assert taken > 7 * MIB


def address(running) -> tuple[str, int]:
    host, _, port = running.url.removeprefix("http://").partition(":")
    return host, int(port)


async def test_a_body_over_the_limit_gets_its_413_though_the_client_sends_on():
    """Closing on what still comes would reset the connection, and take the answer from the client."""
    async with opened(limits=LimitSettings(body_bytes=100_000)) as (running, _):
        for _ in range(10):
            reader, writer = await connection(running)
            size = 20 * MIB
            head = f"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n"
            writer.write(head.encode())
            for _ in range(size // MIB):
                writer.write(b"x" * MIB)
                await writer.drain()
            said = await asyncio.wait_for(reader.read(), 10)
            assert said.startswith(b"HTTP/1.1 413"), said[:100]
            writer.close()
        while running.connections:
            await asyncio.sleep(0.001)


async def test_a_client_that_never_stops_sending_is_cut_off(monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_BYTES", MIB)
    async with opened(limits=LimitSettings(body_bytes=1000)) as (running, _):
        _, writer = await connection(running)
        writer.write(b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                writer.write(b"x" * MIB)
                await writer.drain()
        async with asyncio.timeout(10):
            while running.connections:
                await asyncio.sleep(0.001)


async def test_a_client_that_stays_silent_after_its_413_is_let_go(monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.05)
    async with opened(limits=LimitSettings(body_bytes=1000)) as (running, _):
        _, writer = await connection(running)
        writer.write(b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\nx")
        async with asyncio.timeout(10):
            while running.connections != 1:
                await asyncio.sleep(0.001)
            while running.connections:
                await asyncio.sleep(0.001)
        writer.close()


# Claims made with a settle


@pytest.mark.parametrize(
    ("then", "field"),
    [
        ([{"queues": ["q"]}] * 17, "then"),
        ([{"queues": [f"q{number}" for number in range(600)]}] * 2, "then.queues"),
        ([{"queues": ["q"], "kinds": [f"k{number}" for number in range(600)]}] * 2, "then.kinds"),
        ([{"namespace": "n"}] * 2, "then.namespace"),
    ],
)
async def test_what_a_settle_claims_on_is_capped_for_the_whole_request(then, field):
    async with opened() as (running, session):
        running.session = session
        status, _, problem = await ask(running, "POST", "/v1/settle", {"items": [], "then": then})
        assert (status, problem["field"]) == (413, field)
        assert "at most" in problem["detail"]


async def test_one_commit_has_a_limit_of_keys():
    async with opened(limits=LimitSettings(keys=3)) as (running, session):
        running.session = session
        many = [{"queue": "q", "payload": 1, "key": f"k{number}"} for number in range(4)]
        assert (await ask(running, "POST", "/v1/units", {"push": many}))[0] == 413
        key = {"headers": {"idempotency-key": "n"}}
        assert (await ask(running, "POST", "/v1/messages", {"messages": many}, **key))[0] == 413
        assert (await ask(running, "POST", "/v1/messages", {"messages": many}))[0] == 201, "several commits will do"
        assert (await ask(running, "POST", "/v1/units", {"push": many[:3]}))[0] == 200
