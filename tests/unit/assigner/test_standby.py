"""A standby follows everything and decides nothing: what is gone leaves nothing in its cache."""

from __future__ import annotations

import pytest

from rackgate_assigner.cache.cache import Cache
from tests.support.kept import grown, kept
from tests.unit.assigner.builders import cache_with, workload


def pass_through(cache: Cache, first: int) -> None:
    for number in range(first, first + 20):
        cache.set_workload(workload(f"ray-{number}", elastic=True))
        cache.set_workload(workload(f"slice-{number}", parent=f"ray-{number}"))
        cache.set_workload(workload(f"orphan-{number}", parent=f"nobody-{number}"))
        for name in ("ray", "slice", "orphan"):
            cache.drop_workload(f"team/{name}-{number}")


@pytest.mark.requirement("OPS-07")
def test_workloads_that_come_and_go_leave_nothing() -> None:
    cache = cache_with()
    pass_through(cache, 0)
    before = kept(cache)
    pass_through(cache, 100)
    assert grown(before, kept(cache), 2) == {}
