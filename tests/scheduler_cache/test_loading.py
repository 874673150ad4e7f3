# SPDX-License-Identifier: Apache-2.0
"""To load everything at once gives the same state as one event after the other."""

from __future__ import annotations

from scheduler_cache.cluster import Cluster
from scheduler_cache.dialects.native import Native
from scheduler_cache.dialects.registry import Dialects
from tests.scheduler_cache.builders import NODE
from tests.scheduler_cache.kube_objects import KEYRING, kube_node


def test_loading_ends_in_the_same_state() -> None:
    names = [f"node-{number}" for number in range(50)]
    cluster = Cluster(Dialects(Native(KEYRING)))

    cluster.begin_loading()
    for name in names:
        cluster.apply_node(kube_node(name), 0)
    before = cluster.node_names
    steps = list(cluster.end_loading(0))

    assert before == []
    assert cluster.node_names == sorted(names)
    assert len(steps) > 1
    assert set().union(*(each.nodes for each in steps)) == set(names)
    assert cluster.apply_node(kube_node(NODE), 0).nodes == {NODE}


def test_nothing_to_load_is_loaded() -> None:
    cluster = Cluster(Dialects(Native(KEYRING)))

    cluster.begin_loading()

    assert list(cluster.end_loading(0)) == []
    assert cluster.apply_node(kube_node(NODE), 0).nodes == {NODE}
