# SPDX-License-Identifier: Apache-2.0
"""Checks the NVIDIA driver and NVML."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runtime_shim import config
from runtime_shim.devices import DriverFiles
from runtime_shim.doctor.finding import Finding, fail, ok, warn
from runtime_shim.driver import discover_driver
from runtime_shim.errors import InventoryError
from runtime_shim.inventory import CardFacts, PyNvml

_NVML_SECONDS = 20.0


def check_driver(where: config.Driver) -> Finding:
    """Look for the driver's nodes and libraries."""
    files = discover_driver(where)
    if not files.cards:
        remedy = "install the NVIDIA driver and load it: modprobe nvidia"
        if files.kernel_module:
            remedy = "let the driver make its nodes: nvidia-smi, or nvidia-modprobe -c 0"
        return fail("driver", f"there is no /dev/nvidiaN under {where.root}", remedy)
    names = {library.name for library in files.libraries}
    missing = [name for name in ("libcuda.so.1", "libnvidia-ml.so.1") if name not in names]
    if missing:
        return fail(
            "driver",
            f"{missing[0]} of driver {files.version or 'unknown'} is not found",
            "install the driver's libraries, or name their folder in driver.library_dirs "
            "of agent.toml",
        )
    return _versions(files)


def _versions(files: DriverFiles) -> Finding:
    cards = "1 card" if len(files.cards) == 1 else f"{len(files.cards)} cards"
    libcuda = next(each for each in files.libraries if each.name == "libcuda.so.1")
    version = libcuda.path.rpartition("libcuda.so.")[2]
    # Only a library of a released driver carries its version in its name.
    if files.version and version.count(".") and version != files.version:
        return fail(
            "driver",
            f"the kernel's driver is {files.version} and its libraries are {version}",
            "reboot, or load the new driver, after a driver upgrade",
        )
    return ok("driver", f"version {files.version or 'unknown'}, {cards}")


def check_nvml(where: config.Driver) -> Finding:
    """Ask NVML for the cards; it may hang, so it is given a while."""
    answer: list[list[CardFacts] | InventoryError] = []

    def ask() -> None:
        try:
            answer.append(PyNvml(where.nvml_library).cards())
        except InventoryError as error:
            answer.append(error)

    if not _in_time(ask):
        return fail(
            "nvml",
            f"NVML gives no answer within {_NVML_SECONDS:g} s",
            "see `dmesg | grep -i nvrm`; a card that has fallen off its bus needs a reboot",
        )
    (found,) = answer
    if isinstance(found, InventoryError):
        return fail(
            "nvml",
            str(found),
            "run nvidia-smi; libnvidia-ml.so.1 elsewhere is named by driver.nvml_library",
        )
    if not found:
        return warn("nvml", "NVML lists no card", "see nvidia-smi -L")
    names = ", ".join(f"{card.model} {card.memory_bytes >> 20} MiB" for card in found)
    return ok("nvml", f"{len(found)} of {names}" if len(found) == 1 else names)


def _in_time(action: Callable[[], None]) -> bool:
    """Run `action` in a thread that is left behind when it hangs."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(_NVML_SECONDS)
    return not thread.is_alive()
