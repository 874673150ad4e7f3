# SPDX-License-Identifier: Apache-2.0
"""A container that cannot be limited does not start, and the engine gets one sentence."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.testbed.node import GIB, Node
from tests.testbed.oci import OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import build_rootfs

# Engines give these words another meaning: docs/contract.md §5.
MISLEADING = (
    "no such file or directory",
    "executable file not found",
    "permission denied",
    "no such process",
    "container not running",
)

BAD_REQUESTS = [
    ({"VGPU_MEMORY": "0"}, "VGPU_MEMORY"),
    ({"VGPU_MEMORY": "-1"}, "VGPU_MEMORY"),
    ({"VGPU_MEMORY": "12x"}, "VGPU_MEMORY"),
    ({"VGPU_MEMORY": ""}, "VGPU_MEMORY"),
    ({"VGPU_MEMORY": "101%"}, "VGPU_MEMORY"),
    ({"VGPU_MEMORY": "16Gi"}, "16.0Gi"),
    ({"VGPU_CORES": "50"}, "VGPU_MEMORY"),
    ({"VGPU_MEMORY": "1Gi", "VGPU_CORES": "101"}, "VGPU_CORES"),
    ({"VGPU_MEMORY": "1Gi", "VGPU_CORES": "0"}, "VGPU_CORES"),
    ({"VGPU_MEMORY": "1Gi", "VGPU_COUNT": "3"}, "3"),
    ({"VGPU_MEMORY": "1Gi,2Gi"}, "VGPU_MEMORY"),
    ({"VGPU_MEMORY": "1Gi", "VGPU_FOO": "1"}, "VGPU_FOO"),
    ({"VGPU_MEMORY": "1Gi", "VGPU_CARD_POLICY": "best"}, "VGPU_CARD_POLICY"),
    ({"VGPU_MEMORY": "1Gi", "VGPU_COMPUTE_MODE": "soft"}, "VGPU_COMPUTE_MODE"),
    # Alone, without any other mark of a GPU.
    ({"VGPU_MEMROY": "8Gi"}, "did you mean VGPU_MEMORY?"),
    ({"VGPU_UUIDS": "GPU-5a1f0c3e-0000-4000-8000-000000000001"}, "VGPU_MEMORY is not set"),
    ({"VGPU_MODEL": "H100"}, "VGPU_MEMORY is not set"),
    ({"VGPU_CARD_POLICY": "spread"}, "VGPU_MEMORY is not set"),
    ({"VGPU_COMPUTE_MODE": "burst"}, "VGPU_MEMORY is not set"),
    ({"VGPU_WEIGHT": "2"}, "VGPU_WEIGHT='2' is not available yet"),
]


def refusal(runtime: OciRuntime, make_bundle: MakeBundle, env: dict[str, str], log: Path) -> str:
    """Start a container that must not start; return the sentence, the same in both channels."""
    bundle = make_bundle("a", env)
    with pytest.raises(RuntimeFailedError) as caught:
        runtime.start_detached(bundle, "a", log=log)
    sentence = caught.value.stderr.strip()
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["level"] == "error"
    assert last["msg"] == sentence
    assert len(sentence.splitlines()) == 1
    assert sentence.startswith("vgpu: container 'a'")
    assert not [words for words in MISLEADING if words in sentence.lower()]
    return sentence


@pytest.mark.parametrize(("env", "named"), BAD_REQUESTS, ids=str)
def test_a_bad_request_is_refused_in_one_sentence(
    node: Node,
    runtime: OciRuntime,
    make_bundle: MakeBundle,
    scratch: Path,
    env: dict[str, str],
    named: str,
) -> None:
    sentence = refusal(runtime, make_bundle, env, scratch / "log.json")

    assert named in sentence
    assert node.claim_states() == {}


def _remove(library: Path) -> None:
    library.unlink()


def _empty(library: Path) -> None:
    library.write_bytes(b"")


def _text(library: Path) -> None:
    library.write_text("not ELF")


def _zeroed(library: Path) -> None:
    with library.open("r+b") as file:
        file.seek(64)
        file.write(bytes(4096 - 64))


def _other_library(library: Path) -> None:
    loaded = Path("/proc/self/maps").read_text()
    (libc,) = set(re.findall(r"(/\S+/libc\.so\.6)$", loaded, re.MULTILINE))
    library.write_bytes(Path(libc).with_name("libm.so.6").read_bytes())


def _no_digest(library: Path) -> None:
    library.with_name("SHA256SUMS").unlink()


@pytest.mark.parametrize("damage", [_remove, _empty, _text, _zeroed, _other_library, _no_digest])
def test_a_damaged_library_is_refused(
    node: Node,
    runtime: OciRuntime,
    make_bundle: MakeBundle,
    scratch: Path,
    damage: Callable[[Path], None],
) -> None:
    damage(node.library)

    sentence = refusal(runtime, make_bundle, slice_env("2Gi"), scratch / "log.json")

    assert "libvgpu.so" in sentence
    assert "install the vgpu library again" in sentence


def test_a_library_that_is_damaged_later_does_not_reach_its_containers(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("1Gi"))
    runtime.start_detached(bundle, "a")

    _zeroed(node.library)

    assert totals(probe_in(runtime, "a")) == {GIB}


def test_a_musl_image_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path
) -> None:
    image = build_rootfs(scratch / "musl", loader="musl")
    bundle = make_bundle("a", slice_env("2Gi"), rootfs=image)

    with pytest.raises(RuntimeFailedError, match="musl"):
        runtime.start_detached(bundle, "a")


def test_an_image_without_any_loader_starts(
    runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path
) -> None:
    """Only static programs can run there, and those cannot load the driver."""
    image = build_rootfs(scratch / "static", loader="none")

    runtime.start_detached(make_bundle("a", slice_env("2Gi"), rootfs=image), "a")

    assert runtime.state("a")["status"] == "running"


def test_preload_as_a_directory_is_refused(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    (bundle.directory / "rootfs/etc/ld.so.preload").mkdir()

    with pytest.raises(RuntimeFailedError, match=r"ld\.so\.preload"):
        runtime.start_detached(bundle, "a")


def test_a_dev_of_the_host_is_refused(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    bundle.spec["mounts"] = [m for m in bundle.spec["mounts"] if m["destination"] != "/dev"]
    bundle.spec["mounts"].insert(
        1, {"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"]}
    )
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="/dev"):
        runtime.start_detached(bundle, "a")
    assert not Path("/dev/vgpu/limits").exists(), "nothing was made on the host"
