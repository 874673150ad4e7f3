# SPDX-License-Identifier: Apache-2.0
"""The bundle editor's fuzzed properties, a little of each; `make fuzz` tries them for long."""

from pathlib import Path

from hypothesis import given, settings

from runtime_shim.bundle import render_spec
from tests.fuzz.bundle import (
    PLAUSIBLE,
    RUNNABLE,
    Sample,
    check_edit,
    check_seen,
    check_size,
    repeated,
    written,
)


@settings(max_examples=60, deadline=None)
@given(raw=written() | PLAUSIBLE.map(render_spec))
def test_every_file_ends_in_a_refusal_or_holds_what_it_should(raw: bytes) -> None:
    check_edit(raw)


@settings(max_examples=60, deadline=None)
@given(raw=written())
def test_the_launcher_sees_what_the_agent_would_edit(raw: bytes) -> None:
    check_seen(raw)


def test_cost_grows_with_the_size() -> None:
    check_size()


def test_runc_starts_what_it_started_before(scratch: Path, needs_root: None) -> None:
    sample = Sample(scratch)

    repeated(sample.check, RUNNABLE.map(render_spec), 15)

    assert sample.started > 0
