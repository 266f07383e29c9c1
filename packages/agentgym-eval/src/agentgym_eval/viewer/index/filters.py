"""What the filters of all lists have in common: they come from an address and go back into one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeVar

from agentgym_eval.util.errors import UsageError, did_you_mean, listed

PAGE = 50
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSet:
    """Which rows of a list, in which order. Fields of a subclass are its filters, under the names of addresses; empty
    text and None stand for all.
    """

    SORTS: ClassVar[Collection[str]] = ()
    """What `sort` may be, without the `-`."""
    CHOICES: ClassVar[Mapping[str, Collection[str]]] = {}
    """All values of the filters that have but a few."""

    sort: str = ""
    """A column; with `-` before it the largest first."""
    page: int = 1
    size: int = PAGE

    def __post_init__(self) -> None:
        if self.sort.removeprefix("-") not in self.SORTS:
            raise UsageError(f"Nothing sorts by {self.sort[:50]}; there are {', '.join(filter(None, self.SORTS))}.")
        for name, values in self.CHOICES.items():
            if getattr(self, name) not in ("", *values):
                raise UsageError(f"{name} is one of {', '.join(values)}, not {getattr(self, name)[:50]}.")
        if self.page < 1 or not 1 <= self.size <= 1000:
            raise UsageError("page counts from 1, and size is from 1 to 1000.")

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """The filters in an address; empty values are none.

        Raises:
            UsageError: for names that don't exist and values that can't be.
        """
        types = {field.name: str(field.type) for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in query.items():
            if name not in types:
                near = did_you_mean(name, list(types))
                raise UsageError(f"There is no filter {name[:50]}; there are {listed(list(types), 20)}.{near}")
            if value.strip():
                values[name] = value.strip() if types[name] == "str" else _number(name, value)
        return cls(**values)

    def query(self, **changes: str | int) -> dict[str, str | int]:
        """What of the filters isn't as it is anyway, for an address; `changes` replace some, and begin at page 1."""
        found = {field.name: getattr(self, field.name) for field in fields(self)} | {"page": 1} | changes
        plain = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, "") and value != plain[name]}


@dataclass(frozen=True, slots=True)
class Listing(Generic[_Row]):
    """One page of rows, and how many there are on all."""

    rows: list[_Row]
    total: int
    filters: FilterSet

    @property
    def pages(self) -> int:
        """How many pages there are, at least 1."""
        return max(1, -(-self.total // self.filters.size))


def looked_for(text: str) -> list[str]:
    """The words of a search, those "in quotes" together."""
    return [quoted or word for quoted, word in re.findall(r'"([^"]*)"|([^\s"]+)', text) if quoted or word]


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII):
        raise UsageError(f"{name} is a whole number, not {value[:50]}.")
    return int(value)
