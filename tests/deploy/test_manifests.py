# SPDX-License-Identifier: Apache-2.0
"""What the chart makes, by its committed rendering: our programs accept their configuration,
nothing has more rights than it says, and what belongs together agrees.

That the rendering is the chart's, and that a real API server takes it, is for
tests/e2e/test_chart.py.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from runtime_shim import __version__
from runtime_shim.config import DIALECTS as AGENT_DIALECTS
from runtime_shim.config import Config as AgentConfig
from runtime_shim.config import DevicePlugin, load_config
from runtime_shim.device_plugin.resources import resources_of
from runtime_shim.host_namespace import IMAGE_ROOT, PROGRAMS
from scheduler_cache.admission.chart import NO_NAME, chart_file
from scheduler_cache.admission.manifests import Site, policies, webhook_configurations
from scheduler_cache.admission.rules import rules_of
from scheduler_cache.config import Config as CacheConfig
from scheduler_cache.config_kubernetes import DIALECTS as CACHE_DIALECTS
from scheduler_cache.config_kubernetes import AdmissionConfig, ExtenderConfig, KubernetesConfig
from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.dialects.registry import every_dialect
from tests.deploy.manifests import (
    CHART,
    Item,
    containers_of,
    items_of,
    one,
    pod_specs,
    read_items,
    text_of,
)
from tests.testbed import REPOSITORY

NAMESPACE = "vgpu-system"
EVERYTHING = read_items("vgpu.yaml")
ON_HOSTS = read_items("vgpu-host.yaml")
REMOVING = read_items("node-remove.yaml")
every_file = pytest.mark.parametrize(
    "items", [EVERYTHING, ON_HOSTS, REMOVING], ids=["vgpu", "vgpu-host", "node-remove"]
)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = items_of((CHART / "values.yaml").read_text())[0]


@pytest.fixture
def cache_config(tmp_path: Path) -> CacheConfig:
    path = tmp_path / "scheduler-cache.toml"
    path.write_text(text_of(EVERYTHING, "vgpu-scheduler-cache", "scheduler-cache.toml"))
    return CacheConfig.load(path)


@pytest.fixture
def agent_config(tmp_path: Path) -> AgentConfig:
    path = tmp_path / "agent.toml"
    path.write_text(text_of(EVERYTHING, "vgpu-node", "agent.toml"))
    return load_config(path)


# -- configuration ---------------------------------------------------------------------------


def test_the_cache_reads_its_configuration(cache_config: CacheConfig) -> None:
    kubernetes = cache_config.kubernetes

    assert not cache_config.embedded
    assert kubernetes.in_cluster
    assert kubernetes.namespace == NAMESPACE
    assert kubernetes.token_accounts == (f"{NAMESPACE}/vgpu-node-agent",)
    assert kubernetes.admission.listen
    assert kubernetes.admission.scheduler_name == "vgpu-scheduler"
    assert kubernetes.extender.listen
    assert kubernetes.extender.client_names == ("vgpu-scheduler",)


def test_the_cache_listens_where_its_ports_are(cache_config: CacheConfig) -> None:
    spec = one(EVERYTHING, "Deployment", "vgpu-scheduler-cache")["spec"]["template"]["spec"]
    ports = {each["name"]: each["containerPort"] for each in spec["containers"][0]["ports"]}
    kubernetes = cache_config.kubernetes

    assert ports == {
        "grpc": port_of(kubernetes.listen[0]),
        "grpc-token": port_of(kubernetes.token_listen[0]),
        "metrics": port_of(kubernetes.metrics_listen),
        "admission": port_of(kubernetes.admission.listen[0]),
        "extender": port_of(kubernetes.extender.listen[0]),
    }


def test_the_cache_finds_its_files(cache_config: CacheConfig) -> None:
    spec = one(EVERYTHING, "Deployment", "vgpu-scheduler-cache")["spec"]["template"]["spec"]
    mounted = [Path(each["mountPath"]) for each in spec["containers"][0]["volumeMounts"]]
    kubernetes = cache_config.kubernetes
    files = [kubernetes.certificate, kubernetes.key, kubernetes.client_ca, kubernetes.keys_dir]
    files += [kubernetes.extender.client_ca]
    files += [each.removeprefix("unix:") for each in cache_config.listen]

    for file in map(Path, files):
        assert any(file.is_relative_to(folder) for folder in mounted), file


def test_the_agent_reads_its_configuration(agent_config: AgentConfig) -> None:
    assert agent_config.mode == "kubernetes"
    assert agent_config.paths.library == Path("/opt/vgpu/lib/vgpu/current/libvgpu.so")
    assert agent_config.device_plugin.dialects == ("native",)


def test_the_agent_finds_what_its_pod_has_mounted(agent_config: AgentConfig) -> None:
    spec = one(EVERYTHING, "DaemonSet", "vgpu-node")["spec"]["template"]["spec"]
    agent = spec["containers"][0]
    (config,) = [each["value"] for each in agent["env"] if each["name"] == "VGPU_CONFIG"]
    mounted = [IMAGE_ROOT / each["mountPath"][1:] for each in agent["volumeMounts"]]

    for file in (config, agent_config.cache.ca, agent_config.cache.token):
        assert any(Path(file).is_relative_to(folder) for folder in mounted), file


def test_no_link_of_the_image_leads_the_agent_to_files_of_the_host() -> None:
    """From the host's namespace an absolute link below the image's root is one of the host's."""
    links_of_debian = ("/bin", "/lib", "/lib64", "/sbin", "/var/lock", "/var/run")
    spec = one(EVERYTHING, "DaemonSet", "vgpu-node")["spec"]["template"]["spec"]

    for container in spec["initContainers"] + spec["containers"]:
        for each in container["volumeMounts"]:
            for link in links_of_debian:
                assert not Path(each["mountPath"]).is_relative_to(link)


