# SPDX-License-Identifier: Apache-2.0
"""What the node's rules make of a container, whatever it asks for; pure."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vgpu.privileges import UNDOING

from runtime_shim.classify import Classification
from runtime_shim.config import DRIVER_CAPABILITIES
from runtime_shim.errors import RefusedError

# What NVIDIA's toolkit gives to a container that names nothing.
DEFAULT_CAPABILITIES = ("compute", "utility")


class Treatment(enum.Enum):
    """What happens to a container that asks for no slice."""

    VOID = "void"
    """It sees no GPU."""
    LEAVE = "leave"
    """It starts as its engine wrote it."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A treatment and, in words for the log, the rule that led to it."""

    treatment: Treatment
    reason: str
    trusted: bool = False
    """It may have the agent's own files, with which it could change every limit of the node: root
    of the host as it is, or named by the node's own rules."""
    named_cards: bool = False
    """The cards that its spec names are to be in it, whoever must bring them."""


def treat_unmanaged(
    facts: Classification,
    *,
    default: str = "void",
    allow: Sequence[str] = (),
    vouched: bool = False,
) -> Decision:
    """Return what happens to a container that asks for no slice.

    `allow` holds patterns `NAMESPACE/POD` with `*` and `?`, which never match a `/`; they are
    compared with what the engine itself says about the pod. `vouched`: the kubelet lists the
    container with exactly these cards. `default`: `void` or `allow`.
    """
    for pattern in allow:
        if facts.pod and _matches(pattern, facts):
            reason = f"allowed by {pattern!r}"
            return Decision(
                treatment=Treatment.LEAVE, reason=reason, trusted=True, named_cards=True
            )
    if facts.privileged:
        reason = "privileged: it could reach every device of the host in any case"
        return Decision(treatment=Treatment.LEAVE, reason=reason, trusted=True)
    if vouched:
        reason = "the kubelet vouches for its cards"
        return Decision(treatment=Treatment.LEAVE, reason=reason, named_cards=True)
    if default == "allow":
        return Decision(treatment=Treatment.LEAVE, reason="the node allows unmanaged containers")
    return Decision(treatment=Treatment.VOID, reason="it asks for no slice")


def check_managed(facts: Classification, *, sys_admin: str = "refuse") -> None:
    """Raise RefusedError for a container that asks for a slice and could leave it at will.

    `sys_admin`: `refuse` or `allow` CAP_SYS_ADMIN by itself.
    """
    if facts.privileged:
        raise RefusedError(
            "it is privileged, so that no slice could hold it",
            "start it without --privileged (privileged: true), or without a vgpu request",
        )
    for name in (name for name in UNDOING if name in facts.undoing):
        if name == "SYS_ADMIN" and sys_admin == "allow":
            continue
        by_policy = ", or set policy.sys_admin = allow on the node for weaker isolation"
        raise RefusedError(
            f"it holds CAP_{name}, with which it {UNDOING[name]}",
            f"start it without --cap-add {name}{by_policy if name == 'SYS_ADMIN' else ''}",
        )
    if facts.host_pid:
        raise RefusedError(
            "it shares the host's PID namespace, so that its processes cannot be told from others",
            "start it without --pid=host (hostPID: true), or without a vgpu request",
        )
    if facts.host_dev:
        raise RefusedError(
            "it mounts the host's /dev, which holds every GPU",
            "mount only the devices that it needs, or start it without a vgpu request",
        )


def driver_capabilities(value: str | None, allowed: Collection[str]) -> tuple[str, ...]:
    """Return the driver capabilities of a container, in alphabetical order.

    `value` is its NVIDIA_DRIVER_CAPABILITIES: absent and empty mean compute,utility; `all` means
    all that are `allowed`. Raises RefusedError for a name that NVIDIA does not have, and when none
    of those asked for is allowed: nothing at all would be read as the default by other runtimes.
    """
    asked = {name for part in (value or "").split(",") if (name := part.strip().lower())}
    if not asked:
        asked = set(DEFAULT_CAPABILITIES)
    if unknown := asked - DRIVER_CAPABILITIES - {"all"}:
        raise RefusedError(
            f"NVIDIA_DRIVER_CAPABILITIES names {min(unknown)[:64]!r}, which does not exist",
            f"use some of {','.join(sorted(DRIVER_CAPABILITIES))}, or all",
        )
    granted = set(allowed) if "all" in asked else asked & set(allowed)
    if not granted:
        raise RefusedError(
            f"NVIDIA_DRIVER_CAPABILITIES={','.join(sorted(asked))} names nothing that this node"
            f" allows ({','.join(sorted(allowed))})",
            "set another value, or allow it by policy.driver_capabilities of the node agent",
        )
    return tuple(sorted(granted))


def _matches(pattern: str, facts: Classification) -> bool:
    namespace, slash, pod = pattern.partition("/")
    return (
        bool(slash)
        and fnmatch.fnmatchcase(facts.namespace, namespace)
        and fnmatch.fnmatchcase(facts.pod, pod)
    )
