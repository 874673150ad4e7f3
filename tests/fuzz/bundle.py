# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the bundle editor: `python -m tests.fuzz.bundle SECONDS` (make fuzz).

Every config.json ends in an edited one or in a refusal of ours; what is edited lets nobody reach
another card, can be edited again, and is started by real runc wherever runc started the original.
The launcher's search of the bytes is held to the same facts: what the agent edits, it must see.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from runtime_shim.bundle import Bundle as ConfigFile
from runtime_shim.bundle import parse_spec, render_spec
from runtime_shim.classify import classify
from runtime_shim.config import DRIVER_CAPABILITIES
from runtime_shim.doors import Doors, check_namespaces
from runtime_shim.errors import RefusedError
from runtime_shim.policy import check_managed, driver_capabilities
from runtime_shim.request import parse_request
from runtime_shim.rootfs import inspect_rootfs
from runtime_shim.spec import (
    ContainerEdits,
    DeviceNode,
    Mount,
    Spec,
    apply_edits,
    destination,
    environment,
    is_bind,
    mounts,
    source,
)
from runtime_shim.strip import NVIDIA_MAJOR, VGPU_MOUNT, is_removed_variable, strip_gpu
from tests.testbed import BUILD, REPOSITORY
from tests.testbed.oci import default_spec

GOLDEN = REPOSITORY / "tests/golden/spec"
LIBRARY = "/dev/vgpu/libvgpu.so"
CARD = "GPU-6b9ab5a1-0000-4000-8000-000000000001"
MARK_MANAGED, MARK_DEVICE, MARK_NVIDIA, MARK_ALLOW_ALL = 1, 2, 4, 8
GRANTED = (NVIDIA_MAJOR, 0)
OWN_FOLDER = BUILD / "fuzz/own"
EDITS = ContainerEdits(
    env={"NVIDIA_VISIBLE_DEVICES": CARD, "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
    mounts=[VGPU_MOUNT, Mount(destination=LIBRARY, source=f"{OWN_FOLDER}/libvgpu.so")],
    devices=[DeviceNode(path="/dev/nvidia0", major=NVIDIA_MAJOR, minor=0)],
)

# -- what specs are made of -----------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "VGPU_MEMORY",
        "VGPU_CORES",
        "VGPU_COUNT",
        "VGPU_CONTAINER_UUID",
        "VGPU_MEMROY",
        "VGPU_MODEL",
        "VGPU_WEIGHT",
        "VGPU_X_SERVICE_HOST",
        "LD_PRELOAD",
        "LD_AUDIT",
        "PATH",
        "",
    ]
)
VALUES = st.sampled_from(["", "all", "1Gi", "50", "0", "void", LIBRARY, "a=b", "/x:/y", "\udcff"])
TEXTS = st.text(max_size=8) | VALUES | NAMES
NUMBERS = st.sampled_from([0, 1, -1, 5, 195, 255, 2**31, 2**53 + 1, 2**63, -(2**63), 1.5, 1e300])
VARIABLES = st.builds("{}={}".format, NAMES, VALUES | st.text(max_size=4)) | NAMES | TEXTS
# Nothing of the host but what everybody may have: examples are started by real runc.
SOURCES = st.sampled_from(["/dev/null", "/dev/zero", "/proc/self", "/nowhere", "tmpfs", "", "x"])
PLACES = st.sampled_from(
    [
        "/data",
        "/etc/ld.so.preload",
        "/dev/vgpu",
        "/dev/vgpu/limits",
        "/dev/../dev/vgpu//x",
        "/dev/nvidia0",
        "/dev/other",
        "dev/nvidiactl",
        "/usr/lib/libcuda.so.1",
        "/var/run/nvidia-container-devices/all",
        "",
    ]
)
OPTIONS = st.lists(st.sampled_from(["bind", "rbind", "ro", "rw", "nosuid", "x"]), max_size=3)


