"""Lists come in pages."""

from __future__ import annotations

import msgspec

from qo.core.errors import Invalid

PAGE = 100
LONGEST_PAGE = 1000


class Page(msgspec.Struct):
    limit: int = PAGE


def checked_limit(limit: int) -> int:
    if not 1 <= limit <= LONGEST_PAGE:
        raise Invalid("limit", f"must be from 1 to {LONGEST_PAGE}, not {limit}")
    return limit
