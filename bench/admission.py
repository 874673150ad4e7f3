# SPDX-License-Identifier: Apache-2.0
"""Measures the webhooks: `python3 -m bench.admission`, on a busy machine as on an idle one.

Processor time is that of one review from body to body; the wall's time is a round trip over HTTPS
as an API server makes it, one after the other on one connection, the server in its own process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from bench.scheduler_cache.stage import Child, percentile, print_machine
from scheduler_cache.admission.manifests import MUTATE_PATH, VALIDATE_PATH
from scheduler_cache.admission.mutation import mutated
from scheduler_cache.admission.review import Review, Verdict, answer_of, review_of
from scheduler_cache.admission.rules import Rules, rules_of
from scheduler_cache.admission.validation import validated
from scheduler_cache.cluster_admission import Admission
from scheduler_cache.config_kubernetes import DIALECTS, AdmissionConfig, KubernetesConfig
from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from tests.testbed.certificates import CertificateAuthority

Json = dict[str, Any]
Judge = Callable[[Review, Rules], Verdict]

_EVERYTHING = AdmissionConfig(dialects=DIALECTS, dialect_scope="cluster")

LIMITS: dict[str, dict[str, str]] = {
    "native": {"vgpu.dev/memory": "8Gi", "vgpu.dev/cores": "30"},
    "Volcano": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4096"},
    "HAMi": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"},
    "Koordinator": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    "gpu-manager": {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"},
    "Alnair": {"alnair/vgpu-memory": "4", "alnair/vgpu-compute": "30"},
}


def pod(*limits: dict[str, str], annotations: dict[str, str] | None = None) -> Json:
    """Return a pod of the size of real ones (8 KB with two containers)."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": "training-5f7c9d8b6-",
            "namespace": "default",
            "labels": {f"example.org/label-{i}": f"value-{i}" for i in range(8)},
            "annotations": {f"example.org/note-{i}": "x" * 100 for i in range(8)}
            | (annotations or {}),
            "ownerReferences": [{"kind": "ReplicaSet", "name": "training", "uid": "1"}],
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "priority": 0,
            "volumes": [{"name": f"v{i}", "configMap": {"name": f"c{i}"}} for i in range(8)],
            "containers": [
                {
                    "name": f"main-{number}",
                    "image": "registry.example.org/team/image:1.0",
                    "command": ["python", "-m", "train", "--epochs", "100"],
                    "env": [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(30)],
                    "resources": {"limits": {"cpu": "4", "memory": "16Gi", **amounts}},
                    "volumeMounts": [{"name": f"v{i}", "mountPath": f"/v{i}"} for i in range(8)],
                }
                for number, amounts in enumerate(limits)
            ],
        },
    }


def body(new: Json, old: Json | None = None, **request: Any) -> bytes:  # noqa: ANN401
    """Return an AdmissionReview."""
    resource = {"group": "", "version": "v1", "resource": request.pop("resource", "pods")}
    return json.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": str(uuid.uuid4()),
                "resource": resource,
                "requestResource": resource,
                "namespace": "default",
                "operation": "CREATE" if old is None else "UPDATE",
                "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
                "object": new,
                "oldObject": old,
                **request,
            },
        }
    ).encode()


def mutate(review: Review, rules: Rules) -> Verdict:
    """Judge as the first webhook does."""
    return mutated(review, rules, lambda: str(uuid.uuid4()))


def kinds(rules: Rules) -> dict[str, tuple[str, Judge, bytes]]:
    """Return each kind of review: its path, who judges it, and its body."""
    found: dict[str, tuple[str, Judge, bytes]] = {}
    for name, limits in LIMITS.items():
        found[f"create, {name}, 1 container"] = (MUTATE_PATH, mutate, body(pod(limits)))
    found["create, KAI, 1 of 2 containers"] = (
        MUTATE_PATH,
        mutate,
        body(pod({}, {}, annotations={"gpu-fraction": "0.5"})),
    )
    four = pod(*[LIMITS["native"]] * 4)
    found["create, native, 4 containers"] = (MUTATE_PATH, mutate, body(four))
    found["create, no slice"] = (MUTATE_PATH, mutate, body(pod({})))
    found["create, denied"] = (MUTATE_PATH, mutate, body(pod({"vgpu.dev/memory": "8Gb"})))
    stored = _stored(pod(LIMITS["native"]), rules)
    found["validate, native, 1 container"] = (VALIDATE_PATH, validated, body(stored))
    labelled = json.loads(json.dumps(stored))
    labelled["metadata"]["labels"]["changed"] = "yes"
    found["update of a label"] = (VALIDATE_PATH, validated, body(labelled, stored))
    binding = {"kind": "Binding", "metadata": {"name": "p", "annotations": {"a/b": "c"}}}
    found["binding"] = (VALIDATE_PATH, validated, body(binding, subResource="binding"))
    return found


