"""Schedules: rules that push when they are due.

A slot is an instant at which a schedule is to fire. Its identity is the schedule's own id and that
instant, so a schedule that is made anew under an old name has slots of its own. `firing` says what
is done when one is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache

import msgspec

from qo.core.durations import LONGEST
from qo.core.errors import Invalid, TooLarge, not_one_of
from qo.core.message import OWN_PREFIX, check_headers, check_own_headers, check_priority
from qo.core.moments import checked_time
from qo.core.names import DEFAULT_KIND, checked_key, checked_name
from qo.core.outcome import JobState
from qo.core.slots import SPECS_LIMIT, Fold, Gap, Spec, Timetable, read_zone

RECORD_KIND = "schedule"
SCHEDULE_HEADER, SLOT_HEADER, FIRED_BY_HEADER = (f"{OWN_PREFIX}{name}" for name in ("schedule", "slot", "fired-by"))
OWN_HEADERS = SCHEDULE_HEADER, SLOT_HEADER, FIRED_BY_HEADER
PAYLOAD_LIMIT = 128 * 1024
TAGS_LIMIT = 20
RUNS_KEPT = 50
"""The newest runs, and slots that were skipped, that a schedule remembers."""
CATCH_UP_LIMIT = 10_000
DEFAULT_CATCH_UP_LIMIT = 100
DEFAULT_CATCH_UP_WINDOW = 7 * 86400.0
DEFAULT_TIMEZONE = "UTC"
PLAN_LIMIT = 160 * 1024
"""Bytes of a plan as JSON: a record has room for it and for the schedule's history."""
TEXT_LIMIT = 500
"""Characters of a note and of a label."""


class CatchUp(StrEnum):
    """What becomes of slots that were missed."""

    SKIP = "skip"
    LAST = "last"
    ALL = "all"


class Overlap(StrEnum):
    """What becomes of a slot whose predecessor's job is not finished."""

    ALLOW = "allow"
    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"


