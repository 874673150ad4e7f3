# SPDX-License-Identifier: Apache-2.0
"""Files, written whole."""

from __future__ import annotations

import os


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`; a full disk takes a part of it without an error."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