def _items(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


MOUNTS = _items(
    destination=PLACES,
    source=SOURCES,
    type=st.sampled_from(["bind", "tmpfs", "none", "", "cgroup"]),
    options=OPTIONS,
)
RULES = _items(
    allow=st.booleans(),
    type=st.sampled_from(["a", "b", "c", "u", "p", "", "x"]),
    major=st.sampled_from([1, 195, 0, -1, None]),
    minor=st.sampled_from([0, 1, 3, -1, None]),
    access=st.sampled_from(["rwm", "rw", "r", "m", "", "x", "mr"]),
)
NODES = _items(
    path=PLACES,
    type=st.sampled_from(["c", "b", "u", "p", ""]),
    major=st.sampled_from([1, 195, 511]),
    minor=st.sampled_from([0, 1, 5]),
    fileMode=st.sampled_from([0o666, 0]),
    uid=st.just(0),
)
HOOKS = _items(
    path=st.sampled_from(["/bin/true", "/usr/bin/nvidia-container-runtime-hook"]),
    args=st.lists(st.sampled_from(["nvidia-ctk", "x"]), max_size=2),
    env=st.lists(VARIABLES, max_size=2),
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["cdi.k8s.io/x", "a", "io.kubernetes.cri.container-name"]), TEXTS, max_size=3
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXTS, children, max_size=3),
    max_leaves=8,
)


def _spec(
    env: list[str],
    extra_mounts: list[Any],
    rules: list[Any],
    nodes: list[Any],
    hooks: dict[str, list[Any]],
    annotations: dict[str, str],
    unknown: dict[str, Any],
) -> Spec:
    spec = default_spec(["/bin/true"], {})
    spec["process"]["env"] += env
    spec["mounts"] += extra_mounts
    spec["linux"]["resources"]["devices"] += rules
    spec["linux"]["devices"] = nodes
    spec["hooks"] = hooks
    spec["annotations"] = annotations
    for name, value in unknown.items():
        spec.setdefault(f"x{name}", value)
    return spec


def _lists(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, max_size=4)


PLAUSIBLE = st.builds(
    _spec,
    env=_lists(VARIABLES),
    extra_mounts=_lists(MOUNTS),
    rules=_lists(RULES),
    nodes=_lists(NODES),
    hooks=st.dictionaries(
        st.sampled_from(["prestart", "createRuntime", "poststop"]), _lists(HOOKS), max_size=2
    ),
    annotations=ANNOTATIONS,
    unknown=st.dictionaries(st.text(max_size=3), JSON, max_size=2),
)

# Most of these are taken by runc: a whole object of each kind, odd only where runc does not care.
RUNNABLE = st.builds(
    _spec,
    env=_lists(st.builds("{}={}".format, NAMES.filter(bool), VALUES)),
    extra_mounts=st.lists(
        st.fixed_dictionaries(
            {
                "destination": PLACES.filter(bool),
                "source": st.sampled_from(["/dev/null", "/dev/zero"]),
                "options": st.sampled_from([["bind"], ["rbind", "ro"], ["bind", "nosuid"]]),
            },
            optional={"type": st.sampled_from(["bind", "none", ""]), "vendor": JSON},
        ),
        max_size=3,
        unique_by=lambda mount: mount["destination"],
    ),
    rules=_lists(
        st.fixed_dictionaries(
            {"allow": st.booleans(), "access": st.sampled_from(["rwm", "rw", "r", "m", "mr"])},
            optional={
                "type": st.sampled_from(["a", "b", "c", ""]),
                "major": st.sampled_from([1, 195, 511, -1, None]),
                "minor": st.sampled_from([0, 1, 3, -1, None]),
            },
        )
    ),
    nodes=st.lists(
        st.fixed_dictionaries(
            {
                "path": st.sampled_from(["/dev/nvidia0", "/dev/other", "/dev/nvidiactl", "/x"]),
                "type": st.sampled_from(["c", "b", "u"]),
                "major": st.sampled_from([1, 195, 511]),
                "minor": st.sampled_from([0, 1, 3]),
            },
            optional={"fileMode": st.sampled_from([0o666, 0]), "uid": st.just(7)},
        ),
        max_size=2,
    ),
    hooks=st.dictionaries(
        st.sampled_from(["prestart", "createRuntime", "poststop"]),
        _lists(
            st.fixed_dictionaries(
                {"path": st.just("/bin/true")},
                optional={"args": st.lists(VALUES, max_size=2), "timeout": st.just(9)},
            )
        ),
        max_size=2,
    ),
    annotations=ANNOTATIONS,
    unknown=st.dictionaries(st.text(max_size=3), JSON, max_size=2),
)
ENGINES = st.sampled_from(
    [json.loads(file.read_text()) for file in sorted(GOLDEN.glob("*/config.json"))]
)


