"""push: one commit for all that arrive while the last one was under way."""

from __future__ import annotations

from collections.abc import Sequence

from qo.broker.batcher import Batcher, dealt_out, parts_of
from qo.broker.measured import Measured
from qo.core.errors import QueueFull, Unavailable
from qo.core.message import NewMessage, Pushed

COMMIT_WORK = 5000
"""Work that gathers for one commit; a single call may be more. No store takes much longer than 100 ms for it."""
PLAIN_WORK, OTHER_WORK = 1, 6


def work_of(message: NewMessage) -> int:
    """How much of a commit a message takes: one more of a lane, or one that may need a lane or look-ups of its own."""
    said = message.key, message.headers, message.due_at, message.delay, message.ttl, message.dedupe
    return PLAIN_WORK if said == NOTHING_SAID else OTHER_WORK


NOTHING_SAID = (None,) * 6


def work_of_all(messages: Sequence[NewMessage]) -> int:
    return sum(map(work_of, messages))


class Pushes:
    def __init__(self, store: Measured) -> None:
        self._store = store
        self._batcher = Batcher[Sequence[NewMessage], Sequence[Pushed]](
            self._send, weigh=work_of_all, limit=COMMIT_WORK
        )

    async def push(self, messages: Sequence[NewMessage], nonce: str | None) -> Sequence[Pushed]:
        """Store messages. A push with a nonce has a commit of its own, because the nonce stands for the whole of it."""
        if nonce is not None:
            return await self._store.push(messages, nonce=nonce)
        return await self._batcher.ask(messages)

    async def push_in_parts(self, messages: Sequence[NewMessage]) -> Sequence[Pushed]:
        """Store messages in as many commits as it takes, so that none keeps others waiting for long."""
        answers: list[Pushed] = []
        for part in parts_of(messages, work_of, COMMIT_WORK):
            try:
                answers += await self._batcher.ask(part)
            except (Unavailable, QueueFull) as error:
                if not answers:
                    raise
                told = f"{error}; the first {len(answers)} messages of {len(messages)} were stored"
                raise type(error)(told) from error
        return answers

    async def close(self) -> None:
        await self._batcher.close()

    async def _send(self, calls: Sequence[Sequence[NewMessage]]) -> list[Sequence[Pushed]]:
        if len(calls) == 1:
            return [await self._store.push(calls[0])]
        answers = await self._store.push([message for call in calls for message in call])
        return dealt_out(answers, [len(call) for call in calls])
