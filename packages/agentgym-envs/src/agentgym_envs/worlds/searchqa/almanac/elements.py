"""The chemical elements from `periodictable` (public domain), and their positions in the periodic table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentgym_envs.worlds.searchqa.almanac.entities import Element

_NOBLE = (0, 2, 10, 18, 36, 54, 86, 118)
_AT_ROOM_TEMPERATURE = frozenset({"", "T=25"})
_STRUCTURES = {
    "BCC": "body-centred cubic",
    "fcc": "face-centred cubic",
    "hcp": "hexagonal close-packed",
    "Diamond": "diamond cubic",
    "Orthorhombic": "orthorhombic",
    "Rhombohedral": "rhombohedral",
    "Tetragonal": "tetragonal",
}
_SPELLINGS = {"aluminum": "aluminium", "cesium": "caesium", "sulfur": "sulphur"}
_HOME = 6
"""Elements per home, since questions may ask for the next element."""


def elements(table: Iterable[Any]) -> list[Element]:
    """Return the elements by atomic number, without the neutron, which `periodictable` includes."""
    known = [e for e in table if e.number > 0]
    return [_element(e, len(known)) for e in known]


def _element(e: Any, last: int) -> Element:
    number: int = e.number
    period, group = position(number)
    caveat = getattr(e, "density_caveat", None) or ""
    lattice = (getattr(e, "crystal_structure", None) or {}).get("symmetry")
    return Element(
        id=f"element/{number}",
        title=f"{e.name.capitalize()} (element)",
        name=e.name,
        home=f"element/{(number - 1) // _HOME}",
        aliases=tuple(dict.fromkeys((e.name, str(_SPELLINGS.get(e.name) or e.name), e.symbol))),
        symbol=e.symbol,
        number=number,
        mass=f"{e.mass:.4f}".rstrip("0").rstrip("."),
        density=None if e.density is None or caveat not in _AT_ROOM_TEMPERATURE else f"{e.density:g}",
        structure=_STRUCTURES.get(str(lattice)),
        isotopes=sum(1 for isotope in e.isotopes if e[isotope].abundance),
        period=period,
        group=group,
        before=f"element/{number - 1}" if number > 1 else None,
        after=f"element/{number + 1}" if number < last else None,
    )


def position(number: int) -> tuple[int, int | None]:
    """Return period and group of the element with that atomic number; lanthanides and actinides have no group here."""
    period = next(p for p, noble in enumerate(_NOBLE) if number <= noble)
    length, place = _NOBLE[period] - _NOBLE[period - 1], number - _NOBLE[period - 1]
    if length == 32 and 3 <= place <= 17:
        return period, None
    return period, place if place <= 2 and number != 2 else 18 - (length - place)
