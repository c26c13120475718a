"""The server: what it answers, whom it lets in, what it refuses, and what it does with those who hang up."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import logging
from collections.abc import AsyncIterator
from uuid import UUID

import aiohttp
import msgspec
import pytest

import qo
from qo.broker.broker import LocalBroker
from qo.core.access import Scope
from qo.core.errors import Unavailable
from qo.core.message import DedupeScope
from qo.core.outcome import JobState
from qo.server import authenticator
from qo.server.settings import LimitSettings, ListenSettings
from qo.stores.sqlite.engine import SqliteEngine
from qo.wire.settling import ReportKind
from tests.conformance.remote import Running, serving
from tests.conformance.test_workers import heartbeat


@contextlib.asynccontextmanager
async def opened(**options) -> AsyncIterator[tuple[Running, aiohttp.ClientSession]]:
    engine = await SqliteEngine.open(":memory:")
    async with (
        serving(LocalBroker(engine), **options) as running,
        aiohttp.ClientSession(running.url, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield running, session


@pytest.fixture
async def server():
    async with opened() as (running, session):
        running.session = session
        yield running


async def ask(server, method: str, path: str, body=None, **options):
    """Status, headers and the answer read as JSON."""
    data = body if body is None or isinstance(body, bytes) else io.BytesIO(json.dumps(body).encode())
    async with server.session.request(method, path, data=data, **options) as answer:
        content = await answer.read()
        return answer.status, answer.headers, json.loads(content) if content else None


async def waiting(server, count: int) -> None:
    while server.context.broker.waiting != count or server.context.all_waiting != count:
        await asyncio.sleep(0.001)


# Messages


async def test_payload_bytes_pass_through_untouched(server):
    payload = b'{"a":  [1,2 , 3], "\xc3\xa9": 1.00}'
    status, _, pushed = await ask(server, "POST", "/v1/queues/q/messages", b'{"payload":' + payload + b"}")
    assert (status, pushed["answer"]) == (201, "stored")
    async with server.session.post("/v1/queues/q/claim") as answer:
        assert b'"payload":' + payload in await answer.read()


async def test_bytes_that_are_not_json_travel_as_base64(server):
    async with qo.connect(server.url) as client:
        await client.queue("q").push(b"\x00\xff")
        [delivery] = await client.queue("q").claim()
        assert delivery.payload == b"\x00\xff"
    await ask(server, "POST", "/v1/queues/p/messages", {"payload_base64": "AP8="})
    _, _, claimed = await ask(server, "POST", "/v1/queues/p/claim")
    assert claimed["messages"][0]["payload_base64"] == "AP8="


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "payload"),
        ({"payload": 1, "priority": 101}, "priority"),
        ({"payload": 1, "priority": "high"}, "priority"),
        ({"payload": 1, "prioritty": 1}, "prioritty"),
        ({"payload": 1, "key": ""}, "key"),
        ({"payload": 1, "delay_seconds": -1}, "delay_seconds"),
        ({"payload": 1, "delay_seconds": 1, "due_at": "2030-01-01T00:00:00Z"}, "delay_seconds"),
        ({"payload": 1, "due_at": "2030-01-01T00:00:00"}, "due_at"),
        ({"payload": 1, "ttl_seconds": 1e300}, "ttl_seconds"),
        ({"payload": 1, "payload_base64": "AA=="}, "payload"),
        ({"payload_base64": "%"}, "payload_base64"),
        ({"payload": 1, "queue": "other"}, "queue"),
        ({"payload": 1, "id": "x"}, "id"),
        ({"payload": 1, "headers": {"a": 1}}, "headers[...]"),
        ({"messages": [{"payload": 1}, {"payload": 1, "kind": ""}]}, "messages[1].kind"),
        ({"messages": [], "key": "k"}, "key"),
        (b"{", "body"),
        (b'"\xff"', "body"),
    ],
)
async def test_a_bad_push_is_refused_by_name(server, body, field):
    status, headers, problem = await ask(server, "POST", "/v1/queues/q/messages", body)
    assert (status, problem["status"], problem["type"]) == (400, 400, "urn:qo:invalid")
    assert headers["content-type"] == "application/problem+json"
    assert problem["field"] == field
    assert problem["request_id"] == headers["x-request-id"]


async def test_a_body_that_is_nested_too_deeply_is_refused(server):
    status, _, problem = await ask(server, "POST", "/v1/queues/q/messages", b'{"payload":' + b"[" * 100_000)
    assert (status, problem["detail"]) == (400, "body: is nested too deeply")


async def test_an_unknown_field_suggests_the_nearest(server):
    _, _, problem = await ask(server, "POST", "/v1/queues/q/messages", {"payload": 1, "prioritty": 1})
    assert "did you mean 'priority'" in problem["detail"]


async def test_a_message_that_is_refused_says_why_and_the_others_are_stored(server):
    await ask(server, "PATCH", "/v1/queues/q", {"max_payload": 5})
    messages = [{"payload": 1}, {"payload": "too long"}, {"payload": 2}]
    status, _, reply = await ask(server, "POST", "/v1/queues/q/messages", {"messages": messages})
    assert status == 200
    assert [each["answer"] for each in reply["messages"]] == ["stored", "refused", "stored"]
    assert reply["messages"][1]["problem"]["status"] == 413
    status, _, problem = await ask(server, "POST", "/v1/queues/q/messages", {"payload": "too long"})
    assert (status, problem["field"]) == (413, "payload")


async def test_a_push_under_a_key_is_stored_once(server):
    headers = {"idempotency-key": "import-1"}
    answers = [await ask(server, "POST", "/v1/queues/q/messages", {"payload": 1}, headers=headers) for _ in range(3)]
    assert [status for status, _, _ in answers] == [201] * 3
    _, _, depth = await ask(server, "GET", "/v1/queues/q/depth")
    assert depth["ready"] == 1
    two = {"messages": [{"payload": 1}] * 2}
    status, _, problem = await ask(server, "POST", "/v1/queues/q/messages", two, headers=headers)
    assert (status, problem["type"]) == (409, "urn:qo:conflict")


async def test_names_with_slashes_and_dots_and_spaces(server):
    name = "a/b c.d%é"
    from urllib.parse import quote

    async with qo.connect(server.url) as client:
        await client.queue(name).push(1)
        assert [info.name for info in await client.queues()] == [name]
        assert (await client.queue(name).depth()).ready == 1
    async with server.session.get(f"/v1/queues/{quote(name, safe='')}") as answer:
        assert (await answer.json())["name"] == name


# Waiting


async def test_a_claim_that_waits_is_answered_by_a_push(server):
    claim = asyncio.create_task(ask(server, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=30000"))
    await waiting(server, 1)
    await ask(server, "POST", "/v1/queues/q/messages", {"payload": 7})
    status, _, claimed = await asyncio.wait_for(claim, 10)
    assert (status, claimed["messages"][0]["payload"]) == (200, 7)


async def test_a_claim_that_waited_in_vain_is_204(server):
    status, _, body = await ask(server, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=20")
    assert (status, body) == (204, None)
    assert server.context.all_waiting == 0


async def test_an_empty_claim_says_when_to_ask_again(server):
    await ask(server, "POST", "/v1/queues/q/messages", {"payload": 7, "delay_seconds": 100})
    status, headers, _ = await ask(server, "POST", "/v1/queues/q/claim")
    assert status == 204
    assert "qo-ask-again" in headers


async def test_a_wait_is_no_longer_than_the_limit(server):
    status, _, problem = await ask(server, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=-1")
    assert (status, problem["field"]) == (400, "timeout_ms")
    async with opened(limits=LimitSettings(wait_ms=20)) as (running, session):
        running.session = session
        assert (await ask(running, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=60000"))[0] == 204
        async with qo.connect(running.url) as client:
            assert await client.queue("q").claim(wait=0.1) == []


async def test_a_client_that_hangs_up_is_noticed_at_once(server):
    claim = asyncio.create_task(ask(server, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=60000"))
    await waiting(server, 1)
    claim.cancel()
    await asyncio.gather(claim, return_exceptions=True)
    await waiting(server, 0)


async def test_what_was_claimed_for_a_client_that_hung_up_is_given_back(server, monkeypatch):
    """The store is slow: the client hangs up while its claim is being committed."""
    store = server.context.broker._store
    asked, answer = asyncio.Event(), asyncio.Event()
    claim = store.claim

    async def slowly(wants):
        answers = await claim(wants)
        asked.set()
        await answer.wait()
        return answers

    await ask(server, "POST", "/v1/queues/q/messages", {"payload": 7})
    monkeypatch.setattr(store, "claim", slowly)
    gone = asyncio.create_task(ask(server, "POST", "/v1/queues/q/claim"))
    await asked.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    while server.state.tasks:
        await asyncio.sleep(0.001)
    answer.set()
    monkeypatch.undo()
    status, _, claimed = await ask(server, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=10000")
    assert (status, claimed["messages"][0]["attempt"]) == (200, 1)


async def test_a_client_that_sends_on_and_hangs_up_is_noticed_for_each_of_its_requests(server):
    _, writer = await connection(server)
    claim = (
        b"POST /v1/queues/q/claim?wait=true&timeout_ms=60000 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    )
    writer.write(claim * 3)
    await waiting(server, 1)
    writer.close()
    await waiting(server, 0)
    while server.state.tasks:
        await asyncio.sleep(0.001)
    reader, writer = await connection(server)
    writer.write(claim + b"what is this\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 400")
    await waiting(server, 0)
    writer.close()


async def test_waiters_of_a_higher_priority_are_served_first(server):
    order = []

    async def wait(priority: int) -> None:
        path = f"/v1/queues/q/claim?wait=true&timeout_ms=30000&priority={priority}&auto_settle=true"
        await ask(server, "POST", path)
        order.append(priority)

    tasks = []
    for number, priority in enumerate([0, -5, 7, 7], 1):
        tasks.append(asyncio.create_task(wait(priority)))
        await waiting(server, number)
    for left in (3, 2, 1, 0):
        await ask(server, "POST", "/v1/queues/q/messages", {"payload": 1})
        await waiting(server, left)
        while len(order) < 4 - left:
            await asyncio.sleep(0.001)
    assert order == [7, 7, 0, -5]
    await asyncio.gather(*tasks)


async def test_one_intention_one_pop_one_lease(server):
    claims = [
        asyncio.create_task(ask(server, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=30000&messages=3"))
        for _ in range(4)
    ]
    await waiting(server, 4)
    await ask(server, "POST", "/v1/queues/q/messages", {"messages": [{"payload": n} for n in range(8)]})
    await waiting(server, 1)
    await ask(server, "POST", "/v1/queues/q/messages", {"payload": 8})
    answers = [body["messages"] for _, _, body in await asyncio.gather(*claims)]
    assert sorted(each["payload"] for taken in answers for each in taken) == list(range(9))
    assert [len({each["token"] for each in taken}) for taken in answers] == [1] * 4
    assert len({taken[0]["token"] for taken in answers}) == 4
    assert max(len(taken) for taken in answers) == 3


async def test_stopping_answers_those_who_wait(server):
    _, _, job = await ask(server, "POST", "/v1/queues/jobs/jobs", {"payload": 1})
    result = asyncio.create_task(ask(server, "GET", f"/v1/jobs/{job['id']}/result?wait=true"))
    claim = asyncio.create_task(ask(server, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=60000"))
    while server.context.all_waiting < 2:
        await asyncio.sleep(0.001)
    await server.context.stop()
    status, _, _ = await asyncio.wait_for(claim, 10)
    assert status == 204
    status, _, _ = await ask(server, "POST", "/v1/queues/q/messages", {"payload": 1})
    assert status == 201
    assert (await asyncio.wait_for(result, 10))[0] == 202
    status, _, body = await ask(server, "GET", "/readyz")
    assert (status, body["detail"]) == (503, "this server is stopping")


async def test_a_result_is_waited_for(server):
    _, _, job = await ask(server, "POST", "/v1/queues/q/jobs", {"payload": 2, "kind": "square"})
    status, _, body = await ask(server, "GET", f"/v1/jobs/{job['id']}/result")
    assert (status, body["state"]) == (202, "queued")
    result = asyncio.create_task(ask(server, "GET", f"/v1/jobs/{job['id']}/result?wait=true&timeout_ms=30000"))
    _, _, claimed = await ask(server, "POST", "/v1/queues/q/claim")
    [held] = claimed["messages"]
    item = {"token": held["token"], "lane": held["lane"], "offset": held["offset"], "result": {"square": 4}}
    _, _, settled = await ask(server, "POST", "/v1/settle", {"items": [item], "then": [{"queues": ["q"]}]})
    assert settled == {"items": [{"answer": "settled", "verdict": "completed", "lease_ended": True}], "claimed": [{}]}
    status, _, body = await asyncio.wait_for(result, 10)
    assert (status, body["state"], body["result"]) == (200, "succeeded", {"square": 4})
    status, _, body = await ask(server, "GET", f"/v1/jobs/{job['id']}/result?wait=true&timeout_ms=1")
    assert status == 200
    status, _, _ = await ask(server, "GET", "/v1/jobs/00000000-0000-0000-0000-000000000000/result?wait=true")
    assert status == 404


async def test_a_unit_is_done_as_a_whole_or_not_at_all(server):
    await ask(server, "POST", "/v1/queues/a/messages", {"payload": 1})
    _, _, claimed = await ask(server, "POST", "/v1/queues/a/claim")
    [held] = claimed["messages"]
    item = {name: held[name] for name in ("token", "lane", "offset")}
    unit = {"settle": [item], "push": [{"queue": "b", "payload": 2}]}
    status, _, done = await ask(server, "POST", "/v1/units", unit)
    assert (status, done["settled"][0]["verdict"], done["pushed"][0]["answer"]) == (200, "completed", "stored")
    status, _, problem = await ask(server, "POST", "/v1/units", unit)
    assert (status, problem["type"], problem["item"]) == (409, "urn:qo:rolled-back", 0)
    _, _, depth = await ask(server, "GET", "/v1/queues/b/depth")
    assert depth["ready"] == 1


# Streams


class Events:
    """Reads Server-Sent Events, one at a time."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self):
        while True:
            event = {}
            while (line := (await self.answer.content.readline()).decode()) not in ("\n", ""):
                name, _, value = line.rstrip("\n").partition(": ")
                event[name] = value
            if line == "":
                return None
            if "data" in event:
                return json.loads(event["data"])


