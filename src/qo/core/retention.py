"""Retention times that are not settings of a queue, and how often housekeeping looks."""

from __future__ import annotations

from datetime import timedelta

KEEP_SETTLED = timedelta(minutes=10)
"""How long a token's settlements are kept after its last lease ended."""
KEEP_NONCES = timedelta(hours=1)
KEEP_TRACES = timedelta(days=7)
CHECK_DEDUPE = timedelta(hours=1)
"""A dedupe key whose holder goes on is looked at again after so long, at the earliest."""
TIDY_AFTER = timedelta(seconds=60)
"""A lane that changed is looked at by housekeeping so long later, not sooner."""
NOTE_CLAIMED = timedelta(hours=1)
"""How often a group's activity is written down, at most."""
