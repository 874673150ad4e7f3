# SPDX-License-Identifier: Apache-2.0
"""`python -m scripts.locks` names what of the lock files does not match their inputs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.locks import LOCKS, faults
from tests.testbed import REPOSITORY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the locks and their inputs."""
    for name in {*LOCKS, *(each for inputs in LOCKS.values() for each in inputs)}:
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def without_hashes(text: str) -> str:
    return re.sub(r"^(click==\S+) \\\n(?:    --hash=\S+(?: \\)?\n)+", r"\1\n", text, flags=re.M)


def test_the_committed_locks_match(folder: Path) -> None:
    assert list(faults(folder)) == []


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (
            "requirements.txt",
            lambda text: text + "six>=1\n",
            "six>=1 is missing (Python 3.13, aarc",
        ),
        (
            "requirements.txt",
            lambda text: text + 'six>=1; python_version >= "3.13"\n',
            'requirements.lock: six>=1; python_version >= "3.13" is missing (Python 3.13, x86_64)',
        ),
        (
            "requirements-kube.txt",
            lambda text: re.sub(r"msgspec>=\S+", "msgspec>=99", text),
            "requirements-kube.lock: msgspec>=99 is not satisfied by 0.",
        ),
        (
            "requirements-dev.txt",
            lambda text: text.replace("pytest-xdist", "# pytest-xdist"),
            "is no longer in requirements-dev.txt",
        ),
        ("requirements.lock", without_hashes, "has no hash"),
        (
            "requirements.lock",
            lambda text: re.sub(r"^click==\S+", "click>=8.1", text, flags=re.M),
            "requirements.lock: click>=8.1 names no single version",
        ),
        (
            "requirements-kube.lock",
            lambda text: re.sub(r"^click==\S+", "click==8.1.0", text, flags=re.M),
            "requirements-kube.lock: click 8.1.0, but the tests use 8.",
        ),
        (
            "requirements-dev.lock",
            lambda text: "--index-url https://index.example/simple\n" + text,
            "a lock holds packages alone, no option and no address",
        ),
        (
            "requirements-dev.lock",
            lambda text: text + "six @ https://index.example/six.whl\n",
            "a lock holds packages alone, no option and no address",
        ),
        ("requirements.lock", lambda text: "", "requirements.lock: grpcio>=1.51 is missing"),
    ],
)
def test_a_difference_is_named(
    folder: Path, name: str, change: Callable[[str], str], sentence: str
) -> None:
    before = (folder / name).read_text()
    assert change(before) != before
    (folder / name).write_text(change(before))

    assert sentence in "\n".join(faults(folder))
