# SPDX-License-Identifier: Apache-2.0
"""Each engine's editor: what it writes, keeps, refuses and takes back."""

from __future__ import annotations

import json
import tomllib

import pytest

from runtime_shim.configure.containerd import (
    ContainerdEditor,
    Effective,
    defines_cri,
    effective_config,
)
from runtime_shim.configure.crio import CrioEditor, CrioHandler
from runtime_shim.configure.docker import DockerEditor
from runtime_shim.configure.editor import Editor, FaultError, Traces
from runtime_shim.configure.engines import EDITORS
from runtime_shim.configure.podman import PodmanEditor

PATH = "/usr/bin/vgpu-container-runtime"

DAEMON_JSON = """\
{
    "log-driver": "json-file",
    "features": { "containerd-snapshotter": true, "cdi": false },
    "runtimes": {
        "nvidia": {
            "args": [],
            "path": "nvidia-container-runtime"
        }
    },
    "default-address-pools": [ {"base": "10.200.0.0/16", "size": 24} ]
}
"""

CONTAINERD_1 = """\
[plugins.cri]
  sandbox_image = "k8s.gcr.io/pause:3.2"
  [plugins.cri.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""

CONTAINERD_2 = """\
# node 7; ask ops before you change anything
version = 2
imports = ["/etc/containerd/site.d/*.toml"]

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.9"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc" # the kubelet's
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["io.example.*"]
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
"""

# Tables of one plugin on both sides of another's, as tools that append leave them.
CONTAINERD_2_SCATTERED = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/opt/cni/bin"
[debug]
  level = "info"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[grpc]
  uid = 0
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
"""

CONTAINERD_3 = """\
version = 3

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'crun'

  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun]
    runtime_type = 'io.containerd.runc.v2'
    sandboxer = 'podsandbox'

    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun.options]
      BinaryName = '/usr/bin/crun'
      SystemdCgroup = true
"""

CRIO = """\
[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_type = "oci"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.containers.trace-syscall"]
"""

PODMAN = """\
[engine]
# quiet
events_logger = "file"

[engine.runtimes]
kata = ["/usr/bin/kata-runtime"]
"""

FILES: list[tuple[str, Editor, str]] = [
    ("docker", DockerEditor(), DAEMON_JSON),
    ("docker, empty", DockerEditor(), "{}\n"),
    ("docker, other default", DockerEditor(), '{"default-runtime": "nvidia"}'),
    ("containerd 1", ContainerdEditor(), CONTAINERD_1),
    ("containerd 2", ContainerdEditor(), CONTAINERD_2),
    ("containerd 2, scattered", ContainerdEditor(), CONTAINERD_2_SCATTERED),
    ("containerd 2, bare", ContainerdEditor(), "version = 2\n"),
    ("containerd 3", ContainerdEditor(), CONTAINERD_3),
    ("crio", CrioEditor(), CRIO),
    ("podman", PodmanEditor(), PODMAN),
]
every_file = pytest.mark.parametrize(
    ("editor", "text"), [case[1:] for case in FILES], ids=[case[0] for case in FILES]
)
with_and_without_default = pytest.mark.parametrize("make_default", [False, True])


@every_file
@with_and_without_default
def test_twice_is_once(editor: Editor, text: str, make_default: bool) -> None:
    once = editor.configured(text, PATH, make_default)

    assert once != text
    assert editor.configured(once, PATH, make_default) == once
    assert editor.configured(once, PATH, False) == once


@every_file
@with_and_without_default
def test_an_undo_gives_the_very_text_back(editor: Editor, text: str, make_default: bool) -> None:
    before = editor.traces(text)

    after = editor.configured(text, PATH, make_default)

    # A value in quotation marks of the other kind comes back in ours.
    assert editor.undone(after, before).replace("'", '"') == text.replace("'", '"')


