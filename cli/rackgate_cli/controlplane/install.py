"""Installs Rackgate into a new control plane: CRDs, roles, webhooks, nodes, queues, tokens.

Imported late: the client takes longer to import than most verbs take to run.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.features import (
    GANG_SCHEDULING,
    NATIVE_POD_GROUPS,
    OSMO_POOLS,
    POD_GROUPS,
    Features,
)
from rackgate.kube.client import Client
from rackgate.kube.config import ConnectionSettings, connect
from rackgate.kube.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnprocessableError,
)
from rackgate_cli.cluster import interruptible
from rackgate_cli.cluster.lists import list_objects
from rackgate_cli.controlplane import operators, ports
from rackgate_cli.controlplane.binaries.versions import KINDS
from rackgate_cli.controlplane.cluster import Cluster
from rackgate_cli.controlplane.defaults import (
    QUEUE,
    QUEUE_NAMESPACE,
    Document,
    node_documents,
    queue_documents,
)
from rackgate_cli.controlplane.files import write_private
from rackgate_cli.controlplane.services import shared_port, token_file
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.errors import CommandError
from rackgate_cli.locations import deploy_dir

T = TypeVar("T")

MANAGER: Final = "rackgate-playground"
_MAX_CONCURRENT: Final = 32
_POLL_S: Final = 0.1
# On a busy machine, steps of seconds take minutes.
_LIMIT_S: Final = 300.0
# An API server that has just started, or whose machine stalled, answers again soon.
_TRANSIENT_ERRORS: Final = (ServerError, TooManyRequestsError, TransportError)
_TOKEN_LIFETIME_S: Final = 10 * 365 * 24 * 3600
# Folders of deploy/ with all that a feature gate needs.
COMPONENTS: Final = {
    OSMO_POOLS: "osmo",
    POD_GROUPS: "pods",
    GANG_SCHEDULING: "gangs",
    NATIVE_POD_GROUPS: "native-gangs",
}

# Operator -> the label and the operations of the pods that its webhooks are called for. The
# operator's own installer patches these into its manifests.
_POD_WEBHOOKS: Final = {
    "jobset": (names.JOBSET_NAME_LABEL, ["CREATE"]),
    "lws": ("leaderworkerset.sigs.k8s.io/name", ["CREATE", "UPDATE"]),
}
_KINDS: Final = {
    (kind.api_version, kind.kind): kind
    for kind in vars(kinds).values()
    if isinstance(kind, Resource)
}


def documents(*paths: Path) -> list[Document]:
    """Return every YAML document of the files and folders (their *.yaml), in sorted order.

    Kustomize's own files are left out.
    """
    files = [file for path in paths for file in (sorted(path.glob("*.yaml")) or [path])]
    found = []
    for file in files:
        if file.is_file() and file.name != "kustomization.yaml":
            found += [entry for entry in yaml.safe_load_all(file.read_text()) if entry]
    return found


def with_local_webhook(document: Document, base_url: str) -> Document:
    """Return a webhook configuration or a CRD that calls `base_url` instead of a Service."""
    changed: Document = json.loads(json.dumps(document))
    callers = list(changed.get("webhooks", []))
    if conversion := changed.get("spec", {}).get("conversion", {}).get("webhook"):
        callers.append(conversion)
    for webhook in callers:
        service = webhook["clientConfig"].pop("service", None)
        if service is not None:
            webhook["clientConfig"]["url"] = base_url + service.get("path", "/")
    return changed


@dataclass(frozen=True, slots=True)
class VisibilityAddress:
    """Where the API server reaches the visibility API: a name that it can resolve, and a port."""

    host: str
    port: int


def with_local_visibility(document: Document, address: VisibilityAddress) -> Document:
    """Return the Service or an APIService of the visibility API for a server at `address`.

    The API server calls the Service by its external name, as there is no network of pods.
    """
    changed: Document = json.loads(json.dumps(document))
    if changed["kind"] == "Service":
        changed["spec"] = {"type": "ExternalName", "externalName": address.host}
    else:
        changed["spec"]["service"]["port"] = address.port
    return changed


def with_webhooks_of(registrations: Iterable[Document], patch: Path) -> list[Document]:
    """Return webhook configurations; a patch adds webhooks to them, as with kustomize."""
    added = {_kind_and_name(entry): entry["webhooks"] for entry in documents(patch)}
    return [
        {**entry, "webhooks": [*entry["webhooks"], *added[_kind_and_name(entry)]]}
        if _kind_and_name(entry) in added
        else entry
        for entry in registrations
    ]


def _kind_and_name(entry: Document) -> tuple[str, str]:
    return entry["kind"], entry["metadata"]["name"]


def operator_documents(
    path: Path, name: str, webhook_url: str | None, authority: bytes
) -> list[Document]:
    """Return an operator's CRDs and webhooks, adapted to an operator that runs locally.

    Args:
        path: manifests next to the program, a JSON list.
        name: of the operator.
        webhook_url: URL of its webhooks, without a path; None for no webhooks.
        authority: PEM certificate that signed its serving certificate.
    """
    found: list[Document] = json.loads(path.read_bytes())
    hooks = [entry for entry in found if entry["kind"].endswith("WebhookConfiguration")]
    wanted = [_stored_version_alone(entry) for entry in found if entry not in hooks]
    if webhook_url is not None:
        local = (with_local_webhook(hook, webhook_url) for hook in hooks)
        wanted += [_operator_webhook(hook, name, authority) for hook in local]
    return wanted


def _stored_version_alone(document: Document) -> Document:
    # The schema of each version costs the API server a second and 100 MB, and the operators use
    # the stored version only.
    spec = document.get("spec", {})
    versions = [version for version in spec.get("versions", ()) if version["storage"]]
    return {**document, "spec": {**spec, "versions": versions}} if versions else document


def _operator_webhook(document: Document, name: str, authority: bytes) -> Document:
    document["metadata"]["name"] = f"{name}-{document['metadata']['name']}"
    for webhook in document["webhooks"]:
        webhook["clientConfig"]["caBundle"] = base64.b64encode(authority).decode()
        for rule in webhook["rules"]:
            if "pods" in rule["resources"]:
                label, rule["operations"] = _POD_WEBHOOKS[name]
                own = {"key": label, "operator": "Exists"}
                webhook["objectSelector"] = {"matchExpressions": [own]}
    return document


async def apply_all(client: Client, wanted: Iterable[Document]) -> None:
    """Apply documents concurrently with one field manager and force.

    Raises:
        CommandError: the API server rejected one; names it.
    """
    gate = asyncio.Semaphore(_MAX_CONCURRENT)

    async def one(document: Document) -> None:
        async with gate:
            await _apply(client, document)

    await asyncio.gather(*(one(document) for document in wanted))


async def _apply(client: Client, document: Document) -> None:
    metadata = document["metadata"]
    known = _KINDS.get((document["apiVersion"], document["kind"]))
    label = f'{document["kind"]} "{metadata["name"]}"'
    if known is None:
        raise CommandError(f"{label} has a kind that the playground does not support")
    namespace = metadata.get("namespace", "default") if known.namespaced else None
    path = known.path(namespace, metadata["name"])
    body = json.dumps(document).encode()
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            await _with_retries(lambda: client.apply(path, body, MANAGER))
        except NotFoundError as error:
            # A kind is served a moment after its CRD is established.
            if document["apiVersion"] != names.API_VERSION or time.monotonic() > deadline:
                raise CommandError(f"cannot apply {label}: {error.message}") from error
            await asyncio.sleep(_POLL_S)
        except KubeError as error:
            raise CommandError(f"cannot apply {label}: {error.message}") from error
        else:
            return


async def _with_retries(request: Callable[[], Awaitable[T]]) -> T:
    """Send an idempotent request, and retry it while the API server fails to answer."""
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            return await request()
        except _TRANSIENT_ERRORS:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_POLL_S)


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until a condition holds; retries if the API server fails to answer.

    Raises:
        CommandError: it does not hold within five minutes; names `what`.
    """
    deadline = time.monotonic() + _LIMIT_S
    while True:
        last = ""
        try:
            if await holds():
                return
        except _TRANSIENT_ERRORS as error:
            last = f": {error}"
        if time.monotonic() > deadline:
            raise CommandError(f"{what}: not within {_LIMIT_S:.0f} s{last}")
        await asyncio.sleep(_POLL_S)


