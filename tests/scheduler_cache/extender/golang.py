# SPDX-License-Identifier: Apache-2.0
"""What Go's fmt.Sprintf makes of a text that is given as the format, without arguments.

Source: doFormat in https://go.dev/src/fmt/print.go. The outputs below it in test_formatting.py come
from go 1.26.
"""

from __future__ import annotations

import re

# Flags, width and precision, each of them a number, `*` or an index in brackets; then the verb.
_VERB = re.compile(
    r"%(?P<flags>[#0+\- ]*)(?P<index>\[\d+\])?(?P<width>\*|\d*)"
    r"(?:\.(?:\[\d+\])?(?:\*|\d*))?(?P<verb>.)?",
    re.DOTALL,
)


def sprintf(text: str) -> str:
    """Return what `fmt.Sprintf(text)` returns."""
    return _VERB.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    verb = match["verb"]
    stars = "%!(BADWIDTH)" * match[0].count("*")
    if verb is None:
        return f"{stars}%!(NOVERB)"
    if verb == "%":
        return f"{stars}%"
    if match["index"]:
        return f"{stars}%!{verb}(BADINDEX)"
    return f"{stars}%!{verb}(MISSING)"
