"""Dead letters of one group of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from qo.client.paging import paged
from qo.core.message import MessageId, checked_id, id_text
from qo.core.outcome import DeadLetter
from qo.core.verbs import Broker


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Messages that used up their attempts: look at them, push them again, remove them."""

    broker: Broker
    queue: str
    group: str

    async def list(self, *, after: str | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        """Oldest first."""
        return await paged(partial(self.broker.inspect.dead, self.queue, self.group), after, limit)

    async def get(self, id: str) -> DeadLetter | None:
        """One of them by its id; None if there is none."""
        wanted = checked_id("id", id)
        before = (int.from_bytes(wanted) - 1).to_bytes(16) if any(wanted) else None
        found = await self.broker.inspect.dead(
            self.queue, self.group, None if before is None else id_text(MessageId(before)), 1
        )
        return found[0] if found and found[0].id == id_text(wanted) else None

    async def retry(self, *ids: str) -> Sequence[str]:
        """Push these again (none named: up to a thousand of them), addressed to this group alone. Their new ids."""
        return [id_text(id) for id in await self.broker.admin.retry_dead(self.queue, self.group, _named(ids))]

    async def purge(self, *ids: str) -> int:
        """Remove these (none named: all). How many there were."""
        return await self.broker.admin.purge_dead(self.queue, self.group, _named(ids))


def _named(ids: Iterable[str]) -> Sequence[MessageId] | None:
    return [checked_id("id", id) for id in ids] or None
