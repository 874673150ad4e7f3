# SPDX-License-Identifier: Apache-2.0
"""Who is heard at once, who is answered late, and who is refused."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from scheduler_cache.errors import TooOftenError
from scheduler_cache.pace import Pace

NEVER = 3600.0


async def take(pace: Pace, heard: list[str], what: str, name: str = "n1") -> None:
    async with pace.turn(name):
        heard.append(what)


async def test_a_second_turn_is_heard_at_once_and_answered_late() -> None:
    pace, heard = Pace(least_seconds=NEVER), list[str]()
    await take(pace, heard, "first")

    second = asyncio.create_task(take(pace, heard, "second"))
    done, _ = await asyncio.wait({second}, timeout=0.05)

    assert heard == ["first", "second"]
    assert not done
    second.cancel()


async def test_who_does_not_wait_is_refused_and_others_are_not() -> None:
    pace, heard = Pace(least_seconds=NEVER), list[str]()
    await take(pace, heard, "first")
    second = asyncio.create_task(take(pace, heard, "second"))
    await asyncio.sleep(0)
    second.cancel()  # to break a call off makes room for nothing
    with suppress(asyncio.CancelledError):
        await second

    with pytest.raises(TooOftenError, match="n1 calls too often; it is heard again in a moment"):
        await take(pace, heard, "third")
    await take(pace, heard, "other", "n2")

    assert heard == ["first", "second", "other"]


async def test_a_caller_that_was_refused_is_heard_again_later() -> None:
    pace, heard = Pace(least_seconds=0.01), list[str]()

    for number in range(10):  # each waits for its answer, so that none is refused
        await take(pace, heard, str(number))
    crowd = [take(pace, heard, "crowd") for _ in range(10)]
    refused = await asyncio.gather(*crowd, return_exceptions=True)

    assert any(isinstance(each, TooOftenError) for each in refused)
    async with asyncio.timeout(60):
        while "at last" not in heard:
            with suppress(TooOftenError):
                await take(pace, heard, "at last")
            await asyncio.sleep(0.01)


async def test_a_turn_counts_longer_when_it_took_long_or_failed() -> None:
    pace = Pace(least_seconds=0.0, share=1e-9)
    with pytest.raises(ValueError, match="no report"):
        async with pace.turn("n1"):
            raise ValueError("no report")
    second = asyncio.create_task(take(pace, [], "second"))

    done, _ = await asyncio.wait({second}, timeout=0.05)

    assert not done
    second.cancel()
