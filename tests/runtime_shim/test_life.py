# SPDX-License-Identifier: Apache-2.0
"""The life of a claim as a pure function."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.life import (
    NO_PROCESS_SECONDS,
    RELEASED,
    RUNNING,
    STOPPED,
    Process,
    Sighting,
    next_state,
)

STATES = st.sampled_from([RUNNING, STOPPED, RELEASED])
SIGHTINGS = st.builds(
    Sighting,
    process=st.sampled_from(Process),
    engine_knows=st.booleans(),
    seconds_since_verdict=st.floats(0, math.inf),
)


@given(STATES, st.lists(SIGHTINGS, min_size=1))
def test_no_sighting_ends_the_claim_of_a_live_container(
    state: pb.ClaimState, sightings: list[Sighting]
) -> None:
    for sighting in sightings:
        before, state = state, next_state(state, sighting)
        if sighting.process is Process.ALIVE and before != RELEASED:
            assert state == RUNNING


@given(st.lists(SIGHTINGS))
def test_released_is_the_end(sightings: list[Sighting]) -> None:
    state: pb.ClaimState = RELEASED
    for sighting in sightings:
        state = next_state(state, sighting)

    assert state == RELEASED


@given(STATES, SIGHTINGS)
def test_the_same_look_twice_changes_nothing_more(state: pb.ClaimState, sighting: Sighting) -> None:
    once = next_state(state, sighting)

    assert next_state(once, sighting) == once


@given(STATES, SIGHTINGS)
def test_a_claim_without_process_and_engine_is_released(
    state: pb.ClaimState, sighting: Sighting
) -> None:
    if sighting.process is not Process.ALIVE and not sighting.engine_knows:
        assert next_state(state, sighting) == RELEASED


@pytest.mark.parametrize(
    ("process", "seconds", "want"),
    [
        (Process.GONE, 0.0, STOPPED),
        (Process.NEVER, 0.0, RUNNING),
        (Process.NEVER, NO_PROCESS_SECONDS - 0.1, RUNNING),
        (Process.NEVER, NO_PROCESS_SECONDS, STOPPED),
        (Process.NEVER, math.inf, STOPPED),
        (Process.FAILED, 0.0, STOPPED),
        (Process.UNKNOWN, 0.0, RUNNING),
        (Process.UNKNOWN, NO_PROCESS_SECONDS * 1000, RUNNING),
        (Process.ALIVE, math.inf, RUNNING),
    ],
)
def test_a_running_claim_without_process_stops(
    process: Process, seconds: float, want: pb.ClaimState
) -> None:
    sighting = Sighting(process=process, engine_knows=True, seconds_since_verdict=seconds)

    assert next_state(RUNNING, sighting) == want
