"""How long placements take is measured from outside: the decisions themselves have no clock."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from rackgate.features import Features
from rackgate_assigner.scheduler.cycle import plan
from tests.unit.assigner.builders import RACK, cache_with, fx_a, podset, workload


def test_each_placement_is_measured_under_its_flavor_whether_or_not_it_fits() -> None:
    cache = cache_with(fx_a())
    for name, count in (("fits", 4), ("does-not", 5)):
        shape = podset(count=count, requests={"cpu": "4"}, topology={"required": RACK})
        cache.set_workload(workload(name, [shape]))
    measured: list[str] = []

    def timing(flavor: str) -> AbstractContextManager[object]:
        measured.append(flavor)
        return nullcontext()

    timed = plan(cache.snapshot(), Features(), timing)
    flavors = set(cache.flavors)
    assert len(measured) == 2
    assert set(measured) <= flavors
    assert timed == plan(cache.snapshot(), Features())
