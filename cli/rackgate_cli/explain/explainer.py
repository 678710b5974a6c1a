"""Explains one Workload of a cluster, or a manifest that is not submitted. Stores nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from rackgate.api.names import VISIBILITY_GROUP, VISIBILITY_VERSIONS, WorkloadCondition
from rackgate.api.unsupported import unsupported_fields, unsupported_in_template
from rackgate.features import Features
from rackgate.jobframework.generic_job import GenericJob
from rackgate.jobframework.registry import KINDS, enabled_elastic_kinds, owner_of
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, KubeError, NotFoundError
from rackgate.wire.kueue import Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain import workload as workload_explanation
from rackgate_assigner.explain.explanation import (
    Explanation,
    GangView,
    Remedy,
    Resize,
)
from rackgate_assigner.explain.running import find_unhealthy_nodes, pods_of, with_pod_status
from rackgate_assigner.jobs.state import is_managed
from rackgate_assigner.quota.admission_fair_sharing import AdmissionFairSharing
from rackgate_assigner.workload.info import WorkloadInfo
from rackgate_assigner.workload.unsupported import excluded_requests
from rackgate_cli.errors import CommandError
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.explain.dry_run import dry_run_create
from rackgate_cli.explain.gangs import GangReader
from rackgate_cli.explain.manifest import (
    WORKLOAD,
    SubmissionPreview,
    preview_submission,
    why_job_not_managed,
    why_namespace_not_managed,
)
from rackgate_cli.explain.preview import explain_preview, finished_job, not_managed
from rackgate_cli.explain.reading import (
    MissingRightsError,
    podset_pods,
    read,
    read_namespace,
)

_NOT_EXPLAINED = ("inactive", "deleting", "evicted")
_ONLY_ITSELF = "only what the Workload itself says is shown"


class WorkloadExplainer:
    """Explains Workloads of one cluster; reads the cluster again for each."""

    def __init__(
        self,
        client: Client,
        features: Features,
        excluded: tuple[str, ...],
        top: int,
        *,
        fair_sharing: tuple[str, ...] | None = None,
        admission_fair_sharing: AdmissionFairSharing | None = None,
    ) -> None:
        """Prepare.

        Args:
            client: only reads, and sends manifests as dry runs.
            features: gates of the assigner.
            excluded: prefixes of resources that it does not count.
            top: how many domains, holders and names to list each time.
            fair_sharing: strategies of preemption in their order; None: fair sharing is off.
            admission_fair_sharing: how usage orders LocalQueues; None: it does not.
        """
        self._fair_sharing = fair_sharing
        self._client, self._features, self._top = client, features, top
        self._excluded, self._admission_fair_sharing = excluded, admission_fair_sharing
        self._gangs = GangReader(client, top)

    async def manifest(
        self, document: dict[str, Any], namespace: str | None, default: str
    ) -> Explanation:
        """A job or Workload that is not submitted; the API server checks it by a dry run."""
        found = await self._read(namespace or default)
        preview = preview_submission(document, namespace, found, default)
        if not preview.errors:
            named = (document.get("metadata") or {}).get("namespace")
            checked = await dry_run_create(self._client, document, named or namespace or default)
            preview = preview.after_dry_run(checked.errors, checked.warnings)
        return self._explain(preview, found)

    async def named(self, namespace: str, name: str, kind: str = "") -> Explanation:
        """The Workload with that name, or that of the job with that name.

        Args:
            namespace: of both.
            name: of a Workload or of its job.
            kind: of the job, or `Workload`; "" for any.

        A user with rights in this namespace alone gets what the Workload itself says.

        Raises:
            CommandError: there is neither, or the user may not list what is necessary.
        """
        try:
            found = await self._read(namespace)
        except MissingRightsError as error:
            found = await self._read_namespace(namespace, error)
        workload = _find(found, namespace, name, kind)
        if workload is None:
            return await self._job(namespace, name, found, kind)
        key = workload.metadata.key
        if found.one_namespace and found.cache.usages[key].pending:
            explanation: Explanation | None = await self._of_assigner(workload, found)
        else:
            explanation = workload_explanation.explain(
                found.cache, key, self._features, self._top, fair_sharing=self._fair_sharing
            )
        if explanation is None:
            raise CommandError(f'Workload "{key}" cannot be read')
        job = await self._owner(workload)
        ignored = [] if job is None else _without_effect(*job, self._features)
        ignored += found.without_effect(workload)
        ignored += excluded_requests(workload, self._excluded)
        explanation = msgspec.structs.replace(
            explanation,
            job=_job_of(workload),
            job_kind=_kind_of(workload),
            warnings=(*ignored, *found.warnings),
        )
        explanation = await self._with_observed_state(explanation, workload, found)
        if found.one_namespace:
            return explanation
        requested = None if job is None or not workload.elastic else _requested_counts(*job)
        return with_resize(explanation, found.cache, requested, self._top)

    async def _of_assigner(self, workload: Workload, found: ClusterReading) -> Explanation:
        """A pending Workload for a user of one namespace.

        The assigner explains it, without names of other namespaces. If it does not answer, the
        Workload says what the last cycle decided.
        """
        meta = workload.metadata
        root = f"/apis/{VISIBILITY_GROUP}/{VISIBILITY_VERSIONS[0]}"
        path = f"{root}/namespaces/{meta.namespace}/workloads/{meta.name}/explanation"
        try:
            answer = msgspec.json.decode(await self._client.get(path), type=Explanation)
        except (KubeError, msgspec.DecodeError) as error:
            found.warnings.append(f"the assigner did not explain it: {str(error)[:200]}")
            return _last_cycle(found.cache.workloads[meta.key], workload)
        found.warnings[:] = [one for one in found.warnings if not one.startswith(_ONLY_ITSELF)]
        found.warnings.append("names of Workloads and pods of other namespaces are hidden")
        return answer

    async def _read(self, namespace: str) -> ClusterReading:
        return await read(self._client, self._empty_cache(), namespace)

    async def _read_namespace(self, namespace: str, error: MissingRightsError) -> ClusterReading:
        """What the user may read.

        Raises:
            CommandError: not even that.
        """
        found = await read_namespace(self._client, self._empty_cache(), namespace)
        found.warnings.append(f"{_ONLY_ITSELF}: {error.rights}")
        return found

    def _empty_cache(self) -> Cache:
        rules = self._admission_fair_sharing
        return Cache(self._features, self._excluded, admission_fair_sharing=rules)

    async def _owner(self, workload: Workload) -> tuple[GenericJob[Any], bytes] | None:
        """The job of a Workload, as the API server returns it; None if it cannot be read."""
        owner = owner_of(workload)
        if owner is None:
            return None
        kind, key = owner
        namespace, _, name = key.partition("/")
        try:
            return kind, await self._client.get(kind.resource.path(namespace, name))
        except (ForbiddenError, NotFoundError):
            return None

    async def _job(
        self, namespace: str, name: str, found: ClusterReading, wanted: str
    ) -> Explanation:
        """A job without a Workload."""
        forbidden: dict[str, str] = {}
        for kind in [one for one in KINDS.values() if wanted in ("", one.name)]:
            try:
                raw = await self._client.get(kind.resource.path(namespace, name))
            except NotFoundError:
                continue  # also where the cluster has no such kind
            except ForbiddenError as error:
                forbidden[kind.name] = error.message
                continue
            return self._found_job(kind, raw, namespace, found)
        if forbidden:
            kinds = " and ".join(f"{kind}s" for kind in forbidden)
            message = next(iter(forbidden.values()))
            raise CommandError(
                f'there is no Workload "{name}" in namespace "{namespace}", and {kinds} without '
                f"one cannot be read ({message}){_similar_names(found, namespace, name)}"
            )
        raise CommandError(_not_found_message(found, namespace, name))

    def _found_job(
        self, kind: GenericJob[Any], raw: bytes, namespace: str, found: ClusterReading
    ) -> Explanation:
        job = kind.decode(raw)
        key = job.metadata.key
        if not is_managed(job):
            return not_managed(key, why_job_not_managed(job))
        unmanaged = why_namespace_not_managed(job, found)
        if unmanaged:
            return not_managed(key, unmanaged)
        if kind.finished(job) is not None:
            return finished_job(key, kind)
        note = f"No Workload exists yet for this {kind.name}. Check that the assigner is running."
        if found.one_namespace:
            return Explanation(
                workload=key,
                state="noWorkload",
                summary=note,
                job=key,
                job_kind=kind.name,
                warnings=tuple(found.warnings),
            )
        document = msgspec.json.decode(raw)
        # An object that is read alone may have no kind.
        document |= {"apiVersion": kind.resource.api_version, "kind": kind.name}
        # It keeps what the webhook injected, and is explained as if it were created now.
        preview = preview_submission(document, namespace, found, namespace, stored=True)
        explanation = self._explain(preview, found)
        if explanation.state == "notSubmitted":
            explanation = msgspec.structs.replace(explanation, state="noWorkload")
        notes: tuple[str, ...] = (note,) if preview.no_workload is None else ()
        warnings = (*notes, *explanation.warnings)
        return msgspec.structs.replace(explanation, job=key, warnings=warnings)

    def _explain(self, preview: SubmissionPreview, found: ClusterReading) -> Explanation:
        return explain_preview(
            preview,
            found,
            excluded=self._excluded,
            top=self._top,
            fair_sharing=self._fair_sharing,
        )

    async def _with_observed_state(
        self, explanation: Explanation, workload: Workload, found: ClusterReading
    ) -> Explanation:
        """Add state that only the objects show: how the Workload ended, and its pods."""
        if explanation.state == "finished":
            return _with_condition(explanation, workload, WorkloadCondition.FINISHED)
        if explanation.state in _NOT_EXPLAINED:
            explanation = _with_condition(explanation, workload, WorkloadCondition.EVICTED)
        if not explanation.podsets:
            return explanation
        pods = await podset_pods(self._client, workload.metadata.namespace)
        own = pods_of(workload.metadata, pods)
        row = found.cache.workloads[workload.metadata.key]
        unhealthy = [node.name for node in workload.status.unhealthy_nodes]
        runs = []
        for run in explanation.podsets:
            observed_run = with_pod_status(run, own.get(run.podset, []), self._top)
            broken = find_unhealthy_nodes(row, run.podset, found.cache.nodes, unhealthy)
            runs.append(msgspec.structs.replace(observed_run, broken_nodes=broken))
        explanation = msgspec.structs.replace(explanation, podsets=tuple(runs))
        flat = [pod for found_pods in own.values() for pod in found_pods]
        return with_gangs(explanation, await self._gangs.of_workload(workload, flat))


def with_gangs(explanation: Explanation, gangs: Sequence[GangView]) -> Explanation:
    """Add the gangs of an admitted job; the summary says which of them do not run."""
    late = [gang for gang in gangs if gang.state != "Running"]
    summary = explanation.summary
    if late:
        first = f"gang {late[0].gang}: {late[0].why}" if late[0].gang else late[0].why
        count = f"{len(late)} gangs do not run; {first}" if len(late) > 1 else first
        summary = f"It is admitted, and not started: {count}."
    return msgspec.structs.replace(explanation, gangs=tuple(gangs), summary=summary)


def _requested_counts(kind: GenericJob[Any], raw: bytes) -> dict[str, int]:
    """What an elastic job requests now, by PodSet."""
    manifest = kind.manifest(kind.decode(raw))
    return {podset["name"]: podset["count"] for podset in kind.podsets(manifest)}


def _without_effect(kind: GenericJob[Any], raw: bytes, features: Features) -> list[str]:
    """What a job sets and has no effect, as the webhook said when it was created."""
    manifest = msgspec.json.decode(raw)
    elastic_kinds = enabled_elastic_kinds(features)
    found = unsupported_fields(kind.name, manifest, elastic_kinds=elastic_kinds)
    templates = [(one.path, one.template) for one in kind.templates(manifest)]
    for path, template in (*kind.job_templates(manifest), *templates):
        found += unsupported_in_template(template, path)
    return [str(one) for one in found]


def _last_cycle(row: WorkloadInfo, workload: Workload) -> Explanation:
    """A pending Workload as the assigner last described it."""
    message = row.pending_message
    summary = "It is pending. The message is that of the last scheduling cycle."
    return Explanation(
        workload=workload.metadata.key,
        state="waiting",
        summary=summary
        if message
        else "It is pending, and no scheduling cycle has evaluated it yet.",
        priority=workload.spec.priority or 0,
        reason=row.pending_reason,
        message=message,
        told=message,
    )


def _find(found: ClusterReading, namespace: str, name: str, kind: str) -> Workload | None:
    """The Workload of that name, else the newest one of the job of that name."""
    workload = found.workloads.get(f"{namespace}/{name}")
    if workload is not None and kind in ("", WORKLOAD):
        return workload
    owned = [
        item
        for item in found.workloads.values()
        if item.metadata.namespace == namespace
        and item.metadata.controller is not None
        and item.metadata.controller.kind != WORKLOAD
        and kind in ("", item.metadata.controller.kind)
        and item.metadata.controller.name == name
    ]
    return max(owned, key=lambda item: item.metadata.creation_timestamp or "", default=None)


def _job_of(workload: Workload) -> str:
    owner = workload.metadata.controller
    return "" if owner is None else f"{workload.metadata.namespace}/{owner.name}"


def _kind_of(workload: Workload) -> str:
    owner = workload.metadata.controller
    return "" if owner is None else owner.kind


def _not_found_message(found: ClusterReading, namespace: str, name: str) -> str:
    """That no object has this name, and which similar names exist."""
    hint = _similar_names(found, namespace, name)
    return f'there is no Workload and no job "{name}" in namespace "{namespace}"{hint}'


def _similar_names(found: ClusterReading, namespace: str, name: str) -> str:
    """Similar names, and this name in other namespaces."""
    known = [
        *found.workloads,
        *(_job_of(item) for item in found.workloads.values() if item.metadata.controller),
    ]
    near = get_close_matches(f"{namespace}/{name}", sorted(set(known)), n=3, cutoff=0.8)
    elsewhere = sorted(key for key in set(known) if key.rpartition("/")[2] == name)[:3]
    hints = [key for key in dict.fromkeys([*elsewhere, *near]) if key]
    return f"; did you mean {' or '.join(hints)}?" if hints else ""


def _with_condition(explanation: Explanation, workload: Workload, type_: str) -> Explanation:
    condition = workload.condition(type_)
    if condition is None:
        return explanation
    return msgspec.structs.replace(explanation, reason=condition.reason, message=condition.message)


def with_resize(
    explanation: Explanation, cache: Cache, requested: Mapping[str, int] | None, top: int
) -> Explanation:
    """Add the resize to an explanation of an elastic Workload that runs.

    Slices request the same one after another, so quota, topology and remedies are those of the
    first pending slice.

    Args:
        explanation: of the Workload itself.
        cache: the cluster.
        requested: pods that its job requests now, by PodSet; None if that could not be read.
        top: names to list.
    """
    row = cache.workloads[explanation.workload]
    if not row.elastic or row.parent or row.reserved is None:
        return explanation
    mine = [one for one in cache.workloads.values() if one.parent == row.key]
    slices = sorted((one for one in mine if one.owner_uid == row.uid), key=lambda one: one.key)
    first = next((one for one in slices if one.pending), None)
    why = (
        None
        if first is None
        else workload_explanation.explain(cache, first.key, cache.features, top)
    )
    lines = []
    for part in row.reserved.podsets:
        own = [one for one in slices if any(p.request.name == part.name for p in one.podsets)]
        line = _line(row, part.name, part.count, own, top)
        if requested is not None:
            line = msgspec.structs.replace(line, asked=requested.get(part.name, line.asked))
        if why is not None and why.workload in line.slices:
            line = msgspec.structs.replace(line, because=why.summary.rstrip("."))
        lines.append(line)
    explanation = msgspec.structs.replace(explanation, resizes=tuple(lines))
    if why is None:
        return explanation
    grows = "; ".join(_resize_text(line) for line in lines if line.waiting)
    return msgspec.structs.replace(
        explanation,
        summary=f"It is admitted, and scales up: {grows}.",
        changes=_changes(explanation.workload, why),
        quota=why.quota,
        flavors=why.flavors,
        queue=why.queue,
    )


def _changes(parent: str, why: Explanation) -> tuple[Remedy, ...]:
    """What would help a slice, except that its own parent releases quota."""
    own = [
        line
        for line in why.quota
        if line.missing != "0"
        and not line.more_holders
        and {holder.name for holder in line.holders} == {parent}
    ]
    if not own:
        return why.changes
    more = (
        Remedy(
            kind="quota",
            value=line.missing,
            when="perhaps",
            text=f"{line.missing} more {line.resource} of quota in flavor {line.flavor}: "
            "this job itself uses the rest",
        )
        for line in own
    )
    return (*(change for change in why.changes if change.kind != "quota"), *more)


def _line(
    row: WorkloadInfo, podset: str, count: int, slices: Sequence[WorkloadInfo], top: int
) -> Resize:
    """The entry of one PodSet and its slices."""
    beside = sum(
        _pods(one)
        for one in slices
        if one.uid not in row.merged_slices
        and (one.reserved is not None and one.admitted)
        and not (one.evicted or one.deleting)
    )
    waiting = [one for one in slices if one.pending]
    pods = sum(_pods(one) for one in waiting)
    return Resize(
        podset=podset,
        asked=count + beside + pods,
        granted=count + beside,
        waiting=pods,
        slices=tuple(one.key for one in waiting[:top]),
        more_slices=max(0, len(waiting) - top),
        because=next((one.pending_message or one.pending_reason for one in waiting), ""),
    )


def _pods(row: WorkloadInfo) -> int:
    if row.reserved is not None:
        return sum(part.count for part in row.reserved.podsets)
    return sum(podset.request.count for podset in row.podsets)


def _resize_text(line: Resize) -> str:
    because = f" because {line.because[:1].lower()}{line.because[1:]}" if line.because else ""
    return (
        f"{line.podset} requested {line.asked}, admitted {line.granted}, "
        f"pending {line.waiting}{because}"
    )
