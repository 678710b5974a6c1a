"""A list of pods, against a server: what is there, and what is there no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rackgate.api.resources import PODS
from rackgate.runtime.tasks import start
from rackgate_ungater.informers import PodRelister
from rackgate_ungater.state_machine.gated_objects import GatedPod, PodUid
from tests.support.apiserver import FakeApiServer, Fault

KNOWN = {"team": ["uid-a", "uid-b", "uid-gone"], "other": ["uid-else"]}


class Heard:
    """A PodRelister, and what it told."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.seen: list[str] = []
        self.gone: list[tuple[str, int]] = []
        self.client = server.client()
        self.relister = PodRelister(
            self.client, {}, self._see, known=self._known, on_deleted=self._miss
        )

    def _see(self, row: GatedPod) -> None:
        self.seen.append(row.uid)

    def _known(self, namespace: str | None) -> list[PodUid]:
        names = [namespace] if namespace else list(KNOWN)
        return [PodUid(uid) for name in names for uid in KNOWN[name]]

    def _miss(self, uid: PodUid, version: int) -> None:
        self.gone.append((uid, version))


@pytest.fixture
async def heard() -> AsyncIterator[Heard]:
    async with FakeApiServer() as server:
        for name in ("a", "b"):
            server.put(
                PODS, {"metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"}}
            )
        found = Heard(server)
        task = start(found.relister.run(), name="relist")
        yield found
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await found.client.close()


@pytest.mark.requirement("UNG-18", "UNG-16")
async def test_pods_that_a_list_does_not_show_any_more_are_reported_with_its_version(
    heard: Heard,
) -> None:
    await heard.relister.relist("team")
    assert sorted(heard.seen) == ["uid-a", "uid-b"]
    ((uid, version),) = heard.gone
    assert uid == "uid-gone"
    assert version >= 100, "sights up to it are old"


async def test_a_list_of_one_namespace_says_nothing_about_others(heard: Heard) -> None:
    await heard.relister.relist("team")
    assert "uid-else" not in dict(heard.gone)
    await heard.relister.relist()
    assert "uid-else" in dict(heard.gone)


async def test_a_pod_that_cannot_be_read_is_not_taken_for_gone(heard: Heard) -> None:
    bad = {"metadata": {"name": "bad", "namespace": "team", "uid": "uid-gone"}, "spec": []}
    heard.server.put(PODS, bad)
    await heard.relister.relist("team")
    assert heard.gone == []


async def test_a_list_that_failed_says_that_nothing_is_gone(heard: Heard) -> None:
    heard.server.faults.append(Fault.status(500, "InternalError", method="GET"))
    await heard.relister.relist("team")
    assert len(heard.gone) == 1, "told once, by the list that was complete"
