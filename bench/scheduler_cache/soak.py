# SPDX-License-Identifier: Apache-2.0
"""Whether two replicas stay as they are while pods come and go: memory, records, time to derive.

Agents report to the leader alone, so that the follower shows whether it hears of ends. Each pod is
made, bound by the leader, reported running by its node's agent, and ended: two of three are
deleted, every third first succeeds. Of every tenth the container outlives its pod (`--force`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from bench.scheduler_cache import synthetic
from bench.scheduler_cache.stage import NAME_OPTION, Child, Stage, dialled, print_machine, stage
from bench.scheduler_cache.synthetic import Size
from scheduler_cache.config_kubernetes import ExtenderConfig

_REPLICAS = 2
_REPORT_SECONDS = 1.0
_OUTLIVES_SECONDS = 3.0
_PAUSE_SECONDS = 0.1
_PODS = "/api/v1/namespaces/default/pods"
# Ends are told with each renewal of the Lease, which comes every two seconds.
_SETTLE_SECONDS = 30.0


def main(arguments: Sequence[str]) -> None:
    """Print the table; exit 1 when a replica remembers pods that are no more."""
    parser = argparse.ArgumentParser(prog="bench.cache soak")
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--living", type=int, default=100, help="pods at a time")
    parser.add_argument("--every", type=int, default=1000, help="pods between two lines")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    options = parser.parse_args(arguments)
    size = Size(nodes=options.nodes, pods=0)
    with stage() as place:
        server = place.start(
            "bench.scheduler_cache.api_server", "--nodes", str(size.nodes), "--pods", "0"
        )
        url = server.read()
        kubeconfig = place.kubeconfig(url)
        replicas = [
            place.replica(
                place.config(
                    kubeconfig,
                    own_pod="",
                    extender=ExtenderConfig(listen=("127.0.0.1:0",), plain=True),
                    name=f"replica-{number}",
                )
            )
            for number in range(_REPLICAS)
        ]
        soak = Soak(place, url, size, replicas, options)
        print_machine()
        print(
            f"{size.nodes} nodes of {size.cards} cards, {_REPLICAS} replicas, {options.pods:,} "
            f"pods, {options.living} at a time\n"
        )
        # Not asyncio.run: gRPC leaves tasks of ended streams that no cancellation ends.
        asyncio.new_event_loop().run_until_complete(soak.run())
    if options.json:
        options.json.write_text(json.dumps(soak.lines, indent=1) + "\n")
    sys.exit(1 if soak.problem() else 0)


def _left(state: dict[str, Any]) -> int:
    """Return how many more pods a replica remembers than there are."""
    return int(state["records"]) - int(state["pods"])


@dataclass
class Agent:
    """The state that one node's agent knows."""

    stubs: list[SchedulerCacheStub]
    """One for each replica."""
    number: int
    running: dict[str, pb.Allocation] = field(default_factory=dict)


