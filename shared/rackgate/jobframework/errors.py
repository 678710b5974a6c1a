"""Field errors of a rejection, and the error for a malformed object."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SHOWN = 96


def shown(value: object) -> str:
    """A value found in an object, in double quotes, cut to 96 characters."""
    text = str(value)
    if len(text) > MAX_SHOWN:
        text = text[: MAX_SHOWN - 1] + "…"
    return f'"{text}"'


@dataclass(frozen=True, slots=True)
class FieldError:
    """One rejected field.

    Attributes:
        path: as in the manifest, for example `spec.template.metadata.labels[k]`.
        problem: what is wrong with the value.
        help: how to fix it; may be empty.
    """

    path: str
    problem: str
    help: str = ""

    @property
    def advice(self) -> str:
        """`problem; help`."""
        return f"{self.problem}; {self.help}" if self.help else self.problem

    def __str__(self) -> str:
        """`path: problem; help`."""
        return f"{self.path}: {self.advice}" if self.path else self.advice


class MalformedError(ValueError):
    """An object with a shape that the API server never sends.

    Attributes:
        path: where the unexpected type was found.
    """

    def __init__(self, path: str, wanted: str, found: object) -> None:
        super().__init__(f"{path}: expected {wanted}, found {type(found).__name__}")
        self.path = path
