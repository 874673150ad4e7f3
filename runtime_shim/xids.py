# SPDX-License-Identifier: Apache-2.0
"""What an Xid says about a card; pure.

Most Xids are the fault of the program that ran, and say nothing about the card: to hold it back for
them would let every tenant take it from all others. Source: NVIDIA, "XID Errors", Xid catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OF_THE_CARD: Final[Mapping[int, str]] = {
    46: "the GPU stopped processing",
    48: "double-bit ECC error",
    62: "the internal micro-controller halted",
    64: "a row of memory could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered memory error",
    143: "the GPU could not be initialised",
    158: "fatal timeout",
}
"""After these a card is not trusted until it has shown that it works."""

OF_A_PROGRAM: Final[Mapping[int, str]] = {
    13: "exception of a kernel",
    31: "access to memory that is not mapped",
    32: "corrupted push buffer",
    43: "a program's channel was stopped",
    45: "a program's channels were cleaned up",
    66: "illegal access by a program",
    68: "exception of the video decoder",
    69: "exception of a graphics class",
    94: "contained memory error: it ended one program",
    109: "a context switch took too long",
}
"""These cost a program at most. What is in neither list is logged, and changes nothing."""
