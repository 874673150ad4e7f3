"""What the simulated cards are: plain values, and the JSON file that holds them."""

import dataclasses
import json
import uuid
from pathlib import Path
from typing import Any

MIB = 1 << 20
GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigInstance:
    """A part of a card in MIG mode: a GPU instance with one compute instance."""

    profile: str = "1g.1gb"
    """Slices and memory, as in its name."""
    memory_bytes: int = GIB
    sm_count: int = 16
    uuid: str = ""
    """`MIG-…`; empty: made from its position, so that it is the same in every run."""
    gpu_instance: int | None = None
    """None: its position from 1 on."""
    compute_instance: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """One card. The defaults make a small one whose numbers are easy to add up."""

    memory_bytes: int = 8 * GIB
    """As NVML's total. CUDA's total is less by `reserved_bytes`."""
    model: str = "NVIDIA Simulated 8GB"
    uuid: str = ""
    """`GPU-…`; empty: made from the card's position, so that it is the same in every run."""
    minor: int | None = None
    """Of `/dev/nvidia<minor>`; None: the card's position."""
    serial: str = ""
    reserved_bytes: int = 0
    """Taken by the driver before anything runs."""
    context_bytes: int | None = None
    """Cost of one context, listed with its process; None: the description's."""
    context_hidden_bytes: int = 0
    """Cost of one context that NVML lists with no process."""
    process_hidden_bytes: int = 0
    """Cost of cuInit, listed with no process."""
    stream_bytes: int = 0
    """Cost of one created stream."""
    sm_count: int = 132
    threads_per_sm: int = 2048
    compute_capability: tuple[int, int] = (9, 0)
    mig_mode: bool = False
    """Nothing runs on it but on its instances. Those imply it."""
    instances: tuple[MigInstance, ...] = ()
    persistence_mode: bool = True


H100 = Card(
    memory_bytes=81559 * MIB,
    model="NVIDIA H100 80GB HBM3",
    reserved_bytes=480 * MIB,
    context_bytes=518 * MIB,
    context_hidden_bytes=5 * MIB + 576 * 1024,
    process_hidden_bytes=3 * MIB + 256 * 1024,
    stream_bytes=544 * 1024,
)
"""The sizes measured on a real one, driver 580.159."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """The cards of one simulated host and the driver that runs them."""

    cards: tuple[Card, ...] = (Card(),)
    driver_version: str = "580.159.04"
    cuda_version: int = 13000
    """As cuDriverGetVersion: 12040 is CUDA 12.4."""
    context_bytes: int = 8 * MIB
    """For cards that do not say their own."""
    check_nodes: bool = False
    """Show a process only the cards whose device node it can open."""
    node_directory: str = "/dev"

    def resolved(self) -> "Description":
        """Return the description with every card's identity and costs filled in."""
        cards = tuple(
            dataclasses.replace(
                card,
                uuid=card.uuid or f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'card {index}')}",
                mig_mode=card.mig_mode or bool(card.instances),
                instances=_resolved(card.instances, index),
                minor=index if card.minor is None else card.minor,
                context_bytes=(
                    self.context_bytes if card.context_bytes is None else card.context_bytes
                ),
            )
            for index, card in enumerate(self.cards)
        )
        return dataclasses.replace(self, cards=cards)

    def to_json(self) -> str:
        """Return the text of `gpu.json`."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Description":
        """Read the text of `gpu.json`; an unknown key is a TypeError."""
        values: dict[str, Any] = json.loads(text)
        cards = tuple(
            Card(
                **{
                    **card,
                    "compute_capability": tuple(card.get("compute_capability", (9, 0))),
                    "instances": tuple(
                        MigInstance(**instance) for instance in card.get("instances", ())
                    ),
                }
            )
            for card in values.pop("cards", [{}])
        )
        return cls(cards=cards, **values)

    @classmethod
    def load(cls, path: Path) -> "Description":
        """Read a `gpu.json` file."""
        return cls.from_json(path.read_text())


def _resolved(instances: tuple[MigInstance, ...], card: int) -> tuple[MigInstance, ...]:
    names = [f"card {card} instance {number}" for number in range(len(instances))]
    return tuple(
        dataclasses.replace(
            instance,
            uuid=instance.uuid or f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, name)}",
            gpu_instance=1 + number if instance.gpu_instance is None else instance.gpu_instance,
        )
        for number, (instance, name) in enumerate(zip(instances, names, strict=True))
    )
