# SPDX-License-Identifier: Apache-2.0
"""What a decision gives beyond the request is named to the last byte."""

from __future__ import annotations

import pytest

from scheduler_cache.model import Card, ComputeMode, MemoryAmount, Request, Slice
from scheduler_cache.trust import excess
from tests.scheduler_cache.builders import GIB

CARDS = {uuid: Card(uuid=uuid, memory_bytes=8 * GIB, slots=10) for uuid in ("GPU-1", "GPU-2")}


def asked(count: int = 1, cores: int = 30, mode: ComputeMode = ComputeMode.HARD) -> Request:
    return Request(
        count=count,
        memory=(MemoryAmount(bytes=2 * GIB),),
        cores_percent=(cores,) if cores else (),
        compute_mode=mode,
    )


def given(card: str = "GPU-1", **fields: object) -> Slice:
    values = {
        "memory_bytes": 2 * GIB,
        "cores_percent": 30,
        "reserved_percent": 30,
        "cores_max_percent": 30,
        "compute_mode": ComputeMode.HARD,
        **fields,
    }
    return Slice(card_uuid=card, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "slices", "words"),
    [
        (asked(), [given()], ""),
        (asked(), [given(memory_bytes=GIB, reserved_percent=0)], "it has no limit of cores"),
        (asked(), [given(memory_bytes=2 * GIB + 1)], "2147483649 bytes where 2147483648"),
        (asked(), [given(memory_bytes=3 * GIB)], "it gives 3.0Gi where 2.0Gi"),
        (asked(), [given(reserved_percent=31)], "reserves 31% of cores where 30%"),
        (asked(), [given(cores_max_percent=31)], "may use 31% of cores where 30%"),
        (asked(mode=ComputeMode.BURST), [given(cores_max_percent=100)], ""),
        (asked(count=2), [given(), given("GPU-2")], ""),
        (asked(count=2), [given(), given()], "two slices of one card"),
        (asked(), [given(), given("GPU-2")], "it gives 2 slices where 1 were asked for"),
        (asked(count=2), [given()], ""),
    ],
)
def test_what_goes_beyond_is_named(request_: Request, slices: list[Slice], words: str) -> None:
    found = excess(request_, slices, CARDS)

    assert (words in found) if words else (found == "")
