"""The page of rights, from the roles in deploy, with the comments of their rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.reference import ROOT, page, table

PURPOSE: Final = "This page lists the rights of each service and the roles for users."
INTRODUCTION: Final = """\
The roles are in `deploy/rbac`, `deploy/cluster`, `deploy/unlabelled`, `deploy/retention`, `deploy/pods`, `deploy/gangs`, `deploy/native-gangs` and `deploy/osmo`. Names of cluster-wide roles end in the namespace of
the installation. The tests fail when a service uses a right that it does not have, or has a right that it does not
use. [Give people their rights](../tasks/give-rights.md) says which role to bind. [The threat model](../design/security.md) says what each right means for the security of the cluster."""
FILES: Final = (
    ("Webhook", "rbac/webhook.yaml"),
    ("Assigner", "rbac/assigner.yaml"),
    ("Ungater", "rbac/ungater.yaml"),
    ("Console", "console/rbac.yaml"),
    ("Installation", "rbac/installation.yaml"),
    ("Users", "cluster/users.yaml"),
    ("Jobs without a queue label: webhook", "unlabelled/rbac.yaml"),
    ("Retention of jobs: assigner", "retention/rbac.yaml"),
    ("Gangs: services", "gangs/rbac.yaml"),
    ("Gangs: users", "gangs/cluster/users.yaml"),
    ("Native PodGroups: services", "native-gangs/rbac.yaml"),
    ("Plain pods: assigner", "pods/rbac.yaml"),
    ("OSMO: services", "osmo/rbac.yaml"),
    ("OSMO: users", "osmo/cluster/users.yaml"),
)
ROLES: Final = ("ClusterRole", "Role")
# Label of a part to the role that the control plane collects it into.
COLLECTED: Final = {
    "rbac.kueue.x-k8s.io/batch-user": "rackgate-batch-user",
    "rbac.kueue.x-k8s.io/batch-admin": "rackgate-batch-admin",
    "rbac.rackgate.dev/viewer": "rackgate-viewer",
    "rbac.rackgate.dev/operator": "rackgate-operator",
}


def _notes(document: str) -> Iterator[str]:
    """The comment above each rule of a document; empty where there is none."""
    waiting: list[str] = []
    inside = False
    for line in document.splitlines():
        if line.startswith("rules:"):
            inside, waiting = True, []
        elif not inside:
            continue
        elif line.strip().startswith("#"):
            waiting.append(line.strip().lstrip("# "))
        elif line.startswith("  - "):
            yield " ".join(waiting)
            waiting = []


def _row(rule: dict[str, Any], note: str) -> tuple[str, ...]:
    groups = ", ".join(f"`{group or 'core'}`" for group in rule["apiGroups"])
    resources = ", ".join(f"`{name}`" for name in rule["resources"])
    named = rule.get("resourceNames", [])
    limited = f" named {', '.join(f'`{name}`' for name in named)}" if named else ""
    return groups, resources + limited, ", ".join(rule["verbs"]), note


def _section(title: str, path: Path) -> str:
    blocks = [f"## {title}", f"From `{path.relative_to(ROOT)}`."]
    for document in path.read_text().split("\n---\n"):
        found = yaml.safe_load(document)
        if not found or found["kind"] not in ROLES:
            continue
        rules = found.get("rules") or []
        scope = found["metadata"].get("namespace")
        name = f"### {found['kind']} `{found['metadata']['name']}`"
        blocks.append(name + (f" in `{scope}`" if scope else ""))
        labels = found["metadata"].get("labels", {})
        into = [key.rpartition("-to-")[2] for key in labels if "aggregate-to-" in key]
        into += [COLLECTED[key] for key in labels if key in COLLECTED]
        if into:
            named = ", ".join(f"`{one}`" for one in into)
            blocks.append(f"Aggregated into the ClusterRoles {named}.")
        selectors = found.get("aggregationRule", {}).get("clusterRoleSelectors", [])
        if selectors:
            (key,) = selectors[0]["matchLabels"]
            blocks.append(f"The rules of all ClusterRoles with the label `{key}`.")
            continue
        if not rules:
            blocks.append("No rights: the role marks the installation.")
            continue
        notes = list(_notes(document))
        rows = [_row(rule, note) for rule, note in zip(rules, notes, strict=True)]
        blocks.append(table(("API groups", "Resources", "Verbs", "Comment"), rows))
    return "\n\n".join(blocks)


def text() -> str:
    """The page."""
    deploy = ROOT / "deploy"
    sections = [_section(title, deploy / file) for title, file in FILES]
    return page("Rights", PURPOSE, INTRODUCTION, *sections)
