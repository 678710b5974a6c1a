"""How the objects and the configuration of Kueue work with Rackgate. Pure.

The facts are those of docs/reference/compatibility.md (`migrate.compatibility`, and the table of
`rackgate kueue-config`), and of the warnings of the webhook (`rackgate.api.unsupported`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from rackgate.api import names
from rackgate.api.crd import CRD_KINDS
from rackgate.api.unsupported import (
    Unsupported,
    misspelled_queue_label,
    unsupported_fields,
    unsupported_in_linked,
    unsupported_in_pod,
    unsupported_in_template,
)
from rackgate.features import GATES
from rackgate.jobframework.errors import FieldError, MalformedError
from rackgate.jobframework.registry import (
    CLEANUP_LABELS,
    JOB,
    KINDS,
    find_kind,
    find_linked_kind,
    is_known_kind,
)
from rackgate.kueue_gates import KUEUE_GATES
from rackgate_cli.kueue_config.table import SETTINGS, KueueSetting, Support
from rackgate_cli.kueue_config.translate import leaves, setting_of
from rackgate_cli.migrate.compatibility import FIELDS, KEYS, Outcome, Row
from rackgate_cli.migrate.rejection import job_errors, schema_errors
from rackgate_cli.migrate.report import Finding, Item, Result, item_of

Object = Mapping[str, Any]

CONFIGURATION: Final = "Configuration"
CONFIGURATION_GROUP: Final = "config.kueue.x-k8s.io"
POD: Final = "Pod"
_CONTROLLERS: Final = (names.MULTIKUEUE_CONTROLLER, names.PROVISIONING_CONTROLLER)
_QUEUE_ROW: Final = next(row for _, row in KEYS if row.name == names.QUEUE_LABEL)
_COMPONENT: Final = re.compile(r"component\s+`(deploy/[a-z-]+)`")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_RESULTS: Final[Mapping[Outcome, Result]] = {
    Outcome.SAME: Result.SAME,
    Outcome.BETTER: Result.BETTER,
    Outcome.DIFFERS: Result.DIFFERS,
    Outcome.GATED: Result.DIFFERS,
    Outcome.WARNED: Result.NOT_YET,
    Outcome.REJECTED: Result.NOT_YET,
    Outcome.NOT_WRITTEN: Result.SAME,
    Outcome.LEFT: Result.SAME,
}
_SETTINGS: Final[Mapping[Support, Result]] = {
    Support.SAME: Result.SAME,
    Support.DIFFERS: Result.DIFFERS,
    Support.NOT_NEEDED: Result.SAME,
    Support.NOT_YET: Result.NOT_YET,
}
# Kueue queues kinds of other groups: its own integrations, and externalFrameworks.
_BUILT_IN: Final = frozenset({"", "apps", "batch"})
_RAY_SERVICE: Final = ("ray.io", "RayService")
_FRAMEWORKS: Final = "use the component deploy/gangs or deploy/pods, or remove the framework"
_SERVICE_TO_DO: Final = "check that its RayClusters have a Workload after the switch"
_THROUGH_CLUSTERS: Final = "it is queued through its RayClusters, which have its queue label"
# Without effect in Kueue as well.
_SAME_IN_KUEUE: Final = frozenset({("AdmissionCheck", "spec.retryDelayMinutes")})
_NO_CHANGE: Final = tuple(
    row for kind, rows in FIELDS.items() for row in rows if (kind, row.name) in _SAME_IN_KUEUE
)
# Templates of started jobs have what their start injected, of Kueue as of Rackgate.
_INJECTED: Final = frozenset(row.name for _, row in KEYS if row.outcome is Outcome.REJECTED)
MAX_FINDINGS: Final = 100  # of one object: a hostile one has more


def served_versions() -> dict[str, frozenset[str]]:
    """The versions of each kind of Kueue that the API server serves with Rackgate."""
    return {
        kind.model.__name__: frozenset(kind.versions)
        for kind in CRD_KINDS
        if kind.group == names.GROUP
    }


_SERVED: Final = served_versions()


def plain(note: str) -> str:
    """A note of the page without its markup."""
    return _LINK.sub(r"\1", note).replace("`", "")


def text_of(value: object) -> str:
    """A name in an object, which may be anything in a file."""
    return value if isinstance(value, str) else ""


def section_of(obj: object, key: str) -> Object:
    """A nested object; empty if it is absent or something else."""
    found = obj.get(key) if isinstance(obj, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def list_of(obj: object, key: str) -> Sequence[Any]:
    """A nested list; empty if it is absent or something else."""
    found = obj.get(key) if isinstance(obj, Mapping) else None
    return found if isinstance(found, list) else ()


def judge(obj: Object, *, stored: bool) -> Item | None:
    """How one object works; None if it has nothing of Kueue.

    Args:
        obj: as JSON data; in a file, anything.
        stored: it was read from a cluster, so the API server has accepted it, and Kueue may have
            written to it.
    """
    kind, version = text_of(obj.get("kind")), text_of(obj.get("apiVersion"))
    meta = section_of(obj, "metadata")
    group = version.partition("/")[0] if "/" in version else ""
    if group == names.GROUP:
        findings = _merged(_kueue_object(kind, version.partition("/")[2], obj, stored=stored))
    elif find_kind(version, kind) is not None:
        findings = _merged(_job(kind, obj, stored=stored))
        if not findings and not _has_queue(meta):
            return None
    elif (group, kind) == ("batch", "CronJob"):
        template = section_of(section_of(obj, "spec"), "jobTemplate")
        if not section_of(template, "metadata"):
            return None
        inner = {**template, "apiVersion": version, "kind": JOB.name}
        findings = [
            replace(one, path=f"spec.jobTemplate.{one.path}")
            for one in _merged(_job(JOB.name, inner, stored=stored))
        ]
        if not findings and not _has_queue(section_of(template, "metadata")):
            return None
    else:
        other = _other(kind, group, obj)
        if other is None:
            return None
        findings = _merged(other)
    name = text_of(meta.get("name")) or text_of(meta.get("generateName")) or "?"
    namespace = text_of(meta.get("namespace"))
    return item_of(kind or "?", name, namespace, findings)


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Without duplicates: the webhook and the page may both name a path, or one below it."""
    found: dict[str, Finding] = {}
    for one in islice(findings, MAX_FINDINGS):
        if not any(one.path.startswith((f"{path}.", f"{path}[]")) for path in found if path):
            found.setdefault(one.path, one)
    return list(found.values())


