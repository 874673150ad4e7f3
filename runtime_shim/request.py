# SPDX-License-Identifier: Apache-2.0
"""What a container of a host without Kubernetes asks for, from its `VGPU_*` variables; pure.

Every mistake is refused with one sentence: nothing is guessed, and nothing means "no limit".
Source: docs/contract.md §1, "Local request".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import TypeVar

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.errors import RefusedError

REQUEST_VARIABLES = frozenset(
    {
        "VGPU_COUNT",
        "VGPU_MEMORY",
        "VGPU_CORES",
        "VGPU_COMPUTE_MODE",
        "VGPU_UUIDS",
        "VGPU_MODEL",
        "VGPU_CARD_POLICY",
    }
)

RESERVED_VARIABLES = frozenset(
    {
        "VGPU_AVOID",
        "VGPU_BUDGET",
        "VGPU_GROUP",
        "VGPU_MEMORY_REPORT",
        "VGPU_MEMORY_VIRTUAL",
        "VGPU_PRIORITY",
        "VGPU_TOPOLOGY",
        "VGPU_WEIGHT",
    }
)
"""Words of a request that no version grants yet. Until then they are refused, never passed over."""

# Names that are ours without being part of a request: the key of Kubernetes mode, the log level of
# libvgpu's developer mode, and options of our own programs. They are accepted and mean nothing.
_OTHER_VARIABLES = frozenset(
    {
        "VGPU_CACHE_ADDRESS",
        "VGPU_CONFIG",
        "VGPU_CONTAINER_UUID",
        "VGPU_LOG",
        "VGPU_NODE_NAME",
        "VGPU_SCHEDULER_CACHE_CONFIG",
    }
)

# VGPU_MAX_DEVICES of vgpu_abi.h: the limits file has this many entries.
MAX_COUNT = 16

# Less cannot hold a CUDA context of any card; who writes it forgot a unit (`VGPU_MEMORY=8192`).
MIN_MEMORY_BYTES = 2**20
MAX_MEMORY_BYTES = 2**63 - 1

# Suffixes and rounding of a Kubernetes quantity. Source: apimachinery, api/resource/quantity.go.
_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
# Digits are bounded so that a long text costs nothing; 2^63 has 19.
_AMOUNT = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(|k|M|G|T|Ki|Mi|Gi|Ti)")
_PERCENT = re.compile(r"([0-9]{1,3})%")
_NUMBER = re.compile(r"[0-9]{1,9}")
_UUID = re.compile(r"(!?)(GPU|MIG)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)

_MODES = {"hard": pb.COMPUTE_MODE_HARD, "burst": pb.COMPUTE_MODE_BURST}
_POLICIES = {
    "binpack": pb.CARD_POLICY_BINPACK,
    "spread": pb.CARD_POLICY_SPREAD,
    "exclusive": pb.CARD_POLICY_EXCLUSIVE,
}

T = TypeVar("T")


class RequestError(RefusedError):
    """A `VGPU_*` variable says something that cannot be granted by any card."""

    def __init__(self, variable: str, value: str | None, problem: str, remedy: str) -> None:
        shown = "" if value is None else f"={_shown(value)}"
        super().__init__(f"{variable}{shown} {problem}", remedy)
        self.variable = variable
        self.value = value


def is_request(name: str) -> bool:
    """Tell whether a variable asks for a slice on a host without Kubernetes.

    A misspelt name asks, too: its owner gets a sentence, not a missing GPU.
    """
    return name.startswith("VGPU_") and name not in _OTHER_VARIABLES


def parse_request(env: Mapping[str, str]) -> pb.AllocationRequest:
    """Return the request that the variables of a container make. Raises RequestError."""
    _refuse_unknown(env)
    if "VGPU_MEMORY" not in env:
        raise RequestError(
            "VGPU_MEMORY",
            None,
            "is not set, and nothing else limits the memory",
            "set it to the memory of each vGPU: 8Gi, 512Mi, bytes, or 1%..100%",
        )
    count = _count(env["VGPU_COUNT"]) if "VGPU_COUNT" in env else 1
    request = pb.AllocationRequest(
        count=count,
        memory=[_memory(item) for item in _per_card("VGPU_MEMORY", env["VGPU_MEMORY"], count)],
    )
    if "VGPU_CORES" in env:
        request.cores_percent.extend(
            _cores(item) for item in _per_card("VGPU_CORES", env["VGPU_CORES"], count)
        )
    if "VGPU_COMPUTE_MODE" in env:
        request.compute_mode = _word("VGPU_COMPUTE_MODE", env["VGPU_COMPUTE_MODE"], _MODES)
    if "VGPU_CARD_POLICY" in env:
        request.card_policy = _word("VGPU_CARD_POLICY", env["VGPU_CARD_POLICY"], _POLICIES)
    if "VGPU_UUIDS" in env:
        request.uuids.extend(_uuid(item) for item in _items("VGPU_UUIDS", env["VGPU_UUIDS"]))
    if "VGPU_MODEL" in env:
        request.models.extend(_model(item) for item in _items("VGPU_MODEL", env["VGPU_MODEL"]))
    return request


def _refuse_unknown(env: Mapping[str, str]) -> None:
    known = REQUEST_VARIABLES | RESERVED_VARIABLES
    for name in env:
        if name in RESERVED_VARIABLES:
            raise RequestError(
                name,
                env[name],
                "is not available yet in this version of vgpu",
                "remove it, since no container starts without what it asks for",
            )
        if is_request(name) and name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise RequestError(
                name,
                env[name],
                f"is not a variable of vgpu ({', '.join(sorted(REQUEST_VARIABLES))})",
                f"remove it or correct its name{hint}",
            )


def _count(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_COUNT:
        raise RequestError(
            "VGPU_COUNT",
            text,
            f"is not a number of cards, 1..{MAX_COUNT}",
            "set it to the number of vGPUs, or leave it out for one",
        )
    return int(text)


def _memory(text: str) -> pb.MemoryAmount:
    if match := _PERCENT.fullmatch(text):
        if 1 <= int(match[1]) <= 100:
            return pb.MemoryAmount(percent=int(match[1]))
        raise _memory_error(text, "is outside 1%..100%")
    match = _AMOUNT.fullmatch(text)
    if not match:
        raise _memory_error(text, "is not an amount of memory (8Gi, 512Mi, bytes, or 1%..100%)")
    size = Decimal(match[1]) * _UNITS[match[2]]
    size_bytes = int(size.to_integral_value(ROUND_CEILING))
    if size_bytes > MAX_MEMORY_BYTES:
        raise _memory_error(text, "is more than any card has (at most 2^63 - 1 bytes)")
    if size_bytes < MIN_MEMORY_BYTES:
        raise _memory_error(text, "is less than 1Mi, the smallest slice")
    return pb.MemoryAmount(bytes=size_bytes)


def _memory_error(text: str, problem: str) -> RequestError:
    remedy = "set it to the memory of each vGPU with its unit, such as 8Gi"
    return RequestError("VGPU_MEMORY", text, problem, remedy)


def _cores(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= 100:
        raise RequestError(
            "VGPU_CORES",
            text,
            "is not a share of a card's time in percent, 1..100",
            "set it to a whole number such as 50, or leave it out to use idle time only",
        )
    return int(text)


def _word(variable: str, text: str, words: Mapping[str, T]) -> T:
    if text not in words:
        raise RequestError(
            variable, text, f"is not one of {', '.join(words)}", "set one of these or leave it out"
        )
    return words[text]


def _uuid(text: str) -> str:
    match = _UUID.fullmatch(text)
    if not match:
        raise RequestError(
            "VGPU_UUIDS",
            text,
            "is not the whole UUID of a card (GPU-… or MIG-…, with ! in front to deny it)",
            "copy it from `nvidia-smi -L` or leave it out",
        )
    return f"{match[1]}{match[2].upper()}-{match[3].lower()}"


def _model(text: str) -> str:
    if not text.removeprefix("!").strip():
        raise RequestError(
            "VGPU_MODEL", text, "denies nothing", "put a part of a model's name after the !"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                "VGPU_MODEL", text, "is not UTF-8", "copy the model's name from `nvidia-smi -L`"
            ) from error
    return text


def _per_card(variable: str, text: str, count: int) -> Sequence[str]:
    parts = _items(variable, text)
    if len(parts) not in (1, count):
        raise RequestError(
            variable,
            text,
            f"has {len(parts)} values for VGPU_COUNT={count}",
            f"give one value for every vGPU, or {count} separated by commas"
            if count > 1
            else "give one value, or set VGPU_COUNT",
        )
    return parts


def _items(variable: str, text: str) -> list[str]:
    parts = [part.strip(" ") for part in text.split(",")]
    if not all(parts):
        problem = "is empty" if not text.strip(" ") else "has an empty item"
        raise RequestError(
            variable, text, problem, "give every item of the list a value or leave it out"
        )
    return parts


def _shown(value: str) -> str:
    return repr(value if len(value) <= 64 else value[:63] + "…")
