# SPDX-License-Identifier: Apache-2.0
"""Everything stands in setup.cfg; `make hook` and `make install` build the C parts."""

import setuptools

setuptools.setup()
