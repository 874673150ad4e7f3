# SPDX-License-Identifier: Apache-2.0
"""The chart: what helm makes of it, and what a real API server says to that."""

from __future__ import annotations

import asyncio
import base64
import datetime
import filecmp
import json
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scheduler_cache.errors import NotProvedError
from scheduler_cache.identity import Identity
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from scheduler_cache.kube.errors import ApiError
from scheduler_cache.kube.token_review import TokenReviewer
from tests.deploy.examples import EXAMPLES, example_pods
from tests.deploy.manifests import (
    CHART,
    MANIFESTS,
    Item,
    containers_of,
    items_of,
    one,
    pod_specs,
    text_of,
)
from tests.testbed import REPOSITORY
from tests.testbed.kubernetes import ControlPlane
from tests.testbed.kubernetes.programs import find_built
from tests.testbed.node import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROBE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe"},
    "spec": {"containers": [{"name": "main", "image": "docker.io/library/busybox:1"}]},
}


@dataclass(frozen=True)
class Done:
    """How a program ended."""

    status: int
    stdout: str
    stderr: str


def run(*words: str | Path, stdin: str = "") -> Done:
    done = subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def rendered(*values: str, version: str = "1.34.0", namespace: str = "vgpu-system") -> list[Item]:
    """Return the objects that helm renders."""
    done = run(
        *(find_built("helm"), "template", "vgpu", CHART, f"--namespace={namespace}"),
        *(f"--kube-version={version}", *(f"--set={each}" for each in values)),
    )
    assert done.status == 0, done.stderr
    return items_of(done.stdout)


@dataclass(frozen=True)
class Site:
    """A namespace of a test in a real API server."""

    kubeconfig: Path
    namespace: str
    made: list[tuple[str, str]] = field(default_factory=list)
    """Kind and name of what no controller takes away with the namespace."""

    def kubectl(self, *words: str, stdin: str = "") -> Done:
        flags = (f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}")
        return run(find_built("kubectl"), *flags, *words, stdin=stdin)

    def helm(self, *words: str) -> Done:
        flags = (f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}")
        return run(find_built("helm"), *flags, *words)

    def get(self, kind: str, name: str) -> Any:  # noqa: ANN401 - JSON
        done = self.kubectl("get", kind, name, "--output=json")
        assert done.status == 0, done.stderr
        return json.loads(done.stdout)

    def patch_status(self, what: str, **status: object) -> None:
        """Write a status, as a controller does."""
        done = self.kubectl(
            *("patch", what, "--subresource=status", "--type=merge"),
            f"--patch={json.dumps({'status': status})}",
        )
        assert done.status == 0, done.stderr

    def finish_job(self, name: str) -> None:
        """Say of a Job what its controller says of one that succeeded."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        done = {"status": "True", "lastTransitionTime": now, "lastProbeTime": now}
        self.patch_status(
            f"job/{name}",
            startTime=now,
            completionTime=now,
            succeeded=1,
            conditions=[{"type": kind, **done} for kind in ("SuccessCriteriaMet", "Complete")],
        )

    def may(self, account: str, verb: str, what: str, *, namespace: str = "") -> bool:
        """Tell whether a service account of the namespace may do something.

        `what`: RESOURCE, RESOURCE/NAME, or RESOURCE:SUBRESOURCE.
        """
        resource, _, subresource = what.partition(":")
        user = f"system:serviceaccount:{self.namespace}:{account}"
        where = f"--namespace={namespace}" if namespace else "--all-namespaces"
        asked = run(
            *(find_built("kubectl"), f"--kubeconfig={self.kubeconfig}"),
            *("auth", "can-i", verb, resource, f"--subresource={subresource}", where),
            f"--as={user}",
        )
        # Its status is 1 for a clean "no", too.
        assert asked.stdout.strip() in ("yes", "no"), asked.stderr
        return asked.stdout.strip() == "yes"


@pytest.fixture
def site(plane: ControlPlane, tmp_path: Path) -> Iterator[Site]:
    """Yield a namespace of the test's own."""
    site = Site(plane.kubeconfig(tmp_path / "kubeconfig"), f"chart-{uuid.uuid4().hex[:8]}")
    assert site.kubectl("create", "namespace", site.namespace).status == 0
    yield site
    # What is the cluster's own must not outlive the test, whatever became of it.
    site.helm("uninstall", "vgpu", "--ignore-not-found", "--no-hooks")
    for kind, name in site.made:
        site.kubectl("delete", kind, name, "--force", "--grace-period=0", "--wait=false")
    site.kubectl("delete", "namespace", site.namespace, "--wait=false")


