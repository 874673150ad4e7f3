# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in fresh roots of Debian, with real dpkg, real runc and a simulated GPU."""
