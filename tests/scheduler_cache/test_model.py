# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler_cache.errors import InvalidRequestError
from scheduler_cache.model import CardUse, ComputeMode, Demand, MemoryAmount, PodContainer, Request
from tests.scheduler_cache.builders import GIB, allocation, amount, part, request


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: request(1, count=17), "count 17 is not within 1..16"),
        (lambda: Request(count=0, memory=(amount(1),)), "count 0 is not within"),
        (lambda: Request(memory=()), "memory is required"),
        (lambda: MemoryAmount(), "memory is required"),
        (lambda: MemoryAmount(bytes=-1), "-1 bytes is out of range"),
        (lambda: MemoryAmount(bytes=1 << 63), "out of range"),
        (lambda: MemoryAmount(percent=101), "101% is not within 1%..100%"),
        (lambda: request(1, 2, count=3), "2 memory amounts for 3 cards"),
        (lambda: request(1, count=3, cores=(1, 2)), "2 cores amounts for 3 cards"),
        (lambda: request(1, cores=(101,)), "cores of 101% are not within"),
        (lambda: request(1, cores=(0,)), "cores of 0% are not within"),
        (lambda: request(1, mode=ComputeMode.HARD), "compute mode hard needs cores"),
        (lambda: request(1, uuids=("GPU-1", "!")), "list of UUIDs has an empty entry"),
        (lambda: request(1, models=("",)), "list of models has an empty entry"),
        (lambda: request("100%", 1), "cannot stand beside smaller amounts"),
        (lambda: request("100%", cores=(50,)), "has 100% of cores"),
    ],
)
def test_a_broken_rule_is_named(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words.replace("(", r"\(")):
        make()


def test_one_amount_stands_for_every_card() -> None:
    assert request(2, count=3, cores=(10,)).demands == (Demand(amount(2), 10),) * 3


def test_amounts_keep_the_order_of_the_request() -> None:
    assert request(2, "50%", cores=(10, 20)).demands == (
        Demand(amount(2), 10),
        Demand(amount("50%"), 20),
    )


def test_a_pod_as_a_whole_is_named_without_a_container() -> None:
    owner = PodContainer(uid="u1", namespace="default", name="p1", container_name="main")

    assert str(owner) == "main of pod default/p1"
    assert str(replace(owner, container_name="")) == "pod default/p1"


def test_adding_and_removing_an_allocation_changes_nothing() -> None:
    two_slices = allocation("x", part("GPU-1", 2, 30), part("GPU-1", 1), exclusive=True)
    before = CardUse().plus(allocation("y", part("GPU-1", 1, 10)), "GPU-1")

    during = before.plus(two_slices, "GPU-1")

    assert during == CardUse(4 * GIB, 40, 3, ("container x",), 2)
    assert during.minus(two_slices, "GPU-1") == before
