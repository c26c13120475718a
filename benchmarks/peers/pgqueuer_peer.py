"""PgQueuer: an asyncpg pool, enqueue of many in one statement, a worker with batches of a hundred."""

import json
import sys

import asyncpg
import uvloop
from peerlib import DSN, PAD, enqueue, handled
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries

BATCH = 100


def payload(sent: float) -> bytes:
    return json.dumps({"sent": sent, "pad": PAD}).encode()


async def main(role: str, *numbers: str) -> None:
    pool = await asyncpg.create_pool(DSN, min_size=2, max_size=24)
    queries = Queries(AsyncpgPoolDriver(pool))
    if role == "setup":
        await queries.install()
    elif role == "work":
        worker = PgQueuer.from_asyncpg_pool(pool)

        @worker.entrypoint("noop")
        async def noop(job: object) -> None:
            handled(json.loads(job.payload)["sent"])

        await worker.run(batch_size=BATCH)
    else:
        await enqueue(
            lambda sent: queries.enqueue("noop", payload(sent), 0),
            lambda sents: queries.enqueue(["noop"] * len(sents), [payload(s) for s in sents], [0] * len(sents)),
            role,
            *numbers,
        )


uvloop.run(main(*sys.argv[1:]))
