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
    """Settlements that release these deliveries, with no attempt used."""
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


NO_LANES: dict[LaneId, LaneLease] = {}


class Held:
    """The messages that one consumer holds, by the lane's lease that each is under."""

    def __init__(self) -> None:
        self._leases: dict[LeaseToken, dict[LaneId, LaneLease]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many messages."""
        return self._count

    def __contains__(self, place: At) -> bool:
        token, lane, offset = place
        lease = self._leases.get(token, NO_LANES).get(lane)
        return lease is not None and offset in lease.messages

    def __iter__(self) -> Iterator[At]:
        return ((token, lane, offset) for token, lane, lease in self._each() for offset in lease.messages)

    @property
    def tokens(self) -> Collection[LeaseToken]:
        return self._leases.keys()

    def deliveries(self) -> list[Delivered]:
        return [each for _, _, lease in self._each() for each in lease.messages.values()]

    def take(self, deliveries: Sequence[Delivered]) -> None:
        """A claim was answered."""
        for each in deliveries:
            lanes = self._leases.get(each.token)
            if lanes is None:
                lanes = self._leases[each.token] = {}
            lease = lanes.get(each.lane)
            if lease is None:
                lease = lanes[each.lane] = LaneLease(each.key is not None, each.expires_at, {})
            lease.messages[each.offset] = each
        self._count += len(deliveries)

    def drop(self, place: At) -> None:
        """One message is not held any more."""
        token, lane, offset = place
        lanes = self._leases.get(token, NO_LANES)
        lease = lanes.get(lane)
        if lease is not None and lease.messages.pop(offset, None) is not None:
            self._count -= 1
            if not lease.messages:
                self._forget(token, lane)

    def forget(self, items: Sequence[Settlement]) -> None:
        """These messages are not held any more, whatever became of them."""
        for each in items:
            self.drop((each.token, each.lane, each.offset))

    def clear(self) -> None:
        self._leases.clear()
        self._count = 0

    def settled(self, item: Settlement, answer: Settled) -> None:
        """Something was settled. Completing a message of a key completes what is before it; a lease's end drops all."""
        lease = self._leases.get(item.token, NO_LANES).get(item.lane)
        if lease is None or answer.verdict is None:
            return
        gone = [o for o in lease.messages if o <= item.offset] if lease.keyed else [item.offset]
        for offset in list(lease.messages) if answer.lease_ended else gone:
            self.drop((item.token, item.lane, offset))

    def expire(self, now: datetime) -> None:
        """Forget what is held under leases that are over by now."""
        for token, lane in [(token, lane) for token, lane, lease in self._each() if lease.expires_at <= now]:
            self._forget(token, lane)

    def next_expiry_at(self) -> datetime | None:
        """When a lease will be over, if nothing is heard of it."""
        return min((lease.expires_at for _, _, lease in self._each()), default=None)

    def extensions(self, lease: timedelta) -> list[Extension]:
        """What holds all leases for longer, and says that their messages have started."""
        return [
            Extension(
                token=token,
                lease=lease,
                started=tuple(Place(lane, offset) for lane, held in lanes.items() for offset in held.messages),
            )
            for token, lanes in self._leases.items()
        ]

    def extended(self, extension: Extension, answer: Extended | Lost) -> Changes:
        """Note the answer to an extension. What is lost is not held any more."""
        token = extension.token
        lanes = self._leases.get(token, NO_LANES)
        if isinstance(answer, Lost):
            lost = tuple((token, lane, offset) for lane, held in lanes.items() for offset in held.messages)
            for lane in list(lanes):
                self._forget(token, lane)
            return Changes(lost=lost)
        for held in lanes.values():
            held.expires_at = answer.expires_at
        places = [(token, place.lane, place.offset) for place in answer.canceled]
        return Changes(canceled=tuple(place for place in places if place in self))

    def _each(self) -> Iterator[tuple[LeaseToken, LaneId, LaneLease]]:
        return ((token, lane, lease) for token, lanes in self._leases.items() for lane, lease in lanes.items())

    def _forget(self, token: LeaseToken, lane: LaneId) -> None:
        lanes = self._leases[token]
        self._count -= len(lanes.pop(lane).messages)
        if not lanes:
            del self._leases[token]