@st.composite
def distorted(draw: st.DrawFn) -> Spec:
    """Return a spec in which some values are anything at all, or some keys are in another case."""
    spec = copy.deepcopy(draw(PLAUSIBLE | ENGINES))
    for _ in range(draw(st.integers(0, 3))):
        node: Any = spec
        while isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = draw(st.sampled_from(keys))
            inner = node[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
                if isinstance(node, dict) and draw(st.booleans()):
                    node[draw(st.sampled_from([key.upper(), key.title(), key]))] = node.pop(key)
                else:
                    node[key] = draw(JSON)
                break
            node = inner
    return spec


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """Return a spec as some writer writes it: blanks, escapes, order; sometimes not even JSON."""
    spec = draw(distorted())
    indent = draw(st.sampled_from([None, 0, 1]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\n:\r ")]))
    ascii_only, ordered = draw(st.booleans()), draw(st.booleans())
    text = json.dumps(
        spec, indent=indent, separators=separators, ensure_ascii=ascii_only, sort_keys=ordered
    )
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(text) - 1))
        if text[place].isalpha() and text[place - 1] != "\\":
            text = f"{text[:place]}\\u{ord(text[place]):04x}{text[place + 1 :]}"
    raw = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(raw)))
        raw = raw[:place] + draw(st.binary(max_size=3)) + raw[place + draw(st.integers(0, 2)) :]
    return raw


# -- what is done with them -----------------------------------------------------------------


def edit(raw: bytes, *, granted: bool = True) -> Spec:
    """Return what the agent makes of a config.json. Raises RefusedError."""
    spec = parse_spec(raw)
    facts = classify(spec)
    env = environment(spec)
    if facts.managed:
        parse_request(env)
    if facts.managed or granted:
        check_managed(facts)
    driver_capabilities(env.get("NVIDIA_DRIVER_CAPABILITIES"), DRIVER_CAPABILITIES)
    library = LIBRARY if granted else None
    stripped, _ = strip_gpu(spec, library=library, own_folders=[str(OWN_FOLDER)])
    edits = EDITS if granted else ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "void"})
    return apply_edits(stripped, edits)


def may_use(spec: Spec, major: int, minor: int) -> bool:
    """Tell whether runc lets a container read or write a character device.

    Written from runc's libcontainer/cgroups/devices, not from ours: rules in their order, of type
    `a` everything, else the kernel's table of exceptions.
    """
    allowed = True
    exceptions: dict[tuple[object, object], set[str]] = {}
    rules = spec["linux"].get("resources", {}).get("devices") or []
    for rule in [{"allow": False, "type": "a"}, *rules]:
        kind, allow = rule.get("type") or "a", bool(rule.get("allow"))
        first, second = (-1 if rule.get(n) is None else rule[n] for n in ("major", "minor"))
        numbers = (first, second)
        access = set(rule.get("access") or "rwm")
        if kind == "a":
            allowed, exceptions = allow, {}
        elif kind == "c" and not allowed:
            held = exceptions.setdefault(numbers, set())
            exceptions[numbers] = held | access if allow else held - access
        elif kind == "c" and allow is False and numbers == (-1, -1):
            allowed = False
    if allowed:
        return True
    return any(
        numbers[0] in (-1, major) and numbers[1] in (-1, minor) and access & {"r", "w"}
        for numbers, access in exceptions.items()
    )


def marks_of(raw: bytes) -> int:
    """Return what the launcher's own code finds in the bytes."""
    return int(_marks_find()(raw, len(raw)))


_LOADED: list[Any] = []


def _marks_find() -> Any:  # noqa: ANN401  a C function
    if not _LOADED:
        function = ctypes.CDLL(str(BUILD / "fuzz/libmarks.so")).marks_find
        function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        function.restype = ctypes.c_uint
        _LOADED.append(function)
    return _LOADED[0]


