"""awa-pg: its queue storage, COPY in bulk, a worker with a thousand slots."""

import asyncio
import sys
from dataclasses import dataclass

from awa import AsyncClient
from peerlib import DSN, PAD, enqueue, handled

SLOTS = 1000


@dataclass
class Noop:
    sent: float
    pad: str


async def main(role: str, *numbers: str) -> None:
    client = AsyncClient(DSN)
    if role == "setup":
        await client.migrate()
        await client.install_queue_storage()
    elif role == "work":

        @client.task(Noop, queue="q")
        async def noop(job: object) -> None:
            handled(job.args.sent)

        await client.start(
            [("q", int(numbers[0]) if numbers else SLOTS)],
            poll_interval_ms=int(numbers[1]) if len(numbers) > 1 else 200,
        )
        await asyncio.Event().wait()
    else:
        await enqueue(
            lambda sent: client.insert(Noop(sent, PAD), queue="q"),
            lambda sents: client.enqueue_many_copy([Noop(sent, PAD) for sent in sents], queue="q"),
            role,
            *numbers,
        )


asyncio.run(main(*sys.argv[1:]))
