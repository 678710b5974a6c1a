"""All manifests before a real API server: strictly read, and pods held to `restricted`."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.support.elsewhere import PARTS, kustomized
from tests.support.playground import SERVICES, Playground

pytestmark = pytest.mark.integration
Object = dict[str, Any]
DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
CRDS_MODULE = "github.com/prometheus-operator/prometheus-operator"
STRICTLY = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")


def pod_of(service: str) -> Object:
    """The pod that a Deployment would make."""
    (template,) = (
        entry["spec"]["template"]
        for entry in install.documents(deploy_dir() / "services")
        if entry["kind"] == "Deployment" and entry["metadata"]["name"] == f"rackgate-{service}"
    )
    made: Object = copy.deepcopy(template)
    made["metadata"]["generateName"] = f"{service}-"
    return {"apiVersion": "v1", "kind": "Pod", **made}


async def dry_run(client: Client, pod: Object) -> None:
    path = kinds.PODS.path(names.SYSTEM_NAMESPACE)
    await client.create(path, json.dumps(pod).encode(), DRY_RUN)


def _container(**context: Any) -> Callable[[Object], None]:
    def loosen(pod: Object) -> None:
        pod["spec"]["containers"][0]["securityContext"] |= context

    return loosen


def _pod(**fields: Any) -> Callable[[Object], None]:
    def loosen(pod: Object) -> None:
        pod["spec"] |= fields

    return loosen


def _no_seccomp(pod: Object) -> None:
    del pod["spec"]["securityContext"]["seccompProfile"]


def _root(pod: Object) -> None:
    pod["spec"]["securityContext"] |= {"runAsNonRoot": False}


LOOSER = {
    "privilege escalation": _container(allowPrivilegeEscalation=True),
    "capabilities": _container(capabilities={"drop": []}),
    "host network": _pod(hostNetwork=True),
    "a folder of the host": _pod(volumes=[{"name": "config", "hostPath": {"path": "/etc"}}]),
    "no seccomp profile": _no_seccomp,
    "root": _root,
}


@pytest.mark.requirement("OPS-02")
@pytest.mark.parametrize("service", SERVICES)
async def test_pods_of_services_are_taken_where_restricted_is_enforced(
    playground: Playground, service: str
) -> None:
    async with playground.client() as client:
        await dry_run(client, pod_of(service))


@pytest.mark.parametrize("looser", LOOSER)
async def test_a_looser_twin_is_rejected_there(playground: Playground, looser: str) -> None:
    pod = pod_of("webhook")
    LOOSER[looser](pod)
    async with playground.client() as client:
        with pytest.raises(ForbiddenError, match="violates PodSecurity"):
            await dry_run(client, pod)


@pytest.fixture(scope="module")
def operator_crds(playground: Playground) -> Iterator[None]:
    """The kinds of the Prometheus operator, from its pinned Go module."""
    done = subprocess.run(
        [shutil.which("go") or "go", "mod", "download", "-json", CRDS_MODULE],
        cwd=Path(__file__).parent / "monitoring_crds",
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    files = [
        f"{folder}/monitoring.coreos.com_{kind}.yaml" for kind in ("podmonitors", "prometheusrules")
    ]
    for file in files:
        playground.run("kubectl", "apply", "--server-side", "-f", file)
        playground.run(
            "kubectl", "wait", "--for=condition=Established", "--timeout=60s", "-f", file
        )
    yield
    for file in files:
        playground.run("kubectl", "delete", "-f", file)


@pytest.mark.requirement("OPS-04")
@pytest.mark.usefixtures("operator_crds")
def test_the_api_server_takes_every_manifest_and_no_field_is_unknown(
    playground: Playground, tmp_path: Path
) -> None:
    documents = [
        entry
        for entry in kustomized(playground, tmp_path, *PARTS)
        # The playground's own registrations call a URL, and both at once is refused.
        if not entry["kind"].endswith("WebhookConfiguration")
    ]
    wanted = {"NetworkPolicy", "PrometheusRule", "PodMonitor", "Deployment", "PodDisruptionBudget"}
    assert wanted <= {entry["kind"] for entry in documents}
    assert "rackgate-dashboard" in {entry["metadata"]["name"] for entry in documents}
    manifest = tmp_path / "all.yaml"
    manifest.write_text(yaml.safe_dump_all(documents))
    answer = playground.run("kubectl", *STRICTLY, "-f", str(manifest))
    assert answer.count("server dry run") == len(documents)


@pytest.mark.parametrize("kind", ["NetworkPolicy", "Deployment"])
def test_a_field_that_no_one_knows_is_rejected(
    playground: Playground, tmp_path: Path, kind: str
) -> None:
    document = next(e for e in kustomized(playground, tmp_path, *PARTS) if e["kind"] == kind)
    document["spec"]["policyTipes"] = ["Ingress"]
    manifest = tmp_path / "odd.yaml"
    manifest.write_text(yaml.safe_dump(document))
    with pytest.raises(AssertionError, match="policyTipes"):
        playground.run("kubectl", *STRICTLY, "-f", str(manifest))