# -- properties -----------------------------------------------------------------------------


def check_edit(raw: bytes) -> None:
    """Every input ends in a refusal or in a spec that holds what it should."""
    for granted in (True, False):
        try:
            spec = edit(raw, granted=granted)
        except RefusedError:
            continue
        check_not_wider(spec, granted=granted)
        again = edit(render_spec(spec), granted=granted)
        assert render_spec(again) == render_spec(spec), "editing twice is editing once"


def check_not_wider(spec: Spec, *, granted: bool) -> None:
    """Fail if a container of this spec can reach more than its card."""
    spec = parse_spec(render_spec(spec))
    names = [entry.partition("=")[0] for entry in spec["process"]["env"]]
    assert names.count("NVIDIA_VISIBLE_DEVICES") == 1
    assert environment(spec)["NVIDIA_VISIBLE_DEVICES"] == (CARD if granted else "void")
    assert not [n for n in names if is_removed_variable(n) and n != "NVIDIA_VISIBLE_DEVICES"]
    assert not may_use(spec, NVIDIA_MAJOR, 1)
    assert may_use(spec, *GRANTED) is granted
    nodes = spec["linux"].get("devices") or []
    cards = [n for n in nodes if n.get("type") != "b" and n.get("major") == NVIDIA_MAJOR]
    assert [(n["major"], n["minor"]) for n in cards] == ([GRANTED] if granted else [])
    places = [destination(mount) for mount in mounts(spec)]
    assert not [p for p in places if p.startswith(("/dev/nvidia", "/var/run/nvidia-container-"))]
    assert not [m for m in mounts(spec) if is_bind(m) and source(m).startswith("/dev/nvidia")]
    ours = [place for place in places if place.startswith("/dev/vgpu")]
    assert ours == (["/dev/vgpu", LIBRARY] if granted else [])
    if granted:
        assert "LD_AUDIT" not in names
        preloads = [e for e in spec["process"]["env"] if e.startswith("LD_PRELOAD=")]
        assert all(e == "LD_PRELOAD=" or e.startswith(f"LD_PRELOAD={LIBRARY}") for e in preloads)


def check_seen(raw: bytes) -> None:
    """The launcher asks about every container that the agent would not leave as it is."""
    try:
        spec = parse_spec(raw)
        facts = classify(spec)
    except RefusedError:
        return
    marks = marks_of(raw)
    assert not _asks(spec) or marks & MARK_MANAGED
    assert not facts.managed or marks
    nodes = (spec.get("linux") or {}).get("devices") or []
    if any(n.get("type") != "b" and n.get("major") == NVIDIA_MAJOR for n in nodes):
        assert marks & (MARK_DEVICE | MARK_MANAGED)
    try:
        opens = may_use(spec, NVIDIA_MAJOR, 0)
    except (KeyError, AttributeError, TypeError):
        return
    assert not opens or marks


def _asks(spec: Spec) -> bool:
    words = ("VGPU_CONTAINER_UUID", "VGPU_MEMORY", "VGPU_CORES", "VGPU_COUNT")
    return any(name in words for name in environment(spec))


