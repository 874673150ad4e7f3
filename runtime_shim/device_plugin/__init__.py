# SPDX-License-Identifier: Apache-2.0
"""What this node offers to the kubelet: slots of its cards, which decide nothing about cards."""
