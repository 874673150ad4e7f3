# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler formats the reasons that an extender answers: they must survive it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_cache.errors import SchedulerCacheError
from scheduler_cache.extender import messages
from scheduler_cache.extender.messages import BindingAsked
from tests.scheduler_cache.extender.clusters import Fleet, asking, waiting
from tests.scheduler_cache.extender.golang import sprintf
from tests.scheduler_cache.kube_objects import A, B, container, gpu, kube_node

EXAMPLES = int(os.environ.get("VGPU_TEST_EXAMPLES", "200"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1.0Gi and 50% of cores", "1.0Gi and 50%!o(MISSING)f cores"),
        ("100%", "100%!(NOVERB)"),
        ("100%%", "100%"),
        ("5%d", "5%!d(MISSING)"),
        ("%-08.3f|", "%!f(MISSING)|"),
        ("%s %v", "%!s(MISSING) %!v(MISSING)"),
        ("model '%!' is", "model '%!!(MISSING)' is"),
        ("%[1]d", "%!d(BADINDEX)"),
        ("% ", "%!(NOVERB)"),
        ("%é", "%!é(MISSING)"),
        ("%+%", "%"),
    ],
)
def test_the_model_of_gos_formatting_is_true(text: str, shown: str) -> None:
    """The outputs are those of go 1.26."""
    assert sprintf(text) == shown


def answered(world: Fleet, source: dict[str, Any]) -> list[str]:
    """Return every reason that kube-scheduler reads about a pod."""
    body = json.dumps({"Pod": source, "NodeNames": world.names}).encode()
    asked = messages.nodes_asked(body)
    found = world.filter(source)
    answer = json.loads(
        messages.filter_result(asked, found.fitting, found.failed, found.unresolvable)
    )
    reasons = [*answer["FailedNodes"].values(), *answer["FailedAndUnresolvableNodes"].values()]
    for name in world.names:
        try:
            world.cluster.reserve(source["metadata"]["uid"], name, 1, world.now)
            world.extender.check_binding(
                BindingAsked(namespace="default", name="another%d", uid="p", node_name=name)
            )
        except SchedulerCacheError as error:
            reasons.append(json.loads(messages.binding_result(str(error)))["Error"])
    return reasons


def test_a_share_of_a_full_card_is_told_without_a_verb() -> None:
    world = Fleet(n1=gpu(A, 8))
    world.hold(waiting("holder", asking(8)), "n1")
    source = waiting("p", container(memory="1Gi", cores="50"))
    world.apply(source)

    told = answered(world, source)

    assert told[0] == (
        "none of 1 cards fits 1.0Gi and 50 percent of cores: 1 with less memory free"
    )
    assert [sprintf(each) for each in told] == told


PODS: dict[str, dict[str, Any]] = {
    "part of the memory": waiting("p", container(memory_percent="60", cores="70")),
    "several": waiting("p", container(memory_percent="60", count="3")),
    "whole": waiting("p", container(memory_percent="100")),
    "too many cores": waiting("p", container(memory="1Gi", cores="170%d")),
    "no quantity": waiting("p", container(memory="50%s")),
    "container's name": waiting("p", container("%d", memory="x")),
    "model": waiting("p", asking(2), annotations={"vgpu.dev/use-model": "100%s"}),
    "devices": waiting(
        "p", asking(2), annotations={"vgpu.dev/devices": '{"main":[{"memory":"50%x"}]}'}
    ),
    "another scheduler": waiting("p", asking(1), scheduler="mine%d"),
}


@pytest.mark.parametrize("what", sorted(PODS))
def test_every_sentence_survives_gos_formatting(what: str) -> None:
    world = Fleet(n1=gpu(A, 8), n2=gpu(B, 8))
    for number, name in enumerate(world.names):
        world.hold(waiting(f"h{number}", container(memory="6Gi", cores="60")), name)
    cordon = kube_node("n2", annotations={"vgpu.dev/cordon": B})
    world.extender.follow(world.cluster.apply_node(cordon, world.now))
    world.apply(PODS[what])

    told = answered(world, PODS[what])

    assert told
    assert [sprintf(each) for each in told] == told


@settings(max_examples=EXAMPLES, deadline=None)
@given(reason=st.text(st.sampled_from("a50 %.*[1]dsv!+-#é\n'"), max_size=20) | st.text())
def test_no_text_of_a_user_is_a_format(reason: str) -> None:
    asked = messages.nodes_asked(json.dumps({"Pod": PODS["whole"], "NodeNames": ["n1"]}).encode())

    result = json.loads(messages.filter_result(asked, [], {"n1": reason}, {"n2": reason}))
    bound = json.loads(messages.binding_result(reason))

    for told in (
        result["FailedNodes"]["n1"],
        result["FailedAndUnresolvableNodes"]["n2"],
        bound["Error"],
    ):
        assert sprintf(told) == told
