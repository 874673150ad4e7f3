# SPDX-License-Identifier: Apache-2.0
"""Quantities in the words of messages. Requests arrive in bytes: nothing is parsed here."""

from __future__ import annotations

_UNITS = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))


def human_bytes(count: int) -> str:
    """Return `count` bytes with one decimal in the largest binary unit, such as `1.5Gi`.

    Rounds down: a message never promises more room than there is.
    """
    for unit, size in _UNITS:
        if count >= size:
            tenths = count * 10 // size
            return f"{tenths // 10}.{tenths % 10}{unit}"
    return f"{count} bytes"


def counted(number: int, noun: str) -> str:
    """Return `number` with its noun, such as `1 slot` or `3 slots`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
