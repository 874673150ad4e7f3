# SPDX-License-Identifier: Apache-2.0
"""A whole cluster of one node, every part of it real but the cards.

    with Cluster(folder, rootfs) as cluster:
        cluster.kubectl("get", "nodes")
        cluster.kill("kubelet")
        cluster.start("kubelet")

etcd, API server, controller manager, scheduler, kubelet, containerd, two replicas of the scheduler
cache and the node agent are processes on ports and paths of their own. Pods get the simulated
driver's file through containerd's base spec, so that their own specs need not mention it.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import shutil
import signal
import subprocess
import urllib.error
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import yaml  # type: ignore[import-untyped,unused-ignore]

from tests.fakes.gpu import Card, SimulatedGpu
from tests.node.clusters import ClusterNode
from tests.testbed import BUILD
from tests.testbed.certificates import NODES_ORGANIZATION, CertificateAuthority
from tests.testbed.engines.base import unmount_below
from tests.testbed.engines.containerd import Containerd, docker_archive
from tests.testbed.engines.cri import CriStub
from tests.testbed.kubernetes.cgroups import make_cgroup, remove_cgroup
from tests.testbed.kubernetes.control_plane import START_SECONDS, ControlPlane
from tests.testbed.kubernetes.kubelet import Kubelet, KubeletSetup
from tests.testbed.kubernetes.process import Process, free_port
from tests.testbed.kubernetes.programs import UnavailableError, find_built, find_installed
from tests.testbed.kubernetes.release import NAMESPACE, Release
from tests.testbed.kubernetes.replicas import Replicas
from tests.testbed.kubernetes.service import Services
from tests.testbed.node import GIB, wait_until

NODE = "node1"
CARDS = 8
CARD_BYTES = 8 * GIB
DIALECTS = ("native", "hami", "volcano", "koordinator", "kai", "gpu_manager", "alnair")
PROBE_IMAGE = "docker.io/vgpu-test/probe:1"
PAUSE_IMAGE = "docker.io/vgpu-test/pause:1"
OTHER_SCHEDULERS = {
    "hami": ("kube-system", "hami-scheduler"),
    "volcano": ("volcano-system", "volcano-scheduler"),
    "koordinator": ("koordinator-system", "koord-scheduler"),
    "kai": ("kai-scheduler", "binder"),
}
"""By dialect, namespace and name of the account that decides where we are joined."""
# As Koordinator's chart installs it, without the schema.
_DEVICE_KIND = {
    "metadata": {"name": "devices.scheduling.koordinator.sh"},
    "spec": {
        "group": "scheduling.koordinator.sh",
        "names": {"kind": "Device", "listKind": "DeviceList", "plural": "devices"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
ALLOWED_PODS = "e2e-*/nvidia-*"
"""Pods without a slice that the node's own rules leave as they are."""
_CLUSTERS = itertools.count()


