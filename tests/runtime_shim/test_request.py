# SPDX-License-Identifier: Apache-2.0
"""`VGPU_*` variables: every request is read back as written, every mistake has a sentence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.request import MAX_COUNT, RESERVED_VARIABLES, RequestError, parse_request
from runtime_shim.spec import environment
from tests.runtime_shim.specs import plain_spec

GPU = "GPU-5a1f0c3e-0000-4000-8000-000000000001"
MIG = "MIG-5a1f0c3e-0000-4000-8000-0000000000ab"

MODES = {"hard": pb.COMPUTE_MODE_HARD, "burst": pb.COMPUTE_MODE_BURST}
POLICIES = {
    "binpack": pb.CARD_POLICY_BINPACK,
    "spread": pb.CARD_POLICY_SPREAD,
    "exclusive": pb.CARD_POLICY_EXCLUSIVE,
}


def amount(text: str) -> pb.MemoryAmount:
    request = parse_request({"VGPU_MEMORY": text})
    assert len(request.memory) == 1
    return request.memory[0]


@st.composite
def requests(draw: st.DrawFn) -> pb.AllocationRequest:
    """Any request that the variables can express."""
    count = draw(st.integers(1, MAX_COUNT))
    length = draw(st.sampled_from([1, count]))
    size = st.builds(lambda n: pb.MemoryAmount(bytes=n), st.integers(2**20, 2**63 - 1))
    percent = st.builds(lambda n: pb.MemoryAmount(percent=n), st.integers(1, 100))
    return pb.AllocationRequest(
        count=count,
        memory=draw(st.lists(size | percent, min_size=length, max_size=length)),
        cores_percent=draw(
            st.just([]) | st.lists(st.integers(1, 100), min_size=length, max_size=length)
        ),
        compute_mode=draw(st.sampled_from([pb.COMPUTE_MODE_UNSPECIFIED, *MODES.values()])),
        uuids=draw(st.lists(st.sampled_from([GPU, f"!{GPU}", MIG]), max_size=2)),
        models=draw(st.lists(st.sampled_from(["H100", "!A100", "RTX A6000"]), max_size=2)),
        card_policy=draw(st.sampled_from([pb.CARD_POLICY_UNSPECIFIED, *POLICIES.values()])),
    )


def written(request: pb.AllocationRequest) -> dict[str, str]:
    """Write a request as a user would."""
    modes = {value: word for word, value in MODES.items()}
    policies = {value: word for word, value in POLICIES.items()}
    env = {
        "VGPU_COUNT": str(request.count),
        "VGPU_MEMORY": ",".join(
            f"{each.percent}%" if each.percent else str(each.bytes) for each in request.memory
        ),
        "VGPU_CORES": ",".join(map(str, request.cores_percent)),
        "VGPU_COMPUTE_MODE": modes.get(request.compute_mode, ""),
        "VGPU_UUIDS": ",".join(request.uuids),
        "VGPU_MODEL": ",".join(request.models),
        "VGPU_CARD_POLICY": policies.get(request.card_policy, ""),
    }
    return {name: value for name, value in env.items() if value}


@given(request=requests())
def test_what_is_written_is_read_back(request: pb.AllocationRequest) -> None:
    assert parse_request(written(request)) == request


def test_the_shortest_request_is_one_card() -> None:
    assert parse_request({"VGPU_MEMORY": "8Gi"}) == pb.AllocationRequest(
        count=1, memory=[pb.MemoryAmount(bytes=8 * 2**30)]
    )


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512Mi", 512 * 2**20),
        ("8Gi", 8 * 2**30),
        ("1Ti", 2**40),
        ("1024Ki", 2**20),
        ("1G", 10**9),
        ("1500M", 1_500_000_000),
        ("2000k", 2_000_000),
        ("2147483648", 2**31),
        ("1.5Gi", 3 * 2**29),
        ("0.1Gi", 107374183),  # as a Kubernetes quantity: rounded up to a whole byte
        ("007Gi", 7 * 2**30),
        ("9223372036854775807", 2**63 - 1),
        ("0.0009765625Gi", 2**20),
    ],
)
def test_an_amount_has_the_value_of_a_kubernetes_quantity(text: str, size_bytes: int) -> None:
    assert amount(text) == pb.MemoryAmount(bytes=size_bytes)


@pytest.mark.parametrize(("text", "percent"), [("1%", 1), ("50%", 50), ("100%", 100)])
def test_a_percentage_is_kept_as_one(text: str, percent: int) -> None:
    assert amount(text) == pb.MemoryAmount(percent=percent)


@pytest.mark.parametrize(
    "text",
    [
        *"12x -1 +1 1e9 0x10 8GB 8g 8gi Gi .5Gi 5.Gi nan inf ٣Gi 50.5% 1%%".split(),
        "8 Gi",
        "8Gi\n",
        "1" * 30,
    ],
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="VGPU_MEMORY=.* is not an amount of memory") as caught:
        amount(text)

    assert caught.value.variable == "VGPU_MEMORY"
    assert caught.value.value == text


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "VGPU_MEMORY is not set, and nothing else limits the memory"),
        ({"VGPU_CORES": "50"}, "VGPU_MEMORY is not set"),
        ({"VGPU_MEMORY": ""}, "VGPU_MEMORY='' is empty"),
        ({"VGPU_MEMORY": " "}, "is empty"),
        ({"VGPU_MEMORY": "0"}, "VGPU_MEMORY='0' is less than 1Mi"),
        ({"VGPU_MEMORY": "8192"}, "VGPU_MEMORY='8192' is less than 1Mi.*with its unit"),
        ({"VGPU_MEMORY": "0%"}, "VGPU_MEMORY='0%' is outside 1%..100%"),
        ({"VGPU_MEMORY": "101%"}, "is outside 1%..100%"),
        ({"VGPU_MEMORY": "9223372036854775808"}, "is more than any card has"),
        ({"VGPU_MEMORY": "99999999Ti"}, "is more than any card has"),
        ({"VGPU_MEMORY": "1Gi,"}, "VGPU_MEMORY='1Gi,' has an empty item"),
        ({"VGPU_MEMORY": "1Gi,2Gi"}, "has 2 values for VGPU_COUNT=1; .*set VGPU_COUNT"),
        ({"VGPU_MEMORY": "1Gi,2Gi", "VGPU_COUNT": "3"}, "has 2 values for VGPU_COUNT=3"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_COUNT": "0"}, r"VGPU_COUNT='0' is not .* 1\.\.16"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_COUNT": "17"}, r"is not a number of cards, 1\.\.16"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_COUNT": ""}, "VGPU_COUNT='' is not a number"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_COUNT": "-1"}, "VGPU_COUNT='-1' is not a number"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_COUNT": "2.0"}, "VGPU_COUNT='2.0' is not a number"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_CORES": "101"}, r"VGPU_CORES='101' .* 1\.\.100"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_CORES": "0"}, r"VGPU_CORES='0' .* 1\.\.100"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_CORES": "50%"}, "VGPU_CORES='50%' is not a share"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_CORES": ""}, "VGPU_CORES='' is empty"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_CORES": "5,6"}, "VGPU_CORES='5,6' has 2 values"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_COMPUTE_MODE": "soft"}, "is not one of hard, burst"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_COMPUTE_MODE": ""}, "is not one of hard, burst"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_CARD_POLICY": "any"}, "not one of binpack, spread, excl"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_UUIDS": "GPU-1"}, "VGPU_UUIDS='GPU-1' is not the whole UUID"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_UUIDS": ""}, "VGPU_UUIDS='' is empty"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_UUIDS": "0"}, "VGPU_UUIDS='0' is not the whole UUID"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_MODEL": "!"}, "VGPU_MODEL='!' denies nothing"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_MODEL": "\udcff"}, "is not UTF-8"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_MODEL": "H100,"}, "VGPU_MODEL='H100,' has an empty item"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_FOO": "1"}, "VGPU_FOO='1' is not a variable of vgpu"),
        ({"VGPU_MEMROY": "1Gi"}, r"VGPU_MEMROY.*did you mean VGPU_MEMORY\?"),
        ({"VGPU_MEMORY": "1Gi", "VGPU_UUID": GPU}, r"VGPU_UUID=.*did you mean VGPU_UUIDS\?"),
        ({"VGPU_MODELS": "H100"}, r"did you mean VGPU_MODEL\?"),
        ({"VGPU_WIEGHT": "1"}, r"did you mean VGPU_WEIGHT\?"),
        ({"VGPU_UUIDS": GPU}, "VGPU_MEMORY is not set"),
        ({"VGPU_CARD_POLICY": "spread"}, "VGPU_MEMORY is not set"),
        *(
            ({"VGPU_MEMORY": "1Gi", name: "1"}, f"{name}='1' is not available yet in this version")
            for name in sorted(RESERVED_VARIABLES)
        ),
    ],
)
def test_a_mistake_is_refused_with_one_sentence(env: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        parse_request(env)

    assert re.fullmatch(r"[^;\n]+; [^;\n]+", str(caught.value))
    assert str(caught.value) == f"{caught.value.reason}; {caught.value.remedy}"


def test_a_long_value_is_shortened_in_the_sentence() -> None:
    with pytest.raises(RequestError, match=r"='x{63}…' is not an amount") as caught:
        parse_request({"VGPU_MEMORY": "x" * 100_000})

    assert len(str(caught.value)) < 300


def test_lists_may_have_spaces_and_uuids_any_case() -> None:
    env = {"VGPU_MEMORY": "1Gi, 2Gi", "VGPU_COUNT": "2", "VGPU_UUIDS": f"!{GPU.upper()}, {MIG}"}

    request = parse_request(env)

    assert [each.bytes for each in request.memory] == [2**30, 2**31]
    assert list(request.uuids) == [f"!{GPU}", MIG]


def test_of_a_variable_that_is_set_twice_the_last_one_counts_as_in_runc() -> None:
    spec = plain_spec("VGPU_MEMORY=80Gi", "VGPU_MEMORY=1Gi")

    assert parse_request(environment(spec)).memory[0].bytes == 2**30


@pytest.mark.parametrize(
    "name",
    ["VGPU_CONTAINER_UUID", "VGPU_LOG", "VGPU_CONFIG", "VGPU_NODE_NAME", "OTHER", "vgpu_memory"],
)
def test_a_name_that_is_no_request_is_ignored(name: str) -> None:
    assert parse_request({"VGPU_MEMORY": "1Gi", name: "?"}).count == 1