@pytest.mark.e2e_quick
def test_lint_has_nothing_to_say() -> None:
    done = run(find_built("helm"), "lint", "--strict", "--quiet", CHART)

    assert (done.status, done.stdout.strip()) == (0, ""), done


@pytest.mark.e2e_quick
def test_the_committed_manifests_are_what_the_chart_renders(tmp_path: Path) -> None:
    done = run(REPOSITORY / "scripts/manifests", tmp_path)
    assert done.status == 0, done.stderr

    names = sorted(path.name for path in tmp_path.iterdir())
    same, *different = filecmp.cmpfiles(tmp_path, MANIFESTS, names, shallow=False)

    assert names == sorted(path.name for path in MANIFESTS.iterdir())
    assert same == names, f"run scripts/manifests and commit: {different}"


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((), id="as-it-is", marks=pytest.mark.e2e_quick),
        pytest.param(("node.agent=host", "cache.leaderService.type=NodePort"), id="on-hosts"),
        pytest.param(("node.agent=remove",), id="removing"),
        pytest.param(("admission.enabled=false", "scheduler.enabled=false"), id="join-alone"),
        pytest.param(
            ("scheduler.enabled=false", "scheduler.serveExtender=true"), id="own-scheduler"
        ),
        pytest.param(("tls.mode=secret", "keys.existingSecret=mine"), id="own-secrets"),
        pytest.param(
            (
                *(
                    "node.engine=crio",
                    "node.prefix=/home/kubernetes/vgpu",
                    "node.proof=certificate",
                ),
                *(
                    "node.runtime.low_level_runtime=/usr/bin/crun",
                    "node.cacheAddress=10.0.0.9:9400",
                ),
                *("node.runtimeClassName=nvidia", "node.restartCommand=systemctl restart k3s"),
                "node.config.policy.unmanaged_allow={gpu-operator/*}",
            ),
            id="another-node",
        ),
        pytest.param(
            (
                *(
                    "image.pullSecrets={one,two}",
                    "cache.replicas=3",
                    "cache.config.card_policy=spread",
                ),
                *("cache.kubernetes.eviction_seconds=60", "cache.nodeSelector.pool=system"),
                *("networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus",),
                *("scheduler.extender.weight=5", "dialects={native,hami,kai}"),
                "image.cache.digest=sha256:" + "0" * 64,
            ),
            id="another-cache",
        ),
        pytest.param(
            (
                "dialects={native,volcano,hami,koordinator,kai,gpu_manager,alnair}",
                "dialectScope=cluster",
            ),
            id="every-dialect",
        ),
        pytest.param(("networkPolicy.enabled=false", "runtimeClass.create=false"), id="less"),
    ],
)
def test_a_real_api_server_takes_it(site: Site, values: tuple[str, ...]) -> None:
    options = [f"--set={each}" for each in values]
    text = run(
        *(find_built("helm"), "template", "vgpu", CHART, f"--namespace={site.namespace}"),
        *("--kube-version=1.34.0", *options),
    )
    assert text.status == 0, text.stderr

    # Unknown fields are errors, and so is what is deprecated.
    done = run(
        *(find_built("kubectl"), f"--kubeconfig={site.kubeconfig}", "apply", "--dry-run=server"),
        *("--validate=strict", "--warnings-as-errors", "--filename=-"),
        stdin=text.stdout,
    )

    assert done.status == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(items_of(text.stdout))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("node.agent=pod", "/node/agent"),
        ("node.prefix=relative", "/node/prefix"),
        ("node.runtimeClassName=vgpu", "/node/runtimeClassName"),
        ("node.runtime.low_level=/x", "low_level"),
        ("node.config.polcy.unmanaged=void", "polcy"),
        ("image.cache.repository=vgpu/cache", "/image/cache/repository"),
        ("image.node.digest=latest", "/image/node/digest"),
        ("cache.replicas=0", "/cache/replicas"),
        ("cache.kubernetes.listen=x", "/cache/kubernetes"),
        ("cache.replica=2", "replica"),
        ("dialects={native,kubeshare}", "/dialects/1"),
        ("tls.mode=none", "/tls/mode"),
        ("admission.config.dialects={native}", "/admission/config"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(values: str, words: str) -> None:
    done = run(
        *(find_built("helm"), "template", "vgpu", CHART, "--kube-version=1.34.0"),
        f"--set={values}",
    )

    assert done.status == 1
    assert "values don't meet the specifications of the schema" in done.stderr
    assert words in done.stderr


def test_cert_manager_needs_an_issuer() -> None:
    done = run(
        *(find_built("helm"), "template", "vgpu", CHART, "--kube-version=1.34.0"),
        "--set=tls.mode=certManager",
    )

    assert done.status == 1
    assert "needs tls.certManager.issuerRef" in done.stderr


def test_cert_manager_makes_every_secret_that_a_pod_mounts() -> None:
    items = rendered(
        *("tls.mode=certManager", "admission.certManager=true", "keys.existingSecret=mine"),
        *("tls.certManager.issuerRef.name=ca", "tls.certManager.issuerRef.kind=ClusterIssuer"),
    )
    made = {each["spec"]["secretName"] for each in items if each["kind"] == "Certificate"}
    mounted = {
        source["secret"].get("secretName", source["secret"].get("name"))
        for _, spec in pod_specs(items)
        for volume in spec["volumes"]
        for source in (volume, *volume.get("projected", {}).get("sources", ()))
        if "secret" in source
    }
    webhooks = one(items, "MutatingWebhookConfiguration", "vgpu-admission")

    assert mounted == made | {"mine"}
    assert webhooks["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": "vgpu-system/vgpu-admission"
    }


@pytest.mark.parametrize(
    ("version", "conditions", "has_policies"),
    [("1.27.0", False, False), ("1.29.0", True, False), ("1.30.0-eks-1", True, True)],
)
def test_an_older_api_server_gets_what_it_knows(
    version: str, conditions: bool, has_policies: bool
) -> None:
    items = rendered(version=version)
    webhooks = one(items, "MutatingWebhookConfiguration", "vgpu-admission")["webhooks"]

    assert all(("matchConditions" in each) == conditions for each in webhooks)
    kinds = {each["kind"] for each in items}
    assert ("ValidatingAdmissionPolicy" in kinds) == has_policies
    scheduler = one(items, "Deployment", "vgpu-scheduler")["spec"]["template"]["spec"]
    assert containers_of(scheduler)[0]["image"].endswith(f":v{version.partition('-')[0]}")


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ((), "$(VGPU_SCHEDULER_CACHE_LEADER_SERVICE_HOST):9402"),
        (("node.proof=certificate",), "$(VGPU_SCHEDULER_CACHE_LEADER_SERVICE_HOST):9400"),
        (("cache.leaderService.clusterIP=fd00::9",), "[fd00::9]:9402"),
        (("node.cacheAddress=lb.example:31400",), "lb.example:31400"),
    ],
)
def test_agents_go_where_they_are_told_and_may(values: tuple[str, ...], address: str) -> None:
    items = rendered(*values)
    spec = one(items, "DaemonSet", "vgpu-node")["spec"]["template"]["spec"]
    variables = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    (rule,) = one(items, "NetworkPolicy", "vgpu-node")["spec"]["egress"]

    assert variables["VGPU_CACHE_ADDRESS"] == address
    assert int(address.rpartition(":")[2]) in [each["port"] for each in rule["ports"]]


