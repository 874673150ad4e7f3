# SPDX-License-Identifier: Apache-2.0
"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
WARN = "warn"
FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    level: str
    """`ok`; `warn`: it works, and somebody should know; `fail`: containers will not get slices."""
    message: str
    remedy: str = ""
    """What a person can do; empty when there is nothing to do."""


def ok(check: str, message: str) -> Finding:
    """Return that a part is as it should be."""
    return Finding(check=check, level=OK, message=message)


def warn(check: str, message: str, remedy: str) -> Finding:
    """Return that a part works, but not as well as it could."""
    return Finding(check=check, level=WARN, message=message, remedy=remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    """Return that a part does not work."""
    return Finding(check=check, level=FAIL, message=message, remedy=remedy)
