"""Tables of rows, and what changed in them, encoded once for all viewers. Pure.

- `replace` and `update` set rows of a table, already encoded; a row with equal bytes is no change.
- `commit` closes the changes since the last one as a batch with the next number.
- `everything` and `changes` encode for a viewer: the rows that their rights allow. A viewer is only
  a number, the last batch that was sent, so a slow one costs no memory: it gets several batches
  together. One that is too far behind gets everything.

Invariant: everything at batch N, then the changes since N, equals everything now.
Memory: rows once, the changed rows of the last batches (`LOG_ROWS`), and the last encoded answers
(`ANSWER_BYTES`), for any number of viewers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from rackgate_console.viewers.access import QUEUES, TABLES, WORKLOADS, Access

# Rows of all batches that are kept for viewers who lag behind.
LOG_ROWS: Final = 50_000
# Bytes of answers that are kept, because viewers with equal rights get equal answers.
ANSWER_BYTES: Final = 64 * 2**20

_encode: Final = msgspec.json.Encoder().encode
_NAMESPACED: Final = frozenset({QUEUES, WORKLOADS})


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        body: JSON.
        namespace: of its object; "" if it has none.
    """

    body: bytes
    namespace: str = ""


# Table, key and row; None: it is gone. The namespace is that of the row before it was gone.
Change: TypeAlias = tuple[str, str, bytes | None, str]


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    time: str
    changes: tuple[Change, ...]


class Feed:
    """The tables.

    Attributes:
        number: of the last batch.
        time: RFC 3339 time of that batch.
    """

    def __init__(self) -> None:
        self.number = 0
        self.time = ""
        self._tables: dict[str, dict[str, Row]] = {name: {} for name in TABLES}
        self._open: dict[tuple[str, str], Change] = {}
        self._log: deque[_Batch] = deque()
        self._log_rows = 0
        self._answers: OrderedDict[tuple[Access, int, int], bytes] = OrderedDict()
        self._answer_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the answers that are kept."""
        return self._answer_bytes

    def table(self, name: str) -> Mapping[str, Row]:
        """The rows of a table, by key; a live view."""
        return self._tables[name]

    def replace(self, table: str, rows: Mapping[str, Row]) -> None:
        """Set all rows of a table."""
        known = self._tables[table]
        self.update(table, dict.fromkeys(known.keys() - rows.keys()))
        self.update(table, rows)

    def update(self, table: str, rows: Mapping[str, Row | None]) -> None:
        """Set some rows of a table; None: the row is gone.

        Raises:
            ValueError: a row has another namespace than before: who had it would keep it.
        """
        known = self._tables[table]
        for key, row in rows.items():
            old = known.get(key)
            if row == old:
                continue
            if row is not None and old is not None and row.namespace != old.namespace:
                raise ValueError(f"{table} {key}: namespace {old.namespace}, now {row.namespace}")
            if row is None:
                del known[key]
                namespace = old.namespace if old is not None else ""
                self._open[table, key] = (table, key, None, namespace)
            else:
                known[key] = row
                self._open[table, key] = (table, key, row.body, row.namespace)

    def commit(self, time: str) -> bool:
        """Close a batch; returns whether anything changed."""
        if not self._open and self.number:
            return False
        self.number, self.time = self.number + 1, time
        self._log.append(_Batch(self.number, time, tuple(self._open.values())))
        self._log_rows += len(self._open)
        self._open.clear()
        while self._log_rows > LOG_ROWS and len(self._log) > 1:
            self._log_rows -= len(self._log.popleft().changes)
        return True

    def everything(self, access: Access) -> bytes:
        """JSON of all rows that a viewer may see."""
        return self._answer((access, 0, self.number), self._all_changes())

    def changes(self, since: int, access: Access) -> bytes | None:
        """JSON of what changed after a batch; None if that is not known any more.

        Args:
            since: number of the last batch that the viewer has.
            access: rights of the viewer.
        """
        if not self._log or since < self._log[0].number - 1 or since > self.number:
            return None
        if since == self.number:
            return None if since == 0 else self._encoded(access, ())
        changes = (one for batch in self._log if batch.number > since for one in batch.changes)
        return self._answer((access, since, self.number), changes)

    def _all_changes(self) -> Iterator[Change]:
        for table, rows in self._tables.items():
            for key, row in rows.items():
                yield table, key, row.body, row.namespace

    def _answer(self, key: tuple[Access, int, int], changes: Iterable[Change]) -> bytes:
        known = self._answers.get(key)
        if known is not None:
            self._answers.move_to_end(key)
            return known
        answer = self._encoded(key[0], changes)
        self._answers[key] = answer
        self._answer_bytes += len(answer)
        while self._answer_bytes > ANSWER_BYTES and len(self._answers) > 1:
            self._answer_bytes -= len(self._answers.popitem(last=False)[1])
        return answer

    def _encoded(self, access: Access, changes: Iterable[Change]) -> bytes:
        shown: dict[str, dict[str, bytes]] = {
            name: {} for table in TABLES if (name := access.shown_as(table)) is not None
        }
        names = {table: access.shown_as(table) for table in TABLES}
        for table, key, body, namespace in changes:
            name = names[table]
            if name is None or (table in _NAMESPACED and not access.may_see(namespace)):
                continue
            shown[name][key] = b"null" if body is None else body
        tables = b",".join(
            b'"%s":{%s}' % (name.encode(), _members(rows)) for name, rows in shown.items()
        )
        head = b'{"seq":%d,"time":%s,"tables":{' % (self.number, _encode(self.time))
        return head + tables + b"}}"


def _members(rows: Mapping[str, bytes]) -> bytes:
    return b",".join(_encode(key) + b":" + body for key, body in rows.items())
