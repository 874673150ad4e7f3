# SPDX-License-Identifier: Apache-2.0
"""The agent's configuration: one TOML file into one frozen value, checked at load."""

from __future__ import annotations

import dataclasses
import json
import socket
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime_shim.errors import ConfigError
from runtime_shim.strip import DENIABLE

T = typing.TypeVar("T")

DEFAULT_PATH = Path("/etc/vgpu/agent.toml")

# NVIDIA's names for what of the driver a container gets.
# Source: NVIDIA container toolkit, supported-driver-capabilities.
DRIVER_CAPABILITIES = frozenset(
    {"compat32", "compute", "display", "graphics", "ngx", "utility", "video"}
)


# Source: docs/dialects.md.
DIALECTS = ("native", "hami", "volcano", "koordinator", "kai", "gpu_manager", "alnair")


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Where the agent's files are."""

    socket: Path = Path("/run/vgpu/agent.sock")
    """Where launchers ask; ignored when systemd passes a listening socket."""
    run_dir: Path = Path("/run/vgpu")
    """Holds `containers/`; gone after a reboot, as the containers are."""
    state_dir: Path = Path("/var/lib/vgpu/agent")
    """Holds `lock` and `answers/`; survives a reboot."""
    library: Path = Path("/usr/lib/vgpu/current/libvgpu.so")
    """What containers preload. Links are resolved once per create and the versioned file is
    mounted, so that an upgrade never changes a file that a process has mapped."""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """How the scheduler cache is reached."""

    address: str = "unix:/run/vgpu/cache.sock"
    """A gRPC target; in local mode the socket of the same host."""
    try_seconds: float = 2.0
    """One call's deadline. A known container waits this long in all before its stored answer."""
    total_seconds: float = 8.0
    """All tries of one create, below the launcher's own 10 s."""
    ca: str = ""
    """PEM of the authority that signed the cache's certificate; needed with a TCP address."""
    certificate: str = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    """PEM that proves this node; the kubelet's own one does, and the kubelet renews it."""
    key: str = ""
    """PEM of its key; empty: in the same file."""
    token: str = ""
    """File of a projected service account token, which proves the node instead, at the cache's
    other port; it needs API server 1.30 and `node_name`."""
    server_name: str = ""
    """The name in the cache's certificate, where it is not the address's."""

    def __post_init__(self) -> None:
        if not 0 < self.try_seconds <= self.total_seconds:
            raise ConfigError("cache: 0 < try_seconds <= total_seconds must hold")
        if not self.address:
            raise ConfigError("cache.address is empty")
        if "$(" in self.address:  # what a kubelet leaves of a variable that it does not know
            raise ConfigError(
                f"cache.address is {self.address!r}: no Service of that name was there when this"
                " pod started; the pod's next start finds it"
            )
        for name in ("ca", "certificate", "key", "token"):
            path = getattr(self, name)
            if path and not path.startswith("/"):
                raise ConfigError(f"cache.{name} must be an absolute path")

    def key_path(self) -> str:
        """Return where the certificate's key is."""
        return self.key or self.certificate


