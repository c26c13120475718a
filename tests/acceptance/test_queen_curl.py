"""The `curl` lines of Queen's document on long polling, as they stand there."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.acceptance.shell import run_lines
from tests.serving import Serving

SERVER = "http://localhost:6632"
LINES = [
    'curl "http://localhost:6632/api/v1/pop/queue/events?wait=true&timeout=30000&batch=10"',
    'curl "http://localhost:6632/api/v1/pop/queue/orders?consumerGroup=workers&wait=true&timeout=30000&batch=5"',
    'curl "http://localhost:6632/api/v1/pop?namespace=billing&wait=true&timeout=30000&batch=10"',
    'curl "http://localhost:6632/api/v1/pop/queue/test?wait=true&timeout=30000"',
]
QUEUES = ["events", "orders", "billing.send", "test"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Serving(tmp_path_factory.mktemp("queen")) as server:
        yield server


@pytest.mark.parametrize(("line", "queue"), list(zip(LINES, QUEUES, strict=True)))
async def test_a_line_waits_and_is_answered_by_the_push(server, line, queue, tmp_path):
    pop = asyncio.create_task(asyncio.to_thread(run_lines, line.replace(SERVER, server.url), tmp_path))
    while not await asyncio.to_thread(_waiting, server, tmp_path):
        await asyncio.sleep(0.01)
    body = json.dumps({"items": [{"queue": queue, "payload": {"n": 1}}]})
    pushed = await asyncio.to_thread(run_lines, f"curl {server.url}/api/v1/push -d '{body}'", tmp_path)
    assert json.loads(pushed)[0]["status"] == "queued"
    answer = json.loads(await pop)
    assert [each["data"] for each in answer["messages"]] == [{"n": 1}]
    assert answer["queue"] == queue


def _waiting(server, folder) -> bool:
    said = json.loads(run_lines(f"curl {server.url}/metrics", folder))
    return bool(said["qo_waiters"]["samples"][0]["value"])
