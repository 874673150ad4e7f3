# SPDX-License-Identifier: Apache-2.0
"""The layout of the limits and usage files, read from the C header's own text; no I/O on them.

cffi in ABI mode: nothing is compiled, and there is no second description of the layout.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Final

import cffi

_HEADER = Path(__file__).with_name("vgpu_abi.h").read_text()
_DECLARATIONS = _HEADER.partition("/* abi: begin */")[2].partition("/* abi: end */")[0]

ffi: Final = cffi.FFI()
ffi.cdef(_DECLARATIONS)
constants: Final[Any] = ffi.dlopen(None)
"""The header's #define numbers, as attributes."""

LIMITS_BYTES: Final = ffi.sizeof("struct vgpu_limits")
USAGE_BYTES: Final = ffi.sizeof("struct vgpu_usage")
USAGE_HEADER_BYTES: Final = ffi.offsetof("struct vgpu_usage", "turn")
SLOT_OFFSET: Final = ffi.offsetof("struct vgpu_usage", "slot")
SLOT_BYTES: Final = ffi.sizeof("struct vgpu_usage_slot")

_KINDS = {"GPU-": constants.VGPU_KIND_GPU, "MIG-": constants.VGPU_KIND_MIG}


def card_identity(card_uuid: str) -> tuple[int, bytes]:
    """Return kind and 16-byte form of `GPU-…` or `MIG-…`; ValueError for anything else."""
    kind = _KINDS.get(card_uuid[:4])
    if kind is None:
        raise ValueError(f"{card_uuid!r} is neither a GPU- nor a MIG- UUID")
    try:
        return kind, uuid.UUID(card_uuid[4:]).bytes
    except ValueError:
        raise ValueError(f"{card_uuid!r} does not end in a UUID") from None


def fill_header(header: Any, magic: int, size: int) -> None:  # noqa: ANN401 - a cffi struct
    """Set the header that both files begin with."""
    header.magic = magic
    header.major = constants.VGPU_ABI_MAJOR
    header.minor = constants.VGPU_ABI_MINOR
    header.size = size