async def test_a_stream_sends_what_comes_and_holds_back_beyond_its_window(server):
    await ask(server, "POST", "/v1/queues/q/messages", {"messages": [{"payload": n} for n in range(5)]})
    async with server.session.get("/v1/queues/q/stream?window=2&messages=10") as answer:
        assert answer.content_type == "text/event-stream"
        events = Events(answer)
        first, second = await events.next(), await events.next()
        assert [first["payload"], second["payload"]] == [0, 1]
        third = asyncio.create_task(events.next())
        _, _, depth = await ask(server, "GET", "/v1/queues/q/depth")
        assert (depth["leased"], third.done()) == (2, False)
        item = {name: first[name] for name in ("token", "lane", "offset")}
        await ask(server, "POST", "/v1/settle", {"items": [item]})
        assert (await asyncio.wait_for(third, 10))["payload"] == 2
        _, _, metrics = await ask(server, "GET", "/metrics")
        assert metrics["qo_streams"]["samples"][0]["value"] == 1
    while len(server.context.streams) or server.context.all_waiting:
        await asyncio.sleep(0.001)


async def test_a_stream_ends_when_the_server_stops(server):
    async with server.session.get("/v1/queues/q/stream?auto_settle=true") as answer:
        events = Events(answer)
        await ask(server, "POST", "/v1/queues/q/messages", {"payload": 1})
        assert (await asyncio.wait_for(events.next(), 10))["payload"] == 1
        await server.context.stop()
        assert await asyncio.wait_for(events.next(), 10) is None


