"""The native PodGroup of a gang, for any mix of pods with and without its name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rackgate.gang.native.model import (
    GangMember,
    Owner,
    PodGroup,
    foreign_groups,
    pod_group_name,
    pod_group_of,
)

OWN = "w-gg"
members = st.builds(
    GangMember,
    pod_group=st.sampled_from([OWN, OWN, OWN, "", "theirs"]),
    priority_class=st.sampled_from(["", "high"]),
    succeeded=st.booleans(),
)
labels = st.text("ab-.A_", max_size=12)


@given(st.lists(members, max_size=8), st.integers(0, 9))
def test_a_pod_group_never_waits_for_pods_that_it_does_not_count(
    pods: list[GangMember], least: int
) -> None:
    expected = PodGroup("team", OWN, Owner("v", "Workload", "k", "u"), "run", least)
    found = pod_group_of(expected, pods)
    live = [pod for pod in pods if not pod.succeeded]
    counted = [pod for pod in live if pod.pod_group == OWN]
    if found is None:
        assert not counted
        return
    assert counted, "it is for nobody"
    assert (found.key, found.run, found.owner) == (expected.key, "run", expected.owner)
    if len(pods) >= least:  # a complete gang
        assert found.min_count <= len(counted)
    if found.min_count:
        assert len(counted) == len(live), "others of the gang would start without it"
        assert found.min_count == least - (len(pods) - len(live))
    assert OWN not in foreign_groups(OWN, pods)


@given(labels, labels)
def test_replicas_have_names_of_their_own_or_none(one: str, other: str) -> None:
    first, second = pod_group_name("w", "gg", one), pod_group_name("w", "gg", other)
    if one != other and first and second:
        assert first != second
    assert first == first.lower()
