"""push: one commit for all that arrive while the last one was under way."""

from __future__ import annotations

from collections.abc import Sequence

from qo.broker.gather import Gather, dealt_out
from qo.broker.measured import Measured
from qo.core.message import NewMessage, Pushed

PUSH_LIMIT = 10_000
"""Messages in one commit; a single call may be larger."""


class Pushes:
    def __init__(self, store: Measured) -> None:
        self._store = store
        self._gather = Gather[Sequence[NewMessage], Sequence[Pushed]](self._send, weigh=len, limit=PUSH_LIMIT)

    async def push(self, messages: Sequence[NewMessage], nonce: str | None) -> Sequence[Pushed]:
        """Store messages. A push with a nonce has a commit of its own, because the nonce stands for the whole of it."""
        if nonce is not None:
            return await self._store.push(messages, nonce=nonce)
        return await self._gather.ask(messages)

    async def close(self) -> None:
        await self._gather.close()

    async def _send(self, calls: Sequence[Sequence[NewMessage]]) -> list[Sequence[Pushed]]:
        if len(calls) == 1:
            return [await self._store.push(calls[0])]
        answers = await self._store.push([message for call in calls for message in call])
        return dealt_out(answers, [len(call) for call in calls])