@pytest.mark.parametrize(
    ("query", "field"), [("window=0", "window"), ("messages=0", "messages"), ("mesages=1", "mesages")]
)
async def test_a_bad_stream_is_refused_before_it_begins(server, query, field):
    status, _, problem = await ask(server, "GET", f"/v1/queues/q/stream?{query}")
    assert (status, problem["field"]) == (400, field)


# Who may come in


@pytest.fixture
async def guarded():
    async with opened(listen=ListenSettings(port=0, auth="token")) as (running, session):
        running.session = session
        running.tokens = qo.Client(running.context.broker).tokens
        yield running


def bearer(text: str) -> dict[str, dict[str, str]]:
    return {"headers": {"authorization": f"Bearer {text}"}}


async def test_without_a_token_only_health_is_answered(guarded):
    for path in ("/livez", "/readyz", "/health", "/v1/openapi.json", "/metrics"):
        assert (await ask(guarded, "GET", path))[0] == 200
    for path in ("/v1/queues", "/v1/health", "/v1/tokens"):
        status, headers, problem = await ask(guarded, "GET", path)
        assert (status, headers["www-authenticate"], problem["type"]) == (401, "Bearer", "urn:qo:unauthenticated")
    for given in ("", "Bearer", "Bearer x", "Basic qo_0_0", "Bearer qo_" + "0" * 12 + "_" + "0" * 64):
        status, _, _ = await ask(guarded, "GET", "/v1/queues", headers={"authorization": given})
        assert status == 401


