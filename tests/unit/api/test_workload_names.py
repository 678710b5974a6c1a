from __future__ import annotations

import hashlib
import re

from rackgate.api.meta import SUBDOMAIN
from rackgate.api.names import slice_name, slice_ordinal, workload_name

UID = "6c8e9d1e-0f0a-4d5e-9b3e-8f2a2f1f4c11"


def test_the_name_is_kind_owner_and_five_digits_of_the_hash() -> None:
    digest = hashlib.sha1(f"Job\nbatch\ntrain\n{UID}".encode(), usedforsecurity=False).hexdigest()
    assert workload_name("Job", "batch", "train", UID) == f"job-train-{digest[:5]}"


def test_the_same_owner_gets_the_same_name() -> None:
    assert workload_name("Job", "batch", "a", UID) == workload_name("Job", "batch", "a", UID)


def test_a_recreated_owner_gets_another_name() -> None:
    assert workload_name("Job", "batch", "a", UID) != workload_name("Job", "batch", "a", UID[::-1])


def test_extra_tells_names_of_one_owner_apart() -> None:
    digest = hashlib.sha1(f"Job\nbatch\na\n{UID}\n2".encode(), usedforsecurity=False).hexdigest()
    assert workload_name("Job", "batch", "a", UID, "2") == f"job-a-{digest[:5]}"


def test_long_owners_are_cut_to_a_valid_name() -> None:
    name = workload_name("Job", "batch", "a" * 300, UID)
    assert len(name) == 253
    assert name.startswith(f"job-{'a' * 243}-")


def test_a_cut_behind_a_dot_still_gives_an_object_name() -> None:
    name = workload_name("Job", "batch", f"{'a' * 242}.{'b' * 50}", UID)
    assert re.fullmatch(SUBDOMAIN, name)


def test_slices_are_numbered_within_a_podset_of_their_parent() -> None:
    assert slice_name("raycluster-c-1a2b3", "workers", 12) == "raycluster-c-1a2b3-workers-12"
    assert slice_ordinal("raycluster-c-1a2b3-workers-12") == 12
    assert slice_name("a", "b", 1) == slice_name("a", "b", 1)


def test_long_names_of_slices_stay_apart_and_keep_their_ordinals() -> None:
    parent = f"{'a' * 240}.{'b' * 12}"
    names = {slice_name(parent, podset, n) for podset in ("one", "two") for n in (0, 7, 1234567)}
    assert len(names) == 6
    for name in names:
        assert len(name) <= 253
        assert re.fullmatch(SUBDOMAIN, name)
    assert {slice_ordinal(name) for name in names} == {0, 7, 1234567}


def test_a_workload_that_was_named_otherwise_has_the_first_ordinal() -> None:
    assert [slice_ordinal(name) for name in ("mine", "mine-", "w-1e3", "w-99999999999999")] == [
        0
    ] * 4
