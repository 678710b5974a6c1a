"""What became of each Workload, as a watch shows it, and what follows for a whole run. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.measuring.figures import percentile
from rackgate.wire.core import Condition, Meta, View

BUSY_SHARE = 0.9
NEAR_LIMIT = 1.15


class _Status(View, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: msgspec.Raw = msgspec.Raw()


class SeenWorkload(View, frozen=True):
    """The part of a Workload that the bench reads."""

    metadata: Meta = Meta()
    status: _Status = _Status()

    def condition(self, type_: str) -> Condition | None:
        """The condition of that type, if present."""
        return next((found for found in self.status.conditions if found.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Whether that condition is present with status True."""
        found = self.condition(type_)
        return found is not None and found.status == "True"


@dataclass(slots=True)
class Record:
    """One Workload. Times are seconds on the clock of the run.

    Attributes:
        cpu: CPUs that it uses while its quota is reserved.
        created: first seen.
        admitted: last seen to become admitted; None before.
        reserved_since: its quota is reserved since then; None while it is not.
        held_s: seconds of all reservations that ended.
        finished: seen finished; None before.
        pending_writes: how many reasons why it is pending were written.
        admission: the last one, as JSON.
    """

    cpu: float
    created: float
    admitted: float | None = None
    reserved_since: float | None = None
    held_s: float = 0.0
    finished: float | None = None
    is_admitted: bool = False
    is_evicted: bool = False
    evictions: int = 0
    pending_writes: int = 0
    pending: tuple[str, str] | None = None
    admission: bytes = b""

    @property
    def runs(self) -> bool:
        """Whether its clock runs: admitted, and neither evicted nor finished."""
        return self.is_admitted and not self.is_evicted and self.finished is None

    @property
    def to_admission_s(self) -> float | None:
        """From its creation to its last admission, as Kueue counts; None if there was none."""
        return None if self.admitted is None else self.admitted - self.created


class Recorder:
    """All Workloads of a run.

    Attributes:
        records: by `namespace/name`.
        finished: how many have finished.
        peaks: by cohort, most CPUs that were reserved at the same time. The watch shows writes in
            their order, so an admission beyond the quota shows here, however short it is.
    """

    def __init__(self, cohorts: Mapping[str, str]) -> None:
        """Start empty; `cohorts` by namespace."""
        self.records: dict[str, Record] = {}
        self.finished = 0
        self.peaks: dict[str, float] = {}
        self._cohorts = cohorts
        self._reserved: dict[str, float] = defaultdict(float)

    def see(self, workload: SeenWorkload, cpu: float, now: float) -> Record:
        """Take in an event of the watch; returns what is known of the Workload then."""
        key = workload.metadata.key
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = Record(cpu, now)
        finished = workload.is_true("Finished")
        reserved = workload.is_true("QuotaReserved") and not finished
        admitted = reserved and workload.is_true("Admitted")
        evicted = workload.is_true("Evicted")
        cohort = self._cohorts[workload.metadata.namespace]
        if reserved and record.reserved_since is None:
            record.reserved_since = now
            self._reserved[cohort] += cpu
            self.peaks[cohort] = max(self.peaks.get(cohort, 0.0), self._reserved[cohort])
        elif not reserved and record.reserved_since is not None:
            record.held_s += now - record.reserved_since
            record.reserved_since = None
            self._reserved[cohort] -= cpu
        if admitted and not record.is_admitted:
            record.admitted = now
        if admitted:
            record.admission = bytes(workload.status.admission)
        self._see_pending(record, workload)
        record.evictions += evicted and not record.is_evicted
        record.is_admitted, record.is_evicted = admitted, evicted
        if finished and record.finished is None:
            record.finished = now
            self.finished += 1
        return record

    def _see_pending(self, record: Record, workload: SeenWorkload) -> None:
        quota = workload.condition("QuotaReserved")
        if quota is None or quota.status == "True":
            record.pending = None
            return
        now = (quota.reason, quota.message)
        # The first after a reservation is the release of the quota.
        record.pending_writes += record.pending != now and not record.is_admitted
        record.pending = now


