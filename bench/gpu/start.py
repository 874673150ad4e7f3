# SPDX-License-Identifier: Apache-2.0
"""start.py PROGRAM COUNT...: starts so many copies of `up` at once and waits until all are up.

Prints a list a count: milliseconds until all were up, and each copy's own nanoseconds in cuInit, in
the context and in the first allocation.
"""

import json
import subprocess
import sys
import time


def start(program: str, count: int) -> list[object]:
    """Start `count` at once; wall time and the words of each."""
    begun = time.monotonic_ns()
    copies = [
        subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    lines = [copy.stdout.readline() if copy.stdout is not None else "" for copy in copies]
    elapsed_ms = (time.monotonic_ns() - begun) / 1e6
    for copy in copies:
        copy.communicate("")
    return [elapsed_ms, [[int(word) for word in line.split()] for line in lines]]


if __name__ == "__main__":
    print(json.dumps([start(sys.argv[1], int(count)) for count in sys.argv[2:]]))