def test_the_agent_trusts_a_name_that_the_certificate_has(agent_config: AgentConfig) -> None:
    # The names are made in cache/secrets.yaml; a Service of this name leads to the leader.
    service, namespace, _ = agent_config.cache.server_name.split(".")

    assert namespace == NAMESPACE
    assert one(EVERYTHING, "Service", service)["spec"]["selector"]["vgpu.dev/leader"] == "true"


def test_the_agents_address_is_a_variable_that_the_kubelet_sets() -> None:
    spec = one(EVERYTHING, "DaemonSet", "vgpu-node")["spec"]["template"]["spec"]
    variables = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    service = one(EVERYTHING, "Service", "vgpu-scheduler-cache-leader")
    name = service["metadata"]["name"].upper().replace("-", "_")
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}

    assert variables["VGPU_CACHE_ADDRESS"] == f"$({name}_SERVICE_HOST):{ports['grpc-token']}"
    assert "enableServiceLinks" not in spec


def test_the_commands_of_the_node_are_programs_of_the_image() -> None:
    for items in (EVERYTHING, REMOVING):
        spec = one(items, "DaemonSet", "vgpu-node")["spec"]["template"]["spec"]
        for each in containers_of(spec):
            if each["command"] == ["vgpu-on-host"]:
                assert each["args"][0] in PROGRAMS


def test_removing_is_installing_taken_back() -> None:
    installing, removing = (
        one(items, "DaemonSet", "vgpu-node")["spec"]["template"]["spec"]["initContainers"][0][
            "args"
        ]
        for items in (EVERYTHING, REMOVING)
    )

    assert removing == [*installing, "--undo"]


