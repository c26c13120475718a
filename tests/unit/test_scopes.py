"""Scopes say what they mean: looking is not acting, and a prefix is a wall."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import jwt
import pytest

import qo
from qo.core.access import Scope
from qo.server import authenticator, jwts
from qo.server.jwts import KeySet
from qo.server.router import Route
from qo.server.routes import queen, v1
from qo.server.settings import JwtSettings, ListenSettings, MetricSettings
from qo.wire.operation import ADMIN, LOOK
from tests.conformance.remote import Running
from tests.conformance.test_workers import heartbeat
from tests.unit.test_server import Events, ask, bearer, connection, opened

SECRET = "a secret of more than thirty-two bytes"


@pytest.fixture
async def guarded() -> AsyncIterator[Running]:
    listen, own = ListenSettings(port=0, auth="token"), JwtSettings(secret=SECRET)
    async with opened(listen=listen, jwt=own) as (running, session):
        running.session = session
        running.tokens = qo.Client(running.context.broker).tokens
        yield running


async def made(guarded: Running, *scopes: str, prefixes: tuple[str, ...] = ()) -> str:
    _, text = await guarded.tokens.create("t", scopes, prefixes=prefixes)
    return text


def signed(role: str) -> str:
    return jwt.encode({"role": role, "sub": "me", "exp": int(time.time()) + 3600}, SECRET, "HS256")


async def status(guarded: Running, token: str, method: str, path: str, body: Any = None) -> int:
    code, _, _ = await ask(guarded, method, path, body, **bearer(token))
    return code


# Looking is not acting


async def test_a_reader_changes_nothing(guarded):
    admin, read = await made(guarded, "admin"), await made(guarded, "read")
    _, _, job = await ask(guarded, "POST", "/v1/queues/q/jobs", {"payload": 1}, **bearer(admin))
    for path, body in (
        (f"/v1/jobs/{job['id']}/cancel", None),
        ("/v1/jobs/cancel", {"ids": [job["id"]]}),
        ("/v1/units", {"push": [{"queue": "q", "payload": 1}]}),
        ("/v1/queues/q/messages", {"payload": 1}),
        ("/v1/queues/q/claim", None),
        ("/v1/settle", {"items": []}),
    ):
        assert await status(guarded, read, "POST", path, body) == 403, path
    assert await status(guarded, read, "GET", f"/v1/jobs/{job['id']}") == 200
    for scope in ("produce", "consume"):
        token = await made(guarded, scope)
        _, _, other = await ask(guarded, "POST", "/v1/queues/q/jobs", {"payload": 1}, **bearer(admin))
        assert await status(guarded, token, "POST", f"/v1/jobs/{other['id']}/cancel") == 200
    _, _, left = await ask(guarded, "GET", f"/v1/jobs/{job['id']}", **bearer(read))
    assert left["state"] == "queued"


def test_no_route_that_a_reader_may_use_is_for_acting():
    looking = {"GET", "HEAD"}
    acting = [
        f"{each.method} {each.path}"
        for each in [*v1.ROUTES, *queen.ROUTES]
        if each.method not in looking and each.scopes is not None and Scope.READ in each.scopes
    ]
    stores_nothing = ["POST /v1/jobs/lookup", "POST /v1/previews"]
    assert acting == [*stores_nothing, *(each for each in acting if "refresh" in each)]


@pytest.mark.parametrize("given", ["token", "jwt"])
async def test_a_producer_follows_its_job_and_sees_no_payload_and_no_list(guarded, given):
    admin = await made(guarded, "admin")
    produce = await made(guarded, "produce") if given == "token" else signed("write-only")
    body = {"payload": "secret", "headers": {"a": "secret"}}
    _, _, job = await ask(guarded, "POST", "/v1/queues/q/jobs", body, **bearer(produce))
    async with qo.connect(guarded.url, token=admin) as client:
        [delivery] = await client.queue("q").claim()
        await delivery.complete({"answer": 42})
    for method, path, more in (
        ("GET", f"/v1/jobs/{job['id']}", None),
        ("GET", f"/v1/jobs/{job['id']}/result?wait=true", None),
        ("POST", "/v1/jobs/lookup", {"ids": [job["id"]]}),
    ):
        code, _, found = await ask(guarded, method, path, more, **bearer(produce))
        seen = found["jobs"][0] if "jobs" in found else found
        assert (code, seen["state"], seen["result"]) == (200, "succeeded", {"answer": 42})
        assert "secret" not in str(found)
    _, _, whole = await ask(guarded, "GET", f"/v1/jobs/{job['id']}", **bearer(admin))
    assert whole["payload"] == "secret"
    for path in (
        "/v1/queues",
        "/v1/queues/q/jobs",
        "/v1/queues/q/dead",
        "/v1/queues/q/groups",
        "/v1/queues/q/lanes",
        "/v1/workers",
        "/api/v1/messages?queue=q",
        "/api/v1/dlq?queue=q",
        "/api/v1/resources/queues",
    ):
        assert await status(guarded, produce, "GET", path) == 403, path


# Queen's wire keeps what ours keeps for operators


async def test_configure_and_seek_of_queen_s_wire_need_admin_with_our_own_tokens(guarded):
    admin, both = await made(guarded, "admin"), await made(guarded, "produce", "consume")
    new = {"queue": "mine", "options": {"leaseTime": 5}}
    assert await status(guarded, both, "POST", "/api/v1/configure", new) == 200, "a queue that is new"
    assert (
        await status(guarded, both, "POST", "/api/v1/configure", {"queue": "mine", "options": {"leaseTime": 9}}) == 403
    )
    assert (
        await status(guarded, admin, "POST", "/api/v1/configure", {"queue": "mine", "options": {"leaseTime": 9}}) == 200
    )
    seek = "/api/v1/consumer-groups/g/queues/mine/seek"
    assert await status(guarded, both, "POST", seek, {"toEnd": True}) == 403
    assert await status(guarded, admin, "POST", seek, {"toEnd": True}) == 200
    moved = {"subscriptionTimestamp": "2026-01-01T00:00:00Z"}
    assert await status(guarded, both, "POST", "/api/v1/consumer-groups/g/subscription", moved) == 403
    assert await status(guarded, signed("read-write"), "POST", "/api/v1/configure", new) == 200, "as Queen has it"
    assert await status(guarded, signed("read-write"), "POST", seek, {"toEnd": True}) == 200


async def test_a_limited_token_puts_no_queue_into_another_s_namespace(guarded):
    limited = await made(guarded, "produce", "consume", prefixes=("b.",))
    named = {"queue": "b.q", "namespace": "a", "task": "x"}
    assert await status(guarded, limited, "POST", "/api/v1/configure", named) == 403
    pushed = {"items": [{"queue": "b.q", "payload": 1, "namespace": "a"}]}
    await ask(guarded, "POST", "/api/v1/push", pushed, **bearer(limited))
    other = await made(guarded, "admin")
    code, _, found = await ask(guarded, "GET", "/api/v1/pop?namespace=a", **bearer(other))
    assert code == 204 or not found.get("messages"), "it reached nobody there"
    assert await status(guarded, limited, "POST", "/api/v1/configure", {"queue": "b.new", "namespace": "b"}) == 200


# What a token may, it may only as long as it is good


async def test_a_parked_poll_of_a_revoked_token_gets_nothing(guarded, monkeypatch):
    monkeypatch.setattr(authenticator, "REMEMBER_SECONDS", 0.0)
    token, text = await guarded.tokens.create("c", ["consume"])
    admin = await made(guarded, "admin")
    for path in ("/v1/queues/q/claim?wait=true", "/api/v1/pop/queue/q?wait=true"):
        token, text = await guarded.tokens.create("c", ["consume"])
        method = "GET" if "pop" in path else "POST"
        waiting = asyncio.create_task(ask(guarded, method, path, **bearer(text)))
        while guarded.context.broker.waiting < 1:
            await asyncio.sleep(0.001)
        await guarded.tokens.revoke(token.id)
        await ask(guarded, "POST", "/v1/queues/q/messages", {"payload": 1, "key": "Default"}, **bearer(admin))
        code, _, _ = await asyncio.wait_for(waiting, 10)
        assert code == 401
        while (await guarded.context.broker.inspect.depth("q", "default")).leased:
            await asyncio.sleep(0.001)
        [delivery] = await qo.Client(guarded.context.broker).queue("q").claim()
        assert delivery.attempt == 1, "given back, with no attempt used"
        await delivery.complete()


async def test_a_client_that_hangs_up_while_its_token_is_checked_leaves_nothing_leased(guarded, monkeypatch):
    _, text = await guarded.tokens.create("c", ["consume"])
    admin = await made(guarded, "admin")
    honest, checking, go_on = guarded.context.authenticator.identify, asyncio.Event(), asyncio.Event()
    waiting = asyncio.create_task(ask(guarded, "POST", "/v1/queues/q/claim?wait=true", **bearer(text)))
    while guarded.context.broker.waiting < 1:
        await asyncio.sleep(0.001)

    async def slow(headers: Any) -> Any:
        if text.encode() in headers.get(b"authorization", b""):
            checking.set()
            await go_on.wait()
        return await honest(headers)

    monkeypatch.setattr(guarded.context.authenticator, "identify", slow)
    await ask(guarded, "POST", "/v1/queues/q/messages", {"payload": 1}, **bearer(admin))
    await asyncio.wait_for(checking.wait(), 10)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(10):
        while (await guarded.context.broker.inspect.depth("q", "default")).leased:
            await asyncio.sleep(0.005)
    [delivery] = await qo.Client(guarded.context.broker).queue("q").claim()
    assert delivery.attempt == 1


async def test_a_parked_poll_of_a_token_that_expires_gets_nothing(guarded):
    _, text = await guarded.tokens.create("c", ["consume"], lasts=timedelta(milliseconds=300))
    admin = await made(guarded, "admin")
    waiting = asyncio.create_task(ask(guarded, "POST", "/v1/queues/q/claim?wait=true", **bearer(text)))
    while guarded.context.broker.waiting < 1:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.4)
    await ask(guarded, "POST", "/v1/queues/q/messages", {"payload": 1}, **bearer(admin))
    assert (await asyncio.wait_for(waiting, 10))[0] == 401


async def test_a_stream_of_a_revoked_token_delivers_nothing_and_ends(guarded, monkeypatch):
    monkeypatch.setattr(authenticator, "REMEMBER_SECONDS", 0.0)
    token, text = await guarded.tokens.create("c", ["consume"])
    admin = await made(guarded, "admin")
    async with guarded.session.get("/v1/queues/q/stream", **bearer(text)) as answer:
        events = Events(answer)
        while guarded.context.broker.waiting < 1:
            await asyncio.sleep(0.001)
        await guarded.tokens.revoke(token.id)
        await ask(guarded, "POST", "/v1/queues/q/messages", {"payload": 1}, **bearer(admin))
        assert await asyncio.wait_for(events.next(), 10) is None
    while (await guarded.context.broker.inspect.depth("q", "default")).leased:
        await asyncio.sleep(0.001)


async def test_a_stream_that_waits_ends_when_its_token_has(guarded, monkeypatch):
    monkeypatch.setattr("qo.server.routes.v1.stream.COMMENT_SECONDS", 0.05)
    _, text = await guarded.tokens.create("c", ["consume"], lasts=timedelta(milliseconds=400))
    async with guarded.session.get("/v1/queues/q/stream", **bearer(text)) as answer:
        async with asyncio.timeout(10):
            while await answer.content.readline():
                pass
    assert not guarded.context.streams


# A prefix is a wall


async def test_a_known_lease_token_does_not_reach_beyond_a_prefix(guarded):
    admin, limited = await made(guarded, "admin"), await made(guarded, "produce", "consume", prefixes=("mine.",))
    for queue in ("theirs", "mine.q"):
        for _ in range(2):
            await ask(guarded, "POST", f"/v1/queues/{queue}/messages", {"payload": 1, "key": "k"}, **bearer(admin))
    _, _, theirs = await ask(guarded, "POST", "/v1/queues/theirs/claim", **bearer(admin))
    _, _, mine = await ask(guarded, "POST", "/v1/queues/mine.q/claim", **bearer(admin))
    for claimed, expected in ((theirs, 403), (mine, 200)):
        [held] = claimed["messages"]
        item = {name: held[name] for name in ("token", "lane", "offset")}
        extend = {"leases": [{"token": held["token"], "lease_seconds": 60}]}
        assert await status(guarded, limited, "POST", "/v1/extend", extend) == expected
        assert await status(guarded, limited, "POST", f"/api/v1/lease/{held['token']}/extend", {}) == expected
        assert await status(guarded, limited, "POST", "/v1/units", {"settle": [item]}) == expected
    _, _, theirs = await ask(guarded, "POST", "/v1/queues/theirs/claim", **bearer(admin))
    assert theirs is None, "still leased"


async def test_settling_by_a_known_token_needs_the_lane_s_queue(guarded):
    admin, limited = await made(guarded, "admin"), await made(guarded, "consume", prefixes=("mine.",))
    await ask(guarded, "POST", "/v1/queues/theirs/messages", {"payload": 1}, **bearer(admin))
    _, _, claimed = await ask(guarded, "POST", "/v1/queues/theirs/claim", **bearer(admin))
    [held] = claimed["messages"]
    item = {name: held[name] for name in ("token", "lane", "offset")}
    assert await status(guarded, limited, "POST", "/v1/settle", {"items": [item]}) == 403
    unknown = {**item, "lane": 999_999}
    code, _, answer = await ask(guarded, "POST", "/v1/settle", {"items": [unknown]}, **bearer(limited))
    assert (code, answer["items"][0]["answer"]) == (200, "unknown")
    assert await status(guarded, admin, "POST", "/v1/settle", {"items": [item]}) == 200


async def test_a_limited_reader_s_metrics_and_workers_name_no_other_queue():
    listen = ListenSettings(port=0, auth="token")
    async with opened(listen=listen, metrics=MetricSettings(public=False)) as (running, session):
        running.session = session
        running.tokens = qo.Client(running.context.broker).tokens
        limited = await made(running, "read", "consume", prefixes=("mine.",))
        admin = await made(running, "admin")
        await running.context.broker.workers.heartbeat([heartbeat("w", queues=("mine.q", "theirs"))])
        for queue in ("mine.q", "theirs"):
            await ask(running, "POST", f"/v1/queues/{queue}/messages", {"payload": 1, "kind": "k"}, **bearer(admin))
        for path in ("/metrics", "/metrics/prometheus", "/v1/workers"):
            for token, sees in ((limited, False), (admin, True)):
                async with session.get(path, **bearer(token)) as answer:
                    said = await answer.text()
                assert answer.status == 200
                assert "mine.q" in said, path
                assert ("theirs" in said) is sees, path
        assert (await ask(running, "GET", "/metrics"))[0] == 401


# Other ways in


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"referer": "http://evil.example/page"}, 403),
        ({"referer": "http://localhost/page"}, 200),
        ({"referer": "http://127.0.0.1.evil.example/"}, 403),
        ({"referer": "nonsense"}, 403),
    ],
)
async def test_a_page_of_another_site_pops_nothing(headers, expected):
    """A picture or a link sends no origin; what it sends is where it stands."""
    async with opened() as (running, session):
        running.session = session
        await ask(running, "POST", "/v1/queues/q/messages", {"payload": 1, "key": "Default"})
        code, _, _ = await ask(
            running, "GET", "/api/v1/pop/queue/q?autoAck=true", headers={"host": "localhost", **headers}
        )
        assert code == expected
        left = (await running.context.broker.inspect.depth("q", "default")).ready
        assert left == (0 if expected == 200 else 1)


async def test_insecure_on_loopback_still_checks_the_host():
    async with opened(listen=ListenSettings(port=0, insecure=True)) as (running, session):
        running.session = session
        assert (await ask(running, "GET", "/v1/queues", headers={"host": "evil.example"}))[0] == 403
        assert (await ask(running, "GET", "/v1/queues", headers={"host": "localhost"}))[0] == 200


async def test_a_trailer_is_not_a_header(guarded):
    admin = await made(guarded, "admin")
    reader, writer = await connection(guarded)
    writer.write(
        b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n"
        b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        b'd\r\n{"payload":1}\r\n0\r\nauthorization: Bearer ' + admin.encode() + b"\r\n\r\n"
    )
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 401")
    writer.close()


async def test_keys_that_cannot_be_read_delay_the_first_caller_alone(monkeypatch):
    tries = 0

    def hangs(self: KeySet) -> bytes:
        nonlocal tries
        tries += 1
        raise TimeoutError("it hangs")

    monkeypatch.setattr(KeySet, "_fetch", hangs)
    keys = KeySet("https://127.0.0.1:1/keys")
    for _ in range(20):
        with pytest.raises(qo.Unavailable, match="it hangs"):
            await keys.find("one")
    assert tries == 1
    monkeypatch.setattr(jwts, "FAILED_SECONDS", 0.0)
    with pytest.raises(qo.Unavailable):
        await keys.find("one")
    assert tries == 2


def test_every_route_of_ours_says_who_may():
    def lets_nobody_in_by_mistake(route: Route) -> bool:
        return route.scopes is None or bool(route.scopes)

    assert all(map(lets_nobody_in_by_mistake, [*v1.ROUTES, *queen.ROUTES]))
    listing = [each for each in v1.ROUTES if each.path in ("/v1/queues", "/v1/workers") and each.method == "GET"]
    assert {each.scopes for each in listing} <= {LOOK, ADMIN}
