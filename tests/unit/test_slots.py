"""Slots: cron rules in every zone against a search by the minute, intervals, exclusions, and what is no rule."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime, timedelta, tzinfo

import pytest

from qo.core.cron import read_cron
from qo.core.errors import Invalid
from qo.core.slots import Fold, Gap, Spec, Timetable, jitter_of, next_of_cron, read_zone, zone_names

ZONES = int(os.environ.get("QO_ZONES", "25"))
"""How many zones are looked at; `make soak` takes all."""
CHANGES = int(os.environ.get("QO_ZONE_CHANGES", "4"))
"""How many changes of each zone's clocks."""
MINUTE = timedelta(minutes=1)
LOOK = timedelta(hours=40)


def offset(time: datetime) -> timedelta:
    found = time.utcoffset()
    assert found is not None
    return found


def changes_of(zone: tzinfo) -> list[datetime]:
    """When a zone's clocks changed, to twelve hours, from 1970 to 2040."""
    found, at, step = [], datetime(1970, 1, 1, tzinfo=UTC), timedelta(hours=12)
    before = offset(at.astimezone(zone))
    while at.year < 2040:
        at += step
        after = offset(at.astimezone(zone))
        if after != before:
            found.append(at)
        before = after
    return found


def searched(minutes: set[int], hours: set[int] | None, zone: tzinfo, begin: datetime, gap: Gap, fold: Fold):
    """Every minute looked at, with the wall clock beside it. `hours`: None is every hour."""

    step = MINUTE if offset(begin.astimezone(zone)).seconds % 60 == 0 else MINUTE / 2  # Monrovia, before 1972

    def matches(wall: datetime) -> bool:
        return wall.second == 0 and wall.minute in minutes and (hours is None or wall.hour in hours)

    found, before = set(), None
    at = begin - timedelta(hours=30)
    while at < begin + 2 * LOOK:
        here = at.astimezone(zone)
        wall = here.replace(tzinfo=None, fold=0)
        if before is not None and gap is Gap.SHIFT and hours is not None:
            missing = before + step
            while missing < wall:
                if matches(missing):
                    found.add(at + (missing - before - step))
                missing += step
        before = wall
        if matches(wall):
            twice = offset(wall.replace(tzinfo=zone, fold=0)) > offset(wall.replace(tzinfo=zone, fold=1))
            if not twice or hours is None or fold is Fold.BOTH or (fold is Fold.FIRST) == (here.fold == 0):
                found.add(at)
        at += step
    return sorted(each for each in found if begin < each < begin + 2 * LOOK)


def test_cron_rules_fire_as_a_search_by_the_minute_says_wherever_clocks_change():
    rng = random.Random(os.environ.get("QO_SEED", "1"))
    names = sorted(zone_names())
    looked_at = 0
    for name in rng.sample(names, min(ZONES, len(names))):
        zone = read_zone("timezone", name)
        found = changes_of(zone)
        for change in rng.sample(found, min(CHANGES, len(found))):
            minutes = {rng.randrange(60)} if rng.random() < 0.5 else set(range(0, 60, 10))
            hours = None if rng.random() < 0.3 else {0, 1, 2, 3, *rng.sample(range(24), 3)}
            gap, fold = rng.choice(list(Gap)), rng.choice(list(Fold))
            text = f"{_list(minutes)} {'*' if hours is None else _list(hours)} * * *"
            begin = (change - LOOK).replace(minute=7)
            rule = read_cron("cron", text, "")
            got, at = [], begin
            while (slot := next_of_cron(rule, zone, at, gap, fold)) is not None and slot < begin + 2 * LOOK:
                got.append(slot)
                at = slot
            assert got == searched(minutes, hours, zone, begin, gap, fold), (name, change, text, gap, fold)
            looked_at += 1
    assert looked_at > ZONES


def _list(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def first(spec: Spec, after: str, count: int = 3, zone: str = "UTC", **options) -> list[str]:
    table = Timetable([spec], zone=read_zone("timezone", zone), **options)
    slots = table.slots(datetime.fromisoformat(after))
    return [next(slots).isoformat().replace("+00:00", "Z") for _ in range(count)]


def test_new_york_falls_back_and_half_past_one_comes_once():
    spec = Spec(cron="30 1 * * *")
    night = "2026-11-01T00:00:00-04:00"
    assert first(spec, night, 2, "America/New_York") == ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]
    assert first(spec, night, 1, "America/New_York", fold=Fold.LAST) == ["2026-11-01T06:30:00Z"]
    both = ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"]
    assert first(spec, night, 3, "America/New_York", fold=Fold.BOTH) == both


def test_a_time_that_is_left_out_comes_later_or_not_at_all():
    spec = Spec(cron="30 2 * * *")
    night = "2026-03-29T00:00:00+01:00"
    assert first(spec, night, 2, "Europe/Berlin") == ["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"]
    assert first(spec, night, 1, "Europe/Berlin", gap=Gap.SKIP) == ["2026-03-30T00:30:00Z"]


