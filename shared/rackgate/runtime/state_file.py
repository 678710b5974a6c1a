"""State that a process leaves for its successor in the same Pod: identity, Leases, open requests.

A process locks the file as long as it lives. A restarted container that gets the lock knows that
its predecessor is gone, however it ended. So it does not wait until the predecessor's Leases
expire, but takes them back, as long as

- the predecessor wrote the record in the Lease: same holder, acquire time and transitions;
- no other process can hold the Lease yet, by the predecessor's own deadline;
- no write of the predecessor can still arrive: every write was answered, or the request timeout
  has passed since the last one was sent.

The file belongs on a volume that outlives the containers of the Pod, but not the Pod (emptyDir).
Inode, device and boot ID detect copies of the file, and files from before a reboot, which reset the
monotonic clock. A process that cannot lock the file waits for Leases as any other process.

All data is in shared memory, which the kernel keeps if the process is killed. Records alternate
between two slots with checksums, so one of the two is always complete.
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
# Seconds after which a write with unknown outcome can no longer be applied.
UNKNOWN_OUTCOME_S: Final = 75.0
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_OPEN_WRITES: Final = struct.Struct("<q")
_TIME: Final = struct.Struct("<d")
_OPEN_WRITES_AT, _SENT_AT, _UNKNOWN_UNTIL_AT, _SLOTS_AT = 0, 8, 16, 64
_HEAD: Final = struct.Struct("<QLL")  # number, length, checksum
_BYTES: Final = _SLOTS_AT + 2 * SLOT_BYTES

log = structlog.get_logger()


class Tenure(msgspec.Struct, frozen=True):
    """One period in which a process held a Lease, or tried to acquire it.

    `acquired` and `transitions` are those of the Lease; `deadline` is in monotonic seconds.
    """

    acquired: str
    transitions: int
    deadline: float


class _Record(msgspec.Struct):
    identity: str = ""
    place: str = ""
    tenures: dict[str, Tenure] = {}


_decode: Final = msgspec.json.Decoder(_Record).decode


class StateFile:
    """The file of this process, and the state of its predecessor.

    Attributes:
        identity: identity of this process in Leases: that of the predecessor, if there is one.
        has_predecessor: whether the file has the state of a predecessor.
    """

    def __init__(self, descriptor: int, identity: str) -> None:
        """Use `open_state`. Takes over the descriptor, which is locked."""
        # On a full volume, the first write into a hole would end the process (SIGBUS).
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
        # Includes Leases of earlier processes that it did not take back.
        self._predecessor_tenures = previous.tenures if self.has_predecessor else {}
        self._last_sent_at = self._read_time(_SENT_AT)
        self._had_open_writes = self._open_writes() > 0
        self._unknown_until = self._read_time(_UNKNOWN_UNTIL_AT)
        self._record = _Record(self.identity, place, dict(self._predecessor_tenures))
        self._start_over()

    def close(self) -> None:
        """Close and unlock the file."""
        self._memory.close()
        os.close(self._descriptor)

    # State of this process ----------------------------------------------------------------

    def begin_write(self) -> None:
        """Record that a write is about to be sent."""
        _TIME.pack_into(self._memory, _SENT_AT, clock.monotonic())
        _OPEN_WRITES.pack_into(self._memory, _OPEN_WRITES_AT, self._open_writes() + 1)

    def end_write(self, *, outcome_known: bool) -> None:
        """Record that a write has ended, and whether its response shows the outcome."""
        if not outcome_known:
            _TIME.pack_into(self._memory, _UNKNOWN_UNTIL_AT, clock.monotonic() + UNKNOWN_OUTCOME_S)
        _OPEN_WRITES.pack_into(self._memory, _OPEN_WRITES_AT, self._open_writes() - 1)

    def record_tenure(self, lease: str, acquired: str, transitions: int, deadline: float) -> None:
        """Record that this process holds a Lease, or tries to acquire it, until `deadline`."""
        self._record.tenures[lease] = Tenure(acquired, transitions, deadline)
        self._save()

    def invalidate(self) -> None:
        """Invalidate the state: no successor may use it."""
        self._record.place = ""
        self._save()

    # State of the predecessor -------------------------------------------------------------

    def free_at(
        self, lease: str, acquired: str | None, transitions: int | None, request_s: float
    ) -> float | None:
        """Monotonic second from which this process may take the predecessor's Lease back.

        None if it must wait as for any other Lease. `acquired` and `transitions` are those of the
        Lease now; `request_s` is the request timeout.
        """
        previous = self._predecessor_tenures.get(lease)
        if previous is None or (previous.acquired, previous.transitions) != (acquired, transitions):
            return None
        # By then another process may hold it, in a store that was restored since.
        if clock.monotonic() >= previous.deadline + request_s:
            return None
        open_until = self._last_sent_at + request_s if self._had_open_writes else float("-inf")
        return max(open_until, self._unknown_until)

    def _start_over(self) -> None:
        """Carry the predecessor's state over: this process may be killed at any line."""
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
        # If this is interrupted, the checksum does not match, and the other slot is used.
        _HEAD.pack_into(self._memory, start, 0, 0, 1)
        self._memory[start + _HEAD.size : start + _HEAD.size + len(raw)] = raw
        _HEAD.pack_into(self._memory, start, self._number, len(raw), zlib.crc32(raw))


def open_state(folder: Path | None, service: str, identity: str) -> StateFile | None:
    """Open the state file of a service; None without a folder, or if another process locks it.

    Args:
        folder: on a volume that outlives the container.
        service: short name.
        identity: identity of this process, unless there is a predecessor.
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
    """Identify this file and this boot of the machine; "" if the boot ID is not known."""
    status = os.fstat(descriptor)
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return f"{boot}/{status.st_dev}/{status.st_ino}" if boot else ""


def _is_same_pod(previous: str, identity: str) -> bool:
    """Whether two identities differ at most in process ID and random part."""
    return previous == identity or (
        bool(previous) and previous.rsplit("_", 2)[0] == identity.rsplit("_", 2)[0]
    )