@dataclass(frozen=True, kw_only=True)
class Driver:
    """Where the NVIDIA driver is, when it is not where the loader finds it."""

    nvml_library: str = ""
    """Path of libnvidia-ml.so.1; empty: found by soname."""
    root: Path = Path("/")
    """The folder under which the driver's /dev, /proc and libraries are looked for."""
    library_dirs: tuple[Path, ...] = ()
    """Folders searched for driver libraries before the loader's own."""
    cdi_dirs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    """CDI's own two folders. Source: CDI specification, "Where are CDI files located"."""
    unified_memory_bytes: int = 0
    """What a board that shares the host's memory has to give, of which its driver says nothing. 0:
    such a card is reported as unhealthy, and the others are used."""

    def __post_init__(self) -> None:
        if self.unified_memory_bytes < 0:
            raise ConfigError("driver.unified_memory_bytes must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class GpuRuntime:
    """Whether another runtime gives containers their devices."""

    enabled: bool = False
    """True: the launcher executes its `gpu_runtime` for a container with a slice, and the agent
    adds no device of its own. It must agree with /etc/vgpu/runtime.conf."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Who may read what is measured."""

    listen: str = ""
    """`ADDRESS:PORT` on which /metrics is served, `[ADDRESS]:PORT` for IPv6; empty: nowhere. It is
    plain HTTP and names pods and containers, so it is off until somebody wants it; on a host by
    itself 127.0.0.1:9482 is the place."""

    def __post_init__(self) -> None:
        if self.listen:
            self.host_port()

    def host_port(self) -> tuple[str, int]:
        """Return the two parts. Raises ConfigError."""
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(
                f"metrics.listen must be ADDRESS:PORT, such as 127.0.0.1:9482, not {self.listen!r}"
            )
        return host.strip("[]"), int(port)


@dataclass(frozen=True, kw_only=True)
class DevicePlugin:
    """What the kubelet is told, and asked. Kubernetes mode only."""

    dialects: tuple[str, ...] = ("native",)
    """Whose resources this node advertises: those of the plugins whose place we take. Koordinator
    and KAI have none here, their own agents stay."""
    claim_bare_gpu: bool = False
    """HAMi's `nvidia.com/gpu` is also the name of NVIDIA's own plugin. True: it is HAMi's here, and
    that plugin does not run on this node; it must agree with the scheduler cache's."""
    volcano_memory_factor: int = 1
    """MiB in one `volcano.sh/vgpu-memory`, as in Volcano's own configuration (gpuMemoryFactor)."""
    kubelet_dir: Path = Path("/var/lib/kubelet")
    """Holds `device-plugins/kubelet.sock` and `pod-resources/kubelet.sock`."""
    whole_card_resources: tuple[str, ...] = ("nvidia.com/gpu", "nvidia.com/mig-*")
    """Resources of other plugins by which the kubelet vouches for a container's whole cards; with
    `*` and `?`. No other resource of a plugin says anything about GPUs."""

    def __post_init__(self) -> None:
        for dialect in self.dialects:
            _one_of("device_plugin.dialects", dialect, DIALECTS)
        if len(set(self.dialects)) < len(self.dialects):
            raise ConfigError("device_plugin.dialects names one twice")
        if not 1 <= self.volcano_memory_factor <= 1 << 20:
            raise ConfigError("device_plugin.volcano_memory_factor must be 1..1048576 MiB")
        for pattern in self.whole_card_resources:
            if "/" not in pattern or pattern.startswith(("*", "?", "vgpu.dev/")):
                raise ConfigError(
                    "device_plugin.whole_card_resources holds DOMAIN/NAME patterns of other"
                    f" plugins' resources, not {pattern!r}"
                )


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What is a matter of taste on a node."""

    unmanaged: str = "void"
    """A container that asks for no slice: `void` hides every GPU, `allow` leaves it alone."""
    unmanaged_allow: tuple[str, ...] = ()
    """Kubernetes: `NAMESPACE/POD` patterns (`*`, `?`) of pods without a slice that are left alone:
    NVIDIA's own plugin, exporter and driver pods. Each use is logged."""
    require_uuid: bool = False
    """Kubernetes: refuse a container with a slice that lost its VGPU_CONTAINER_UUID. By default its
    pod and name are enough, since a webhook may be away when a pod is made."""
    driver_capabilities: tuple[str, ...] = ("compute", "utility", "video")
    """The most that NVIDIA_DRIVER_CAPABILITIES may name; display and graphics open other doors."""
    preload_env: str = "refuse"
    """An image whose /etc cannot take the mount of ld.so.preload: `refuse`, or `allow` LD_PRELOAD
    instead, which `docker exec` does not pass on."""
    sys_admin: str = "refuse"
    """A container with a slice and CAP_SYS_ADMIN, which can unmount what limits it: `refuse`, or
    `allow` it, which is logged as weak isolation each time."""
    deny: tuple[str, ...] = ()
    """Kinds of hostile input for which a container with a slice is refused; without it they are
    taken out and logged. docs/security.md lists them."""
    slots_per_card: int = 10
    """Most slices on one card; each costs a context of some hundred MiB on a real one."""
    over_limit: str = "event"
    """A container of which NVML sees more on a card than its limit and a slack: `event` logs it,
    `kill` also ends its processes on that card."""
    over_limit_seconds: float = 30.0
    """How long it must be above without a break: memory changes hands in less."""
    unhooked: str = "event"
    """A process of a container with a slice that computes without libvgpu: `event` or `kill`."""
    foreign: str = "event"
    """A process of a container without a slice on a card that has slices: `event` or `kill`, which
    needs a node where no other runtime gives out these cards."""

    def __post_init__(self) -> None:
        _one_of("policy.unmanaged", self.unmanaged, ("void", "allow"))
        for pattern in self.unmanaged_allow:
            if pattern.count("/") != 1:
                raise ConfigError(
                    f"policy.unmanaged_allow holds NAMESPACE/POD patterns, not {pattern!r}"
                )
        _one_of("policy.preload_env", self.preload_env, ("refuse", "allow"))
        _one_of("policy.sys_admin", self.sys_admin, ("refuse", "allow"))
        for kind in self.deny:
            _one_of("policy.deny", kind, tuple(sorted(DENIABLE)))
        unknown = set(self.driver_capabilities) - DRIVER_CAPABILITIES
        if unknown or not self.driver_capabilities:
            known = ", ".join(sorted(DRIVER_CAPABILITIES))
            raise ConfigError(f"policy.driver_capabilities must name some of: {known}")
        if not 1 <= self.slots_per_card <= 1024:
            raise ConfigError("policy.slots_per_card must be 1..1024")
        _one_of("policy.over_limit", self.over_limit, ("event", "kill"))
        _one_of("policy.unhooked", self.unhooked, ("event", "kill"))
        _one_of("policy.foreign", self.foreign, ("event", "kill"))
        if self.foreign == "kill" and self.unmanaged == "allow":
            raise ConfigError(
                "policy.foreign = kill would end what policy.unmanaged = allow lets in"
            )
        if not 1 <= self.over_limit_seconds <= 3600:
            raise ConfigError("policy.over_limit_seconds must be 1..3600")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that /etc/vgpu/agent.toml says."""

    mode: str = "local"
    """Where answers come from: `local` asks the host's own scheduler cache what a container's
    variables ask for; `kubernetes` asks the cluster's what its pod was given."""
    node_name: str = field(default_factory=socket.gethostname)
    """The name under which this node reports; the one in the certificate goes before it."""
    paths: Paths = field(default_factory=Paths)
    cache: Cache = field(default_factory=Cache)
    driver: Driver = field(default_factory=Driver)
    gpu_runtime: GpuRuntime = field(default_factory=GpuRuntime)
    device_plugin: DevicePlugin = field(default_factory=DevicePlugin)
    policy: Policy = field(default_factory=Policy)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, ("local", "kubernetes"))
        if not self.node_name:
            raise ConfigError("node_name is empty")


