# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl nodes`, `resolve` and `explain`, as programs, against a cache in Kubernetes mode."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from scheduler_cache.cluster_server import Running
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.kube.clusters import PODS, until
from tests.scheduler_cache.kube.replicas import UUID, A, Site, asking, bind, one_node


@pytest.fixture
def site(server: FakeApiServer, scratch: Path) -> Site:
    return Site(server, scratch)


async def vgpuctl(config: Path, *words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "runtime_shim.cli",
        "--config",
        str(config),
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


def by_root(site: Site) -> Path:
    """Return a configuration that leads to the socket that only root can open."""
    path = site.folder / "root.toml"
    path.write_text(f'[cache]\naddress = "unix:{site.folder}/replica-0/cache.sock"\n')
    return path


def by_certificate(site: Site, replica: Running, organization: str) -> Path:
    """Return a configuration that leads over the network, under a certificate."""
    proof = site.authority.issue("alice", organization=organization)
    path = site.folder / "alice.toml"
    port = replica.addresses[0].rpartition(":")[2]
    path.write_text(
        f'[cache]\naddress = "localhost:{port}"\nca = "{site.authority.certificate}"\n'
        f'certificate = "{proof.certificate}"\nkey = "{proof.key}"\n'
    )
    return path


async def test_people_see_the_cluster(site: Site) -> None:
    async with one_node(site, A) as (replica, _):
        await bind(site, replica, asking("p1", cores="30"))
        config = by_root(site)

        status, table = await vgpuctl(config, "nodes")
        header, row = (line.split() for line in table.splitlines())
        assert (status, header[0], row[:3]) == (0, "NODE", ["n1", "yes", A])
        assert row[-5:] == ["8GiB", "2GiB", "30%", "1/10", "yes"]
        status, text = await vgpuctl(config, "nodes", "n1", "--json")
        assert json.loads(text)[0]["held_percent"] == 30

        for words in ([UUID], [UUID, "--node", "n1"], ["default/p1"]):
            status, text = await vgpuctl(config, "resolve", *words, "--json")
            assert status == 0, text
            (found,) = json.loads(text)
            assert (found["pod"], found["container"], found["card_uuid"]) == (
                "default/p1",
                "main",
                A,
            )
        status, text = await vgpuctl(config, "resolve", "default/p9")
        assert status == 1
        assert "`vgpuctl explain pod/default/p9` says why" in text


async def test_people_are_told_why(site: Site) -> None:
    async with one_node(site, A) as (replica, _):
        made = await site.server.put(PODS, asking("p1", memory="9Gi"))
        await until(lambda: replica.cluster.record(made["metadata"]["uid"]) is not None)
        config = by_root(site)

        status, text = await vgpuctl(config, "explain", "pod/default/p1")
        assert status == 0
        assert "Pod default/p1 is not bound to a node yet." in text
        assert "It does not fit on node n1 now: " in text
        status, text = await vgpuctl(config, "explain", "node/n1")
        assert text.startswith(f"{A} (NVIDIA H100) of node n1: ")
        status, text = await vgpuctl(config, "explain", "node/n9")
        assert (status, text) == (1, "Error: no node n9 is known here\n")


async def test_a_certificate_of_an_operator_is_enough_and_anybody_elses_is_not(
    site: Site,
) -> None:
    async with one_node(site, A) as (replica, _):
        status, text = await vgpuctl(by_certificate(site, replica, "system:masters"), "nodes")
        assert status == 0, text
        assert A in text

        status, text = await vgpuctl(by_certificate(site, replica, "guests"), "nodes")
        assert status == 1
        assert "proves no node" in text