def _has_queue(meta: Object) -> bool:
    return bool(text_of(section_of(meta, "labels").get(names.QUEUE_LABEL)))


def _of_row(row: Row, path: str, *, blocks: bool = False) -> Finding:
    to_do = f"enable the feature gate {row.gate} of Rackgate" if row.gate else ""
    if row.outcome in (Outcome.WARNED, Outcome.REJECTED):
        to_do = "remove it"
    return Finding(
        path,
        _RESULTS[row.outcome],
        str(row.outcome),
        plain(row.note),
        to_do,
        blocks=blocks,
        gate=row.gate,
    )


def _of_unsupported(found: Unsupported) -> Finding:
    return Finding(
        found.path,
        Result.NOT_YET,
        str(Outcome.WARNED),
        f"it has no effect: {found.instead}",
        "remove it, or accept what happens instead",
    )


def _of_error(error: FieldError) -> Finding:
    return Finding(
        error.path,
        Result.DIFFERS,
        str(Outcome.REJECTED),
        error.problem,
        error.help or "correct it",
        blocks=True,
    )


# Objects of Kueue's group.


def _kueue_object(kind: str, version: str, obj: Object, *, stored: bool) -> Iterator[Finding]:
    rows = FIELDS.get(kind)
    if rows is None:
        yield Finding("kind", Result.NOT_YET, "", "Kueue has no such kind", "check the manifest")
        return
    if kind not in _SERVED:
        row = rows[0]
        note = f"{row.outcome}: {plain(row.note)}"
        yield Finding("", Result.NOT_YET, str(row.outcome), note, "delete it", blocks=not stored)
        return
    if version not in _SERVED[kind]:
        versions = ", ".join(sorted(_SERVED[kind]))
        yield Finding(
            "apiVersion",
            Result.NOT_YET,
            str(Outcome.REJECTED),
            f"the API server rejects {version[:30]} of {kind}; it serves {versions}",
            f"write it as {names.API_VERSION}; Kueue prints it so with kubectl get "
            f"{kind.lower()}.{names.VERSION}.{names.GROUP} NAME -o yaml",
            blocks=True,
        )
        return
    if not stored:
        yield from map(_of_error, schema_errors(kind, version, obj))
    for unsupported in unsupported_fields(kind, obj):
        if (kind, unsupported.path) in _SAME_IN_KUEUE:
            continue
        found = _of_unsupported(unsupported)
        yield found if kind != "AdmissionCheck" else _blocking_check(found)
    yield from _fields(rows, obj, known_version=version == names.VERSION)
    if kind == "Workload":
        yield from _workload(obj)


