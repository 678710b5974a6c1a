"""What a process leaves for its successor in the same place: identity, Leases, open requests.

A container that is restarted in its pod is provably alone: its predecessor held a lock on this
file, and the kernel gives the lock to nobody before that process is gone, however it ended. So the
successor need not wait for the time of its predecessor's Leases; it takes them back, as long as

- the record in the Lease is one that the predecessor wrote: same holder, time and number;
- nobody else can have been given that Lease meanwhile, by the predecessor's own deadline;
- nothing that the predecessor sent may still arrive: every write was answered, or the longest
  request is over since the last one was sent.

The file belongs on a volume of the pod that outlives its containers and nothing else (an emptyDir).
A copy of it is not it (inode and device), nor is one from before the machine started (boot id), for
times are of its monotonic clock. Whoever cannot lock it goes without, and waits as any other.

Everything is written into memory that the kernel keeps when the process is killed. Records are in
two slots with check sums, written in turns, so that one of the two is whole at any moment.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import Final

import msgspec
import structlog

from rackgate.runtime import clock

SLOT_BYTES: Final = 32 * 1024
# Seconds after which a write of unknown outcome is not applied any more.
UNKNOWN_OUTCOME_S: Final = 75.0
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_OPEN_WRITES: Final = struct.Struct("<q")
_TIME: Final = struct.Struct("<d")
_OPEN_WRITES_AT, _SENT_AT, _UNKNOWN_UNTIL_AT, _SLOTS_AT = 0, 8, 16, 64
_HEAD: Final = struct.Struct("<QLL")  # number, length, check sum
_BYTES: Final = _SLOTS_AT + 2 * SLOT_BYTES

log = structlog.get_logger()


class Tenure(msgspec.Struct, frozen=True):
    """One time that a process had a Lease, or asked for it.

    Attributes:
        acquired: as in the Lease's record.
        transitions: as in the Lease's record.
        deadline: monotonic second at which it ended unless renewed.
    """

    acquired: str
    transitions: int
    deadline: float


class _Record(msgspec.Struct):
    """What is kept beside the numbers."""

    identity: str = ""
    place: str = ""
    tenures: dict[str, Tenure] = {}


_decode: Final = msgspec.json.Decoder(_Record).decode


class StateFile:
    """The file of this process, and what its predecessor left in it.

    Attributes:
        identity: of this process in Leases: that of the predecessor, if there was one.
        has_predecessor: whether there was one.
    """

    def __init__(self, descriptor: int, identity: str) -> None:
        """Prefer `open_state`. Takes over the descriptor, which is locked."""
        # All of it now: on a full volume, the first store into a hole ends the process (SIGBUS).
        os.posix_fallocate(descriptor, 0, _BYTES)
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _BYTES)
        place, self._number, previous = _locate(descriptor), 0, _Record()
        for slot in (0, 1):
            number, record = self._read(slot)
            if record is not None and number > self._number:
                self._number, previous = number, record
        same = bool(place) and previous.place == place
        self.has_predecessor = same and _is_same_pod(previous.identity, identity)
        self.identity = previous.identity if self.has_predecessor else identity
        # Also what earlier ones had, which it did not come to take back.
        self._predecessor_tenures = previous.tenures if self.has_predecessor else {}
        self._last_sent_at = self._read_time(_SENT_AT)
        self._had_open_writes = self._open_writes() > 0
        self._unknown_until = self._read_time(_UNKNOWN_UNTIL_AT)
        self._record = _Record(self.identity, place, dict(self._predecessor_tenures))
        self._start_over()

    def close(self) -> None:
        """Let go of the file."""
        self._memory.close()
        os.close(self._descriptor)

    # What this process does ---------------------------------------------------------------

    def begin_write(self) -> None:
        """A write is about to be sent."""
        _TIME.pack_into(self._memory, _SENT_AT, clock.monotonic())
        _OPEN_WRITES.pack_into(self._memory, _OPEN_WRITES_AT, self._open_writes() + 1)

    def end_write(self, *, outcome_known: bool) -> None:
        """A write has ended; `outcome_known` when its answer says what became of it."""
        if not outcome_known:
            _TIME.pack_into(self._memory, _UNKNOWN_UNTIL_AT, clock.monotonic() + UNKNOWN_OUTCOME_S)
        _OPEN_WRITES.pack_into(self._memory, _OPEN_WRITES_AT, self._open_writes() - 1)

    def record_tenure(self, lease: str, acquired: str, transitions: int, deadline: float) -> None:
        """This process has a Lease, or asks for it, until `deadline`."""
        self._record.tenures[lease] = Tenure(acquired, transitions, deadline)
        self._save()

    def invalidate(self) -> None:
        """Nothing of this is true any more: no successor may rest on it."""
        self._record.place = ""
        self._save()

    # What the predecessor left ------------------------------------------------------------

    def free_at(
        self, lease: str, acquired: str | None, transitions: int | None, request_s: float
    ) -> float | None:
        """From which monotonic second on the predecessor's Lease is ours to take back.

        Args:
            lease: its name.
            acquired: as its record says.
            transitions: as its record says.
            request_s: longest time that a write may be on its way.

        Returns:
            None when it is to be waited for as that of any other.
        """
        previous = self._predecessor_tenures.get(lease)
        if previous is None or (previous.acquired, previous.transitions) != (acquired, transitions):
            return None
        # By then another one may have taken it, in a store that is not the one we see.
        if clock.monotonic() >= previous.deadline + request_s:
            return None
        open_until = self._last_sent_at + request_s if self._had_open_writes else float("-inf")
        return max(open_until, self._unknown_until)

    def _start_over(self) -> None:
        """What the predecessor left holds for our successor, too, whenever this is cut short."""
        if not self.has_predecessor:
            _TIME.pack_into(self._memory, _UNKNOWN_UNTIL_AT, 0.0)
        elif self._had_open_writes:
            _TIME.pack_into(
                self._memory,
                _UNKNOWN_UNTIL_AT,
                max(self._unknown_until, self._last_sent_at + UNKNOWN_OUTCOME_S),
            )
        self._save()
        _OPEN_WRITES.pack_into(self._memory, _OPEN_WRITES_AT, 0)

    # Bytes --------------------------------------------------------------------------------

    def _open_writes(self) -> int:
        return int(_OPEN_WRITES.unpack_from(self._memory, _OPEN_WRITES_AT)[0])

    def _read_time(self, at: int) -> float:
        return float(_TIME.unpack_from(self._memory, at)[0])

    def _read(self, slot: int) -> tuple[int, _Record | None]:
        start = _SLOTS_AT + slot * SLOT_BYTES
        number, length, check = _HEAD.unpack_from(self._memory, start)
        start += _HEAD.size
        raw = self._memory[start : start + min(length, SLOT_BYTES - _HEAD.size)]
        if not raw or zlib.crc32(raw) != check:
            return 0, None
        try:
            return number, _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return 0, None

    def _save(self) -> None:
        raw = msgspec.json.encode(self._record)
        if len(raw) > SLOT_BYTES - _HEAD.size:
            raise ValueError("too many Leases for one state file")
        self._number += 1
        start = _SLOTS_AT + self._number % 2 * SLOT_BYTES
        # Torn, its check sum does not fit, and the other slot counts.
        _HEAD.pack_into(self._memory, start, 0, 0, 1)
        self._memory[start + _HEAD.size : start + _HEAD.size + len(raw)] = raw
        _HEAD.pack_into(self._memory, start, self._number, len(raw), zlib.crc32(raw))


def open_state(folder: Path | None, service: str, identity: str) -> StateFile | None:
    """The state file of a service; None without a folder, or where it cannot be ours.

    Args:
        folder: on a volume that outlives the container.
        service: short name.
        identity: of this process; replaced by that of its predecessor in the same place.
    """
    if folder is None:
        return None
    path = folder / f"{service}.state"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        log.warning("state_not_kept", path=str(path), error=str(error))
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = StateFile(descriptor, identity)
    except (OSError, ValueError) as error:
        os.close(descriptor)
        log.warning("state_not_kept", path=str(path), error=str(error))
        return None
    log.info(
        "state_kept", path=str(path), identity=state.identity, predecessor=state.has_predecessor
    )
    return state


def _locate(descriptor: int) -> str:
    """This file and no copy of it, since this machine started."""
    status = os.fstat(descriptor)
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return f"{boot}/{status.st_dev}/{status.st_ino}" if boot else ""


def _is_same_pod(previous: str, identity: str) -> bool:
    """Whether both identities are of one pod: equal, or but for process id and random part."""
    return previous == identity or (
        bool(previous) and previous.rsplit("_", 2)[0] == identity.rsplit("_", 2)[0]
    )
