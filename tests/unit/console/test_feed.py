"""The feed: what a viewer has is always what the tables have, whatever they missed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rackgate_console import feed as feed_module
from rackgate_console.feed import Feed, Row
from rackgate_console.viewers.access import (
    DOMAINS,
    EVERYTHING,
    HOSTS,
    PLAIN_TOPOLOGIES,
    QUEUES,
    TOPOLOGIES,
    WORKLOADS,
    Access,
)

ACCESS = (
    EVERYTHING,
    Access(queues=True),
    Access(namespaces=frozenset({"a"})),
    Access(nodes=True, namespaces=frozenset({"b"})),
    Access(),
)
Tables = dict[str, dict[str, Any]]


def expected(feed: Feed, access: Access) -> Tables:
    """The slow answer: each row is looked at by itself."""
    found: Tables = {WORKLOADS: {}, QUEUES: {}}
    if access.nodes:
        found[HOSTS] = _bodies(feed, HOSTS)
        found[TOPOLOGIES] = _bodies(feed, TOPOLOGIES)
    elif access.queues:
        found[TOPOLOGIES] = _bodies(feed, PLAIN_TOPOLOGIES)
    if access.nodes or access.queues:
        found[DOMAINS] = _bodies(feed, DOMAINS)
    for table in (QUEUES, WORKLOADS):
        for key, row in feed.table(table).items():
            allowed = access.namespaces is None or row.namespace in access.namespaces
            if allowed if row.namespace else access.queues:
                found[table][key] = json.loads(row.body)
    return found


def _bodies(feed: Feed, table: str) -> dict[str, Any]:
    return {key: json.loads(row.body) for key, row in feed.table(table).items()}


class Page:
    """A page that takes every answer it gets."""

    def __init__(self, access: Access) -> None:
        self.access, self.number = access, 0
        self.tables: Tables = {}

    def read(self, feed: Feed) -> None:
        changes = feed.changes(self.number, self.access) if self.number else None
        if changes is None:
            found = json.loads(feed.everything(self.access))
            self.tables = found["tables"]
        else:
            found = json.loads(changes)
            for name, rows in found["tables"].items():
                for key, row in rows.items():
                    if row is None:
                        self.tables[name].pop(key, None)
                    else:
                        self.tables[name][key] = row
        self.number = found["seq"]


# The namespace of a row follows from its key, as with objects.
NAMESPACES = {"x": "", "a/x": "a", "b/x": "b", 'q"\\\u202e<b>': ""}
tables = st.sampled_from((TOPOLOGIES, PLAIN_TOPOLOGIES, DOMAINS, HOSTS, QUEUES, WORKLOADS))
bodies = st.none() | st.integers(0, 3).map(lambda value: b"%d" % value)
changed = st.dictionaries(st.sampled_from(tuple(NAMESPACES)), bodies, max_size=3).map(
    lambda found: {
        key: None if body is None else Row(body, NAMESPACES[key]) for key, body in found.items()
    }
)


class Feeds(RuleBasedStateMachine):
    """Pages with different rights that read at different times."""

    @initialize()
    def begin(self) -> None:
        self.feed = Feed()
        self.pages = [Page(access) for access in ACCESS]
        self.feed.commit("t")

    @rule(table=tables, changes=changed)
    def update(self, table: str, changes: dict[str, Row | None]) -> None:
        self.feed.update(table, changes)
        self.feed.commit("t")

    @rule(table=tables, changes=changed)
    def replace(self, table: str, changes: dict[str, Row | None]) -> None:
        self.feed.replace(table, {key: row for key, row in changes.items() if row is not None})
        self.feed.commit("t")

    @rule(number=st.integers(0, len(ACCESS) - 1))
    def read(self, number: int) -> None:
        page = self.pages[number]
        page.read(self.feed)
        assert page.tables == expected(self.feed, page.access)

    @invariant()
    def everything_is_what_the_rights_allow(self) -> None:
        for access in ACCESS:
            found = json.loads(self.feed.everything(access))
            assert found["tables"] == expected(self.feed, access)


TestFeeds = Feeds.TestCase
TestFeeds.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)


def test_the_namespace_of_a_row_never_changes() -> None:
    feed = Feed()
    feed.update(WORKLOADS, {"k": Row(b"1", "a")})
    with pytest.raises(ValueError, match="workloads k: namespace a, now b"):
        feed.update(WORKLOADS, {"k": Row(b"1", "b")})


def test_equal_rows_are_no_change() -> None:
    feed = Feed()
    feed.update(QUEUES, {"k": Row(b"1")})
    assert feed.commit("t")
    feed.replace(QUEUES, {"k": Row(b"1")})
    assert not feed.commit("t")
    assert feed.number == 1


def test_a_page_that_is_too_far_behind_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "LOG_ROWS", 4)
    feed = Feed()
    feed.update(QUEUES, {"k": Row(b"0")})
    feed.commit("t")
    page = Page(EVERYTHING)
    page.read(feed)
    for value in range(10):
        feed.update(QUEUES, {f"k{value}": Row(b"%d" % value)})
        feed.commit("t")
    assert feed.changes(page.number, EVERYTHING) is None
    assert feed.changes(feed.number - 2, EVERYTHING) is not None
    page.read(feed)
    assert page.tables == expected(feed, EVERYTHING)


def test_answers_for_equal_rights_are_encoded_once() -> None:
    feed = Feed()
    feed.update(QUEUES, {"k": Row(b"1")})
    feed.commit("t")
    assert feed.everything(Access(queues=True)) is feed.everything(Access(queues=True))
    feed.update(QUEUES, {"k": Row(b"2")})
    feed.commit("t")
    assert feed.changes(1, EVERYTHING) is feed.changes(1, EVERYTHING)


def test_kept_answers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "ANSWER_BYTES", 1000)
    feed = Feed()
    feed.update(QUEUES, {str(number): Row(b"1") for number in range(100)})
    feed.commit("t")
    for number in range(20):
        feed.everything(Access(queues=True, namespaces=frozenset({str(number)})))
    assert feed.kept_bytes <= 2000
