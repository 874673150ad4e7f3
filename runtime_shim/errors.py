# SPDX-License-Identifier: Apache-2.0
"""What can go wrong on a node; a class exists only where a caller acts differently on it."""


class RuntimeShimError(Exception):
    """Base of every error of the node side."""


class ConfigError(RuntimeShimError):
    """The configuration cannot be used; the program ends before it does anything."""


class RefusedError(RuntimeShimError):
    """A container must not start.

    `reason` says what is wrong and `remedy` what a person can do about it: two clauses of the one
    line that the engine shows. Neither contains words that an engine maps to another meaning
    (`messages.refusal_line` takes care of foreign text).
    """

    def __init__(self, reason: str, remedy: str = "this container is not started") -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class NoRoomError(RefusedError):
    """No card has room for it now; a slice that is given back may change that."""


class NotYetKnownError(RefusedError):
    """The scheduler cache waited for a pod until the deadline, and it did not come."""


class CacheUnreachableError(RuntimeShimError):
    """The scheduler cache gave no answer in time; a known container may use its stored answer."""

    def __init__(self, address: str, seconds: float, detail: str) -> None:
        super().__init__(f"scheduler cache at {address} gave no answer in {seconds:g} s: {detail}")
        self.address = address
        self.seconds = seconds
        self.detail = detail


class CacheFailedError(CacheUnreachableError):
    """The scheduler cache says that it cannot answer: its disk is full, or worse. Ask no more."""

    def __init__(self, address: str, reason: str, remedy: str) -> None:
        super().__init__(address, 0.0, reason)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"scheduler cache at {self.address} has failed: {self.detail}; {self.remedy}"


class InventoryError(RuntimeShimError):
    """NVML is absent or fails; the inventory is empty until it answers."""