@pytest.mark.parametrize(
    ("enabled", "serves", "served", "sources"),
    [
        ("true", "false", True, 1),
        ("true", "true", True, 0),
        ("false", "true", True, 0),
        ("false", "false", False, 0),
    ],
)
def test_the_extender_is_served_to_whom_it_is_meant_for(
    enabled: str, serves: str, served: bool, sources: int
) -> None:
    items = rendered(f"scheduler.enabled={enabled}", f"scheduler.serveExtender={serves}")
    config = tomllib.loads(text_of(items, "vgpu-scheduler-cache", "scheduler-cache.toml"))
    service = one(items, "Service", "vgpu-scheduler-cache-leader")
    rules = [
        rule
        for rule in one(items, "NetworkPolicy", "vgpu-scheduler-cache")["spec"]["ingress"]
        if any(port["port"] == "extender" for port in rule["ports"])
    ]

    assert ("extender" in config["kubernetes"]) == served
    assert ("extender" in [port["name"] for port in service["spec"]["ports"]]) == served
    assert [len(rule.get("from", [])) for rule in rules] == ([sources] if served else [])
    assert ("scheduler_name" in config["kubernetes"]["admission"]) == (enabled == "true")


def test_a_dialect_that_is_left_out_is_nobody_s_business() -> None:
    kinds = ("Webhook", "Policy")
    items = [
        each
        for each in rendered("dialects={native,volcano}")
        if any(word in each["kind"] for word in kinds) and each["kind"] != "NetworkPolicy"
    ]
    text = json.dumps(items)

    assert "volcano.sh/vgpu-number" in text
    assert "nvidia.com/use-gputype" in text  # Volcano's, too
    for foreign in ("nvidia.com/gpumem", "hami.io/", "gpu-fraction", "tencent.com/", "alnair/"):
        assert foreign not in text, foreign