def measure(judge: Judge, data: bytes, rules: Rules, rounds: int) -> list[float]:
    """Return the processor time of each review, in milliseconds."""
    found = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        review = review_of(data)
        answer_of(review, judge(review, rules))
        found.append((time.thread_time_ns() - start) / 1e6)
    return found


async def round_trips(
    session: aiohttp.ClientSession, url: str, data: bytes, rounds: int
) -> list[float]:
    """Return the time of each round trip, in milliseconds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        async with session.post(url, data=data) as response:
            await response.read()
            assert response.status == 200
        found.append((time.perf_counter() - start) * 1e3)
    return found


async def serve(folder: Path) -> None:
    """Serve the webhooks until the input ends; print the address."""
    kubernetes = KubernetesConfig(
        admission=replace(
            _EVERYTHING,
            listen=("127.0.0.1:0",),
            certificate=str(folder / "server.crt"),
            key=str(folder / "server.key"),
        )
    )
    # A certificate in files needs no API server.
    client = KubeClient(KubeconfigConnection(folder / "kubeconfig"))
    admission = Admission(client, kubernetes, _rules(kubernetes), CollectorRegistry())
    running = asyncio.create_task(admission.run())
    (address,) = await asyncio.shield(admission.addresses)
    print(json.dumps(address), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _over_https(
    folder: Path, authority: CertificateAuthority, rules: Rules, rounds: int
) -> dict[str, list[float]]:
    server = Child("bench.admission", "--serve", str(folder))
    try:
        url = f"https://{server.json()}"
        context = ssl.create_default_context(cafile=str(authority.certificate))
        connector = aiohttp.TCPConnector(ssl=context, limit=1)
        found = {}
        async with aiohttp.ClientSession(connector=connector) as session:
            for name, (path, _, data) in kinds(rules).items():
                await round_trips(session, f"{url}{path}", data, 20)
                found[name] = await round_trips(session, f"{url}{path}", data, rounds)
        return found
    finally:
        assert server.process.stdin is not None
        server.process.stdin.close()
        server.process.wait(30)


def _rules(kubernetes: KubernetesConfig) -> Rules:
    return rules_of(kubernetes, every_dialect(Keyring(Key("bench", b"x" * 32))))


def _stored(source: Json, rules: Rules) -> Json:
    """Return a pod as the second webhook sees it."""
    found: Json = json.loads(json.dumps(source))
    for op in mutated(review_of(body(source)), rules, lambda: str(uuid.uuid4())).patch:
        *path, last = (part.replace("~1", "/") for part in op["path"].split("/")[1:])
        place: Any = found
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            place.insert(int(last), op["value"])
        else:
            place[last] = op["value"]
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.admission")
    parser.add_argument("--rounds", type=int, default=2000, help="reviews of each kind")
    parser.add_argument("--json", type=Path, help="where to write the numbers as well")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        asyncio.run(serve(options.serve))
        return
    rules = _rules(KubernetesConfig(admission=_EVERYTHING))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = CertificateAuthority(folder)
        authority.issue_server(file="server")
        wall = asyncio.run(_over_https(folder, authority, rules, options.rounds))
    print_machine()
    print("| review | bytes | CPU p50 ms | CPU p99 ms | HTTPS p50 ms | HTTPS p99 ms |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    rows = []
    for name, (_, judge, data) in kinds(rules).items():
        measure(judge, data, rules, 50)
        cpu = measure(judge, data, rules, options.rounds)
        row = {
            "review": name,
            "bytes": len(data),
            "cpu_p50_ms": percentile(cpu, 50),
            "cpu_p99_ms": percentile(cpu, 99),
            "https_p50_ms": percentile(wall[name], 50),
            "https_p99_ms": percentile(wall[name], 99),
        }
        rows.append(row)
        times = " | ".join(f"{row[key]:.3f}" for key in row if key.endswith("_ms"))
        print(f"| {name} | {len(data):,} | {times} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
