"""Logs: lines for people or for machines. Never a payload, never a secret."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from qo.server.settings import LogSettings

FIELDS = ("request_id", "method", "route", "status", "ms", "client", "queue", "kind", "message_id", "attempt", "worker")
"""What a record may carry beside its message."""


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name for it
        told = " ".join(f"{name}={getattr(record, name)}" for name in FIELDS if hasattr(record, name))
        line = super().formatMessage(record)
        return f"{line} {told}" if told else line


def set_up(settings: LogSettings) -> None:
    """Everything goes to standard error, ours and the HTTP server's."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every malformed request
