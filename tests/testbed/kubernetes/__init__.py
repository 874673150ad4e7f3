# SPDX-License-Identifier: Apache-2.0
"""Real Kubernetes in a scratch directory: a control plane alone, or a whole cluster of one node."""

from tests.testbed.kubernetes.control_plane import ControlPlane, control_plane
from tests.testbed.kubernetes.programs import UnavailableError

__all__ = ["ControlPlane", "UnavailableError", "control_plane"]
