# SPDX-License-Identifier: Apache-2.0
"""What of a spec could keep the loader from reading ld.so.preload and the vgpu library; pure."""

from __future__ import annotations

from runtime_shim.errors import RefusedError
from runtime_shim.spec import Item, Spec, annotations_of, items, section, texts

# What glibc's loader calls to read ld.so.preload and to load a library; of each line one is enough,
# since versions of glibc differ. The first asks whether there is a preload file, nothing else.
# Source: glibc 2.17 to 2.41, elf/rtld.c, elf/dl-load.c, elf/dl-misc.c.
_NEEDED = {
    "x86_64": (
        ("access",),
        ("openat", "open"),
        ("newfstatat", "fstat"),
        ("read",),
        ("mmap",),
        ("mprotect",),
        ("close",),
    ),
    "aarch64": (
        ("faccessat",),
        ("openat",),
        ("newfstatat", "fstat"),
        ("read",),
        ("mmap",),
        ("mprotect",),
        ("close",),
    ),
}
# Neither these nor their other forms may be answered otherwise: a call that seems to work, or that
# fails for our files alone, has the loader pass over the library and start the program.
_WATCHED = frozenset(
    "access close faccessat faccessat2 fstat mmap mprotect newfstatat open openat openat2 pread64"
    " read statx".split()
)
_PASSING = frozenset({"SCMP_ACT_ALLOW", "SCMP_ACT_LOG"})
_ENDING = frozenset({"SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD"})

# crun obeys these; the others choose another handler, filter or cgroup, or are not known yet.
# Source: crun 1.28, crun.1.
_CRUN = "run.oci."
_HARMLESS = frozenset(
    {
        "run.oci.keep_original_groups",
        "run.oci.mount_context_type",
        "run.oci.seccomp_fail_unknown_syscall",
    }
)
_SUBGROUP = "run.oci.systemd.subgroup"
"""CRI-O's handlers of crun say by its empty value that there is none."""


def check_loading(spec: Spec, machine: str) -> None:
    """Raise RefusedError where the vgpu library might not be loaded on a `machine`, as uname says.

    A program that cannot start at all is its owner's matter.
    """
    for name, value in annotations_of(spec).items():
        if name.startswith(_CRUN) and name not in _HARMLESS and (name, value) != (_SUBGROUP, ""):
            raise RefusedError(
                f"its annotation {name[:128]!r} changes how crun starts it, so that nothing might"
                " hold it to its slice",
                "take the annotation out; an image may bring it along, too",
            )
    _check_seccomp(section(section(spec, "linux"), "seccomp"), machine)


def _check_seccomp(seccomp: Item, machine: str) -> None:
    if not seccomp:
        return
    always: set[str] = set()
    sometimes: set[str] = set()
    for rule in items(seccomp, "syscalls"):
        named = _WATCHED.intersection(texts(rule, "names"))
        if str(rule.get("action")) not in _PASSING and named:
            raise _not_allowed(min(named))
        (sometimes if rule.get("args") else always).update(named)
    default = str(seccomp.get("defaultAction"))
    if default in _PASSING:
        return
    if partly := sometimes - always:
        raise _not_allowed(min(partly))
    # The same answer to every call leaves no program that starts, unless it looks like success.
    fails = default in _ENDING or (
        default == "SCMP_ACT_ERRNO" and seccomp.get("defaultErrnoRet") != 0
    )
    for names in _NEEDED.get(machine, _NEEDED["x86_64"]):
        if always.isdisjoint(names) or not (fails or always.issuperset(names)):
            raise _not_allowed(names[0])


def _not_allowed(name: str) -> RefusedError:
    return RefusedError(
        f"its seccomp profile does not always allow {name}, by which the vgpu library is loaded",
        f"allow {name} there without conditions, or use the engine's own profile",
    )
