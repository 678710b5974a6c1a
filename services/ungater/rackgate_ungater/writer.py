"""Requests of the ungater: one patch per pod, and live reads of pods and Workloads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.resources import PODS, WORKLOADS
from rackgate.features import NODES_BY_NAME
from rackgate.kube.client import Client, Deadline, PatchType
from rackgate.kube.errors import (
    ConflictError,
    KubeError,
    NotFoundError,
    NotSentError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnauthorizedError,
)
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff, sleep_until
from rackgate.runtime.tasks import spawn
from rackgate.topology.assignment import Domain
from rackgate.wire.lists import page_items
from rackgate_ungater import metrics
from rackgate_ungater.state_machine.events import (
    Event,
    Failure,
    PodGone,
    PodSeen,
    UngateAccepted,
    UngateFailed,
    WorkloadGone,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gated_objects import (
    GATES,
    TOPOLOGY,
    GatedPod,
    GatedWorkload,
    decode_pod,
    decode_workload,
)
from rackgate_ungater.state_machine.node_names import NodesByHostname, node_name_affinity
from rackgate_ungater.state_machine.ungating_plan import Ungate

log = structlog.get_logger()

# Consecutive server errors of one worker after which it abandons the batch.
MAX_CONSECUTIVE_FAILURES: Final = 3
# After an admission policy rejected a node name, pods do not name their node for this long.
NODE_NAME_BACKOFF_S: Final = 300.0

_encode = msgspec.json.encode

# A strategic merge patch deletes list entries by name: gates of other owners do not appear in it.
_GATES: Final = [
    (bit, {"$patch": "delete", "name": name}) for name, bit in sorted(GATES.items(), reverse=True)
]


def patch_tail(
    levels: Sequence[str], domain: Domain, gates: int = TOPOLOGY, *, node: str = "", terms: str = ""
) -> bytes:
    """The end of a patch, equal for all pods of one domain.

    Args:
        levels: node label keys; none adds no nodeSelector.
        domain: one value per level.
        gates: to remove, as bits; a missing one does no harm.
        node: the only node of the domain; empty adds no affinity.
        terms: required node affinity that the pods have already.
    """
    gone = [gate for bit, gate in _GATES if bit & gates]
    spec: dict[str, object] = {"schedulingGates": gone}
    if levels:
        spec["nodeSelector"] = dict(zip(levels, domain, strict=True))
    if node:
        spec["affinity"] = node_name_affinity(node, terms)
    return b',"spec":' + _encode(spec) + b"}"


def patch_body(pod: GatedPod, tail: bytes, *, run: str = "") -> bytes:
    """The patch of one pod, bound to the UID and version that the decision was based on.

    Args:
        pod: as the decision saw it.
        tail: as `patch_tail` makes it.
        run: recorded on a pod of a gang, in the same write: it proves that the gang has started.
    """
    bound: dict[str, object] = {"uid": pod.uid, "resourceVersion": pod.resource_version}
    if run:
        bound["annotations"] = {names.GANG_RUN_ANNOTATION: run}
    return b'{"metadata":' + _encode(bound) + tail


class _PatchTails:
    """Patch tails of one batch, built once per domain."""

    def __init__(self, nodes: NodesByHostname) -> None:
        self._nodes = nodes
        self._tail_by_key: dict[tuple[object, ...], bytes] = {}

    def tail_for(self, ungate: Ungate, *, with_node_name: bool = True) -> bytes:
        """The tail for one pod, with its node name if that is known and enabled."""
        node = self._nodes.only_node_of(ungate.levels, ungate.domain) if with_node_name else ""
        terms = ungate.pod.terms if node else ""
        key = ungate.domain, ungate.levels, ungate.gates, node, terms
        tail = self._tail_by_key.get(key)
        if tail is None:
            tail = patch_tail(ungate.levels, ungate.domain, ungate.gates, node=node, terms=terms)
            self._tail_by_key[key] = tail
        return tail


class Writer:
    """Sends requests and returns their outcome as events.

    Args:
        client: with the rate limit of ungating.
        concurrency: requests of one batch under way at the same time.
        gangs: gangs are enabled.
    """

    def __init__(self, client: Client, *, concurrency: int, gangs: bool = False) -> None:
        self._client = client
        self._decode_pod = partial(decode_pod, gangs=gangs)
        self._concurrency = concurrency
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._node_names_from = 0.0

    async def patch_pods(
        self,
        ungates: Sequence[Ungate],
        on_event: Callable[[Event], object],
        deadline: Deadline,
        nodes: NodesByHostname,
        *,
        shuffle: bool = False,
    ) -> tuple[int, int]:
        """Ungate pods; one that fails does not stop the others.

        Args:
            ungates: already recorded as expected.
            on_event: called with one event per pod.
            deadline: monotonic seconds; after it, no request is sent.
            nodes: a pod whose domain is one of them also names the node.
            shuffle: the batch before this one failed: try the pods in random order.

        Returns:
            How many were ungated, and how many must be retried.
        """
        results: dict[str, int] = {}
        tails = _PatchTails(nodes)
        queue = iter(self._rng.sample(ungates, len(ungates)) if shuffle else ungates)
        gave_up = False  # all workers stop together, and the next attempt starts with all of them

        async def work(todo: Iterator[Ungate]) -> None:
            nonlocal gave_up
            pauses = Backoff(base_s=0.1, cap_s=5.0, rng=self._rng)
            while not gave_up and clock.monotonic() < deadline():
                ungate = next(todo, None)
                if ungate is None:
                    break
                try:
                    result, event, wait_s = await self._ungate_pod(ungate, tails, deadline)
                except BaseException:  # the Lease is lost, or a bug: it may be written
                    on_event(self._failure_event(ungate.pod, "lost", Failure.UNKNOWN_OUTCOME)[1])
                    raise
                results[result] = results.get(result, 0) + 1
                on_event(event)
                if wait_s is None:
                    pauses.reset()
                else:  # the API server fails, not this pod: the next one would fail, too
                    wait_s = max(wait_s, pauses.next())
                    if pauses.failures() >= MAX_CONSECUTIVE_FAILURES:
                        gave_up = True  # do not delay other Workloads; the rest counts as unsent
                    await sleep_until(wait_s, deadline)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(min(self._concurrency, len(ungates))):
                    spawn(group, work(queue), f"ungate-{number}")
        finally:
            for ungate in queue:  # past the deadline, or the Lease is lost: these were not sent
                on_event(self._failure_event(ungate.pod, "unsent", Failure.UNSENT)[1])
            for result, count in results.items():
                metrics.UNGATED.labels(result=result).inc(count)
        ungated, gone = results.get("ungated", 0), results.get("gone", 0)
        return ungated, len(ungates) - ungated - gone

    async def _ungate_pod(
        self, ungate: Ungate, tails: _PatchTails, deadline: Deadline
    ) -> tuple[str, Event, float | None]:
        """Remove the gates of one pod. If the patch is rejected, retry without the node name."""
        pod, unnamed = ungate.pod, tails.tail_for(ungate, with_node_name=False)
        tail = tails.tail_for(ungate) if clock.monotonic() >= self._node_names_from else unnamed
        answer = await self._patch_pod(pod, tail, deadline, ungate.run)
        if answer[0] != "refused" or unnamed == tail:
            return answer
        answer = await self._patch_pod(pod, unnamed, deadline, ungate.run)
        if answer[0] == "ungated":  # the node name was the reason
            self._node_names_from = clock.monotonic() + NODE_NAME_BACKOFF_S
            log.warning("node_name_rejected", pod=pod.key, feature_gate=NODES_BY_NAME)
        return answer

    async def _patch_pod(
        self, pod: GatedPod, tail: bytes, deadline: Deadline, run: str
    ) -> tuple[str, Event, float | None]:
        """One request; returns its result for the metric, the event, and how long to pause.

        The pause is in seconds, None when the server answered as it should.
        """
        path = PODS.path(pod.namespace, pod.name)
        try:
            await self._client.patch(
                path, patch_body(pod, tail, run=run), PatchType.STRATEGIC, deadline=deadline
            )
        except NotFoundError:
            return "gone", PodGone(pod.uid), None
        except ConflictError:
            log.debug("patch_conflicted", resource="pods", pod=pod.key)
            return *self._failure_event(pod, "conflict", Failure.CONFLICT), None
        except NotSentError:
            return *self._failure_event(pod, "unsent", Failure.UNSENT), None
        except (TooManyRequestsError, UnauthorizedError) as error:
            pause_s = error.retry_after_s or 0.0
            return *self._failure_event(pod, "unsent", Failure.UNSENT, error), pause_s
        except (TransportError, ServerError) as error:
            # A 5xx may have been written, too, if only the response of etcd was lost.
            pause_s = error.retry_after_s or 0.0
            return *self._failure_event(pod, "lost", Failure.UNKNOWN_OUTCOME, error), pause_s
        except KubeError as error:
            return *self._failure_event(pod, "refused", Failure.REJECTED, error), None
        accepted = UngateAccepted(pod.uid, pod.resource_version, clock.monotonic())
        return "ungated", accepted, None

    def _failure_event(
        self, pod: GatedPod, result: str, failure: Failure, error: KubeError | None = None
    ) -> tuple[str, Event]:
        if error is not None:
            log.warning(
                "patch_failed", resource="pods", pod=pod.key, status=error.status, error=str(error)
            )
        return result, UngateFailed(pod.uid, pod.resource_version, failure, clock.monotonic())

    async def read_pods(
        self, pods: Sequence[GatedPod], on_event: Callable[[Event], object], deadline: Deadline
    ) -> int:
        """Read pods live; returns how many could not be read before the deadline."""
        failures = 0
        queue = iter(pods)

        async def work(todo: Iterator[GatedPod]) -> None:
            nonlocal failures
            for pod in todo:
                late = clock.monotonic() >= deadline()
                event = None if late else await self._read_pod(pod, deadline)
                if event is None:
                    failures += 1
                else:
                    on_event(event)

        async with asyncio.TaskGroup() as group:
            for number in range(min(self._concurrency, len(pods))):
                spawn(group, work(queue), f"read-{number}")
        return failures

    async def _read_pod(self, pod: GatedPod, deadline: Deadline) -> Event | None:
        path = PODS.path(pod.namespace, pod.name)
        try:
            known = pod.resource_version
            found = self._decode_pod(await self._client.get(path, deadline=deadline, known=known))
        except NotFoundError:
            return PodGone(pod.uid)
        except NotSentError:
            return None
        except (KubeError, msgspec.MsgspecError) as error:
            log.warning("pod_read_failed", pod=pod.key, error=str(error))
            return None
        # Another pod with this name: the watch will show it.
        return PodSeen(found, live=True) if found.uid == pod.uid else PodGone(pod.uid)

    async def read_workload(self, workload: GatedWorkload, deadline: Deadline) -> Event | None:
        """Read a Workload live; None when it could not be read before the deadline."""
        path = WORKLOADS.path(workload.namespace, workload.name)
        try:
            known = workload.resource_version
            data = await self._client.get(path, deadline=deadline, known=known)
            return WorkloadSeen(decode_workload(data, elastic=workload.elastic), live=True)
        except NotFoundError:
            return WorkloadGone(workload.key, workload.uid)
        except NotSentError:
            return None
        except (KubeError, msgspec.MsgspecError) as error:
            log.warning("workload_read_failed", workload=workload.key, error=str(error))
            return None

    async def read_slices(
        self, workload: GatedWorkload, deadline: Deadline
    ) -> list[GatedWorkload] | None:
        """Read an elastic Workload and its slices from one list.

        All objects of one list have one version. With single reads, a slice could count twice: by
        itself and in its parent.

        Returns:
            The Workloads of the same job; None when they could not be read before the deadline.
        """
        path = WORKLOADS.path(workload.namespace)
        params = {"labelSelector": f"{names.JOB_UID_LABEL}={workload.owner_uid}"}
        workloads: list[GatedWorkload] = []
        try:
            async for body in self._client.list_pages(path, params, deadline=deadline):
                workloads += [decode_workload(raw, elastic=True) for raw in page_items(body)]
        except NotSentError:
            return None
        except (KubeError, msgspec.MsgspecError) as error:
            log.warning("slices_read_failed", workload=workload.key, error=str(error))
            return None
        if any(found.key == workload.key for found in workloads):
            return workloads
        # Its label was removed. A later read of it alone would not be consistent with its slices.
        event = await self.read_workload(workload, deadline)
        return [event.workload] if isinstance(event, WorkloadSeen) else None
