"""Read a ConversionReview, convert its objects, and encode the answer.

The API server sends all objects of a list in one review. They are converted one at a time, so that
memory holds one decoded object, and the caller may let other reviews run in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from rackgate.api.conversion import (
    KUEUE_VERSIONS,
    MAX_DOMAINS_BYTES,
    ConversionError,
    Object,
    convert,
    domains_bytes,
)
from rackgate.wire.depth import DeepParts
from rackgate_webhook.admission.review import MAX_MESSAGE, Answer, ReviewError

API_VERSION: Final = "apiextensions.k8s.io/v1"
# All objects of a list: kubectl asks for pages of 500, older informers for all at once.
MAX_OBJECTS: Final = 50_000
MAX_CONVERSION_BYTES: Final = 24 * 2**20
# An answer is larger than its request by this at most: Workloads after that keep their slices.
MAX_EXPANSION_BYTES: Final = 32 * 2**20
OPERATION: Final = "CONVERT"  # in metrics


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """The request of a ConversionReview.

    Attributes:
        uid: repeated in the response.
        api_version: in which the objects are wanted.
        objects: each as JSON.
        restore: puts back what is nested too deeply to be decoded: users can create such pod
            templates, and one of them must not fail the list that it is in.
    """

    uid: str
    api_version: str
    objects: list[msgspec.Raw]
    restore: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True, slots=True)
class Conversion:
    """The conversion of one object.

    Attributes:
        size: bytes of JSON that the converted object takes, at most.
        run: converts it, in time that grows with its size. Raises ConversionError, which names
            the index of the object and the field.
    """

    size: int
    run: Callable[[], msgspec.Raw]


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    desired_api_version: str = msgspec.field(name="desiredAPIVersion")
    objects: list[msgspec.Raw] = []


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: msgspec.Raw = msgspec.Raw(b"null")


_envelopes: Final = msgspec.json.Decoder(_Envelope)
_requests: Final = msgspec.json.Decoder(_Request)
_objects: Final = msgspec.json.Decoder(dict[str, Any])


def decode_conversion(body: bytes) -> ConversionRequest:
    """Read a ConversionReview.

    Raises:
        ReviewError: not JSON, another version, fields missing, or too many objects.
    """
    restore: Callable[[bytes], bytes] = bytes
    try:
        try:
            envelope = _envelopes.decode(body)
        except RecursionError:
            deep = DeepParts(body)
            envelope, restore = _envelopes.decode(deep.text), deep.restore
        if (envelope.api_version, envelope.kind) != (API_VERSION, "ConversionReview"):
            found = f'"{envelope.api_version[:64]}" "{envelope.kind[:64]}"'
            raise ReviewError(f'expected "{API_VERSION}" "ConversionReview", found {found}')
        request = _requests.decode(envelope.request)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReviewError(f"not a ConversionReview: {str(error)[:200]}") from error
    if not request.uid:
        raise ReviewError("request.uid is empty")
    wanted = request.desired_api_version
    if wanted not in KUEUE_VERSIONS:
        known = " or ".join(KUEUE_VERSIONS)
        raise ReviewError(f'request.desiredAPIVersion: "{wanted[:64]}": must be {known}')
    if len(request.objects) > MAX_OBJECTS:
        found = str(len(request.objects))
        raise ReviewError(f"request.objects: {found} objects: must be {MAX_OBJECTS} at most")
    return ConversionRequest(request.uid, wanted, request.objects, restore)


def conversions(request: ConversionRequest) -> Iterator[Conversion]:
    """The conversion of each object into the desired version.

    Raises:
        ConversionError: an object cannot be converted; names its index, and the field.
    """
    room = MAX_EXPANSION_BYTES
    for index, raw in enumerate(request.objects):
        with _errors_of(index):
            obj = _objects.decode(raw)
            expansion = domains_bytes(obj, request.api_version)
        limit = min(room, MAX_DOMAINS_BYTES)
        if expansion > limit:
            expansion = 0  # keeps its slices
        room -= expansion
        yield Conversion(len(raw) + expansion, partial(_converted, request, index, obj, limit))


def _converted(request: ConversionRequest, index: int, obj: Object, limit: int) -> msgspec.Raw:
    with _errors_of(index):
        found = convert(obj, request.api_version, limit)
        return msgspec.Raw(request.restore(msgspec.json.encode(found)))


@contextmanager
def _errors_of(index: int) -> Iterator[None]:
    try:
        yield
    except ConversionError as error:
        raise ConversionError(f"objects[{index}].{error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConversionError(f"objects[{index}]: {str(error)[:200]}") from error


def conversion_answer(request: ConversionRequest, found: list[msgspec.Raw], failure: str) -> Answer:
    """The ConversionReview that answers a request.

    Args:
        request: that is answered.
        found: the converted objects.
        failure: why there are none; empty for success.
    """
    result: dict[str, Any] = {"status": "Success"}
    if failure:
        message = failure if len(failure) <= MAX_MESSAGE else f"{failure[: MAX_MESSAGE - 1]}…"
        result = {"status": "Failure", "code": 422, "reason": "Invalid", "message": message}
    response = {
        "uid": request.uid,
        "convertedObjects": [] if failure else found,
        "result": result,
    }
    answer = {"apiVersion": API_VERSION, "kind": "ConversionReview", "response": response}
    body = msgspec.json.encode(answer)
    return Answer(200, body, OPERATION, "", allowed=not failure, reason=failure)
