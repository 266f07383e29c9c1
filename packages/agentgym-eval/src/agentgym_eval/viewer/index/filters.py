"""The base class of list filters, which are parsed from a URL query and written back to one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from agentgym_eval.util.errors import UsageError, did_you_mean, listed

PAGE = 50
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSet:
    """The filters, order and page of a list.

    The fields of a subclass are its filters, named as in the URL query; an empty string or None matches all rows.
    """

    SORTS: ClassVar[Collection[str]] = ()
    """The valid values of `sort`, without the `-`."""
    CHOICES: ClassVar[Mapping[str, Collection[str]]] = {}
    """The valid values of filters that have a fixed set of them."""

    sort: str = ""
    """A column; with a `-` prefix in descending order."""
    page: int = 1
    size: int = PAGE

    def __post_init__(self) -> None:
        if self.sort.removeprefix("-") not in self.sorts:
            columns = ", ".join(filter(None, self.sorts))
            raise UsageError(f"There is no sort column {self.sort[:50]}; choose from {columns}.")
        for name, values in self.CHOICES.items():
            if getattr(self, name) not in ("", *values):
                raise UsageError(f"{name} must be one of {', '.join(values)}, not {getattr(self, name)[:50]}.")
        if self.page < 1 or not 1 <= self.size <= 1000:
            raise UsageError("page must be at least 1, and size must be from 1 to 1000.")

    @property
    def sorts(self) -> Collection[str]:
        """The columns to sort by."""
        return self.SORTS

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Self:
        """Parse a URL query; empty values are ignored.

        Raises:
            UsageError: for unknown names and invalid values.
        """
        types = {field.name: str(field.type) for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in query.items():
            if name not in types:
                suggestion = did_you_mean(name, list(types))
                raise UsageError(f"There is no filter {name[:50]}; there are {listed(list(types), 20)}.{suggestion}")
            if value.strip():
                values[name] = value.strip() if types[name] == "str" else _integer(name, value)
        return cls(**values)

    def query(self, **changes: str | int) -> dict[str, str | int]:
        """Return the non-default filters for a URL query; `changes` override some and reset the page to 1."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | {"page": 1} | changes
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, "") and value != defaults[name]}

    def pages(self, total: int) -> int:
        """Return the number of pages of `total` rows, at least 1."""
        return max(1, -(-total // self.size))

    def within(self, total: int) -> Self:
        """Return the filters with the last page of `total` rows in place of a later one."""
        return replace(self, page=min(self.page, self.pages(total)))


@dataclass(frozen=True, slots=True)
class Listing(Generic[_Row]):
    """One page of rows and the total number of rows."""

    rows: list[_Row]
    total: int
    filters: FilterSet

    @property
    def pages(self) -> int:
        """The number of pages, at least 1."""
        return self.filters.pages(self.total)


def search_terms(text: str) -> list[str]:
    """Split a search text into words and phrases; "text in quotes" is one phrase."""
    return [phrase or word for phrase, word in re.findall(r'"([^"]*)"|([^\s"]+)', text) if phrase or word]


def _integer(name: str, value: str) -> int:
    if not re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII):
        raise UsageError(f"{name} must be a whole number, not {value[:50]}.")
    return int(value)
