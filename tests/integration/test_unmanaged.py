"""Objects with a queue label that nobody manages: a warning at admission, or a rejection."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api.resources import Resource
from rackgate_cli.controlplane.state import StateFolder
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import leaderworkerset, raycluster
from tests.support.objects import Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    False,
    "ValidatingAdmissionPolicyBinding",
)
POLICY = "rackgate-other-kinds.rackgate-system"
LABEL = {names.QUEUE_LABEL: "lq"}
OUTSIDE = "outside of quota"
REPLICA_SET = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "some",
    "uid": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "controller": True,
}
POD_SPEC: Object = {"containers": [{"name": "main", "image": "some"}]}


def pod(labels: dict[str, str], **metadata: Any) -> Object:
    meta = {"name": "one", "labels": labels, **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": POD_SPEC}


def app(kind: str, **metadata: Any) -> Object:
    template = {"metadata": {"labels": {"app": "one"}}, "spec": POD_SPEC}
    spec: Object = {"selector": {"matchLabels": {"app": "one"}}, "template": template}
    meta = {"name": "one", **metadata}
    if kind == "StatefulSet":
        spec["serviceName"] = "one"
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}


def rayservice() -> Object:
    cluster = raycluster("one", [])["spec"]
    meta = {"name": "one", "labels": LABEL}
    spec = {"rayClusterConfig": cluster}
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": meta, "spec": spec}


async def written(playground: Playground, cluster: Cluster, manifest: Object) -> tuple[int, str]:
    """Try to create an object as a dry run; the exit code and what kubectl says to its user."""
    known = StateFolder(playground.state).load()
    assert known is not None
    command = [known.binaries["kubectl"], "--kubeconfig", str(playground.kubeconfig)]
    command += ["create", "--dry-run=server", "-n", cluster.namespace, "-f", "-"]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


LWS = leaderworkerset("one", replicas=1, size=2)
UNMANAGED: dict[str, tuple[Object, str]] = {
    "pod": (pod(LABEL), "a Pod, which runs outside of quota"),
    "pod of a ReplicaSet": (
        pod(LABEL, ownerReferences=[REPLICA_SET]),
        "a pod of a ReplicaSet, which runs outside of quota",
    ),
    "Deployment": (app("Deployment", labels=LABEL), "component deploy/gangs"),
    "StatefulSet": (app("StatefulSet", labels=LABEL), "component deploy/gangs"),
    "LeaderWorkerSet": (
        {**LWS, "metadata": {**LWS["metadata"], "labels": LABEL}},
        "component deploy/gangs",
    ),
}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
# Their label has an effect, or another object has it.
MANAGED: dict[str, Object] = {
    "RayService": rayservice(),
    "pod of a Job": pod(LABEL, ownerReferences=[{**REPLICA_SET, **JOB}]),
    "managed pod": pod({**LABEL, names.MANAGED_LABEL: "true"}),
    "linked pod": pod(LABEL, annotations={names.GANG_LINK_ANNOTATION: "gangs"}),
}


@pytest.mark.requirement("TAS-28")
@pytest.mark.parametrize("case", UNMANAGED)
async def test_a_queue_label_on_what_nobody_manages_gives_a_warning(
    cluster: Cluster, playground: Playground, case: str
) -> None:
    manifest, words = UNMANAGED[case]
    code, told = await written(playground, cluster, manifest)
    assert code == 0
    assert "Warning:" in told
    assert names.QUEUE_LABEL in told
    assert OUTSIDE in told
    assert words in told


@pytest.mark.parametrize("case", MANAGED)
async def test_a_label_that_has_an_effect_gives_none(
    cluster: Cluster, playground: Playground, case: str
) -> None:
    _, told = await written(playground, cluster, MANAGED[case])
    assert OUTSIDE not in told


@pytest.mark.parametrize(
    ("manifest", "path", "meant"),
    [
        (pod({"kueue.x-k8s.io/queuename": "lq"}), "metadata.labels", True),
        (pod({}, annotations={names.QUEUE_LABEL: "lq"}), "metadata.annotations", False),
        (
            app("Deployment", annotations={"kueue.x-k8s.io/local-queue": "lq"}),
            "metadata.annotations",
            True,
        ),
        (
            app("StatefulSet", annotations={"kueue.x-k8s.io/podset-requird-topology": "rack"}),
            "metadata.annotations",
            False,
        ),
    ],
    ids=["queuename", "annotation", "local-queue", "topology"],
)
async def test_a_key_that_nearly_has_an_effect_is_named(
    cluster: Cluster, playground: Playground, manifest: Object, path: str, meant: bool
) -> None:
    code, told = await written(playground, cluster, manifest)
    assert code == 0
    assert f"Warning: {path}[" in told or f"{path}[kueue.x-k8s.io/" in told
    assert "has no effect: without the label kueue.x-k8s.io/queue-name" in told
    if meant:
        assert "did you mean that label?" in told


@pytest.mark.requirement("TAS-28")
async def test_with_the_component_it_is_rejected(cluster: Cluster, playground: Playground) -> None:
    """A binding as that of deploy/reject-unmanaged, for this test's namespace."""
    names_of = {"key": "kubernetes.io/metadata.name", "operator": "In"}
    selector = {"matchExpressions": [{**names_of, "values": [cluster.namespace]}]}
    binding: Object = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": BINDINGS.kind,
        "metadata": {"name": f"{cluster.pool}-refuse"},
        "spec": {
            "policyName": POLICY,
            "validationActions": ["Deny", "Audit"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    await cluster.create(BINDINGS, binding)
    try:
        for manifest, words in UNMANAGED.values():

            async def rejected(manifest: Object = manifest, words: str = words) -> bool:
                code, told = await written(playground, cluster, manifest)
                return code != 0 and POLICY in told and words in told

            await until(f"a {manifest['kind']} is rejected", rejected)
        for manifest in MANAGED.values():
            _, told = await written(playground, cluster, manifest)
            assert OUTSIDE not in told
    finally:
        await cluster.delete(BINDINGS, binding["metadata"]["name"])
