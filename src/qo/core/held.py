"""What a consumer holds: messages under their leases. Pure bookkeeping; `qo.client.holding` acts on it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from qo.core.lane import LaneId
from qo.core.lease import Delivered, Extended, Extension, LeaseToken, Lost, Place, Release, Settled, Settlement

At = tuple[LeaseToken, LaneId, int]
"""A message under a lease: the token, the lane, the offset."""


def at(delivered: Delivered) -> At:
    """Where a delivered message is held."""
    return delivered.token, delivered.lane, delivered.offset


def released(deliveries: Sequence[Delivered]) -> list[Settlement]:
    """What gives messages back, with no attempt used."""
    return [Settlement(token=each.token, lane=each.lane, offset=each.offset, report=Release()) for each in deliveries]


class Changes(msgspec.Struct, frozen=True):
    """What an answer of the store says about messages that are held."""

    lost: tuple[At, ...] = ()
    canceled: tuple[At, ...] = ()


class LaneLease(msgspec.Struct, gc=False):
    """One lane's part of a claim: what is still held of it, by offset."""

    keyed: bool
    expires_at: datetime
    messages: dict[int, Delivered]


class Held:
    """The messages that one consumer holds, by the lane's lease that each is under."""

    def __init__(self) -> None:
        self._leases: dict[tuple[LeaseToken, LaneId], LaneLease] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many messages."""
        return self._count

    def __contains__(self, place: At) -> bool:
        lease = self._leases.get(place[:2])
        return lease is not None and place[2] in lease.messages

    def __iter__(self) -> Iterator[At]:
        return ((token, lane, offset) for (token, lane), lease in self._leases.items() for offset in lease.messages)

    @property
    def tokens(self) -> Collection[LeaseToken]:
        return {token for token, _ in self._leases}

    def deliveries(self) -> list[Delivered]:
        return [each for lease in self._leases.values() for each in lease.messages.values()]

    def take(self, deliveries: Sequence[Delivered]) -> None:
        """A claim was answered."""
        leases = self._leases
        for each in deliveries:
            lease = leases.get((each.token, each.lane))
            if lease is None:
                lease = leases[each.token, each.lane] = LaneLease(each.key is not None, each.expires_at, {})
            lease.messages[each.offset] = each
        self._count += len(deliveries)

    def drop(self, place: At) -> None:
        """One message is not held any more."""
        lease = self._leases.get(place[:2])
        if lease is not None and lease.messages.pop(place[2], None) is not None:
            self._count -= 1
            if not lease.messages:
                del self._leases[place[:2]]

    def forget(self, items: Sequence[Settlement]) -> None:
        """These messages are not held any more, whatever became of them."""
        for each in items:
            self.drop((each.token, each.lane, each.offset))

    def clear(self) -> None:
        self._leases.clear()
        self._count = 0

    def settled(self, item: Settlement, answer: Settled) -> None:
        """Something was settled. Completing a message of a key completes what is before it; a lease's end drops all."""
        if answer.verdict is None:
            return
        lease = self._leases.get((item.token, item.lane))
        if lease is None:
            return
        gone = [o for o in lease.messages if o <= item.offset] if lease.keyed else [item.offset]
        for offset in list(lease.messages) if answer.lease_ended else gone:
            self.drop((item.token, item.lane, offset))

    def expire(self, now: datetime) -> None:
        """Forget what is held under leases that are over by now."""
        for lease in [lease for lease, held in self._leases.items() if held.expires_at <= now]:
            self._forget(lease)

    def next_end(self) -> datetime | None:
        """When a lease will be over, if nothing is heard of it."""
        return min((held.expires_at for held in self._leases.values()), default=None)

    def extensions(self, lease: timedelta) -> list[Extension]:
        """What holds all leases for longer, and says that their messages have started."""
        started: dict[LeaseToken, list[Place]] = {}
        for token, lane, offset in self:
            started.setdefault(token, []).append(Place(lane, offset))
        return [Extension(token=token, lease=lease, started=tuple(places)) for token, places in started.items()]

    def extended(self, extension: Extension, answer: Extended | Lost) -> Changes:
        """Note the answer to an extension. What is lost is not held any more."""
        token = extension.token
        own = [lease for lease in self._leases if lease[0] == token]
        if isinstance(answer, Lost):
            lost = tuple((*lease, offset) for lease in own for offset in self._leases[lease].messages)
            for lease in own:
                self._forget(lease)
            return Changes(lost=lost)
        for lease in own:
            self._leases[lease].expires_at = answer.expires_at
        places = [(token, place.lane, place.offset) for place in answer.canceled]
        return Changes(canceled=tuple(place for place in places if place in self))

    def _forget(self, lease: tuple[LeaseToken, LaneId]) -> None:
        self._count -= len(self._leases.pop(lease).messages)