def _blocking_check(found: Finding) -> Finding:
    if not found.path.startswith("spec.controllerName"):
        return found
    return Finding(
        "spec.controllerName",
        found.result,
        found.outcome,
        found.why.removeprefix("it has no effect: "),
        "remove it from the ClusterQueues, or let another controller answer it",
        blocks=True,
    )


def _fields(rows: Sequence[Row], obj: Object, *, known_version: bool) -> Iterator[Finding]:
    known = [row.name for row in rows]
    top = {key: obj[key] for key in ("spec", "value", "description") if key in obj}
    for path in dict.fromkeys(_paths(top)):
        row = next((row for row in rows if row.covers(path)), None)
        if row is not None:
            if _RESULTS[row.outcome] is not Result.SAME and row not in _NO_CHANGE:
                yield _of_row(row, path)
        elif known_version and not any(name.startswith(f"{path}.") for name in known):
            yield from _unknown_field(path, rows)


def _unknown_field(path: str, rows: Sequence[Row]) -> Iterator[Finding]:
    """A field that Kueue does not have, unless its object has no rows of its own."""
    parents = path.split(".")
    for length in range(1, len(parents)):
        parent = ".".join(parents[:length])
        below = any(row.name.startswith((f"{parent}.", f"{parent}[")) for row in rows)
        if not below and parent != "spec":
            return
    near = difflib.get_close_matches(path[:200], [row.name for row in rows], n=1)
    hint = f'did you mean "{near[0]}"?' if near else "remove it"
    yield Finding(path, Result.NOT_YET, "", "Kueue has no such field", hint)


def _paths(value: Object, path: str = "", depth: int = 0) -> Iterator[str]:
    """The paths that are set, lists as `name[]`; those of templates end there."""
    for key, inner in value.items():
        if inner is None or depth > 12:
            continue
        below = f"{path}.{key}" if path else str(key)
        if below == "spec":
            yield from _paths(section_of(value, key), below, depth + 1)
            continue
        yield below
        if below.endswith(".template"):
            continue
        if isinstance(inner, Mapping):
            yield from _paths(inner, below, depth + 1)
        elif isinstance(inner, list):
            for one in inner:
                if isinstance(one, Mapping):
                    yield from _paths(one, f"{below}[]", depth + 1)


def _workload(obj: Object) -> Iterator[Finding]:
    """Whether the job of a Workload is one that Rackgate manages."""
    conditions = list_of(section_of(obj, "status"), "conditions")
    ended = any(
        section_of({"c": one}, "c").get("type") == "Finished" and one.get("status") == "True"
        for one in conditions
    )
    owners = list_of(section_of(obj, "metadata"), "ownerReferences")
    owner = next((one for one in owners if section_of({"o": one}, "o").get("controller")), None)
    if owner is None or ended:
        return
    version, kind = text_of(owner.get("apiVersion")), text_of(owner.get("kind"))
    if find_kind(version, kind) is not None or version.startswith(f"{names.GROUP}/"):
        return
    name = text_of(owner.get("name"))
    linked = find_linked_kind(version.partition("/")[0], kind) is not None
    if (version.partition("/")[0], kind) == _RAY_SERVICE:
        path = "metadata.ownerReferences"
        yield Finding(path, Result.DIFFERS, "", _THROUGH_CLUSTERS, _SERVICE_TO_DO)
        return
    if (version, kind) == ("v1", POD):
        why = "Rackgate manages plain pods only with the component deploy/pods"
        to_do = f"enable the component and its gate, or delete the pod {name}"
    else:
        why = f"the {kind} {name} is not managed: nothing starts it, and its quota is kept"
        to_do = (
            "wait until it has ended, or remove its queue label"
            if not linked
            else "use the component deploy/gangs, or scale it to 0 before"
        )
    yield Finding("metadata.ownerReferences", Result.NOT_YET, "", why, to_do, blocks=True)


# Jobs, and other objects with keys of Kueue.


