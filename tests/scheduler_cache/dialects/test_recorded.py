# SPDX-License-Identifier: Apache-2.0
"""Decisions as each version of a scheduler writes them, and how they must be read.

`recorded/*.tsv` holds one decision a line; the head of each file says what its columns mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler_cache.dialects.dialect import Decision
from scheduler_cache.dialects.fields import MIB
from scheduler_cache.dialects.hami import ALLOCATED, Hami
from scheduler_cache.dialects.kai import FRACTION, Kai
from scheduler_cache.dialects.volcano import IDS, Volcano
from scheduler_cache.pod import Pod
from tests.scheduler_cache.kube_objects import A, B, C, D, container_of, parsed

RECORDED = Path(__file__).parent / "recorded"
CARDS = {"A": A, "B": B, "C": C, "D": D}


def recorded(name: str) -> list[list[str]]:
    """Return the columns of each line of a file."""
    text = (RECORDED / f"{name}.tsv").read_text()
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def pod_of_text(text: str, resources: tuple[str, str, str], **annotations: str) -> Pod:
    """Return a pod; `resources` are the names of count, memory and cores."""
    inits: list[dict[str, Any]] = []
    apps: list[dict[str, Any]] = []
    for part in text.split():
        kind, _, rest = part.rpartition(":")
        name, _, asked = rest.partition("=")
        limits: dict[str, Any] = {}
        if asked:
            count, _, amounts = asked.partition("x")
            limits = dict(zip(resources, (count, *amounts.split("/")), strict=True))
        (inits if kind else apps).append(container_of(name, limits, sidecar=kind == "sidecar"))
    return parsed(*apps, inits=inits, annotations=annotations)


def named(text: str) -> str:
    """Return a decision with the UUIDs of cards in the place of their letters."""
    for letter, uuid in CARDS.items():
        text = text.replace(f"{letter},NVIDIA", f"{uuid},NVIDIA")
    return text


def reading_of(decision: Decision) -> str:
    letters = {uuid: letter for letter, uuid in CARDS.items()}
    return " ".join(
        f"{name}="
        + "+".join(
            f"{letters[part.card]}:{part.memory.bytes // MIB}/{part.cores_percent or 0}"
            for part in parts
        )
        for name, parts in decision.containers.items()
    )


def hami_cases() -> list[Any]:
    return [
        pytest.param(pod, annotation, reading, id=f"{version}: {pod}")
        for version, pod, annotation, reading in recorded("hami")
    ]


@pytest.mark.parametrize(("pod", "annotation", "reading"), hami_cases())
def test_hami(pod: str, annotation: str, reading: str) -> None:
    resources = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")

    source = pod_of_text(pod, resources, **{ALLOCATED: named(annotation)})

    assert reading_of(Hami().parse_allocation(source)) == reading


def test_every_version_of_hami_is_recorded() -> None:
    versions = {case[0] for case in recorded("hami")}

    assert versions == {"2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10"}


@pytest.mark.parametrize(("fraction", "card_mebibytes", "mebibytes"), recorded("kai"))
def test_kai(fraction: str, card_mebibytes: str, mebibytes: str) -> None:
    """Not rounded, of the whole hundreds of MiB of a card, down to MiB."""
    source = parsed(container_of("main", {}), annotations={FRACTION: fraction})

    request = Kai().parse_request(source).containers["main"]

    assert request.memory[0].of_bytes(int(card_mebibytes) * MIB + 1) == int(mebibytes) * MIB
    assert not request.whole_cards


@pytest.mark.parametrize(("pod", "annotation", "reading"), recorded("volcano"))
def test_volcano(pod: str, annotation: str, reading: str) -> None:
    resources = ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores")

    source = pod_of_text(pod, resources, **{IDS: named(annotation)})

    assert reading_of(Volcano().parse_allocation(source)) == reading
