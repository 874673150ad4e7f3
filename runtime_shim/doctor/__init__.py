# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl doctor`: looks whether this node can give slices, part by part. Changes nothing."""
