# SPDX-License-Identifier: Apache-2.0
"""Which engines are tested, and where each version comes from."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.engines.base import Engine, Setup
from tests.testbed.engines.conmon import Conmon
from tests.testbed.engines.containerd import Ctr
from tests.testbed.engines.docker import DockerEngine
from tests.testbed.engines.podman import Podman
from tests.testbed.engines.runtime import Runtime
from tests.testbed.packages import UnobtainableError, obtain

SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


@dataclass(frozen=True)
class Candidate:
    """One engine and version of the matrix."""

    name: str
    make: Callable[[Setup, Path | None], Engine]
    programs: Sequence[str]
    """Below a root of packages; the last is the low-level runtime where that is what varies."""
    packages: Sequence[str] = ()
    suite: str | None = None
    """A suite of Debian whose packages are unpacked; None takes what is installed."""
    low_level: str = "runc"

    def obtain(self) -> Path | None:
        """Return the root of the unpacked packages; None where the programs are installed."""
        if self.suite is not None:
            return obtain(self.suite, self.packages, programs=self.programs)
        for program in self.programs:
            if shutil.which(Path(program).name, path=SEARCH) is None:
                raise UnobtainableError(f"{program} is not installed: run `make setup`")
        return None

    def runtime(self, binaries: Path | None) -> Path:
        """Return the low-level runtime below the launcher."""
        if binaries is not None:
            for program in self.programs:
                if Path(program).name == self.low_level:
                    return binaries / program
        found = shutil.which(self.low_level, path=SEARCH)
        if found is None:
            raise UnobtainableError(f"{self.low_level} is not installed: run `make setup`")
        return Path(found)


def _runtime(setup: Setup, _: Path | None) -> Engine:
    return Runtime(setup)


def _conmon(setup: Setup, _: Path | None) -> Engine:
    return Conmon(setup)


RUNC = ("usr/sbin/runc",)
CRUN = ("usr/bin/crun",)
DOCKER = ("usr/sbin/dockerd", "usr/bin/docker", "usr/bin/containerd")
DOCKER_PACKAGES = ("docker.io", "docker-cli", "containerd")
CONTAINERD = ("usr/bin/containerd", "usr/bin/ctr", "usr/bin/containerd-shim-runc-v2")
PODMAN = ("usr/bin/podman", "usr/bin/conmon")
PODMAN_5 = (*PODMAN, "usr/lib/podman/netavark")
PODMAN_PACKAGES = ("podman", "conmon", "netavark")

CANDIDATES = (
    Candidate("runc-installed", _runtime, RUNC),
    Candidate("runc-sid", _runtime, RUNC, ("runc",), "sid"),
    Candidate("crun-installed", _runtime, CRUN, low_level="crun"),
    Candidate("crun-trixie", _runtime, CRUN, ("crun",), "trixie", low_level="crun"),
    Candidate("crun-sid", _runtime, CRUN, ("crun",), "sid", low_level="crun"),
    Candidate("docker-installed", DockerEngine, DOCKER),
    Candidate("docker-trixie", DockerEngine, DOCKER, DOCKER_PACKAGES, "trixie"),
    Candidate("docker-sid", DockerEngine, DOCKER, DOCKER_PACKAGES, "sid"),
    Candidate("ctr-installed", Ctr, CONTAINERD),
    Candidate("ctr-trixie", Ctr, CONTAINERD, ("containerd",), "trixie"),
    Candidate("ctr-sid", Ctr, CONTAINERD, ("containerd",), "sid"),
    Candidate("podman-installed", Podman, PODMAN),
    Candidate("podman-trixie", Podman, PODMAN_5, PODMAN_PACKAGES, "trixie"),
    Candidate("crio-by-conmon", _conmon, ("usr/bin/conmon",)),
)

CRI_CANDIDATES = (
    Candidate("cri-installed", Ctr, CONTAINERD),
    Candidate("cri-trixie", Ctr, CONTAINERD, ("containerd",), "trixie"),
    Candidate("cri-sid", Ctr, CONTAINERD, ("containerd",), "sid"),
)
