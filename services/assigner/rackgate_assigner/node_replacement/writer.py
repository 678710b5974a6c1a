"""Writes about unhealthy nodes: `status.unhealthyNodes`, new domains, pods to delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.names import FieldManager
from rackgate.api.resources import PODS
from rackgate.api.timestamps import rfc3339
from rackgate.jobframework.jsonpatch import JsonPatchOp, with_preconditions
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import KubeError
from rackgate.runtime import clock
from rackgate.wire.core import Meta
from rackgate.wire.kueue import Admission, Workload
from rackgate_assigner import metrics
from rackgate_assigner.node_replacement.unhealthy import JobPod
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.conditions import ADMISSION_TYPES
from rackgate_assigner.workload.decisions import Assignment
from rackgate_assigner.workload.status import (
    admission_with_topology,
    current_admission,
    decode_workload,
    path_of,
    status_body,
)
from rackgate_assigner.workload.writer import apply_status, listed_conditions

log = structlog.get_logger()


TERMINATED: Final = "the pod is pinned to a node where it can never run: its job creates another"


class NodeWriter:
    """All methods raise `KubeError` when the API server rejects a write."""

    def __init__(self, client: Client, reporter: Reporter) -> None:
        """Share the budget of admissions: these writes are as urgent, and rare."""
        self._client, self._report = client, reporter

    async def mark_unhealthy(self, workload: Workload, unhealthy: Sequence[str]) -> None:
        """Add unhealthy hosts to `status.unhealthyNodes`; keep existing names."""
        named = [node.name for node in workload.status.unhealthy_nodes]
        listed = listed_conditions(workload, ADMISSION_TYPES, ())
        body = status_body(workload, listed, current_admission(workload), [*named, *unhealthy])
        await self._client.apply(path_of(workload, "status"), body, FieldManager.ADMISSION)
        log.info("nodes_marked_unhealthy", workload=workload.metadata.key, nodes=list(unhealthy))

    async def replace_nodes(
        self,
        workload: Workload,
        assignment: Assignment,
        replaced: Sequence[str],
        *,
        maybe_sent: bool = False,
    ) -> str:
        """Reassign the pods of unhealthy nodes and remove the names of these nodes, in one write.

        Only topology assignments change: the reservation stays the same (C20). Names that
        another manager wrote survive an apply; they are not assigned any more, and
        are removed by a second write.

        Returns:
            The resourceVersion from which on the Workload shows its new assignment.

        Raises:
            ConflictError: the Workload has changed; nothing was written.
        """
        admission = admission_with_topology(workload, assignment)
        left = [n.name for n in workload.status.unhealthy_nodes if n.name not in replaced]
        listed = listed_conditions(workload, ADMISSION_TYPES, ())
        wanted = msgspec.convert(admission, Admission)
        answer = await apply_status(
            self._client,
            workload,
            status_body(workload, listed, admission, left),
            lambda live: live.status.admission == wanted,
            outcome_unknown=maybe_sent,
        )
        metrics.NODE_REPLACEMENTS.labels(result="replaced").inc(len(replaced))
        log.info("nodes_replaced", workload=workload.metadata.key, nodes=list(replaced))
        note = f"replaced the nodes of pods on {', '.join(replaced)}; all other pods stay"
        self._report.workload(workload, "NodesReplaced", note)
        version = answer.metadata.resource_version
        try:
            await self.clear_unhealthy_nodes(answer, replaced)
        except KubeError as error:  # seen again and removed again: they are not assigned
            log.debug(
                "clear_unhealthy_nodes_failed", workload=workload.metadata.key, error=str(error)
            )
        return version

    async def clear_unhealthy_nodes(self, workload: Workload, cleared: Sequence[str]) -> bool:
        """Remove names from `status.unhealthyNodes`; whether any was there."""
        named = [node.name for node in workload.status.unhealthy_nodes]
        left = [{"name": name} for name in named if name not in cleared]
        if len(left) == len(named):
            return False
        path = "/status/unhealthyNodes"
        ops: list[JsonPatchOp] = [{"op": "replace", "path": path, "value": left}]
        if not left:
            ops = [{"op": "remove", "path": path}]
        meta = workload.metadata
        body = with_preconditions(ops, uid=meta.uid, resource_version=meta.resource_version)
        await self._client.patch(
            path_of(workload, "status"), msgspec.json.encode(body), PatchType.JSON
        )
        log.info("unhealthy_nodes_cleared", workload=meta.key, nodes=list(cleared))
        return True

    async def is_unchanged(self, workload: Workload) -> bool:
        """Whether the Workload is still stored as decided on: the watch may lag."""
        known = workload.metadata.resource_version
        live = decode_workload(await self._client.get(path_of(workload), known=known))
        seen = (workload.metadata.uid, workload.metadata.resource_version)
        return (live.metadata.uid, live.metadata.resource_version) == seen

    def report_replacement_failed(self, workload: Workload, message: str) -> None:
        """Report that unhealthy nodes have no replacement for now."""
        metrics.NODE_REPLACEMENTS.labels(result="stuck").inc()
        log.warning("second_pass_failed", workload=workload.metadata.key, message=message[:500])
        self._report.workload(
            workload, "SecondPassFailed", conditions.truncate(message), warning=True
        )

    async def terminate_pod(self, pod: JobPod) -> None:
        """Set a pod on an unhealthy node Failed, so that its job creates another (N6).

        Bound to the version listed: a pod that was bound meanwhile is not changed.
        """
        condition = {
            "type": names.TERMINATED_CONDITION,
            "status": "True",
            "reason": names.TERMINATED_REASON,
            "message": TERMINATED,
            "lastTransitionTime": rfc3339(clock.now()),
        }
        body = {
            "metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version},
            "status": {"phase": "Failed", "conditions": [condition]},
        }
        path = PODS.path(pod.namespace, pod.name, "status")
        await self._client.patch(path, msgspec.json.encode(body), PatchType.STRATEGIC)
        metrics.PODS_TERMINATED.inc()
        log.info("pod_terminated", pod=f"{pod.namespace}/{pod.name}", node=pod.host)
        meta = Meta(pod.name, pod.namespace, pod.uid, pod.resource_version)
        self._report.pod(meta, "PodTerminatedByKueue", TERMINATED)
