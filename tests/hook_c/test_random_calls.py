# SPDX-License-Identifier: Apache-2.0
"""Whatever a program calls in whatever order, the account says what the card has lost."""

import random

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import SANITIZED, Container
from tests.hook_c.program import Process

SIZES = (1, 4096, MIB, MIB + 1, 3 * MIB, 17 * MIB, 64 * MIB, 300 * MIB)


class Walk:
    """One process that allocates and frees by chance, in every family."""

    def __init__(self, process: Process, chance: random.Random) -> None:
        self.process = process
        self.chance = chance
        self.held: list[tuple[str, int]] = []

    def step(self) -> int:
        """Make one call; its code."""
        if self.held and self.chance.random() < 0.45:
            name, handle = self.held.pop(self.chance.randrange(len(self.held)))
            return int(self.process.do("call", name, handle, 0))
        size = self.chance.choice(SIZES)
        family = self.chance.randrange(4)
        if family == 0:
            code, handle = self.process.do("allocate", size)
            free = self.chance.choice(["cuMemFree_v2", "cuMemFreeAsync"])
        elif family == 1:
            code, handle = self.process.do("out", "cuMemAllocAsync", size, 0)
            free = self.chance.choice(["cuMemFree_v2", "cuMemFreeAsync"])
        elif family == 2:
            code, handle = self.process.do("create_memory", -(-size // (2 * MIB)) * 2 * MIB)
            free = "cuMemRelease"
        else:
            words = [self.chance.randrange(1, 4096), self.chance.randrange(4096), 0x20 | 4 << 32]
            code, handle = self.process.do("with_struct", "cuArrayCreate_v2", words)
            free = "cuArrayDestroy"
        if code == 0:
            self.held.append((free, handle))
        return int(code)

    def release_all(self) -> None:
        """Free everything."""
        while self.held:
            name, handle = self.held.pop()
            assert self.process.do("call", name, handle, 0) == 0
        assert self.process.do("call", "cuCtxSynchronize") == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_account_follows_the_card(
    tmp_path_factory: pytest.TempPathFactory,
    gpu: SimulatedGpu,
    start: Start,
    needs_root: None,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("walk") / "container"
    container = Container(folder, {gpu.uuid(): GIB}, library=SANITIZED)
    chance = random.Random(seed)
    walks = [Walk(start(container), chance) for _ in range(3)]
    refused = 0

    for _ in range(250):
        code = chance.choice(walks).step()
        assert code in (0, 2)
        refused += code == 2
        assert container.used() <= GIB
        # Small pieces share slabs in more than one way; the driver may hold one that is half full.
        assert container.used() <= gpu.used_bytes() + 6 * len(walks) * MIB
        assert gpu.used_bytes() <= container.used() + 6 * len(walks) * MIB
    assert refused > 0

    walks.pop().process.kill()
    for walk in walks:
        walk.release_all()
    assert gpu.used_bytes() == 0
    assert walks[0].process.do("allocate", GIB)[0] == 0
