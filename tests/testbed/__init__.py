# SPDX-License-Identifier: Apache-2.0
"""A scratch node with real runc, crun and dockerd, for tests and the demo.

Everything lives in one directory that the caller gives; the host's own engines are not touched.
"""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build"
