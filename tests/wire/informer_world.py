"""An informer on pods of a fake API server, with a diary of what it told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from rackgate.api.resources import PODS
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.runtime.backoff import Backoff
from rackgate.wire.core import Pod
from tests.support.apiserver import FakeApiServer

decode_pod = msgspec.json.Decoder(Pod).decode


def pod(name: str, uid: str = "", **labels: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": "ns", "labels": labels}
    return {"metadata": {**meta, "uid": uid} if uid else meta, "spec": {}}


class Followed:
    """An informer on pods with a diary: `+name` new, `~name` changed, `-name` deleted."""

    def __init__(self, client: Client, **options: Any) -> None:
        self.diary: list[str] = []
        options.setdefault("backoff", Backoff(base_s=0.01, cap_s=0.05))
        self.informer: Informer[Pod] = Informer(
            client,
            PODS,
            options.pop("decode", decode_pod),
            on_upsert=lambda old, new: self.diary.append(
                f"{'~' if old else '+'}{new.metadata.name}"
            ),
            on_delete=lambda old: self.diary.append(f"-{old.metadata.name}"),
            **options,
        )

    @property
    def names(self) -> set[str]:
        return {item.metadata.name for item in self.informer.store.values()}


@asynccontextmanager
async def following(client: Client, **options: Any) -> AsyncIterator[Followed]:
    """An informer that has listed once; it must not have ended by itself."""
    followed = Followed(client, **options)
    task = asyncio.create_task(followed.informer.run())
    try:
        async with asyncio.timeout(60):
            await followed.informer.synced.wait()
        yield followed
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled(), task.exception()


def watches(server: FakeApiServer) -> int:
    return sum(request.watch for request in server.requests)


def lists(server: FakeApiServer) -> int:
    whole = (request for request in server.requests if request.query.get("limit") != "1")
    return sum(not request.watch for request in whole)
