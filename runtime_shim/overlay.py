# SPDX-License-Identifier: Apache-2.0
"""Reads which folders an overlay mount is made of; pure.

Source: Linux, Documentation/filesystems/overlayfs.rst and fs/overlayfs/params.c: a comma ends an
option and a colon a lower folder, except behind a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_OPTION = re.compile(r"(?:[^,\\]|\\.)+", re.DOTALL)
_LAYER = re.compile(r"(?:[^:\\]|\\.)+", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)

# Each of these names one folder; of `lowerdir` several may stand together.
_FOLDER_KEYS = frozenset({"upperdir", "workdir", "lowerdir+", "datadir+"})


def overlay_folders(options: str) -> Iterator[str]:
    """Yield each folder that the options of an overlay mount name, without escapes."""
    for option in _OPTION.findall(options):
        key, _, value = option.partition("=")
        if key == "lowerdir":
            yield from (_plain(layer) for layer in _LAYER.findall(value))
        elif key in _FOLDER_KEYS:
            yield _plain(value)


def _plain(text: str) -> str:
    return _ESCAPE.sub(r"\1", text)
