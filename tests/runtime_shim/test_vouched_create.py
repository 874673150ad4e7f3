# SPDX-License-Identifier: Apache-2.0
"""Containers of NVIDIA's own plugin beside ours: the create path before a kubelet's sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vgpu.kubelet import deviceplugin_v1beta1_pb2 as plugin_api
from vgpu.kubelet import podresources_v1_pb2 as resources_api

from runtime_shim.config import DevicePlugin, Policy
from runtime_shim.create import Creator
from runtime_shim.errors import RefusedError
from runtime_shim.identity import Identity
from runtime_shim.kubelet import Kubelet
from runtime_shim.spec import Spec
from runtime_shim.verdict import Verdict
from runtime_shim.voucher import Voucher
from tests.fakes.kubelet import FakeKubelet, running_kubelet
from tests.fakes.nvidia_plugin import NvidiaPlugin
from tests.runtime_shim.allocations import CARD, OTHER_CARD
from tests.runtime_shim.pods import MAIN, containerd_marks, pod_spec
from tests.runtime_shim.specs import bind
from tests.runtime_shim.test_agent import until
from tests.runtime_shim.test_create import Bundle, create
from tests.runtime_shim.test_create_in_pod import PodNode

GPU = "nvidia.com/gpu"
WHOLE = replace(MAIN, pod="whole", container_name="cuda", pod_uid=MAIN.pod_uid.replace("3", "4"))


class Site:
    """A node on which NVIDIA's plugin gives out whole cards."""

    def __init__(self, folder: Path, kubelet: FakeKubelet) -> None:
        self.folder = folder
        self.kubelet = kubelet
        self.node = PodNode(folder / "node", Policy())
        self.plugin = NvidiaPlugin(kubelet.plugins, [CARD, OTHER_CARD])
        self.use(DevicePlugin(kubelet_dir=kubelet.folder), Policy())

    def use(
        self, settings: DevicePlugin, policy: Policy, own: frozenset[str] = frozenset()
    ) -> None:
        node = self.node
        node.config = replace(node.config, policy=policy, device_plugin=settings)
        node.creator = Creator(
            node.config,
            cache=node.cache,
            claims=node.claims,
            store=node.store,
            regions=node.regions,
            inventory=node.inventory,
            calibration=node.calibration,
            host=node.host,
            counters=node.counters,
            pods=node.pods,
            voucher=Voucher(settings, Kubelet(self.kubelet.folder), own, node.inventory, node.host),
        )

    async def start(self, *devices: str, strategy: str = "envvar", resource: str = GPU) -> None:
        """Start NVIDIA's plugin."""
        self.plugin = NvidiaPlugin(
            self.kubelet.plugins,
            devices or [CARD, OTHER_CARD],
            strategy=strategy,
            resource=resource,
        )
        await self.plugin.start()
        await until(lambda: self.kubelet.healthy(resource))

    async def admit(
        self,
        count: int = 1,
        identity: Identity = WHOLE,
        resource: str = GPU,
        inits: tuple[str, ...] = (),
    ) -> Spec:
        """Admit a pod with whole cards; return the spec that the engine makes of it."""
        (container,) = (
            await self.kubelet.admit(
                identity.namespace,
                identity.pod,
                {identity.container_name: {resource: count}, "app": {}},
                uid=identity.pod_uid,
                inits=inits,
            )
        ).values()
        return spec_of(container[0], identity)

    async def admit_init(self) -> Spec:
        """Admit a pod whose ordinary init container has a whole card."""
        return await self.admit(inits=(WHOLE.container_name,))

    def written(self) -> Any:  # noqa: ANN401 - any JSON
        """Return what the container starts with."""
        return json.loads((self.folder / "bundle" / "config.json").read_text())

    async def create(self, spec: Spec) -> tuple[Verdict, bool]:
        """Create a container; return the verdict, and whether its bundle is as it was."""
        bundle = Bundle(self.folder / "bundle", spec)
        before = (bundle.folder / "config.json").read_bytes()
        verdict = await create(self.node, bundle)
        return verdict, (bundle.folder / "config.json").read_bytes() == before


def spec_of(given: plugin_api.ContainerAllocateResponse, identity: Identity = WHOLE) -> Spec:
    """Return what an engine makes of a plugin's answer, on a CUDA image."""
    spec = pod_spec(
        *(f"{name}={value}" for name, value in given.envs.items()),
        identity=identity,
        annotations={**containerd_marks(identity), **given.annotations},
    )
    spec["mounts"] += [bind(each.host_path, each.container_path) for each in given.mounts]
    return spec


