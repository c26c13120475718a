"""Slots: the instants at which a schedule fires, from its specs.

A cron spec speaks of the wall clock. Where clocks are put forward, some of its times do not
exist; where they are put back, some come twice. `Gap` and `Fold` say what happens then. A spec
that fires at every hour, or every n-th, counts hours that pass: it fires whenever the wall clock
shows its time, and never for a time that does not exist.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import msgspec

from qo.core.cron import Cron, read_cron
from qo.core.durations import LONGEST, Length, duration, duration_text
from qo.core.errors import Invalid, shortened
from qo.core.moments import EARLIEST, LATEST, checked_time

LEAST_EVERY = timedelta(seconds=1)
SPECS_LIMIT = 100
"""Rules of one schedule, and its exclusions."""
WORK_LIMIT = 20_000
"""Looks at a spec or an exclusion that one question may take; beyond it, it is refused."""
FAR = timedelta(days=366 * 60)
"""A cron rule that has not fired for so long never will."""
NEAR = timedelta(hours=26)
"""How far a time on the wall clock may be from the instant in UTC: offsets are less than a day, and a bit."""
SAMPLES = [NEAR * step / 4 for step in range(-4, 5)]
SECOND = timedelta(seconds=1)


class Gap(StrEnum):
    """What becomes of a time that the wall clock leaves out."""

    SHIFT = "shift"  # it comes as much later as the clock is put forward
    SKIP = "skip"


class Fold(StrEnum):
    """What becomes of a time that the wall clock shows twice."""

    FIRST = "first"
    LAST = "last"
    BOTH = "both"


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """When: a cron spec; every so many seconds, counted from `anchor` (1970, if it is left out); or once, at a time."""

    cron: str | None = None
    every: float | None = None
    anchor: datetime | None = None
    at: datetime | None = None

    if TYPE_CHECKING:  # the interval is kept in seconds, and may be given in other ways

        def __init__(
            self,
            *,
            cron: str | None = ...,
            every: Length | None = ...,
            anchor: datetime | None = ...,
            at: datetime | None = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.every is not None and type(self.every) is not float:
            msgspec.structs.force_setattr(self, "every", duration("every", self.every).total_seconds())
        if self.cron is not None and not isinstance(self.cron, str):
            raise Invalid("cron", f"must be text, not {type(self.cron).__name__}")
        for name in ("anchor", "at"):
            if (time := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, checked_time(name, time).astimezone(UTC))
        if sum(each is not None for each in (self.cron, self.every, self.at)) != 1:
            raise Invalid("specs", "each has one of cron, every and at", ("cron", "every", "at"))
        if self.every is not None and not LEAST_EVERY.total_seconds() <= self.every <= LONGEST.total_seconds():
            raise Invalid("every", f"must be from {LEAST_EVERY.total_seconds():g} s to {LONGEST.days} days")
        if self.anchor is not None and self.every is None:
            raise Invalid("anchor", "goes with every")


class Timetable:
    """Rules that were read, in their zone. `name` is the schedule's, of which `H` in a cron spec is a hash."""

    def __init__(
        self,
        specs: Sequence[Spec],
        exclude: Sequence[Spec] = (),
        *,
        zone: tzinfo = UTC,
        gap: Gap = Gap.SHIFT,
        fold: Fold = Fold.FIRST,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        name: str = "",
    ) -> None:
        self._zone, self._gap, self._fold = zone, gap, fold
        self._starts_at, self._ends_at = starts_at, ends_at
        self._specs = [(spec, _cron_of("specs", spec, name)) for spec in specs]
        self._exclude = [(spec, _cron_of("exclude", spec, name)) for spec in exclude]

    def next_after(self, after: datetime) -> datetime | None:
        """The first slot after a time; None if there is none. Raises `Invalid` if that takes too long to find."""
        return next(self.slots(after), None)

    def slots(self, after: datetime) -> Iterator[datetime]:
        """All slots after a time, in order. Raises `Invalid` once the search took too long, over all of them."""
        if self._starts_at is not None and after < self._starts_at:
            after = self._starts_at - timedelta(microseconds=1)
        left = WORK_LIMIT
        while True:
            left -= len(self._specs) + len(self._exclude)
            if left < 0:
                raise Invalid("specs", "take too long to compute; give fewer, or exclude less of them")
            found = [each for spec, cron in self._specs if (each := self._next(spec, cron, after)) is not None]
            slot = min(found, default=None)
            if slot is None or slot > LATEST or (self._ends_at is not None and slot >= self._ends_at):
                return
            if not self._is_excluded(slot):
                yield slot
            after = slot

    def in_words(self) -> str:
        """When it fires, for people."""
        said = "; ".join(_in_words(spec, cron) for spec, cron in self._specs)
        if self._exclude:
            said += f"; but not {'; '.join(_in_words(spec, cron) for spec, cron in self._exclude)}"
        return said

    def _next(
        self, spec: Spec, cron: Cron | None, after: datetime, gap: Gap | None = None, fold: Fold | None = None
    ) -> datetime | None:
        if cron is not None:
            return next_of_cron(cron, self._zone, after, gap or self._gap, fold or self._fold)
        if spec.every is not None:
            return _next_of_every(spec.every, spec.anchor or EARLIEST, after)
        return spec.at if spec.at is not None and spec.at > after else None

    def _is_excluded(self, slot: datetime) -> bool:
        """Whether an exclusion names the slot. A cron spec without seconds names the whole minute."""
        for spec, cron in self._exclude:
            at = slot if cron is None or cron.has_seconds else slot.replace(second=0, microsecond=0)
            if self._next(spec, cron, at - timedelta(microseconds=1), Gap.SKIP, Fold.BOTH) == at:
                return True
        return False


