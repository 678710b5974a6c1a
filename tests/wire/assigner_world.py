"""A fake cluster for the assigner: the fake API server, plus what its other controllers would do.

Added to the plain fake: field ownership of applied status, finalizers, generations, garbage
collection, and a Job controller that obeys `spec.suspend` at once and, as the real API server,
refuses template edits of a Job that is not at rest.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate_assigner.assigner import Assigner
from rackgate_assigner.settings import AssignerSettings
from tests.support import objects
from tests.support.apiserver import FakeApiServer, Object, Request, check_preconditions
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.support.waiting import until

NAMESPACE = "team"
RECLAIMABLE = "reclaimablePods"
START = "2026-08-01T12:00:00Z"


class World(FakeApiServer):
    """The fake cluster; `broken_rules` collects breaches of invariants as they happen."""

    def __init__(self) -> None:
        super().__init__()
        self.broken_rules: list[str] = []
        self._applied: dict[tuple[str, str, str], Object] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    # What the API server does with requests.

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        known = self._objects.get(target.full_name, {}).get(target.key)
        content = seen.headers.get("Content-Type", "")
        if known is not None and content.startswith("application/apply-patch"):
            manager = seen.query["fieldManager"]
            return 200, self._apply(target, known, json.loads(seen.body), manager)
        if known is None and target.sub == "status":
            raise RejectedRequest(404, "NotFound", f'{target.plural} "{target.name}" not found')
        if known is not None and seen.method == "DELETE" and known["metadata"].get("finalizers"):
            options = json.loads(seen.body or b"{}")
            check_preconditions(known, options.get("preconditions", {}))
            marked = copy.deepcopy(known)
            marked["metadata"]["deletionTimestamp"] = START
            return 200, self._store(target, marked, known)
        return super()._do(target, seen)

    def _apply(self, target: Target, known: Object, patch: Object, manager: str) -> Object:
        version = patch["metadata"].get("resourceVersion")
        if version and version != known["metadata"]["resourceVersion"]:
            raise RejectedRequest(409, "Conflict", "the object has been modified")
        owned = (target.full_name, target.key, manager)
        before, after = self._applied.get(owned, {}), patch.get("status", {})
        status = copy.deepcopy(known.get("status", {}))
        foreign = self._owned_by_others(owned, status)
        listed = {c["type"]: c for c in status.get("conditions", [])}
        for condition in before.get("conditions", []):
            kept = foreign["conditions"].get(condition["type"])
            if kept is None:
                listed.pop(condition["type"], None)
            elif kept != listed[condition["type"]] and not _names(after, condition["type"]):
                raise RejectedRequest(
                    422, "Invalid", f"status.conditions: {kept['type']} lacks its status"
                )
        for condition in after.get("conditions", []):
            listed[condition["type"]] = condition
        for field in before:
            if field not in foreign:
                status.pop(field, None)
        for field, value in after.items():
            if field == RECLAIMABLE:  # a list by name: entries of others stay
                named = {entry["name"] for entry in value}
                kept = [entry for entry in foreign.get(field, ()) if entry["name"] not in named]
                status[field] = [*value, *kept]
                continue
            keys = foreign[field] if field in foreign and isinstance(value, dict) else ()
            status[field] = (
                {**{key: status[field][key] for key in keys}, **value} if keys else value
            )
        status["conditions"] = list(listed.values())
        self._applied[owned] = after
        return self._store(target, {**known, "status": status}, known)

    def _owned_by_others(self, owned: tuple[str, str, str], status: Object) -> dict[str, Any]:
        """What managers but this one have applied of a status and is there still, with its keys."""
        present = {c["type"] for c in status.get("conditions", [])}
        found: dict[str, Any] = {"conditions": {}}
        for key, applied in self._applied.items():
            if key[:2] != owned[:2] or key == owned:
                continue
            for field in applied.keys() & status.keys():
                if field == RECLAIMABLE:
                    found[field] = [entry for entry in applied[field] if entry in status[field]]
                elif field == "conditions":
                    listed = {c["type"]: c for c in applied[field] if c["type"] in present}
                    found[field].update(listed)
                else:
                    parts = applied[field] if isinstance(applied[field], dict) else {}
                    found[field] = {part: parts[part] for part in parts if part in status[field]}
        return found

    def take_over(self, name: str, manager: str, *fields: str) -> None:
        """Another manager has applied these fields of a Workload, conditions by their type."""
        own = self.get(kinds.WORKLOADS, name, NAMESPACE)
        assert own is not None
        status = own["status"]
        applied = {field: status[field] for field in fields if field in status}
        listed = [c for c in status["conditions"] if c["type"] in fields]
        key = f"{NAMESPACE}/{name}"
        self._applied[kinds.WORKLOADS.full_name, key, manager] = {**applied, "conditions": listed}

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        item = copy.deepcopy(item)
        meta = item["metadata"]
        if known is None:
            meta["generation"] = 1
        elif known.get("spec") != item.get("spec"):
            meta["generation"] = known["metadata"].get("generation", 1) + 1
        if target.full_name == "jobs.batch":
            self._job_changes(item, known)
        stored = super()._store(target, item, known)
        if target.full_name == kinds.WORKLOADS.full_name:
            self._check_workload(stored)
        if stored["metadata"].get("deletionTimestamp") and not meta.get("finalizers"):
            self._drop(target.full_name, f"{meta.get('namespace', '')}/{meta['name']}")
        return stored

    def _drop(self, full_name: str, key: str) -> None:
        gone = self._objects[full_name][key]
        super()._drop(full_name, key)
        for owned in self.workloads():
            uids = [owner["uid"] for owner in owned["metadata"].get("ownerReferences", [])]
            left = {
                item["metadata"]["uid"]
                for kind in self._objects.values()
                for item in kind.values()
                if item["metadata"].get("uid") in uids
            }
            if gone["metadata"]["uid"] in uids and not left:
                self.delete(kinds.WORKLOADS, owned["metadata"]["name"])

    def _publish(self, kind: str, full_name: str, item: Object) -> None:
        super()._publish(kind, full_name, item)
        for stream in self.streams:
            # As the real one: an object that a selector no longer matches leaves its watch.
            same = stream.target.full_name == full_name and stream.target.holds(item)
            if same and kind == "MODIFIED" and not stream.follows(full_name, item):
                stream.event("DELETED", item)

    # What the Job controller does.

    def _job_changes(self, item: Object, known: Object | None) -> None:
        spec, status = item["spec"], item.setdefault("status", {})
        if known is not None and known["spec"]["template"] != spec["template"]:
            at_rest = spec.get("suspend") and not known["status"].get("active")
            if not at_rest or not known["spec"].get("suspend", False):
                started = known["spec"].get("suspend") and not spec.get("suspend")
                if not started:
                    raise RejectedRequest(422, "Invalid", "spec.template: field is immutable")
        over = any(c["type"] in ("Complete", "Failed") for c in status.get("conditions", []))
        if over:
            return
        suspended = bool(spec.get("suspend"))
        if not suspended and (known is None or known["spec"].get("suspend")):
            self._check_start(item)
        count = 0 if suspended else spec.get("parallelism", 1)
        flag = "True" if suspended else "False"
        status.update(active=count, ready=count)
        status["conditions"] = [{"type": "Suspended", "status": flag}]

    def complete(self, name: str) -> None:
        """The Job's pods succeed."""
        job = copy.deepcopy(self.job(name))
        job["status"] = {"conditions": [{"type": "Complete", "status": "True", "message": "done"}]}
        self.put(kinds.JOBS, job)

    # Invariants, judged at every write.

    def _check_start(self, job: Object) -> None:
        workload = self.workload_of(job)
        status = (workload or {}).get("status", {})
        true = [c["type"] for c in status.get("conditions", []) if c["status"] == "True"]
        if names.QUEUE_LABEL in job["metadata"].get("labels", {}) and not (
            status.get("admission") and "Admitted" in true
        ):
            self.broken_rules.append(f"{job['metadata']['name']} runs without an admission")

    def _check_workload(self, workload: Object) -> None:
        owner = (workload["metadata"].get("ownerReferences") or [{}])[0]
        job = self.get(kinds.JOBS, owner.get("name", ""), NAMESPACE)
        over = any(
            c["type"] == "Finished" and c["status"] == "True"
            for c in workload.get("status", {}).get("conditions", [])
        )
        if job is None or job["metadata"]["uid"] != owner.get("uid") or over:
            return
        if job["status"].get("active") and not workload.get("status", {}).get("admission"):
            self.broken_rules.append(f"quota of {owner['name']} was released while it runs")
        siblings = [w for w in self.workloads() if owner in w["metadata"]["ownerReferences"]]
        if len(siblings) > 1:
            self.broken_rules.append(f"{owner['name']} has {len(siblings)} Workloads")

    # What users and tests do.

    def delete(self, resource: Resource, name: str) -> None:
        """Delete an object as a user would: finalizers hold it."""
        space = NAMESPACE if resource.namespaced else ""
        known = self._objects.get(resource.full_name, {}).get(f"{space}/{name}")
        if known is None:
            return
        if known["metadata"].get("finalizers"):
            self.change(resource, name, lambda o: o["metadata"].update(deletionTimestamp=START))
        else:
            self.remove(resource, name, space)

    def change(self, resource: Resource, name: str, edit: Callable[[Object], object]) -> None:
        """Edit an object as a user would."""
        item = copy.deepcopy(self.get(resource, name, NAMESPACE if resource.namespaced else ""))
        assert item is not None, f"no {resource.kind} {name}"
        edit(item)
        self.put(resource, item)

    def submit(self, name: str, count: int = 4, **options: Any) -> Object:
        """A Job as it is stored after the webhook suspended it."""
        job = objects.job(name, count, **{"cpu": "4", **options})
        job["metadata"]["namespace"] = NAMESPACE
        job["spec"]["suspend"] = options.get("spec", {}).get("suspend", True)
        return self.put(kinds.JOBS, job)

    def job(self, name: str) -> Object:
        """A Job as stored."""
        found = self.get(kinds.JOBS, name, NAMESPACE)
        assert found is not None, f"no Job {name}"
        return found

    def workloads(self) -> list[Object]:
        """All Workloads."""
        return list(self._objects.get(kinds.WORKLOADS.full_name, {}).values())

    def workload_of(self, job: Object) -> Object | None:
        """The Workload that a Job controls."""
        uid = job["metadata"].get("uid")
        for workload in self.workloads():
            owners = workload["metadata"].get("ownerReferences", [])
            if any(owner["uid"] == uid for owner in owners):
                return workload
        return None

    def workload(self, job_name: str) -> Object:
        """The Workload of a Job."""
        found = self.workload_of(self.job(job_name))
        assert found is not None, f"no Workload of {job_name}"
        return found

    def shows(self, job_name: str, type_: str, status: str, reason: str = "") -> Callable[[], bool]:
        """A question: does this condition of the Job's Workload look like that?"""

        def holds() -> bool:
            found = self.condition(job_name, type_)
            return found[0] == status and reason in ("", found[1])

        return holds

    def started(self, job_name: str) -> Callable[[], bool]:
        """A question: was the Job started?"""
        return lambda: self.runs(job_name)

    def condition(self, job_name: str, type_: str) -> tuple[str, str]:
        """Status and reason of a condition of a Job's Workload; empty when absent."""
        found = self.workload_of(self.job(job_name)) or {}
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == type_:
                return condition["status"], condition["reason"]
        return "", ""

    def runs(self, name: str) -> bool:
        """Whether the Job was started."""
        return self.job(name)["spec"]["suspend"] is False

    def admitted(self, name: str) -> bool:
        """Whether the Job's Workload is admitted."""
        return self.condition(name, "Admitted")[0] == "True"

    def writes(self) -> list[Request]:
        """Everything that was asked but reads, reviews of its own access, Events and Leases."""
        quiet = ("/events", "/leases", "/selfsubjectaccessreviews")
        return [
            request
            for request in self.requests
            if request.method != "GET" and not any(part in request.path for part in quiet)
        ]

    def accepted(self) -> list[Request]:
        """The writes that were not refused.

        A refused one is sent again, as often as the machine is slow.
        """
        refused = {id(request) for request in self.refused}
        return [request for request in self.writes() if id(request) not in refused]

    def taken(self, watched: Collection[str]) -> int:
        """How many of those have one of these in their path."""
        return sum(any(part in request.path for part in watched) for request in self.accepted())

    def events(self, reason: str) -> list[Object]:
        """Events with that reason."""
        stored = self._objects.get(kinds.EVENTS.full_name, {}).values()
        return [event for event in stored if event["reason"] == reason]


