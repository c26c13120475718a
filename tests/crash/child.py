"""A process under load that is killed, by itself at a named point or by its parent at any time.

Usage: python -m tests.crash.child URL HISTORY SEED [POINT VERB COUNT]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from datetime import timedelta
from pathlib import Path

import qo
from qo.broker.broker import LocalBroker
from qo.client.client import Client
from qo.core.errors import LeaseLost, RolledBack
from qo.core.lease import Bury, Complete, Done, Fail, Release, Unit
from qo.core.message import id_text
from qo.core.record import ABSENT, Put
from qo.core.verbs import Engine
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.sqlite.engine import SqliteEngine, options_of
from tests.crash.history import Recorder, now

QUEUE = "work"
COUNT, FIRED = ("count", "fired"), "fired"
LEASE = 0.4
KEYS = [f"k{number}" for number in range(int(os.environ.get("QO_KEYS", "3")))]
GIVES_UP = 0.9
"""Choices above this end a run: bury, release, fail."""
SETTINGS = {
    "retry": qo.RetryPolicy(attempts=1000, delay=timedelta(milliseconds=5), max_delay=timedelta(milliseconds=40)),
    "max_lost": 0,
    "lease": LEASE,
}


def suicide(point: str, verb: str, count: int):
    """A probe that kills the process the n-th time that a verb is about to be, or has just been, committed."""
    left = count

    def probe(here: str, verbs: list[str]) -> None:
        nonlocal left
        if here == point and verb in verbs:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return probe


class Load:
    """`fired` messages are pushed in one unit with a record that counts them: there must be as many as it says."""

    def __init__(self, client: Client, history: Recorder, rng: random.Random) -> None:
        self.queue = client.queue(QUEUE)
        self.client = client
        self.history = history
        self.rng = rng

    def announce(self, new) -> None:
        self.history.write("pushing", messages=[(id_text(each.id), each.key) for each in new])

    def outgoing(self) -> list[qo.Message]:
        rng = self.rng
        return [
            qo.Message(
                "x" * rng.choice([10, 3000]),
                key=rng.choice([None, None, *KEYS]) if len(KEYS) < 10 else rng.choice(KEYS),
                delay=rng.choice([None, None, None, 0.05]),
            )
            for _ in range(rng.randint(1, 8))
        ]

    async def produce(self) -> None:
        while True:
            new = self.queue.prepare(self.outgoing())
            self.announce(new)
            answers = await self.queue.broker.push(new)
            self.history.write("pushed", ids=[id_text(each.id) for each in answers])
            await asyncio.sleep(self.rng.random() * 0.01)

    async def fire(self, store: Engine) -> None:
        while True:
            found = await store.record(*COUNT)
            count, version = (0, ABSENT) if found is None else (int(found.body), found.version)
            new = self.queue.prepare([qo.Message(FIRED)])
            self.announce(new)
            moved = Put(kind=COUNT[0], name=COUNT[1], body=b"%d" % (count + 1), expected=version)
            answer = await self.queue.broker.transact(Unit(pushes=tuple(new), records=(moved,)))
            if isinstance(answer, Done):
                self.history.write("pushed", ids=[id_text(each.id) for each in new])
            await asyncio.sleep(self.rng.random() * 0.01)

    async def consume(self, *, until_empty: bool = False) -> None:
        while True:
            asked = now()
            deliveries = await self.queue.claim(self.rng.randint(1, 10), wait=1)
            if not deliveries and until_empty:
                return
            for each in deliveries:
                self.history.write(
                    "claimed",
                    id=each.id,
                    token=each.delivered.token,
                    offset=each.delivered.offset,
                    asked_at=asked,
                    expires_at=asked + LEASE,
                )
            lost: set[int] = set()
            for number, each in enumerate(deliveries):
                lane = each.delivered.lane
                if lane not in lost and not await self.handle(each, deliveries[number + 1 :], calm=until_empty):
                    lost.add(lane)

    async def handle(self, each: qo.Delivery, later: list[qo.Delivery], *, calm: bool) -> bool:
        """Say something about a delivery. Whether the rest of its run is still ours."""
        choice = 0.0 if calm else self.rng.random()
        token = each.delivered.token
        if 0.7 < choice < 0.75:
            asked = now()
            with contextlib.suppress(LeaseLost):
                await each.extend(LEASE)
                self.history.write("extended", token=token, expires_at=asked + LEASE)
        if choice > GIVES_UP and each.key is not None:
            ids = [other.id for other in later if other.delivered.lane == each.delivered.lane]
            self.history.write("letting go", token=token, ids=ids)
        self.history.write("settling", id=each.id, token=token)
        try:
            verdict = await self.say(each, choice)
        except (LeaseLost, RolledBack):
            return False
        self.history.write("settled", id=each.id, token=token, verdict=verdict)
        return each.key is None or verdict == "completed"

    async def say(self, each: qo.Delivery, choice: float) -> str:
        if choice > 0.95:
            return await each.settle(Fail("again"))
        if choice > 0.92:
            return await each.settle(Release())
        if choice > GIVES_UP:
            return await each.settle(Bury("enough"))
        if choice > 0.8:
            new = self.queue.prepare([qo.Message("follow-up", key=self.rng.choice([None, KEYS[0]]))])
            self.announce(new)
            pushed = await self.client.transact([each.settlement(Complete())], new)
            self.history.write("pushed", ids=[handle.id for handle in pushed])
            return "completed"
        return await each.settle(Complete(b"1"))


async def opened(url: str, probe) -> Engine:
    if url.startswith("sqlite"):
        path, _ = options_of(url)
        return await SqliteEngine.open(path, probe=probe)
    return await PostgresEngine.open(read_address(url), probe=probe)


async def work(url: str, history: Path, seed: int, crash: list[str]) -> None:
    probe = suicide(crash[0], crash[1], int(crash[2])) if crash else None
    engine = await opened(url, probe)
    client = Client(LocalBroker(engine))
    load = Load(client, Recorder(history), random.Random(seed))
    await asyncio.gather(
        load.produce(),
        load.produce(),
        load.fire(engine),
        load.fire(engine),
        load.consume(),
        load.consume(),
        keep_tidy(engine),
    )


async def keep_tidy(engine: Engine) -> None:
    while True:
        await engine.tidy()
        await asyncio.sleep(0.02)


async def counted(url: str) -> int:
    engine = await opened(url, None)
    try:
        found = await engine.record(*COUNT)
    finally:
        await engine.close()
    return 0 if found is None else int(found.body)


async def drain(url: str, history: Path) -> dict[str, str]:
    """Finish everything in peace; answer how each message ended."""
    async with qo.connect(url) as client:
        load = Load(client, Recorder(history), random.Random(0))
        await load.consume(until_empty=True)
        depth = await load.queue.depth()
        assert (depth.ready, depth.retrying, depth.leased, depth.delayed) == (0, 0, 0, 0), depth
        jobs = await load.queue.jobs(limit=1_000_000)
    count = await counted(url)
    assert sum(job.payload == f'"{FIRED}"'.encode() for job in jobs) == count, "as many were pushed as the record says"
    return {job.id: str(job.state) for job in jobs}


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
