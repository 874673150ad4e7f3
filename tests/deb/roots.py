# SPDX-License-Identifier: Apache-2.0
"""Fresh roots of Debian releases, made once by mmdebstrap and kept as tar files.

`python -m tests.deb.roots` makes them and says whether that is possible here. The mirror is the one
from which this machine's apt takes Debian. A root runs in mount and PID namespaces of its own: when
its first process ends, every process and every mount of it is gone.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.testbed.packages import UnobtainableError, mirror

SUITES = ("bookworm", "trixie")
# Beside what the packages depend on: what makes a container, and what checks and reads the units.
_BESIDE = ("runc", "systemd")
_MMDEBSTRAP_SECONDS = 900

_SETUP = r"""
set -e
root=$1 shared=$2
mount --bind "$root" "$root"
mkdir -p "$root$shared"
mount --bind "$shared" "$root$shared"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/systemd/system" "$root/run/lock"
cd "$root"
pivot_root . mnt
umount -l /mnt
# The first process buries the others; it says that it is there, and waits for ever.
exec python3 -c 'import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()'
"""


class NoRootError(Exception):
    """A root cannot be made here; the text says why."""


def dependencies(control: str) -> list[str]:
    """Return the packages that a control file's Depends and Recommends name, without variables."""
    names = set()
    for paragraph in control.split("\n\n"):
        for field in _fields(paragraph):
            key, _, items = field.partition(":")
            for item in items.split(",") if key in ("Depends", "Recommends") else ():
                name = item.split("|")[0].split("(")[0].strip()
                if name and not name.startswith("$"):
                    names.add(name)
    return sorted(names)


def _fields(paragraph: str) -> list[str]:
    return paragraph.replace("\n ", " ").splitlines()


def tarball(suite: str, packages: Sequence[str]) -> Path:
    """Return the tar file of a root with `packages`, made when it is not there yet."""
    wanted = sorted({*packages, *_BESIDE})
    key = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "vgpu-debroots" / f"{suite}-{key}.tar"
    if path.exists():
        return path
    if os.geteuid() != 0:
        raise NoRootError("roots of Debian are made by root alone")
    if shutil.which("mmdebstrap") is None:
        raise NoRootError("mmdebstrap is not installed: run `scripts/setup deb`")
    path.parent.mkdir(parents=True, exist_ok=True)
    # mmdebstrap knows by its end what to write.
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(wanted)}"]
    try:
        done = subprocess.run(
            [*words, suite, str(unfinished), mirror()],
            capture_output=True,
            text=True,
            timeout=_MMDEBSTRAP_SECONDS,
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NoRootError(f"mmdebstrap {suite}: {last}")
        unfinished.rename(path)
    except subprocess.TimeoutExpired as error:
        raise NoRootError(f"mmdebstrap {suite}: no end") from error
    except UnobtainableError as error:
        raise NoRootError(str(error)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path


class Root:
    """A root that runs; `shared` is a directory with the same path inside and outside."""

    def __init__(self, directory: Path, archive: Path, shared: Path) -> None:
        self.directory = directory
        self.shared = shared
        directory.mkdir()
        subprocess.run(["tar", "-xf", str(archive), "-C", str(directory)], check=True)
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Root":
        # However this process ends, the root ends with it.
        words = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
        ]
        words += ["--kill-child=KILL", "sh", "-c", _SETUP, "sh"]
        self._holder = subprocess.Popen(
            [*words, str(self.directory), str(self.shared)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        if said != "ready\n":
            self._stop()
            raise NoRootError("the root's mounts could not be made")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def entering(self) -> list[str]:
        """The words that run a command inside, as its own users would."""
        assert self._holder is not None
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        first = children.read_text().split()[0]
        enter = ["nsenter", f"--target={first}", "--mount", "--pid", "--root", "--wd"]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [*enter, "env", "-i", path, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]

    def run(
        self,
        *words: str,
        env: Sequence[str] = (),
        check: bool = True,
        timeout_seconds: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside and return what it said; stderr is in stdout."""
        done = subprocess.run(
            [*self.entering, *env, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_seconds,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: exit {done.returncode}:\n{done.stdout}")
        return done

    def path(self, inside: str) -> Path:
        """Return where a file of the root is, seen from here; not for what is mounted there."""
        return self.directory / inside.lstrip("/")

    def _stop(self) -> None:
        if self._holder is not None:
            self._holder.send_signal(signal.SIGKILL)  # with it goes its child, and all of theirs
            self._holder.wait()
            assert self._holder.stdout is not None
            self._holder.stdout.close()


def main() -> int:
    """Make all roots; say in one line why that is not possible."""
    from tests.deb.packages import CONTROL

    try:
        for suite in SUITES:
            print(tarball(suite, dependencies(CONTROL.read_text())))
    except NoRootError as error:
        print(f"roots of Debian: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