def _job(kind_name: str, obj: Object, *, stored: bool) -> Iterator[Finding]:
    """A job of a kind that Rackgate manages, whatever its labels."""
    meta = section_of(obj, "metadata")
    if not _has_queue(meta):
        misspelled = misspelled_queue_label(meta)
        queue = section_of(meta, "labels").get(names.QUEUE_LABEL)
        if queue is not None and not isinstance(queue, str):
            path = f"metadata.labels[{names.QUEUE_LABEL}]"
            yield _of_error(FieldError(path, "must be a string", "write it in quotes"))
        elif misspelled:
            why = "the job is not managed: this is not the queue label"
            yield Finding(misspelled, Result.NOT_YET, "", why, _as_label(misspelled))
        return
    kind = KINDS[kind_name]
    yield from _keys(meta, "metadata", stored=stored)
    yield from map(_of_unsupported, unsupported_fields(kind_name, obj))
    try:
        templates = kind.templates(obj)
    except MalformedError as error:
        yield Finding(
            "spec", Result.NOT_YET, str(Outcome.REJECTED), str(error), "correct it", blocks=True
        )
        return
    for found in templates:
        path = f"{found.path}.metadata"
        yield from _keys(section_of(found.template, "metadata"), path, stored=stored)
        for unsupported in unsupported_in_template(found.template, found.path):
            yield _of_unsupported(unsupported)
    if not stored:
        yield from map(_of_error, job_errors(kind_name, obj))


def _as_label(misspelled: str) -> str:
    if misspelled == f"metadata.annotations[{names.QUEUE_LABEL}]":
        return f"make it a label: metadata.labels[{names.QUEUE_LABEL}]"
    return f"use the label {names.QUEUE_LABEL}"


def _keys(meta: Object, path: str, *, stored: bool) -> Iterator[Finding]:
    """Labels and annotations with a row in the table that is not `same`."""
    for part in ("labels", "annotations"):
        for key in section_of(meta, part):
            row = _row_of_key(text_of(key))
            if row is None or row is _QUEUE_ROW or (stored and key in _INJECTED):
                continue
            if _RESULTS[row.outcome] is not Result.SAME:
                rejected = row.outcome is Outcome.REJECTED and not stored
                yield _of_row(row, f"{path}.{part}[{key}]", blocks=rejected)


def _row_of_key(key: str) -> Row | None:
    exact = next((row for _, row in KEYS if row.name == key), None)
    prefix = (row for _, row in KEYS if row.name.endswith("/") and key.startswith(row.name))
    return exact or next(prefix, None)


def _other(kind: str, group: str, obj: Object) -> list[Finding] | None:
    """An object of a kind that Rackgate does not suspend; None if Kueue does not queue it."""
    meta = section_of(obj, "metadata")
    labels = section_of(meta, "labels")
    if any(key in labels for key in CLEANUP_LABELS) or _is_part(meta):
        return None
    is_pod = (group, kind) == ("", POD)
    if is_pod and (_has_queue(meta) or names.MANAGED_LABEL in labels):
        if section_of(obj, "status").get("phase") in ("Succeeded", "Failed"):
            return None
        row = next(row for _, row in KEYS if row.name == names.MANAGED_LABEL)
        to_do = f"use the component deploy/pods with the gate {row.gate}, or delete the pod"
        first = Finding(
            f"metadata.labels[{names.MANAGED_LABEL}]",
            Result.DIFFERS,
            str(row.outcome),
            plain(row.note),
            to_do,
            blocks=True,
            component="deploy/pods",
            gate=row.gate,
        )
        return [first, *map(_of_unsupported, unsupported_in_pod(obj))]
    if not _has_queue(meta):
        return None
    if find_linked_kind(group, kind) is not None:
        first = Finding(
            f"metadata.labels[{names.QUEUE_LABEL}]",
            Result.DIFFERS,
            str(_QUEUE_ROW.outcome),
            "its pods are queued only with the component deploy/gangs; else it uses no quota",
            "use the component deploy/gangs, scale the object to 0 and up again afterwards",
            blocks=True,
            component="deploy/gangs",
        )
        return [first, *map(_of_unsupported, unsupported_in_linked(obj))]
    path = f"metadata.labels[{names.QUEUE_LABEL}]"
    if (group, kind) == _RAY_SERVICE:
        return [Finding(path, Result.DIFFERS, "", _THROUGH_CLUSTERS, _SERVICE_TO_DO)]
    if group in _BUILT_IN:
        return None  # Kueue does not queue it either
    return [
        Finding(
            f"metadata.labels[{names.QUEUE_LABEL}]",
            Result.NOT_YET,
            str(Outcome.WARNED),
            f"Rackgate does not manage {kind[:60] or 'this kind'}: {plain(_QUEUE_ROW.note)}",
            "wait until it has ended, or remove its queue label",
            blocks=True,
        )
    ]