async def apply_crds(
    client: Client, deploy: Path, webhook_url: str | None, components: Iterable[str] = ()
) -> None:
    """Apply the CRDs, also those of components, and wait until they are served.

    Args:
        client: with the rights of an administrator.
        deploy: the folder of the manifests.
        webhook_url: of the webhook that converts, without a path; None for no webhook: then only
            the stored version is served of kinds whose versions differ.
        components: folders of `deploy`.
    """
    wanted = documents(deploy / "crds", *(deploy / name / "crds" for name in components))
    if webhook_url is not None:
        wanted = [with_local_webhook(document, webhook_url) for document in wanted]
    await apply_all(client, wanted)
    await _served(client, wanted)


async def put_operator(client: Client, wanted: list[Document]) -> None:
    """Create or replace an operator's objects and wait until its kinds are served.

    Not by server-side apply, which takes twice as long for schemas of this size.

    Raises:
        CommandError: the API server rejected one; names it.
    """
    await asyncio.gather(*(_put(client, document) for document in wanted))
    await _served(client, wanted)


async def _put(client: Client, document: Document) -> None:
    kind, name = _KINDS[document["apiVersion"], document["kind"]], document["metadata"]["name"]
    body = dict(document)

    async def write() -> bytes:
        encoded = json.dumps(body).encode()
        if "resourceVersion" in body["metadata"]:
            return await client.replace(kind.path(None, name), encoded)
        return await client.create(kind.path(), encoded)

    while True:
        try:
            await _with_retries(write)
        except ConflictError:
            # It exists already, or the API server wrote the status of a CRD.
            answer = await _with_retries(lambda: client.get(kind.path(None, name)))
            stored = json.loads(answer)["metadata"]
            version = {"resourceVersion": stored["resourceVersion"]}
            body["metadata"] = {**document["metadata"], **version}
        except KubeError as error:
            raise CommandError(f'cannot install {kind.kind} "{name}": {error.message}') from error
        else:
            return


