"""Kinds of arguments that commands share."""

from __future__ import annotations

import argparse
from datetime import timedelta

from qo.core.durations import duration
from qo.core.errors import Invalid


def length(text: str) -> timedelta:
    """A duration: seconds, or text such as `250ms` and `1h30m`."""
    try:
        return duration("length", text)
    except Invalid as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("length: ")) from None