def queue_use(records: Iterable[Record], nominal_cpu: float, wall_s: float, end: float) -> float:
    """Mean share of the nominal quota that was reserved during a run.

    Args:
        records: of the run.
        nominal_cpu: of all queues together.
        wall_s: of the run.
        end: of the run, for reservations that had not ended.
    """
    used = 0.0
    for record in records:
        open_s = 0.0 if record.reserved_since is None else end - record.reserved_since
        used += record.cpu * (record.held_s + open_s)
    return used / (nominal_cpu * wall_s)


def times_to_admission(
    records: Mapping[str, Record], class_of: Callable[[str], str]
) -> dict[str, dict[str, float]]:
    """Mean, median and 99th percentile of the seconds to admission, by class.

    Args:
        records: by `namespace/name`.
        class_of: the class of a Workload, by its name.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for key, record in records.items():
        if (waited_s := record.to_admission_s) is not None:
            found[class_of(key.partition("/")[2])].append(waited_s)
    return {name: spread(waits) for name, waits in sorted(found.items())}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median and 99th percentile."""
    return {
        "mean": statistics.fmean(values),
        "p50": percentile(values, 0.5),
        "p99": percentile(values, 0.99),
    }


@dataclass
class Round:
    """One run of the load.

    Attributes:
        mode: who admitted.
        wall_s: from the first creation to the last end seen.
        use: mean share of the nominal quota that was reserved.
        ran: mean share of the nominal quota that run times alone take.
        peak: the most of it that a cohort had reserved at any moment.
        to_admission_s: mean, median and 99th percentile, by class.
        cpu_s: used meanwhile, by component; `bench` is the measuring process, `others` all
            foreign work.
        events: Events that were written.
        statuses: statuses of ClusterQueues and LocalQueues that were written.
        loop_ms: mean CPU time of a loop that is always the same: how slow the machine was.
    """

    mode: str
    workloads: int
    finished: int
    wall_s: float
    use: float
    ran: float
    peak: float
    evictions: int
    pending_writes: int
    to_admission_s: dict[str, dict[str, float]] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    events: int = 0
    statuses: int = 0
    loop_ms: float = 0.0

    @property
    def rate(self) -> float:
        """Workloads admitted and finished per second."""
        return self.finished / self.wall_s

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        return {**msgspec.to_builtins(self), "admissions_per_s": self.rate}


def own_cpu_s(one: Round) -> float:
    """CPU seconds of everything that belongs to the bench: control plane, services, itself."""
    return sum(spent for name, spent in one.cpu_s.items() if name != "others")


def foreign_share(one: Round) -> float:
    """Share of all work on the machine that was none of this bench's."""
    return one.cpu_s["others"] / max(sum(one.cpu_s.values()), 1e-9)


def binding(one: Round, *, cores: int, least_s: Mapping[str, float]) -> str:
    """What a run could not get past.

    Args:
        one: the run.
        cores: of the machine.
        least_s: what the load takes at least, in seconds, by what causes it.
    """
    total = sum(one.cpu_s.values())
    busiest = sorted(one.cpu_s, key=lambda name: -one.cpu_s[name])
    if total >= BUSY_SHARE * cores * one.wall_s:
        most = ", ".join(f"{name} {one.cpu_s[name] / total:.0%}" for name in busiest[:3])
        return f"the {cores} cores: {total / (cores * one.wall_s):.0%} busy, {most}"
    # Programs in Python use one core at most.
    for name in ("assigner", "bare", "bench"):
        if one.cpu_s.get(name, 0.0) >= BUSY_SHARE * one.wall_s:
            return f"{name}: one core full"
    cause, limit_s = max(least_s.items(), key=lambda item: item[1])
    if one.wall_s <= NEAR_LIMIT * limit_s:
        return f"the load: {cause} takes {limit_s:.0f} s"
    return f"nothing is full: {busiest[0]} is the busiest, {one.cpu_s[busiest[0]]:.1f} s of CPU"
