"""In which namespaces jobs are managed, read from the webhook configurations.

`managedJobsNamespaceSelector` is a setting of the services, which the command cannot read; the
webhook configurations have the same selector (`deploy/namespaces`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pydantic

from rackgate.api import resources as kinds
from rackgate.api.names import UNMANAGED_NAMESPACES
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, NotFoundError
from rackgate.runtime.namespaces import NamespaceSelector, Selectors
from rackgate.wire import core
from rackgate_cli.cluster.lists import list_decoded

_CONFIGURATION: Final = "rackgate-mutating."
_SUFFIX: Final = ".mutate.rackgate.dev"


class _Webhook(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace_selector: dict[str, Any] | None = None


class _Configuration(msgspec.Struct, frozen=True):
    metadata: core.Meta = core.Meta()
    webhooks: tuple[_Webhook, ...] | None = None


class _Configurations(msgspec.Struct, frozen=True):
    items: tuple[_Configuration, ...] | None = None


async def selectors(client: Client) -> Selectors:
    """Selectors of the job webhooks by plural of the kind, without those that select everything.

    Returns:
        An empty mapping if the configurations may not be read or cannot be decoded.
    """
    try:
        raw = await client.get(kinds.MUTATING_CONFIGS.path())
        listed = msgspec.json.decode(raw, type=_Configurations).items or ()
    except (ForbiddenError, NotFoundError, msgspec.DecodeError):
        return {}
    found: dict[str, NamespaceSelector] = {}
    for configuration in listed:
        name = configuration.metadata.name
        if not name.startswith(_CONFIGURATION):
            continue
        unmanaged = {*UNMANAGED_NAMESPACES, name.removeprefix(_CONFIGURATION)}
        for webhook in configuration.webhooks or ():
            plural = webhook.name.removesuffix(_SUFFIX)
            try:
                selector = NamespaceSelector.of(webhook.namespace_selector or {}, unmanaged)
            except pydantic.ValidationError:
                continue
            if plural != webhook.name and not selector.everything:
                found[plural] = selector
    return found


async def unmanaged(client: Client, namespace: str | None) -> frozenset[str]:
    """Names of the namespaces whose jobs are not managed.

    Args:
        client: only reads.
        namespace: only this one; None for all.

    Returns:
        An empty set if namespaces may not be read.
    """
    jobs = (await selectors(client)).get(kinds.JOBS.plural)
    if jobs is None:
        return frozenset()
    decode = msgspec.json.Decoder(core.Namespace).decode
    try:
        if namespace is not None:
            found = [decode(await client.get(kinds.NAMESPACES.path(None, namespace)))]
        else:
            found = await list_decoded(client, kinds.NAMESPACES, decode)
    except (ForbiddenError, NotFoundError, msgspec.DecodeError):
        return frozenset()
    return frozenset(one.metadata.name for one in found if not jobs.selects(one.metadata.labels))
