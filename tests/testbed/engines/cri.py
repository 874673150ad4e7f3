# SPDX-License-Identifier: Apache-2.0
"""containerd as the kubelet uses it: pods over the Container Runtime Interface."""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, message_factory

from runtime_shim.identity import Identity
from tests.runtime_shim.pods import kubelet_mounts
from tests.testbed.engines.base import IMAGE, SLEEP, EngineFailedError, Setup, unmount_below
from tests.testbed.engines.containerd import Containerd, docker_archive
from tests.testbed.node import wait_until

PROTO = Path(__file__).with_name("cri.proto")
CALL_SECONDS = 60


@dataclass
class Pod:
    """A pod's sandbox, and the containers that were made in it."""

    identity: Identity
    sandbox: str
    config: Any
    attempts: dict[str, int] = field(default_factory=dict)


class Cri:
    """A private containerd with the handlers `vgpu` and `plain`, and its CRI."""

    def __init__(
        self,
        setup: Setup,
        binaries: Path | None = None,
        *,
        handlers: Mapping[str, Path] | None = None,
    ) -> None:
        """`handlers`: others than these two, by name."""
        self.setup = setup
        handlers = handlers or {"vgpu": setup.launcher, "plain": setup.low_level}
        self.containerd = Containerd(setup.directory, binaries, handlers)
        self._pods: list[Pod] = []
        self._channel = grpc.insecure_channel(f"unix:{self.containerd.address}")
        self._runtime = CriStub(self._channel)

    def open(self) -> None:
        """Start containerd and load the image."""
        self.containerd.start()
        archive = docker_archive(self.setup.rootfs, self.setup.directory / "image.tar")
        self.containerd.import_image(archive, "k8s.io")
        archive.unlink()
        wait_until(self._is_ready, "containerd's CRI answers", timeout_seconds=90)

    def shut(self) -> None:
        """Remove every pod and end containerd."""
        try:
            self.remove_all()
        finally:
            self._channel.close()
            self.containerd.stop()
            unmount_below(self.setup.directory)

    def version(self) -> str:
        """Return containerd's version."""
        return str(self._runtime.call("Version").runtime_version).removeprefix("v")

    def run_pod(self, identity: Identity, handler: str = "vgpu") -> Pod:
        """Make a pod's sandbox, in the host's network, in a cgroup as the kubelet names it."""
        logs = self.setup.directory / "logs" / identity.pod_uid
        logs.mkdir(parents=True, exist_ok=True)
        config = {
            "metadata": {
                "name": identity.pod,
                "uid": identity.pod_uid,
                "namespace": identity.namespace,
            },
            "log_directory": str(logs),
            "linux": {
                "cgroup_parent": f"/kubepods/besteffort/pod{identity.pod_uid}",
                "security_context": {"namespace_options": {"network": 2}},
            },
        }
        answer = self._runtime.call("RunPodSandbox", config=config, runtime_handler=handler)
        pod = Pod(identity, answer.pod_sandbox_id, config)
        self._pods.append(pod)
        return pod

    def start(
        self,
        pod: Pod,
        args: Sequence[str] = SLEEP,
        *,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> str:
        """Create and start the next container of a name, the pod's own one; return its id.

        Raises `EngineFailedError` with what `kubectl describe pod` shows.
        """
        name = name or pod.identity.container_name
        attempt = pod.attempts[name] = pod.attempts.get(name, -1) + 1
        container = self._create(pod, name, attempt, args, env or {})
        try:
            self._runtime.call("StartContainer", container_id=container)
        except grpc.RpcError as error:
            raise EngineFailedError(["StartContainer"], 128, str(error.details())) from error
        return container

    def run(
        self, pod: Pod, args: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a container to its end; return exit code and what it wrote, as `kubectl logs`."""
        container = self.start(pod, args, env=env)
        wait_until(lambda: self.status(container).state == 2, "it ends", timeout_seconds=90)
        name = pod.identity.container_name
        log = Path(pod.config["log_directory"]) / f"{name}-{pod.attempts[name]}.log"
        lines = [line.split(" ", 3)[3] for line in log.read_text().splitlines()]
        return int(self.status(container).exit_code), "\n".join(lines)

    def exec(self, container: str, *args: str) -> str:
        """Run a program in a running container, as a probe does; return its stdout."""
        done = self._runtime.call("ExecSync", container_id=container, cmd=args, timeout=30)
        if done.exit_code != 0:
            raise EngineFailedError(args, done.exit_code, done.stderr.decode())
        return str(done.stdout.decode())

    def status(self, container: str) -> Any:  # noqa: ANN401  a message
        """Return what the kubelet sees of a container."""
        return self._runtime.call("ContainerStatus", container_id=container).status

    def update(self, container: str, **resources: int) -> None:
        """Change a container's resources."""
        self._runtime.call("UpdateContainerResources", container_id=container, linux=resources)

    def stop(self, container: str) -> None:
        """Stop a container and remove it, as the kubelet does before a restart."""
        self._runtime.call("StopContainer", container_id=container, timeout=0)
        self._runtime.call("RemoveContainer", container_id=container)

    def remove_all(self) -> None:
        """Remove every pod with its containers."""
        while self._pods:
            sandbox = self._pods.pop().sandbox
            self._runtime.call("StopPodSandbox", pod_sandbox_id=sandbox)
            self._runtime.call("RemovePodSandbox", pod_sandbox_id=sandbox)

    def _create(
        self, pod: Pod, name: str, attempt: int, args: Sequence[str], env: Mapping[str, str]
    ) -> str:
        places = [(str(host), inside) for host, inside in self.setup.mounts]
        kubelet = str(self.setup.directory / "kubelet" / "pods")
        for mount in kubelet_mounts(pod.identity.pod_uid, name, kubelet):
            file = Path(mount["source"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            places.append((str(file), mount["destination"]))
        config = {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": IMAGE},
            "command": list(args),
            "envs": [{"key": key, "value": value} for key, value in env.items()],
            "mounts": [{"host_path": host, "container_path": inside} for host, inside in places],
            "log_path": f"{name}-{attempt}.log",
            "linux": {"security_context": {"namespace_options": {"network": 2}}},
        }
        answer = self._runtime.call(
            "CreateContainer",
            pod_sandbox_id=pod.sandbox,
            config=config,
            sandbox_config=pod.config,
        )
        return str(answer.container_id)

    def _is_ready(self) -> bool:
        try:
            self._runtime.call("Version")
        except grpc.RpcError:
            return False
        return True


class CriStub:
    """Calls by name; fields of the request by keyword, nested ones as dicts."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._calls: dict[str, tuple[Any, Callable[..., Any]]] = {}

    def call(self, method: str, **fields: Any) -> Any:  # noqa: ANN401  messages
        if method not in self._calls:
            request, response = _methods()[method]
            self._calls[method] = (
                request,
                self._channel.unary_unary(
                    f"/runtime.v1.RuntimeService/{method}",
                    request_serializer=request.SerializeToString,
                    response_deserializer=response.FromString,
                ),
            )
        request, call = self._calls[method]
        return call(request(**fields), timeout=CALL_SECONDS)


@lru_cache
def _methods() -> dict[str, tuple[Any, Any]]:
    """Return the messages of every method, from the .proto itself: no generated code to keep."""
    protoc = shutil.which("protoc")
    assert protoc is not None, "protoc is not installed: run `make setup`"
    described = subprocess.run(
        [protoc, f"-I{PROTO.parent}", "--descriptor_set_out=/dev/stdout", str(PROTO)],
        capture_output=True,
        check=True,
    ).stdout
    files = descriptor_pb2.FileDescriptorSet.FromString(described).file
    messages: Any = message_factory.GetMessages(files)
    service = files[0].service[0]
    return {
        method.name: (
            messages[method.input_type.lstrip(".")],
            messages[method.output_type.lstrip(".")],
        )
        for method in service.method
    }