@pytest.mark.parametrize("claimed", [False, True])
def test_a_bare_card_is_asked_about_only_where_it_is_hamis(claimed: bool) -> None:
    value = f"cache.kubernetes.dialects.hami.claim_bare_gpu={str(claimed).lower()}"

    for dialects, asked in (("native,hami", claimed), ("native", False)):
        items = rendered(value, f"dialects={{{dialects}}}")

        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            text = json.dumps(one(items, kind, "vgpu-admission")["webhooks"])
            assert (r"\"nvidia.com/gpu\"" in text) is asked


def test_upgrades_keep_what_was_made_at_random(site: Site) -> None:
    installed = site.helm("install", "vgpu", str(CHART))
    assert installed.status == 0, installed.stderr
    before = {name: site.get("secret", name)["data"] for name in ("vgpu-tls", "vgpu-keys")}

    assert site.helm("upgrade", "vgpu", str(CHART)).status == 0
    after = {name: site.get("secret", name)["data"] for name in before}
    assert site.helm("upgrade", "vgpu", str(CHART), "--set=tls.renew=true").status == 0
    renewed = {name: site.get("secret", name)["data"] for name in before}

    assert after == before
    assert renewed["vgpu-tls"] != before["vgpu-tls"]
    assert renewed["vgpu-keys"] == before["vgpu-keys"]


def test_the_key_outlives_the_release(site: Site) -> None:
    """Pods run on with what was signed with it, and their containers must be able to restart."""
    install = ("install", "vgpu", str(CHART), "--set=node.undoOnUninstall=false")
    assert site.helm(*install).status == 0
    made = site.get("secret", "vgpu-keys")["data"]

    assert site.helm("uninstall", "vgpu").status == 0
    kept = site.get("secret", "vgpu-keys")["data"]
    again = site.helm(*install)

    assert again.status == 0, again.stderr
    assert kept == made
    assert site.get("secret", "vgpu-keys")["data"] == made


