"""What an error was, and where: as it is kept with a message, and as the log shows it. From the task on, without us."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType

from qo.core.errors import shortened

TRACE_FRAMES = 20
TRACE_LIMIT = 8 * 1024
_OWN = str(Path(__file__).parent.parent) + os.sep


def describe(error: BaseException) -> str:
    """An error as it is kept with a dead letter: its type and what it says."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def from_the_task_on(error: BaseException) -> TracebackType | None:
    """The trace, without our own frames that lead to the task. None: the error is one that we raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    return trace


def traced(error: BaseException) -> str:
    """What `describe` says, with the trace below it; where there is no room, the first line is what is shown."""
    trace = from_the_task_on(error)
    if trace is None:
        return describe(error)
    told = traceback.TracebackException(type(error), error, trace, limit=-TRACE_FRAMES)
    return shortened(f"{describe(error)}\n\n{''.join(told.format()).rstrip()}", TRACE_LIMIT)
