# SPDX-License-Identifier: Apache-2.0
"""The examples of deploy/examples as they are written, on a node that is ours.

Only image, command and scheduler are changed: the images are in no registry here, and the systems
whose schedulers they name are the ones that are replaced.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest

from tests.deploy.examples import EXAMPLES, example_pods
from tests.e2e.namespace import Namespace, allocation
from tests.e2e.plugins import bare_gpu_claimed
from tests.e2e.pods import PROBE, STAY, Json
from tests.e2e.slices import sees_its_slice
from tests.testbed.kubernetes.cluster import CARD_BYTES, PROBE_IMAGE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MIB = 1 << 20
# What each container of the examples has of each of its cards, which have 8 GiB: bytes, percent.
# The native ones are made for larger cards.
EXPECTED = {
    "volcano.yaml": {"worker": [(3000 * MIB, 50)] * 2},
    "hami.yaml": {"train": [(3000 * MIB, 30)], "infer": [(CARD_BYTES // 2, 20)]},
    "koordinator.yaml": {"main": [(CARD_BYTES // 2, 50)] * 2},
    "kai.yaml": {"main": [(4050 * MIB, 100)], "worker": [(4096 * MIB, 100)] * 2},
    "gpu-manager.yaml": {"main": [(10 * 256 * MIB, 30)]},
    "alnair.yaml": {"main": [(3 << 30, 40)]},
}


@pytest.mark.parametrize("file", EXPECTED)
async def test_an_example_of_another_system_runs_with_its_slice(
    namespace: Namespace, file: str
) -> None:
    claimed = bare_gpu_claimed(namespace.cluster) if file == "hami.yaml" else nullcontext()
    async with claimed:
        pods = [runnable(item) for item in example_pods(EXAMPLES / file)]
        await namespace.create(*pods)

        items = await namespace.running(*(item["metadata"]["name"] for item in pods))

        found = {}
        for item in items:
            for name, slices in allocation(item).items():
                cards = await sees_its_slice(namespace, item, name)
                assert len(set(cards)) == len(slices)
                found[name] = [(each["memory_bytes"], each["cores_percent"]) for each in slices]
        assert found == EXPECTED[file]
        await namespace.clear()


def runnable(item: Json) -> Json:
    """Return a pod whose containers run the probe here, under whatever scheduler we name."""
    found = copy.deepcopy(item)
    metadata, spec = found["metadata"], found["spec"]
    for key in ("namespace", "uid"):
        del metadata[key]
    for key in ("schedulerName", "priorityClassName"):
        spec.pop(key, None)
    spec.update(automountServiceAccountToken=False, terminationGracePeriodSeconds=5)
    for each in spec["containers"]:
        each.update(image=PROBE_IMAGE, command=["/bin/sh", "-c", f"{PROBE}; {STAY}"])
        each.pop("args", None)
    return {"apiVersion": "v1", **found}