async def test_scopes_and_prefixes_bind(guarded):
    _, produce = await guarded.tokens.create("p", [Scope.PRODUCE], prefixes=["orders"])
    _, consume = await guarded.tokens.create("c", ["consume"])
    _, admin = await guarded.tokens.create("a", ["admin"])
    push, claim = "/v1/queues/orders.new/messages", "/v1/queues/orders.new/claim"
    body = {"payload": 1}
    assert (await ask(guarded, "POST", push, body, **bearer(produce)))[0] == 201
    assert (await ask(guarded, "POST", "/v1/queues/mail/messages", body, **bearer(produce)))[0] == 403
    assert (await ask(guarded, "POST", claim, **bearer(produce)))[0] == 403
    assert (await ask(guarded, "POST", push, body, **bearer(consume)))[0] == 403
    assert (await ask(guarded, "POST", claim, **bearer(consume)))[0] == 200
    assert (await ask(guarded, "PATCH", "/v1/queues/orders.new", {}, **bearer(consume)))[0] == 403
    assert (await ask(guarded, "PATCH", "/v1/queues/mail", {}, **bearer(admin)))[0] == 200
    many = {"messages": [{"queue": "orders", "payload": 1}, {"queue": "mail", "payload": 1}]}
    assert (await ask(guarded, "POST", "/v1/messages", many, **bearer(produce)))[0] == 403
    unit = {"push": [{"queue": "mail", "payload": 1}]}
    assert (await ask(guarded, "POST", "/v1/units", unit, **bearer(produce)))[0] == 403
    assert (await ask(guarded, "GET", "/v1/queues", **bearer(produce)))[0] == 403, "a producer sees no lists"
    _, limited = await guarded.tokens.create("l", [Scope.READ], prefixes=["orders"])
    _, _, seen = await ask(guarded, "GET", "/v1/queues", **bearer(limited))
    assert [each["name"] for each in seen["queues"]] == ["orders.new"]
    _, _, everything = await ask(guarded, "GET", "/v1/queues", **bearer(admin))
    assert [each["name"] for each in everything["queues"]] == ["mail", "orders.new"]


async def test_workers_beyond_a_prefix_are_not_seen_nor_spoken_for(guarded):
    _, admin = await guarded.tokens.create("a", ["admin"])
    _, limited = await guarded.tokens.create("l", ["consume"], prefixes=["mine."])
    theirs, mine = heartbeat("theirs", queues=("other",)), heartbeat("mine", queues=("mine.q",))
    for each, token, status in ((theirs, limited, 403), (theirs, admin, 200), (mine, limited, 200)):
        said = msgspec.to_builtins(each)
        assert (await ask(guarded, "PUT", f"/v1/workers/{each.id}", said, **bearer(token)))[0] == status
    stolen = msgspec.to_builtins(heartbeat("theirs", queues=("mine.q",)))
    assert (await ask(guarded, "PUT", "/v1/workers/theirs", stolen, **bearer(limited)))[0] == 403
    assert (await ask(guarded, "DELETE", "/v1/workers/theirs", **bearer(limited)))[0] == 403
    for token, seen in ((limited, ["mine"]), (admin, ["mine", "theirs"])):
        _, _, found = await ask(guarded, "GET", "/v1/workers", **bearer(token))
        assert [each["id"] for each in found["workers"]] == seen
    assert (await ask(guarded, "GET", "/v1/scaling?queue=other", **bearer(limited)))[0] == 403
    assert (await ask(guarded, "GET", "/v1/scaling?queue=mine.q", **bearer(limited)))[0] == 200
    assert (await ask(guarded, "DELETE", "/v1/workers/mine", **bearer(limited)))[0] == 200


