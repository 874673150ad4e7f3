# SPDX-License-Identifier: Apache-2.0
"""The tables `[kubernetes.dialects.*]`: the values of the installations whose pods are read.

What another system's scheduler was configured with changes what its resources mean, so these must
be the same as there.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_cache.dialects.hami import Hami
from scheduler_cache.dialects.kai import Kai
from scheduler_cache.dialects.keyring import Keyring
from scheduler_cache.dialects.registry import Dialects, every_dialect
from scheduler_cache.dialects.volcano import Volcano
from scheduler_cache.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class HamiConfig:
    """As in HAMi's Helm chart."""

    memory_factor: int = 1
    """`memoryFactor`: MiB for each unit of `nvidia.com/gpumem`."""
    default_memory: int = 0
    """`defaultMemory`, in units; 0: the whole card."""
    claim_bare_gpu: bool = False
    """Whether `nvidia.com/gpu` alone is HAMi's; else it is NVIDIA's plugin's."""
    full_card_cores: bool = True
    """Since 2.7 a request of all memory without cores gets all cores."""
    json_register: bool = True
    """Whether its scheduler is 2.8 or later: it reads JSON and asks no plugin whether it lives."""

    def __post_init__(self) -> None:
        if self.memory_factor < 1:
            raise ConfigError("kubernetes.dialects.hami: memory_factor must be 1 or more")
        if self.default_memory < 0:
            raise ConfigError("kubernetes.dialects.hami: default_memory must not be negative")


@dataclass(frozen=True, kw_only=True)
class VolcanoConfig:
    """As in Volcano's device ConfigMap."""

    memory_factor: int = 1
    """`gpuMemoryFactor`: MiB for each unit of `volcano.sh/vgpu-memory`."""

    def __post_init__(self) -> None:
        if self.memory_factor < 1:
            raise ConfigError("kubernetes.dialects.volcano: memory_factor must be 1 or more")


@dataclass(frozen=True, kw_only=True)
class KaiConfig:
    """As KAI's binder was started."""

    reservation_namespace: str = "kai-resource-reservation"
    """Only pods of this namespace tie a group to a card."""

    def __post_init__(self) -> None:
        if not self.reservation_namespace:
            raise ConfigError("kubernetes.dialects.kai: reservation_namespace is empty")


_HAMI = HamiConfig()
_VOLCANO = VolcanoConfig()
_KAI = KaiConfig()


@dataclass(frozen=True, kw_only=True)
class DialectsConfig:
    """Of the dialects that can be configured."""

    hami: HamiConfig = _HAMI
    volcano: VolcanoConfig = _VOLCANO
    kai: KaiConfig = _KAI
    undecided_seconds: float = 60.0
    """A pod that a joined scheduler bound without choosing cards is evicted after so long, if a
    controller makes another and none of its containers runs; 0: never."""

    def __post_init__(self) -> None:
        if self.undecided_seconds < 0:
            raise ConfigError("kubernetes.dialects: undecided_seconds must not be negative")

    def every(self, keyring: Keyring) -> Dialects:
        """Return all dialects, with these values."""
        return every_dialect(
            keyring,
            hami=Hami(
                memory_factor=self.hami.memory_factor,
                default_memory=self.hami.default_memory,
                claim_bare_gpu=self.hami.claim_bare_gpu,
                full_card_cores=self.hami.full_card_cores,
                json_register=self.hami.json_register,
            ),
            volcano=Volcano(memory_factor=self.volcano.memory_factor),
            kai=Kai(reservation_namespace=self.kai.reservation_namespace),
        )
