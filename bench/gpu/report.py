# SPDX-License-Identifier: Apache-2.0
"""report.py FILE: what bench.gpu.compute or bench.gpu.memory wrote, as Markdown.

Of the targets only those that were missed are listed.
"""

import json
import sys
from pathlib import Path
from typing import Any

from bench.gpu.table import Table


def report(result: dict[str, Any]) -> str:
    """Return all tables, and how many of their targets hold."""
    parts = []
    for found in _tables(result):
        checks = [tuple(check.values()) for check in found["checks"]]
        missed = [check for check in checks if not check[3]]
        table = Table(found["name"], found["title"], found["columns"], found["rows"])
        table.notes = list(found["notes"])
        if checks:
            table.notes.append(f"{len(checks) - len(missed)} of {len(checks)} targets hold.")
        table.checks = missed
        parts.append(table.markdown())
    return "\n".join(parts)


def _tables(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return those of one run, or of several that were put together under `runs`."""
    return [table for run in result.get("runs", [result]) for table in run["tables"]]


if __name__ == "__main__":
    print(report(json.loads(Path(sys.argv[1]).read_text())), end="")