class Soak:
    """One API server, some replicas, and everything around them."""

    def __init__(
        self,
        place: Stage,
        url: str,
        size: Size,
        replicas: list[Child],
        options: argparse.Namespace,
    ) -> None:
        self._place = place
        self._url = url
        self._size = size
        self._replicas = replicas
        self._synced = [replica.json() for replica in replicas]
        self._options = options
        self._leader = 0
        self._finding = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._agents: list[Agent] = []
        self._next = 0
        self._ended = 0
        self.lines: list[dict[str, Any]] = []
        """One for each look at each replica."""

    async def run(self) -> None:
        """Let all pods come and go, and print a line now and then."""
        await self._find_leader()
        root = self._place.authority.certificate.read_bytes()
        for number in range(self._size.nodes):
            proof = self._place.authority.issue_node(synthetic.node_name(number))
            credentials = grpc.ssl_channel_credentials(
                root, proof.key.read_bytes(), proof.certificate.read_bytes()
            )
            own = (("grpc.use_local_subchannel_pool", 1), NAME_OPTION)
            channels = [
                grpc.aio.secure_channel(dialled(each["addresses"][0]), credentials, own)
                for each in self._synced
            ]
            self._agents.append(Agent([SchedulerCacheStub(each) for each in channels], number))  # type: ignore[no-untyped-call]
        for agent in self._agents:
            await self._report(agent)
        reporting = [asyncio.create_task(self._reports(agent)) for agent in self._agents]
        print("| ended | replica | pods | records | held | derive a node | RSS |")
        print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            for _ in range(min(self._options.living, self._options.pods)):
                tasks.create_task(self._lives(session))
            tasks.create_task(self._looks())
        await self._settled()
        for task in reporting:
            task.cancel()
        await asyncio.gather(*reporting, return_exceptions=True)

    def problem(self) -> str:
        """Return what is wrong with the last look at a replica; empty: nothing."""
        last = self.lines[-len(self._replicas) :]
        return "records are left" if any(_left(line) for line in last) else ""

    async def _find_leader(self) -> None:
        """Look for it, once however many ask: on a busy machine another may lead by now."""
        if self._finding.locked():
            async with self._finding:
                return
        async with self._finding:
            while True:
                for number in range(len(self._replicas)):
                    if await self._ask(number, "leads"):
                        self._leader = number
                        return
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, number: int, word: str) -> Any:  # noqa: ANN401 - JSON
        async with self._asking:
            return await asyncio.to_thread(self._replicas[number].ask, word)

    async def _looks(self) -> None:
        """Look at the replicas now and then, while pods come and go."""
        for goal in range(self._options.every, self._options.pods, self._options.every):
            while self._ended < goal:
                await asyncio.sleep(_PAUSE_SECONDS)
            self._print(await self._states())

    async def _settled(self) -> None:
        """Look at the replicas, once they have heard that everything has ended."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        states = await self._states()
        while any(map(_left, states)) and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            states = await self._states()
        self._print(states)

    def _print(self, states: list[dict[str, Any]]) -> None:
        for number, state in enumerate(states):
            self.lines.append({"ended": self._ended, "replica": number, **state})
            role = "leader" if state["leading"] else "follower"
            print(
                f"| {self._ended:,} | {role} | {state['pods']} | {state['records']} "
                f"| {state['held_bytes'] / synthetic.GIB:,.0f} GiB | {state['derive_us']:,.0f} µs "
                f"| {state['rss_mib']:.1f} MiB |",
                flush=True,
            )

    async def _states(self) -> list[dict[str, Any]]:
        return [await self._ask(number, "state") for number in range(len(self._replicas))]

    # Agents

    async def _report(self, agent: Agent) -> None:
        running = list(agent.running.values())
        request = synthetic.report_of(agent.number, self._size)
        request.running_allocation_ids.extend(each.allocation_id for each in running)
        request.claims.extend(
            pb.Claim(allocation=each, state=pb.CLAIM_STATE_RUNNING, since_unix_ns=1)
            for each in running
        )
        while True:
            call = agent.stubs[self._leader].ReportNode(request, timeout=30)
            if await call.code() is grpc.StatusCode.OK:
                return
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._find_leader()

    async def _reports(self, agent: Agent) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            await self._report(agent)

    # Pods

    async def _lives(self, session: aiohttp.ClientSession) -> None:
        while self._next < self._options.pods:
            number = self._next
            self._next += 1
            await self._life(session, number)
            self._ended += 1

    async def _life(self, session: aiohttp.ClientSession, number: int) -> None:
        """Make a pod, bind it, start it, end it."""
        node = synthetic.node_name(number % self._size.nodes)
        agent = self._agents[number % self._size.nodes]
        made = await self._send(session, "POST", _PODS, synthetic.asking(number))
        await self._bind(session, made["metadata"], node)
        answer = await self._resolve(agent, number)
        agent.running[answer.allocation.allocation_id] = answer.allocation
        path = f"{_PODS}/{made['metadata']['name']}"
        await self._send(session, "PATCH", path, {"status": {"phase": "Running"}})
        await asyncio.sleep(_REPORT_SECONDS)
        outlives = number % 10 == 0
        if not outlives:
            del agent.running[answer.allocation.allocation_id]
            if number % 3 == 0:
                await self._send(session, "PATCH", path, {"status": {"phase": "Succeeded"}})
        await self._send(session, "DELETE", path, None)
        if outlives:
            await asyncio.sleep(_OUTLIVES_SECONDS)
            del agent.running[answer.allocation.allocation_id]

    async def _resolve(self, agent: Agent, number: int) -> pb.ResolveResponse:
        """Ask as an agent does that creates a container: again, where none answers."""
        asked = pb.ResolveRequest(container_uuid=synthetic.container_uuid(number))
        while True:
            call = agent.stubs[self._leader].Resolve(asked, timeout=8)
            if await call.code() is grpc.StatusCode.OK:
                answer: pb.ResolveResponse = await call
                return answer
            await self._find_leader()

    async def _bind(
        self, session: aiohttp.ClientSession, metadata: dict[str, Any], node: str
    ) -> None:
        """Ask the leader as kube-scheduler does, until it has bound the pod."""
        body = {
            "PodName": metadata["name"],
            "PodNamespace": "default",
            "PodUID": metadata["uid"],
            "Node": node,
        }
        while True:
            url = f"http://{self._synced[self._leader]['extender'][0]}/extender/bind"
            async with session.post(url, json=body) as response:
                if response.status == 200:
                    error = (await response.json())["Error"]
                    # After a change of leaders, what the first one did is found.
                    if not error or "already bound" in error:
                        return
                else:
                    await self._find_leader()
            # No room until an agent has reported what ended, or the Lease is about to be renewed.
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _send(
        self, session: aiohttp.ClientSession, method: str, path: str, body: object
    ) -> Any:  # noqa: ANN401 - JSON
        async with session.request(method, self._url + path, json=body) as response:
            response.raise_for_status()
            return await response.json()
