"""The setting `managedJobsNamespaceSelector`: namespaces whose jobs are managed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, Self, TypeAlias

from pydantic import Field, ValidationError, field_validator, model_validator

from rackgate.runtime.settings import ConfigModel

_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PREFIX: Final = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
_KEY: Final = re.compile(f"{_PREFIX}{_NAME}")
_VALUE: Final = re.compile(f"({_NAME})?")
_OPERATORS_WITH_VALUES: Final = ("In", "NotIn")
# The API server sets it on every namespace.
_NAME_LABEL: Final = "kubernetes.io/metadata.name"


def _validate_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(
            f'"{key}" is not a label key; expected PREFIX/NAME or NAME, like team or a.b/team'
        )
    return key


def _validate_value(value: str) -> str:
    if not _VALUE.fullmatch(value):
        raise ValueError(
            f'"{value}" is not a label value; at most 63 letters, digits, "-", "_", "."'
        )
    return value


class NamespaceRequirement(ConfigModel):
    """One expression on the labels of a namespace."""

    key: str
    """Label key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """In and NotIn need values; Exists and DoesNotExist take none."""
    values: list[str] = Field(default_factory=list, max_length=1000)
    """Values for In and NotIn."""

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: str) -> str:
        return _validate_key(key)

    @field_validator("values")
    @classmethod
    def _check_each_value(cls, values: list[str]) -> list[str]:
        return [_validate_value(value) for value in values]

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if bool(self.values) != (self.operator in _OPERATORS_WITH_VALUES):
            requirement = (
                "needs at least one of values"
                if self.operator in _OPERATORS_WITH_VALUES
                else "takes no values"
            )
            raise ValueError(f"operator {self.operator} {requirement} (key {self.key})")
        return self


class NamespaceSelector(ConfigModel):
    """A label selector for namespaces. An empty selector selects all."""

    match_labels: dict[str, str] = Field(default_factory=dict, max_length=100)
    """Labels and values that a namespace must have."""
    match_expressions: list[NamespaceRequirement] = Field(default_factory=list, max_length=100)
    """Expressions that must match as well."""

    @field_validator("match_labels")
    @classmethod
    def _check_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        return {_validate_key(key): _validate_value(value) for key, value in labels.items()}

    @classmethod
    def of(cls, selector: Mapping[str, Any], unmanaged: Collection[str] = ()) -> Self:
        """The setting that equals a LabelSelector of the API without exclusions of `unmanaged`.

        Raises:
            pydantic.ValidationError: `selector` is not a LabelSelector.
        """
        labels = selector.get("matchLabels") or {}
        expressions = selector.get("matchExpressions") or ()
        found = cls.model_validate({"matchLabels": labels, "matchExpressions": expressions})
        return found._with_merged_exclusions(unmanaged)

    @property
    def everything(self) -> bool:
        """Whether it selects all namespaces."""
        return not self.match_labels and not self.match_expressions

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a namespace with these labels."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(
            _matches_requirement(requirement, labels) for requirement in self.match_expressions
        )

    def differs(self, selector: Mapping[str, Any], unmanaged: Collection[str] = ()) -> bool:
        """Whether a LabelSelector of the API differs from this setting.

        Args:
            selector: of a webhook configuration, which excludes system namespaces by name.
            unmanaged: those namespaces, in which jobs are never managed.
        """
        try:
            found = self.of(selector, unmanaged)
        except ValidationError:  # not a selector that the setting accepts
            return True
        own = self._with_merged_exclusions(unmanaged)
        return (found.match_labels, _sorted(found)) != (own.match_labels, _sorted(own))

    def _with_merged_exclusions(self, unmanaged: Collection[str]) -> Self:
        """The same selector, with one expression for all namespaces that it excludes by name.

        Namespaces of `unmanaged` are not in it.
        """
        named = [one for one in self.match_expressions if _excludes_by_name(one)]
        names = {name for one in named for name in one.values} - set(unmanaged)
        kept = [one for one in self.match_expressions if one not in named]
        if names:
            values = sorted(names)
            kept.append(NamespaceRequirement(key=_NAME_LABEL, operator="NotIn", values=values))
        return self.model_copy(update={"match_expressions": kept})

    def __str__(self) -> str:
        """As JSON, in the form of the settings."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True)


def _matches_requirement(requirement: NamespaceRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    if requirement.operator == "In":
        return value in requirement.values
    if requirement.operator == "NotIn":
        return value not in requirement.values
    return (value is not None) == (requirement.operator == "Exists")


def _excludes_by_name(requirement: NamespaceRequirement) -> bool:
    return requirement.key == _NAME_LABEL and requirement.operator == "NotIn"


def _sorted(selector: NamespaceSelector) -> list[tuple[str, str, tuple[str, ...]]]:
    """Expressions in canonical order: neither their order nor that of values has a meaning."""
    return sorted(
        (one.key, one.operator, tuple(sorted(one.values))) for one in selector.match_expressions
    )


# By plural of a kind, in which namespaces its jobs are managed.
Selectors: TypeAlias = Mapping[str, NamespaceSelector]