def load_config(path: Path) -> Config:
    """Return the configuration in the file at `path`.

    Raises ConfigError, which names the file and the key, for anything unknown or of a wrong type.
    """
    try:
        text = path.read_bytes().decode()
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    try:
        return _group(Config, table, "")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def render_config(config: Config) -> str:
    """Return the configuration as the TOML that would give it again."""
    lines: list[str] = []
    groups: list[str] = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            groups.append(f"\n[{item.name}]")
            groups += [
                f"{inner.name} = {_toml(getattr(value, inner.name))}"
                for inner in dataclasses.fields(value)
            ]
        else:
            lines.append(f"{item.name} = {_toml(value)}")
    return "\n".join(lines + groups) + "\n"


def _group(cls: type[T], table: dict[str, Any], where: str) -> T:
    types = typing.get_type_hints(cls)
    unknown = sorted(set(table) - set(types))
    if unknown:
        raise ConfigError(f"unknown key {where}{unknown[0]}")
    return cls(**{key: _value(types[key], item, where + key) for key, item in table.items()})


def _value(kind: object, item: object, name: str) -> object:
    if dataclasses.is_dataclass(kind):
        if not isinstance(item, dict):
            raise ConfigError(f"{name} must be a table")
        return _group(typing.cast(type[object], kind), item, f"{name}.")
    if typing.get_origin(kind) is tuple:
        if not isinstance(item, list):
            raise ConfigError(f"{name} must be a list")
        return tuple(_value(typing.get_args(kind)[0], each, name) for each in item)
    if kind is Path:
        if not isinstance(item, str) or not item.startswith("/"):
            raise ConfigError(f"{name} must be an absolute path")
        return Path(item)
    if kind is float and isinstance(item, int) and not isinstance(item, bool):
        return float(item)
    if type(item) is not kind:
        words: dict[object, str] = {
            str: "a string",
            bool: "true or false",
            int: "a whole number",
            float: "a number",
        }
        raise ConfigError(f"{name} must be {words[kind]}")
    return item


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value)  # TOML's strings, numbers and booleans are JSON's here