def test_a_rule_of_every_hour_counts_hours_that_pass():
    spec = Spec(cron="0 * * * *")
    night = "2026-10-25T01:30:00+02:00"
    assert first(spec, night, 3, "Europe/Berlin") == [f"2026-10-25T0{hour}:00:00Z" for hour in range(3)]


def test_intervals_are_counted_from_their_anchor():
    assert first(Spec(every=3600.0), "2026-01-01T00:30:00Z", 2) == ["2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"]
    anchor = datetime(2026, 1, 1, 0, 15, tzinfo=UTC)
    assert first(Spec(every=3600.0, anchor=anchor), "2026-01-01T01:15:00Z", 1) == ["2026-01-01T02:15:00Z"]


def test_six_fields_have_seconds_first():
    assert first(Spec(cron="*/20 * * * * *"), "2026-01-01T00:00:05Z", 2) == [
        "2026-01-01T00:00:20Z",
        "2026-01-01T00:00:40Z",
    ]


def test_exclusions_take_slots_away_and_a_rule_without_seconds_the_whole_minute():
    table = Timetable([Spec(every=20.0)], [Spec(cron="1 0 * * *"), Spec(at=datetime(2026, 1, 1, 0, 2, tzinfo=UTC))])
    slots = table.slots(datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC))
    assert [next(slots).strftime("%M:%S") for _ in range(3)] == ["00:40", "02:20", "02:40"]


def test_a_timetable_whose_slots_are_all_excluded_says_so():
    table = Timetable([Spec(every=60.0)], [Spec(cron="* * * * *")])
    with pytest.raises(Invalid, match="exclude less"):
        table.next_after(datetime(2026, 1, 1, tzinfo=UTC))


def test_h_spreads_by_the_name_and_stays():
    rules = {read_cron("cron", "H H * * *", name).text for name in map(str, range(50))}
    assert len(rules) > 40
    assert read_cron("cron", "H(10-19) * * * *", "a").text.split()[0] in map(str, range(10, 20))
    assert read_cron("cron", "H/15 * * * *", "report") == read_cron("cron", "H/15 * * * *", "report")


@pytest.mark.parametrize(
    "text",
    ["1--100000000 * * * *", "1-99999999 * * * *", "* * *", "@often", "99 * * * *", "0 0 31 2 *", "", "x" * 5000,
     "* * * * * * *", "0 0 ? * *", "H(50-10) * * * *", "*/0 * * * *", "0 0 1 1 * 2030"],
)  # fmt: skip
def test_what_is_no_rule_is_refused_at_once_and_by_name(text):
    began = time.process_time()
    with pytest.raises(Invalid) as refused:
        read_cron("specs.cron", text, "")
    assert time.process_time() - began < 1, "work that grows with the numbers in it"
    assert refused.value.field == "specs.cron"


def test_a_zone_that_is_none_is_refused():
    for name in ("Europe/Nowhere", "../../etc/passwd", "/etc/localtime", ""):
        with pytest.raises(Invalid, match="timezone"):
            read_zone("timezone", name)


def test_jitter_is_within_its_bound_and_told_beforehand():
    slots = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 29)]
    jitters = [jitter_of("id", slot, 60.0) for slot in slots]
    assert all(timedelta(0) <= each < timedelta(seconds=60) for each in jitters)
    assert len(set(jitters)) > 20
    assert jitters == [jitter_of("id", slot, 60.0) for slot in slots]


def test_an_exclusion_goes_by_what_the_wall_clock_shows():
    zone = read_zone("timezone", "Europe/Berlin")
    table = Timetable([Spec(cron="30 * * * *")], [Spec(cron="* 2 * * *")], zone=zone)
    spring = table.slots(datetime(2026, 3, 29, 0, 0, tzinfo=UTC))
    assert [next(spring).astimezone(zone).hour for _ in range(3)] == [1, 3, 4]
    autumn = table.slots(datetime(2026, 10, 24, 23, 0, tzinfo=UTC))
    assert [next(autumn).astimezone(zone).hour for _ in range(2)] == [1, 3]


def test_times_are_kept_in_utc():
    berlin = datetime(2026, 1, 1, 9, 30, tzinfo=read_zone("timezone", "Europe/Berlin"))
    assert Spec(every="1h", anchor=berlin) == Spec(every=3600.0, anchor=datetime(2026, 1, 1, 8, 30, tzinfo=UTC))
    assert first(Spec(every=3600.0, anchor=berlin), "2026-07-01T12:00:00Z", 1) == ["2026-07-01T12:30:00Z"]


def test_the_work_of_one_question_is_bounded():
    costly = [Spec(cron="1-59 * * * * *"), Spec(cron="0 1-59 * * * *"), Spec(cron="0 0 1-23/2 * * *")]
    slots = Timetable([Spec(cron="* * * * * *")], costly).slots(datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(Invalid, match="too long"):
        for _ in range(1000):
            next(slots)
