# SPDX-License-Identifier: Apache-2.0
"""Logging, set up once: text for people and journald, JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

# What every record has; the rest are the event's own fields.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(log_format: str) -> None:
    """Send records of INFO and above to stderr, as `text` or `json` lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def event_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that the caller gave by `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class TextFormatter(logging.Formatter):
    """`level: event key=value …`; the journal adds the time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        pairs = "".join(f" {key}={value!r}" for key, value in event_fields(record).items())
        line = f"{record.levelname.lower()}: {record.getMessage()}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **event_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
