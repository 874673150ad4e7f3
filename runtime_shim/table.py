# SPDX-License-Identifier: Apache-2.0
"""Tables for people; no I/O."""

from __future__ import annotations

from collections.abc import Sequence


def human_bytes(size: object) -> str:
    """Return an amount of bytes in four digits and a unit; `-` for what is none."""
    if not isinstance(size, int):
        return "-"
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g}{unit}"


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return header and rows in columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
