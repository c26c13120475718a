"""Procrastinate: psycopg pool, batch_defer, a worker with a hundred slots that deletes what is done."""

import sys

import procrastinate
import uvloop
from peerlib import DSN, KEYS, PAD, enqueue, handled, key

SLOTS = 100

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=DSN, min_size=2, max_size=24))


@app.task(name="noop", queue="default")
async def noop(sent: float, pad: str) -> None:  # noqa: ARG001 - the payload's weight
    handled(sent)


async def defer_many(sents: list[float]) -> None:
    if not KEYS:
        await noop.batch_defer_async(*({"sent": sent, "pad": PAD} for sent in sents))
        return
    for sent in sents:  # a batch has one lock
        await noop.configure(lock=key()).defer_async(sent=sent, pad=PAD)


async def main(role: str, *numbers: str) -> None:
    async with app.open_async():
        if role == "setup":
            await app.schema_manager.apply_schema_async()
        elif role == "work":
            await app.run_worker_async(concurrency=SLOTS, delete_jobs="always")
        else:
            await enqueue(
                lambda sent: noop.configure(lock=key()).defer_async(sent=sent, pad=PAD),
                defer_many,
                role,
                *numbers,
            )


uvloop.run(main(*sys.argv[1:]))
