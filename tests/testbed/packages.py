# SPDX-License-Identifier: Apache-2.0
"""Programs of other Debian suites, unpacked beside the host's own and never installed.

The mirror is the one this machine's apt already uses; only the suite differs. What was unpacked
stays in `$XDG_CACHE_HOME/vgpu-engines/<package>_<version>` and is used again, also offline.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LISTS_SECONDS = 24 * 3600
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class UnobtainableError(Exception):
    """A package of another suite cannot be had here; the text says why."""


def cache_directory() -> Path:
    """Return where unpacked packages are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vgpu-engines"


def obtain(suite: str, packages: Sequence[str], *, programs: Sequence[str]) -> Path:
    """Return the root of `packages` of a Debian suite, unpacked; the first names the version.

    `programs` are paths below the root. One that is linked against a newer C library than the
    host's gets its own suite's loader and libraries. Raises `UnobtainableError`.
    """
    with _locked(suite):
        return _Suite(suite).unpacked(packages, programs)


class _Suite:
    def __init__(self, name: str) -> None:
        self.name = name
        self._home = cache_directory() / "suites" / name
        self._options = [
            f"Dir::Etc::SourceParts={self._home}/sources",
            "Dir::Etc::SourceList=/dev/null",
            "Dir::Etc::PreferencesParts=/dev/null",
            f"Dir::State::Lists={self._home}/lists",
            # Nothing counts as installed, so that "install" names all that a program is linked to.
            "Dir::State::status=/dev/null",
            f"Dir::Cache={self._home}/cache",
            "APT::Sandbox::User=root",
            "APT::Install-Recommends=false",
            "Acquire::Retries=3",
            "Debug::NoLocking=true",  # ours alone: see _locked
        ]

    def unpacked(self, packages: Sequence[str], programs: Sequence[str]) -> Path:
        try:
            self._update()
            version = self._version(packages[0])
        except UnobtainableError:
            return self._latest(packages[0])
        target = cache_directory() / f"{packages[0]}_{version}"
        if not target.is_dir():
            self._unpack(packages, programs, target)
        latest = self._home / f"latest-{packages[0]}"
        latest.unlink(missing_ok=True)
        latest.symlink_to(target)
        return target

    def _latest(self, package: str) -> Path:
        """Return what an earlier run unpacked; the mirror does not answer now."""
        latest = self._home / f"latest-{package}"
        if not latest.is_dir():
            raise UnobtainableError(f"apt's mirror does not give {package} of {self.name}")
        return latest.resolve()

    def _update(self) -> None:
        stamp = self._home / "updated"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < LISTS_SECONDS:
            return
        for folder in ("sources", "lists/partial", "cache/archives/partial"):
            (self._home / folder).mkdir(parents=True, exist_ok=True)
        (self._home / "sources/suite.sources").write_text(
            f"Types: deb\nURIs: {mirror()}\nSuites: {self.name}\nComponents: main\n"
            f"Signed-By: {KEYRING}\n"
        )
        self._apt("apt-get", "update", "-qq", "-o", "APT::Update::Error-Mode=any")
        stamp.touch()

    def _version(self, package: str) -> str:
        shown = self._apt("apt-cache", "show", "--no-all-versions", package)
        for line in shown.splitlines():
            if line.startswith("Version: "):
                return line.removeprefix("Version: ").strip().replace(":", "-")
        raise UnobtainableError(f"{self.name} has no package {package}")

    def _unpack(self, packages: Sequence[str], programs: Sequence[str], target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self._home) as name:
            root = Path(name) / "root"
            self._download(packages, Path(name), root)
            foreign = [path for path in programs if not _is_loadable(root / path)]
            if foreign:
                wanted = self._apt("apt-get", "install", "-y", "-qq", "--print-uris", *packages)
                names = [line.split()[1].partition("_")[0] for line in wanted.splitlines()]
                self._download([n for n in names if n.startswith("lib")], Path(name), root)
            for path in foreign:
                _relink(root / path, root, target)
            root.chmod(0o755)
            root.rename(target)

    def _download(self, packages: Sequence[str], folder: Path, root: Path) -> None:
        self._apt("apt-get", "download", "-qq", *packages, cwd=folder)
        for archive in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
            archive.unlink()

    def _apt(self, program: str, *words: str, cwd: Path | None = None) -> str:
        if shutil.which(program) is None:
            raise UnobtainableError(f"{program} is not here: this host is not a Debian one")
        options = [word for option in self._options for word in ("-o", option)]
        try:
            done = subprocess.run(
                [program, *options, *words], cwd=cwd, capture_output=True, text=True, timeout=300
            )
        except subprocess.TimeoutExpired as error:
            raise UnobtainableError(f"{program} {words[0]} of {self.name}: no end") from error
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UnobtainableError(f"{program} {words[0]} of {self.name}: {last}")
        return done.stdout


def mirror() -> str:
    """Return the mirror from which this host's apt takes its own suite of Debian.

    Raises `UnobtainableError`.
    """
    template = "$(ORIGIN) $(COMPONENT) $(RELEASE) $(REPO_URI)"
    try:
        listed = subprocess.run(
            ["apt-get", "indextargets", "--format", template, "Created-By: Packages"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UnobtainableError("apt names no mirror here") from error
    for line in listed.splitlines():
        origin, component, release, uri = line.split(maxsplit=3)
        if (origin, component) == ("Debian", "main") and "-" not in release:
            return uri
    raise UnobtainableError("apt has no mirror of Debian here")


def _is_loadable(program: Path) -> bool:
    listing = subprocess.run(["ldd", str(program)], capture_output=True, text=True)
    text = listing.stdout + listing.stderr
    return "not found" not in text


def _relink(program: Path, root: Path, target: Path) -> None:
    """Make `program` start with the loader and libraries below `root`, once that is `target`.

    Starting it through the loader would not do: runc and others start themselves anew by
    /proc/self/exe.
    """
    patchelf = shutil.which("patchelf")
    if patchelf is None:
        raise UnobtainableError("patchelf is not installed: run `make setup`")
    libc = next(root.glob("usr/lib/*/libc.so.6"))
    loader = next(iter(root.glob("usr/lib64/ld-linux-*.so.*")), None) or next(
        root.glob("usr/lib/ld-linux-*.so.*")
    )
    subprocess.run(
        [
            patchelf,
            "--set-interpreter",
            str(target / loader.relative_to(root)),
            "--force-rpath",
            "--set-rpath",
            str(target / libc.parent.relative_to(root)),
            str(program),
        ],
        check=True,
    )


@contextmanager
def _locked(suite: str) -> Iterator[None]:
    """Let one process at a time use a suite's lists."""
    home = cache_directory() / "suites"
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
