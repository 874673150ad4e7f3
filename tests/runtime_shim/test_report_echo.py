# SPDX-License-Identifier: Apache-2.0
import asyncio

from runtime_shim.report_echo import ReportEcho
from tests.runtime_shim.test_agent import until


async def test_an_end_is_reported_again_and_again() -> None:
    wanted: list[None] = []
    echo = ReportEcho(lambda: wanted.append(None), (0.01, 0.02, 0.03))

    echo.reported({"a", "b"})
    echo.reported({"a", "b", "c"})
    await asyncio.sleep(0.1)
    assert wanted == []

    echo.reported({"a", "c"})
    await until(lambda: len(wanted) == 3)
    echo.reported({"a", "c"})
    await asyncio.sleep(0.1)
    assert len(wanted) == 3
