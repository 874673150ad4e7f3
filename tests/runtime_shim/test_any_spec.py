# SPDX-License-Identifier: Apache-2.0
"""Any JSON at any place of config.json is a spec or a refusal, and never a failure of the agent."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim.bundle import Bundle, parse_spec, render_spec
from runtime_shim.classify import classify
from runtime_shim.doors import Doors, check_hooks, check_namespaces
from runtime_shim.engine import engine_directory
from runtime_shim.errors import RefusedError
from runtime_shim.identity import identity_of
from runtime_shim.policy import check_managed, treat_unmanaged
from runtime_shim.request import parse_request
from runtime_shim.rootfs import inspect_rootfs
from runtime_shim.spec import (
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    SpecError,
    apply_edits,
    environment,
)
from runtime_shim.strip import gpu_devices, strip_gpu
from runtime_shim.vouching import asked_cards
from tests.runtime_shim.specs import bind, plain_spec

JsonPath = tuple[str | int, ...]

EDITS = ContainerEdits(
    env={"NVIDIA_VISIBLE_DEVICES": "void"},
    mounts=[Mount(destination="/dev/vgpu/limits", source="/run/vgpu/containers/1/limits")],
    devices=[DeviceNode(path="/dev/nvidia0", major=195, minor=0)],
    hooks=[Hook(stage="createContainer", path="/bin/true", args=["true"], env=[])],
    additional_gids=[44],
)
ODD_TEXTS = ("", "x", "\0", "/x\0", "\ud800", "/\ud800", "lowerdir=/\ud800:x\0", "A=\ud800")
ODD: tuple[Any, ...] = (
    None,
    True,
    7,
    -1,
    2**70,
    1.5,
    [],
    [7],
    [[]],
    [{}],
    {},
    {"x": None},
    *ODD_TEXTS,
)


def full_spec() -> dict[str, Any]:
    """Return a spec with every field that the agent reads."""
    spec = plain_spec(
        "VGPU_MEMORY=2Gi",
        "LD_PRELOAD=x.so",
        mounts=[
            bind("/etc/hostname", "/etc/hosts"),
            {
                "destination": "/over",
                "type": "overlay",
                "source": "overlay",
                "options": ["lowerdir=/home", "upperdir=/srv"],
            },
        ],
        rules=[{"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}],
        devices=[
            {"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 0}
        ],
        annotations={
            "io.kubernetes.cri.sandbox-id": "1",
            "io.kubernetes.cri-o.SandboxID": "1",
            "io.kubernetes.cri-o.Labels": '{"x": "y"}',
            "io.container.manager": "libpod",
            "nerdctl/state-dir": "/a/containers/b/c",
            "cdi.k8s.io/x": "nvidia.com/gpu=0",
        },
    )
    spec["process"] |= {
        "user": {"uid": 0, "gid": 0, "additionalGids": [1]},
        "capabilities": {"bounding": ["CAP_CHOWN"], "effective": ["CAP_CHOWN"]},
    }
    spec["hooks"] = {
        "prestart": [{"path": "/bin/true", "args": ["true"], "env": ["A=b"], "timeout": 1}]
    }
    spec["linux"] |= {
        "cgroupsPath": "/kubepods/pod1",
        "namespaces": [{"type": "pid", "path": "/proc/1/ns/uts"}, {"type": "mount"}],
        "uidMappings": [{"containerID": 0, "hostID": os.getuid(), "size": 1}],
    }
    return spec


def places(value: Any, at: JsonPath = ()) -> Iterator[JsonPath]:  # noqa: ANN401  JSON
    """Yield the path of every value, the whole first."""
    yield at
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*at, key))


PLACES = tuple(places(full_spec()))[1:]


def with_value(path: JsonPath, value: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
    """Return the full spec with another value at one place."""
    spec = full_spec()
    at: Any = spec
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = copy.deepcopy(value)
    return spec


def judge(bundle: Path, spec: dict[str, Any]) -> None:
    """Look at a config.json in every way that a create does; only refusals come out."""
    (bundle / "config.json").write_text(json.dumps(spec))
    fd = os.open(bundle, os.O_PATH | os.O_DIRECTORY)
    doors = Doors([Path("/run/vgpu"), Path("/var/lib/vgpu/agent")])
    try:
        steps = (
            lambda: Bundle(fd, owner_uid=os.getuid()).read(),
            lambda: check_managed(classify(spec)),
            lambda: treat_unmanaged(classify(spec, mode="kubernetes")),
            lambda: identity_of(spec),
            lambda: parse_request(environment(spec)),
            lambda: asked_cards(spec),
            lambda: engine_directory(spec, "one", str(bundle)),
            lambda: gpu_devices(spec, majors=(195,), keep=(), drm=()),
            lambda: render_spec(apply_edits(strip_gpu(spec, library="/x.so")[0], EDITS)),
            lambda: doors.check(strip_gpu(spec, library=None)[0], fd),
            lambda: check_namespaces(spec),
            lambda: check_hooks(spec),
            lambda: inspect_rootfs(fd, spec),
        )
        classify(spec)  # what comes first in a create also refuses for the rest
        for step in steps:
            with contextlib.suppress(RefusedError):
                step()
    except RefusedError:
        return
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "rootfs/etc").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_an_odd_value_is_no_failure(bundle: Path, path: JsonPath) -> None:
    for value in ODD:
        judge(bundle, with_value(path, value))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("path", "type", "source", "x")), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(path=st.sampled_from(PLACES), value=ANY_JSON)
def test_any_value_is_no_failure(bundle: Path, path: JsonPath, value: Any) -> None:  # noqa: ANN401
    judge(bundle, with_value(path, value))


@given(value=ANY_JSON)
def test_any_json_is_no_failure(bundle: Path, value: Any) -> None:  # noqa: ANN401
    with contextlib.suppress(RefusedError):
        judge(bundle, parse_spec(json.dumps(value).encode()))


@pytest.mark.parametrize("value", [7, True, [], ["bind"], {}])
def test_a_type_of_a_mount_is_a_string(value: Any) -> None:  # noqa: ANN401
    spec = plain_spec(mounts=[{"destination": "/x", "type": value, "source": "/srv"}])

    with pytest.raises(SpecError, match="type is not a string"):
        classify(spec)
