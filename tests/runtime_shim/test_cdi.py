# SPDX-License-Identifier: Apache-2.0
"""CDI files: which card they give, what they may not do, and that only root's are believed."""

from __future__ import annotations

import copy
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_shim.cdi import CdiCache, CdiCard, CdiError, CdiSpec, cdi_edits, load_cdi
from runtime_shim.spec import apply_edits
from tests.runtime_shim.specs import plain_spec

UUIDS = [f"GPU-5a1f0c3e-0000-4000-8000-00000000000{n}" for n in range(2)]


def node(path: str, major: int = 195, minor: int = 0) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 438}


def nvidia_spec() -> dict[str, Any]:
    """Return a spec in the shape that `nvidia-ctk cdi generate` writes."""
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [node(f"/dev/nvidia{n}", minor=n)]}}
        for n, uuid in enumerate(UUIDS)
        for name in (str(n), uuid)
    ]
    both = [node("/dev/nvidia0"), node("/dev/nvidia1", minor=1)]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [*devices, {"name": "all", "containerEdits": {"deviceNodes": both}}],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"],
            "deviceNodes": [
                node("/dev/nvidiactl", minor=255),
                node("/dev/nvidia-modeset", minor=254),
                node("/dev/dri/renderD128", 226, 128),
            ],
            "mounts": [
                {
                    "hostPath": "/usr/lib64/libcuda.so.580.159.03",
                    "containerPath": "/usr/lib64/libcuda.so.580.159.03",
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                },
                {"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"},
            ],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/bin/true",
                    "args": ["nvidia-cdi-hook", "update-ldcache"],
                }
            ],
        },
    }


@pytest.fixture
def folder(tmp_path: Path, needs_root: None) -> Path:
    """Return an empty folder for CDI files that root alone can change."""
    folder = tmp_path / "cdi"
    folder.mkdir(mode=0o755)
    return folder