@every_file
def test_the_default_stays_unless_asked_for(editor: Editor, text: str) -> None:
    default = editor.traces(text).default

    assert editor.traces(editor.configured(text, PATH, False)).default == default
    assert editor.traces(editor.configured(text, PATH, True)).default == "vgpu"


@every_file
def test_every_line_stays_but_that_of_the_default(editor: Editor, text: str) -> None:
    after = editor.configured(text, PATH, False).splitlines()

    kept = [line.rstrip(",") for line in after]
    lost = [line for line in text.splitlines() if line.rstrip(",") not in kept]
    assert not lost or text.count("\n") < 2


@every_file
def test_an_undo_leaves_what_somebody_has_changed_since(editor: Editor, text: str) -> None:
    before = editor.traces(text)
    after = editor.configured(text, PATH, True)
    other = after.replace('"vgpu"\n', '"kata"\n').replace('"vgpu" #', '"kata" #')

    undone = editor.undone(other, before)

    assert PATH not in undone
    if other != after:
        assert editor.traces(undone).default == "kata"


@every_file
def test_an_older_entry_of_ours_is_replaced_and_comes_back(editor: Editor, text: str) -> None:
    older = editor.configured(text, "/opt/old/vgpu-container-runtime", False)
    before = editor.traces(older)

    newer = editor.configured(older, PATH, True)

    assert "/opt/old" not in newer
    assert editor.traces(editor.undone(newer, before)) == before


@every_file
def test_without_our_entry_an_undo_changes_nothing(editor: Editor, text: str) -> None:
    assert editor.undone(text, Traces()) == text
    assert editor.undone(text, editor.traces(text)) == text


@pytest.mark.parametrize("engine", sorted(EDITORS))
def test_a_file_of_our_own_is_empty_after_an_undo(engine: str) -> None:
    editor = EDITORS[engine]
    ours = editor.configured("", PATH, True)

    assert not editor.is_empty(ours)
    assert editor.is_empty(editor.undone(ours, Traces()))


