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
    for found in result["tables"]:
        checks = [tuple(check.values()) for check in found["checks"]]
        missed = [check for check in checks if not check[3]]
        table = Table(found["name"], found["title"], found["columns"], found["rows"])
        table.notes = list(found["notes"])
        if checks:
            table.notes.append(f"{len(checks) - len(missed)} of {len(checks)} targets hold.")
        table.checks = missed
        parts.append(table.markdown())
    return "\n".join(parts)


if __name__ == "__main__":
    print(report(json.loads(Path(sys.argv[1]).read_text())), end="")
