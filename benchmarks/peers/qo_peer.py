"""qo: push, push_many, and streams that complete a hundred and claim the next in one call."""

import asyncio
import sys

import uvloop
from peerlib import DSN, PAD, enqueue, handled

import qo

BATCH = 100
STREAMS = 4


async def work(queue: qo.Queue) -> None:
    while True:
        batch = await queue.claim(BATCH, wait=60)
        while batch:
            for delivery in batch:
                handled(delivery.payload["sent"])
            _, batch = await queue.complete_and_claim(batch, BATCH)


async def main(role: str, *numbers: str) -> None:
    async with qo.connect(DSN) as client:
        queue = client.queue("q")
        if role == "setup":
            await queue.configure(history=numbers[0] if numbers else "outcome")
        elif role == "work":
            await asyncio.gather(*(work(queue) for _ in range(STREAMS)))
        else:
            await enqueue(
                lambda sent: queue.push({"sent": sent, "pad": PAD}),
                lambda sents: queue.push_many([qo.Message({"sent": sent, "pad": PAD}) for sent in sents]),
                role,
                *numbers,
            )


uvloop.run(main(*sys.argv[1:]))
