# SPDX-License-Identifier: Apache-2.0
"""The same promise with crun below."""

import struct
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu import SimulatedGpu
from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import Bundle, RuntimeFailedError


@pytest.fixture
def node(scratch: Path, gpu: SimulatedGpu) -> Iterator[Node]:
    """Yield a running node in front of crun."""
    with Node(scratch / "node", gpu, low_level="crun") as running:
        yield running


def test_crun_containers_are_held_to_their_slices(node: Node, make_bundle: MakeBundle) -> None:
    runtime = node.runtime()
    bundle = make_bundle("a", slice_env("2Gi"))
    runtime.start_detached(bundle, "a")

    seen = probe_in(runtime, "a", "--until-refused", "64m")
    with pytest.raises(RuntimeFailedError, match="free"):
        runtime.start_detached(make_bundle("b", slice_env("7Gi")), "b")
    wait_until(lambda: node.claim_states() == {"a": "running"}, "crun's init is found")
    runtime.delete("a")
    wait_until(lambda: node.claim_states() == {"a": "stopped"}, "its end is seen")

    assert totals(seen) == {2 * GIB}
    assert seen["words"][0]["bytes"] == 2 * GIB


# A filter that answers access(2) with ENOENT and allows the rest, as `struct sock_filter[]`.
HIDING = struct.pack(
    "<" + "HBBI" * 4,
    *(0x20, 0, 0, 0),  # load the number of the call
    *(0x15, 0, 1, 21),  # access(2) on x86-64
    *(0x06, 0, 0, 0x00050002),  # SECCOMP_RET_ERRNO, ENOENT
    *(0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
)


def test_an_annotation_that_hides_our_file_is_refused(node: Node, make_bundle: MakeBundle) -> None:
    """An image may bring it along: `podman build --annotation`."""
    bundle: Bundle = make_bundle("a", slice_env("2Gi"))
    bundle.spec["annotations"] = {"run.oci.seccomp_bpf_data": b64encode(HIDING).decode()}
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="'run.oci.seccomp_bpf_data' changes how crun"):
        node.runtime().start_detached(bundle, "a")
    assert node.claim_states() == {}
