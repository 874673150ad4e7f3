# SPDX-License-Identifier: Apache-2.0
"""One pod on the real cluster: admitted, scheduled, started, limited, told of, ended."""

from __future__ import annotations

import json

import pytest

from tests.e2e.namespace import Namespace, allocation, until
from tests.e2e.pods import STAY, container, limits, pod
from tests.e2e.slices import sees_its_slice

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.e2e_quick
async def test_a_pod_sees_its_slice_and_nothing_else(namespace: Namespace) -> None:
    await namespace.create(pod("one", container(asked=limits("2Gi", cores=30))))

    [item] = await namespace.running("one")

    cards = await sees_its_slice(namespace, item)
    assert len(cards) == 1
    assert allocation(item)["main"][0]["memory_bytes"] == 2 << 30
    assert allocation(item)["main"][0]["cores_percent"] == 30
    assert item["spec"]["runtimeClassName"] == "vgpu"


async def test_an_exec_session_is_limited_too(namespace: Namespace) -> None:
    await namespace.create(pod("one"))
    [item] = await namespace.running("one")

    seen = json.loads(await namespace.exec("one", "main", "vgpu-probe", "--until-refused", "64m"))

    # What the first probe took has gone with it.
    assert seen["words"][0]["bytes"] == 1 << 30
    assert [each["uuid"] for each in seen["devices"]] == [allocation(item)["main"][0]["card"]]


async def test_two_cards_of_one_container(namespace: Namespace) -> None:
    await namespace.create(pod("one", container(asked=limits("3Gi", count=2))))

    [item] = await namespace.running("one")

    assert len(set(await sees_its_slice(namespace, item))) == 2


async def test_a_restarted_container_has_its_cards_again(namespace: Namespace) -> None:
    script = (
        f"vgpu-probe --until-refused 64m; [ -e /stay/here ] || {{ >/stay/here; exit 1; }}; {STAY}"
    )
    stay = {"name": "stay", "mountPath": "/stay"}
    await namespace.create(
        pod(
            "one",
            container(asked=limits(), script=script, volumeMounts=[stay]),
            volumes=[{"name": "stay", "emptyDir": {}}],
        )
    )

    async def restarted() -> bool:
        item = await namespace.pod("one")
        return any(each["restartCount"] for each in item["status"].get("containerStatuses", ()))

    await until(restarted, "the container is restarted")
    [item] = await namespace.running("one")

    await sees_its_slice(namespace, item)


async def test_a_pod_without_a_gpu_is_left_alone(namespace: Namespace) -> None:
    script = f"env; ls /dev; {STAY}"
    await namespace.create(pod("plain", container(script=script)))

    [item] = await namespace.running("plain")

    text = await namespace.log("plain")
    assert "NVIDIA" not in text
    assert "VGPU_CONTAINER_UUID" not in text
    assert not [line for line in text.splitlines() if line.startswith(("nvidia", "vgpu"))]
    assert "runtimeClassName" not in item["spec"]


async def test_what_isolates_a_container_is_told(namespace: Namespace) -> None:
    await namespace.create(pod("one"))
    await namespace.running("one")

    async def told() -> bool:
        marks = (await namespace.pod("one"))["metadata"]["annotations"]
        return "enforced" in marks.get("vgpu.dev/isolation", "")

    await until(told, "the pod says that its limit is enforced")
