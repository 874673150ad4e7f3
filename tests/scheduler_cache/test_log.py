# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import logging
import sys

from scheduler_cache.log import JsonFormatter, TextFormatter


def record(**fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "n", "levelno": 20, "levelname": "INFO", "created": 0.5})
    made.msg, made.args = "claim %s", ("taken",)
    vars(made).update(fields)
    return made


def test_text_is_one_line_with_the_fields() -> None:
    assert (
        TextFormatter().format(record(node="a", claims=2)) == "info: claim taken node='a' claims=2"
    )


def test_json_is_one_object_with_the_fields() -> None:
    assert json.loads(JsonFormatter().format(record(node="a"))) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "logger": "n",
        "msg": "claim taken",
        "node": "a",
    }


def test_an_exception_is_shown() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        failed = record(exc_info=sys.exc_info())

    assert "ValueError: broken" in TextFormatter().format(failed)
    assert "ValueError: broken" in json.loads(JsonFormatter().format(failed))["exception"]
