"""An open lane's lease: what settling and losing it does to its messages. Pure: state in, changes out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from qo.core.fate import Completed, Fate, Standing, fate_of_loss, fate_of_report
from qo.core.lease import Complete, Report
from qo.core.queue import QueueSettings


class Tries(NamedTuple):
    """Attempts and losses that a message had before."""

    attempts: int
    losses: int


FIRST = Tries(0, 0)


class OpenDecided(NamedTuple):
    """What becomes of one message. `fresh`: it was of the range; else it was a retry that was claimed with it."""

    offset: int
    fate: Fate
    attempt: int
    fresh: bool


def settle_open(
    items: Iterable[tuple[int, Report]],
    unsettled: Callable[[int], bool],
    retries: Mapping[int, Tries],
    canceled: Collection[int],
    settings: QueueSettings,
    now: datetime,
    draw: Callable[[], float],
    expired: Callable[[int], bool],
) -> list[OpenDecided]:
    """Judge reports one by one; the first about a message counts, and what the lease does not hold is left out.

    unsettled   whether an offset of the lease's range is still to be settled
    retries     the retries that the lease holds
    """
    seen: set[int] = set()
    decided = []
    for offset, report in items:
        if offset in seen:
            continue
        tries = retries.get(offset)
        if tries is None and not unsettled(offset):
            continue
        seen.add(offset)
        attempts, losses = FIRST if tries is None else tries
        if isinstance(report, Complete):
            fate: Fate = Completed(report.result)
        else:
            standing = Standing(attempts=attempts, losses=losses, canceled=offset in canceled, expired=expired(offset))
            fate = fate_of_report(report, standing, settings, now, draw())
        decided.append(OpenDecided(offset, fate, attempts + 1, tries is None))
    return decided


def lapse_open(
    retries: Sequence[tuple[int, Tries]],
    unsettled: Sequence[int],
    room: int,
    canceled: Collection[int],
    settings: QueueSettings,
    deadline: datetime,
    draw: Callable[[], float],
    expired: Callable[[int], bool],
) -> list[OpenDecided]:
    """A lease ran out: each message that it had not settled counts a loss. At most `room` now, retries first."""
    held = [(offset, tries, False) for offset, tries in retries] + [(offset, FIRST, True) for offset in unsettled]
    decided = []
    for offset, (attempts, losses), fresh in held[:room]:
        standing = Standing(attempts=attempts, losses=losses, canceled=offset in canceled, expired=expired(offset))
        fate = fate_of_loss(standing, settings, deadline, draw())
        decided.append(OpenDecided(offset, fate, attempts + 1, fresh))
    return decided
