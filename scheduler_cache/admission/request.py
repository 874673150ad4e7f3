# SPDX-License-Identifier: Apache-2.0
"""What a pod asks for, strictly: what the codecs would pass over is refused here. Pure.

The codecs also read pods that other schedulers have taken, and are as lenient as those. Whoever
creates a pod is told of a mistake instead of getting what was not meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from scheduler_cache.admission.podspec import (
    ContainerSource,
    containers_of,
    metadata_of,
    resources_of,
    texts_of,
)
from scheduler_cache.admission.review import DeniedError, Json
from scheduler_cache.admission.rules import Rules
from scheduler_cache.dialects.dialect import Dialect, DialectError, PodRequest, Vocabulary, matches
from scheduler_cache.dialects.fields import card_uuid
from scheduler_cache.dialects.native import CORES, COUNT, MEMORY, MEMORY_PERCENT, NATIVE
from scheduler_cache.errors import InvalidRequestError
from scheduler_cache.model import Request
from scheduler_cache.pod import Pod, pod_of
from scheduler_cache.quantity import whole_number

_OUR_RESOURCES = (COUNT, MEMORY, MEMORY_PERCENT, CORES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A pod that asks for cards in a dialect of ours."""

    request: PodRequest
    containers: tuple[ContainerSource, ...]
    """Those that ask, init containers and sidecars first."""
    warnings: tuple[str, ...] = ()


def pod_seen(source: Json, namespace: str) -> Pod:
    """Return the pod as the informer will see it.

    A new one has no uid yet, and perhaps no name: then what its name will begin with.
    """
    pod = pod_of(source)
    prefix = metadata_of(source).get("generateName")
    name = pod.name or (f"{prefix}*" if isinstance(prefix, str) else "")
    return replace(pod, name=name, namespace=namespace or "default")


def asked_of(source: Json, namespace: str, rules: Rules) -> Asked | None:
    """Return what the pod asks for; None: nothing, or in a dialect that is not ours.

    Raises DeniedError.
    """
    containers = containers_of(source)
    for key in ("annotations", "labels"):
        texts_of(source, key)  # raises where one is no text, which a codec takes as absent
    named = {each.name: resources_of(each) for each in containers}
    pod = pod_seen(source, namespace)
    spoken = [each for each in rules.dialects if each.asks(pod)]
    ours = rules.ours_of(source)
    if spoken and not any(each.name in ours for each in spoken):
        return None
    try:
        request = rules.dialects.parse_request(pod)
    except (DialectError, InvalidRequestError) as error:
        raise DeniedError(str(error)) from error
    for each in (each for each in rules.spoken if each.name in ours):
        for container in containers:
            _check_names(each, container, named[container.name], request)
    if request is None:
        if spoken:
            raise DeniedError(
                f"the pod names {spoken[0].name} resources and asks for nothing; name amounts, or "
                "remove them"
            )
        return None
    names = rules.dialects.get(request.dialect).vocabulary
    _check_shared(names, request, named)
    for name, asked in request.containers.items():
        _check_cards(name, asked)
    asking = tuple(each for each in containers if each.name in request.containers)
    warnings = [
        text for each in asking for text in _defaults(names, request, each, named[each.name])
    ]
    known = rules.dialects.native.vocabulary.annotations
    warnings += [
        f"{key} is no annotation of vgpu.dev and means nothing; known are {', '.join(known)}"
        for key in pod.annotations
        if key.startswith("vgpu.dev/") and key not in known and not rules.own(key)
    ]
    return Asked(request=request, containers=asking, warnings=tuple(warnings))


def _check_names(
    dialect: Dialect, container: ContainerSource, named: Json, request: PodRequest | None
) -> None:
    """Refuse amounts that the codec passes over: they would not mean what they seem to."""
    names = dialect.vocabulary
    found = {name: text for name, text in named.items() if matches(name, names.resources)}
    for name, text in found.items():
        field = f"{name} of container {container.name!r}"
        if dialect.name == NATIVE and name not in _OUR_RESOURCES:
            raise _denied(
                field, text, "there is no such resource", f"use {', '.join(_OUR_RESOURCES)}"
            )
        if name not in names.cores and _amount(field, text) == 0:
            raise _denied(
                field, text, "an amount is 1 or more", "name one, or leave the resource out"
            )
    if not found:
        return
    if all(_amount(name, text) == 0 for name, text in found.items()):
        name, text = next(iter(found.items()))
        raise _denied(
            f"{name} of container {container.name!r}",
            text,
            "a container that asks for nothing else gets no card",
            "ask for memory as well, or leave the resource out",
        )
    if (
        request is None
        or request.dialect != dialect.name
        or container.name not in (request.containers)
    ):
        name, text = next(iter(found.items()))
        where = "an init container" if container.list_name == "initContainers" else "it alone"
        raise _denied(
            f"{name} of container {container.name!r}",
            text,
            f"in the dialect {dialect.name}, {where} asks for no card",
            "move it to a container and beside amounts that do, or use vgpu.dev/memory",
        )


def _check_shared(names: Vocabulary, request: PodRequest, named: Mapping[str, Json]) -> None:
    """Refuse a resource of two systems that stands alone beside containers of one: whose is it?"""
    for container_name, resources in named.items():
        for name in names.shared_resources:
            if name in resources and container_name not in request.containers:
                raise _denied(
                    f"{name} of container {container_name!r}",
                    str(resources[name]),
                    "beside containers that name memory it must be clear whose card is meant",
                    f"name memory there as well, such as {names.resources[0]}",
                )


def _check_cards(name: str, request: Request) -> None:
    """Refuse a list of cards that no node can satisfy: the pod would wait for ever."""
    field = f"the list of cards of container {name!r}"
    wanted = {each for each in request.uuids if not each.startswith("!")}
    for each in request.uuids:
        text = each.removeprefix("!")
        try:
            uuid = card_uuid(field, text, "correct the annotation")
        except DialectError as error:
            raise DeniedError(str(error)) from error
        if uuid != text:
            raise _denied(field, text, f"the card's own name is {uuid}", "correct the annotation")
    if wanted and len(wanted) < request.count:
        raise _denied(
            field,
            ",".join(sorted(wanted)),
            f"it names fewer than the {request.count} cards that are asked for",
            "name as many, or ask for fewer",
        )


def _defaults(
    names: Vocabulary, request: PodRequest, container: ContainerSource, named: Json
) -> Iterator[str]:
    """Yield in words what the author did not write and gets all the same."""
    asked: Request = request.containers[container.name]
    who = f"container {container.name!a}"
    if not asked.whole_cards and any(each.percent == 100 for each in asked.memory):
        yield f"{who} names no memory of its own: it gets all memory of each of its cards"
    if names.cores and not asked.cores_percent and not any(name in named for name in names.cores):
        yield f"{who} names no cores: nothing is reserved, and it runs when others leave time"
    for name in names.cores:
        if name in named and asked.count == 1 and _amount(name, named[name]) > 100:
            yield f"{name} of {who} is more than 100, which is all of a card: it gets 100"


def _amount(field: str, text: str) -> int:
    try:
        return whole_number(text, field)
    except InvalidRequestError as error:
        raise DeniedError(f"{error}; correct the pod's spec") from error


def _denied(field: str, value: str, rule: str, remedy: str) -> DeniedError:
    return DeniedError(str(DialectError(field, value, rule, remedy)))
