"""Pages of a list, as the API server answers them."""

from __future__ import annotations

import msgspec

from rackgate.wire.depth import tolerant


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Version of a list, and the token for its next page: "" after the last one."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, frozen=True):
    """A page of a list. Its items refer to the page's bytes and keep them in memory."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


decode_page = tolerant(msgspec.json.Decoder(Page).decode)


def page_items(body: bytes) -> list[msgspec.Raw]:
    """The items of a page, to be decoded one at a time: decoded objects take ten times the memory.

    Raises:
        msgspec.DecodeError: it is not a list.
    """
    return decode_page(body).items or []
