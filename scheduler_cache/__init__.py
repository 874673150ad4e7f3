# SPDX-License-Identifier: Apache-2.0
"""The cluster side: who owns which slice of which card."""

__version__ = "0.1.0"