class Sample:
    """A bundle in which originals and edits are started by real runc."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rootfs = directory / "rootfs"
        (self._rootfs / "bin").mkdir(parents=True)
        for folder in ("proc", "dev", "sys", "etc", "data", "lib64"):
            (self._rootfs / folder).mkdir()
        busybox = shutil.which("busybox")
        assert busybox is not None, "busybox is not installed: run `make setup`"
        shutil.copy2(busybox, self._rootfs / "bin/true")
        OWN_FOLDER.mkdir(parents=True, exist_ok=True)
        (OWN_FOLDER / "libvgpu.so").touch()
        self._doors = Doors([directory / "own"])
        self.started = 0
        self.rejected = 0

    def check(self, raw: bytes) -> None:
        """What runc starts, it starts also edited; what the file system says is looked at, too."""
        for granted in (True, False):
            try:
                edited = edit(raw, granted=granted)
                self._inspect(parse_spec(raw))
            except RefusedError:
                continue
            if self._rejection(raw) is not None:
                self.rejected += 1
                continue
            why = self._rejection(render_spec(edited))
            self.started += 1
            assert why is None, f"runc takes the original and not the edit: {why}"

    def _inspect(self, spec: Spec) -> None:
        fd = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        try:
            check_namespaces(spec)
            self._doors.check(spec, fd)
            inspect_rootfs(fd, spec, library=False)
        finally:
            os.close(fd)

    def _rejection(self, raw: bytes) -> str | None:
        """Return why runc does not run a config.json, or None."""
        (self._directory / "config.json").write_bytes(raw)
        fd = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        try:
            ConfigFile(fd).read()
        except RefusedError as error:
            return str(error)
        finally:
            os.close(fd)
        words = ["runc", "--root", f"{self._directory}/state", "run", "-b", str(self._directory)]
        name = f"fuzz-{os.getpid()}"
        done = subprocess.run(
            [*words, name], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        if done.returncode == 0:
            return None
        root = f"--root={self._directory}/state"
        subprocess.run(["runc", root, "delete", "--force", name], capture_output=True)
        return done.stderr.strip()[-500:]


def check_size(times: int = 500) -> None:
    """Cost grows with the size of a file, not with its square: a user chooses how much there is."""
    small, large = (_edit_seconds(_long_spec(size)) for size in (times, 8 * times))
    assert large < 32 * small + 0.5, f"8 times as much took {large:.2f} s in place of {small:.2f}"


def _edit_seconds(raw: bytes) -> float:
    """Return the processor's time for editing, which a busy machine does not change."""
    began = time.process_time()
    check_edit(raw)
    return time.process_time() - began


def _long_spec(times: int) -> bytes:
    spec = default_spec(["/bin/true"], {})
    for number in range(times):
        node = {"path": f"/x{number}", "type": "c", "minor": number}
        gpu, other = {**node, "major": NVIDIA_MAJOR}, {**node, "major": 1}
        spec["process"]["env"] += [f"NVIDIA_VISIBLE_DEVICES={number}", f"A{number}=LD_PRELOAD"]
        spec["mounts"] += [{"destination": f"/{name}{number}"} for name in ("dev/nvidia", "a")]
        spec["linux"].setdefault("devices", []).extend([gpu, other])
        spec["linux"]["resources"]["devices"] += [
            {"allow": True, "access": "rw", **gpu},
            {"allow": True, "access": "rw", **other},
        ]
        spec.setdefault("annotations", {}).update({f"cdi.k8s.io/{number}": "", f"a{number}": ""})
        hooks = spec.setdefault("hooks", {}).setdefault("poststop", [])
        hooks += [{"path": "/usr/bin/nvidia-ctk"}, {"path": f"/bin/true{number}"}]
    return render_spec(spec)


# -- the run --------------------------------------------------------------------------------


def repeated(
    check: Callable[[bytes], None], strategy: st.SearchStrategy[bytes], count: int
) -> None:
    """Try `count` new examples, and those that failed before."""
    home = BUILD / "fuzz" / "examples"
    options = settings(
        max_examples=count,
        deadline=None,
        database=DirectoryBasedExampleDatabase(home),
        suppress_health_check=list(HealthCheck),
        phases=[Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    )
    options(given(strategy)(check))()


def main() -> None:
    """Fuzz for the seconds of the command line; the first failure ends it with its example."""
    deadline = time.monotonic() + float(sys.argv[1])
    plausible = PLAUSIBLE.map(render_spec)
    examples = 0
    with tempfile.TemporaryDirectory(prefix="vgpu-fuzz-", ignore_cleanup_errors=True) as name:
        sample = Sample(Path(name))
        while time.monotonic() < deadline:
            repeated(check_edit, written(), 400)
            repeated(check_edit, plausible, 400)
            repeated(check_seen, written(), 400)
            repeated(sample.check, RUNNABLE.map(render_spec), 40)
            check_size()
            examples += 1240
            print(
                f"{examples} examples, {sample.started} edits started by runc,"
                f" {sample.rejected} originals that it rejects",
                flush=True,
            )


if __name__ == "__main__":
    main()
