from __future__ import annotations

import hashlib
import re

from rackgate.api.meta import SUBDOMAIN
from rackgate.api.workload_names import workload_name

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
