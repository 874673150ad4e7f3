# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities as whole numbers. Pure.

Source: Kubernetes apimachinery, pkg/api/resource, Quantity.
"""

from __future__ import annotations

import re
from decimal import Decimal

from scheduler_cache.errors import InvalidRequestError

_FACTORS = {
    "n": Decimal(1).scaleb(-9),
    "u": Decimal(1).scaleb(-6),
    "m": Decimal(1).scaleb(-3),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(1 << 10),
    "Mi": Decimal(1 << 20),
    "Gi": Decimal(1 << 30),
    "Ti": Decimal(1 << 40),
    "Pi": Decimal(1 << 50),
    "Ei": Decimal(1 << 60),
}

# Digits are bounded, so that no text makes a number that takes a second to multiply.
_QUANTITY = re.compile(
    r"\+?([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?",
    re.ASCII,
)

_LARGEST = (1 << 63) - 1


def whole_number(text: object, what: str) -> int:
    """Return a quantity of 0 or more that is a whole number, such as `8Gi` or `2`.

    `what` names the field in the error. Raises InvalidRequestError: a fraction is never rounded.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidRequestError(f"{what} is {text!r}, not a quantity such as 2 or 8Gi")
    digits, suffix, exponent = match.groups()
    value = Decimal(digits) * _FACTORS[suffix or ""]
    if exponent:
        value = value.scaleb(int(exponent))
    if value > _LARGEST:
        raise InvalidRequestError(f"{what} is {text!r}, more than {_LARGEST}; ask for less")
    if value != value.to_integral_value():
        raise InvalidRequestError(f"{what} is {text!r}, not a whole number; write one")
    return int(value)
