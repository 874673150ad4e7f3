# SPDX-License-Identifier: Apache-2.0
"""Chores run once per key, rest after a failure, and never pile up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from scheduler_cache.chores import Chores
from scheduler_cache.errors import NotLeaderError
from scheduler_cache.kube.errors import UnreachableError
from tests.scheduler_cache.kube.clusters import until


@asynccontextmanager
async def working(chores: Chores) -> AsyncIterator[None]:
    task = asyncio.create_task(chores.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def noting(log: list[str], word: str) -> Callable[[], Awaitable[None]]:
    async def chore() -> None:
        log.append(word)

    return chore


async def test_the_latest_of_a_key_runs_and_runs_once() -> None:
    chores, log = Chores(), list[str]()
    for word in ("first", "second", "third"):
        chores.plan("a", noting(log, word))
    chores.plan("b", noting(log, "other"))
    assert len(chores) == 2

    async with working(chores):
        await until(lambda: len(log) == 2)

    assert log == ["third", "other"]


async def test_one_that_fails_is_tried_again_and_nothing_piles_up() -> None:
    chores, tries = Chores(first_pause_seconds=0.01), list[str]()

    async def failing() -> None:
        tries.append("x")
        if len(tries) < 4:
            raise UnreachableError("no answer")

    chores.plan("a", failing)
    async with working(chores):
        await until(lambda: len(tries) == 4)
        await until(lambda: len(chores) == 0)

    assert chores.failures == 3


async def test_planning_anew_does_not_hurry_one_that_rests() -> None:
    chores, log = Chores(first_pause_seconds=3600), list[str]()

    async def failing() -> None:
        log.append("failed")
        raise UnreachableError("no answer")

    async with working(chores):
        chores.plan("a", failing)
        await until(lambda: chores.failures == 1)
        for _ in range(100):
            chores.plan("a", noting(log, "again"))
        chores.plan("b", noting(log, "other"))
        await until(lambda: "other" in log)
        await asyncio.sleep(0)
        assert (log, len(chores)) == (["failed", "other"], 1)


async def test_one_that_is_planned_while_it_runs_runs_once_more() -> None:
    chores, log, go = Chores(workers=3), list[str](), asyncio.Event()

    async def slow() -> None:
        log.append("begun")
        await go.wait()
        log.append("ended")

    async with working(chores):
        chores.plan("a", slow)
        await until(lambda: log == ["begun"])
        chores.plan("a", noting(log, "again"))
        chores.plan("b", noting(log, "other"))
        await until(lambda: log == ["begun", "other"], "no key runs twice at a time")
        go.set()
        await until(lambda: log == ["begun", "other", "ended", "again"])


async def test_a_replica_that_no_longer_leads_lets_its_chores_go() -> None:
    chores, log = Chores(), list[str]()

    async def late() -> None:
        log.append("late")
        raise NotLeaderError("another leads")

    chores.plan("a", late)
    async with working(chores):
        await until(lambda: bool(log))
        chores.plan("b", noting(log, "other"))
        await until(lambda: "other" in log)

    assert (log, len(chores), chores.failures) == (["late", "other"], 0, 0)


async def test_what_waits_is_bounded() -> None:
    chores, log = Chores(most_keys=2), list[str]()
    for key in ("a", "b", "c"):
        chores.plan(key, noting(log, key))
    chores.plan("a", noting(log, "a again"))

    assert (len(chores), chores.dropped) == (2, 1)
    async with working(chores):
        await until(lambda: len(log) == 2)
    assert log == ["a again", "b"]


async def test_a_fault_of_our_own_is_told_and_holds_up_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chores, log = Chores(workers=1, first_pause_seconds=3600), list[str]()

    async def faulty() -> None:
        raise ZeroDivisionError

    chores.plan("a", faulty)
    chores.plan("b", noting(log, "other"))
    async with working(chores):
        await until(lambda: log == ["other"])

    assert chores.failures == 1
    assert "ZeroDivisionError" in caplog.text
