# SPDX-License-Identifier: Apache-2.0
"""slabs.py: from what does the driver cut small allocations, and when does that go back?

    python3 -m bench.gpu.slabs        on a machine with a card that nobody uses, without libvgpu

For pieces of each size: what NVML shows, and in what 2 MiB of addresses they lie; with one piece
left in each of these; with the rest allocated again; with every second left one freed, too.
"""

import ctypes
import random
import sys

import pynvml

KIB, MIB = 1 << 10, 1 << 20
SLAB_BYTES = 2 * MIB
SIZES = ((512, 4), (4 * KIB, 32), (64 * KIB, 128), (512 * KIB, 256), (700 * KIB, 200))
MORE_SIZES = ((MIB, 256), (MIB + 512, 256))
MIXED = (300, 2000, 30 * KIB, 100 * KIB, 256 * KIB, 600 * KIB, 900 * KIB, MIB)
MIXED_CALLS = 6000


class Card:
    """Card 0 through the driver API, and its used memory since the last look at it."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self._must(self._cuda.cuInit(0))
        self._must(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._must(self._cuda.cuCtxSetCurrent(context))
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.allocate(1)
        self._before = self._used()

    def allocate(self, size: int) -> int:
        """Return an address."""
        address = ctypes.c_uint64()
        self._must(self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
        return address.value

    def free(self, address: int) -> None:
        """Give it back."""
        self._must(self._cuda.cuMemFree_v2(ctypes.c_uint64(address)))

    def used_mib(self) -> float:
        """Return what the card has less than at the start."""
        return (self._used() - self._before) / MIB

    def _used(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    @staticmethod
    def _must(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"the driver answers {status}")


def slabs_mib(addresses: list[int]) -> int:
    """Return the 2 MiB of addresses that they lie in."""
    return len({address // SLAB_BYTES for address in addresses}) * SLAB_BYTES // MIB


def pieces(card: Card, size: int, count: int) -> None:
    """Print one line."""
    taken = [card.allocate(size) for _ in range(count)]
    full = card.used_mib(), slabs_mib(taken)
    left: dict[int, int] = {}
    for address in taken:
        if left.setdefault(address // SLAB_BYTES, address) != address:
            card.free(address)
    one_each = card.used_mib()
    again = [card.allocate(size) for _ in range(count - len(left))]
    filled = card.used_mib()
    kept = list(left.values())
    for address in [*again, *kept[::2]]:
        card.free(address)
    half = card.used_mib()
    for address in kept[1::2]:
        card.free(address)
    print(
        f"| {size:,} | {count} | {count * size / MIB:.1f} | {full[0]:.0f} | {full[1]} |"
        f" {one_each:.0f} | {filled:.0f} | {half:.0f} | {card.used_mib():.0f} |"
    )


def mixed(card: Card) -> None:
    """Print what pieces of many sizes take, before and after three of four have gone."""
    dice = random.Random(1)
    live: list[tuple[int, int]] = []
    for _ in range(MIXED_CALLS):
        if live and dice.random() < 0.45:
            card.free(live.pop(dice.randrange(len(live)))[0])
        else:
            size = dice.choice(MIXED)
            live.append((card.allocate(size), size))
    for part in (1, 4):
        dice.shuffle(live)
        gone, live = live[len(live) // part :], live[: len(live) // part]
        for address, _ in gone:
            card.free(address)
        total = sum(-(-size // 512) * 512 for _, size in live) / MIB
        shown = slabs_mib([address for address, _ in live])
        print(f"mixed: sum {total:.1f} MiB, NVML {card.used_mib():.0f}, slabs {shown}")


def main() -> int:
    """Print the table."""
    card = Card()
    print("| bytes | pieces | sum | NVML | slabs | one left in each | full again | half | none |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for size, total_mib in SIZES + MORE_SIZES:
        pieces(card, size, total_mib * MIB // size)
    mixed(card)
    return 0


if __name__ == "__main__":
    sys.exit(main())
