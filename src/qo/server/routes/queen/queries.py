"""Queries as Queen's clients send them: what is not known is ignored."""

from __future__ import annotations

from qo.core.errors import Invalid
from qo.server.request import Request

MOST_LISTED = 1000
MOST_SKIPPED = 10_000
LARGEST = 2**31 - 1
TRUE = ("true", "1", "yes")


class Query:
    """The parameters of one call."""

    def __init__(self, request: Request) -> None:
        self._given = dict(request.pairs())

    def text(self, name: str) -> str | None:
        """None, if it is absent or empty."""
        found = self._given.get(name)
        return found if found not in (None, "", "null", "undefined") else None

    def flag(self, name: str) -> bool:
        return self._given.get(name, "").lower() in TRUE

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            return max(-LARGEST, min(int(float(text)), LARGEST))
        except (ValueError, OverflowError):
            raise Invalid(name, f"must be a number, not '{text}'") from None

    def positive(self, name: str, default: int) -> int:
        """One that is not above 0 says nothing."""
        found = self.number(name, default)
        return found if found > 0 else default

    @property
    def limit(self) -> int:
        return min(self.positive("limit", 100), MOST_LISTED)

    @property
    def offset(self) -> int:
        return min(max(self.number("offset", 0), 0), MOST_SKIPPED)
