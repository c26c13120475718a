"""Cron rules: text to times on the wall clock, without a zone.

`cronsim` does the arithmetic. What it does not read is turned into what it does:
nicknames such as `@hourly`, and `H`, which spreads schedules by a hash of their names.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError

from qo.core.errors import Invalid, shortened

TEXT_LIMIT = 200
"""Characters of a rule. With no number of more than three digits, reading one takes microseconds."""
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = ("second", "minute", "hour", "day of the month", "month", "day of the week")
SPREAD = ((0, 59), (0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
"""What `H` may become in each field."""
HOUR = 2
_SPREAD = re.compile(r"H(?:\((\d{1,2})-(\d{1,2})\))?(?:/(\d{1,2}))?")
_FIELD = re.compile(r"[0-9A-Z*,/#-]+")
_LONG_NUMBER = re.compile(r"\d{4}")
ALLOWED = "5 fields (minute, hour, day, month, weekday), 6 with seconds first, or one of " + ", ".join(NICKNAMES)


@dataclass(frozen=True, slots=True)
class Cron:
    """A rule that was read. `text` has all `H` replaced."""

    text: str
    by_the_hour: bool
    """Whether it fires at every hour, or every n-th, so that it counts hours that pass, not hours of the day."""
    has_seconds: bool
    _first: CronSim

    def walls(self, after: datetime) -> Iterator[datetime]:
        """Times on the wall clock after one, in order; they end fifty years after the last match."""
        rule = copy.copy(self._first)
        rule.dt = after.replace(microsecond=0)
        return rule

    def in_words(self) -> str:
        """What the rule says, for people."""
        return str(self._first.explain())


@lru_cache(maxsize=4096)
def read_cron(field: str, text: str, name: str) -> Cron:
    """Read a rule; what is wrong with it is said under the field's name. `name` is what `H` is a hash of."""
    if len(text) > TEXT_LIMIT:
        raise Invalid(field, f"must be text of at most {TEXT_LIMIT} characters: {ALLOWED}")
    plain = NICKNAMES.get(text.strip().lower(), text)
    if plain.startswith("@"):
        raise Invalid(field, f"must be {ALLOWED}, not '{shortened(text, 40)}'", NICKNAMES)
    fields = plain.upper().split()
    if len(fields) not in (5, 6):
        raise Invalid(field, f"must be {ALLOWED}; '{shortened(text, 40)}' has {len(fields)} fields")
    first = len(FIELDS) - len(fields)
    fields = [_spread(field, at, each, name) for at, each in enumerate(fields, first)]
    for at, each in enumerate(fields, first):
        if not _FIELD.fullmatch(each) or _LONG_NUMBER.search(each):
            raise _bad(field, at, each)
    rule = " ".join(fields)
    try:
        sim = CronSim(rule, datetime(2000, 1, 1))  # noqa: DTZ001 - a time on the wall clock
        next(copy.copy(sim))
    except CronSimError as error:
        raise Invalid(field, f"'{shortened(text, 40)}' is no cron rule: {str(error).lower()}") from None
    except StopIteration:
        raise Invalid(field, f"'{shortened(text, 40)}' never comes") from None
    return Cron(rule, fields[HOUR - first].startswith("*"), len(fields) == len(FIELDS), sim)


def _bad(field: str, at: int, text: str) -> Invalid:
    return Invalid(field, f"'{shortened(text, 40)}' is not a {FIELDS[at]} of a cron rule")


def _spread(field: str, at: int, text: str, name: str) -> str:
    """The field with each `H` in its list replaced by a number, or by a range with a step."""
    if "H" not in text:
        return text
    return ",".join(_spread_one(field, at, each, name) for each in text.split(","))


def _spread_one(field: str, at: int, text: str, name: str) -> str:
    found = _SPREAD.fullmatch(text)
    if found is None:
        return text  # a name such as THU
    low, high = SPREAD[at]
    if found[1] is not None:
        low, high = max(low, int(found[1])), int(found[2])
        if low > high or high > (31 if at == FIELDS.index("day of the month") else SPREAD[at][1]):
            raise _bad(field, at, text)
    digest = int.from_bytes(hashlib.sha256(f"{FIELDS[at]} {name}".encode()).digest()[:8])
    if found[3] is None:
        return str(low + digest % (high - low + 1))
    step = int(found[3])
    if not 1 <= step <= high - low + 1:
        raise _bad(field, at, text)
    return f"{low + digest % step}-{high}/{step}"
