"""`rackgate preflight`: finds what prevents an installation into this cluster. Only reads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rackgate_cli.cluster import interruptible
from rackgate_cli.errors import CommandError
from rackgate_cli.verbs import add_json, add_target, add_verb

if TYPE_CHECKING:
    from rackgate.kube.client import Client
    from rackgate_cli.preflight.findings import ClusterSnapshot, Finding
    from rackgate_cli.verbs import Subparsers

CONFLICT: Final = 3


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `preflight`."""
    parser = add_verb(
        subparsers,
        "preflight",
        run,
        summary="say what prevents an installation into this cluster; only reads",
        description="Says what prevents an installation before anything is written: a running "
        "Kueue (its Deployment, webhook configurations, APIServices, Lease) or the CRDs that it "
        "left, another Rackgate, an uninstall that is not finished, an API server that is too "
        "old. Only reads.",
        examples=("rackgate preflight", "rackgate preflight --namespace team-infra"),
        exit_codes={
            0: "nothing prevents an installation",
            1: "the cluster cannot be read",
            2: "the command line is invalid",
            CONFLICT: "a conflict; do not install before it is resolved",
        },
    )
    add_installation(parser)
    add_json(parser)


def add_installation(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name an installation and its cluster."""
    parser.add_argument("--namespace", help="of the installation (default: rackgate-system)")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb; returns its exit code."""
    from rackgate.api.names import SYSTEM_NAMESPACE
    from rackgate_cli.tables import show_json

    namespace = arguments.namespace or SYSTEM_NAMESPACE
    found = interruptible.run(_check_cluster(arguments, namespace))
    if arguments.json:
        show_json([asdict(one) for one in found])
    else:
        print("\n".join(format_findings(found, namespace)))
    return CONFLICT if any(one.conflict for one in found) else 0


def format_findings(found: Iterable[Finding], namespace: str) -> list[str]:
    """The findings as lines; conflicts first."""
    listed = sorted(found, key=lambda one: not one.conflict)
    lines = [
        f"{'conflict' if one.conflict else 'note'}: {one.what}\n  {one.remedy}" for one in listed
    ]
    if not any(one.conflict for one in listed):
        lines.append(f"nothing prevents an installation into namespace {namespace}")
    return lines


async def _check_cluster(arguments: argparse.Namespace, namespace: str) -> list[Finding]:
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import target_of
    from rackgate_cli.preflight.findings import findings

    target = target_of(arguments, "preflight")
    async with target.client() as client:
        try:
            return findings(await read(client, namespace), namespace)
        except KubeError as error:
            raise CommandError(f"the cluster cannot be read: {error}") from error


async def read(client: Client, namespace: str) -> ClusterSnapshot:
    """Read what `findings` needs.

    Raises:
        KubeError: an object cannot be read, so there is no result.
    """
    from rackgate.api import names
    from rackgate.api import resources as kinds
    from rackgate_cli.cluster.lists import list_objects
    from rackgate_cli.preflight.findings import KUEUE_LEASE, ClusterSnapshot

    crds = await list_objects(client, kinds.CRDS)
    namespaces = await list_objects(
        client, kinds.NAMESPACES, fieldSelector=f"metadata.name={namespace}"
    )
    return ClusterSnapshot(
        version=json.loads(await client.get("/version")),
        webhooks=[
            *await list_objects(client, kinds.MUTATING_CONFIGS),
            *await list_objects(client, kinds.VALIDATING_CONFIGS),
        ],
        crds=[crd for crd in crds if crd["spec"]["group"] == names.GROUP],
        policies=[
            *await list_objects(client, kinds.ADMISSION_POLICIES),
            *await list_objects(client, kinds.ADMISSION_POLICY_BINDINGS),
        ],
        api_services=await list_objects(client, kinds.API_SERVICES),
        deployments=await list_objects(client, kinds.DEPLOYMENTS),
        leases=await list_objects(
            client, kinds.LEASES, fieldSelector=f"metadata.name={KUEUE_LEASE}"
        ),
        bindings=await list_objects(client, kinds.CLUSTER_ROLE_BINDINGS),
        namespace=namespaces[0] if namespaces else None,
        now=datetime.now(UTC),
    )
