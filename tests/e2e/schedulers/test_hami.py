# SPDX-License-Identifier: Apache-2.0
"""Only HAMi has this: a webhook that changes pods which ours changes, too."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.namespace import Namespace
from tests.e2e.schedulers.hami import Hami
from tests.e2e.schedulers.system import WEBHOOKS, Wish, shape
from tests.e2e.schedulers.test_cases import gets_what_it_asked_for

pytestmark = [
    pytest.mark.schedulers,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("session_system", [Hami], indirect=True, ids=["hami"]),
]


_OURS_FIRST = pytest.mark.xfail(
    strict=True, reason="our webhook has given the pod to our scheduler before HAMi's is asked"
)


@pytest.mark.parametrize("name", ["a-first", pytest.param("zz-last", marks=_OURS_FIRST)])
async def test_its_webhook_is_asked_before_ours_or_after(
    system: Hami, place: Namespace, name: str
) -> None:
    """The API server asks webhooks in the order of their names."""
    what = shape(plain=None, main=Wish(1024, 10))
    await asyncio.to_thread(system.plane.request, "DELETE", f"{WEBHOOKS}/{system.webhook}")
    await asyncio.to_thread(system.ask_webhook, name)
    try:
        await place.create(system.pod("one", what))

        assert (await place.pod("one"))["spec"]["schedulerName"] == system.scheduler
        [item] = await place.running("one")
        await gets_what_it_asked_for(system, place, item, what)
    finally:
        await asyncio.to_thread(system.plane.request, "DELETE", f"{WEBHOOKS}/{name}")
        await asyncio.to_thread(system.ask_webhook, system.webhook)
