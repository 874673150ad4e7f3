# SPDX-License-Identifier: Apache-2.0
"""The node side: launcher, node agent and vgpuctl."""

__version__ = "0.1.0"
