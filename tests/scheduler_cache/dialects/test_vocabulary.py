# SPDX-License-Identifier: Apache-2.0
"""The names by which admission recognises a dialect are those that its codec reads and writes."""

from __future__ import annotations

import pytest

from scheduler_cache.dialects.dialect import Dialect, matches
from scheduler_cache.dialects.hami import Hami
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.model import Allocation, ComputeMode, Slice
from tests.scheduler_cache.builders import GIB
from tests.scheduler_cache.kube_objects import KEYRING, A, container_of, gpu, parsed

DIALECTS = [*every_dialect(KEYRING, hami=Hami(claim_bare_gpu=True)), Hami()]

WHOLE = Slice(
    card_uuid=A,
    memory_bytes=GIB,
    cores_percent=30,
    reserved_percent=30,
    cores_max_percent=30,
    compute_mode=ComputeMode.HARD,
)
AMOUNTS = {
    "vgpu.dev/memory": "1Gi",
    "volcano.sh/vgpu-number": "1",
    "volcano.sh/vgpu-memory": "1024",
    "nvidia.com/gpu": "1",
    "nvidia.com/gpumem": "1024",
    "koordinator.sh/gpu-memory": "1Gi",
    "tencent.com/vcuda-core": "30",
    "tencent.com/vcuda-memory": "4",
    "alnair/vgpu-memory": "1",
}


@pytest.mark.parametrize(
    ("name", "names", "found"),
    [
        ("a.b/c", ("a.b/c",), True),
        ("a.b/cd", ("a.b/c",), False),
        ("a.b/c", ("a.b/",), True),
        ("a.b/c-7", ("x", "a.b/c-"), True),
        ("a.b/c", ("a.b/c-",), False),
        ("a.b/c", (), False),
    ],
)
def test_a_name_that_ends_openly_stands_for_all_that_begin_with_it(
    name: str, names: tuple[str, ...], found: bool
) -> None:
    assert matches(name, names) is found


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_who_asks_is_recognised_by_the_names(dialect: Dialect) -> None:
    names = dialect.vocabulary
    limits = {name: text for name, text in AMOUNTS.items() if matches(name, names.resources)}
    annotations = {} if limits else {"gpu-fraction": "0.5"}

    pod = parsed(container_of("main", limits), annotations=annotations)

    assert dialect.asks(pod)
    assert set(annotations) <= set(names.annotations)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_what_a_decision_is_written_in_is_among_the_names(dialect: Dialect) -> None:
    pod = parsed(container_of("main", AMOUNTS))
    allocation = Allocation(allocation_id="a", node_name="n", slices=(WHOLE,))

    written = dialect.encode_allocation(pod, {"main": allocation}, {A: gpu(A, minor=0)})

    assert all(matches(key, dialect.vocabulary.decision_annotations) for key in written)
    if dialect.name != "kai":
        assert written


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_what_does_not_ask_by_the_names_does_not_ask(dialect: Dialect) -> None:
    names = dialect.vocabulary
    limits = {name: text for name, text in AMOUNTS.items() if not matches(name, names.resources)}

    assert not dialect.asks(parsed(container_of("main", limits)))
