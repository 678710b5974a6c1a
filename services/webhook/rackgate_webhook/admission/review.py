"""AdmissionReview v1: decodes requests and encodes responses."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rackgate.jobframework.errors import FieldError, MalformedError
from rackgate.jobframework.generic_job import GenericJob
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.registry import KINDS

API_VERSION: Final = "admission.k8s.io/v1"
MAX_MESSAGE: Final = 1024
MAX_WARNING: Final = 256  # characters, the API server cuts longer ones
OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})


class ReviewError(ValueError):
    """The request is not an AdmissionReview v1. The response is HTTP 400 with this text."""


@dataclass(frozen=True, slots=True)
class Review:
    """One admission request.

    Attributes:
        uid: repeated in the response.
        kind: `group/kind`, `/kind` for the core group.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        object: the new object; empty on DELETE.
        old_object: the stored object; empty on CREATE.
        sub_resource: empty for the object itself.
        username: the user who sent the request.
    """

    uid: str
    kind: str
    operation: str
    object: Mapping[str, Any]
    old_object: Mapping[str, Any]
    sub_resource: str = ""
    username: str = ""


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """The answer to a review: allowed unless there are errors.

    Attributes:
        operations: JSON patch, empty for none; only from a mutation.
        warnings: shown to the user by the client.
        errors: why it is rejected.
    """

    operations: list[JsonPatchOp] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)

    @property
    def allowed(self) -> bool:
        """Whether there are no errors."""
        return not self.errors


Decide = Callable[[Review], AdmissionResponse]
# Reads objects before it decides.
AsyncDecide = Callable[[Review], Awaitable[AdmissionResponse]]

_MALFORMED_ERRORS: Final = (MalformedError, msgspec.ValidationError, RecursionError)


def kind_of_review(review: Review) -> GenericJob[Any] | None:
    """The kind of job that a review is about; None for other objects."""
    group, _, kind = review.kind.partition("/")
    found = KINDS.get(kind)
    return found if found is not None and group == found.resource.group else None


class _Kind(msgspec.Struct, frozen=True):
    group: str = ""
    kind: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    kind: _Kind
    operation: str
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    sub_resource: str = ""
    user_info: _User = _User()


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: msgspec.Raw = msgspec.Raw(b"null")


_envelopes: Final = msgspec.json.Decoder(_Envelope)
_requests: Final = msgspec.json.Decoder(_Request)


def decode_review(body: bytes) -> Review:
    """Read an AdmissionReview.

    Raises:
        ReviewError: not JSON, nested too deeply, another version, or fields missing.
    """
    try:
        envelope = _envelopes.decode(body)
        if (envelope.api_version, envelope.kind) != (API_VERSION, "AdmissionReview"):
            found = f'"{envelope.api_version[:64]}" "{envelope.kind[:64]}"'
            raise ReviewError(f'expected "{API_VERSION}" "AdmissionReview", found {found}')
        request = _requests.decode(envelope.request)
    except RecursionError as error:
        raise ReviewError("the review is nested too deeply") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReviewError(f"not an AdmissionReview: {str(error)[:200]}") from error
    if not request.uid:
        raise ReviewError("request.uid is empty")
    if request.operation not in OPERATIONS:
        raise ReviewError(f'request.operation: unknown operation "{request.operation[:32]}"')
    if request.operation in ("CREATE", "UPDATE") and request.object is None:
        raise ReviewError(f"request.object is missing in a {request.operation}")
    return Review(
        uid=request.uid,
        kind=f"{request.kind.group}/{request.kind.kind}",
        operation=request.operation,
        object=request.object or {},
        old_object=request.old_object or {},
        sub_resource=request.sub_resource,
        username=request.user_info.username,
    )


def encode_response(uid: str, admission_response: AdmissionResponse) -> bytes:
    """The AdmissionReview that answers request `uid`."""
    response: dict[str, Any] = {"uid": uid, "allowed": admission_response.allowed}
    if admission_response.allowed and admission_response.operations:
        patch = msgspec.json.encode(admission_response.operations)
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(patch).decode("ascii")
    if admission_response.warnings:
        response["warnings"] = [warning[:MAX_WARNING] for warning in admission_response.warnings]
    if not admission_response.allowed:
        response["status"] = _status(admission_response.errors)
    answer = {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
    return msgspec.json.encode(answer)


def _status(errors: list[FieldError]) -> dict[str, Any]:
    message = ", ".join(str(error) for error in errors)
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 1] + "…"
    causes = [
        # Clients print the field in front of the message.
        {"reason": "FieldValueInvalid", "field": error.path, "message": error.advice}
        for error in errors
    ]
    return {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": message,
        "details": {"causes": causes},
    }


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response, with facts for metrics and logs.

    Attributes:
        status: 200 with an AdmissionReview as body, 400 with a reason in plain text.
        operation: of the request, "none" when it could not be read.
        reason: why it was rejected; empty when allowed.
    """

    status: int
    body: bytes
    operation: str
    kind: str
    allowed: bool
    reason: str = ""


def answer_review(body: bytes, decide: Decide) -> Answer:
    """Answer one AdmissionReview. If it cannot be decoded, the status is 400 with the reason."""
    try:
        review = decode_review(body)
    except ReviewError as error:
        return bad_request(str(error), "none", "")
    try:
        admission_response = decide(review)
    except _MALFORMED_ERRORS as error:
        return _malformed_object(review, error)
    return _answer(review, admission_response)


async def answer_review_async(body: bytes, decide: AsyncDecide) -> Answer:
    """As `answer_review`, for reviews that read objects before they decide."""
    try:
        review = decode_review(body)
    except ReviewError as error:
        return bad_request(str(error), "none", "")
    try:
        admission_response = await decide(review)
    except _MALFORMED_ERRORS as error:
        return _malformed_object(review, error)
    return _answer(review, admission_response)


def _malformed_object(review: Review, error: Exception) -> Answer:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return bad_request(f"request.object: {reason}", review.operation, review.kind)


def _answer(review: Review, admission_response: AdmissionResponse) -> Answer:
    return Answer(
        200,
        encode_response(review.uid, admission_response),
        review.operation,
        review.kind,
        admission_response.allowed,
        ", ".join(error.path for error in admission_response.errors),
    )


def bad_request(reason: str, operation: str, kind: str) -> Answer:
    """An answer to a request that cannot be read: HTTP 400 with the reason."""
    body = reason.encode("utf-8", "backslashreplace") + b"\n"
    return Answer(400, body, operation, kind, allowed=False, reason=reason)