def _is_part(meta: Object) -> bool:
    """Whether another object of a known kind made this one."""
    return any(
        is_known_kind(text_of(one.get("apiVersion")), text_of(one.get("kind")))
        for one in list_of(meta, "ownerReferences")
        if isinstance(one, Mapping) and one.get("controller")
    )


# What objects mean for each other.


def shared_nodes(flavors: Sequence[Object]) -> dict[str, list[str]]:
    """Flavors with a topology that may have nodes in common with others, by name."""
    with_topology = {
        text_of(section_of(one, "metadata").get("name")): section_of(
            section_of(one, "spec"), "nodeLabels"
        )
        for one in flavors
        if section_of(one, "spec").get("topologyName")
    }
    return {
        name: others
        for name, labels in with_topology.items()
        if (
            others := [
                other
                for other, theirs in with_topology.items()
                if other != name and not _is_disjoint(labels, theirs)
            ]
        )
    }


def _is_disjoint(one: Object, other: Object) -> bool:
    return any(key in other and other[key] != value for key, value in one.items())


def with_shared_nodes(items: Sequence[Item], shared: Mapping[str, Collection[str]]) -> list[Item]:
    """Items of flavors with what is known of the others.

    A flavor whose node labels exclude those of all other flavors with a topology works the same.
    """
    found = []
    for item in items:
        findings = [one for one in item.findings if one.path != "spec.topologyName"]
        if item.kind != "ResourceFlavor" or len(findings) == len(item.findings):
            found.append(item)
            continue
        others = shared.get(item.name)
        if others:
            said = next(one for one in item.findings if one.path == "spec.topologyName")
            to_do = f"make its nodeLabels exclude those of {', '.join(sorted(others)[:5])}"
            findings.append(
                Finding(said.path, said.result, said.outcome, said.why, to_do, blocks=False)
            )
        found.append(item_of(item.kind, item.name, item.namespace, findings))
    return found


# The configuration.


def judge_configuration(configuration: Object, namespace: str = "") -> list[Item]:
    """An item for each key of Kueue's Configuration."""
    head = ("apiVersion", "kind", "metadata")
    found: list[Item] = []
    for path, value in leaves({k: v for k, v in configuration.items() if k not in head}):
        if path == "featureGates" and isinstance(value, Mapping):
            for name, enabled in value.items():
                finding = _gate(str(name), enabled)
                key = f"{path}.{name}"
                found.append(item_of(CONFIGURATION, key, namespace, [finding] if finding else []))
            continue
        setting = _setting(path, value)
        found.append(item_of(CONFIGURATION, path, namespace, [setting] if setting else []))
    return found


def _setting(path: str, value: Any) -> Finding | None:
    row = setting_of(path)
    if row is None:
        near = difflib.get_close_matches(path[:200], [one.name for one in SETTINGS], n=1)
        hint = f'did you mean "{near[0]}"?' if near else "remove it"
        return Finding(path, Result.NOT_YET, "", "Kueue has no such setting", hint)
    result = _SETTINGS[row.support]
    why = plain(row.note)
    if row.support is Support.NOT_YET:
        values = value if isinstance(value, list) else [value]
        if row.same_values and all(one in row.same_values for one in values):
            return None
    component = _COMPONENT.search(row.note)
    if result is Result.SAME:
        if component is None or value is False:
            return None
        result = Result.DIFFERS
    return Finding(
        path,
        result,
        str(row.support),
        why,
        _to_do(row) or (_FRAMEWORKS if path == "integrations.frameworks" else ""),
        component=component[1] if component is not None else "",
    )


def _to_do(row: KueueSetting) -> str:
    if row.conversion is not None:
        return "rackgate kueue-config translates it"
    if row.settings:
        return f"see {' and '.join(one.replace(':', ' ') for one in row.settings)}"
    return ""


def _gate(name: str, enabled: object) -> Finding | None:
    path = f"featureGates.{name}"
    if name in {gate.name for gate in GATES}:
        return None
    gate = KUEUE_GATES.get(name)
    if gate is None:
        return Finding(
            path, Result.NOT_YET, "", "Kueue has no such gate", "remove it from featureGates"
        )
    if gate.replaced_by:
        return Finding(
            path,
            Result.DIFFERS,
            str(Support.DIFFERS),
            plain(gate.note),
            f"rackgate kueue-config writes {gate.replaced_by} instead",
        )
    problem = gate.problem(name, enabled is True)
    if not problem:
        return None
    return Finding(
        path,
        Result.NOT_YET,
        str(Support.NOT_YET),
        plain(gate.note),
        "rackgate kueue-config leaves it out; do without what it turns on or off",
    )
