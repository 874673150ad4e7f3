# SPDX-License-Identifier: Apache-2.0
"""Whether the kubelet's word covers every GPU that a container's spec opens; pure.

A container of another device plugin is let through as it is, so that everything in its spec counts:
names in variables, mounts and annotations, and nodes and rules of devices. What is not understood
is not vouched for.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from runtime_shim.inventory import CardFacts
from runtime_shim.spec import Spec, annotations_of, destination, env_entries, mounts
from runtime_shim.strip import DEVICE_LISTS, is_cdi_annotation, names_cards

_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
_NOTHING: Final = frozenset({"", "void", "none"})

# They open more than cards, so that no list of cards covers them.
_BEYOND_CARDS: Final = frozenset(
    {"NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"}
)

# Source: NVIDIA k8s-device-plugin, internal/plugin.
_CDI_KINDS: Final = frozenset({"nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu"})


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which cards a spec names."""

    names: frozenset[str]
    """UUIDs or indices."""
    objection: str
    """Why nobody can vouch for it; empty when somebody may."""


def asked_cards(spec: Spec) -> Asked:
    """Return the cards that a spec names; those of which it has only nodes are not among them."""
    names: set[str] = set()
    objection = ""
    for name in _names(spec):
        if name in _NOTHING:
            continue
        if name.startswith("!"):
            objection = objection or name[1:]
        else:
            names.add(name)
    return Asked(names=frozenset(names), objection=objection)


def whole_cards(
    devices: Mapping[str, frozenset[str]], patterns: Sequence[str], own: Collection[str]
) -> frozenset[str]:
    """Return the names of the whole cards among a container's `devices`, which are by resource.

    `patterns` match resources of other plugins; `own` are resources that this node advertises
    itself, whose devices are no cards. A replica `NAME::N` stands for its card.
    """
    return frozenset(
        name.partition("::")[0]
        for resource, names in devices.items()
        if resource not in own
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in patterns)
        for name in names
    )


def cards_by_name(cards: Sequence[CardFacts], *, indices_moved: bool) -> dict[str, CardFacts]:
    """Return this host's cards by everything that certainly names them.

    An index names whatever comes at that place, so that it counts only as long as none has moved
    and none is lost: the kubelet's plugin may have counted before.
    """
    by_name = {card.uuid: card for card in cards}
    if not indices_moved and not any(card.lost for card in cards):
        by_name |= {card.index: card for card in cards if card.index}
    return by_name


def contradiction(asked: Asked, given: Collection[str], by_name: Mapping[str, CardFacts]) -> str:
    """Return why the cards that the kubelet gave are not exactly the ones that a spec names.

    Empty: they are, or the spec names none.
    """
    if not given:
        return "the kubelet gave it no whole card"
    if not by_name.keys() >= set(given):
        return "what the kubelet gave it is, for all that is known, no card of this host"
    if not by_name.keys() >= asked.names:
        return "it names what is, for all that is known, no card of this host"
    wanted = {by_name[name].uuid for name in asked.names}
    if wanted and wanted != {by_name[name].uuid for name in given}:
        return "it names other cards than the kubelet gave it"
    return ""


def _names(spec: Spec) -> Iterator[str]:
    """Yield every name of a card; `!` and a sentence for what is no name of one."""
    variables = [entry.partition("=") for entry in env_entries(spec)]
    for name, _, value in variables:
        if name in _BEYOND_CARDS and value not in _NOTHING:
            yield f"!{name} opens more than cards"
        # Every entry of a variable that is set twice: other runtimes may take another one.
        if names_cards(name):
            yield from (_card(item) for item in value.split(",") if item not in DEVICE_LISTS)
    set_ones = {name for name, _, _ in variables}
    if "CUDA_VERSION" in set_ones and _VISIBLE_DEVICES not in set_ones:
        yield "!without NVIDIA_VISIBLE_DEVICES an old CUDA image gets every card"
    for mount in mounts(spec):
        place = destination(mount)
        for folder in DEVICE_LISTS:
            if place.startswith(f"{folder}/"):
                yield _listed(place[len(folder) + 1 :])
    for key, value in annotations_of(spec).items():
        if is_cdi_annotation(key):
            yield from map(_qualified, value.split(","))


def _card(text: str) -> str:
    name = text.strip()
    if "=" in name:
        return _qualified(name)
    return f"!{_VISIBLE_DEVICES} names every card" if name == "all" else name


def _listed(rest: str) -> str:
    """Return the name in the destination of a mount: `NAME`, or `cdi/VENDOR/CLASS/NAME`."""
    parts = rest.split("/")
    if len(parts) == 1:
        return _card(parts[0])
    if len(parts) == 4 and parts[0] == "cdi":
        return _qualified(f"{parts[1]}/{parts[2]}={parts[3]}")
    return f"!the mounted device list {rest[:64]!r} is none of cards"


def _qualified(text: str) -> str:
    kind, _, name = text.strip().partition("=")
    if kind not in _CDI_KINDS:
        return f"!the CDI device {text[:64]!r} is no card"
    return _card(name) if "=" not in name else f"!the CDI device {text[:64]!r} is no card"
