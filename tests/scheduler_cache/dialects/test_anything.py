# SPDX-License-Identifier: Apache-2.0
"""Whatever is written in a pod or a node: an error of ours, or an answer fit for the wire."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_cache.dialects.dialect import Dialect
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.errors import InvalidRequestError, SchedulerCacheError
from scheduler_cache.model import MAX_BYTES, MAX_SLICES
from scheduler_cache.pod import KubeNode, Pod, kube_node_of, pod_of
from scheduler_cache.quantity import whole_number
from tests.scheduler_cache.kube_objects import KEYRING, A, B, pod

DIALECTS = every_dialect(KEYRING)

# A night of it: VGPU_TEST_EXAMPLES=100000.
EXAMPLES = int(os.environ.get("VGPU_TEST_EXAMPLES", "100"))

RESOURCES = st.sampled_from(
    [
        "vgpu.dev/count",
        "vgpu.dev/memory",
        "vgpu.dev/memory-percent",
        "vgpu.dev/cores",
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-memory-percentage",
        "volcano.sh/vgpu-cores",
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
        "koordinator.sh/gpu",
        "koordinator.sh/gpu.shared",
        "koordinator.sh/gpu-core",
        "koordinator.sh/gpu-memory",
        "koordinator.sh/gpu-memory-ratio",
        "tencent.com/vcuda-core",
        "tencent.com/vcuda-memory",
        "alnair/vgpu-memory",
        "alnair/vgpu-compute",
    ]
)
POD_KEYS = st.sampled_from(
    [
        "vgpu.dev/devices",
        "vgpu.dev/allocation",
        "vgpu.dev/card-policy",
        "vgpu.dev/compute-mode",
        "vgpu.dev/use-model",
        "vgpu.dev/use-uuid",
        "volcano.sh/vgpu-ids-new",
        "volcano.sh/devices-to-allocate",
        "volcano.sh/vgpu-time",
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-mig-allocations",
        "hami.io/vgpu-time",
        "scheduling.koordinator.sh/device-allocated",
        "scheduling.koordinator.sh/bind-timestamp",
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
        "tencent.com/predicate-gpu-idx-0",
        "tencent.com/predicate-gpu-idx-x",
        "tencent.com/vcuda-core-limit",
        "ai.centaurus.io/alnair-gpu-id",
        "run.ai/reserve_for_gpu_index",
    ]
)
NODE_KEYS = st.sampled_from(
    [
        "vgpu.dev/inventory",
        "vgpu.dev/cordon",
        "volcano.sh/node-vgpu-register",
        "hami.io/node-nvidia-register",
        "hamivgpu",
        "hami.io/mutex.lock",
        "ai.centaurus.io/physical-gpu-uuids",
        "ai.centaurus.io/vitual-gpu-count",
    ]
)

# What is nearly right finds more than noise does.
PIECES = st.sampled_from(
    [A, B, "GPU-", ",", ":", ";", "NVIDIA", "0", "1", "100", "-1", "9" * 25, "8Gi", "true", "[0-1]"]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([A, "hard", "8Gi", ""]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            [
                "version", "node", "epoch", "containers", "main", "card", "memory_bytes", "memory",
                "cores", "cores_percent", "reserved_percent", "compute_mode", "gpu", "minor", "id",
                "resources", "koordinator.sh/gpu-memory", "devmem", "count", "uuid", "slots",
                "containerIndex", "migUUID", "kind", "priority", "weight",
            ]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=12,
)  # fmt: skip
VALUES = st.text(max_size=12) | st.lists(PIECES, max_size=9).map("".join) | JSON.map(json.dumps)
RESOURCE_VALUES = VALUES | st.integers() | st.floats() | st.sampled_from(["1", "2", "30", "8Gi"])
# The API server takes none of them; a caller of the extender sends what it likes.
ODD_NAMES = ["{", "}", "{}", "{0.__class__}", "%s", "%(x)d", "a\nb", "'", '"', "\\", "\0", "$(id)"]


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    def container(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "resources": {
                key: draw(st.dictionaries(RESOURCES, RESOURCE_VALUES, max_size=4))
                for key in ("limits", "requests")
            },
        }

    source = pod(
        "p1",
        container(draw(st.sampled_from(["main", *ODD_NAMES]))),
        container("second"),
        inits=[container("init")],
        annotations=draw(st.dictionaries(POD_KEYS, VALUES, max_size=5)),
        labels=draw(
            st.dictionaries(
                st.sampled_from(["runai-gpu-group", "runai-gpu-group/a"]), VALUES, max_size=2
            )
        ),
    )
    source["metadata"]["namespace"] = draw(st.sampled_from(["default", "kai-resource-reservation"]))
    return source


@settings(max_examples=EXAMPLES, deadline=None)
@given(source=pods())
def test_reading_a_pod_never_raises_and_says_what_the_wire_can_carry(
    source: dict[str, Any],
) -> None:
    reading = DIALECTS.read(pod_of(source))

    for request in (reading.request.containers if reading.request else {}).values():
        assert 1 <= request.count <= MAX_SLICES
        assert all(1 <= cores <= 100 for cores in request.cores_percent)
    for parts in (reading.decision.containers if reading.decision else {}).values():
        for part in parts:
            assert part.memory.percent or 1 <= part.memory.bytes <= MAX_BYTES
            assert part.cores_percent is None or 1 <= part.cores_percent <= 100
            assert part.reserved_percent in (None, 0, part.cores_percent)
            assert part.card
    for error in (reading.request_error, reading.decision_error):
        assert len(error) < 2000
        assert "\n" not in error


@settings(max_examples=EXAMPLES, deadline=None)
@given(source=pods(), annotations=st.dictionaries(NODE_KEYS, VALUES, max_size=4))
def test_every_codec_raises_only_errors_of_ours(
    source: dict[str, Any], annotations: dict[str, str]
) -> None:
    asked = pod_of(source)
    node = kube_node_of({"metadata": {"name": "n", "annotations": annotations}})

    for dialect in DIALECTS:
        check(dialect, asked, node)


def check(dialect: Dialect, asked: Pod, node: KubeNode) -> None:
    with contextlib.suppress(SchedulerCacheError):
        dialect.parse_request(asked)
    if dialect.decided(asked):
        with contextlib.suppress(SchedulerCacheError):
            dialect.parse_allocation(asked)
    with contextlib.suppress(SchedulerCacheError):
        registration = dialect.parse_node(node)
        assert all(card.memory_bytes >= 0 for card in (registration.cards if registration else ()))
    dialect.card_groups(asked)
    for admitted in (True, False):
        done = dialect.encode_completion(asked, admitted=admitted)
        assert bool(done) is dialect.unfinished(asked)
        after = dataclasses.replace(asked, annotations={**asked.annotations, **done})
        assert not dialect.unfinished(after)
    dialect.encode_unlock(node, asked)


@settings(max_examples=EXAMPLES, deadline=None)
@given(source=JSON, devices=st.lists(JSON, max_size=3))
def test_a_device_object_may_hold_anything(source: Any, devices: list[Any]) -> None:  # noqa: ANN401
    for each in ({"spec": source}, {"spec": {"devices": devices}, "metadata": source}):
        with contextlib.suppress(SchedulerCacheError):
            DIALECTS.parse_device(each)


@settings(max_examples=EXAMPLES, deadline=None)
@given(source=st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_a_pod_and_a_node_may_hold_anything(source: dict[str, Any]) -> None:
    pod_of(source)
    kube_node_of(source)


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize(
    "limits",
    [
        {"vgpu.dev/memory": "x"},
        {"vgpu.dev/memory": "8Gi", "vgpu.dev/count": "x"},
        {"vgpu.dev/memory": "8Gi", "vgpu.dev/cores": "x"},
        {"vgpu.dev/memory-percent": "x"},
        {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "x"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "x"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "x"},
        {"koordinator.sh/gpu-core": "x", "koordinator.sh/gpu-memory-ratio": "50"},
        {"tencent.com/vcuda-core": "x", "tencent.com/vcuda-memory": "8"},
        {"alnair/vgpu-memory": "x"},
        {"alnair/vgpu-memory": "4", "alnair/vgpu-compute": "x"},
    ],
)
def test_a_container_of_any_name_gets_its_sentence(name: str, limits: dict[str, str]) -> None:
    source = pod("p1", {"name": name, "resources": {"limits": limits}})

    reading = DIALECTS.read(pod_of(source))

    assert reading.request is None
    assert "'x'" in reading.request_error
    assert "report it" not in reading.request_error


@given(number=st.integers(0, 1 << 50), suffix=st.sampled_from(["", "k", "Ki", "Mi", "M"]))
def test_a_quantity_is_exact(number: int, suffix: str) -> None:
    factor = {"": 1, "k": 1000, "Ki": 1 << 10, "Mi": 1 << 20, "M": 10**6}[suffix]
    if number * factor >= 1 << 63:
        return

    assert whole_number(f"{number}{suffix}", "x") == number * factor


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e3", 1000), ("0.5Gi", 1 << 29), ("1.5k", 1500), ("1000m", 1), ("+2", 2), ("2.", 2), (7, 7)],
)
def test_all_forms_of_quantities_are_read(text: object, number: int) -> None:
    assert whole_number(text, "x") == number


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "-1", "1G i", "0x10", "1gi", "NaN", "1e99", "1m", "٣", None, True, 1.5, "9Ei"],
)
def test_a_quantity_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(InvalidRequestError, match="x is"):
        whole_number(text, "x")