async def test_a_filter_and_a_list_of_jobs_do_not_reach_beyond_a_prefix(guarded):
    _, admin = await guarded.tokens.create("a", ["admin"])
    _, limited = await guarded.tokens.create("l", ["produce", "consume"], prefixes=["mine."])
    _, _, job = await ask(guarded, "POST", "/v1/queues/other.q/jobs", {"payload": 1}, **bearer(admin))
    for path in (f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}/result", f"/v1/jobs/{job['id']}/events"):
        assert (await ask(guarded, "GET", path, **bearer(limited)))[0] == 404
        assert (await ask(guarded, "GET", path, **bearer(admin)))[0] in (200, 202)
    assert (await ask(guarded, "POST", f"/v1/jobs/{job['id']}/cancel", **bearer(limited)))[0] == 404
    _, _, found = await ask(guarded, "POST", "/v1/jobs/lookup", {"ids": [job["id"]]}, **bearer(limited))
    assert found == {"jobs": [None]}
    assert (await ask(guarded, "POST", "/v1/claim", {"namespace": "other"}, **bearer(limited)))[0] == 403
    assert (await ask(guarded, "PUT", "/v1/groups/g", {"namespace": "other"}, **bearer(limited)))[0] == 403
    then = {"then": [{"queues": ["other.q"]}]}
    assert (await ask(guarded, "POST", "/v1/settle", then, **bearer(limited)))[0] == 403


async def test_a_token_ends_when_it_is_revoked_or_over(guarded):
    token, text = await guarded.tokens.create("a", ["admin"])
    _, other = await guarded.tokens.create("b", ["admin"], expires_at=guarded.context.broker.now())
    assert (await ask(guarded, "GET", "/v1/queues", **bearer(text)))[0] == 200
    assert (await ask(guarded, "GET", "/v1/queues", **bearer(other)))[0] == 401
    assert (await ask(guarded, "DELETE", f"/v1/tokens/{token.id}", **bearer(text)))[2] == {"deleted": True}
    assert (await ask(guarded, "GET", "/v1/queues", **bearer(text)))[0] == 401


async def test_a_stream_ends_with_its_token(guarded, monkeypatch):
    monkeypatch.setattr(authenticator, "REMEMBER_SECONDS", 0.0)
    token, text = await guarded.tokens.create("c", ["consume"])
    _, admin = await guarded.tokens.create("a", ["admin"])
    async with guarded.session.get("/v1/queues/q/stream?auto_settle=true", **bearer(text)) as answer:
        events = Events(answer)
        await ask(guarded, "POST", "/v1/queues/q/messages", {"payload": 1}, **bearer(admin))
        assert (await asyncio.wait_for(events.next(), 10))["payload"] == 1
        await guarded.tokens.revoke(token.id)
        await ask(guarded, "POST", "/v1/queues/q/messages", {"payload": 2}, **bearer(admin))
        last = await asyncio.wait_for(events.next(), 10)
        assert last is None or last["payload"] == 2  # it may have been waiting with a good token
        if last is not None:
            assert await asyncio.wait_for(events.next(), 10) is None


async def test_a_limited_token_s_queues_are_found_behind_others(guarded):
    _, admin = await guarded.tokens.create("a", ["admin"])
    _, limited = await guarded.tokens.create("l", ["consume"], prefixes=["z.", "m"])
    names = [f"a{number:03}" for number in range(150)] + ["m", "mm", "n", "z", "z.", "z.1", "z.2", "z/"]
    many = {"messages": [{"queue": name, "payload": 1} for name in names]}
    await ask(guarded, "POST", "/v1/messages", many, **bearer(admin))
    for limit in (1, 2, 100):
        seen, after = [], ""
        while True:
            path = f"/v1/queues?limit={limit}&after={after}"
            page = [each["name"] for each in (await ask(guarded, "GET", path, **bearer(limited)))[2]["queues"]]
            if not page:
                break
            seen += page
            after = page[-1]
        assert seen == ["m", "mm", "z.", "z.1", "z.2"]


async def test_a_token_s_secret_is_not_kept(guarded):
    _, admin = await guarded.tokens.create("a", ["admin"])
    body = {"name": "ci", "scopes": ["produce"], "prefixes": ["x"]}
    status, _, made = await ask(guarded, "POST", "/v1/tokens", body, **bearer(admin))
    assert status == 201
    assert (await ask(guarded, "POST", "/v1/queues/x/messages", {"payload": 1}, **bearer(made["secret"])))[0] == 201
    secret = made["secret"].rpartition("_")[2]
    _, _, listed = await ask(guarded, "GET", "/v1/tokens", **bearer(admin))
    assert [each["name"] for each in listed["tokens"]] == ["a", "ci"]
    assert secret not in json.dumps(listed)
    rows = await guarded.context.broker.access.tokens()
    assert all(bytes.fromhex(secret) != each.digest for each in rows)
    for bad, field in (
        ({"name": "x", "scopes": ["all"]}, "scopes[0]"),
        ({"name": "", "scopes": ["admin"]}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["admin"], "digest": "00"}, "digest"),
        ({"name": "x", "scopes": ["admin"], "digest": "00", "id": "a" * 12}, "digest"),
        ({"name": "x", "scopes": ["admin"], "expires_at": "2030-01-01T00:00:00"}, "expires_at"),
    ):
        status, _, problem = await ask(guarded, "POST", "/v1/tokens", bad, **bearer(admin))
        assert (status, problem["field"]) == (400, field)


async def test_keys_of_different_tokens_do_not_meet(guarded):
    for name in ("a", "b"):
        _, text = await guarded.tokens.create(name, ["produce"])
        headers = {"authorization": f"Bearer {text}", "idempotency-key": "same"}
        await ask(guarded, "POST", "/v1/queues/q/messages", {"payload": name}, headers=headers)
    assert (await qo.Client(guarded.context.broker).queue("q").depth()).ready == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:6632"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "localhost", "origin": "http://localhost"}, 200),
        ({"host": "localhost", "origin": "http://evil.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"host": "localhost", "origin": "http://["}, 403),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "localhost", "sec-fetch-site": "same-site"}, 403),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, 200),
    ],
)
async def test_a_web_page_is_not_a_caller(server, headers, status):
    assert (await ask(server, "GET", "/v1/queues", headers=headers))[0] == status