def test_the_scheduler_asks_the_extender() -> None:
    (config,) = items_of(text_of(EVERYTHING, "vgpu-scheduler", "config.yaml"))
    asked, counted = config["extenders"]

    assert [each["schedulerName"] for each in config["profiles"]] == list(
        ExtenderConfig().scheduler_names
    )
    assert {key: asked[key] for key in asked if key.endswith("Verb")} == {
        f"{verb}Verb": verb for verb in ("filter", "prioritize", "preempt", "bind")
    }
    assert (
        asked["urlPrefix"] == f"https://vgpu-scheduler-cache-leader.{NAMESPACE}.svc:9444/extender"
    )
    assert asked["nodeCacheCapable"] is True
    assert asked["ignorable"] is False
    assert "managedResources" not in asked  # KAI's pods name none
    assert not any(key.endswith("Verb") for key in counted)


def test_the_sample_for_a_scheduler_of_ones_own_is_the_charts() -> None:
    (sample,) = items_of((REPOSITORY / "deploy/scheduler/kube-scheduler.yaml").read_text())
    (config,) = items_of(text_of(EVERYTHING, "vgpu-scheduler", "config.yaml"))

    # Where the scheduler runs is what differs.
    del sample["clientConnection"]["kubeconfig"]
    del config["leaderElection"]["resourceNamespace"]
    assert sample == config


def test_every_amount_is_counted_by_the_cache_and_every_count_by_the_node() -> None:
    (config,) = items_of(text_of(EVERYTHING, "vgpu-scheduler", "config.yaml"))
    counted = {each["name"] for each in config["extenders"][1]["managedResources"]}
    everything = DevicePlugin(dialects=AGENT_DIALECTS, claim_bare_gpu=True)
    advertised = {each.name for each in resources_of(everything)}
    dialects = every_dialect(Keyring(Key("k", b"of no importance here")))
    spoken = {name for each in dialects for name in each.vocabulary.resources}

    # A resource that neither has would let no pod through; our own are a prefix there.
    assert {name for name in spoken if not name.endswith("/")} <= counted | advertised
    # HAMi's priority is no amount, and no node has any of it.
    foreign = {name for name in counted if not name.startswith("vgpu.dev/")}
    assert foreign - spoken == {"nvidia.com/priority"}
    assert "vgpu.dev/count" in advertised - counted


# -- values ----------------------------------------------------------------------------------


def test_the_chart_is_of_the_products_version() -> None:
    (chart,) = items_of((CHART / "Chart.yaml").read_text())

    assert chart["appVersion"] == __version__
    assert chart["version"] == __version__


def test_every_value_has_a_place_in_the_schema_and_a_comment() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()

    def check(values: Item, schema: Item, where: str) -> None:
        assert schema.get("additionalProperties") is False, where
        assert set(values) <= set(schema["properties"]), where
        for key, value in values.items():
            inner = schema["properties"][key]
            if isinstance(value, dict) and "properties" in inner and value:
                check(value, inner, f"{where}.{key}")

    check(VALUES, SCHEMA, "values")
    for key in VALUES:
        (index,) = [number for number, line in enumerate(lines) if line.startswith(f"{key}:")]
        after = next(line for line in lines[index + 1 :] if line.strip())
        assert lines[index - 1].startswith("#") or after.lstrip().startswith("# --"), key


def test_the_schema_knows_the_tables_of_the_agents_configuration() -> None:
    tables = {
        each.name
        for each in dataclasses.fields(AgentConfig)
        if dataclasses.is_dataclass(getattr(AgentConfig(node_name="n"), each.name))
    }
    known = SCHEMA["properties"]["node"]["properties"]["config"]["propertyNames"]["enum"]

    assert set(known) == tables - {"paths"}  # the installation's business


def test_the_schema_refuses_what_the_chart_says_itself(cache_config: CacheConfig) -> None:
    text = text_of(EVERYTHING, "vgpu-scheduler-cache", "scheduler-cache.toml")
    written = [line.partition(" = ")[0] for line in text.partition("[kubernetes]")[2].splitlines()]
    kubernetes = [each.name for each in dataclasses.fields(KubernetesConfig)]
    refused = SCHEMA["properties"]["cache"]["properties"]["kubernetes"]["not"]["anyOf"]
    names = {each["required"][0] for each in refused}

    assert names <= set(kubernetes)
    assert set(written[: written.index("")]) - {""} <= names


