# SPDX-License-Identifier: Apache-2.0
"""How a program ended."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finished:
    """The exit code and the output of a program, or of a container's program by its engine."""

    status: int
    stdout: str
    stderr: str
