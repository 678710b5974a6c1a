"""Clients of a test's control plane that are not its administrator: tenants and controllers."""

from __future__ import annotations

import base64
import dataclasses
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import yaml

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.config import ConnectionSettings, connect
from rackgate.kube.transport import RefreshableToken, Transport
from rackgate_cli.controlplane.state import StateFolder
from tests.support.cluster import Cluster
from tests.support.deadlines import until
from tests.support.objects import Object
from tests.support.playground import Playground

TENANT = "tenant"
# Who makes the pods of Jobs in every installation that tells its controllers apart.
JOB_CONTROLLER = ("kube-system", "job-controller")
COLLECTOR = ("kube-system", "generic-garbage-collector")
REVIEWS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@asynccontextmanager
async def acting_as(
    playground: Playground, cluster: Cluster, account: tuple[str, str]
) -> AsyncIterator[Cluster]:
    """The test's cluster as a ServiceAccount sees it.

    Args:
        playground: the control plane.
        cluster: of an administrator.
        account: namespace and name of a ServiceAccount that exists.
    """
    transport = Transport(
        playground.server,
        ssl_context=server_context(playground),
        credentials=RefreshableToken(await authorization(cluster, account)),
        user_agent="tenant",
    )
    client = Client(transport)
    try:
        yield dataclasses.replace(cluster, client=client)
    finally:
        await client.close()


async def authorization(cluster: Cluster, account: tuple[str, str]) -> str:
    """The header `Authorization` of a ServiceAccount."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    path = kinds.SERVICE_ACCOUNTS.path(*account, "token")
    answer = json.loads(await cluster.client.create(path, json.dumps(request).encode()))
    return f"Bearer {answer['status']['token']}"


def server_context(playground: Playground) -> ssl.SSLContext:
    """Trusts the API server."""
    (entry,) = yaml.safe_load(playground.kubeconfig.read_text())["clusters"]
    known = entry["cluster"]
    data = known.get("certificate-authority-data")
    return ssl.create_default_context(
        cafile=known.get("certificate-authority"),
        cadata=base64.b64decode(data).decode() if data else None,
    )


@asynccontextmanager
async def as_operator(
    playground: Playground, cluster: Cluster, name: str
) -> AsyncIterator[Cluster]:
    """The test's cluster as an operator of the playground sees it, jobset or kuberay."""
    kubeconfig = StateFolder(playground.state).kubeconfigs / f"{name}.kubeconfig"
    client = await connect(ConnectionSettings(kubeconfig=kubeconfig), user_agent=name)
    try:
        yield dataclasses.replace(cluster, client=client)
    finally:
        await client.close()


async def add_tenant(cluster: Cluster, *roles: str) -> tuple[str, str]:
    """A ServiceAccount with ClusterRole `edit`, and others, in the test's namespace."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": TENANT}}
    await cluster.create(kinds.SERVICE_ACCOUNTS, account)
    for role in (*roles, "edit"):
        await _bind(cluster, role)
    await wait_right(cluster, TENANT, "create", kinds.SERVICES, cluster.namespace)
    return cluster.namespace, TENANT


async def wait_right(
    cluster: Cluster, account: str, verb: str, kind: Resource, namespace: str = ""
) -> None:
    """Wait until the API server has seen the binding that gives a right to a ServiceAccount."""
    attributes = {"verb": verb, "group": kind.group, "resource": kind.plural}
    user = f"system:serviceaccount:{cluster.namespace}:{account}"
    review = {
        "apiVersion": kinds.SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": kinds.SUBJECT_ACCESS_REVIEWS.kind,
        "spec": {"user": user, "resourceAttributes": {**attributes, "namespace": namespace}},
    }
    body = json.dumps(review).encode()

    async def given() -> bool:
        answer = json.loads(await cluster.client.create(kinds.SUBJECT_ACCESS_REVIEWS.path(), body))
        return bool(answer["status"]["allowed"])

    await until(f"{account} may {verb} {kind.plural}", given)


async def _bind(cluster: Cluster, role: str) -> None:
    group = "rbac.authorization.k8s.io"
    binding: Object = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{TENANT}-{role}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": TENANT, "namespace": cluster.namespace}],
    }
    await cluster.create(kinds.ROLE_BINDINGS, binding)


async def add_kinds_role(cluster: Cluster) -> str:
    """A ClusterRole with all that users do to JobSets and Ray's kinds, as their projects ship."""
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    name = f"{cluster.pool}-kinds"
    role: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": verbs},
            {"apiGroups": ["ray.io"], "resources": ["rayclusters", "rayjobs"], "verbs": verbs},
        ],
    }
    await cluster.create(kinds.CLUSTER_ROLES, role)
    return name


async def add_workload_role(cluster: Cluster) -> None:
    """Let the tenant create Workloads, too, as a controller of its own would."""
    rule = {
        "apiGroups": ["kueue.x-k8s.io"],
        "resources": ["workloads"],
        "verbs": ["create", "update"],
    }
    role: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"{cluster.pool}-maker"},
        "rules": [rule],
    }
    await cluster.create(kinds.CLUSTER_ROLES, role)
    await _bind(cluster, f"{cluster.pool}-maker")


@asynccontextmanager
async def as_tenant(playground: Playground, cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster as somebody sees it who may do what `edit` allows in the test's namespace."""
    account = await add_tenant(cluster, await add_kinds_role(cluster))
    async with acting_as(playground, cluster, account) as tenant:

        async def allowed() -> bool:
            for group, resource in (("batch", "jobs"), ("ray.io", "rayclusters")):
                asked = {"verb": "patch", "group": group, "resource": resource}
                review = {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": {"namespace": cluster.namespace, **asked}},
                }
                answer = await tenant.client.create(REVIEWS_PATH, json.dumps(review).encode())
                if not json.loads(answer)["status"]["allowed"]:
                    return False
            return True

        await until("the tenant has its rights", allowed)
        yield tenant
