# SPDX-License-Identifier: Apache-2.0
"""config.json on disk: read exactly, replaced in one step, refused when others could change it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim import bundle as bundle_module
from runtime_shim.bundle import Bundle, BundleError, parse_spec, render_spec

TEXT = st.text('aé☃\udc80\udcff\ud800\u2028<\\"\n', max_size=6)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('aé☃<\\"\n', max_size=6),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a bundle's folder with a config.json of mode 0640."""
    folder = tmp_path / "bundle"
    folder.mkdir(mode=0o711)
    config = folder / "config.json"
    config.write_bytes(b'{"ociVersion": "1.0.2", "process": {"env": ["A=\\u003c"]}}')
    config.chmod(0o640)
    return folder


@pytest.fixture
def bundle(folder: Path) -> Iterator[Bundle]:
    """Return the bundle in `folder`, opened as the launcher opens it."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    yield Bundle(fd, owner_uid=os.getuid())
    os.close(fd)


def test_a_spec_is_read_and_replaced_with_its_mode(folder: Path, bundle: Bundle) -> None:
    spec = bundle.read()
    bundle.write({**spec, "hostname": "x"})

    assert json.loads((folder / "config.json").read_text()) == {
        "ociVersion": "1.0.2",
        "process": {"env": ["A=<"]},
        "hostname": "x",
    }
    assert stat.S_IMODE((folder / "config.json").stat().st_mode) == 0o640
    assert os.listdir(folder) == ["config.json"]


def test_the_old_file_is_replaced_and_not_written_into(folder: Path, bundle: Bundle) -> None:
    with (folder / "config.json").open("rb") as old:
        bundle.write({**bundle.read(), "hostname": "x"})

        assert old.read().startswith(b'{"ociVersion": "1.0.2"')


def test_the_same_spec_is_written_once(folder: Path, bundle: Bundle) -> None:
    spec = {**bundle.read(), "hostname": "x"}
    bundle.write(spec)
    inode = (folder / "config.json").stat().st_ino

    assert bundle.read() == spec
    bundle.write(spec)

    assert (folder / "config.json").stat().st_ino == inode


def test_what_a_killed_agent_left_behind_is_cleaned_up(folder: Path, bundle: Bundle) -> None:
    (folder / ".config.json.vgpu").write_text("half a file")
    (folder / ".config.json.vgpu").chmod(0o000)

    bundle.write({**bundle.read(), "hostname": "x"})

    assert os.listdir(folder) == ["config.json"]


def test_a_failed_write_leaves_no_draft(folder: Path, bundle: Bundle) -> None:
    spec = bundle.read()
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()

    with pytest.raises(BundleError, match=r"cannot write config\.json: EISDIR"):
        bundle.write({**spec, "hostname": "x"})

    assert os.listdir(folder) == ["config.json"]


def test_writing_needs_a_reading_before_it(bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="needs a read"):
        bundle.write({})


def link_away(config: Path) -> None:
    config.rename(config.with_name("elsewhere.json"))
    config.symlink_to("elsewhere.json")


def make_fifo(config: Path) -> None:
    config.unlink()
    os.mkfifo(config)


def make_folder(config: Path) -> None:
    config.unlink()
    config.mkdir()


def make_huge(config: Path) -> None:
    os.truncate(config, bundle_module.MAX_CONFIG_BYTES + 1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, r"cannot read config\.json: it is missing"),
        (link_away, "it is a symbolic link"),
        (make_fifo, "is not a regular file"),
        (make_folder, "is not a regular file"),
        (make_huge, "is larger than 64 MiB"),
        (lambda config: config.chmod(0o666), "can be changed by others"),
        (lambda config: config.parent.chmod(0o777), "the bundle folder can be changed by others"),
        (lambda config: config.write_bytes(b"{"), r"config\.json is not JSON"),
        (lambda config: config.write_bytes(b""), r"config\.json is not JSON"),
        (lambda config: config.write_bytes(b"[]"), "is not a JSON object"),
        (lambda config: config.write_bytes(b'{"a":NaN}'), "number NaN is out of range"),
        (lambda config: config.write_bytes(b'{"a":1e999}'), "number 1e999 is out of range"),
        (lambda config: config.write_bytes(b'{"a":' + b"1" * 5000 + b"}"), "is not JSON"),
        (lambda config: config.write_bytes(b'{"a":' + b"[" * 10**5), "is not JSON"),
        (lambda config: config.write_bytes(b"\xef\xbb\xbf{}"), "is not JSON"),
    ],
)
def test_a_file_that_is_no_safe_spec_is_refused(
    folder: Path, bundle: Bundle, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(folder / "config.json")

    with pytest.raises(BundleError, match=message) as caught:
        bundle.read()

    assert "no such file or directory" not in str(caught.value).lower()


def test_another_users_bundle_is_refused(folder: Path) -> None:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)

    with pytest.raises(BundleError, match=f"belongs to uid {os.getuid()}, not to 4242"):
        Bundle(fd, owner_uid=4242).read()

    os.close(fd)


MAPPED_ROOT = 100000


def _mapping(**fields: object) -> dict[str, object]:
    return {"containerID": 0, "hostID": MAPPED_ROOT, "size": 65536, **fields}


def _spec(*mappings: dict[str, object], namespace: str = "user") -> bytes:
    linux = {"namespaces": [{"type": namespace}], "uidMappings": list(mappings)}
    return json.dumps({"linux": linux}).encode()


@pytest.fixture
def given_away(folder: Path, bundle: Bundle, needs_root: None) -> Bundle:
    """Return a bundle whose folder belongs to the mapped root, as podman makes it."""
    (folder / "config.json").write_bytes(_spec(_mapping()))
    folder.chmod(0o700)
    os.chown(folder, MAPPED_ROOT, MAPPED_ROOT)
    return bundle


def test_a_folder_of_the_containers_own_mapped_root_is_taken(
    folder: Path, given_away: Bundle
) -> None:
    spec = given_away.read()
    given_away.write({**spec, "hostname": "x"})

    assert json.loads((folder / "config.json").read_text())["hostname"] == "x"
    assert (folder / "config.json").stat().st_uid == os.getuid()


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        _spec(),
        _spec(_mapping(), namespace="pid"),
        _spec(_mapping(hostID=200000)),
        _spec(_mapping(containerID=1)),
        _spec(_mapping(size=0)),
        _spec(_mapping(hostID="100000")),
        _spec(_mapping(hostID=200000), _mapping()),
    ],
)
def test_a_folder_of_anybody_else_is_refused(folder: Path, given_away: Bundle, raw: bytes) -> None:
    (folder / "config.json").write_bytes(raw)

    with pytest.raises(BundleError, match=f"folder belongs to uid {MAPPED_ROOT}, not to"):
        given_away.read()


def test_a_mapped_root_that_wrote_the_spec_itself_is_refused(
    folder: Path, given_away: Bundle
) -> None:
    os.chown(folder / "config.json", MAPPED_ROOT, MAPPED_ROOT)

    with pytest.raises(BundleError, match=r"config.json belongs to uid 100000, not to 0"):
        given_away.read()


def test_a_folder_of_the_mapped_root_that_others_can_write_is_refused(
    folder: Path, given_away: Bundle
) -> None:
    folder.chmod(0o770)

    with pytest.raises(BundleError, match="the bundle folder can be changed by others"):
        given_away.read()


def test_a_file_that_is_put_in_the_place_of_ours_is_refused(
    folder: Path, given_away: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the folder may rename and remove files in it while it is edited."""
    spec = given_away.read()
    rename = os.rename

    def swapped(source: str, target: str, **folders: int) -> None:
        (folder / source).unlink()
        (folder / source).write_bytes(_spec(_mapping()))
        rename(source, target, **folders)

    monkeypatch.setattr(os, "rename", swapped)

    with pytest.raises(BundleError, match="was replaced while it was written"):
        given_away.write({**spec, "hostname": "x"})


@given(value=JSON)
def test_every_value_survives(value: object) -> None:
    assert parse_spec(render_spec({"x": value})) == {"x": value}


@given(raw=st.binary(max_size=12))
def test_bytes_that_are_no_utf8_come_out_as_they_went_in(raw: bytes) -> None:
    text = raw.translate(None, bytes(range(0x20)) + b'"\\')

    assert render_spec(parse_spec(b'{"a":"' + text + b'"}')) == b'{"a":"' + text + b'"}'


def test_an_escaped_lone_surrogate_stays_an_escape() -> None:
    raw = rb'{"a":"\ud800"}'

    assert render_spec(parse_spec(raw)) == raw


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    assert parse_spec(b'{"a":1,"a":2}') == {"a": 2}
