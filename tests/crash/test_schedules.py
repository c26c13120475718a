"""Servers are killed while schedules are due every second; each slot becomes one job, and none is left out."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import qo
from tests.postgres import Server, new_schema
from tests.serving import Serving

SECONDS = float(os.environ.get("QO_SCHEDULE_SECONDS", "8"))
SCHEDULES = int(os.environ.get("QO_SCHEDULES", "60"))
ENGINES = os.environ.get("QO_CRASH_ENGINES", "sqlite,postgres").split(",")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.remove()


@pytest.fixture(params=[engine for engine in ("sqlite", "postgres") if engine in ENGINES])
def store(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'qo.db'}"
    server: Server = request.getfixturevalue("server")
    return f"{server.url}&schema={new_schema()}"


def serving(store: str, folder: Path, name: str) -> Serving:
    return Serving(folder, "--store", store, name=name).__enter__()


def test_each_slot_fires_once_whichever_server_is_killed(store, tmp_path):
    rng = random.Random(SECONDS)
    servers = [serving(store, tmp_path, f"first-{number}") for number in range(3)]
    names = [f"s{number:03}" for number in range(SCHEDULES)]
    kills = 0
    try:
        with qo.connect(store) as client:
            for name in names:
                client.schedules.create(name, "ticks", every=1, catch_up="all", catch_up_limit=10_000)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(0.3 + rng.random())
            number = rng.randrange(3)
            assert servers[number].stop(signal.SIGKILL) == -signal.SIGKILL
            kills += 1
            servers[number] = serving(store, tmp_path, f"after-{kills}")
    finally:
        for each in servers:
            each.stop()
    slots = asyncio.run(slots_of(store, names))
    print(f"{kills} kills, {len(slots)} schedules, {sum(map(len, slots.values()))} slots, each fired once")
    for name, found in slots.items():
        assert found == [found[0] + timedelta(seconds=number) for number in range(len(found))], name
        assert len(found) >= SECONDS


async def slots_of(store: str, names: list[str]) -> dict[str, list[datetime]]:
    """The slots of each schedule that became jobs, once all that are due did."""
    async with qo.connect(store) as client:
        for name in names:
            while (await client.schedules.get(name)).coming[0].fires_at <= client.broker.now():
                await asyncio.sleep(0.05)
            await client.schedules.pause(name)
        counted: Counter[tuple[str, str]] = Counter()
        while taken := await client.queue("ticks").claim(1000):
            counted.update((each.headers["qo-schedule"], each.headers["qo-slot"]) for each in taken)
            await client.queue("ticks").complete_many(taken)
    assert set(counted.values()) == {1}, [each for each, times in counted.items() if times > 1][:5]
    found: dict[str, list[datetime]] = {name: [] for name in names}
    for name, slot in sorted(counted):
        found[name].append(datetime.fromisoformat(slot))
    return found


def test_a_schedule_fires_on_another_server_than_the_one_that_made_it(store, tmp_path):
    with Serving(tmp_path, "--store", store, name="other") as other:
        with Serving(tmp_path, "--store", store, name="first") as first, qo.connect(first.url) as client:
            client.schedules.create("soon", "ticks", every=1)
        with qo.connect(other.url) as client:
            [delivery] = client.queue("ticks").claim(1, wait=30)
            assert delivery.headers["qo-schedule"] == "soon"