def _in_words(spec: Spec, cron: Cron | None) -> str:
    if cron is not None:
        return cron.in_words()
    if spec.every is not None:
        return f"Every {duration_text(timedelta(seconds=spec.every))}"
    return f"Once, at {spec.at}"


def _cron_of(field: str, spec: Spec, name: str) -> Cron | None:
    return None if spec.cron is None else read_cron(f"{field}.cron", spec.cron, name)


@cache
def zone_names() -> frozenset[str]:
    return frozenset(resources.files("tzdata").joinpath("zones").read_text().split())


@lru_cache(maxsize=1024)
def read_zone(field: str, name: str) -> tzinfo:
    """A zone by its IANA name, as the package `tzdata` has it: the same on every machine."""
    if name == "UTC":
        return UTC
    if name not in zone_names():
        raise Invalid(field, f"must be the name of a zone, such as Europe/Berlin, not '{shortened(name, 40)}'")
    with resources.files("tzdata.zoneinfo").joinpath(name).open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def next_of_cron(cron: Cron, zone: tzinfo, after: datetime, gap: Gap, fold: Fold) -> datetime | None:
    """The first instant after one at which a cron spec fires.

    Times on the wall clock come in order, their instants do not, where clocks change. So it goes on until no later
    time on the wall clock can be at an earlier instant than the best that was found.
    """
    best: datetime | None = None
    begin = after.astimezone(UTC).replace(tzinfo=None, microsecond=0)
    least, _ = _offsets_near(zone, begin)
    for wall in cron.walls(begin + least - SECOND):
        if wall - begin > FAR:
            return best
        least, most = _offsets_near(zone, wall)
        if best is not None and (wall - most).replace(tzinfo=UTC) >= best:
            return best
        for instant in _instants(wall, zone, cron.by_the_hour, gap, fold):
            if instant > after and (best is None or instant < best):
                best = instant
        if best is not None and least == most:
            return best
    return best


def _instants(wall: datetime, zone: tzinfo, by_the_hour: bool, gap: Gap, fold: Fold) -> Sequence[datetime]:
    """When the wall clock of a zone shows a time: once, not at all, or twice."""
    early, late = (_offset(wall.replace(tzinfo=zone, fold=each)) for each in (0, 1))
    first, last = ((wall - offset).replace(tzinfo=UTC) for offset in (early, late))
    if early == late:
        return (first,)
    if early < late:  # clocks are put forward: the time does not exist
        return (first,) if gap is Gap.SHIFT and not by_the_hour else ()
    if by_the_hour or fold is Fold.BOTH:
        return (first, last)
    return (first,) if fold is Fold.FIRST else (last,)


def _offsets_near(zone: tzinfo, at: datetime) -> tuple[timedelta, timedelta]:
    """The least and the most that a zone is ahead of UTC around a time."""
    if zone is UTC:
        return timedelta(0), timedelta(0)
    return _offsets_in(zone, at.replace(minute=0, second=0))


@lru_cache(maxsize=16384)
def _offsets_in(zone: tzinfo, hour: datetime) -> tuple[timedelta, timedelta]:
    offsets = [_offset((hour.replace(tzinfo=UTC) + step).astimezone(zone)) for step in SAMPLES]
    return min(offsets), max(offsets)


def _offset(time: datetime) -> timedelta:
    offset = time.utcoffset()
    assert offset is not None
    return offset


def _next_of_every(seconds: float, anchor: datetime, after: datetime) -> datetime | None:
    every, passed = timedelta(seconds=seconds), after - anchor
    try:
        return anchor + every * (passed // every + 1)
    except OverflowError:
        return None


def jitter_of(name: str, slot: datetime, most_seconds: float) -> timedelta:
    """How much later than its slot a schedule fires: from a hash of both, so that it can be told beforehand."""
    if most_seconds <= 0:
        return timedelta(0)
    digest = hashlib.sha256(f"{name} {slot.astimezone(UTC).isoformat()}".encode()).digest()
    return timedelta(seconds=most_seconds * int.from_bytes(digest[:6]) / (1 << 48))
