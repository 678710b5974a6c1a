"""What is read of watch lines and objects before anybody decodes them, and of versions."""

from __future__ import annotations

from typing import Final

import msgspec

from rackgate.wire.core import Meta
from rackgate.wire.depth import tolerant

# The version that is known of a quiet collection is minutes old: etcd tells its progress every ten
# minutes by default. To come so far in that time, a cluster would have to write 16,000 times a
# second. The manual of etcd bumps by 1,000,000,000.
MAX_VERSION_STEP: Final = 10_000_000


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch. ERROR carries a Status: look at the type first, decode second."""

    type: str
    object: msgspec.Raw


class _MetadataOnly(msgspec.Struct, frozen=True):
    """An object of which only the metadata could be read, or needs to be."""

    metadata: Meta = Meta()


_decode_event = tolerant(msgspec.json.Decoder(WatchEvent).decode)
_decode_metadata = tolerant(msgspec.json.Decoder(_MetadataOnly).decode)


def read_event(line: bytes) -> WatchEvent:
    """One line of a watch.

    Raises:
        ValueError: it is no event; text that is not UTF-8 is no `DecodeError`, but this as well.
    """
    return _decode_event(line)


def read_meta(raw: bytes | msgspec.Raw) -> Meta | None:
    """The metadata of an object; None where it cannot be read."""
    try:
        return _decode_metadata(raw).metadata
    except ValueError:
        return None


def is_earlier(version: str, other: str) -> bool:
    """Whether a version is earlier than another; of opaque ones nobody can tell."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def is_version_leap(version: str, other: str) -> bool:
    """Whether a version is later than another by more than a cluster writes between two looks."""
    return is_earlier(other, version) and int(version) - int(other) > MAX_VERSION_STEP
