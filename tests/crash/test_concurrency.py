"""Many processes push, claim and settle on the same keys at once; nothing is lost, nothing overlaps, order is kept."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator

import pytest

import qo
from tests.crash.child import QUEUE, SETTINGS, drain
from tests.crash.history import problems, read
from tests.crash.test_kills import start
from tests.postgres import Server, new_schema

PROCESSES = 8
SECONDS = float(os.environ.get("QO_CONCURRENCY_SECONDS", "5"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(settings={"wal_level": "minimal", "max_wal_senders": "0"}).start()
    yield server
    server.remove()


@pytest.mark.parametrize("keys", [1, 10, 1000])
def test_eight_processes_on_the_same_keys(server, tmp_path, monkeypatch, keys):
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
    assert len(final) > 50
    print(f"{keys} keys: {len(final)} messages")
    assert "deadlock detected" not in server.log.read_text(errors="replace")