@pytest.fixture
async def site(scratch: Path) -> AsyncIterator[Site]:
    async with running_kubelet(scratch / "kubelet") as kubelet:
        site = Site(scratch, kubelet)
        await site.node.start()
        site.node.answers.replace([])
        yield site
        await site.plugin.stop()
        await site.node.stop()


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "cdi-annotations"])
@pytest.mark.parametrize("names", [(CARD, OTHER_CARD), ("0", "1"), (f"{CARD}::0", f"{CARD}::1")])
async def test_a_whole_card_container_is_let_through_to_the_byte(
    site: Site, strategy: str, names: tuple[str, ...]
) -> None:
    await site.start(*names, strategy=strategy)

    verdict, unchanged = await site.create(await site.admit())

    assert unchanged
    # It only names its card: the launcher's gpu_runtime brings it, or says that it is missing.
    assert verdict.kind == "gpu"


def _with_nodes(spec: Spec, *minors: int) -> Spec:
    nodes = [(195, minor) for minor in (*minors, 255)]
    names = {255: "nvidiactl"}
    spec["linux"]["devices"] = [
        {
            "path": f"/dev/{names.get(minor, f'nvidia{minor}')}",
            "type": "c",
            "major": major,
            "minor": minor,
        }
        for major, minor in nodes
    ]
    spec["linux"]["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
        for major, minor in nodes
    ]
    return spec


async def test_a_container_that_has_its_nodes_needs_no_other_runtime(site: Site) -> None:
    await site.start()
    spec = _with_nodes(await site.admit(), 0)

    verdict, unchanged = await site.create(spec)

    assert (verdict.kind, unchanged) == ("low-level", True)


def _other_card(spec: Spec) -> None:
    spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={OTHER_CARD}")


def _every_card(spec: Spec) -> None:
    spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")


def _both_cards(spec: Spec) -> None:
    spec["mounts"].append(bind("/dev/null", f"/var/run/nvidia-container-devices/{OTHER_CARD}"))


def _other_node(spec: Spec) -> None:
    _with_nodes(spec, 0, 1)


def _wide_rule(spec: Spec) -> None:
    _with_nodes(spec, 0)["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": 195, "minor": -1, "access": "rwm"}
    )


def _cdi_device(spec: Spec) -> None:
    spec["annotations"]["cdi.k8s.io/mine"] = "nvidia.com/gpu=1"


def _bound_node(spec: Spec) -> None:
    spec["mounts"].append(bind("/dev/nvidia1", "/tmp/gpu"))


@pytest.mark.parametrize(
    "widen",
    [_other_card, _every_card, _both_cards, _other_node, _wide_rule, _cdi_device, _bound_node],
)
async def test_who_reaches_for_more_than_the_kubelet_gave_sees_nothing(
    site: Site, widen: Callable[[Spec], None]
) -> None:
    await site.start()
    spec = await site.admit()
    widen(spec)

    verdict, _ = await site.create(spec)

    assert verdict.kind == "low-level"
    seen = site.written()
    assert [each for each in seen["process"]["env"] if "VISIBLE" in each] == [
        "NVIDIA_VISIBLE_DEVICES=void"
    ]


async def test_an_init_container_that_is_not_listed_is_found_in_the_kubelets_record(
    site: Site,
) -> None:
    await site.start()

    verdict, unchanged = await site.create(await site.admit_init())

    assert (verdict.kind, unchanged) == ("gpu", True)


async def test_an_init_container_that_reaches_for_another_card_sees_nothing(site: Site) -> None:
    await site.start()
    spec = await site.admit_init()
    _other_card(spec)

    assert not (await site.create(spec))[1]


async def test_what_an_earlier_pod_of_the_name_had_in_the_record_is_not_this_one_s(
    site: Site,
) -> None:
    await site.start()
    spec = await site.admit_init()
    site.kubelet.entries[0]["PodUID"] = MAIN.pod_uid
    site.kubelet.write_record()

    assert not (await site.create(spec))[1]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "cannot read"),
        ("{", "has a form that is not known here"),
        ("[]", "has a form that is not known here"),
        ('{"Data": {"PodDeviceEntries": [{"PodUID": "x"}]}}', "has a form that is not known here"),
        pytest.param("[" * 100_000, "has a form that is not known here", id="deep"),
    ],
)
async def test_a_record_that_cannot_be_read_is_said_and_no_card_is_hidden(
    site: Site, record: str | None, words: str
) -> None:
    await site.start()
    spec = await site.admit_init()
    if record is None:
        site.kubelet.record.unlink()
    else:
        site.kubelet.record.write_text(record)

    verdict, unchanged = await site.create(spec)

    assert (verdict.kind, unchanged) == ("refuse", True)
    assert words in verdict.message