def furnish(world: World, **queue: Any) -> None:
    """FX-A nodes of 8 cpu, a topology queue `queue` and a plain queue `plain`."""
    world.put(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {}}})
    world.put(kinds.TOPOLOGIES, objects.topology_object("dc"))
    world.put(kinds.FLAVORS, objects.flavor("tas", "pool", "dc"))
    world.put(kinds.FLAVORS, objects.flavor("plain", "other", None))
    quota = {"cpu": "64"}
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("cq", "tas", quota, **queue))
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("plain", "plain", quota))
    for name, cluster_queue in (("queue", "cq"), ("plain", "plain")):
        local = objects.local_queue(name, cluster_queue)
        local["metadata"]["namespace"] = NAMESPACE
        world.put(kinds.LOCAL_QUEUES, local)
    for node in objects.fx_a_nodes("pool"):
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        world.put(kinds.NODES, node)


def settings(**changes: Any) -> AssignerSettings:
    """Quick rounds, and usage checked after every cycle."""
    given: Mapping[str, Any] = {
        "cycle": {"minInterval": 0.01, "messageInterval": 0, "checkUsage": True},
        "queueStatus": {"minInterval": 0.2, "maxInterval": 0.2},
        "identity": "test",
        **changes,
    }
    return AssignerSettings(**given)


@asynccontextmanager
async def assigner(
    world: World, *, acts: bool = True, configured: AssignerSettings | None = None
) -> AsyncIterator[Assigner]:
    """A replica that follows the world and, unless it stands by, acts on it."""
    client = world.client()
    replica = Assigner(configured or settings(), client)
    async with tasks_of(client, replica.follow()) as tasks:
        await asyncio.wait_for(replica.synced(), 60)
        if acts:
            tasks.append(asyncio.create_task(replica.act()))
        yield replica


@asynccontextmanager
async def tasks_of(
    client: Client, *first: Coroutine[Any, Any, None]
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Tasks of a replica, more may be added: none ends by itself, all end with its client."""
    tasks = [asyncio.create_task(one) for one in first]
    try:
        yield tasks
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks)
        finally:  # who waits for this may be cancelled meanwhile
            await client.close()


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for a condition on the world."""
    await until(condition)


def _names(status: Object, type_: str) -> bool:
    return any(condition["type"] == type_ for condition in status.get("conditions", []))