async def _served(client: Client, wanted: Iterable[Document]) -> None:
    left = {
        (f"/apis/{entry['spec']['group']}/{version['name']}", entry["spec"]["names"]["plural"])
        for entry in wanted
        if entry["kind"] == "CustomResourceDefinition"
        for version in entry["spec"]["versions"]
        if version["served"]
    }

    async def served() -> bool:
        # By discovery: reading the CRDs' conditions would transfer schemas of megabytes.
        for path in sorted({path for path, _ in left}):
            with contextlib.suppress(NotFoundError):
                for resource in json.loads(await client.get(path))["resources"]:
                    left.discard((path, resource["name"]))
        return not left

    await until("all CRDs are served", served)


async def apply_basics(
    client: Client,
    deploy: Path,
    webhook_url: str | None,
    *,
    visibility: VisibilityAddress | None,
    components: Collection[str] = (),
) -> None:
    """Apply namespace, roles, admission policies and, with addresses, what calls the services.

    Also what components add to them. Returns when the roles are in effect.
    """
    folders = [deploy / name for name in components]
    more = [path for folder in folders for path in (folder / "rbac.yaml", folder / "cluster")]
    rbac = documents(deploy / "rbac", deploy / "cluster", *more)
    namespaces = [entry for entry in rbac if entry["kind"] == "Namespace"]
    await apply_all(client, namespaces)
    wanted = [entry for entry in rbac if entry["kind"] != "Namespace"]
    hooks = documents(deploy / "webhook", *(folder / "policies.yaml" for folder in folders))
    for folder in folders:
        hooks = with_webhooks_of(hooks, folder / "webhooks.yaml")
    for entry in hooks:
        if entry["kind"].endswith("WebhookConfiguration"):
            if webhook_url is not None:
                wanted.append(with_local_webhook(entry, webhook_url))
        elif (entry["apiVersion"], entry["kind"]) in _KINDS and entry["kind"] != "Service":
            wanted.append(entry)
    if visibility is not None:
        served = documents(deploy / "visibility")
        wanted += [with_local_visibility(entry, visibility) for entry in served]
    await apply_all(client, wanted)
    await _roles_authorized(client, rbac)


