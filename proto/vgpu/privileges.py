# SPDX-License-Identifier: Apache-2.0
"""Capabilities beside which a limit means nothing; node and admission refuse the same ones."""

from __future__ import annotations

from typing import Final

UNDOING: Final = {
    "SYS_ADMIN": "can unmount what limits it",
    "BPF": "can make the kernel skip what limits it",
    "DAC_READ_SEARCH": "can open the file of its limits past every mount",
    "LEASE": "can make the node agent wait for its files",
    "SYS_MODULE": "can change the kernel",
    "SYS_RAWIO": "can write to the host's memory and devices",
}
"""Without `CAP_`, the one that the node may allow (`policy.sys_admin`) first; what each can do."""
