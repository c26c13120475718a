"""What a consumer holds, as answers of the store change it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from qo.core.held import Held, at, released
from qo.core.lane import LaneId
from qo.core.lease import (
    Answer,
    Complete,
    Delivered,
    Extended,
    LeaseToken,
    Lost,
    Place,
    Release,
    Settled,
    Settlement,
    Verdict,
)
from qo.core.message import MessageId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)


def delivered(offset: int, *, token: str = "t", lane: int = 1, key: str | None = "k", expires: int = 30) -> Delivered:
    return Delivered(
        token=LeaseToken(token), lane=LaneId(lane), offset=offset, id=MessageId(bytes(16)), queue="q", key=key,
        kind="k", payload=b"", headers={}, priority=0, attempt=1, created_at=NOW, due_at=NOW, entered_at=NOW,
        expires_at=NOW + timedelta(seconds=expires), retry_of=None,
    )  # fmt: skip


def holding(*deliveries: Delivered) -> Held:
    held = Held()
    held.take(deliveries)
    return held


def settlement(each: Delivered) -> Settlement:
    return Settlement(token=each.token, lane=each.lane, offset=each.offset, report=Complete())


DONE = Settled(Answer.SETTLED, Verdict.COMPLETED, False)


def test_completing_a_message_of_a_key_completes_what_is_before_it():
    run = [delivered(offset) for offset in range(4)]
    held = holding(*run)
    held.settled(settlement(run[2]), DONE)
    assert list(held) == [at(run[3])]
    held.settled(settlement(run[3]), Settled(Answer.SETTLED, Verdict.COMPLETED, True))
    assert (len(held), set(held.tokens)) == (0, set())


def test_messages_of_an_open_lane_are_settled_one_by_one():
    three = [delivered(offset, key=None) for offset in range(3)]
    held = holding(*three)
    held.settled(settlement(three[1]), DONE)
    assert [at(three[0]), at(three[2])] == list(held)
    held.settled(settlement(three[0]), Settled(Answer.UNKNOWN, None, False))
    assert len(held) == 2, "what was not settled is still held"


def test_what_is_lost_is_not_held_any_more_and_what_is_canceled_is():
    here, there = delivered(0), delivered(5, token="u", lane=2)
    held = holding(here, there)
    first, second = held.extensions(LEASE)
    changes = held.extended(first, Extended(NOW, (Place(LaneId(1), 0), Place(LaneId(1), 9)), 1))
    assert (changes.canceled, changes.lost, len(held)) == ((at(here),), (), 2)
    changes = held.extended(second, Lost())
    assert (changes.lost, list(held)) == ((at(there),), [at(here)])


def test_leases_that_are_over_are_forgotten():
    held = holding(delivered(0), delivered(0, token="u", expires=60))
    assert held.next_expiry_at() == NOW + LEASE
    held.expire(NOW + LEASE)
    assert (set(held.tokens), held.next_expiry_at()) == ({"u"}, NOW + 2 * LEASE)


def test_an_extension_names_all_that_has_started_under_its_token():
    held = holding(delivered(0), delivered(1), delivered(7, lane=2))
    [extension] = held.extensions(LEASE)
    assert extension.started == (Place(LaneId(1), 0), Place(LaneId(1), 1), Place(LaneId(2), 7))
    held.forget([settlement(delivered(0)), settlement(delivered(99))])
    assert len(held) == 2


def test_released_gives_each_message_back():
    assert [each.report for each in released([delivered(0), delivered(1)])] == [Release(), Release()]