@pytest.mark.parametrize(
    "identity",
    [
        replace(WHOLE, pod="thief"),
        replace(WHOLE, namespace="team-b"),
        replace(WHOLE, container_name="side"),
    ],
    ids=["pod", "namespace", "container"],
)
async def test_another_container_with_the_same_names_sees_nothing(
    site: Site, identity: Identity
) -> None:
    await site.start()
    await site.admit()
    spec = pod_spec(f"NVIDIA_VISIBLE_DEVICES={CARD}", identity=identity)

    verdict, unchanged = await site.create(spec)

    assert (verdict.kind, unchanged) == ("low-level", False)


async def test_an_image_that_names_every_card_asks_the_kubelet_nothing(site: Site) -> None:
    await site.start()
    await site.kubelet.admit(WHOLE.namespace, WHOLE.pod, {WHOLE.container_name: {}})

    verdict, unchanged = await site.create(pod_spec("NVIDIA_VISIBLE_DEVICES=all", identity=WHOLE))

    assert (verdict.kind, unchanged, site.kubelet.lists) == ("low-level", False, 0)


async def test_a_number_of_another_resource_is_no_card(site: Site) -> None:
    await site.start("0", "1", resource="nvidia.com/imex-channel")
    spec = await site.admit(resource="nvidia.com/imex-channel")

    _, unchanged = await site.create(spec)

    assert not unchanged


async def test_a_resource_that_is_configured_vouches_too(site: Site) -> None:
    site.use(
        DevicePlugin(
            kubelet_dir=site.kubelet.folder, whole_card_resources=("nvidia.com/gpu.shared",)
        ),
        Policy(),
    )
    await site.start(f"{CARD}::0", resource="nvidia.com/gpu.shared")

    _, unchanged = await site.create(await site.admit(resource="nvidia.com/gpu.shared"))

    assert unchanged


async def test_our_own_resource_does_not_vouch_whatever_its_name(site: Site) -> None:
    settings = DevicePlugin(
        kubelet_dir=site.kubelet.folder, dialects=("hami",), claim_bare_gpu=True
    )
    site.use(settings, Policy(), own=frozenset({GPU}))
    await site.start()

    _, unchanged = await site.create(await site.admit())

    assert not unchanged


