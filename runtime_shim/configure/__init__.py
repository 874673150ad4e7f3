# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl configure`: makes an engine know our runtime, and takes it back; a module an engine."""
