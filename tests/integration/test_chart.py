"""The Helm chart: Helm makes of it what kubectl makes of deploy/, and names bad values."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from rackgate.api.names import SYSTEM_NAMESPACE
from rackgate.runtime.settings import load_settings
from tests.support.chart.__main__ import CHART
from tests.support.chart.values import SETTINGS
from tests.support.elsewhere import kustomized
from tests.support.helm import helm
from tests.support.playground import Playground

# The first test may build Helm.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

Object = dict[str, Any]
Key = tuple[str, str | None, str]
SELECTOR: Final = {"matchLabels": {"rackgate.dev/managed-jobs": "true"}}
CERT_MANAGER: Final = ("overlays", "cert-manager")

# Base of deploy/, further bases, components -> the values that say the same.
CASES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], Object]]] = {
    "defaults": ((), (), (), {}),
    "cert-manager": (CERT_MANAGER, (), (), {"certificates": {"source": "cert-manager"}}),
    "gangs": ((), ("gangs/cluster",), ("gangs",), {"components": {"gangs": True}}),
    "gangs-before-1.36": (
        (),
        ("gangs/cluster",),
        ("gangs", "gangs/webhook"),
        {"components": {"gangs": True, "gangsWebhook": True}},
    ),
    "pods": ((), (), ("pods",), {"components": {"pods": True}}),
    "everything": (
        (),
        ("gangs/cluster", "osmo/cluster"),
        (
            *("gangs", "native-gangs", "osmo", "pods", "unlabelled", "retention", "console"),
            *("monitoring", "network", "visibility-provided", "namespaces", "reject-unmanaged"),
        ),
        {
            "components": {
                **dict.fromkeys(("gangs", "nativeGangs", "osmo", "pods", "console"), True),
                **dict.fromkeys(("unlabelled", "retention", "rejectUnmanaged"), True),
            },
            "monitoring": {"enabled": True},
            "networkPolicies": {"enabled": True},
            "visibility": {"certificateProvided": True},
            "managedJobsNamespaceSelector": SELECTOR,
        },
    ),
}


def run(*arguments: str, values: Object | None = None) -> subprocess.CompletedProcess[str]:
    """Helm with these values."""
    return subprocess.run(
        [str(helm()), *arguments, "--values", "-"],
        input=yaml.safe_dump(values or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rendered(
    values: Object | None = None, namespace: str = SYSTEM_NAMESPACE, release: str = "rackgate"
) -> list[Object]:
    """Every object of the chart."""
    where = ("--namespace", namespace, "--kube-version", "1.36.0")
    done = run("template", release, str(CHART), *where, values=values)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [entry for entry in yaml.load_all(done.stdout, loader) if entry]


def plain(entry: Object) -> Object:
    """An object without what is Helm's, and with lists of names in one order."""
    annotations = entry["metadata"].get("annotations") or {}
    annotations.pop("helm.sh/resource-policy", None)
    if not annotations:
        entry["metadata"].pop("annotations", None)
    if "config.yaml" in entry.get("data", {}):
        entry["data"] = yaml.safe_load(entry["data"]["config.yaml"])
    if entry["kind"] == "Deployment":
        pod = entry["spec"]["template"]
        assert pod["metadata"].get("annotations", {}).keys() <= {"checksum/config"}
        pod["metadata"].pop("annotations", None)
        container = pod["spec"]["containers"][0]
        container["env"].sort(key=lambda one: str(one["name"]))
        for variable in container["env"]:
            variable["value"] = yaml.safe_load(variable.get("value", "null"))
    for webhook in entry.get("webhooks", ()):
        webhook.setdefault("objectSelector", {})
    entry.get("webhooks", []).sort(key=lambda one: str(one["name"]))
    return entry


def keyed(documents: list[Object]) -> Mapping[Key, Object]:
    found = {
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): plain(one)
        for one in documents
    }
    assert len(found) == len(documents)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_chart_has_the_objects_of_kustomize(
    playground: Playground, tmp_path: Path, case: str
) -> None:
    base, more, components, values = CASES[case]
    # With cert-manager, the kinds that are converted have its annotation.
    cluster = (*base, "cluster") if base == ("overlays", "cert-manager") else ("cluster",)
    bases = [cluster, *(tuple(one.split("/")) for one in more)]
    wanted = kustomized(playground, tmp_path, *components, base=base)
    for one in bases:
        wanted += kustomized(playground, tmp_path, base=one)
    # Helm has the namespace before it has the release.
    assert keyed([entry for entry in wanted if entry["kind"] != "Namespace"]) == keyed(
        rendered(values)
    )


