# SPDX-License-Identifier: Apache-2.0
"""Other systems' real schedulers beside ours (`make test-schedulers`); docs/schedulers.md."""