def test_the_schema_knows_every_dialect() -> None:
    known = SCHEMA["properties"]["dialects"]["items"]["enum"]

    assert set(known) == set(CACHE_DIALECTS) == set(AGENT_DIALECTS)


def test_pods_of_other_systems_are_nobodys_business_until_somebody_says_so(
    cache_config: CacheConfig, agent_config: AgentConfig
) -> None:
    """Installed beside one of them, the chart must not take its pods away from it."""
    named = json.dumps(
        [each for each in EVERYTHING if "Webhook" in each["kind"] or "Policy" in each["kind"]]
    )

    assert VALUES["dialects"] == ["native"]
    assert AdmissionConfig().dialects == cache_config.kubernetes.admission.dialects == ("native",)
    assert agent_config.device_plugin.dialects == DevicePlugin().dialects == ("native",)
    assert 'startsWith(\\"vgpu.dev/' in named
    for system in ("volcano.sh", "nvidia.com", "koordinator.sh", "gpu-fraction", "tencent.com"):
        assert system not in named, system


# -- rights ----------------------------------------------------------------------------------


@every_file
def test_what_is_no_node_agent_has_no_rights_on_its_node(items: list[Item]) -> None:
    for name, spec in pod_specs(items):
        for each in containers_of(spec):
            security = each["securityContext"]
            if each["command"] == ["vgpu-on-host"] if "command" in each else False:
                assert name == "vgpu-node"
                continue
            assert security["allowPrivilegeEscalation"] is False, (name, each["name"])
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in security
            assert {**spec.get("securityContext", {}), **security}["runAsNonRoot"] is True


@every_file
def test_every_container_has_a_read_only_root(items: list[Item]) -> None:
    for name, spec in pod_specs(items):
        for each in containers_of(spec):
            assert each["securityContext"]["readOnlyRootFilesystem"] is True, (name, each["name"])


@every_file
def test_nothing_mounts_the_hosts_folders_or_its_network(items: list[Item]) -> None:
    for name, spec in pod_specs(items):
        assert "hostNetwork" not in spec, name
        assert not any("hostPath" in each for each in spec.get("volumes", ())), name


