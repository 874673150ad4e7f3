# SPDX-License-Identifier: Apache-2.0
"""The configuration: one TOML file into one frozen value, checked at load.

Flags of the command line win over the file, the file over the defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from scheduler_cache.config_kubernetes import KubernetesConfig
from scheduler_cache.errors import ConfigError
from scheduler_cache.model import CardPolicy

DEFAULT_PATH = Path("/etc/vgpu/scheduler-cache.toml")

CARD_POLICIES = tuple(policy.value for policy in CardPolicy)
LOG_FORMATS = ("text", "json")

_KUBERNETES = KubernetesConfig()
_FLAG = "kubernetes_"

_KINDS: tuple[tuple[type, str], ...] = (
    (Path, "a path"),
    (tuple, "a list of strings"),
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "a string"),
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """How the scheduler cache runs."""

    embedded: bool = False
    """Serve this host alone, with the state in SQLite. Off: the Kubernetes mode; off by default, so
    that no host of a cluster becomes its own authority by mistake."""
    state_dir: Path = Path("/var/lib/vgpu/cache")
    """Holds `state.db` and `lock`; survives a reboot, as containers do."""
    listen: tuple[str, ...] = ("unix:/run/vgpu/cache.sock",)
    """`unix:PATH` (made with mode 0600) or HOST:PORT on loopback."""
    card_policy: str = "binpack"
    """For requests that name none. Binpack keeps whole cards free for those who need one."""
    stopped_grace_seconds: float = 10.0
    """How long a stopped container's slice is safe: longer than an engine's restart takes."""
    watch_queue_length: int = 1024
    """Changes that may wait for one slow watcher before its stream is ended: more than a host has
    containers, small beside the process."""
    drain_seconds: float = 2.0
    """How long calls under way may take after SIGTERM: what an agent waits for one answer."""
    log_format: str = "text"
    """`text` for people and journald, `json` for collectors."""
    kubernetes: KubernetesConfig = _KUBERNETES
    """Of the Kubernetes mode alone."""

    def __post_init__(self) -> None:
        if not self.listen:
            raise ConfigError("listen is empty")
        if self.card_policy not in CARD_POLICIES:
            raise ConfigError(f"card_policy must be one of {', '.join(CARD_POLICIES)}")
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(f"log_format must be one of {', '.join(LOG_FORMATS)}")
        if self.stopped_grace_seconds < 0 or self.drain_seconds < 0:
            raise ConfigError("stopped_grace_seconds and drain_seconds must not be negative")
        if self.watch_queue_length < 1:
            raise ConfigError("watch_queue_length must be 1 or more")

    @classmethod
    def load(cls, path: Path | None, flags: Mapping[str, object] | None = None) -> Config:
        """Return the file at `path` with `flags` on top; `kubernetes_KEY` is a key of the table.

        None means the default path, where a missing file is an empty one.
        """
        try:
            table = tomllib.loads((path or DEFAULT_PATH).read_text())
        except FileNotFoundError as error:
            if path is not None:
                raise ConfigError(f"{path}: {error.strerror}") from error
            table = {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path or DEFAULT_PATH}: {error}") from error
        try:
            values = {**_checked(table, cls), **(flags or {})}
            nested = {
                name.removeprefix(_FLAG): values.pop(name)
                for name in list(values)
                if name.startswith(_FLAG)
            }
            config = cls(**values)
            return replace(config, kubernetes=replace(config.kubernetes, **nested))
        except ConfigError as error:
            raise ConfigError(f"{path or DEFAULT_PATH}: {error}") from None

    @property
    def stopped_grace_ns(self) -> int:
        """`stopped_grace_seconds` for the clock of claims."""
        return int(self.stopped_grace_seconds * 1e9)

    def __str__(self) -> str:
        return "\n".join(_table(self, ""))


def _table(table: Any, name: str) -> list[str]:  # noqa: ANN401  any of the dataclasses
    """Return the lines of a table, then those of the tables in it."""
    values = {field.name: getattr(table, field.name) for field in fields(table)}
    lines = ["", f"[{name}]"] if name else []
    lines += [f"{key} = {_toml(value)}" for key, value in values.items() if not is_dataclass(value)]
    for key, value in values.items():
        if is_dataclass(value):
            lines += _table(value, f"{name}.{key}" if name else key)
    return lines


def _checked(table: dict[str, Any], kind: type, where: str = "") -> dict[str, Any]:
    """Return the table with the types of `kind`, or raise ConfigError naming the key."""
    defaults = {field.name: field.default for field in fields(kind)}
    unknown = sorted(set(table) - set(defaults))
    if unknown:
        raise ConfigError(f"unknown key {where + unknown[0]!r}; known are {', '.join(defaults)}")
    return {key: _value(where + key, value, defaults[key]) for key, value in table.items()}


def _value(key: str, value: object, default: object) -> object:
    if is_dataclass(default) and isinstance(value, dict):
        kind: type = type(default)
        table: object = kind(**_checked(value, kind, f"{key}."))
        return table
    if isinstance(default, Path) and isinstance(value, str):
        return Path(value)
    if isinstance(default, tuple) and isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return tuple(value)
    elif isinstance(default, float) and type(value) is int:
        return float(value)
    elif type(value) is type(default):
        return value
    words = next((words for type_, words in _KINDS if isinstance(default, type_)), "a table")
    raise ConfigError(f"{key} must be {words}, not {value!r}")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if isinstance(value, int | float) else f'"{value}"'
