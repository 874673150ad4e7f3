# SPDX-License-Identifier: Apache-2.0
"""What no container keeps, and what it keeps although it looks similar."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim.errors import RefusedError
from runtime_shim.spec import (
    Spec,
    device_rules,
    devices,
    env_entries,
    environment,
    mount_item,
    mounts,
)
from runtime_shim.strip import DENIABLE, VGPU_MOUNT, allows_all_devices, strip_gpu
from tests.runtime_shim.specs import bind, plain_spec

LIBRARY = "/dev/vgpu/libvgpu.so"
UVM = 234


def strip(spec: Spec, library: str | None = LIBRARY) -> Spec:
    return strip_gpu(spec, library=library, majors={195, UVM})[0]


def rule(access: str = "rwm", allow: bool = True, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"allow": allow, "access": access, **fields}


@pytest.mark.parametrize(
    "entry",
    [
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_VISIBLE_DEVICES",
        "DOCKER_RESOURCE_GPU=all",
        "DOCKER_RESOURCE_NVIDIA-GPU=0",
        "NVIDIA_IMEX_CHANNELS=0",
        "NVIDIA_GDS=enabled",
        "NVIDIA_MOFED=enabled",
        "NVIDIA_GDRCOPY=enabled",
        "NVIDIA_NVSWITCH=enabled",
        "NVIDIA_MIG_CONFIG_DEVICES=all",
        "NVIDIA_MIG_MONITOR_DEVICES=all",
        "CUDA_DEVICE_MEMORY_LIMIT=80g",
        "CUDA_DEVICE_MEMORY_LIMIT_0=80g",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/x",
        "CUDA_DEVICE_SM_LIMIT=100",
        "CUDA_DISABLE_CONTROL=true",
        "CUDA_OVERSUBSCRIBE=true",
        "GPU_CORE_UTILIZATION_POLICY=disable",
        "VGPU_MEMORY=1Gi",
        "VGPU_MODEL=H100",
        "VGPU_WEIGHT=1000",
        "VGPU_LOG=debug",
    ],
)
def test_a_variable_that_widens_a_slice_is_removed(entry: str) -> None:
    stripped, removed = strip_gpu(plain_spec(entry), library=None)

    assert env_entries(stripped) == ["PATH=/bin"]
    assert [repr(entry) in sentence for sentence in removed] == [True]


@pytest.mark.parametrize(
    "entry",
    [
        "NVIDIA_DRIVER_CAPABILITIES=all",
        "NVIDIA_REQUIRE_CUDA=cuda>=12.0",
        "CUDA_VISIBLE_DEVICES=0",
        "CUDA_VERSION=12.4",
        "nvidia_visible_devices=all",
        "MY_VGPU_MEMORY=1",
        "DOCKER_RESOURCE_SSD=1",
        "VGPU_CONTAINER_UUID=3d2a8f5e-7c1b-4a68-9f0e-2b6d4c8e1a55",
        "LD_LIBRARY_PATH=/usr/local/cuda/compat",
        "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=0",
        "BARE",
    ],
)
def test_a_harmless_variable_stays(entry: str) -> None:
    stripped, removed = strip_gpu(plain_spec(entry), library=LIBRARY)

    assert env_entries(stripped) == ["PATH=/bin", entry]
    assert removed == []


def test_of_two_container_uuids_the_last_stays_as_it_is_the_one_that_counts() -> None:
    spec = plain_spec("VGPU_CONTAINER_UUID=a", "VGPU_CONTAINER_UUID=b")

    assert env_entries(strip(spec)) == ["PATH=/bin", "VGPU_CONTAINER_UUID=b"]


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("libcuda.so.1", f"{LIBRARY}:libcuda.so.1"),
        ("/a.so:/b.so", f"{LIBRARY}:/a.so:/b.so"),
        (f"/a.so {LIBRARY}", f"{LIBRARY}:/a.so {LIBRARY}"),
        (f"{LIBRARY} /a.so", f"{LIBRARY} /a.so"),
        ("", ""),
    ],
)
def test_the_library_comes_before_the_images_own_preloads(value: str, want: str) -> None:
    assert environment(strip(plain_spec(f"LD_PRELOAD={value}")))["LD_PRELOAD"] == want


def test_without_a_library_loader_variables_stay_as_they_are() -> None:
    spec = plain_spec("LD_PRELOAD=/a.so", "LD_AUDIT=/b.so")

    assert strip(spec, library=None) == spec


def test_an_audit_library_goes_since_it_may_rebind_any_symbol() -> None:
    assert env_entries(strip(plain_spec("LD_AUDIT=/b.so"))) == ["PATH=/bin"]


@pytest.mark.parametrize(
    "mount",
    [
        bind("/dev/null", "/var/run/nvidia-container-devices/all"),
        bind("/dev/null", "/run/nvidia-container-devices/GPU-1"),
        bind("/dev/null", "/var/run/../run//nvidia-container-devices/./all"),
        bind("/dev/null", "var/run/nvidia-container-devices/all"),
        bind("/dev/nvidia0", "/dev/nvidia0"),
        bind("/dev/nvidia0", "/dev/harmless"),
        bind("/dev/nvidia-caps", "/caps"),
        bind("/dev/./nvidia0", "/x"),
        bind("/x", "/dev/nvidia0"),
        bind("/dev", "/host/dev"),
        bind("/dev/", "/host/dev"),
        {"destination": "/host/dev", "type": "devtmpfs", "source": "x"},
        bind("/opt/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        bind("/opt/libnvidia-ml.so", "/usr/lib64/libnvidia-ml.so"),
        {"destination": "/dev/nvidia1", "type": "none", "source": "x", "options": ["bind"]},
    ],
)
def test_a_mount_that_leads_to_a_gpu_is_removed(mount: dict[str, Any]) -> None:
    stripped, removed = strip_gpu(plain_spec(mounts=[mount]), library=LIBRARY)

    assert mounts(stripped) == mounts(plain_spec())
    assert len(removed) == 1


@pytest.mark.parametrize(
    "mount",
    [
        bind("/srv/nvidia0", "/data"),
        bind("/dev/fuse", "/dev/fuse"),
        bind("/dev/shm", "/dev/shm"),
        bind("/opt/libcudart.so.12", "/usr/lib/libcudart.so.12"),
        bind("/opt/my.so", "/usr/lib/libmy_nvidia_notes.txt"),
        {"destination": "/data", "type": "tmpfs", "source": "/dev/nvidia0"},
    ],
)
def test_another_mount_stays(mount: dict[str, Any]) -> None:
    spec = plain_spec(mounts=[mount])

    assert strip_gpu(spec, library=LIBRARY) == (spec, [])


@pytest.mark.parametrize(
    "mount",
    [
        bind("/tmp/x", "/dev/vgpu"),
        {"destination": "/dev/vgpu", "type": "tmpfs", "source": "tmpfs"},
        {**mount_item(VGPU_MOUNT), "options": ["rw"]},
        bind("/run/vgpu/containers/other", "/dev/vgpu"),
        bind("/tmp/x", "/dev/vgpu/limits"),
        bind("/tmp/x", "/dev/../dev/vgpu//limits"),
        bind("/run/vgpux/limits", "/dev/vgpu/limits"),
        {"destination": "/dev/vgpu/limits", "type": "tmpfs", "source": "/run/vgpu/x"},
    ],
)
def test_a_foreign_mount_at_our_place_is_refused(mount: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="covers the place of the vgpu library"):
        strip(plain_spec(mounts=[mount]))


def test_what_an_earlier_create_mounted_is_removed() -> None:
    ours = [
        mount_item(VGPU_MOUNT),
        bind("/usr/lib/vgpu/0.0.9/libvgpu.so", "/dev/vgpu/libvgpu.so"),
        bind("/run/vgpu/containers/1/limits", "/dev/vgpu/limits"),
        bind("/run/vgpu/containers/1/ld.so.preload", "/etc/ld.so.preload"),
    ]

    assert mounts(strip(plain_spec(mounts=ours))) == mounts(plain_spec())


@pytest.mark.parametrize(
    "node",
    [
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
        {"path": "/dev/innocent", "type": "c", "major": 195, "minor": 0},
        {"path": "/dev/innocent", "type": "u", "major": UVM, "minor": 0},
        {"path": "/dev/nvidia-caps/nvidia-cap1", "type": "c", "major": 511, "minor": 1},
        {"path": "/dev/../dev/nvidiactl", "type": "c", "major": 1, "minor": 3},
    ],
)
def test_a_gpus_device_node_is_removed(node: dict[str, Any]) -> None:
    assert devices(strip(plain_spec(devices=[node]))) == []


@pytest.mark.parametrize(
    "node",
    [
        {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
        {"path": "/dev/disk", "type": "b", "major": 195, "minor": 0},
    ],
)
def test_another_device_node_stays(node: dict[str, Any]) -> None:
    assert devices(strip(plain_spec(devices=[node]))) == [node]


def test_a_granted_node_and_its_rule_are_kept() -> None:
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    spec = plain_spec(devices=[node], rules=[rule(type="c", major=195, minor=0)])

    assert strip_gpu(spec, library=None, keep={(195, 0)}) == (spec, [])


@pytest.mark.parametrize(
    "entry",
    [
        rule(),
        rule(type="a"),
        rule(type="c"),
        rule("rw", type="c", major=-1, minor=-1),
        rule("r", type="c", major=None, minor=0),
        rule("w", type="c", major=195),
        rule(type="c", major=195, minor=3),
        rule(type="u", major=UVM, minor=0),
        rule("m", type="a"),
        rule("m"),
        rule("m", type=""),
        rule("m", type="x", major=1, minor=3),
        rule("m", type="a", major=1, minor=3),
        rule(type="a", major=1, minor=3),
        rule(major=1, minor=3),
        rule("M", type="c"),
        rule(type="a", major=195, minor=0),
        {"allow": True, "type": "c", "major": 195, "minor": 0},
        {"allow": True, "type": "c", "major": 195, "minor": 0, "access": ""},
    ],
)
def test_a_device_rule_that_opens_a_gpu_is_removed(entry: dict[str, Any]) -> None:
    stripped, removed = strip_gpu(plain_spec(rules=[entry]), library=None, majors={195, UVM})

    assert device_rules(stripped) == device_rules(plain_spec())
    assert len(removed) == 1


@pytest.mark.parametrize(
    "entry",
    [
        rule("m", type="c", major=-1, minor=-1),
        rule("m", type="c"),
        rule("rwm", type="b"),
        rule(type="c", major=10, minor=229),
        rule(allow=False, type="c", major=195),
    ],
)
def test_another_device_rule_stays(entry: dict[str, Any]) -> None:
    spec = plain_spec(rules=[entry])

    assert strip_gpu(spec, library=None, majors={195, UVM}) == (spec, [])


def test_a_rule_for_all_devices_is_no_granted_one_whatever_its_numbers() -> None:
    spec = plain_spec(rules=[rule(type="a", major=195, minor=0)])

    stripped, removed = strip_gpu(spec, library=None, keep={(195, 0)})

    assert device_rules(stripped) == device_rules(plain_spec())
    assert removed == ["device rule 'a 195:0 rwm' opens GPUs"]


def test_without_any_rule_everything_is_denied_since_crun_would_set_no_filter() -> None:
    spec = plain_spec()
    del spec["linux"]["resources"]

    assert device_rules(strip(spec)) == [{"allow": False, "access": "rwm"}]


@pytest.mark.parametrize("name", ["DeviceAllow", "DevicePolicy"])
def test_a_property_of_systemd_that_opens_devices_goes_and_others_stay(name: str) -> None:
    others = {"org.systemd.property.TimeoutStopUSec": "uint64 1"}
    spec = plain_spec(annotations={**others, f"org.systemd.property.{name}": "'auto'"})

    stripped, removed = strip_gpu(spec, library=None)

    assert stripped["annotations"] == others
    assert len(removed) == 1
    assert name in removed[0]
    with pytest.raises(RefusedError, match=name):
        strip_gpu(spec, library=None, deny=["device_rules"])


@pytest.mark.parametrize("domain", ["cdi.k8s.io", "nvidia.cdi.k8s.io", "a.b.cdi.k8s.io"])
def test_cdi_annotations_go_and_others_stay(domain: str) -> None:
    """NVIDIA's runtime obeys the prefixes that it is configured with: the GPU operator's, say."""
    others = {"cdi.k8s.ioX": "1", "xcdi.k8s.io/x": "1", "cdi.k8s.io": "1"}
    spec = plain_spec(annotations={f"{domain}/x": "nvidia.com/gpu=all", **others})

    assert strip(spec)["annotations"] == others


@pytest.mark.parametrize(
    ("rules", "all_allowed"),
    [
        ([], False),
        ([rule()], True),
        ([rule(type="c", major=-1)], True),
        ([rule("m", type="c")], False),
        ([rule("m", type="a")], True),
        ([rule("m")], True),
        ([rule(type="a", major=1, minor=3)], True),
        ([rule("r", type="a", major=1, minor=3)], True),
        ([rule("w", type="c")], True),
        ([rule(), rule(allow=False)], False),
        ([rule(), rule(allow=False, type="a", major=1, minor=3)], True),
        ([rule(), rule("m", allow=False)], True),
        ([rule(type="b")], False),
    ],
)
def test_whether_every_device_is_allowed(rules: list[dict[str, Any]], all_allowed: bool) -> None:
    assert allows_all_devices(plain_spec(rules=rules)) is all_allowed


TRICKS = st.lists(
    st.sampled_from(
        [
            ("env", "NVIDIA_VISIBLE_DEVICES=all"),
            ("env", "LD_PRELOAD=libcuda.so.1"),
            ("env", "LD_AUDIT=/x"),
            ("env", "VGPU_CONTAINER_UUID=a"),
            ("mount", bind("/dev/nvidia0", "/x")),
            ("mount", bind("/run/vgpu/1/limits", "/dev/vgpu/limits")),
            ("rule", rule()),
            ("rule", rule(type="c", major=195)),
            ("rule", rule(allow=False)),
            ("device", {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}),
        ]
    )
)


@given(tricks=TRICKS)
def test_stripping_twice_changes_nothing_and_says_nothing(tricks: list[tuple[str, Any]]) -> None:
    def pick(kind: str) -> list[Any]:
        return [value for of, value in tricks if of == kind]

    spec = plain_spec(
        *pick("env"), mounts=pick("mount"), rules=pick("rule"), devices=pick("device")
    )

    once = strip(spec)

    assert strip_gpu(once, library=LIBRARY, majors={195, UVM}) == (once, [])
    assert not allows_all_devices(once)


NVIDIA_DRM = frozenset({(226, 1), (226, 129)})


@pytest.mark.parametrize(
    ("entry", "stays"),
    [
        ({"type": "c", "major": 226, "minor": 1}, False),
        ({"type": "c", "major": 226, "minor": 129, "access": "r"}, False),
        ({"type": "c", "major": 226}, False),
        ({"type": "c", "major": 226, "minor": -1}, False),
        ({"type": "c", "major": 226, "minor": 0}, True),
        ({"type": "c", "major": 226, "minor": 1, "access": "m"}, True),
        ({"type": "c", "major": 10, "minor": 1}, True),
    ],
)
def test_a_rule_for_a_card_s_drm_node_goes_and_others_stay(
    entry: dict[str, Any], stays: bool
) -> None:
    spec = plain_spec(rules=[rule(**{"access": "rwm", **entry})])

    stripped, removed = strip_gpu(spec, library=None, drm=NVIDIA_DRM)

    assert (stripped == spec) is stays
    assert bool(removed) is not stays


def test_a_card_s_drm_node_goes_and_another_s_stays() -> None:
    nodes = [
        {"path": f"/dev/dri/{name}", "type": "c", "major": 226, "minor": minor}
        for name, minor in (("card0", 0), ("card1", 1), ("x", 129), ("renderD128", 128))
    ]

    stripped, removed = strip_gpu(plain_spec(devices=nodes), library=None, drm=NVIDIA_DRM)

    assert [node["minor"] for node in devices(stripped)] == [0, 128]
    assert removed == [
        "device '/dev/dri/card1' is a GPU's",
        "device '/dev/dri/x' is a GPU's",
    ]


HOSTILE = {
    "audit": plain_spec("LD_AUDIT=/x.so"),
    "cdi": plain_spec(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    "device_lists": plain_spec(mounts=[bind("/dev/null", "/run/nvidia-container-devices/all")]),
    "device_mounts": plain_spec(mounts=[bind("/dev/nvidia0", "/dev/nvidia0")]),
    "device_nodes": plain_spec(
        devices=[{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]
    ),
    "device_rules": plain_spec(rules=[rule(type="c", major=195, minor=0)]),
    "driver_files": plain_spec(mounts=[bind("/x/libcuda.so.1", "/usr/lib/libcuda.so.1")]),
    "hooks": {
        **plain_spec(),
        "hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]},
    },
}


@pytest.mark.parametrize("kind", sorted(DENIABLE))
def test_a_node_may_refuse_what_it_would_take_out(kind: str) -> None:
    hidden, removed = strip_gpu(HOSTILE[kind], library=LIBRARY)
    assert hidden != HOSTILE[kind]
    (sentence,) = removed

    with pytest.raises(RefusedError) as caught:
        strip_gpu(HOSTILE[kind], library=LIBRARY, deny=(kind,))

    assert caught.value.reason == sentence
    assert f"take {kind!r} out of policy.deny" in caught.value.remedy
    others = DENIABLE - {kind}
    assert strip_gpu(HOSTILE[kind], library=LIBRARY, deny=others) == (hidden, removed)