def put(folder: Path, data: object, name: str = "nvidia.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(data))
    path.chmod(0o644)
    return path


def load(folder: Path, data: object) -> CdiSpec:
    spec = load_cdi(put(folder, data))
    assert spec is not None
    return spec


def given(edits: object) -> list[str]:
    assert edits is not None
    return [each.path for each in edits.devices]  # type: ignore[attr-defined]


def test_cards_are_found_by_uuid_in_the_order_asked_for(folder: Path) -> None:
    spec = load(folder, nvidia_spec())

    edits = cdi_edits(
        [spec], [CdiCard(uuid=UUIDS[1], minor=1), CdiCard(uuid=UUIDS[0], minor=0)], ("compute",)
    )

    assert given(edits) == ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia0"]


def test_cards_are_found_by_their_node_where_names_are_indexes(folder: Path) -> None:
    data = nvidia_spec()
    data["devices"] = [each for each in data["devices"] if not each["name"].startswith("GPU-")]

    edits = cdi_edits([load(folder, data)], [CdiCard(uuid=UUIDS[1], minor=1)], ("compute",))

    assert given(edits) == ["/dev/nvidiactl", "/dev/nvidia1"]


@pytest.mark.parametrize(
    "card", [CdiCard(uuid="GPU-other", minor=7), CdiCard(uuid="MIG-other", minor=None)]
)
def test_a_spec_that_knows_not_every_card_is_not_used(folder: Path, card: CdiCard) -> None:
    spec = load(folder, nvidia_spec())

    assert cdi_edits([spec], [CdiCard(uuid=UUIDS[0], minor=0), card], ("compute",)) is None


def test_nodes_of_a_display_need_a_capability(folder: Path) -> None:
    card = CdiCard(uuid=UUIDS[0], minor=0)
    spec = load(folder, nvidia_spec())

    assert given(cdi_edits([spec], [card], ("compute", "graphics"))) == [
        "/dev/nvidiactl",
        "/dev/nvidia-modeset",
        "/dev/dri/renderD128",
        "/dev/nvidia0",
    ]


def test_a_spec_cannot_say_which_devices_are_visible(folder: Path) -> None:
    spec = load(folder, nvidia_spec())

    assert spec.edits.env == {"NVIDIA_CTK_LIBCUDA_DIR": "/usr/lib64"}


def test_a_hook_gets_an_environment_and_never_the_containers(folder: Path) -> None:
    spec = load(folder, nvidia_spec())

    patched = apply_edits(plain_spec("LD_PRELOAD=/proc/self/cwd/poc.so"), spec.edits)

    assert patched["hooks"]["createContainer"] == [
        {
            "path": "/bin/true",
            "args": ["nvidia-cdi-hook", "update-ldcache"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        }
    ]


def test_a_mount_without_options_is_a_read_only_bind(folder: Path) -> None:
    spec = load(folder, nvidia_spec())

    assert spec.edits.mounts[1].options == ["ro", "nosuid", "nodev", "bind"]
    assert [mount.type for mount in spec.edits.mounts] == ["bind", "bind"]


def test_numbers_that_a_node_lacks_come_from_the_hosts_own(folder: Path, tmp_path: Path) -> None:
    os.mknod(tmp_path / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    data = nvidia_spec()
    raw = {"path": "/dev/nvidiactl", "hostPath": str(tmp_path / "null"), "permissions": "rw"}
    data["containerEdits"]["deviceNodes"] = [raw]

    (found,) = load(folder, data).edits.devices

    assert (found.type, found.major, found.minor) == ("c", 1, 3)
    assert (found.file_mode, found.access) == (0o600, "rw")


def test_another_kind_is_none(folder: Path) -> None:
    assert load_cdi(put(folder, {**nvidia_spec(), "kind": "vendor.com/nic"})) is None


def world_writable(path: Path) -> None:
    path.chmod(0o666)


def of_another_user(path: Path) -> None:
    os.chown(path, 4242, 0)


def in_an_open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def no_json(path: Path) -> None:
    path.write_text("{")


def no_object(path: Path) -> None:
    path.write_text("[]")


def huge(path: Path) -> None:
    os.truncate(path, 2**23)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (world_writable, "can be changed by others than root"),
        (of_another_user, "can be changed by others than root"),
        (in_an_open_folder, "can be changed by others than root"),
        (a_folder, "is not a regular file"),
        (no_json, "is not JSON"),
        (no_object, "is not an object"),
        (huge, "is larger than 4 MiB"),
        (Path.unlink, "is not readable"),
    ],
)
def test_a_file_that_is_not_trusted_is_refused(
    folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    path = put(folder, nvidia_spec())
    spoil(path)

    with pytest.raises(CdiError, match=message):
        load_cdi(path)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"hooks": [{"hookName": "prestart", "path": "true"}]}, "not named by an absolute path"),
        ({"hooks": [{"hookName": "prestart", "path": "/absent"}]}, "is not readable"),
        ({"hooks": [{"path": "/bin/true"}]}, "hookName"),
        ({"mounts": [{"hostPath": "/x"}]}, "containerPath"),
        ({"mounts": {}}, "mounts is not a list"),
        ({"deviceNodes": [{"path": "/dev/absent-for-sure"}]}, "absent-for-sure"),
        ({"deviceNodes": [{"path": "/etc"}]}, "/etc is not a device"),
        ({"env": 1}, "not usable"),
    ],
)
def test_edits_that_cannot_be_made_are_refused(
    folder: Path, edits: dict[str, Any], message: str
) -> None:
    with pytest.raises(CdiError, match=message):
        load_cdi(put(folder, {**nvidia_spec(), "containerEdits": edits}))


def test_a_hook_program_that_others_can_change_is_refused(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "hook"
    program.touch()
    program.chmod(0o757)
    data = nvidia_spec()
    data["containerEdits"]["hooks"][0]["path"] = str(program)

    with pytest.raises(CdiError, match="hook program .* can be changed by others than root"):
        load_cdi(put(folder, data))


def test_files_are_read_anew_when_they_change(folder: Path) -> None:
    cache = CdiCache([folder / "absent", folder])
    put(folder, nvidia_spec())
    put(folder, {"kind": "vendor.com/nic"}, "nic.json")
    (folder / "broken.json").write_text("{")
    (folder / "notes.txt").write_text("{")

    (before,) = cache.specs()
    assert cache.specs()[0] is before
    changed = copy.deepcopy(nvidia_spec())
    changed["devices"] = []
    put(folder, changed)

    assert [spec.devices for spec in cache.specs()] == [{}]


def test_a_later_folder_overrides_an_earlier_one(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    other.mkdir()
    put(folder, nvidia_spec())
    put(other, nvidia_spec())

    assert [spec.path.parent for spec in CdiCache([folder, other]).specs()] == [other, folder]


def test_yaml_is_read_when_its_package_is_there_and_named_when_not(folder: Path) -> None:
    path = folder / "nvidia.yaml"
    path.write_text(json.dumps(nvidia_spec()))  # JSON is YAML

    try:
        import yaml  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(CdiError, match="is YAML, and python3-yaml is not installed"):
            load_cdi(path)
    else:
        assert load_cdi(path) is not None
