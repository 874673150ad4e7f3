# SPDX-License-Identifier: Apache-2.0
"""What the kubelet speaks with a device plugin and tells about its pods."""