class Cluster:
    """The cluster; `parts` are what can be killed and started again, by name."""

    def __init__(self, folder: Path, rootfs: Path) -> None:
        """`folder` has a short name; `rootfs` has vgpu-probe. Raises UnavailableError."""
        self.folder = folder
        self._rootfs = rootfs
        self._kubectl = find_built("kubectl")
        self._ending = ExitStack()
        self.name = f"vgpu-{os.getpid():x}-{next(_CLUSTERS)}"
        self.authority = CertificateAuthority(folder / "ca")
        self.plane = ControlPlane(
            folder / "plane",
            find_installed("etcd"),
            find_built("kube-apiserver"),
            self._apiserver_flags(),
            self.authority.certificate,
        )
        self.kubeconfig = folder / "kubeconfig"
        self.gpu = SimulatedGpu.create(
            folder / "gpu",
            cards=[Card(memory_bytes=CARD_BYTES)] * CARDS,
            context_bytes=0,
            check_nodes=True,
        )
        self.parts: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}
        self.processes: list[Process] = []

    # -- life ------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        try:
            self._build()
        except BaseException as error:
            try:
                for name, words in self.logs().items():
                    error.add_note(f"{name}'s last words:\n{words}")
            finally:
                self._ending.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.close()

    def kill(self, part: str) -> None:
        """End a part with SIGKILL."""
        self.parts[part][1]()

    def start(self, part: str) -> None:
        """Start a part that does not run."""
        self.parts[part][0]()

    def whole(self) -> None:
        """Start whatever does not run, and wait until the cluster can run a pod."""
        for start, _ in self.parts.values():
            start()
        wait_until(self._ready, f"{NODE} is ready", timeout_seconds=START_SECONDS, step=0.2)

    # -- looking at it ---------------------------------------------------------------------

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl as somebody who may do everything; return what it printed, errors too."""
        done = subprocess.run(
            [self._kubectl, f"--kubeconfig={self.kubeconfig}", *words],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.returncode}: {done.stdout}")
        return done.stdout

    def node_object(self) -> Any:  # noqa: ANN401 - JSON
        """Return the node as the API server has it."""
        return self.plane.request("GET", f"/api/v1/nodes/{NODE}")

    def address(self, service: str, port: str) -> str:
        """Return ADDRESS:PORT of a Service of ours."""
        spec = next(each["spec"] for each in self._services if each["metadata"]["name"] == service)
        number = next(each["port"] for each in spec["ports"] if each["name"] == port)
        return f"{spec['clusterIP']}:{number}"

    def logs(self) -> dict[str, str]:
        """Return the last words of every part."""
        words = {each.name: each.last_words() for each in self.processes}
        for name, file in (
            ("agent", "node/agent.log"),
            ("containerd", "containerd/containerd.log"),
        ):
            log = self.folder / file
            words[name] = log.read_text(errors="replace")[-4000:] if log.exists() else ""
        return words

    # -- inside ----------------------------------------------------------------------------

    def _build(self) -> None:
        # What is mounted below is seen by the kubelet, the engine and the agent alike.
        subprocess.run(["mount", "--bind", self.folder, self.folder], check=True)
        self._ending.callback(_try, "umount", "-l", str(self.folder))
        subprocess.run(["mount", "--make-shared", self.folder], check=True)
        self._ending.callback(unmount_below, self.folder)
        make_cgroup(self.name)
        self._ending.callback(remove_cgroup, self.name)
        self._build_control_plane()
        self._build_cache()
        self._build_engine()
        self._build_kubelet()
        self.parts["agent"] = (self._start_agent, self._kill_agent)
        self._ending.callback(self.node.stop_agent)
        self.whole()

    def _build_control_plane(self) -> None:
        self._ending.callback(self.plane.stop)
        self.plane.start()
        self.plane.kubeconfig(self.kubeconfig)
        for process in (self.plane.etcd, self.plane.apiserver):
            self._add(process, start=self.plane.start)
        controllers = self._client("system:kube-controller-manager")
        self._add(
            Process(
                "kube-controller-manager",
                [
                    find_built("kube-controller-manager"),
                    f"--kubeconfig={controllers}",
                    "--leader-elect=false",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={free_port()}",
                    f"--cert-dir={self.folder}/controllers",
                    "--use-service-account-credentials",
                    f"--service-account-private-key-file={self.plane.service_account_key}",
                    f"--root-ca-file={self.plane.certificate_authority}",
                ],
                self.folder / "kube-controller-manager.log",
            )
        )
        self._add(
            Process(
                "kube-scheduler",
                [
                    find_built("kube-scheduler"),
                    f"--config={self._scheduler_config()}",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={free_port()}",
                    f"--cert-dir={self.folder}/scheduler",
                ],
                self.folder / "kube-scheduler.log",
            )
        )

    def _build_engine(self) -> None:
        runc = find_installed("runc")
        folder = self.folder / "containerd"
        self.node = self._make_node()
        self.containerd = Containerd(
            folder,
            None,
            {"plain": runc, "vgpu": self.node.launcher},
            snapshotter="overlayfs" if _knows_overlay() else "native",
            sandbox_image=PAUSE_IMAGE,
            base_specs={"vgpu": self.folder / "base-spec.json"},
            cni=self._network(),
        )
        self._ending.callback(self.containerd.stop)
        self._write_base_spec(self.folder / "base-spec.json")
        self.containerd.start()
        for image, command in ((PROBE_IMAGE, ["sleep", "600"]), (PAUSE_IMAGE, ["sleep", "86400"])):
            archive = docker_archive(self._rootfs, self.folder / "image.tar", image, command)
            self.containerd.import_image(archive, "k8s.io")
            archive.unlink()
        self._ending.callback(self._remove_sandboxes)
        self.parts["containerd"] = (self._start_engine, self.containerd.kill)

    def _build_kubelet(self) -> None:
        self.kubelet = Kubelet(
            KubeletSetup(
                folder=self.folder / "kubelet",
                program=find_built("kubelet"),
                node_name=NODE,
                node_address=_address(),
                kubeconfig=self._client(f"system:node:{NODE}", NODES_ORGANIZATION),
                client_ca=self.authority.certificate,
                engine=self.containerd.address,
                cgroup=self.name,
            )
        )
        self._add(self.kubelet.process)

    def _build_cache(self) -> None:
        self.start("kube-controller-manager")
        kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self.plane.request("POST", kinds, _DEVICE_KIND)
        users = (":".join(("system:serviceaccount", *each)) for each in OTHER_SCHEDULERS.values())
        self.release = Release(
            self.plane,
            self.kubeconfig,
            "node.agent=host",
            f"admission.config.join_users={{{','.join(users)}}}",
        )
        self.replicas = Replicas(
            self.folder / "cache", self.plane, self.release, self.authority.certificate
        )
        services = Services()
        self._ending.callback(services.close)
        self._services = self.release.services()
        self.replicas.serve(services, self._services)
        for process in self.replicas.processes:
            self._add(process)
        log = self.folder / "vgpu-scheduler.log"
        self._add(Process("vgpu-scheduler", self._second_scheduler(), log))

    def _make_node(self) -> ClusterNode:
        """Return the node, whose agent proves itself with the kubelet's certificate."""
        cache_lines = [
            f'address = "{self.address("vgpu-scheduler-cache-leader", "grpc")}"',
            f'ca = "{self.replicas.certificate_authority}"',
            f'server_name = "vgpu-scheduler-cache-leader.{NAMESPACE}.svc"',
            f'certificate = "{self.folder}/ca/system-node-{NODE}.pem"',
        ]
        agent_lines = [
            f"dialects = {json.dumps(DIALECTS)}",
            "[policy]",
            f'unmanaged_allow = ["{ALLOWED_PODS}"]',
        ]
        kubelet = self.folder / "kubelet" / "lib" / "kubelet"
        node = ClusterNode(self.folder / "node", self.gpu, cache_lines, agent_lines, kubelet)
        shutil.copy2(BUILD / "libvgpu-arbiter.so", node.library.parent)
        return node

    def _start_engine(self) -> None:
        if not self.containerd.runs():
            self.containerd.start()

    def _start_agent(self) -> None:
        if not self.node.agent_runs():
            self.node.start_agent()

    def _kill_agent(self) -> None:
        self.node.stop_agent(signal.SIGKILL)

    def _add(self, process: Process, start: Callable[[], None] | None = None) -> None:
        self.processes.append(process)
        self.parts[process.name] = (start or process.start, process.kill)
        self._ending.callback(process.stop)

    def _client(self, name: str, organization: str = "") -> Path:
        """Return a kubeconfig of a part of the cluster, with a certificate of its own."""
        file = name.replace(":", "-")
        proof = self.authority.issue(
            name, organization=organization, expires_in=datetime.timedelta(days=1), file=file
        )
        return self.plane.kubeconfig(
            self.folder / f"{file}.kubeconfig",
            {"client-certificate": str(proof.certificate), "client-key": str(proof.key)},
        )

    def _apiserver_flags(self) -> list[str]:
        serving = self.authority.issue_server("kubernetes.default.svc", file="apiserver-serving")
        caller = self.authority.issue("apiserver", organization="system:masters", file="apiserver")
        return [
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            # Of the range for benchmarks, so that it is nobody's network here.
            f"--service-cluster-ip-range=198.19.{os.getpid() % 256}.0/24",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={self.authority.certificate}",
            f"--kubelet-client-certificate={caller.certificate}",
            f"--kubelet-client-key={caller.key}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _second_scheduler(self) -> list[str | Path]:
        """Return the words that start the chart's scheduler, under its own account and names."""
        folder = self.folder / "vgpu-scheduler"
        tls = self.release.secret("vgpu-scheduler-tls", folder)
        kubeconfig = self.plane.kubeconfig(
            folder / "kubeconfig", {"token": self.release.token("vgpu-scheduler")}
        )
        settings = yaml.safe_load(
            self.release.scheduler_config().replace("/etc/vgpu/tls/", f"{tls}/")
        )
        settings.setdefault("clientConnection", {})["kubeconfig"] = str(kubeconfig)
        config = folder / "config.json"
        config.write_text(json.dumps(settings))
        # Names of Services, as the cluster's DNS would know them.
        hosts = folder / "hosts"
        names = [
            f"{each['spec']['clusterIP']} {each['metadata']['name']}.{NAMESPACE}.svc"
            for each in self._services
        ]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        script = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
        return [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", hosts),
            find_built("kube-scheduler"),
            f"--config={config}",
            *self.release.scheduler_words(),
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={folder}",
        ]

    def _scheduler_config(self) -> Path:
        config = self.folder / "scheduler.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": str(self._client("system:kube-scheduler"))},
                    "leaderElection": {"leaderElect": False},
                }
            )
        )
        return config

    def _network(self) -> Path:
        """Return the configuration of a network of this cluster's own, which leads nowhere."""
        folder = self.folder / "cni"
        folder.mkdir()
        network = {
            "cniVersion": "0.4.0",
            "name": self.name,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self.name,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.folder / "addresses"),
                        "ranges": [[{"subnet": "198.18.0.0/22"}]],
                    },
                }
            ],
        }
        (folder / "network.conflist").write_text(json.dumps(network))
        self._ending.callback(_try, "ip", "link", "delete", self.name)
        return folder

    def _write_base_spec(self, path: Path) -> None:
        """Write what containers of our handler begin as: with the file of the simulated cards."""
        done = subprocess.run(
            [*self.containerd.ctr(), "oci", "spec"], check=True, capture_output=True, text=True
        )
        spec = json.loads(done.stdout)
        for host, inside in self.node.gpu_mounts():
            spec["mounts"].append(
                {
                    "destination": inside,
                    "type": "bind",
                    "source": str(host),
                    "options": ["rbind", "rw"],
                }
            )
        path.write_text(json.dumps(spec))

    def _remove_sandboxes(self) -> None:
        """Remove every pod, as nobody else will once the kubelet has ended."""
        with grpc.insecure_channel(f"unix:{self.containerd.address}") as channel:
            engine = CriStub(channel)
            for sandbox in engine.call("ListPodSandbox").items:
                with suppress(grpc.RpcError):
                    engine.call("StopPodSandbox", pod_sandbox_id=sandbox.id)
                    engine.call("RemovePodSandbox", pod_sandbox_id=sandbox.id)

    def _ready(self) -> bool:
        for process in self.processes:
            process.check()
        if not self.kubelet.healthy():
            return False
        try:
            node = self.node_object()
        except (OSError, urllib.error.URLError):
            return False
        conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
        return conditions.get("Ready") == "True" and "vgpu.dev/node" in node["metadata"]["labels"]


def _try(*words: str) -> None:
    subprocess.run(words, check=False, capture_output=True)


def _knows_overlay() -> bool:
    return "\toverlay\n" in Path("/proc/filesystems").read_text()


def _address() -> str:
    """Return an address of this host that is not its loopback: a kubelet takes no other."""
    done = subprocess.run(["ip", "-json", "-4", "address"], check=True, capture_output=True)
    for link in json.loads(done.stdout):
        for address in link["addr_info"]:
            if address["scope"] == "global" and link["ifname"] != "lo":
                return str(address["local"])
    raise UnavailableError("this host has no IPv4 address but its loopback's; a kubelet needs one")
