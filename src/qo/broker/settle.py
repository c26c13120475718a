"""settle, extend and transact: gathered like pushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from qo.broker.batcher import Batcher, dealt_out
from qo.broker.measured import Measured
from qo.core.lease import Claimed, Done, Extended, Extension, Lost, Nothing, Settled, Settlement, Undone, Unit, Want

SETTLE_LIMIT = 10_000


class SettleCall(NamedTuple):
    settlements: Sequence[Settlement]
    then: Sequence[Want]


class SettleAnswer(NamedTuple):
    settled: Sequence[Settled]
    claimed: Sequence[Claimed | Nothing]


class Settles:
    def __init__(self, store: Measured, give_back: Callable[[Want, Claimed | Nothing], None]) -> None:
        self._store = store
        self._give_back = give_back
        self._settles = Batcher[SettleCall, SettleAnswer](
            self._send, weigh=lambda call: len(call.settlements), limit=SETTLE_LIMIT
        )
        self._settles_and_claims = Batcher[SettleCall, SettleAnswer](
            self._send,
            weigh=lambda call: len(call.settlements) + sum(want.messages for want in call.then),
            limit=SETTLE_LIMIT,
            abandoned=self._abandoned,
        )
        self._extends = Batcher[Sequence[Extension], Sequence[Extended | Lost]](
            self._send_extensions, weigh=len, limit=SETTLE_LIMIT
        )
        self._units = Batcher[Unit, Done | Undone](
            store.transact, weigh=lambda unit: len(unit.settlements) + len(unit.pushes) + 1, limit=SETTLE_LIMIT
        )

    async def settle(self, settlements: Sequence[Settlement], then: Sequence[Want]) -> SettleAnswer:
        gather = self._settles_and_claims if then else self._settles
        return await gather.ask(SettleCall(settlements, then))

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        return await self._extends.ask(extensions)

    async def transact(self, unit: Unit) -> Done | Undone:
        return await self._units.ask(unit)

    async def close(self) -> None:
        for gather in (self._settles, self._settles_and_claims, self._extends, self._units):
            await gather.close()

    def _abandoned(self, call: SettleCall, answer: SettleAnswer) -> None:
        """The caller has gone: hand the messages that its settle claimed to other waiters, or release them."""
        for want, claimed in zip(call.then, answer.claimed, strict=True):
            self._give_back(want, claimed)

    async def _send(self, calls: Sequence[SettleCall]) -> list[SettleAnswer]:
        settled, claimed = await self._store.settle(
            [each for call in calls for each in call.settlements], [want for call in calls for want in call.then]
        )
        shares = dealt_out(settled, [len(call.settlements) for call in calls])
        claims = dealt_out(claimed, [len(call.then) for call in calls])
        return [SettleAnswer(*share) for share in zip(shares, claims, strict=True)]

    async def _send_extensions(self, calls: Sequence[Sequence[Extension]]) -> list[Sequence[Extended | Lost]]:
        answers = await self._store.extend([each for call in calls for each in call])
        return dealt_out(answers, [len(call) for call in calls])
