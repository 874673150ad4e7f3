# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from runtime_shim.log import configure_logging


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_shows_event_and_fields(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging("text", stream)

    logging.getLogger("a").info("claim changed", extra={"state": "stopped"})
    logging.getLogger("a").debug("not shown")

    assert stream.getvalue() == "info: claim changed state='stopped'\n"


def test_json_is_one_object_a_line(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging("json", stream)

    try:
        raise ValueError("cause")
    except ValueError:
        logging.getLogger("a").exception("failed", extra={"container_id": "c1"})

    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["msg"]) == ("error", "a", "failed")
    assert line["container_id"] == "c1"
    assert "ValueError: cause" in line["exception"]
