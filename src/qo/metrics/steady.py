"""The clock that lengths of time are measured with."""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def steady_seconds() -> float:
    """Goes on steadily: whatever is done to the wall clock, while the process is stopped, and while the machine sleeps
    (where the system has such a clock).
    """
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)