# Limits


async def test_a_body_that_is_too_large_is_413_however_it_is_sent():
    async with opened(limits=LimitSettings(body_bytes=1000)) as (running, session):
        running.session = session
        body = b'{"payload":"' + b"x" * 2000 + b'"}'
        status, headers, problem = await ask(running, "POST", "/v1/queues/q/messages", body)
        assert (status, headers["connection"], problem["field"]) == (413, "close", "body")

        async def pieces():
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        async with session.post("/v1/queues/q/messages", data=pieces()) as answer:
            assert answer.status == 413
        assert (await ask(running, "POST", "/v1/queues/q/messages", {"payload": 1}))[0] == 201


async def test_too_many_at_once_are_refused():
    async with opened(limits=LimitSettings(batch=2)) as (running, session):
        running.session = session
        status, _, problem = await ask(running, "POST", "/v1/queues/q/messages", {"messages": [{"payload": 1}] * 3})
        assert (status, problem["field"]) == (413, "messages")
        id = "00000000-0000-0000-0000-000000000000"
        assert (await ask(running, "POST", "/v1/jobs/lookup", {"ids": [id] * 3}))[0] == 413
        item = {"token": "t", "lane": 1, "offset": 1}
        assert (await ask(running, "POST", "/v1/settle", {"items": [item] * 3}))[0] == 413
        assert (await ask(running, "POST", "/v1/settle", {"then": [{"queues": ["q"]}] * 17}))[0] == 413
        lease = {"token": "t", "lease_seconds": 1, "started": [{"lane": 1, "offset": 1}] * 3}
        assert (await ask(running, "POST", "/v1/extend", {"leases": [lease]}))[0] == 413
        assert (await ask(running, "PUT", "/v1/groups/g", {"queues": ["a", "b", "c"]}))[0] == 413


SEVEN = str(UUID(int=7))


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("GET", "/v1/queues?" + "&".join(f"a{n}=1" for n in range(101)), None, "query"),
        ("GET", "/v1/queues?limit=1&limit=2", None, "limit"),
        ("POST", "/v1/settle", {"items": [{"token": "t", "lane": 1 << 63, "offset": 1}]}, "items[0].lane"),
        ("POST", "/v1/settle", {"items": [{"token": "t", "lane": 1, "offset": -1}]}, "items[0].offset"),
        ("GET", "/v1/queues/q/lanes?after=9223372036854775808", None, "after"),
        ("POST", "/v1/queues/q/claim", {"start": "0001-01-01T00:00:00+14:00", "group": "g"}, "start"),
        ("POST", "/v1/queues/q/messages", {"payload": 1, "due_at": "9999-12-31T23:59:59Z"}, "due_at"),
        ("POST", "/v1/queues/q/claim", {"wait": True, "priority": 101}, "priority"),
        ("GET", "/v1/queues/q/stream?priority=-101", None, "priority"),
        ("POST", "/v1/queues/q/claim", {"messages": 10_001}, "messages"),
        ("POST", "/v1/queues/q/messages", {"messages": [{"payload": n, "id": SEVEN} for n in (1, 2)]}, "messages"),
    ],
)  # fmt: skip
async def test_what_no_store_could_take_is_refused_by_name(server, method, path, body, field):
    await ask(server, "POST", "/v1/queues/q/messages", {"payload": 1})
    status, _, problem = await ask(server, method, path, body)
    assert (status, problem["field"]) == (400, field)


async def test_a_want_that_is_refused_does_not_take_its_neighbours_with_it(server):
    """Two wait with one token: whoever comes second is refused when its turn comes."""
    path = "/v1/queues/q/claim?wait=true&timeout_ms=30000"
    claims = []
    for number, body in enumerate(({"token": "twice"}, {}, {"token": "twice"}, {}), 1):
        claims.append(asyncio.create_task(ask(server, "POST", path, body)))
        await waiting(server, number)
    await ask(server, "POST", "/v1/queues/q/messages", {"messages": [{"payload": n, "key": f"k{n}"} for n in range(3)]})
    answers = await asyncio.wait_for(asyncio.gather(*claims), 10)
    assert [status for status, _, _ in answers] == [200, 200, 409, 200]
    assert (await ask(server, "POST", path, {"token": "twice"}))[0] == 409, "at once, once it is used"


@pytest.mark.parametrize("limits", [LimitSettings(waiters=2), LimitSettings(waiters_per_client=2)])
async def test_too_many_waiters_are_sent_away(limits):
    async with opened(limits=limits) as (running, session):
        running.session = session
        path = "/v1/queues/q/claim?wait=true&timeout_ms=60000"
        claims = [asyncio.create_task(ask(running, "POST", path)) for _ in range(2)]
        await waiting(running, 2)
        status, headers, problem = await ask(running, "POST", path)
        assert (status, headers["retry-after"], problem["type"]) == (429, "1", "urn:qo:throttled")
        assert (await ask(running, "GET", "/v1/queues/q/stream"))[0] == 429
        for claim in claims:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)
        await waiting(running, 0)
        assert (await ask(running, "POST", "/v1/queues/q/claim?wait=true&timeout_ms=1"))[0] == 204