@pytest.mark.parametrize(
    ("engine", "text", "word"),
    [
        ("docker", '{"runtimes": []}', "'runtimes', which is not an object"),
        ("docker", '{"default-runtime": 1}', "not a string"),
        ("docker", '{"runtimes": {},}', "is not JSON"),
        ("docker", "debug = true", "is not JSON"),
        ("containerd", "version = 2\n[plugins", "is not TOML"),
        ("containerd", "version = 9\n", "is of version 9; known are 1, 2, 3"),
        ("containerd", 'version = 2\nplugins = "x"\n', "plugins, which is not a table"),
        (
            "containerd",
            'version = 2\n[plugins]\n"io.containerd.grpc.v1.cri" = {containerd = {}}\n',
            "cannot be edited line by line",
        ),
        ("crio", "[crio.runtime]\nruntimes = 1\n", "crio.runtime.runtimes, which is not a table"),
        ("crio", "[crio", "is not TOML"),
        ("podman", "[engine]\nruntime = 1\n", "not a string"),
        ("podman", "engine.runtimes = 1\n", "engine.runtimes, which is not a table"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(engine: str, text: str, word: str) -> None:
    with pytest.raises(FaultError, match=word):
        EDITORS[engine].configured(text, PATH, True)


def test_docker_keeps_other_runtimes_and_features() -> None:
    after = json.loads(DockerEditor().configured(DAEMON_JSON, PATH, True))

    assert after == {
        **json.loads(DAEMON_JSON),
        "runtimes": {
            "nvidia": {"args": [], "path": "nvidia-container-runtime"},
            "vgpu": {"path": PATH},
        },
        "default-runtime": "vgpu",
    }


@pytest.mark.parametrize(
    ("text", "plugin"),
    [
        (CONTAINERD_1, "cri"),
        (CONTAINERD_2, "io.containerd.grpc.v1.cri"),
        (CONTAINERD_3, "io.containerd.cri.v1.runtime"),
    ],
)
def test_containerd_has_a_plugin_a_version(text: str, plugin: str) -> None:
    after = tomllib.loads(ContainerdEditor().configured(text, PATH, True))

    cri = after["plugins"][plugin]["containerd"]
    assert cri["default_runtime_name"] == "vgpu"
    assert cri["runtimes"]["vgpu"]["options"]["BinaryName"] == PATH


@pytest.mark.parametrize("version", [2, 3])
def test_a_new_file_of_containerd_names_its_version(version: int) -> None:
    after = ContainerdEditor(new_file_version=version).configured("", PATH, False)

    assert tomllib.loads(after)["version"] == version


def test_containerds_options_are_those_of_its_default() -> None:
    effective = effective_config(CONTAINERD_3)

    after = ContainerdEditor(effective=effective).configured(CONTAINERD_3, PATH, False)

    runtimes = tomllib.loads(after)["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]
    assert runtimes["runtimes"]["vgpu"] == {
        "runtime_type": "io.containerd.runc.v2",
        "sandboxer": "podsandbox",
        "options": {"SystemdCgroup": True, "BinaryName": PATH},
    }


def test_containerds_options_are_not_those_of_another_shim() -> None:
    effective = Effective(
        default="kata",
        runtimes={
            "kata": {"runtime_type": "io.containerd.kata.v2", "privileged_without_host_devices": 1},
            "runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}},
        },
    )

    after = ContainerdEditor(effective=effective).configured("version = 2\n", PATH, False)

    cri = tomllib.loads(after)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert cri["runtimes"]["vgpu"] == {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"SystemdCgroup": True, "BinaryName": PATH},
    }


def test_what_is_unset_in_containerds_dump_is_not_copied() -> None:
    effective = Effective(
        runtimes={
            "runc": {
                "runtime_type": "io.containerd.runc.v2",
                "base_runtime_spec": "",
                "pod_annotations": [],
                "options": {"BinaryName": "", "IoUid": 0, "SystemdCgroup": False},
            }
        }
    )

    after = ContainerdEditor(effective=effective).configured("version = 2\n", PATH, False)

    cri = tomllib.loads(after)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert cri["runtimes"]["vgpu"]["options"] == {"BinaryName": PATH}
    assert set(cri["runtimes"]["vgpu"]) == {"runtime_type", "options"}


@pytest.mark.parametrize(
    ("text", "disabled"),
    [
        ('disabled_plugins = ["cri"]\n', True),
        ('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n', True),
        ('version = 2\ndisabled_plugins = ["io.containerd.internal.v1.opt"]\n', False),
    ],
)
def test_a_disabled_cri_plugin_is_seen(text: str, disabled: bool) -> None:
    assert effective_config(text).disabled is disabled


def test_which_file_has_the_plugins_table() -> None:
    assert defines_cri(CONTAINERD_2)
    assert defines_cri(CONTAINERD_1)
    assert not defines_cri('version = 2\n[plugins."io.containerd.internal.v1.opt"]\npath = "/o"\n')


def test_crios_handler_is_like_its_default_one() -> None:
    handler = CrioHandler()
    handler.read(CRIO)
    handler.read('[crio.runtime.runtimes.kata]\nruntime_type = "vm"\n')

    after = CrioEditor(handler=handler.default()).configured("", PATH, False)

    assert tomllib.loads(after)["crio"]["runtime"] == {
        "runtimes": {
            "vgpu": {
                "runtime_path": PATH,
                "runtime_type": "oci",
                "runtime_root": "/run/crun",
                "monitor_path": "/usr/libexec/crio/conmon",
                "allowed_annotations": ["io.containers.trace-syscall"],
            }
        }
    }


def test_crios_handler_of_a_virtual_machine_is_no_model() -> None:
    handler = CrioHandler()
    handler.read(CRIO.replace('"oci"', '"vm"'))

    assert handler.default() == {}