def test_a_release_of_another_name_takes_the_key_that_is_there(site: Site) -> None:
    options = ("--set=node.undoOnUninstall=false", "--set=keys.existingSecret=vgpu-keys")
    assert site.helm("install", "vgpu", str(CHART), options[0]).status == 0
    made = site.get("secret", "vgpu-keys")["data"]
    assert site.helm("uninstall", "vgpu").status == 0

    installed = site.helm("install", "other", str(CHART), *options)
    removed = site.helm("uninstall", "other")

    assert installed.status == 0, installed.stderr
    assert removed.status == 0, removed.stderr
    assert site.get("secret", "vgpu-keys")["data"] == made


def test_what_only_renders_makes_no_key() -> None:
    """Applied again and again it would replace the one that running pods are signed with."""
    secrets = {each["metadata"]["name"] for each in rendered() if each["kind"] == "Secret"}

    assert "vgpu-tls" in secrets
    assert "vgpu-keys" not in secrets


def test_a_namespace_of_the_chart_is_kept_with_the_key_in_it() -> None:
    (namespace,) = (
        each for each in rendered("namespace.create=true") if each["kind"] == "Namespace"
    )

    assert namespace["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_what_the_replicas_fill_is_not_emptied_by_an_upgrade(site: Site) -> None:
    assert site.helm("install", "vgpu", str(CHART)).status == 0
    site.kubectl("patch", "secret", "vgpu-admission", '--patch={"data": {"tls.crt": "eA=="}}')
    site.kubectl(
        *("patch", "mutatingwebhookconfiguration", "vgpu-admission", "--type=json"),
        '--patch=[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"eA=="}]',
    )

    upgraded = site.helm("upgrade", "vgpu", str(CHART), "--set=cache.replicas=3")

    assert upgraded.status == 0, upgraded.stderr
    assert site.get("secret", "vgpu-admission")["data"] == {"tls.crt": "eA=="}
    webhooks = site.get("mutatingwebhookconfiguration", "vgpu-admission")["webhooks"]
    assert webhooks[0]["clientConfig"]["caBundle"] == "eA=="


def check_believed(certificate: Path, authority: Path, host: str) -> None:
    """Fail unless strict readers believe a certificate for a name."""
    words = ("openssl", "verify", "-x509_strict", "-verify_hostname", host, "-CAfile", authority)
    done = run(*words, certificate)
    assert done.status == 0, done.stdout + done.stderr


def test_the_charts_certificates_are_believed(site: Site, tmp_path: Path) -> None:
    assert site.helm("install", "vgpu", str(CHART), "--set=tls.extraNames={lb.example}").status == 0

    for secret, host in (
        ("vgpu-tls", f"vgpu-scheduler-cache-leader.{site.namespace}.svc"),
        ("vgpu-tls", f"vgpu-scheduler-cache.{site.namespace}.svc.cluster.local"),
        ("vgpu-tls", "lb.example"),
        ("vgpu-scheduler-tls", "vgpu-scheduler"),
    ):
        data = site.get("secret", secret)["data"]
        for key in ("tls.crt", "ca.crt"):
            (tmp_path / key).write_bytes(base64.b64decode(data[key]))
        check_believed(tmp_path / "tls.crt", tmp_path / "ca.crt", host)


def test_the_documents_commands_make_certificates_that_are_believed(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs/kubernetes.md").read_text()
    _, begin, rest = text.partition("$ openssl req -x509")
    commands = f"{begin}{rest.partition('$ kubectl create namespace')[0]}"
    script = "set -e\n" + re.sub(r"^\$ ", "", commands, flags=re.MULTILINE)

    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    agent = tomllib.loads(
        text_of(items_of((MANIFESTS / "vgpu.yaml").read_text()), "vgpu-node", "agent.toml")
    )
    for name, host in (
        ("vgpu-scheduler-cache", agent["cache"]["server_name"]),
        ("vgpu-scheduler", "vgpu-scheduler"),
    ):
        check_believed(tmp_path / f"{name}.crt", tmp_path / "ca.crt", host)


def test_rights_are_what_each_needs(site: Site) -> None:
    assert site.helm("install", "vgpu", str(CHART)).status == 0
    own = site.namespace
    cache, agent = "vgpu-scheduler-cache", "vgpu-node-agent"

    # The API server hears of new rights, as of all else, a moment later.
    wait_until(lambda: site.may(cache, "watch", "pods"), "the rights are known")
    for verb, what in (
        ("patch", "nodes"),
        ("create", "pods:binding"),
        ("create", "pods:eviction"),
        ("patch", "events"),
        ("create", "tokenreviews.authentication.k8s.io"),
    ):
        assert site.may(cache, verb, what), (verb, what)
    assert site.may(cache, "update", "leases/vgpu-scheduler-cache", namespace=own)
    assert site.may(cache, "watch", "leases", namespace="kube-node-lease")
    assert site.may(cache, "update", "secrets/vgpu-admission", namespace=own)
    for verb, what in (
        ("get", "secrets"),
        ("create", "pods"),
        ("delete", "pods"),
        ("create", "pods:exec"),
        ("impersonate", "users"),
        ("escalate", "clusterroles"),
    ):
        assert not site.may(cache, verb, what), (verb, what)
        assert not site.may(cache, verb, what, namespace=own), (verb, what)
    for verb in ("get", "list", "watch", "create", "patch"):
        assert not site.may(agent, verb, "pods", namespace=own)
        assert not site.may(agent, verb, "nodes")


async def test_a_token_of_the_daemonsets_pod_proves_its_node_and_nothing_else(
    plane: ControlPlane, site: Site, client: KubeClient, tmp_path: Path
) -> None:
    """What the kubelet projects into the pod, judged with the rights that the replicas have."""
    assert site.helm("install", "vgpu", str(CHART)).status == 0
    spec = site.get("daemonset", "vgpu-node")["spec"]["template"]["spec"]
    (source,) = [
        each["serviceAccountToken"]
        for volume in spec["volumes"]
        for each in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in each
    ]
    account = f"{site.namespace}/{spec['serviceAccountName']}"
    node = f"node-of-{site.namespace}"
    await client.create("/api/v1/nodes", {"metadata": {"name": node}})
    site.made.append(("node", node))
    folder = f"/api/v1/namespaces/{site.namespace}"
    pod = await client.create(
        f"{folder}/pods",
        {
            "metadata": {"name": "vgpu-node-x"},
            "spec": {**spec, "nodeName": node, "volumes": [], "initContainers": []}
            | {"containers": PROBE["spec"]["containers"]},  # type: ignore[index]
        },
    )

    site.made.append(("pod", "vgpu-node-x"))

    async def token(**bound: object) -> str:
        answer = await client.create(
            f"{folder}/serviceaccounts/{spec['serviceAccountName']}/token",
            {"spec": {"audiences": [source["audience"]], "expirationSeconds": 3600, **bound}},
        )
        return str(answer["status"]["token"])

    of_pod = await token(
        boundObjectRef={
            "apiVersion": "v1",
            "kind": "Pod",
            **{key: pod["metadata"][key] for key in ("name", "uid")},
        }
    )
    own = site.kubectl("create", "token", "vgpu-scheduler-cache").stdout.strip()
    kubeconfig = plane.kubeconfig(tmp_path / "cache", {"token": own})
    async with KubeClient(KubeconfigConnection(kubeconfig)) as cache:
        reviewer = TokenReviewer(cache, source["audience"], [account])

        identity = await until_allowed(lambda: reviewer.identity(of_pod))

        assert identity.node == node
        with pytest.raises(NotProvedError, match="names no node"):
            await reviewer.identity(await token())
        with pytest.raises(NotProvedError, match="is not a service account that node agents"):
            await TokenReviewer(cache, source["audience"], ["other/one"]).identity(of_pod)
    agent = plane.kubeconfig(tmp_path / "agent", {"token": of_pod})
    async with KubeClient(KubeconfigConnection(agent)) as nobody:
        with pytest.raises(ApiError, match="401"):  # it is for the cache alone
            await nobody.get(f"{folder}/pods")


async def until_allowed(ask: Callable[[], Awaitable[Identity]]) -> Identity:
    """Return an answer once the API server has heard of the rights that it takes."""
    for _ in range(100):
        try:
            return await ask()
        except ApiError as error:
            if error.code != 403:
                raise
        await asyncio.sleep(0.2)
    return await ask()


def test_pods_of_another_system_go_their_way_unless_they_choose_our_nodes(site: Site) -> None:
    """No replica answers: what the API server asks about is refused, and the rest is not."""
    options = ("--set=dialects={native,hami}",)
    assert site.helm("install", "vgpu", str(CHART), *options).status == 0
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}}}
    spec: Any = {"containers": [{**PROBE["spec"]["containers"][0], **limits}]}  # type: ignore[index]
    chosen = {"key": "vgpu.dev/dialect", "operator": "In", "values": ["hami"]}
    term = {"nodeSelectorTerms": [{"matchExpressions": [chosen]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    specs = {
        "theirs": {**spec, "nodeSelector": {"pool": "gpu"}},
        "selecting": {**spec, "nodeSelector": {"vgpu.dev/dialect": "hami"}},
        "affine": {**spec, "affinity": affinity},
    }

    def refusal(name: str) -> str:
        item = {**PROBE, "metadata": {"name": name}, "spec": specs[name]}
        words = ("create", "-f", "-", "--dry-run=server")
        return site.kubectl(*words, stdin=json.dumps(item)).stderr

    wait_until(lambda: "vgpu.dev" in refusal("selecting"), "the webhooks are known")
    scoped = {name: "vgpu.dev" in refusal(name) for name in specs}
    assert (
        site.helm("upgrade", "vgpu", str(CHART), *options, "--set=dialectScope=cluster").status == 0
    )
    wait_until(lambda: "vgpu.dev" in refusal("theirs"), "the whole cluster is asked about")

    assert scoped == {"theirs": False, "selecting": True, "affine": True}


def test_no_replica_stops_pods_with_a_slice_and_no_others(site: Site) -> None:
    installed = site.helm("install", "vgpu", str(CHART))
    assert installed.status == 0, installed.stderr
    slice_of = {"resources": {"limits": {"vgpu.dev/count": "1", "vgpu.dev/memory": "1Gi"}}}
    spec: Any = {"containers": [{**PROBE["spec"]["containers"][0], **slice_of}]}  # type: ignore[index]
    asking = {**PROBE, "metadata": {"name": "asking"}, "spec": spec}

    def refusal() -> str:
        return site.kubectl(
            "create", "-f", "-", "--dry-run=server", stdin=json.dumps(asking)
        ).stderr

    wait_until(lambda: "vgpu.dev" in refusal(), "the webhooks are known")
    site.made.extend([("pod", "probe"), ("pod", "asking")])
    plain = site.kubectl("create", "-f", "-", stdin=json.dumps(PROBE))
    refused = site.kubectl("create", "-f", "-", stdin=json.dumps(asking))
    uninstalled = site.helm("uninstall", "vgpu", "--no-hooks")

    assert plain.status == 0, plain.stderr
    assert refused.status == 1
    assert 'failed calling webhook "pods.vgpu.dev"' in refused.stderr
    assert uninstalled.status == 0, uninstalled.stderr
    wait_until(
        lambda: site.kubectl("create", "-f", "-", stdin=json.dumps(asking)).status == 0,
        "the pod is let in once nobody is there to ask",
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_real_api_server_takes_each_example(site: Site, path: Path) -> None:
    for item in example_pods(path):
        # A pod's uid is the API server's.
        metadata = {**item["metadata"], "namespace": site.namespace}
        del metadata["uid"]
        pod = {"apiVersion": "v1", **item, "metadata": metadata}
        pod["spec"].pop("priorityClassName", None)  # Koordinator's own

        done = site.kubectl(
            *("create", "--dry-run=server", "--validate=strict", "-f", "-"), stdin=json.dumps(pod)
        )

        assert done.status == 0, done.stderr


def test_uninstalling_takes_back_what_nodes_did_and_leaves_the_key_alone(
    plane: ControlPlane, site: Site, tmp_path: Path
) -> None:
    """Here no controller runs, and no kubelet: the test is the one, and runs the Job's program."""
    kinds = sorted({each["kind"] for each in rendered(namespace=site.namespace)})
    assert site.helm("install", "vgpu", str(CHART)).status == 0

    with subprocess.Popen(
        [
            *(find_built("helm"), f"--kubeconfig={site.kubeconfig}"),
            *(f"--namespace={site.namespace}", "uninstall", "vgpu", "--timeout=3m"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    ) as uninstalling:
        try:
            wait_until(
                lambda: site.kubectl("get", "job", "vgpu-undo").status == 0,
                "the Job is there",
                timeout_seconds=60,
            )
            container = site.get("job", "vgpu-undo")["spec"]["template"]["spec"]["containers"][0]
            undone = take_back(plane, site, container["args"], tmp_path)
            # Before that nothing is removed.
            assert uninstalling.poll() is None
            assert site.kubectl("get", "deployment", "vgpu-scheduler-cache").status == 0
            site.finish_job("vgpu-undo")
            _, errors = uninstalling.communicate(timeout=120)
        finally:
            uninstalling.kill()

    assert undone.endswith(f"daemonset {site.namespace}/vgpu-node: 2 of 2 nodes\n")
    assert uninstalling.returncode == 0, errors
    label = "--selector=app.kubernetes.io/name=vgpu"
    left = site.kubectl("get", ",".join(kinds), "--all-namespaces", label, "--output=name")
    assert left.status == 0, left.stderr
    # Containers that run are signed with it.
    assert set(left.stdout.split()) == {"secret/vgpu-keys"}


def take_back(plane: ControlPlane, site: Site, args: list[str], folder: Path) -> str:
    """Run what the Job runs, with its rights, while the test answers for the controller."""
    file = folder / "daemonset.json"
    file.write_text(site.get("configmap", "vgpu-undo")["data"]["daemonset.json"])
    token = site.kubectl("create", "token", "vgpu-undo").stdout.strip()
    assert args[:2] == ["roll-out", "/etc/vgpu/undo/daemonset.json"]
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "scheduler_cache.cli", "roll-out", str(file)),
            f"--kubeconfig={plane.kubeconfig(folder / 'undo', {'token': token})}",
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as program:

        def removing() -> bool:
            spec = site.get("daemonset", "vgpu-node")["spec"]["template"]["spec"]
            return "--undo" in spec["initContainers"][0]["args"]

        wait_until(removing, "the nodes' pods are to remove", timeout_seconds=60)
        site.patch_status(
            "daemonset/vgpu-node",
            observedGeneration=site.get("daemonset", "vgpu-node")["metadata"]["generation"],
            **dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled", "numberReady"), 2),
            currentNumberScheduled=2,
            numberMisscheduled=0,
        )
        output, _ = program.communicate(timeout=60)
    assert program.returncode == 0, output
    return output


def test_nothing_is_taken_back_where_nobody_wants_it() -> None:
    for value in ("node.undoOnUninstall=false", "node.agent=host", "node.agent=remove"):
        assert not [each for each in rendered(value) if each["kind"] == "Job"], value