def test_the_agent_has_no_rights_at_the_api_server() -> None:
    account = one(EVERYTHING, "ServiceAccount", "vgpu-node-agent")
    spec = one(EVERYTHING, "DaemonSet", "vgpu-node")["spec"]["template"]["spec"]
    bound = [
        subject["name"]
        for each in EVERYTHING
        if each["kind"].endswith("Binding")
        for subject in each.get("subjects", ())
    ]

    assert "vgpu-node-agent" not in bound
    assert account["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is False
    (token,) = [
        source["serviceAccountToken"]
        for volume in spec["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    ]
    assert token["audience"] == KubernetesConfig().token_audience  # not the API server's


def test_the_agents_own_handler_is_not_ours() -> None:
    spec = one(EVERYTHING, "DaemonSet", "vgpu-node")["spec"]["template"]["spec"]

    assert "runtimeClassName" not in spec  # it could not start before itself
    assert spec["nodeSelector"] == {"vgpu.dev/install": "true"}


def test_no_role_of_ours_says_everything() -> None:
    for each in EVERYTHING:
        for rule in each.get("rules", ()) if each["kind"].endswith("Role") else ():
            for key in ("apiGroups", "resources", "verbs"):
                assert "*" not in rule[key], each["metadata"]["name"]
            if "secrets" in rule["resources"]:
                assert rule["resourceNames"] == ["vgpu-admission"]


def test_no_secret_is_committed() -> None:
    for items in (EVERYTHING, ON_HOSTS, REMOVING):
        assert not [each for each in items if each["kind"] == "Secret" and each.get("data")]


# -- admission -------------------------------------------------------------------------------


def test_the_file_of_the_chart_is_what_the_code_makes() -> None:
    committed = json.loads((CHART / "files/admission.json").read_text())

    assert committed == chart_file(), "run scripts/manifests and commit"


def test_the_rendered_objects_are_what_the_code_makes() -> None:
    # What a cluster has beside the chart's labels, for the chart's own values.
    admission = AdmissionConfig(dialects=CACHE_DIALECTS)
    kubernetes = KubernetesConfig(namespace=NAMESPACE, admission=admission)
    rules = rules_of(kubernetes, every_dialect(Keyring(Key("k", b"of no importance here"))))
    text = json.dumps([*webhook_configurations(rules, Site(namespace=NAMESPACE)), *policies(rules)])
    # The chart has no expressions of its own to make: it takes out the names of the others.
    names = chart_file()["names"]
    for name in {each for of in names.values() for each in of} - set(names["native"]):
        text = text.replace(rf"\"{name}\"", rf"\"{NO_NAME}\"")
    made = json.loads(text)
    kinds = {each["kind"] for each in made}

    rendered = [each for each in EVERYTHING if each["kind"] in kinds]
    bare = [{**each, "metadata": {"name": each["metadata"]["name"]}} for each in rendered]

    def order(item: Item) -> tuple[str, str]:
        return item["kind"], item["metadata"]["name"]

    assert sorted(bare, key=order) == sorted(made, key=order)


def test_the_webhooks_lead_to_the_replicas() -> None:
    service = one(EVERYTHING, "Service", "vgpu-admission")
    deployment = one(EVERYTHING, "Deployment", "vgpu-scheduler-cache")
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for each in one(EVERYTHING, kind, "vgpu-admission")["webhooks"]:
            called = each["clientConfig"]["service"]
            assert (called["name"], called["namespace"]) == ("vgpu-admission", NAMESPACE)
            assert called["port"] == service["spec"]["ports"][0]["port"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


# -- the cluster's own names -----------------------------------------------------------------


def test_the_runtime_class_keeps_pods_off_unprepared_nodes() -> None:
    found = one(EVERYTHING, "RuntimeClass", "vgpu")

    assert found["handler"] == "vgpu"
    assert found["scheduling"]["nodeSelector"] == {"vgpu.dev/node": "true"}


def test_a_budget_and_a_policy_stand_for_each_workload() -> None:
    labels = {
        each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"]
        for each in EVERYTHING
        if each["kind"] in ("Deployment", "DaemonSet")
    }
    policies = {
        each["metadata"]["name"]: each["spec"]["podSelector"]["matchLabels"]
        for each in EVERYTHING
        if each["kind"] == "NetworkPolicy"
    }
    budgets = {
        each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"]
        for each in EVERYTHING
        if each["kind"] == "PodDisruptionBudget"
    }

    assert policies == labels
    assert budgets == {name: each for name, each in labels.items() if name != "vgpu-node"}


@every_file
def test_images_name_their_registry(items: list[Item]) -> None:
    for _, spec in pod_specs(items):
        for each in containers_of(spec):
            registry, _, rest = each["image"].partition("/")
            assert "." in registry
            assert ":" in rest


def test_on_hosts_everything_is_there_but_the_daemonset() -> None:
    def names(items: list[Item]) -> set[tuple[str, Any]]:
        return {(each["kind"], each["metadata"]["name"]) for each in items}

    assert names(EVERYTHING) - names(ON_HOSTS) == {
        ("ConfigMap", "vgpu-node"),
        ("DaemonSet", "vgpu-node"),
        ("NetworkPolicy", "vgpu-node"),
        ("ServiceAccount", "vgpu-node-agent"),
    }
    assert names(ON_HOSTS) < names(EVERYTHING)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
