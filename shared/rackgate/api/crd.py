"""Generate CustomResourceDefinitions from the models: `python -m rackgate.api.crd deploy/crds`.

For the components: `python -m rackgate.api.crd deploy/osmo/crds osmo` and
`python -m rackgate.api.crd deploy/gangs/crds gangs`.

The JSON schema of pydantic becomes a structural schema: references are resolved, null branches and
titles are removed, and keywords that the API server does not know are dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from rackgate.api import gang, old_schemas
from rackgate.api.meta import ApiObject, Schema
from rackgate.api.names import (
    CONVERT_PATH,
    GANG_GROUP,
    GANG_VERSION,
    GROUP,
    OLD_VERSION,
    OSMO_GROUP,
    OSMO_VERSION,
    SYSTEM_NAMESPACE,
    VERSION,
    WEBHOOK_SERVICE,
)
from rackgate.api.osmo import Pool, Workflow
from rackgate.api.queues import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    WorkloadPriorityClass,
)
from rackgate.api.topology import Topology
from rackgate.api.workload import Workload

# Not allowed in a structural schema, or without effect.
_DROPPED: Final = ("title", "$defs", "propertyNames")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0

    def to_json(self) -> Schema:
        """The column in the form of a CRD."""
        found: Schema = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return {**found, "priority": self.priority} if self.priority else found


@dataclass(frozen=True, slots=True)
class CrdKind:
    """A kind, and what its CRD declares in addition to the schema.

    Attributes:
        model: its class name is the kind.
        old_version: turns the schema into that of v1beta1, which is then served as well.
        converted: the webhook converts between the versions. Kinds with the same shape in both
            have conversion strategy None: they need no call.
        version: the storage version.
        singular: the kind in lower case if empty.
    """

    model: type[ApiObject]
    plural: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    columns: tuple[Column, ...] = ()
    selectable: tuple[str, ...] = ()
    old_version: Callable[[Schema], None] | None = None
    converted: bool = False
    group: str = GROUP
    version: str = VERSION
    singular: str = ""

    @property
    def file_name(self) -> str:
        """File name of the CustomResourceDefinition."""
        return f"{self.group}_{self.plural}.yaml"

    @property
    def versions(self) -> tuple[str, ...]:
        """The served versions, oldest first."""
        return (self.version,) if self.old_version is None else (OLD_VERSION, self.version)


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")


def _condition_column(name: str) -> Column:
    return Column(name, f".status.conditions[?(@.type=='{name}')].status")


_QUOTA_RESERVED: Final = ".status.conditions[?(@.type=='QuotaReserved')]"
_PENDING: Final = Column("Pending Workloads", ".status.pendingWorkloads", "integer")
_ADMITTED: Final = Column("Admitted Workloads", ".status.admittedWorkloads", "integer")

CRD_KINDS: Final = (
    CrdKind(
        AdmissionCheck,
        "admissionchecks",
        columns=(_condition_column("Active"), _AGE),
        old_version=old_schemas.same,
    ),
    CrdKind(
        ClusterQueue,
        "clusterqueues",
        ("cq",),
        columns=(
            Column("Cohort", ".spec.cohortName"),
            Column("Strategy", ".spec.queueingStrategy", priority=1),
            _condition_column("Active"),
            _PENDING,
            _ADMITTED,
            _AGE,
        ),
        old_version=old_schemas.cluster_queue,
        converted=True,
    ),
    CrdKind(
        Cohort,
        "cohorts",
        ("co",),
        columns=(Column("Parent", ".spec.parentName"), _AGE),
        old_version=old_schemas.same,
    ),
    CrdKind(
        LocalQueue,
        "localqueues",
        ("queue", "queues", "lq"),
        namespaced=True,
        columns=(
            Column("ClusterQueue", ".spec.clusterQueue"),
            _condition_column("Active"),
            _PENDING,
            _ADMITTED,
            _AGE,
        ),
        old_version=old_schemas.local_queue,
        converted=True,
    ),
    CrdKind(
        ResourceFlavor,
        "resourceflavors",
        ("flavor", "flavors", "rf"),
        columns=(Column("Topology", ".spec.topologyName"), _AGE),
        old_version=old_schemas.same,
    ),
    CrdKind(Topology, "topologies", ("topo",), columns=(_AGE,), old_version=old_schemas.topology),
    CrdKind(
        WorkloadPriorityClass,
        "workloadpriorityclasses",
        ("wpc",),
        columns=(Column("Value", ".value", "integer"), _AGE),
        old_version=old_schemas.same,
    ),
    CrdKind(
        Workload,
        "workloads",
        ("kwl", "kueueworkload", "kueueworkloads"),
        namespaced=True,
        columns=(
            Column("Queue", ".spec.queueName"),
            Column("Reserved in", ".status.admission.clusterQueue"),
            _condition_column("Admitted"),
            _condition_column("Finished"),
            # Why it is pending; `-o wide` shows the message.
            Column("Reason", _QUOTA_RESERVED + ".reason"),
            Column("Priority", ".spec.priority", "integer", 1),
            Column("Message", _QUOTA_RESERVED + ".message", priority=1),
            _AGE,
        ),
        selectable=(".status.admission.clusterQueue",),
        old_version=old_schemas.workload,
        converted=True,
    ),
)
_SYNCED: Final = ".status.conditions[?(@.type=='Synced')]"
OSMO_CRD_KINDS: Final = (
    CrdKind(
        Pool,
        "pools",
        ("osmopool", "osmopools"),
        columns=(
            Column("Backend", ".spec.backend"),
            Column("Scheduler", ".spec.scheduler"),
            Column("Synced", _SYNCED + ".status"),
            Column("Reason", _SYNCED + ".reason"),
            Column("Topology", ".status.topology", priority=1),
            Column("Message", _SYNCED + ".message", priority=1),
            _AGE,
        ),
        group=OSMO_GROUP,
        version=OSMO_VERSION,
    ),
    CrdKind(
        Workflow,
        "workflows",
        ("osmoworkflow", "osmoworkflows"),
        namespaced=True,
        columns=(Column("Pool", ".spec.pool"), _AGE),
        # The workflows of a pool are listed by this field.
        selectable=(".spec.pool",),
        group=OSMO_GROUP,
        version=OSMO_VERSION,
    ),
)
GANG_CRD_KINDS: Final = (
    CrdKind(
        gang.Workload,
        "schedworkloads",
        ("swl",),
        namespaced=True,
        columns=(
            Column("Phase", ".status.phase"),
            Column("Pods", ".status.podPhase"),
            Column("Members", ".status.members"),
            Column("Waiting for", ".status.waitingFor"),
            _AGE,
        ),
        group=GANG_GROUP,
        version=GANG_VERSION,
        singular="schedworkload",
    ),
)


def _collect_definitions(node: Any, found: Schema) -> None:
    """Collect `$defs` from all levels; model names are unique."""
    if isinstance(node, dict):
        found.update(node.get("$defs", {}))
        for value in node.values():
            _collect_definitions(value, found)
    elif isinstance(node, list):
        for value in node:
            _collect_definitions(value, found)


def _without_null(node: Schema) -> Schema:
    """`X | None` becomes X: the API server drops nulls before it validates."""
    if "x-kubernetes-int-or-string" in node or "anyOf" not in node:
        return node
    branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
    if len(branches) != 1:
        raise ValueError(f"no structural schema for a union: {node}")
    # The null default goes as well; a default of the field's own type stays.
    beside = {
        key: value
        for key, value in node.items()
        if key != "anyOf" and not (key == "default" and value is None)
    }
    return {**branches[0], **beside}


def _resolve_references(node: Schema, table: Schema) -> Schema:
    """Resolve references; keywords next to a reference override those of its target."""
    node = _without_null(node)
    while "$ref" in node:
        target = table[node["$ref"].rsplit("/", 1)[1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        node = _without_null(node)
    return node


def _to_structural(raw: Schema, table: Schema) -> Schema:
    node = {
        key: value for key, value in _resolve_references(raw, table).items() if key not in _DROPPED
    }
    # Only the Python models preserve unknown fields; the API server prunes them.
    if isinstance(node.get("additionalProperties"), bool):
        del node["additionalProperties"]
    if "description" in node:
        node["description"] = " ".join(node["description"].split())
    if "properties" in node:
        node["properties"] = {
            name: _to_structural(child, table) for name, child in sorted(node["properties"].items())
        }
    for key in ("items", "additionalProperties"):
        if key in node:
            node[key] = _to_structural(node[key], table)
    return node


def kind_schema(model: type[ApiObject]) -> Schema:
    """The structural OpenAPI schema of a kind.

    Raises:
        ValueError: a field's type has no structural form (a union of two kinds of value).
    """
    raw = model.model_json_schema(by_alias=True)
    table: Schema = {}
    _collect_definitions(raw, table)
    raw["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    return _to_structural(raw, table)


def _version_entry(kind: CrdKind, name: str) -> Schema:
    schema, columns = kind_schema(kind.model), [column.to_json() for column in kind.columns]
    found: Schema = {"name": name, "served": True, "storage": name == kind.version}
    if name == OLD_VERSION and kind.old_version is not None:
        kind.old_version(schema)
        for column in columns:
            column["jsonPath"] = old_schemas.PATHS.get(column["jsonPath"], column["jsonPath"])
        found["deprecated"] = True
        found["deprecationWarning"] = (
            f"{GROUP}/{OLD_VERSION} {kind.model.__name__} is deprecated: use {GROUP}/{VERSION}"
        )
    # The API server rejects them in all versions if the schemas differ.
    if kind.selectable and name == kind.version:
        found["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    if columns:
        found["additionalPrinterColumns"] = columns
    if "status" in schema["properties"]:
        found["subresources"] = {"status": {}}
    found["schema"] = {"openAPIV3Schema": schema}
    return found


def crd_document(kind: CrdKind) -> Schema:
    """The CustomResourceDefinition of one kind."""
    name = kind.model.__name__
    names: Schema = {
        "kind": name,
        "listKind": f"{name}List",
        "plural": kind.plural,
        "singular": kind.singular or name.lower(),
    }
    if kind.short_names:
        names["shortNames"] = list(kind.short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "conversion": _conversion(kind),
            "versions": [_version_entry(kind, version) for version in kind.versions],
        },
    }


def _conversion(kind: CrdKind) -> Schema:
    """How the API server converts. The webhook adds the CA bundle."""
    if not kind.converted:
        return {"strategy": "None"}
    service = {
        "name": WEBHOOK_SERVICE,
        "namespace": SYSTEM_NAMESPACE,
        "path": CONVERT_PATH,
        "port": 443,
    }
    return {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {"service": service},
            "conversionReviewVersions": ["v1"],
        },
    }


def crd_documents() -> dict[str, dict[str, Any]]:
    """All CustomResourceDefinitions by file name, as `kueue.x-k8s.io_workloads.yaml`."""
    return {kind.file_name: crd_document(kind) for kind in CRD_KINDS}


def osmo_crd_documents() -> dict[str, dict[str, Any]]:
    """The CustomResourceDefinitions of OSMO's pools and workflows, by file name."""
    return {kind.file_name: crd_document(kind) for kind in OSMO_CRD_KINDS}


def gang_crd_documents() -> dict[str, dict[str, Any]]:
    """The CustomResourceDefinition of the Workload of gangs, by file name."""
    return {kind.file_name: crd_document(kind) for kind in GANG_CRD_KINDS}


class _Dumper(yaml.SafeDumper):
    """Repeats shared parts instead of YAML anchors, which few readers expect."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def crd_text(document: dict[str, Any]) -> str:
    """The content of the file of one definition."""
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100)
    return f"# Generated by python -m rackgate.api.crd: edit the models instead.\n{body}"


def main(arguments: Sequence[str]) -> int:
    """Write the definitions into a folder; return 2 for wrong usage."""
    wanted = {
        (): crd_documents,
        ("osmo",): osmo_crd_documents,
        ("gangs",): gang_crd_documents,
    }.get(tuple(arguments[1:]))
    if not arguments or wanted is None:
        sys.stderr.write("usage: python -m rackgate.api.crd FOLDER [osmo | gangs]\n")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in wanted().items():
        (folder / name).write_text(crd_text(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
