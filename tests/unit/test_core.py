"""The values and decisions of core."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.broker.ids import COUNTER_LIMIT, Ids
from qo.core.access import Token, token_parts
from qo.core.errors import Invalid, TooLarge
from qo.core.fate import (
    Again,
    Back,
    Canceled,
    Completed,
    Dead,
    Judged,
    Standing,
    fate_of_loss,
    fate_of_report,
    judge_run,
)
from qo.core.lane import Filter, Start, StartAt, read_start
from qo.core.lease import Bury, Complete, Fail, Release
from qo.core.message import Dedupe, MessageId, NewMessage, checked_id, id_text, message_ids, runs_of_ids
from qo.core.names import KEY_LIMIT, NAME_LIMIT, checked_key, checked_name, checked_schema, namespace_and_task
from qo.core.polling import GroupBackoff, PollingStrategy
from qo.core.queue import QueueSettings
from qo.core.retry import RetryPolicy
from qo.testing.clock import START

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = QueueSettings(retry=RetryPolicy(attempts=3, jitter=0.0), max_lost=4)
ID = MessageId(bytes(16))


@pytest.mark.parametrize("name", ["orders", "a.b/c", "with space", "ünïcode", "x" * NAME_LIMIT])
def test_good_names(name):
    assert checked_name("queue", name) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty"),
        ("x" * (NAME_LIMIT + 1), "at most 255"),
        (" x", "white space"),
        ("a\nb", "control"),
        ("\ud800", "Unicode"),
        (5, "text"),
        (None, "text"),
    ],
)
def test_bad_names_say_what_is_wrong(name, problem):
    with pytest.raises(Invalid, match=problem) as raised:
        checked_name("queue", name)
    assert raised.value.field == "queue"


def test_keys_may_be_longer_than_names():
    assert checked_key("key", "k" * KEY_LIMIT)
    with pytest.raises(Invalid, match=str(KEY_LIMIT)):
        checked_key("key", "k" * (KEY_LIMIT + 1))


def test_a_dotted_name_gives_namespace_and_task():
    assert namespace_and_task("billing.invoices.send") == ("billing", "invoices.send")
    assert namespace_and_task("plain") == ("", "")


@given(st.integers(0, 2**47), st.integers(0, 2**80), st.integers(0, 50))
def test_ids_are_uuids_of_version_7_in_order(milliseconds, entropy, count):
    ids = message_ids(milliseconds, entropy, count)
    assert ids == sorted(ids)
    assert len(set(ids)) == count
    for id in ids:
        parsed = uuid.UUID(bytes=id)
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert int.from_bytes(id[:6]) == milliseconds
        assert checked_id("id", id_text(id)) == id


@pytest.mark.parametrize("value", ["", "x", None, 5])
def test_a_bad_id_is_refused(value):
    with pytest.raises(Invalid, match="UUID"):
        checked_id("id", value)


@pytest.mark.parametrize(
    ("options", "error", "field"),
    [
        ({"queue": ""}, Invalid, "queue"),
        ({"kind": ""}, Invalid, "kind"),
        ({"key": ""}, Invalid, "key"),
        ({"priority": 101}, Invalid, "priority"),
        ({"priority": 1.5}, Invalid, "priority"),
        ({"priority": True}, Invalid, "priority"),
        ({"headers": {"a": 1}}, Invalid, "headers"),
        ({"headers": {"": "a"}}, Invalid, "headers"),
        ({"headers": ["a"]}, Invalid, "headers"),
        ({"headers": {str(n): "" for n in range(65)}}, TooLarge, "headers"),
        ({"headers": {"a": "x" * 20_000}}, TooLarge, "headers"),
        ({"ttl": timedelta(0)}, Invalid, "ttl"),
        ({"due_at": datetime(2026, 1, 1)}, Invalid, "due_at"),  # noqa: DTZ001
    ],
)
def test_a_bad_message_names_its_field(options, error, field):
    with pytest.raises(error) as raised:
        NewMessage(**{"id": ID, "queue": "q", "payload": b"", **options})
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("",), "dedupe.key"), (("k", timedelta(0)), "dedupe.window"), (("k", None, "galaxy"), "dedupe.scope")],
)
def test_a_bad_dedupe_names_its_field(arguments, field):
    with pytest.raises(Invalid) as raised:
        Dedupe(*arguments)
    assert raised.value.field == field


def test_starts():
    assert read_start("new") == Start(StartAt.NEW)
    assert read_start(NOW) == Start(StartAt.TIME, NOW)
    for bad in ("late", 5, datetime(2026, 1, 1)):  # noqa: DTZ001
        with pytest.raises(Invalid):
            read_start(bad)
    with pytest.raises(Invalid):
        Start(StartAt.TIME)
    with pytest.raises(Invalid, match="namespace"):
        Filter()
    assert Filter(task="send").matches("any", "send")
    assert not Filter("mail", "send").matches("mail", "sort")


class TestRetryPolicy:
    def test_the_defaults(self):
        policy = RetryPolicy()
        assert (policy.attempts, policy.delay, policy.multiplier) == (5, timedelta(seconds=1), 2.0)
        assert (policy.max_delay, policy.jitter) == (timedelta(hours=1), 0.1)

    def test_rests_double_up_to_the_maximum(self):
        policy = RetryPolicy(jitter=0.0, max_delay=timedelta(seconds=5))
        assert [policy.rest(n, 0.7).total_seconds() for n in (1, 2, 3, 4, 5000)] == [1, 2, 4, 5, 5]

    @given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
    def test_jitter_stays_within_its_share(self, failures, draw):
        plain = RetryPolicy(jitter=0.0).rest(failures, 0)
        rest = RetryPolicy().rest(failures, draw)
        assert plain * 0.8999 <= rest <= plain * 1.1001

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"attempts": 0}, "retry.attempts"),
            ({"delay": timedelta(-1)}, "retry.delay"),
            ({"max_delay": timedelta(-1)}, "retry.max_delay"),
            ({"multiplier": 0.5}, "retry.multiplier"),
            ({"multiplier": float("nan")}, "retry.multiplier"),
            ({"jitter": 2}, "retry.jitter"),
        ],
    )
    def test_bad_values_are_named(self, options, field):
        with pytest.raises(Invalid) as raised:
            RetryPolicy(**options)
        assert raised.value.field == field


class TestPollingStrategy:
    """The five tests of the adaptive polling document, as far as they are pure."""

    def test_the_defaults_are_adaptive(self):
        assert PollingStrategy() == PollingStrategy.adaptive(100, 5000, 2.0)

    def test_it_backs_off_to_the_maximum(self):
        strategy = PollingStrategy.adaptive()
        interval, seen = strategy.initial_interval(), []
        for _ in range(8):
            interval = strategy.next_interval(interval, found=False)
            seen.append(round(interval.total_seconds() * 1000))
        assert seen == [200, 400, 800, 1600, 3200, 5000, 5000, 5000]

    def test_it_resets_at_once_when_something_is_found(self):
        strategy = PollingStrategy.adaptive()
        assert strategy.next_interval(timedelta(seconds=5), found=True) == timedelta(milliseconds=100)

    def test_fixed_stays_fixed(self):
        strategy = PollingStrategy.fixed(500)
        for found in (True, False):
            assert strategy.next_interval(timedelta(seconds=9), found) == timedelta(milliseconds=500)

    @given(st.floats(0, 1, exclude_max=True))
    def test_jitter_stays_within_ten_percent(self, draw):
        jittered = PollingStrategy().apply_jitter(timedelta(seconds=1), draw)
        assert timedelta(seconds=0.9) <= jittered <= timedelta(seconds=1.1)

    @pytest.mark.parametrize(
        ("make", "field"),
        [
            (lambda: PollingStrategy.adaptive(min_interval_ms=0), "min_interval_ms"),
            (lambda: PollingStrategy.adaptive(max_interval_ms=1), "max_interval_ms"),
            (lambda: PollingStrategy.adaptive(backoff_multiplier=0.5), "backoff_multiplier"),
            (lambda: PollingStrategy.fixed(0), "interval_ms"),
        ],
    )
    def test_bad_values_are_named(self, make, field):
        with pytest.raises(Invalid) as raised:
            make()
        assert raised.value.field == field


def standing(attempts=0, losses=0, *, canceled=False, expired=False) -> Standing:
    return Standing(attempts=attempts, losses=losses, canceled=canceled, expired=expired)


@pytest.mark.parametrize(
    ("report", "before", "fate"),
    [
        (Complete(b"1"), standing(), Completed(b"1")),
        (Complete(), standing(canceled=True, expired=True), Completed(None)),
        (Fail("no"), standing(), Again(NOW + timedelta(seconds=1), 1, 0, "no")),
        (Fail("no"), standing(1, 1), Again(NOW + timedelta(seconds=2), 2, 0, "no")),
        (Fail("no", timedelta(seconds=9)), standing(), Again(NOW + timedelta(seconds=9), 1, 0, "no")),
        (Fail("no"), standing(2), Dead("failed", "no", 3, 0)),
        (Fail("no"), standing(2, canceled=True), Canceled("canceled")),
        (Fail("no"), standing(expired=True), Canceled("expired")),
        (Fail("no"), standing(2, expired=True), Dead("failed", "no", 3, 0)),
        (Release(), standing(1, 1), Back(1, 1)),
        (Release(), standing(expired=True), Canceled("expired")),
        (Bury("x"), standing(1), Dead("buried", "x", 2, 0)),
        (Bury("x"), standing(canceled=True), Canceled("canceled")),
    ],
)
def test_what_becomes_of_a_report(report, before, fate):
    assert fate_of_report(report, before, SETTINGS, NOW, 0.5) == fate


@pytest.mark.parametrize(
    ("before", "fate"),
    [
        (standing(), Again(NOW, 0, 1)),
        (standing(2, 1), Again(NOW + timedelta(seconds=1), 2, 2)),
        (standing(0, 2), Again(NOW + timedelta(seconds=2), 0, 3)),
        (standing(1, 3), Dead("lost", "its lease ran out 4 times", 1, 4)),
        (standing(0, 3, canceled=True), Canceled("canceled")),
        (standing(expired=True), Canceled("expired")),
    ],
)
def test_what_becomes_of_a_lost_lease(before, fate):
    assert fate_of_loss(before, SETTINGS, NOW, 0.5) == fate


@pytest.mark.parametrize(
    ("reports", "run"),
    [
        ({2: Complete()}, Judged(completed_to=3, stop=None)),
        ({0: Complete(), 4: Complete()}, Judged(completed_to=5, stop=None)),
        ({2: Fail()}, Judged(completed_to=2, stop=2)),
        ({0: Complete(), 2: Fail(), 4: Complete()}, Judged(completed_to=2, stop=2)),
        ({3: Bury(), 1: Bury()}, Judged(completed_to=1, stop=1)),
        ({2: Release()}, Judged(completed_to=0, stop=2)),
        ({0: Complete(), 3: Release(), 4: Fail()}, Judged(completed_to=1, stop=3)),
        ({0: Release()}, Judged(completed_to=0, stop=0)),
    ],
)
def test_what_becomes_of_a_run(reports, run):
    assert judge_run(0, reports) == run


def test_settings_survive_being_written_down():
    settings = QueueSettings(lease=timedelta(seconds=1), ttl=timedelta(hours=1), retry=RetryPolicy(attempts=1))
    assert QueueSettings().changed(settings.overrides()) == settings
    assert QueueSettings().overrides() == {}


def test_a_group_backs_off_as_the_seed_says():
    """Threshold 5: 100 ms four times, then doubled up to 2000 ms; found something: back to 100."""
    rule = GroupBackoff(threshold=5)
    state, seen = rule.start(), []
    for _ in range(10):
        state = rule.after(state, found=False)
        seen.append(state.interval / timedelta(milliseconds=1))
    assert seen == [100, 100, 100, 100, 200, 400, 800, 1600, 2000, 2000]
    assert rule.after(state, found=True) == rule.start()
    assert GroupBackoff().after(GroupBackoff().start(), found=False).interval == timedelta(milliseconds=200)


@given(st.integers(1, 40), st.integers(1, 200))
def test_ids_of_a_process_count_up(pushes, count):
    moments = iter(START + timedelta(milliseconds=7 * number) for number in range(1000))
    ids = Ids(lambda: next(moments))
    taken = [id for _ in range(pushes) for id in ids.take(count)]
    assert taken == sorted(set(taken))
    assert all(id[6] >> 4 == 7 and id[8] >> 6 == 2 for id in taken)
    assert len(runs_of_ids(taken)) <= 1 + pushes * 7 // 20


def test_ids_begin_anew_before_their_counter_is_full():
    ids = Ids(lambda: START)
    ids.take(1)
    ids._next = COUNTER_LIMIT - 1
    last = ids.take(2)
    assert len(set(last)) == 2
    assert runs_of_ids(last)[0][2] == 2


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\x00", "\u2028"])
def test_a_name_with_something_behind_it_is_another_name(ending):
    for checked in (
        lambda: checked_name("queue", "orders" + ending),
        lambda: checked_key("key", "customer-7" + ending),
        lambda: checked_schema("schema", "qo" + ending),
        lambda: checked_id("id", "018bcfe5-6800-7000-8000-020000000000" + ending),
        lambda: Token(id="0" * 12 + ending, name="t", digest=b"", scopes=("read",), prefixes=(), created_at=NOW),
    ):
        with pytest.raises(Invalid):
            checked()
    assert token_parts("qo_" + "0" * 12 + "_" + "0" * 64) is not None
    assert token_parts("qo_" + "0" * 12 + "_" + "0" * 64 + ending) is None