async def connection(server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b"408"),
        (b"GET /livez HT", b"408"),
        (b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{", b"408"),
    ],
)
async def test_a_request_that_trickles_in_is_cut_off(sent, status):
    async with opened(limits=LimitSettings(request_seconds=0.05)) as (running, _):
        reader, writer = await connection(running)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 " + status)
        writer.close()
        while running.connections or running.state.tasks:
            await asyncio.sleep(0.001)


async def test_headers_that_are_too_long_are_431(server):
    for head in (b"x: " + b"y" * 40_000, b"x: y\r\n" * 10_000):
        reader, writer = await connection(server)
        writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 431 ")
        writer.close()


@pytest.mark.parametrize("piece", [b"x: y\r\n" * 100, b"x" * 600])
async def test_trailers_and_extensions_are_bounded_too(server, piece):
    head = b"POST /v1/settle HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    begin = b"2\r\n{}\r\n0\r\n" if b":" in piece else b"2;a="
    reader, writer = await connection(server)
    writer.write(head + begin)
    with contextlib.suppress(ConnectionError):
        for _ in range(1000):
            writer.write(piece)
            await writer.drain()
            if server.connections == 0:
                break
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 10)
    while server.connections:
        await asyncio.sleep(0.001)
    writer.close()


async def test_a_head_that_ends_between_two_pieces_is_not_too_long(server):
    reader, writer = await connection(server)
    body = b'{"payload":"' + b"x" * 40_000 + b'"}'
    head = b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r" % len(body)
    writer.write(head)
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.write(b"\n" + body)
    assert (await reader.readline()).startswith(b"HTTP/1.1 201")
    writer.close()


