# SPDX-License-Identifier: Apache-2.0
"""The two files of a container, and a mount namespace in which a process finds them.

No engine is needed: /dev of the namespace is a tmpfs of its own with /dev/vgpu in it, as the
runtime makes it. Nothing outside the namespace is mounted or left behind.
"""

import contextlib
import fcntl
import mmap
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from runtime_shim.abi import ffi

LIBRARY = Path(__file__).parents[2] / "build/libvgpu.so"
SANITIZED = LIBRARY.parent / "san/libvgpu-ubsan.so"
GPU_KIND = 1
MIG_KIND = 2

_ENTER = """
set -e
folder=$1; shift
mount -t tmpfs -o mode=755 dev /dev
mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; mknod -m 666 /dev/urandom c 1 9
mkdir -m 1777 /dev/shm; mkdir /dev/vgpu
for name in libvgpu.so limits usage; do
    if [ -e "$folder/$name" ]; then
        touch /dev/vgpu/$name
        mount --bind "$folder/$name" /dev/vgpu/$name
    fi
done
mkdir /dev/nvidia-caps
(cd /dev; xargs -r touch < "$folder/nodes")
[ ! -e /dev/vgpu/limits ] || mount -o remount,bind,ro /dev/vgpu/limits
LD_PRELOAD=/dev/vgpu/libvgpu.so exec "$@"
"""


class Container:
    """A folder with the files of one container; one slice a card."""

    def __init__(
        self,
        folder: Path,
        slices: dict[str, int],
        library: Path = LIBRARY,
        *,
        nodes: Iterable[str] = (),
        **numbers: int,
    ) -> None:
        """`slices` is UUID → bytes, `numbers` are further fields of every card's limits.

        `nodes`, below /dev, are what the simulated driver looks for when it is told to.
        """
        folder.mkdir()
        (folder / "nodes").write_text("\n".join(nodes))
        self.folder = folder
        self._buffers: list[Any] = []  # a cast alone does not keep the mapping
        (folder / "libvgpu.so").write_bytes(library.read_bytes())
        self._make("usage", "VGPU_USAGE_MAGIC", "struct vgpu_usage")
        self.usage = self._map("usage", "struct vgpu_usage *")
        self._make("limits", "VGPU_LIMITS_MAGIC", "struct vgpu_limits")
        self.limits = self._map("limits", "struct vgpu_limits *")
        self.limits.ndev = len(slices)
        for index, (card, memory_bytes) in enumerate(slices.items()):
            device = self.limits.dev[index]
            device.uuid = list(uuid.UUID(card[4:]).bytes)
            device.kind = GPU_KIND if card.startswith("GPU-") else MIG_KIND
            device.memory_bytes = memory_bytes
            device.cores_percent = device.reserved_percent = device.cores_max_percent = 100
            for name, value in numbers.items():
                setattr(device, name, value)

    @property
    def wrapper(self) -> list[str]:
        """What to put before a command to run it inside."""
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh"]
        return [*enter, str(self.folder)]

    def write(self, index: int = 0, **numbers: int) -> None:
        """Change a card's limits as the agent does, under the sequence word."""
        self.limits.seq += 1
        for name, value in numbers.items():
            setattr(self.limits.dev[index], name, value)
        self.limits.seq += 1

    def used(self, index: int = 0) -> int:
        """What the usage file says of a card."""
        return sum(self.usage.slot[i].dev[index].used_bytes for i in range(self.usage.slots_high))

    def counted(self, index: int = 0) -> int:
        """What counts against the limit: also what calls under way have asked for."""
        slots = (self.usage.slot[i].dev[index] for i in range(self.usage.slots_high))
        return sum(slot.used_bytes + slot.asked_bytes for slot in slots)

    @contextlib.contextmanager
    def all_slots_taken(self) -> Iterator[None]:
        """Let living processes have all slots: this one holds the locks of their owners."""
        for slot in self.usage.slot:
            slot.state = 2
        with (self.folder / "usage").open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX, len(self.usage.slot))
            yield

    def messages(self) -> list[str]:
        """The texts in the ring, oldest first."""
        entries = [entry for entry in self.usage.ring if entry.number != 0]
        ordered = sorted(entries, key=lambda entry: int(entry.number))
        return [ffi.buffer(entry.text)[:].partition(b"\0")[0].decode() for entry in ordered]

    def _make(self, name: str, magic: str, layout: str) -> None:
        header: Any = ffi.new("struct vgpu_header *")
        constants: Any = ffi.dlopen(None)
        header.magic = getattr(constants, magic)
        header.major = constants.VGPU_ABI_MAJOR
        header.size = ffi.sizeof(layout)
        path = self.folder / name
        path.write_bytes(ffi.buffer(header)[:].ljust(ffi.sizeof(layout), b"\0"))
        path.chmod(0o666)

    def _map(self, name: str, layout: str) -> Any:  # noqa: ANN401 (a cffi structure)
        with (self.folder / name).open("r+b") as file:
            buffer = ffi.from_buffer(mmap.mmap(file.fileno(), 0))
        self._buffers.append(buffer)
        return ffi.cast(layout, buffer)
