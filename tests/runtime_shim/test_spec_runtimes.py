# SPDX-License-Identifier: Apache-2.0
"""Real runc and crun start what the edits make of a spec, and see it as it is meant."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime_shim.bundle import Bundle as ConfigFile
from runtime_shim.rootfs import inspect_rootfs, merge_preload
from runtime_shim.spec import ContainerEdits, DeviceNode, Mount, apply_edits
from runtime_shim.strip import strip_gpu
from tests.testbed.node import cgroup_words
from tests.testbed.oci import Bundle, OciRuntime
from tests.testbed.rootfs import build_rootfs

LIBRARY = "/dev/vgpu/libvgpu.so"

Run = Callable[[str], list[str]]


@pytest.fixture(params=["runc", "crun"])
def runtime(request: pytest.FixtureRequest, scratch: Path, needs_root: None) -> OciRuntime:
    """Return a real runtime with a state folder of its own."""
    found = shutil.which(request.param, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    assert found is not None, f"{request.param} is not installed: run `make setup`"
    options, prefix = cgroup_words(request.param)
    return OciRuntime(Path(found), scratch / "state", options=options, prefix=prefix)


@pytest.fixture
def bundle(scratch: Path) -> Bundle:
    """Return a bundle that tries to get at every GPU, with a read-only root."""
    rootfs = build_rootfs(scratch / "template", loader="none")
    env = {"NVIDIA_VISIBLE_DEVICES": "all", "LD_PRELOAD": "libcuda.so.1", "VGPU_MEMORY": "1Gi"}
    bundle = Bundle.create(scratch / "b", rootfs, [], env, mounts=[(Path("/dev/null"), "/x")])
    bundle.spec["root"]["readonly"] = True
    bundle.spec["linux"]["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": -1, "minor": -1, "access": "m"},
        {"allow": True, "type": "c", "major": -1, "minor": -1, "access": "rwm"},
    ]
    bundle.spec["futureField"] = {"kept": [2**63 - 1, None]}
    return bundle


@pytest.fixture
def run(runtime: OciRuntime, bundle: Bundle, scratch: Path) -> Run:
    """Return what edits the bundle, runs a script in it and returns the lines it printed."""

    def run(script: str) -> list[str]:
        bundle.spec["process"]["args"] = ["/bin/sh", "-c", script]
        bundle.write()
        edit(bundle.directory, scratch / "files")
        return runtime.run(bundle, "c1").splitlines()

    return run


def edit(directory: Path, files: Path) -> None:
    """Edit a bundle as the agent does, with files and a device that stand for the real ones."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        config = ConfigFile(fd)
        spec, _ = strip_gpu(config.read(), library=LIBRARY, own_folders=(str(files),))
        facts = inspect_rootfs(fd, spec)
        assert facts.preload_objection is None
        files.mkdir(exist_ok=True)
        (files / "library").write_text("library\n")
        (files / "preload").write_bytes(merge_preload(LIBRARY, facts.preload))
        edits = ContainerEdits(
            env={"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
            mounts=[
                Mount(destination=LIBRARY, source=str(files / "library")),
                Mount(destination="/etc/ld.so.preload", source=str(files / "preload")),
            ],
            devices=[DeviceNode(path="/dev/nvidia0", major=1, minor=5)],  # /dev/zero
        )
        config.write(apply_edits(spec, edits))
    finally:
        os.close(fd)


def test_a_container_has_what_was_granted(run: Run) -> None:
    lines = run(
        f"cat {LIBRARY} /etc/ld.so.preload; echo $NVIDIA_VISIBLE_DEVICES $LD_PRELOAD $VGPU_MEMORY;"
        f" dd if=/dev/nvidia0 of=/dev/null bs=3 count=1 2>/dev/null && echo opened;"
        f" (echo x >{LIBRARY}) 2>/dev/null || echo read-only"
    )

    assert lines == [
        "library",
        LIBRARY,
        f"GPU-1 {LIBRARY}:libcuda.so.1",
        "opened",
        "read-only",
    ]


def test_the_images_preloads_follow_ours(run: Run, bundle: Bundle) -> None:
    (bundle.directory / "rootfs/etc/ld.so.preload").write_bytes(b"/usr/lib/libjemalloc.so\r\n")

    assert run("cat /etc/ld.so.preload") == [LIBRARY, "/usr/lib/libjemalloc.so"]


def test_a_dangling_preload_link_is_completed_inside_the_root(run: Run, bundle: Bundle) -> None:
    (bundle.directory / "rootfs/etc/ld.so.preload").symlink_to("/opt/vgpu-test/list")

    assert run("cat /etc/ld.so.preload; echo /opt/vgpu-test/*") == [LIBRARY, "/opt/vgpu-test/list"]
    assert not Path("/opt/vgpu-test").exists()


def test_a_second_create_of_the_same_bundle_works(
    run: Run, runtime: OciRuntime, bundle: Bundle, scratch: Path
) -> None:
    assert run("cat /etc/ld.so.preload") == [LIBRARY]
    before = bundle.read()

    edit(bundle.directory, scratch / "files")

    assert bundle.read() == before
    assert runtime.run(bundle, "c2").splitlines() == [LIBRARY]
