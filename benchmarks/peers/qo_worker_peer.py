"""qo's worker: no-op async tasks, as its users write them."""

import sys

import uvloop
from peerlib import DSN, PAD, enqueue, handled, key

import qo

worker = qo.Worker(DSN, queues="q")


@worker.task("default")
async def noop(payload: dict) -> None:
    handled(payload["sent"])


async def main(role: str, *numbers: str) -> None:
    if role == "work":
        await worker.run(qo.WorkerRunOptions(signals=False))
        return
    async with qo.connect(DSN) as client:
        queue = client.queue("q")
        if role == "setup":
            await queue.configure(history=numbers[0] if numbers else "outcome")
        else:
            await enqueue(
                lambda sent: queue.push({"sent": sent, "pad": PAD}, key=key()),
                lambda sents: queue.push_many([qo.Message({"sent": sent, "pad": PAD}, key=key()) for sent in sents]),
                role,
                *numbers,
            )


uvloop.run(main(*sys.argv[1:]))