class FiredBy(StrEnum):
    """Why a job was pushed."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    BACKFILL = "backfill"
    CATCH_UP = "catch_up"


class Skipped(StrEnum):
    """Why slots did not become jobs."""

    MISSED = "missed"
    OVERLAP = "overlap"
    EDITED = "edited"
    PAUSED = "paused"
    REFUSED = "refused"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The message that a schedule pushes. `payload` is JSON, or any bytes; `ttl` is in seconds."""

    queue: str
    kind: str = DEFAULT_KIND
    payload: bytes = b"null"
    key: str | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        checked_name("target.queue", self.queue)
        checked_name("target.kind", self.kind)
        if self.key is not None:
            checked_key("target.key", self.key)
        check_priority(self.priority)
        if len(self.payload) > PAYLOAD_LIMIT:
            raise TooLarge("target.payload", f"must have at most {PAYLOAD_LIMIT} bytes, not {len(self.payload)}")
        if self.headers is not None:
            check_headers(self.headers)
            check_own_headers(self.headers)
            check_headers({**self.headers, **dict.fromkeys(OWN_HEADERS, "x" * 64)})
        if self.ttl is not None:
            _check_seconds("target.ttl", self.ttl, zero=False)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What code says of a schedule. All else is the runtime's.

    specs, exclude     when it fires: at every slot of a spec that no exclusion names
    timezone           the zone whose wall clock cron rules speak of
    dst_gap, dst_fold  what becomes of times that the wall clock leaves out, or shows twice
    jitter_seconds     each slot fires up to so much later, the same each time that one asks
    catch_up           what becomes of missed slots: the last fires, all, or none; of `all` the oldest
                       `catch_up_limit`, and none that is older than `catch_up_window` seconds
    overlap            what becomes of a slot while the job of an earlier one is not finished
    starts_at, ends_at no slot before the one, and none from the other on
    runs_limit         it ends after so many runs
    failure_threshold  it pauses after so many failed jobs in a row
    """

    target: Target
    specs: tuple[Spec, ...]
    exclude: tuple[Spec, ...] = ()
    timezone: str = DEFAULT_TIMEZONE
    dst_gap: Gap = Gap.SHIFT
    dst_fold: Fold = Fold.FIRST
    jitter_seconds: float = 0.0
    catch_up: CatchUp = CatchUp.LAST
    catch_up_limit: int = DEFAULT_CATCH_UP_LIMIT
    catch_up_window: float = DEFAULT_CATCH_UP_WINDOW
    overlap: Overlap = Overlap.ALLOW
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    runs_limit: int | None = None
    failure_threshold: int | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.specs:
            raise Invalid("specs", "must have at least one: {cron}, {every} or {at}")
        for name, items, most in (("specs", self.specs, SPECS_LIMIT), ("exclude", self.exclude, SPECS_LIMIT),
                                  ("tags", self.tags, TAGS_LIMIT)):  # fmt: skip
            if len(items) > most:
                raise TooLarge(name, f"at most {most} are allowed, not {len(items)}")
        choices: dict[str, type[StrEnum]] = {"dst_gap": Gap, "dst_fold": Fold, "catch_up": CatchUp, "overlap": Overlap}
        for name, choice in choices.items():
            try:
                msgspec.structs.force_setattr(self, name, choice(getattr(self, name)))
            except ValueError:
                raise not_one_of(name, getattr(self, name), choice) from None
        self._check_numbers()
        for name in ("starts_at", "ends_at"):
            if (time := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, checked_time(name, time).astimezone(UTC))
        checked_name("timezone", self.timezone)
        if self.starts_at is not None and self.ends_at is not None and self.ends_at <= self.starts_at:
            raise Invalid("ends_at", "must be later than starts_at")
        for tag in self.tags:
            checked_name("tags", tag)

    def _check_numbers(self) -> None:
        _check_seconds("jitter_seconds", self.jitter_seconds)
        _check_seconds("catch_up_window", self.catch_up_window)
        for name, most in (("catch_up_limit", CATCH_UP_LIMIT), ("runs_limit", 1 << 53), ("failure_threshold", 1 << 31)):
            value = getattr(self, name)
            if value is None and name != "catch_up_limit":
                continue
            if type(value) is not int or not 1 <= value <= most:
                raise Invalid(name, f"must be a whole number from 1 to {most}, not {value!r}")

    @property
    def follows_jobs(self) -> bool:
        """Whether it matters to the schedule how its jobs stand."""
        return self.overlap is not Overlap.ALLOW or self.failure_threshold is not None


def _check_seconds(name: str, value: float, *, zero: bool = True) -> None:
    most = LONGEST.total_seconds()
    if type(value) not in (int, float) or not (0 <= value <= most and (zero or value > 0)):
        raise Invalid(name, f"must be {'from' if zero else 'greater than'} 0 to {most:.0f} seconds, not {value!r}")


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a slot: its job, or why it has none. `until`: of all slots from this one to before that time.

    `call` is a digest of the nonce of the call that asked for it.
    """

    slot: datetime
    at: datetime
    by: FiredBy = FiredBy.SCHEDULE
    job: str | None = None
    skipped: Skipped | None = None
    until: datetime | None = None
    label: str | None = None
    error: str | None = None
    call: str | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as it is stored.

    after        all slots up to here are dealt with
    next_slot    the next one; None: there is none, or it is paused
    due_at       when that one fires: its jitter later
    caught_up    missed slots that fired in a row
    failures     jobs that failed in a row, as far as was looked
    unfinished   ids of jobs whose ends were not seen yet, oldest first; only where they matter
    runs         newest first
    """

    name: str
    id: str
    plan: Plan
    created_at: datetime
    changed_at: datetime
    after: datetime
    next_slot: datetime | None = None
    due_at: datetime | None = None
    paused: bool = False
    note: str | None = None
    fired: int = 0
    skipped: int = 0
    caught_up: int = 0
    failures: int = 0
    unfinished: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()


def checked_plan(name: str, plan: Plan, now: datetime) -> Plan:
    """A plan that can be kept and computed, else what is wrong with it."""
    size = len(msgspec.json.encode(plan))
    if size > PLAN_LIMIT:
        raise TooLarge("plan", f"must have at most {PLAN_LIMIT} bytes as JSON, not {size}")
    timetable(name, plan).next_after(now)
    return plan


def checked_text(field: str, text: str | None) -> str | None:
    """A note or a label, which are kept with the schedule."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise Invalid(field, f"must be text, not {type(text).__name__}")
    if not text.isprintable() and any(0xD800 <= ord(each) <= 0xDFFF for each in text):
        raise Invalid(field, "must be valid Unicode text (it contains a lone surrogate)")
    if len(text) > TEXT_LIMIT:
        raise TooLarge(field, f"must have at most {TEXT_LIMIT} characters, not {len(text)}")
    return text


def timetable(name: str, plan: Plan) -> Timetable:
    """The plan's rules, read. Raises `Invalid` if one cannot be."""
    return _timetable(
        name, plan.specs, plan.exclude, plan.timezone, plan.dst_gap, plan.dst_fold, plan.starts_at, plan.ends_at
    )


@lru_cache(maxsize=4096)
def _timetable(
    name: str,
    specs: tuple[Spec, ...],
    exclude: tuple[Spec, ...],
    timezone: str,
    gap: Gap,
    fold: Fold,
    starts_at: datetime | None,
    ends_at: datetime | None,
) -> Timetable:
    zone = read_zone("timezone", timezone)
    return Timetable(specs, exclude, zone=zone, gap=gap, fold=fold, starts_at=starts_at, ends_at=ends_at, name=name)


def slot_text(slot: datetime) -> str:
    return slot.isoformat().replace("+00:00", "Z")


class Coming(msgspec.Struct, frozen=True):
    """A slot that is to come, and when it fires: its jitter later."""

    slot: datetime
    fires_at: datetime


class RunInfo(Run, frozen=True, kw_only=True, omit_defaults=True):
    """A run, and how its job stands; `outcome` is None where the job is not known any more, or its queue keeps none."""

    outcome: JobState | None = None


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is shown.

    version   changes with every change; `change_schedule` may expect it
    rule      when it fires, in words
    coming    the next slots
    runs      newest first, of the newest fifty
    error     why the last run failed
    """

    name: str
    id: str
    version: int
    plan: Plan
    rule: str
    paused: bool
    note: str | None
    created_at: datetime
    changed_at: datetime
    coming: tuple[Coming, ...]
    fired: int
    skipped: int
    failures: int
    runs: tuple[RunInfo, ...]
    error: str | None = None
