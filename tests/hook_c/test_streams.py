# SPDX-License-Identifier: Apache-2.0
"""Streams that pools' memory has been freed in are waited for, whichever context they are of."""

import pytest

from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

NOT_BLOCKING = 1


@pytest.fixture
def tenant(container: Container, start: Start) -> Process:
    """Return a process with a current context on the first card."""
    return start(container)


def new_context(tenant: Process) -> int:
    """Create a context, which is current then."""
    code, context = tenant.do("out", "cuCtxCreate_v2", 0, 0)
    assert code == 0
    return int(context)


def current(tenant: Process) -> int:
    """Return the current context."""
    code, context = tenant.do("out", "cuCtxGetCurrent")
    assert code == 0
    return int(context)


def free_behind_work(tenant: Process, stream: int) -> None:
    """Leave 800 MiB to a pool that are free as soon as a stream comes to it."""
    code, address = tenant.do("out", "cuMemAllocAsync", 800 * MIB, stream)
    assert code == 0
    assert tenant.do("launch", tenant.do("kernel", "busy_200ms"), stream) == 0
    assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0


def test_the_end_of_a_context_forgets_no_stream_of_another(
    tenant: Process, container: Container
) -> None:
    code, stream = tenant.do("out", "cuStreamCreate", NOT_BLOCKING)
    assert code == 0
    free_behind_work(tenant, stream)
    context = new_context(tenant)
    assert tenant.do("call", "cuCtxDestroy_v2", context) == 0

    assert tenant.do("allocate", 900 * MIB)[0] == 0
    assert container.used() == 900 * MIB


def test_streams_end_with_their_context(tenant: Process, container: Container) -> None:
    first = current(tenant)
    contexts = [new_context(tenant) for _ in range(40)]  # more than are remembered
    for context in contexts:
        assert tenant.do("call", "cuCtxSetCurrent", context) == 0
        for stream in (0, tenant.do("out", "cuStreamCreate", NOT_BLOCKING)[1]):
            code, address = tenant.do("out", "cuMemAllocAsync", MIB, stream)
            assert code == 0
            assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0
        assert tenant.do("call", "cuCtxDestroy_v2", context) == 0
    assert tenant.do("call", "cuCtxSetCurrent", first) == 0
    free_behind_work(tenant, 0)

    assert tenant.do("allocate", 900 * MIB)[0] == 0
    assert container.used() == 900 * MIB


def test_every_context_has_a_default_stream_of_its_own(
    tenant: Process, container: Container
) -> None:
    first = current(tenant)
    second = new_context(tenant)
    free_behind_work(tenant, 0)
    assert tenant.do("call", "cuCtxSetCurrent", first) == 0
    code, address = tenant.do("out", "cuMemAllocAsync", MIB, 0)
    assert code == 0
    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0

    assert tenant.do("allocate", GIB)[0] == 0
    assert container.used() == GIB
    assert tenant.do("call", "cuCtxDestroy_v2", second) == 0
