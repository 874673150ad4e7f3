# SPDX-License-Identifier: Apache-2.0
"""The parts of a pod that admission looks at, each of the type that the API says. Pure.

An API server sends nothing else. Whatever is of another type is denied with its place: what one
reader skips and another does not is how a request means two things.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scheduler_cache.admission.review import DeniedError
from scheduler_cache.inventory import DIALECT_LABEL
from scheduler_cache.pod import UUID_VARIABLE

Json = Mapping[str, Any]

# In the order in which scheduler_cache.pod has them; ephemeral ones ask for nothing.
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_LISTS = ("initContainers", "containers")


class ContainerSource(NamedTuple):
    """A container in its pod's JSON."""

    list_name: str
    position: int
    name: str
    source: Json

    @property
    def path(self) -> str:
        """Its JSON pointer."""
        return f"/spec/{self.list_name}/{self.position}"

    @property
    def env(self) -> list[Json]:
        """Its variables, as they stand."""
        return _list(self.source, "env", self.path)


def metadata_of(source: Json) -> Json:
    """Return the metadata."""
    return _mapping(source, "metadata", "")


def spec_of(source: Json) -> Json:
    """Return the spec."""
    return _mapping(source, "spec", "")


def texts_of(source: Json, key: str) -> Mapping[str, str]:
    """Return the annotations or the labels."""
    found = _mapping(metadata_of(source), key, "/metadata")
    for name, value in found.items():
        if not isinstance(value, str):
            raise _mistyped(f"/metadata/{key}/{name}", "a text")
    return found


def chooses_nodes(source: Json) -> bool:
    """Return whether a pod can only land on nodes that carry the label `vgpu.dev/dialect`.

    `expressions.chooses_nodes` says the same to the API server.
    """
    spec = spec_of(source)
    if DIALECT_LABEL in _mapping(spec, "nodeSelector", "/spec"):
        return True
    place = "/spec/affinity/nodeAffinity"
    affinity = _mapping(_mapping(spec, "affinity", "/spec"), "nodeAffinity", "/spec/affinity")
    required = _mapping(affinity, _REQUIRED, place)
    terms = _list(required, "nodeSelectorTerms", f"{place}/{_REQUIRED}")
    return bool(terms) and all(
        any(
            each.get("key") == DIALECT_LABEL and each.get("operator") in ("In", "Exists")
            for each in _list(term, "matchExpressions", f"{place}/{_REQUIRED}/nodeSelectorTerms")
        )
        for term in terms
    )


def containers_of(source: Json) -> list[ContainerSource]:
    """Return init containers and sidecars in their order, then the others in theirs."""
    spec = spec_of(source)
    found = [each for name in _LISTS for each in _containers(spec, name)]
    names: set[str] = set()
    for each in found:
        if each.name in names:
            raise DeniedError(f"spec: two containers are named {each.name!a}; give them names")
        names.add(each.name)
    return found


def ephemeral_containers_of(source: Json) -> list[ContainerSource]:
    """Return the containers that people add to look into a running pod."""
    return list(_containers(spec_of(source), "ephemeralContainers"))


def volumes_of(source: Json) -> Iterator[tuple[int, Json]]:
    """Yield the volumes with their places."""
    yield from enumerate(_list(spec_of(source), "volumes", "/spec"))


def resources_of(container: ContainerSource) -> Mapping[str, str]:
    """Return what a container's limits, else its requests, name, with the amounts as texts."""
    resources = _mapping(container.source, "resources", container.path)
    found: dict[str, str] = {}
    for key in ("requests", "limits"):
        for name, amount in _mapping(resources, key, f"{container.path}/resources").items():
            if isinstance(amount, bool) or not isinstance(amount, str | int):
                raise _mistyped(f"{container.path}/resources/{key}/{name}", "a quantity")
            found[name] = str(amount)
    return found


def uuid_values(container: ContainerSource) -> list[str]:
    """Return the values of the variable that names a container; one without a value is empty."""
    return [
        value if isinstance(value := each.get("value"), str) else ""
        for each in container.env
        if each.get("name") == UUID_VARIABLE
    ]


def text_of(source: Json, key: str, place: str) -> str:
    """Return a text; absent and null are an empty one."""
    value = source.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _mistyped(f"{place}/{key}", "a text")
    return value


def flag_of(source: Json, key: str, place: str) -> bool:
    """Return a switch; absent and null are off."""
    value = source.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _mistyped(f"{place}/{key}", "true or false")
    return value


def mapping_of(source: Json, key: str, place: str) -> Json:
    """Return an object; absent and null are an empty one."""
    return _mapping(source, key, place)


def list_of(source: Json, key: str, place: str) -> list[Any]:
    """Return a list of whatever; absent and null are an empty one."""
    value = source.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _mistyped(f"{place}/{key}", "a list")
    return value


def _containers(spec: Json, name: str) -> Iterator[ContainerSource]:
    for index, each in enumerate(_list(spec, name, "/spec")):
        container_name = text_of(each, "name", f"/spec/{name}/{index}")
        if not container_name:
            raise DeniedError(f"spec.{name}[{index}]: the container has no name; give it one")
        yield ContainerSource(name, index, container_name, each)


def _mapping(source: Json, key: str, place: str) -> Json:
    value = source.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _mistyped(f"{place}/{key}", "an object")
    return value


def _list(source: Json, key: str, place: str) -> list[Json]:
    found = list_of(source, key, place)
    for index, each in enumerate(found):
        if not isinstance(each, Mapping):
            raise _mistyped(f"{place}/{key}/{index}", "an object")
    return found


def _mistyped(pointer: str, kind: str) -> DeniedError:
    where = pointer.lstrip("/").replace("/", ".")
    return DeniedError(f"{ascii(where)[1:-1][:200]} is not {kind}; correct the pod's spec")
