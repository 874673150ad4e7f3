# SPDX-License-Identifier: Apache-2.0
"""What keeps the vgpu library from being loaded, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_shim.errors import RefusedError
from runtime_shim.loading import check_loading
from runtime_shim.spec import SpecError, check_keys
from tests.runtime_shim.specs import GOLDEN, load, plain_spec

# What a tracer of a program with glibc 2.36 writes down, and no more.
TRACED = (
    "access arch_prctl brk close execve exit_group fcntl futex getpid ioctl madvise mmap mprotect"
    " munmap newfstatat openat pread64 prlimit64 read rseq set_robust_list set_tid_address write"
).split()
ARM = ["faccessat" if name == "access" else name for name in TRACED]


def rule(*names: str, action: str = "SCMP_ACT_ALLOW", **more: object) -> dict[str, Any]:
    return {"names": list(names), "action": action, **more}


def check(default: str, *rules: dict[str, Any], machine: str = "x86_64", **more: object) -> None:
    spec = plain_spec()
    spec["linux"]["seccomp"] = {"defaultAction": default, "syscalls": list(rules), **more}
    check_loading(spec, machine)


@pytest.mark.parametrize("name", ["docker", "podman-loader-variables"])
def test_the_engines_own_profiles_pass(name: str) -> None:
    spec = load(GOLDEN / name / "config.json")
    assert spec["linux"]["seccomp"]["syscalls"]

    check_loading(spec, "x86_64")
    check_loading(spec, "aarch64")


@pytest.mark.parametrize(
    "default", ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD"]
)
def test_a_profile_of_what_a_program_needs_passes(default: str) -> None:
    check(default, rule(*TRACED))
    check(default, rule(*ARM), machine="aarch64")
    check(default, rule(*TRACED, action="SCMP_ACT_LOG"), defaultErrnoRet=38)


def test_a_profile_that_denies_other_calls_passes() -> None:
    check("SCMP_ACT_ALLOW", rule("mount", "io_uring_setup", action="SCMP_ACT_ERRNO", errnoRet=1))
    check("SCMP_ACT_LOG", rule("ptrace", action="SCMP_ACT_NOTIFY"))
    check("SCMP_ACT_ALLOW", rule("openat", args=[{"index": 2, "value": 0, "op": "SCMP_CMP_EQ"}]))


@pytest.mark.parametrize("name", ["access", "openat", "open", "read", "mmap", "close", "pread64"])
@pytest.mark.parametrize(
    "action", ["ERRNO", "NOTIFY", "TRACE", "TRAP", "KILL", "KILL_PROCESS", "", None]
)
def test_no_answer_but_the_kernels_stands_for_the_loaders_calls(
    name: str, action: str | None
) -> None:
    denied = {"names": ["mount", name], "action": action and f"SCMP_ACT_{action}", "errnoRet": 2}

    with pytest.raises(RefusedError, match=f"does not always allow {name}, .*allow {name} there"):
        check("SCMP_ACT_ALLOW", denied)
    with pytest.raises(RefusedError, match=f"does not always allow {name}"):
        check("SCMP_ACT_ERRNO", rule(*TRACED, "open"), denied)


@pytest.mark.parametrize("name", ["access", "mmap", "pread64"])
def test_a_call_that_is_allowed_on_conditions_is_not_always_allowed(name: str) -> None:
    others = [each for each in TRACED if each != name]
    some = rule(name, args=[{"index": 2, "value": 1, "op": "SCMP_CMP_EQ"}])

    with pytest.raises(RefusedError, match=f"does not always allow {name}"):
        check("SCMP_ACT_ERRNO", rule(*others), some)
    check("SCMP_ACT_ERRNO", rule(*TRACED), some)


@pytest.mark.parametrize("name", ["access", "openat", "newfstatat", "read", "mmap", "close"])
def test_a_profile_without_a_call_of_the_loader_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match=f"does not always allow {name}"):
        check("SCMP_ACT_ERRNO", rule(*(each for each in TRACED if each != name)))


@pytest.mark.parametrize(
    ("default", "more"),
    [
        ("SCMP_ACT_ERRNO", {"defaultErrnoRet": 0}),
        ("SCMP_ACT_NOTIFY", {}),
        ("SCMP_ACT_TRACE", {}),
        ("SCMP_ACT_TRAP", {}),
    ],
)
def test_a_default_that_may_look_like_success_leaves_no_call_out(
    default: str, more: dict[str, Any]
) -> None:
    with pytest.raises(RefusedError, match="does not always allow openat"):
        check(default, rule(*TRACED), **more)
    check(default, rule(*TRACED, "open", "fstat"), **more)


def test_the_machine_tells_by_which_call_a_loader_looks() -> None:
    with pytest.raises(RefusedError, match="does not always allow faccessat"):
        check("SCMP_ACT_ERRNO", rule(*TRACED), machine="aarch64")
    with pytest.raises(RefusedError, match="does not always allow access"):
        check("SCMP_ACT_ERRNO", rule(*ARM), machine="x86_64")


@pytest.mark.parametrize(
    "seccomp",
    [
        {"DefaultAction": "SCMP_ACT_ERRNO"},
        {"Syscalls": []},
        {"syscalls": [{"Names": ["access"]}]},
        {"syscalls": [{"names": [], "ACTION": "SCMP_ACT_ERRNO"}]},
    ],
)
def test_a_profile_that_go_reads_otherwise_is_no_spec(seccomp: dict[str, Any]) -> None:
    spec = plain_spec()
    spec["linux"]["seccomp"] = seccomp

    with pytest.raises(SpecError, match="in another case"):
        check_keys(spec)


def test_odd_values_are_no_failure() -> None:
    with pytest.raises(RefusedError, match="always allow access"):
        check("SCMP_ACT_ALLOW", {"names": ["access"], "action": [1]})
    with pytest.raises(SpecError, match="syscalls is not a list"):
        check_loading({"linux": {"seccomp": {"syscalls": 1}}}, "x86_64")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run.oci.seccomp_bpf_data", "AAAA"),
        ("run.oci.seccomp.receiver", "/run/x"),
        ("run.oci.seccomp.plugins", "x.so"),
        ("run.oci.handler", "krun"),
        ("run.oci.hooks.stdout", "/x"),
        ("run.oci.systemd.subgroup", "../x"),
        ("run.oci.delegate-cgroup", "x"),
        ("run.oci.systemd.force_cgroup_v1", "/etc"),
        ("run.oci.not-known-yet", ""),
    ],
)
def test_what_has_crun_start_it_otherwise_is_refused(name: str, value: str) -> None:
    with pytest.raises(RefusedError, match=f"annotation '{name}' changes how crun starts it"):
        check_loading(plain_spec(annotations={"a": "b", name: value}), "x86_64")


def test_harmless_annotations_of_crun_stay() -> None:
    names = {
        "run.oci.keep_original_groups": "1",
        "run.oci.mount_context_type": "rootcontext",
        "run.oci.systemd.subgroup": "",
        "org.systemd.property.TimeoutStopUSec": "uint64 1",
    }

    check_loading(plain_spec(annotations=names), "x86_64")
