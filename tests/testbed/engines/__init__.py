# SPDX-License-Identifier: Apache-2.0
"""One way to speak to every engine: `base.Engine`, spoken as each engine's user does.

An engine's processes, images and containers live below the directory that the caller gives.
"""