async def test_a_request_that_comes_later_does_not_hide_that_the_client_hangs_up(server):
    _, writer = await connection(server)
    claim = (
        b"POST /v1/queues/q/claim?wait=true&timeout_ms=60000 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    )
    writer.write(claim)
    await waiting(server, 1)
    writer.write(claim)
    await asyncio.sleep(0.05)
    writer.close()
    await asyncio.wait_for(waiting(server, 0), 10)


async def test_many_requests_on_one_connection_are_not_one_long_head(server):
    reader, writer = await connection(server)
    padding = b"x: " + b"y" * 10_000
    for _ in range(10):
        writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + padding + b"\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    writer.close()


async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off():
    async with opened(limits=LimitSettings(stall_seconds=0.1)) as (running, session):
        running.session = session
        big = "x" * 1_000_000
        messages = {"messages": [{"payload": big}] * 10}
        for _ in range(2):
            await ask(running, "POST", "/v1/queues/q/messages", messages)
        _, writer = await connection(running)
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        writer.write(b"POST /v1/queues/q/claim?messages=20 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
        while running.connections < 2:
            await asyncio.sleep(0.001)
        while running.connections == 2:
            await asyncio.sleep(0.01)
        writer.transport.abort()


# What it says about itself


async def test_metrics_count_and_are_bounded(server):
    await ask(server, "POST", "/v1/queues/q/messages", {"messages": [{"payload": 1}] * 3})
    _, _, claimed = await ask(server, "POST", "/v1/queues/q/claim?messages=2")
    await ask(server, "POST", "/v1/queues/empty/claim")
    items = [{name: each[name] for name in ("token", "lane", "offset")} for each in claimed["messages"]]
    await ask(server, "POST", "/v1/settle", {"items": [items[0], items[1] | {"report": "bury"}, items[0]]})
    async with server.session.get("/metrics", headers={"accept": "application/openmetrics-text,*/*"}) as answer:
        assert answer.content_type == "text/plain"
        text = await answer.text()
    async with server.session.get("/metrics/prometheus") as answer:
        assert answer.content_type == "text/plain"
    for line in (
        'qo_pushed_messages_total{answer="stored"} 3',
        "qo_claims_total 2",
        "qo_claims_empty_total 1",
        "qo_claimed_messages_total 2",
        'qo_settled_messages_total{outcome="completed"} 1',
        'qo_settled_messages_total{outcome="buried"} 1',
        'qo_settled_messages_total{outcome="repeated"} 1',
        'qo_store_call_seconds_count{verb="settle"} 1',
        'qo_store_batch_size_bucket{verb="push",le="5"} 1',
        'qo_queue_depth{queue="q",state="ready"} 1',
        'qo_queue_depth{queue="q",state="dead"} 1',
        "qo_waiters 0",
        "qo_store_up 1",
        'qo_http_requests_total{route="claim",method="POST",status="204"} 1',
    ):
        assert line in text.splitlines()
    _, _, told = await ask(server, "GET", "/metrics")
    assert told["qo_claims_total"]["samples"] == [{"name": "qo_claims_total", "labels": {}, "value": 2}]


async def test_a_store_that_is_away_is_not_ready_and_does_not_break_the_metrics(server, monkeypatch):
    async def away(*_):
        raise Unavailable("the disk is gone")

    for name in ("ready", "queues"):
        monkeypatch.setattr(server.context.broker._store, name, away)
    status, headers, problem = await ask(server, "GET", "/readyz")
    assert (status, headers["retry-after"], problem["detail"]) == (503, "1", "the disk is gone")
    status, _, body = await ask(server, "GET", "/health")
    assert (status, body["status"], body["problem"]) == (503, "unhealthy", "the disk is gone")
    assert (await ask(server, "GET", "/livez"))[0] == 200
    async with server.session.get("/metrics/prometheus") as answer:
        assert "qo_store_up 0" in (await answer.text()).splitlines()


async def test_an_error_of_our_own_is_a_500_that_tells_nothing(server, monkeypatch, caplog):
    async def broken(*_, **__):
        raise RuntimeError("the secret of the payload")

    monkeypatch.setattr(server.context.broker, "push", broken)
    status, headers, problem = await ask(server, "POST", "/v1/queues/q/messages", {"payload": 1})
    assert (status, problem["type"]) == (500, "urn:qo:failure")
    assert "secret" not in json.dumps(problem)
    [record] = [record for record in caplog.records if record.name == "qo.server"]
    assert record.request_id == headers["x-request-id"]


async def test_paths_and_methods_that_are_not_there(server):
    status, _, problem = await ask(server, "GET", "/v2/queues")
    assert (status, problem["type"]) == (404, "urn:qo:not-found")
    status, headers, _ = await ask(server, "PUT", "/v1/queues")
    assert (status, headers["allow"]) == (405, "GET")
    status, _, problem = await ask(server, "GET", "/v1/queues/%ff")
    assert (status, problem["field"]) == (400, "path")
    async with server.session.head("/livez") as answer:
        assert answer.status == 200
    status, headers, _ = await ask(server, "GET", "/livez", headers={"x-request-id": "mine-1"})
    assert headers["x-request-id"] == "mine-1"
    status, headers, _ = await ask(server, "GET", "/livez", headers={"x-request-id": "not mine"})
    assert headers["x-request-id"] != "not mine"


async def test_logs_have_no_payload_and_no_secret(caplog):
    caplog.set_level(logging.DEBUG)
    async with opened(listen=ListenSettings(port=0, auth="token")) as (running, session):
        running.session = session
        _, text = await qo.Client(running.context.broker).tokens.create("a", ["admin"])
        for body in ({"payload": "the secret of a payload"}, {"payload": "the secret of a payload", "wrong": 1}):
            await ask(running, "POST", "/v1/queues/q/messages", body, **bearer(text))
        await ask(running, "POST", "/v1/queues/q/claim", **bearer(text))
    said = "\n".join(
        record.getMessage() + str(record.__dict__) for record in caplog.records if "aiohttp" not in record.name
    )
    assert "the secret of a payload" not in said
    assert text.rpartition("_")[2] not in said


# The document


async def test_the_document_types_settings_and_times_and_demands_no_field_that_has_a_default(server):
    _, _, document = await ask(server, "GET", "/v1/openapi.json")
    schemas = document["components"]["schemas"]
    assert schemas["QueueSettings"]["properties"]["lease"] == {"type": "number"}
    assert schemas["QueueSettings"]["properties"]["retry"] == {"$ref": "#/components/schemas/RetryPolicy"}
    assert schemas["RetryPolicy"]["properties"]["attempts"] == {"type": "integer"}
    assert schemas["QueueBody"]["properties"]["settings"]["$ref"] == "#/components/schemas/QueueSettings"
    assert set(schemas["QueueSettings"]["properties"]) == {each.name for each in dataclasses.fields(qo.QueueSettings)}
    for name, schema in schemas.items():
        for field, about in schema.get("properties", {}).items():
            assert "default" not in about, (name, field)
            if field.endswith("_at") and field != "stopped_at":
                assert "date-time" in json.dumps(about), (name, field)
    assert schemas["MessageBody"]["properties"]["kind"]["description"] == 'By default "default".'
    assert schemas["Problem"]["properties"]["allowed"]["anyOf"][0]["type"] == "array"


async def test_a_problem_lists_what_could_be_chosen(server):
    status, _, problem = await ask(server, "PATCH", "/v1/queues/q", {"history": "some"})
    assert (status, problem["field"], problem["allowed"]) == (400, "history", ["none", "outcome", "full"])
    assert problem["detail"] == "history: must be one of none, outcome, full, not 'some'"
    async with qo.connect(server.url) as client:
        with pytest.raises(qo.Invalid) as raised:
            await client.queue("q").configure(history="some")
        assert raised.value.allowed == ["none", "outcome", "full"]
        assert str(raised.value) == problem["detail"]


ITEM = {"token": "t", "lane": 1, "offset": 0, "report": "nope"}
DEDUPED = {"payload": 1, "dedupe": {"key": "k", "scope": "nope"}}


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "choices"),
    [
        ("GET", "/v1/queues/q/jobs?state=nope", None, "state", JobState),
        ("POST", "/v1/queues/q/messages", DEDUPED, "dedupe.scope", DedupeScope),
        ("POST", "/v1/queues/q/messages", {"messages": [DEDUPED]}, "messages[0].dedupe.scope", DedupeScope),
        ("POST", "/v1/settle", {"items": [ITEM]}, "items[0].report", ReportKind),
        ("POST", "/v1/units", {"settle": [ITEM]}, "settle[0].report", ReportKind),
        ("POST", "/v1/tokens", {"name": "t", "scopes": ["read", "nope"]}, "scopes[1]", Scope),
    ],
)
async def test_a_wrong_choice_anywhere_is_answered_with_what_is_allowed(server, method, path, body, field, choices):
    allowed = [str(each) for each in choices]
    status, _, problem = await ask(server, method, path, body)
    assert (status, problem["field"], problem["allowed"]) == (400, field, allowed)
    assert problem["detail"] == f"{field}: must be one of {', '.join(allowed)}, not 'nope'"
