"""What engines decide alike about acks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from qo.core.lease import AckAnswer, Acked, Answer, Bury, Complete, Fail, Release, Report, Settled

ACK_LEASE = timedelta(seconds=60)
"""A lease that an ack takes for itself ends in the same transaction; so long it would last otherwise."""

UNKNOWN = Acked(AckAnswer.UNKNOWN)
BEFORE = Acked(AckAnswer.BEFORE)
STALE_BEFORE = Acked(AckAnswer.BEFORE, stale=True)
LOST = Acked(AckAnswer.LOST, stale=True)

_STRENGTH: dict[type, int] = {Complete: 0, Release: 1, Fail: 2, Bury: 3}
_ANSWERS = {Answer.SETTLED: AckAnswer.SETTLED, Answer.GIVEN_BACK: AckAnswer.GIVEN_BACK}


def strongest(said: Iterable[tuple[int, Report]]) -> dict[int, Report]:
    """What counts of all that is said about one message: burying before failing before giving back."""
    reports: dict[int, Report] = {}
    for offset, report in said:
        known = reports.get(offset)
        if known is None or _STRENGTH[type(report)] > _STRENGTH[type(known)]:
            reports[offset] = report
    return reports


def lowest(offsets: Sequence[int], unsettled: int) -> int:
    """Of several messages of one name, the one that is meant: the first that is not settled yet."""
    return next((offset for offset in offsets if offset >= unsettled), offsets[0])


def answered(settled: Settled, *, unsure: bool = False) -> Acked:
    """`unsure`: an earlier try of this very call may have settled it."""
    if settled.answer is Answer.REPEATED and unsure:
        return Acked(AckAnswer.SETTLED, settled.verdict, settled.lease_ended)
    if settled.answer is Answer.REPEATED:
        return Acked(AckAnswer.BEFORE, settled.verdict, settled.lease_ended)
    return Acked(_ANSWERS.get(settled.answer, AckAnswer.LOST), settled.verdict, settled.lease_ended)
