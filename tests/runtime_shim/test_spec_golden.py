# SPDX-License-Identifier: Apache-2.0
"""Whole bundles as engines write them: what is taken out, what is put in.

Adding a case is adding a folder: `config.json` as the engine wrote it, `edits.json` with the
arguments of strip_gpu and of apply_edits, `want.json`, and `removed.txt`, a sentence a line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime_shim.spec import Spec, apply_edits
from runtime_shim.strip import strip_gpu
from tests.runtime_shim.specs import GOLDEN, edits_of, load

CASES = sorted(GOLDEN.iterdir())


def edited(case: Path, spec: Spec) -> tuple[Spec, list[str]]:
    arguments = load(case / "edits.json")
    stripped, removed = strip_gpu(spec, **arguments["strip"])
    return apply_edits(stripped, edits_of(arguments["edits"])), removed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bundle_becomes_what_its_container_was_promised(case: Path) -> None:
    got, removed = edited(case, load(case / "config.json"))

    assert got == load(case / "want.json")
    assert removed == (case / "removed.txt").read_text().splitlines()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_second_create_of_the_same_bundle_changes_nothing(case: Path) -> None:
    want = load(case / "want.json")

    got, _ = edited(case, want)

    assert got == want


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_engines_own_spec_is_not_changed_in_place(case: Path) -> None:
    spec = load(case / "config.json")

    edited(case, spec)

    assert spec == load(case / "config.json")
