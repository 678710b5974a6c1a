"""What a process leaves for its successor in the same pod."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rackgate.runtime import clock, state_file
from rackgate.runtime.state_file import SLOT_BYTES, UNKNOWN_OUTCOME_S, StateFile, open_state

pytestmark = pytest.mark.requirement("OPS-06", "UNG-15")
MINE, LEASE, STAMP = "pod-a_1_00000001", "ungater-00", "2026-01-01T00:00:00.000001Z"
REQUEST_S, DURATION_S = 10.0, 15.0
AT_ONCE = 0.0  # the start of the machine is over


class Hours:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    hours = Hours()
    monkeypatch.setattr(clock, "monotonic", lambda: hours.now)
    return hours


@contextmanager
def process(folder: Path, identity: str = MINE) -> Iterator[StateFile]:
    """A process from its start to its death, whatever kills it."""
    state = open_state(folder, "ungater", identity)
    assert state is not None
    yield state
    state.close()


def takes(state: StateFile) -> None:
    state.record_tenure(LEASE, STAMP, 3, clock.monotonic() + DURATION_S)


def free_at(state: StateFile, acquired: str = STAMP, transitions: int = 3) -> float | None:
    return state.free_at(LEASE, acquired, transitions, REQUEST_S)


def test_a_successor_has_the_identity_and_the_leases_of_who_was_before_it(
    tmp_path: Path, hours: Hours
) -> None:
    with process(tmp_path) as first:
        assert not first.has_predecessor
        takes(first)
        assert free_at(first) is None, "these are its own"
    hours.now += 1
    with process(tmp_path, "pod-a_1_ffffffff") as second:
        assert second.has_predecessor
        assert second.identity == MINE
        assert free_at(second) == AT_ONCE


def test_a_record_that_the_predecessor_did_not_write_is_anybodys(
    tmp_path: Path, hours: Hours
) -> None:
    with process(tmp_path) as first:
        takes(first)
    with process(tmp_path) as second:
        assert free_at(second, transitions=4) is None
        assert free_at(second, acquired="2026-01-01T00:00:00.000002Z") is None
        assert second.free_at("another", STAMP, 3, REQUEST_S) is None


def test_who_lives_lets_no_one_have_its_file(tmp_path: Path) -> None:
    with process(tmp_path):
        assert open_state(tmp_path, "ungater", MINE) is None
        assert open_state(tmp_path, "assigner", MINE) is not None


def test_a_copy_of_the_file_and_one_of_another_pod_leave_nothing(
    tmp_path: Path, hours: Hours
) -> None:
    with process(tmp_path / "one") as first:
        takes(first)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with process(tmp_path / "two") as copied:
        assert not copied.has_predecessor
        assert free_at(copied) is None
    with process(tmp_path / "one", "pod-b_1_00000001") as other:
        assert not other.has_predecessor
        assert other.identity == "pod-b_1_00000001"


@pytest.mark.parametrize("boot", ["another", None])
def test_a_file_from_before_the_machine_started_leaves_nothing(
    tmp_path: Path, hours: Hours, boot: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(tmp_path / "state") as first:
        takes(first)
    if boot is not None:
        (tmp_path / "boot").write_text(boot)
    monkeypatch.setattr(state_file, "BOOT_ID", tmp_path / "boot")
    for _ in range(2):
        with process(tmp_path / "state") as second:
            assert second.has_predecessor is (boot is not None and _ > 0)
            assert free_at(second) is None


def test_writes_under_way_are_waited_for(tmp_path: Path, hours: Hours) -> None:
    with process(tmp_path) as first:
        takes(first)
        first.begin_write()
        hours.now += 2
        first.begin_write()
        first.end_write(outcome_known=True)
    sent = hours.now
    hours.now += 3
    with process(tmp_path) as second:
        assert free_at(second) == sent + REQUEST_S, "counted from the last one that was sent"


def test_answered_writes_keep_no_one_waiting(tmp_path: Path, hours: Hours) -> None:
    with process(tmp_path) as first:
        takes(first)
        for _ in range(5):
            first.begin_write()
            first.end_write(outcome_known=True)
    with process(tmp_path) as second:
        assert free_at(second) == AT_ONCE


def test_a_write_without_a_certain_answer_is_waited_for_longer(
    tmp_path: Path, hours: Hours
) -> None:
    with process(tmp_path) as first:
        takes(first)
        first.begin_write()
        first.end_write(outcome_known=False)
    with process(tmp_path) as second:
        assert free_at(second) == hours.now + UNKNOWN_OUTCOME_S


def test_who_dies_again_and_again_hides_no_write(tmp_path: Path, hours: Hours) -> None:
    with process(tmp_path) as first:
        takes(first)
        first.begin_write()
    with process(tmp_path):
        hours.now += 1
    with process(tmp_path) as third:
        assert third.identity == MINE
        assert free_at(third) == hours.now - 1 + UNKNOWN_OUTCOME_S


def test_what_another_one_may_have_taken_meanwhile_is_not_taken_back(
    tmp_path: Path, hours: Hours
) -> None:
    """Even if the record says otherwise: the store may be an older one."""
    with process(tmp_path) as first:
        takes(first)
        last = hours.now + DURATION_S + REQUEST_S
    with process(tmp_path) as second:
        hours.now = last - 0.001
        assert free_at(second) is not None
        hours.now = last
        assert free_at(second) is None


def test_nothing_is_left_by_who_saw_an_older_store(tmp_path: Path, hours: Hours) -> None:
    with process(tmp_path) as first:
        takes(first)
        first.invalidate()
    with process(tmp_path) as second:
        assert not second.has_predecessor
        assert free_at(second) is None


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_a_record_that_was_cut_short_counts_as_the_one_before(
    tmp_path: Path, hours: Hours, cut: int
) -> None:
    with process(tmp_path) as first:
        takes(first)
        whole = (tmp_path / "ungater.state").read_bytes()
        first.record_tenure(LEASE, "2027-01-01T00:00:00.000001Z", 4, hours.now + DURATION_S)
        later = (tmp_path / "ungater.state").read_bytes()
    at = 64 + SLOT_BYTES if whole[64 : 64 + SLOT_BYTES] == later[64 : 64 + SLOT_BYTES] else 64
    torn = later[: at + cut] + b"\0" * (240 - cut) + later[at + 240 :]
    with (tmp_path / "ungater.state").open("r+b") as file:
        file.write(torn)
    with process(tmp_path) as second:
        assert free_at(second) == AT_ONCE


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 70_000, b"\0" * 9])
def test_garbage_leaves_nothing(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "ungater.state").write_bytes(garbage)
    with process(tmp_path) as state:
        assert not state.has_predecessor
        assert state.identity == MINE


def test_a_folder_that_cannot_be_written_is_gone_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert open_state(tmp_path / "file" / "folder", "ungater", MINE) is None
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "ungater.state").symlink_to(tmp_path / "file")
    assert open_state(tmp_path / "link", "ungater", MINE) is None
    assert open_state(None, "ungater", MINE) is None


def test_the_whole_file_is_there_from_the_beginning(tmp_path: Path) -> None:
    """Memory of a file with holes ends the process at the first store, if the volume is full."""
    with process(tmp_path):
        status = (tmp_path / "ungater.state").stat()
        assert status.st_size > 2 * SLOT_BYTES
        assert status.st_blocks * 512 >= status.st_size


def test_a_volume_without_room_is_gone_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _offset: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with capture_logs() as logs:
        assert open_state(tmp_path, "ungater", MINE) is None
    assert [line["event"] for line in logs] == ["state_not_kept"]
    monkeypatch.undo()
    with process(tmp_path) as later:
        assert not later.has_predecessor
