"""What the client needs of whatever stands before a store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from qo.core.lease import Claimed, Done, Extended, Extension, Lost, Nothing, Settled, Settlement, Undone, Unit, Want
from qo.core.message import MessageId, NewMessage, Pushed
from qo.core.outcome import Job
from qo.core.polling import Polled
from qo.core.scaling import Demand

if TYPE_CHECKING:
    from qo.core.verbs import Access, Admin, Inspect, Workers


class Front(Protocol):
    @property
    def admin(self) -> Admin: ...

    @property
    def access(self) -> Access: ...

    @property
    def workers(self) -> Workers: ...

    @property
    def inspect(self) -> Inspect: ...

    def now(self) -> datetime: ...

    def polled(self) -> Polled:
        """How often the store was asked whether others wrote, where it cannot wake us."""
        ...

    def new_ids(self, count: int) -> list[MessageId]: ...

    async def push(self, messages: Sequence[NewMessage], nonce: str | None = None) -> Sequence[Pushed]: ...

    async def claim(self, want: Want) -> Claimed | Nothing: ...

    async def claim_or_wait(self, want: Want, until: datetime | None, priority: int = 0) -> Claimed | Nothing: ...

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]: ...

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]: ...

    async def transact(self, unit: Unit) -> Done | Undone: ...

    async def finished(self, id: MessageId, until: datetime | None) -> Job | None: ...

    async def demand_or_wait(
        self, queues: Sequence[str], group: str, kinds: Collection[str] | None, until: datetime | None
    ) -> Demand: ...

    async def close(self) -> None: ...
