"""What the services ask the API server for, by its audit log, and what their roles grant.

A run of all integration tests has a control plane for each of its processes. Each leaves a record
of what was asked for there in the folder that `--audit-records` names;
`tests/integration/whole_run.py` judges all records of a run together.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from rackgate.jobframework.registry import LINKED_KINDS

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("webhook", "assigner", "ungater")
# Those that give something back when their installation is deleted.
ENDING = ("assigner", "ungater")
USER = "system:serviceaccount:rackgate-system:rackgate-{}"
# A watch answers long before it completes.
ANSWERED = ("ResponseStarted", "ResponseComplete")
# At most, after an API server was started again.
READING_ROLES = timedelta(seconds=30)
Right: TypeAlias = tuple[str, str, str]

# Granted for what only some runs show, with the reason.
BY_POLICIES = "asked for by admission policies, see ADR 25"
GANGS = "with gangs, whose tests have a control plane of their own"
UNSEEN: dict[str, dict[Right, str]] = {
    "webhook": {},
    "assigner": {
        ("act", "rackgate.dev", "services"): BY_POLICIES,
        ("update", "batch", "jobs/finalizers"): "asked for by OwnerReferencesPermissionEnforcement",
        ("update", "jobset.x-k8s.io", "jobsets/finalizers"): "the same",
        ("update", "ray.io", "rayclusters/finalizers"): "the same",
        ("update", "ray.io", "rayjobs/finalizers"): "the same",
        ("get", "kueue.x-k8s.io", "workloads"): "only after a lost answer, as tests/wire shows",
        ("patch", "kueue.x-k8s.io", "cohorts/status"): "with fair sharing, as tests/wire shows",
        ("update", "", "secrets"): "when its certificate is renewed, as tests/wire shows",
        ("delete", "jobset.x-k8s.io", "jobsets"): "as of Jobs, see test_pods_ready_timeout",
        ("delete", "ray.io", "rayclusters"): "the same",
        ("delete", "ray.io", "rayjobs"): "the same",
        **{
            (verb, "scheduling.rackgate.dev", "schedworkloads"): GANGS
            for verb in ("get", "list", "watch", "create", "patch", "delete")
        },
        ("patch", "scheduling.rackgate.dev", "schedworkloads/status"): GANGS,
        **{(verb, "", "pods"): GANGS for verb in ("get", "patch", "delete")},
        **{
            (verb, kind.resource.group, kind.resource.plural): GANGS
            for kind in LINKED_KINDS.values()
            for verb in ("get", "list", "watch")
        },
        **{
            ("update", kind.resource.group, f"{kind.resource.plural}/finalizers"): GANGS
            for kind in LINKED_KINDS.values()
        },
    },
    "ungater": {
        ("act", "rackgate.dev", "services"): BY_POLICIES,
        ("get", "", "pods"): "only after a conflict or a lost answer, as tests/wire shows",
        ("get", "coordination.k8s.io", "leases"): "only after a conflict or a lost answer",
        **{
            (verb, "scheduling.rackgate.dev", "schedworkloads"): GANGS
            for verb in ("get", "list", "watch")
        },
    },
}


# Rights of roles that Kubernetes has, as far as they are used.
BUILT_IN: dict[str, set[Right]] = {
    "extension-apiserver-authentication-reader": {
        ("list", "", "configmaps"),
        ("watch", "", "configmaps"),
    },
}


@dataclass
class AuditedRequests:
    """What one service asked for.

    Attributes:
        used: (verb, group, resource) of every request.
        refused: requests that its roles did not allow. Those of the moments in which an API server
            that was started again had not read its roles yet do not count: then it refuses what it
            allows at another time.
    """

    used: set[Right] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)


def user_of(entry: Mapping[str, Any]) -> str:
    """Who sent a request, by its entry in an audit log; "" if the API server did not know."""
    return str(entry.get("user", {}).get("username", ""))


def audited_requests(log: Path) -> dict[str, AuditedRequests]:
    """What each service asked for, by an audit log; a line that is being written is left out."""
    with log.open() as lines:
        return audited_requests_in(lines)


def audited_requests_in(lines: Iterable[str]) -> dict[str, AuditedRequests]:
    """What each service asked for, by the lines of an audit log."""
    users = {USER.format(service): service for service in SERVICES}
    found = {service: AuditedRequests() for service in SERVICES}
    refused: list[tuple[str, str, datetime]] = []
    allowed: set[tuple[str, str]] = set()
    for line in lines:
        # Most requests are others', and reading each of them as JSON takes its time.
        if USER.format("") not in line or not line.endswith("}\n"):
            continue
        entry = json.loads(line)
        reference, service = entry.get("objectRef"), users.get(user_of(entry))
        if service is None or entry["stage"] not in ANSWERED:
            continue
        request = f"{entry['verb']} {entry['requestURI']}"
        if entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid":
            at = datetime.fromisoformat(entry["requestReceivedTimestamp"])
            refused.append((service, request, at))
        else:
            allowed.add((service, request))
        if reference:
            sub = reference.get("subresource")
            resource = f"{reference['resource']}/{sub}" if sub else reference["resource"]
            right = (entry["verb"], reference.get("apiGroup", ""), resource)
            found[service].used.add(right)
    without_roles = [at for service, request, at in refused if (service, request) in allowed]
    for service, request, at in refused:
        if not any(abs(at - one) <= READING_ROLES for one in without_roles):
            found[service].refused.append(request)
    return found


def granted(*, components: bool = True, built_in: bool = True) -> dict[str, set[Right]]:
    """Rights by service, from the roles in deploy/.

    Args:
        components: also those of the components for gangs, OSMO, unlabelled jobs and retention.
        built_in: also those of roles that Kubernetes has.
    """
    rights: dict[str, set[Right]] = defaultdict(set)
    deploy = ROOT / "deploy"
    folders = (deploy / "rbac", deploy / "cluster")
    found = [path for folder in folders for path in folder.glob("*.yaml")]
    extra = [deploy / name / "rbac.yaml" for name in ("osmo", "unlabelled", "retention", "gangs")]
    for path in (*found, *(extra if components else ())):
        for document in yaml.safe_load_all(path.read_text()):
            role = (document or {}).get("roleRef", {}).get("name", "")
            for subject in (document or {}).get("subjects", ()):
                if built_in and role in BUILT_IN:
                    rights[subject["name"].removeprefix("rackgate-")] |= BUILT_IN[role]
            if not document or document["kind"] not in ("Role", "ClusterRole"):
                continue
            # `rackgate-assigner`, `rackgate-assigner.rackgate-system`, `rackgate-assigner-osmo...`.
            name = document["metadata"]["name"].split(".")[0].removeprefix("rackgate-")
            service = name.partition("-")[0]
            services = ENDING if name == "uninstall" else (service,)
            for service, rule in itertools.product(services, document.get("rules") or ()):
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        rights[service] |= {(verb, group, resource) for verb in rule["verbs"]}
    return rights


class RecordsError(AssertionError):
    """The records of a run are missing or incomplete, so that nothing can be said about it."""


@dataclass(frozen=True)
class Record:
    """The file in which one control plane's uses are kept for the end of the run.

    Attributes:
        path: empty while the control plane runs; it stays so when its process dies.
    """

    path: Path

    @classmethod
    def begin(cls, folder: Path, name: str) -> Record:
        """Promise a record.

        Raises:
            RecordsError: there is one of that name, of an earlier run.
        """
        folder.mkdir(parents=True, exist_ok=True)
        record = cls(folder / f"{name}.json")
        if record.path.exists():
            raise RecordsError(f"{record.path} is there already; name a new or empty folder")
        record.path.touch()
        return record

    def write(self, found: Mapping[str, AuditedRequests]) -> None:
        """Keep what the services asked for."""
        uses = {
            service: sorted(audited_requests.used) for service, audited_requests in found.items()
        }
        self.path.write_text(json.dumps(uses))


def recorded(folder: Path | None) -> dict[str, set[Right]]:
    """Rights that a whole run used, by service, over all its control planes.

    Raises:
        RecordsError: no folder, no record, or a control plane whose record never came.
    """
    if folder is None:
        raise RecordsError("the records of a run are needed: --audit-records DIR")
    records = sorted(folder.glob("*.json"))
    if not records:
        raise RecordsError(f"{folder} has no record: the tests before did not keep any there")
    used: dict[str, set[Right]] = {service: set() for service in SERVICES}
    for record in records:
        text = record.read_text()
        if not text:
            raise RecordsError(f"{record} is empty: its control plane was not stopped in order")
        for service, rights in json.loads(text).items():
            used[service] |= {(verb, group, resource) for verb, group, resource in rights}
    return used
