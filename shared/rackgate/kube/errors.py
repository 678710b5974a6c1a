"""One family of errors: what the API server answered, or that it did not answer.

KubeError                    any refusal; carries status, reason, message, verb, path
  BadRequestError            400
  UnauthorizedError          401
  ForbiddenError             403
  NotFoundError              404
  ConflictError              409: the object moved on, read it again and decide again
    AlreadyExistsError       409 with reason AlreadyExists
  GoneError                  410: the version is too old, list again
  PayloadTooLargeError       413, or 500 with the store's words for it
  UnprocessableError         422: invalid, or a failed `test` of a JSON patch
  TooManyRequestsError       429 after the bounded tries
  ServerError                5xx
  TransportError             no answer; a write may or may not have been applied
    LineTooLongError         a watch line beyond the limit
"""

from __future__ import annotations

from typing import Final

import msgspec


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The part of `Status.details` that is read."""

    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The API server's `Status` object."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class KubeError(Exception):
    """The API server refused a call.

    Attributes:
        verb: HTTP method, or `WATCH`.
        path: URL path without the query.
        status: HTTP status; 0 when there was no answer.
        reason: machine-readable reason of the Status object ("NotFound"), or "".
        message: the server's words.
    """

    def __init__(
        self, verb: str, path: str, *, status: int = 0, reason: str = "", message: str = ""
    ) -> None:
        outcome = f"{status or 'no answer'} {reason}".rstrip()
        super().__init__(f"{verb} {path}: {outcome}: {message}")
        self.verb, self.path = verb, path
        self.status, self.reason, self.message = status, reason, message


class BadRequestError(KubeError):
    """400: the server cannot read the request."""


class UnauthorizedError(KubeError):
    """401: the credentials are not valid, also after reading them again."""


class ForbiddenError(KubeError):
    """403: not allowed by RBAC, or refused by an admission policy."""


class NotFoundError(KubeError):
    """404: no such object, or no such resource."""


class ConflictError(KubeError):
    """409: the object moved on. Read it again, decide again."""


class AlreadyExistsError(ConflictError):
    """409 of a create: the name is taken."""


class GoneError(KubeError):
    """410: the resourceVersion or the continue token is too old. List again."""


class PayloadTooLargeError(KubeError):
    """413: the request body is beyond the server's limit, or the object beyond the store's."""


class UnprocessableError(KubeError):
    """422: the object is invalid, or the `test` of a JSON patch failed."""


class TooManyRequestsError(KubeError):
    """429: still throttled after waiting as often as the client may."""


class ServerError(KubeError):
    """5xx: the server, or a webhook behind it, failed."""


class TransportError(KubeError):
    """No answer. A write may have been applied: read before deciding again."""


class LineTooLongError(TransportError):
    """A watch line is longer than the limit; the stream cannot be followed."""


BY_STATUS: Final[dict[int, type[KubeError]]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: PayloadTooLargeError,
    422: UnprocessableError,
    429: TooManyRequestsError,
}

# What etcd and its client say; the API server passes it on as its own failure.
_TOO_LARGE: Final = ("request is too large", "message larger than max")

_decode_status = msgspec.json.Decoder(Status).decode


def parse_status(body: bytes | msgspec.Raw) -> Status:
    """The Status object in `body`; an empty one when it holds something else."""
    try:
        return _decode_status(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status(message=bytes(body)[:200].decode(errors="replace"))


def error_for(verb: str, path: str, status: int, body: bytes | msgspec.Raw) -> KubeError:
    """The error that fits an HTTP status of 400 or more and its body."""
    answer = parse_status(body)
    kind = BY_STATUS.get(status, ServerError if status >= 500 else KubeError)
    if status == 500 and any(text in answer.message for text in _TOO_LARGE):
        kind = PayloadTooLargeError
    if status == 409 and answer.reason == "AlreadyExists":
        kind = AlreadyExistsError
    return kind(verb, path, status=status, reason=answer.reason, message=answer.message)
