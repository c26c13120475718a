"""Many processes push, claim and settle on the same keys at once; nothing is lost, nothing overlaps, order is kept."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import qo
from tests.crash.child import QUEUE, SETTINGS, drain
from tests.crash.history import problems, read
from tests.crash.test_kills import start
from tests.postgres import Server, new_schema

PROCESSES = 8
SECONDS = float(os.environ.get("QO_CONCURRENCY_SECONDS", "5"))
SOAK_SECONDS = 60
ENOUGH = 50
"""So many messages say something; a slow machine is given more time for them, up to a bound."""
BOUND_SECONDS = 120


ISOLATIONS = ["read committed", "repeatable read", "serializable"]
"""What a transaction has by default; to qo it makes no difference."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    running: dict[str, Server] = {}
    yield running
    for server in running.values():
        server.remove()


def started(isolation: str) -> Server:
    settings = {"wal_level": "minimal", "max_wal_senders": "0", "default_transaction_isolation": isolation}
    return Server(settings=settings).start()


CASES = [(keys, isolation) for isolation in ISOLATIONS for keys in (1, 10, 1000)]
if SECONDS < SOAK_SECONDS:
    CASES = [case for case in CASES if case[0] == 10 or case[1] == ISOLATIONS[0]]


def wait_for_work(histories: list[Path]) -> None:
    until = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < until:
        if sum(event["event"] == "pushed" for event in read(histories)) > ENOUGH:
            return
        time.sleep(0.5)


@pytest.mark.parametrize(("keys", "isolation"), CASES)
def test_eight_processes_on_the_same_keys(servers, tmp_path, monkeypatch, keys, isolation):
    server = servers.get(isolation) or servers.setdefault(isolation, started(isolation))
    monkeypatch.setenv("QO_KEYS", str(keys))
    url = f"{server.url}&schema={new_schema()}&pool=4"
    with qo.connect(url) as client:
        client.queue(QUEUE).configure(**SETTINGS)
    histories = [tmp_path / f"history-{number}" for number in range(PROCESSES)]
    for history in histories:
        history.touch()
    rng = random.Random(keys)
    children = [start(url, history, rng.randrange(10**9), None) for history in histories]
    time.sleep(SECONDS)
    wait_for_work(histories)
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert child.stderr is not None
        with child.stderr:
            said = child.stderr.read().decode()
        assert said == ""
    time.sleep(0.5)  # real processes, real leases: let the last ones run out
    final = asyncio.run(drain(url, tmp_path / "history-drain"))
    events = read(tmp_path.glob("history-*"))
    assert problems(events, final) == []
    assert len(final) > ENOUGH
    print(f"{keys} keys, {isolation}: {len(final)} messages")
    assert "deadlock detected" not in server.log.read_text(errors="replace")
