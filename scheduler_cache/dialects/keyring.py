# SPDX-License-Identifier: Apache-2.0
"""The keys that prove that an allocation was written by us. Pure.

All replicas share them. The current key signs; the previous one is still accepted, so that a key
can be changed while allocations signed with the old one run on.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Key:
    """A secret and the name under which an allocation refers to it."""

    name: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keyring:
    """The current key and, for as long as allocations signed with it run, the previous one."""

    current: Key
    previous: Key | None = None

    def sign(self, payload: bytes) -> str:
        """Return the MAC of `payload` under the current key, in hexadecimal digits."""
        return _mac(self.current, payload)

    def proves(self, key_name: str, payload: bytes, mac: str) -> bool:
        """Return whether `mac` is that of `payload` under the key of that name."""
        for key in (self.current, self.previous):
            if key is not None and key.name == key_name:
                return hmac.compare_digest(_mac(key, payload).encode(), mac.encode())
        return False

    def knows(self, key_name: str) -> bool:
        """Return whether `key_name` is the current or the previous key."""
        return any(
            key is not None and key.name == key_name for key in (self.current, self.previous)
        )


def _mac(key: Key, payload: bytes) -> str:
    return hmac.new(key.secret, payload, hashlib.sha256).hexdigest()