def test_name_and_namespace_of_the_release_are_free(playground: Playground, tmp_path: Path) -> None:
    """The names of objects follow the namespace, as with kustomize, and not the release."""
    found = keyed(rendered(CASES["everything"][3], "team-infra", "any-name"))
    components = CASES["everything"][2]
    wanted = kustomized(playground, tmp_path, *components, namespace="team-infra")
    for base in ("cluster", "gangs/cluster", "osmo/cluster"):
        parts = tuple(base.split("/"))
        wanted += kustomized(playground, tmp_path, base=parts, namespace="team-infra")
    assert found == keyed([entry for entry in wanted if entry["kind"] != "Namespace"])
    assert "any-name" not in str(found)


def test_lint_has_nothing_to_say() -> None:
    done = run("lint", "--strict", str(CHART), values=CASES["everything"][3])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


def test_what_stays_is_kept_and_nothing_else() -> None:
    kept = {
        (entry["kind"], entry["metadata"]["name"])
        for entry in rendered({"components": {"gangs": True, "osmo": True}})
        if (entry["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") == "keep"
    }
    assert {kind for kind, _ in kept} == {
        "CustomResourceDefinition",
        "ClusterRole",
        "ClusterRoleBinding",
    }
    assert ("ClusterRole", f"rackgate-uninstall.{SYSTEM_NAMESPACE}") in kept
    assert ("ClusterRole", f"rackgate-assigner.{SYSTEM_NAMESPACE}") not in kept
    without = rendered({"crds": {"enabled": False}, "components": {"gangs": True}})
    assert "CustomResourceDefinition" not in {entry["kind"] for entry in without}


def object_of(documents: list[Object], kind: str, name: str) -> Object:
    (found,) = [one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def test_values_reach_the_settings_of_the_services(tmp_path: Path) -> None:
    values = {
        "featureGates": {"ElasticJobsViaWorkloadSlices": True},
        "certificates": {"source": "provided", "secretName": "ours"},
        "assigner": {
            "config": {
                "waitForPodsReady": {"timeout": 300, "blockAdmission": True},
                "visibility": {"maxConnections": 32},
                "featureGates": {"ElasticJobsViaWorkloadSlices": False},
            }
        },
        "webhook": {"config": {"serving": {"port": 10250}, "log": {"level": "debug"}}},
        "components": {"console": True},
        "console": {"config": {"page": {"clusterName": "east", "port": 9090}}},
    }
    documents = rendered(values)
    loaded: dict[str, Any] = {}
    for service, settings in SETTINGS.items():
        config = object_of(documents, "ConfigMap", f"rackgate-{service}")["data"]["config.yaml"]
        (tmp_path / f"{service}.yaml").write_text(config)
        loaded[service] = load_settings(
            settings, service=service, config=tmp_path / f"{service}.yaml"
        )
    webhook, assigner, ungater, console = loaded.values()
    assert assigner.wait_for_pods_ready.timeout == 300
    assert (assigner.visibility.port, assigner.visibility.max_connections) == (8443, 32)
    assert console.page.cluster_name == "east"
    # What one service is given counts more than what all are given.
    gates = [one.features.elastic_jobs for one in (webhook, assigner, ungater)]
    assert gates == [True, False, True]
    assert (webhook.serving.port, webhook.log.level) == (10250, "debug")
    assert webhook.certificates.secret_name == "ours"
    pod = object_of(documents, "Deployment", "rackgate-webhook")["spec"]["template"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert ports == {"health": 8081, "reviews": 10250}
    rules = object_of(documents, "Role", "rackgate-webhook")["rules"]
    (secrets,) = [rule for rule in rules if rule["resources"] == ["secrets"]]
    assert secrets["resourceNames"] == ["ours"]
    assert "create" not in secrets["verbs"]


def test_values_reach_the_pods() -> None:
    digest = "sha256:" + "0" * 64
    documents = rendered(
        {
            "image": {"repository": "registry.example/rackgate", "digest": digest},
            "operators": ["system:serviceaccount:ray:kuberay-operator"],
            "priorityClassName": "",
            "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
            "ungater": {
                "replicas": 4,
                "podDisruptionBudget": {"enabled": False},
                "nodeSelector": {"pool": "system"},
                "tolerations": [{"key": "system", "operator": "Exists"}],
                "podLabels": {"team": "infra"},
                "podAnnotations": {"note": "x"},
                "env": [{"name": "RACKGATE_UNGATER_LOG__LEVEL", "value": "debug"}],
                "resources": {"requests": {"cpu": 2}},
            },
        }
    )
    deployment = object_of(documents, "Deployment", "rackgate-ungater")["spec"]
    pod = deployment["template"]
    container = pod["spec"]["containers"][0]
    assert deployment["replicas"] == 4
    assert container["image"] == f"registry.example/rackgate@{digest}"
    assert "priorityClassName" not in pod["spec"]
    assert pod["spec"]["nodeSelector"] == {"pool": "system"}
    assert pod["spec"]["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert pod["metadata"]["labels"]["team"] == "infra"
    assert pod["metadata"]["annotations"]["note"] == "x"
    assert container["env"][-1] == {"name": "RACKGATE_UNGATER_LOG__LEVEL", "value": "debug"}
    assert container["resources"]["requests"]["cpu"] == 2
    budgets = {one["metadata"]["name"] for one in documents if one["kind"] == "PodDisruptionBudget"}
    assert budgets == {"rackgate-webhook", "rackgate-assigner"}
    monitor = object_of(documents, "PodMonitor", "rackgate")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    policy = object_of(documents, "ValidatingAdmissionPolicy", f"rackgate-pods.{SYSTEM_NAMESPACE}")
    expression = policy["spec"]["variables"][0]["expression"]
    assert expression == "['system:serviceaccount:ray:kuberay-operator']"


def test_another_configuration_restarts_the_pods_of_its_service_and_no_others() -> None:
    def sums(values: Object) -> dict[str, str]:
        return {
            one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"][
                "checksum/config"
            ]
            for one in rendered(values)
            if one["kind"] == "Deployment"
        }

    before, now = sums({}), sums({"assigner": {"config": {"verifyPeriod": 60}}})
    assert {name for name in before if before[name] != now[name]} == {"rackgate-assigner"}


BAD: Final[dict[str, tuple[Object, tuple[str, ...]]]] = {
    "typed wrong": (
        {"webhook": {"replicas": "three"}},
        ("'/webhook/replicas'", "got string, want integer"),
    ),
    "no webhook": ({"webhook": {"replicas": 0}}, ("'/webhook/replicas'", "got 0, want 1")),
    "more than there are shards": (
        {"ungater": {"replicas": 17}},
        ("'/ungater/replicas'", "got 17, want 16"),
    ),
    "unknown key": ({"webhok": {}}, ("'webhok' not allowed",)),
    "unknown key inside": (
        {"assigner": {"replica": 2}},
        ("'/assigner'", "'replica' not allowed"),
    ),
    "unknown gate": (
        {"featureGates": {"ElasticJobs": True}},
        ("'/featureGates'", "'ElasticJobs' not allowed"),
    ),
    "a gate of Kueue that cannot be": (
        {"featureGates": {"ConcurrentAdmission": True}},
        ("'/featureGates/ConcurrentAdmission'",),
    ),
    "unknown setting": (
        {"assigner": {"config": {"cycles": {}}}},
        ("'/assigner/config'", "'cycles' not allowed"),
    ),
    "setting out of range": (
        {"assigner": {"config": {"leaderElection": {"leaseDuration": 0}}}},
        ("'/assigner/config/leaderElection/leaseDuration'", "got 0, want 1"),
    ),
    "setting of another service": (
        {"ungater": {"config": {"cycle": {"minInterval": 1}}}},
        ("'/ungater/config'", "'cycle' not allowed"),
    ),
    "unknown source": (
        {"certificates": {"source": "certmanager"}},
        ("'/certificates/source'", "'issued', 'cert-manager', 'provided'"),
    ),
    "no secret": (
        {"certificates": {"source": "provided"}},
        ("certificates.source: provided needs certificates.secretName",),
    ),
    "secret of nobody": (
        {"certificates": {"secretName": "ours"}},
        ("certificates.secretName", "used only with"),
    ),
    "unknown component": (
        {"components": {"gang": True}},
        ("'/components'", "'gang' not allowed"),
    ),
    "component without its base": (
        {"components": {"nativeGangs": True}},
        ("components.nativeGangs: true needs components.gangs: true",),
    ),
    "setting without its component": (
        {"webhook": {"config": {"manageJobsWithoutQueueName": True}}},
        ("needs components.unlabelled: true",),
    ),
    "retention without its rights": (
        {
            "assigner": {
                "config": {"objectRetentionPolicies": {"workloads": {"afterDeactivatedByKueue": 0}}}
            }
        },
        ("needs components.retention: true",),
    ),
    "a selector of one service": (
        {"assigner": {"config": {"managedJobsNamespaceSelector": SELECTOR}}},
        ("set managedJobsNamespaceSelector instead",),
    ),
    "label that is no string": (
        {"managedJobsNamespaceSelector": {"matchLabels": {"managed": True}}},
        ("'/managedJobsNamespaceSelector/matchLabels/managed'", "got boolean, want string"),
    ),
    "digest": ({"image": {"digest": "0.1.0"}}, ("'/image/digest'",)),
    "a quote in a user name": (
        {"operators": ["x'] + ['y"]},
        ("'/operators/0'",),
    ),
    "budget": (
        {"webhook": {"podDisruptionBudget": {"maxUnavailable": "most"}}},
        ("'/webhook/podDisruptionBudget/maxUnavailable'",),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_rejected_by_name(case: str) -> None:
    values, words = BAD[case]
    done = run("template", "rackgate", str(CHART), values=values)
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr, done.stderr