async def _roles_authorized(client: Client, rbac: list[Document]) -> None:
    left = [json.dumps(review).encode() for review in access_reviews(rbac)]
    gate = asyncio.Semaphore(_MAX_CONCURRENT)

    async def allowed(review: bytes) -> bool:
        async with gate:
            answer = await _with_retries(lambda: client.create(REVIEWS_PATH, review))
        return bool(json.loads(answer)["status"]["allowed"])

    async def all_allowed() -> bool:
        answers = await asyncio.gather(*(allowed(review) for review in left))
        left[:] = [review for review, yes in zip(left, answers, strict=True) if not yes]
        return not left

    await until("the services have their rights", all_allowed)


async def nodes_ready(client: Client, wanted: Iterable[str]) -> None:
    """Wait until the named nodes are ready and have no taints."""
    left = set(wanted)

    async def ready() -> bool:
        for item in await list_objects(client, kinds.NODES):
            if _has(item, "Ready") and not item["spec"].get("taints"):
                left.discard(item["metadata"]["name"])
        return not left

    await until("all simulated nodes are ready", ready)


async def queues_active(client: Client) -> None:
    """Wait until the playground's ClusterQueue and LocalQueue are active.

    What its user stopped stays stopped. A stopped ClusterQueue also stops its LocalQueues.
    """
    paths = kinds.CLUSTER_QUEUES.path(None, QUEUE), kinds.LOCAL_QUEUES.path(QUEUE_NAMESPACE, QUEUE)

    async def active() -> bool:
        for path in paths:
            queue = json.loads(await client.get(path))
            if queue.get("spec", {}).get("stopPolicy", "None") != "None":
                return True
            if not _has(queue, "Active"):
                return False
        return True

    await until(f"the queue {QUEUE} is active", active)


async def webhook_answers(client: Client) -> None:
    """Wait until the webhook suspends a managed Job (dry run)."""
    await until("the API server calls the webhook", lambda: _webhook_suspends(client))