async def test_a_card_that_the_driver_has_lost_still_vouches_by_its_uuid(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    site.node.inventory.judge({CARD: "Xid 79"})

    _, unchanged = await site.create(spec)

    assert unchanged


@pytest.mark.parametrize("place", ["run", "run/containers", "state", "."])
async def test_no_vouched_container_gets_at_the_files_of_others(site: Site, place: str) -> None:
    """Who has a whole card of another plugin could change every other container's limits."""
    await site.start()
    spec = await site.admit()
    spec["mounts"].append(bind(str(site.node.folder / place), "/host"))

    verdict, unchanged = await site.create(spec)

    assert (verdict.kind, unchanged) == ("refuse", True)
    assert "leads to the files that hold containers to their slices" in verdict.message


async def test_a_pod_that_the_node_s_rules_name_may_have_everything(site: Site) -> None:
    site.use(
        DevicePlugin(kubelet_dir=site.kubelet.folder),
        Policy(unmanaged_allow=("team-a/whole",)),
    )
    spec = pod_spec("NVIDIA_VISIBLE_DEVICES=all", identity=WHOLE)
    spec["mounts"].append(bind(str(site.node.folder), "/host"))

    verdict, unchanged = await site.create(spec)

    # NVIDIA's runtime brings what the spec only names.
    assert (verdict.kind, unchanged, site.kubelet.lists) == ("gpu", True, 0)


@pytest.mark.parametrize("variables", [(), ("NVIDIA_VISIBLE_DEVICES=void",)])
async def test_a_pod_that_the_node_s_rules_name_and_that_names_no_card_needs_no_other_runtime(
    site: Site, variables: tuple[str, ...]
) -> None:
    site.use(
        DevicePlugin(kubelet_dir=site.kubelet.folder),
        Policy(unmanaged_allow=("team-a/whole",)),
    )

    verdict, unchanged = await site.create(pod_spec(*variables, identity=WHOLE))

    assert (verdict.kind, unchanged) == ("low-level", True)


async def test_where_everybody_is_let_in_nobody_gets_at_the_files_of_others(site: Site) -> None:
    site.use(DevicePlugin(kubelet_dir=site.kubelet.folder), Policy(unmanaged="allow"))
    spec = pod_spec("NVIDIA_VISIBLE_DEVICES=all", identity=WHOLE)
    assert (await site.create(spec))[1]
    spec["mounts"].append(bind(str(site.node.folder / "run"), "/host"))

    verdict, _ = await site.create(spec)

    assert verdict.kind == "refuse"


async def test_a_kubelet_that_is_away_for_a_moment_is_waited_for(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    pods = dict(site.kubelet.pods)
    await site.kubelet.stop()

    creation = asyncio.create_task(site.create(spec))
    await asyncio.sleep(0.3)
    await site.kubelet.start()
    site.kubelet.pods = pods

    _, unchanged = await creation
    assert unchanged


async def test_a_kubelet_that_stays_away_is_said_and_nothing_is_hidden(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    await site.kubelet.stop()

    verdict, unchanged = await site.create(spec)

    assert (verdict.kind, unchanged) == ("refuse", True)
    assert "cannot ask the kubelet whose its GPUs are" in verdict.message
    assert site.node.counters.refusals["kubelet"] == 1


async def test_an_answer_that_is_no_message_is_a_refusal_and_no_end(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    site.kubelet.answer = lambda _: b"\xff\xff\xff\xff garbage"

    verdict, _ = await site.create(spec)
    assert verdict.kind == "refuse"
    assert "is not readable" in verdict.message

    site.kubelet.answer = lambda response: response.SerializeToString()
    assert (await site.create(spec))[1]


async def test_a_pod_that_the_kubelet_lists_late_is_waited_for(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    pods = dict(site.kubelet.pods)
    site.kubelet.pods.clear()

    creation = asyncio.create_task(site.create(spec))
    await until(lambda: site.kubelet.lists >= 2)
    site.kubelet.pods = pods

    assert (await creation)[1]


async def test_creates_at_the_same_time_share_a_question(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    voucher = site.node.creator._voucher
    assert voucher is not None

    answers = await asyncio.gather(*(voucher.vouches(WHOLE, spec, 4.0) for _ in range(50)))

    assert all(answers)
    assert site.kubelet.lists <= 2


async def test_a_kubelet_that_hangs_is_not_asked_by_one_after_the_other(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    site.kubelet.silent = True
    voucher = site.node.creator._voucher
    assert voucher is not None

    answers = await asyncio.gather(
        *(voucher.vouches(WHOLE, spec, 4.0) for _ in range(50)), return_exceptions=True
    )

    assert all(isinstance(each, RefusedError) for each in answers)
    assert site.kubelet.lists <= 8


def ending(*devices_ids: str) -> resources_api.PodResources:
    devices = [resources_api.ContainerDevices(resource_name=GPU, device_ids=devices_ids)]
    container = resources_api.ContainerResources(name=WHOLE.container_name, devices=devices)
    return resources_api.PodResources(
        namespace=WHOLE.namespace, name=WHOLE.pod, containers=[container]
    )


@pytest.mark.parametrize("last", [True, False])
async def test_a_pod_has_no_cards_of_an_earlier_one_of_its_name(site: Site, last: bool) -> None:
    """A StatefulSet's pod that was deleted by force, and its successor that asks for no card."""
    await site.start()
    spec = await site.admit(count=0)
    spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={CARD}")
    site.kubelet.ending = [ending(CARD)]
    if last:  # the answer's order says nothing
        site.kubelet.pods.clear()
        site.kubelet.ending.insert(0, ending())

    verdict, unchanged = await site.create(spec)

    assert (verdict.kind, unchanged) == ("refuse", True)
    assert "it lists two pods of this name" in verdict.message


async def test_nor_has_its_init_container_which_is_not_listed(site: Site) -> None:
    await site.start()
    spec = await site.admit(count=0, inits=(WHOLE.container_name,))
    spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={CARD}")
    site.kubelet.ending = [ending(CARD)]

    verdict, unchanged = await site.create(spec)

    assert (verdict.kind, unchanged) == ("refuse", True)
    assert "it lists two pods of this name" in verdict.message


async def test_it_has_its_own_once_that_one_is_gone(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    site.kubelet.ending = [ending(OTHER_CARD)]

    creation = asyncio.create_task(site.create(spec))
    await until(lambda: site.kubelet.lists > 1)
    site.kubelet.ending.clear()

    assert (await creation)[1]


async def test_a_pod_that_has_taken_over_a_name_is_not_vouched_for_by_it(site: Site) -> None:
    await site.start()
    spec = await site.admit()
    assert (await site.create(spec))[1]

    site.kubelet.pods[WHOLE.namespace, WHOLE.pod] = {WHOLE.container_name: {}}

    assert not (await site.create(spec))[1]
