# SPDX-License-Identifier: Apache-2.0
"""A measured program and the bench outside talk in lines of JSON.

The program says where it is and waits; the bench looks at the card, does what is due, and answers.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def say(what: str, **values: Any) -> dict[str, Any]:  # noqa: ANN401  whatever JSON can carry
    """In the program: tell the bench, and return its answer."""
    print(json.dumps({"what": what, **values}), flush=True)
    line = sys.stdin.readline()
    if not line:
        sys.exit("the bench is gone")
    answer: dict[str, Any] = json.loads(line)
    return answer


def end(result: Any) -> None:  # noqa: ANN401  whatever JSON can carry
    """In the program: give the result."""
    print(json.dumps({"what": "result", "result": result}), flush=True)


def listen(
    process: "subprocess.Popen[str]", answer: Callable[[dict[str, Any]], dict[str, Any]]
) -> Any:  # noqa: ANN401  the program's result
    """In the bench: answer everything that a program says, and return its result."""
    assert process.stdin is not None
    assert process.stdout is not None
    noise: list[str] = []
    for line in process.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            noise.append(line.rstrip())
            continue
        if said["what"] == "result":
            process.stdin.close()
            process.stdout.read()
            process.wait(timeout=60)
            return said["result"]
        process.stdin.write(json.dumps(answer(said)) + "\n")
        process.stdin.flush()
    raise RuntimeError(f"the program ended with {process.wait()}: {' '.join(noise)[-500:]}")