async def _webhook_suspends(client: Client) -> bool:
    container = {"name": "probe", "image": "probe"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "rackgate-probe", "labels": {names.QUEUE_LABEL: "probe"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    path = kinds.JOBS.path("default")
    try:
        answer = await client.create(path, json.dumps(job).encode(), {"dryRun": "All"})
    except (ForbiddenError, UnprocessableError):
        return False
    return json.loads(answer)["spec"].get("suspend") is True


async def write_token(client: Client, service: str, path: Path) -> None:
    """Write a long-lived token of a service's ServiceAccount to `path`, mode 0600."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_LIFETIME_S},
    }
    account = kinds.SERVICE_ACCOUNTS.path(names.SYSTEM_NAMESPACE, f"rackgate-{service}", "token")
    try:
        answer = await _with_retries(lambda: client.create(account, json.dumps(request).encode()))
    except KubeError as error:
        raise CommandError(f"no token for the {service} service: {error.message}") from error
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(path, json.loads(answer)["status"]["token"].encode())


def _has(item: dict[str, Any], condition: str) -> bool:
    # The API server writes null before a CRD has conditions.
    entries = item.get("status", {}).get("conditions") or ()
    return any(e["type"] == condition and e["status"] == "True" for e in entries)


REVIEWS_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def access_reviews(rbac: Iterable[Document]) -> list[Document]:
    """Return a SubjectAccessReview for each right that `rbac` binds to a service account."""
    rbac = list(rbac)
    rules = {
        (entry["kind"], entry["metadata"].get("namespace"), entry["metadata"]["name"]): entry.get(
            "rules"
        )
        or []
        for entry in rbac
        if entry["kind"] in ("ClusterRole", "Role")
    }
    found = []
    for entry in rbac:
        if entry["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        role, namespace = entry["roleRef"], entry["metadata"].get("namespace")
        where = namespace if role["kind"] == "Role" else None
        for subject in entry["subjects"]:
            if subject["kind"] == "ServiceAccount":
                user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
                # Roles that are not in `rbac` are built into Kubernetes.
                for rule in rules.get((role["kind"], where, role["name"]), ()):
                    found += [_review(user, asked) for asked in _attributes_of(rule, namespace)]
    return found


def _attributes_of(rule: dict[str, Any], namespace: str | None) -> Iterator[dict[str, str]]:
    for group, full, name, verb in itertools.product(
        rule["apiGroups"], rule["resources"], rule.get("resourceNames", ("",)), rule["verbs"]
    ):
        resource, _, subresource = full.partition("/")
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        yield asked | {"name": name, "namespace": namespace or ""}


def _review(user: str, asked: dict[str, str]) -> Document:
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": asked},
    }


def prepare(cluster: Cluster, nodes: int, services: tuple[str, ...]) -> None:
    """Install what the services need before they start: CRDs, roles, webhooks, tokens.

    Raises:
        CommandError: the API server rejected something.
    """
    _run_with_admin_client(_prepare(cluster, nodes, services))


def fill(cluster: Cluster, nodes: int, services: tuple[str, ...]) -> None:
    """Install nodes and queues for the running services, and wait until all are ready.

    Raises:
        CommandError: the API server rejected something, or something is not ready in time.
    """
    _run_with_admin_client(_fill(cluster, nodes, services))


def _run_with_admin_client(conversation: Coroutine[Any, Any, None]) -> None:
    try:
        interruptible.run(conversation)
    except KubeError as error:
        raise CommandError(f"the API server rejected the installation: {error}") from error


async def _prepare(cluster: Cluster, nodes: int, services: tuple[str, ...]) -> None:
    deploy = deploy_dir()
    url = None
    if "webhook" in services:
        url = f"https://{ports.LOOPBACK}:{shared_port(cluster, 'webhook')}"
    gates = cluster.playground.feature_gates
    components = [
        folder
        for gate, folder in COMPONENTS.items()
        # Its policy sets a field that other control planes do not have.
        if gates.get(gate) and (gate != NATIVE_POD_GROUPS or cluster.playground.features)
    ]
    visibility = None
    if "assigner" in services and Features.of(gates).visibility_on_demand:
        visibility = VisibilityAddress("localhost", shared_port(cluster, "visibility"))
    async with admin_client(cluster.folder, cluster.playground) as client:
        await asyncio.gather(
            apply_crds(client, deploy, url, components),
            apply_basics(client, deploy, url, visibility=visibility, components=components),
            apply_all(client, node_documents(nodes)),
            *(
                put_operator(client, _operator_documents(cluster, name))
                for name in cluster.playground.operators
            ),
            *(
                put_operator(client, documents(deploy / "controlplane" / KINDS[name]))
                for name in cluster.playground.kinds
            ),
        )
        for service in services:
            await write_token(client, service, token_file(cluster.folder, service))


def _operator_documents(cluster: Cluster, name: str) -> list[Document]:
    path = Path(cluster.playground.binaries[name]).with_name(f"{name}.json")
    if not path.is_file():
        raise CommandError(f"{path} is missing; remove its folder to build it again")
    url = operators.webhook_url(cluster, name)
    authority = (cluster.folder.pki / "ca.crt").read_bytes()
    return operator_documents(path, name, url, authority)


async def _fill(cluster: Cluster, nodes: int, services: tuple[str, ...]) -> None:
    async with admin_client(cluster.folder, cluster.playground) as client:
        if "webhook" in services:
            await webhook_answers(client)
        if nodes:
            await apply_all(client, queue_documents(nodes))
            await nodes_ready(client, [node["metadata"]["name"] for node in node_documents(nodes)])
            if "assigner" in services:
                await queues_active(client)


@contextlib.asynccontextmanager
async def admin_client(folder: StateFolder, playground: Playground) -> AsyncIterator[Client]:
    """Yield a client with cluster-admin rights on a playground."""
    async with client_with_certificate(playground.server, folder.pki) as client:
        yield client


@contextlib.asynccontextmanager
async def client_with_certificate(server: str, pki: Path) -> AsyncIterator[Client]:
    """Yield a client of `server` with the administrator's certificate in `pki`."""
    settings = ConnectionSettings(
        server=server,
        ca_file=pki / "ca.crt",
        client_certificate_file=pki / "admin-client.crt",
        client_key_file=pki / "admin-client.key",
        request_timeout=30,
    )
    client = await connect(settings, user_agent=MANAGER)
    try:
        yield client
    finally:
        await client.close()
