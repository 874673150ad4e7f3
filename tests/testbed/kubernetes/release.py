# SPDX-License-Identifier: Apache-2.0
"""The chart, installed by helm as its users do, and what it made."""

from __future__ import annotations

import base64
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from scheduler_cache.config_kubernetes import DIALECTS
from tests.testbed import REPOSITORY
from tests.testbed.kubernetes.control_plane import ControlPlane
from tests.testbed.kubernetes.programs import find_built

NAMESPACE = "vgpu-system"
CHART = REPOSITORY / "deploy" / "helm" / "vgpu"


class Release:
    """A release whose Deployments run nothing: their programs are processes of the testbed."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path, *values: str) -> None:
        """`values`: NAME=VALUE pairs of the chart's."""
        self._plane = plane
        self._folder = f"/api/v1/namespaces/{NAMESPACE}"
        _run(
            find_built("helm"),
            "install",
            "vgpu",
            str(CHART),
            f"--kubeconfig={kubeconfig}",
            f"--namespace={NAMESPACE}",
            "--create-namespace",
            *("--set=dialectScope=cluster", f"--set=dialects={{{','.join(DIALECTS)}}}"),
            *(f"--set={each}" for each in values),
        )
        _run(
            find_built("kubectl"),
            f"--kubeconfig={kubeconfig}",
            f"--namespace={NAMESPACE}",
            *("scale", "deployment", "--all", "--replicas=0"),
        )

    def config(self) -> dict[str, Any]:
        """Return the replicas' configuration."""
        return tomllib.loads(self._text("vgpu-scheduler-cache", "scheduler-cache.toml"))

    def scheduler_config(self) -> str:
        """Return the second scheduler's configuration."""
        return self._text("vgpu-scheduler", "config.yaml")

    def scheduler_words(self) -> list[str]:
        """Return what its pod's command line has beside the configuration."""
        return list(self._template("vgpu-scheduler")["spec"]["containers"][0].get("args", ()))

    def services(self) -> list[Any]:
        """Return the Services as the API server has them."""
        return list(self._plane.request("GET", f"{self._folder}/services")["items"])

    def replica_labels(self) -> dict[str, str]:
        """Return the labels of the replicas' pods."""
        return dict(self._template("vgpu-scheduler-cache")["metadata"]["labels"])

    def secret(self, name: str, folder: Path) -> Path:
        """Write a Secret as the kubelet mounts it; return the folder."""
        data = self._plane.request("GET", f"{self._folder}/secrets/{name}")["data"]
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in data.items():
            (folder / key).write_bytes(base64.b64decode(value))
        return folder

    def token(self, account: str) -> str:
        """Return a token of a service account, as the kubelet gives it to a pod."""
        path = f"{self._folder}/serviceaccounts/{account}/token"
        answer = self._plane.request("POST", path, {"spec": {"expirationSeconds": 7200}})
        return str(answer["status"]["token"])

    def _template(self, deployment: str) -> Any:  # noqa: ANN401 - JSON
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployment}"
        return self._plane.request("GET", path)["spec"]["template"]

    def _text(self, name: str, key: str) -> str:
        return str(self._plane.request("GET", f"{self._folder}/configmaps/{name}")["data"][key])


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
