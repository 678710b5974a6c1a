"""Follows the Secret and the registrations: a watch each, so that nobody has to ask again."""

from __future__ import annotations

import asyncio

import msgspec

from rackgate.api.resources import MUTATING_CONFIGS, SECRETS, VALIDATING_CONFIGS, Resource
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.runtime.tasks import spawn
from rackgate.wire.core import Meta, View
from rackgate_webhook.settings import CertificateSettings


class _Object(View, frozen=True):
    """What is needed of a followed object; a Secret's data is not even decoded."""

    metadata: Meta = Meta()


_decode = msgspec.json.Decoder(_Object).decode


async def watch_secret_and_configurations(
    client: Client, settings: CertificateSettings, changed: asyncio.Event
) -> None:
    """Set `changed` whenever Secret or registrations come, change or go, until cancelled."""
    targets: list[tuple[Resource, str | None, str]] = [
        (SECRETS, settings.namespace, settings.secret_name)
    ]
    for resource in (MUTATING_CONFIGS, VALIDATING_CONFIGS):
        targets += [(resource, None, name) for name in settings.configuration_names]
    async with asyncio.TaskGroup() as group:
        for resource, namespace, name in targets:
            informer = Informer(
                client,
                resource,
                _decode,
                on_upsert=lambda _before, _now: changed.set(),
                on_delete=lambda _gone: changed.set(),
                namespace=namespace,
                params={"fieldSelector": f"metadata.name={name}"},
            )
            spawn(group, informer.run(), f"watch {resource.full_name} {name}")
