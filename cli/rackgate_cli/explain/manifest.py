"""A job or Workload that is not submitted, as the Workload that would be created from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from rackgate.api.names import GROUP, QUEUE_LABEL
from rackgate.api.unsupported import misspelled_queue_label
from rackgate.features import RENDER_FOR_KAI
from rackgate.jobframework.errors import FieldError, MalformedError
from rackgate.jobframework.generic_job import GenericJob, JobLike
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.kai import KAI_SCHEDULER, is_for_kai
from rackgate.jobframework.managed import is_child_of_job
from rackgate.jobframework.registry import JOB, KINDS, enabled_elastic_kinds, kind_of
from rackgate.wire.kueue import Workload
from rackgate_assigner.explain.explanation import RemedyKind
from rackgate_assigner.jobs.patches import workload_body
from rackgate_assigner.jobs.state import Priority, is_managed, resolve_priority
from rackgate_cli.errors import UsageError
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.plain_yaml import read_plain_yaml
from rackgate_webhook.admission.gangs import GangRules
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import Review
from rackgate_webhook.admission.validate import validate

MAX_BYTES: Final = 8 * 2**20
# Later than any RFC 3339 time of these years: ordered after all pending Workloads.
LAST: Final = "9999-12-31T23:59:59Z"
SHOWN_NAMES: Final = 5
Document = dict[str, Any]
WORKLOAD: Final = "Workload"
_FOR_KAI: Final = f"spec.template.spec.schedulerName is {KAI_SCHEDULER}"


@dataclass(frozen=True, slots=True)
class SubmissionPreview:
    """The result of submitting a manifest.

    Attributes:
        name: `namespace/name` of the job or Workload.
        workload: as it would be queued; None if it would be rejected or not managed.
        errors: why it would be rejected.
        warnings: that its user would get.
        unmanaged_reason: why Rackgate would not manage it; "" if it would.
        no_workload: why no Workload would be created although it is managed, and what would help;
            None if one would be.
    """

    name: str
    kind: str
    workload: Workload | None = None
    errors: Sequence[FieldError] = ()
    warnings: list[str] = field(default_factory=list)
    unmanaged_reason: str = ""
    no_workload: NoWorkload | None = None

    def after_dry_run(
        self, errors: Sequence[FieldError], warnings: Sequence[str]
    ) -> SubmissionPreview:
        """With what the API server says about it."""
        warned = replace(self, warnings=[*warnings, *self.warnings])
        if not errors:
            return warned
        return replace(warned, errors=errors, workload=None, unmanaged_reason="", no_workload=None)


@dataclass(frozen=True, slots=True)
class NoWorkload:
    """Why no Workload is created for a managed job.

    Attributes:
        summary: a sentence or two.
        kind: what would help.
        value: of that change: the number of pods, or the class.
        text: the change.
    """

    summary: str
    kind: RemedyKind
    value: str
    text: str


def load(path: str, name: str | None) -> Document:
    """The job or Workload of a file, YAML or JSON; `name` selects one of several.

    Raises:
        UsageError: the file cannot be read, has no job or Workload, or has several.
    """
    return select_document(read_plain_yaml(path, MAX_BYTES, aliases=True), path, name)


def select_document(found: Sequence[Any], path: str, name: str | None = None) -> Document:
    """The job or Workload among the documents of a file.

    Raises:
        UsageError: there is none, or there are several.
    """
    documents = _documents(found)
    jobs = [doc for doc in documents if _kind(doc)]
    if name is not None:
        jobs = [doc for doc in jobs if _name(doc) == name.rpartition("/")[2]]
    if not jobs:
        which = f' named "{name}"' if name is not None else ""
        others = dict.fromkeys(f"{doc.get('apiVersion')} {doc.get('kind')}" for doc in documents)
        instead = (
            f"; it contains {', '.join(list(others)[:5])}"[:200] if others and not which else ""
        )
        raise UsageError(f'"{path}" contains no {", ".join(KINDS)} or Workload{which}{instead}')
    if len(jobs) > 1:
        names = ", ".join(_name(doc) or "?" for doc in jobs[:10])
        raise UsageError(
            f'"{path}" contains {len(jobs)} jobs and Workloads; add the name of one: {names}'
        )
    return _as_json(jobs[0], path)


def _as_json(document: Document, path: str) -> Document:
    """The document as the API server would get it, which limits the size of numbers."""
    try:
        found: Document = msgspec.json.decode(msgspec.json.encode(document))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        said = " ".join(str(error).split())[:200] or "nested too deeply"
        raise UsageError(f'"{path}" cannot be sent to an API server: {said}') from error
    return found


def _documents(found: Sequence[Any]) -> list[Document]:
    flat: list[Document] = []
    for document in found:
        listed = document.get("items") if isinstance(document, dict) else None
        several = listed if isinstance(listed, list) else [document]
        flat += [one for one in several if isinstance(one, dict)]
    return flat


def _kind(document: Mapping[str, Any]) -> str:
    version, kind = document.get("apiVersion"), document.get("kind")
    known = KINDS.get(kind) if isinstance(kind, str) else None
    if known is not None and version == known.resource.api_version:
        return known.name
    is_ours = isinstance(version, str) and version.startswith(f"{GROUP}/")
    return WORKLOAD if kind == WORKLOAD and is_ours else ""


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    found = metadata.get("name") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else ""


def preview_submission(
    document: Document,
    namespace: str | None,
    found: ClusterReading,
    default: str,
    *,
    stored: bool = False,
) -> SubmissionPreview:
    """What the webhook and the assigner would create from a manifest.

    Args:
        document: a job or Workload.
        namespace: from the command line, or None.
        found: the cluster: for priority classes and feature gates.
        default: namespace if neither names one.
        stored: the job exists and is managed already.

    Raises:
        UsageError: the manifest and the command line name different namespaces.
    """
    kind = _kind(document)
    try:
        document = _identity(document, namespace, default)
        meta = document["metadata"]
        key = f"{meta['namespace']}/{meta.get('name') or meta.get('generateName') or '?'}"
        if kind in KINDS:
            return _job(KINDS[kind], document, key, found, stored)
        both = found.cache.features.required_and_preferred
        return _workload(document, key, [], both_levels=both)
    except MalformedError as error:
        return SubmissionPreview(_name(document), kind, errors=[FieldError("", str(error))])
    except msgspec.ValidationError as error:
        return SubmissionPreview(_name(document), kind, errors=[_field_error(error)])


def _identity(document: Document, namespace: str | None, default: str) -> Document:
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise MalformedError("metadata", "an object", metadata)
    own = metadata.get("namespace")
    if own is not None and not isinstance(own, str):
        raise MalformedError("metadata.namespace", "a string", own)
    if own and namespace and own != namespace:
        raise UsageError(f'the manifest is in namespace "{own}", --namespace is "{namespace}"')
    meta = {"name": "", **metadata, "namespace": own or namespace or default}
    return {**document, "metadata": meta}


def _job(
    kind: GenericJob[Any], document: Document, key: str, found: ClusterReading, stored: bool
) -> SubmissionPreview:
    features = found.cache.features
    elastic_kinds = enabled_elastic_kinds(features)
    name = f"{kind.resource.group}/{kind.name}"
    for_kai = kind is JOB and not stored and is_for_kai(document, {})
    if for_kai and features.render_for_kai:
        return SubmissionPreview(
            key,
            kind.name,
            unmanaged_reason=f"{_FOR_KAI}, so KAI schedules it (feature gate {RENDER_FOR_KAI})",
        )
    review = Review("explain", name, "CREATE", document, {})
    change = mutate(review, elastic_kinds=elastic_kinds)
    if for_kai:
        change.warnings.append(
            f"{_FOR_KAI}: KAI schedules it if feature gate {RENDER_FOR_KAI} of the webhook is on"
        )
    mutated = applied(document, change.operations)
    both = features.required_and_preferred
    judged = replace(review, object=mutated)
    gangs = GangRules(features.gang_scheduling, features.workload_rev_n)
    answer = validate(judged, both_levels=both, elastic_kinds=elastic_kinds, gangs=gangs)
    warnings = [*change.warnings, *answer.warnings]
    if answer.errors:
        return SubmissionPreview(key, kind.name, errors=answer.errors, warnings=warnings)
    job = kind.decode(msgspec.json.encode(mutated))
    templates = kind.templates(kind.manifest(job))
    no_template = list(_without_template(kind, templates))
    if no_template:
        return SubmissionPreview(key, kind.name, errors=no_template)
    if not is_managed(job):
        return SubmissionPreview(
            key, kind.name, warnings=warnings, unmanaged_reason=why_job_not_managed(job)
        )
    unmanaged = why_namespace_not_managed(job, found)
    if unmanaged:
        return SubmissionPreview(key, kind.name, warnings=warnings, unmanaged_reason=unmanaged)
    priority = resolve_priority(job, found.workload_classes, found.classes)
    elastic = kind.name in elastic_kinds and kind.is_elastic(kind.manifest(job))
    if not sum(podset["count"] for podset in kind.podsets(kind.manifest(job))):
        no_workload = _no_pods(kind, mutated)
        return SubmissionPreview(key, kind.name, warnings=warnings, no_workload=no_workload)
    missing = priority.missing
    if missing is not None:
        priority = Priority()
    body = workload_body(job, job.metadata.name or "job", priority, elastic=elastic)
    preview = _workload(body, key, warnings, kind=kind.name, both_levels=both)
    if missing is None:
        return preview
    class_kind, _, named = missing.partition("/")
    if class_kind in found.unlisted:
        preview.warnings.append(f'{class_kind} "{named}" is not known here: it counts as 0')
        return preview
    return replace(preview, no_workload=_missing_class(class_kind, named, found))


def _no_pods(kind: GenericJob[Any], document: Document) -> NoWorkload:
    """A job that requests no pods; Kubernetes completes a Job with `completions: 0` at once."""
    summary = f"The {kind.name} requests no pods, so no Workload is created for it."
    if kind is not JOB:
        text = "request at least one pod"
        return NoWorkload(f"{summary} It stays suspended until it requests one.", "pods", "1", text)
    if document["spec"].get("completions") == 0:
        summary += " Kubernetes completes it at once (completions: 0)."
        text = "set spec.completions to at least 1"
        return NoWorkload(summary, "pods", "1", text)
    summary += " It stays suspended while spec.parallelism is 0."
    return NoWorkload(summary, "pods", "1", "set spec.parallelism to at least 1")


def _missing_class(kind: str, name: str, found: ClusterReading) -> NoWorkload:
    """A priority class that does not exist."""
    known = found.workload_classes if kind == "WorkloadPriorityClass" else found.classes
    near = get_close_matches(name, sorted(known), n=1)
    text = f'create {kind} "{name}"'
    if near:
        text = f'use {kind} "{near[0]}" instead of "{name}"'
    elif known:
        text += f", or use one that exists: {', '.join(sorted(known)[:SHOWN_NAMES])}"
    summary = f'{kind} "{name}" does not exist: no Workload is created until it does.'
    return NoWorkload(summary, "priorityClass", near[0] if near else "", text)


def _without_template(
    kind: GenericJob[Any], templates: Sequence[PodTemplate]
) -> Iterator[FieldError]:
    """Missing templates, which the API server would reject."""
    if not templates:
        yield FieldError("spec", f"a {kind.name} needs at least one pod template")
    for one in templates:
        if not one.template:
            yield FieldError(one.path, f"a {kind.name} needs a pod template")


def why_job_not_managed(job: JobLike) -> str:
    """Why Rackgate does not manage a job, as text."""
    kind = kind_of(job)
    owner = job.metadata.controller
    if owner is not None and is_child_of_job(job.metadata):
        return f'it is part of {owner.kind} "{owner.name}", which is queued as a whole'
    if not job.metadata.labels.get(QUEUE_LABEL):
        who = "Kubernetes" if kind.built_in else "its own controller"
        meta = {"labels": job.metadata.labels, "annotations": job.metadata.annotations}
        near = misspelled_queue_label(meta)
        meant = f" (did you mean that by {near}?)" if near else ""
        return f"it has no label {QUEUE_LABEL}{meant}: {who} runs it as any other {kind.name}"
    managed_by = job.spec.managed_by
    if managed_by not in (None, kind.controller):
        return f'spec.managedBy names another controller, "{managed_by}"'
    return f'{kind.name}s in namespace "{job.metadata.namespace}" are never managed'


def why_namespace_not_managed(job: JobLike, found: ClusterReading) -> str:
    """Why jobs of its namespace are not managed; "" if they are, or if it is unknown."""
    kind, namespace = kind_of(job), job.metadata.namespace
    selector = found.selectors.get(kind.resource.plural)
    labels = found.cache.namespaces.get(namespace)
    if selector is None or labels is None or selector.selects(labels):
        return ""
    return (
        f'the labels of namespace "{namespace}" do not match {selector}, the namespaceSelector of '
        f"the webhooks: {kind.name}s run there as if it were not installed"
    )


def _workload(
    document: Document, key: str, warnings: list[str], *, both_levels: bool, kind: str = WORKLOAD
) -> SubmissionPreview:
    review = Review("explain", f"{GROUP}/Workload", "CREATE", document, {})
    change = mutate(review)
    mutated = applied(document, change.operations)
    answer = validate(replace(review, object=mutated), both_levels=both_levels)
    warnings = [*warnings, *change.warnings, *answer.warnings]
    if answer.errors:
        return SubmissionPreview(key, kind, errors=answer.errors, warnings=warnings)
    meta = {**mutated["metadata"], "creationTimestamp": LAST, "name": key.partition("/")[2]}
    body = {**mutated, "metadata": meta, "status": {}}
    workload = msgspec.json.decode(msgspec.json.encode(body), type=Workload)
    return SubmissionPreview(key, kind, workload, warnings=warnings)


def _field_error(error: msgspec.ValidationError) -> FieldError:
    problem, _, path = str(error).partition(" - at `$")
    return FieldError(path.removesuffix("`").lstrip("."), problem[:1].lower() + problem[1:])


def applied(document: Document, operations: Sequence[JsonPatchOp]) -> Document:
    """A document after our JSON patch operations: add, replace and remove.

    Raises:
        MalformedError: the document has another value where an object is required.
    """
    result: Document = msgspec.json.decode(msgspec.json.encode(document))
    for operation in operations:
        path = operation["path"]
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
        holder: Any = result
        for part in above:
            if not isinstance(holder, dict | list):
                break
            holder = holder[int(part)] if isinstance(holder, list) else holder.get(part)
        if isinstance(holder, list):
            _in_list(holder, last, operation)
        elif not isinstance(holder, dict):
            raise MalformedError(".".join(above), "an object", holder)
        elif operation["op"] == "remove":
            del holder[last]
        else:
            holder[last] = operation["value"]
    return result


def _in_list(holder: list[Any], last: str, operation: JsonPatchOp) -> None:
    at = len(holder) if last == "-" else int(last)
    if operation["op"] == "add":
        holder.insert(at, operation["value"])
    elif operation["op"] == "replace":
        holder[at] = operation["value"]
    else:
        del holder[at]
