"""Derive TextCraft's recipe table from the recipes of Minecraft 1.16 in the package `minecraft-data`.

The package expands every tag: a crafting table has eight recipes, one for each kind of planks. This script merges
recipes that differ in a single ingredient, and replaces the ingredient by a named set of alternatives. It drops shapes
(only the amounts of ingredients count) and the items that remain after crafting (the buckets of a cake).

    uv run --no-project --with minecraft-data==3.20.0 python scripts/make_textcraft_recipes.py [--check]

`--check` writes nothing, and fails if the committed table differs.
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import minecraft_data  # pyright: ignore[reportMissingImports]

VERSION = "1.16.2"
TABLE = Path(__file__).parent.parent / "packages/agentgym-envs/src/agentgym_envs/worlds/textcraft/recipes.json"
# Items in circular recipes (ingots and blocks, wheat and hay), which must be obtained without crafting.
GATHERED = (
    "coal", "diamond", "dried kelp", "emerald", "gold ingot", "honey bottle",
    "iron ingot", "lapis lazuli", "redstone", "slime ball", "wheat",
)  # fmt: skip

Slot = tuple[tuple[str, ...], int]
"""The alternative items, and the amount needed."""
Recipe = tuple[int, tuple[Slot, ...]]
"""The amount produced, and the ingredients."""


def expanded(data: Any) -> dict[str, set[Recipe]]:
    """Return the package's recipes of each item: every slot has one alternative."""
    names = {number: item["name"].replace("_", " ") for number, item in data.items.items()}
    recipes: dict[str, set[Recipe]] = {}
    for number, variants in data.recipes.items():
        made = recipes.setdefault(names[int(number)], set())
        for variant in variants:
            cells = [cell for row in variant.get("inShape", []) for cell in row] + variant.get("ingredients", [])
            amounts = Counter(names[cell] for cell in cells if cell is not None)
            slots = tuple(sorted(((item,), amount) for item, amount in amounts.items()))
            made.add((variant["result"]["count"], slots))
    return recipes


def collapsed(recipes: set[Recipe]) -> set[Recipe]:
    """Merge recipes of one item that differ only in the alternatives of one slot."""
    while True:
        groups: dict[tuple[int, int, tuple[Slot, ...]], set[tuple[str, ...]]] = defaultdict(set)
        for count, slots in recipes:
            for i, (members, amount) in enumerate(slots):
                groups[count, amount, slots[:i] + slots[i + 1 :]].add(members)
        (count, amount, rest), found = max(groups.items(), key=lambda group: (len(group[1]), repr(group[0])))
        if len(found) == 1:
            return recipes
        parts = {(count, tuple(sorted((*rest, (members, amount))))) for members in found}
        union = tuple(sorted({member for members in found for member in members}))
        recipes = recipes - parts | {(count, tuple(sorted((*rest, (union, amount)))))}


def set_name(members: tuple[str, ...]) -> str:
    """Return the name of a set of alternatives: as Minecraft's tag, or `coal or charcoal` for up to three items."""
    if len(members) <= 3:
        return " or ".join(members)
    last_words = {member.rsplit(maxsplit=1)[-1] for member in members}
    if len(last_words) == 1:
        return {"planks": "planks", "slab": "wooden slabs", "wool": "wool"}[last_words.pop()]
    return f"{min(members, key=len)}s" if len(members) == 4 else "logs"


def table(data: Any) -> dict[str, Any]:
    """Return the table: sets of alternatives by name, and recipes as `[count, item, {ingredient: amount}]`."""
    sets: dict[str, tuple[str, ...]] = {}
    rows: list[tuple[int, str, dict[str, int]]] = []
    for item, variants in sorted(expanded(data).items()):
        for count, slots in sorted(collapsed(variants)):
            using: dict[str, int] = {}
            for members, amount in slots:
                name = members[0] if len(members) == 1 else set_name(members)
                using[name] = amount
                if len(members) > 1 and sets.setdefault(name, members) != members:
                    raise SystemExit(f"Two sets of alternatives are both called {name!r}; tell them apart in set_name.")
            rows.append((count, item, dict(sorted(using.items()))))
    return {"gathered": GATHERED, "sets": dict(sorted(sets.items())), "recipes": rows}


def as_text(table: dict[str, Any]) -> str:
    """Return JSON with one recipe per line."""
    recipes = ",\n".join(f"  {json.dumps(row)}" for row in table["recipes"])
    sets = ",\n".join(f"  {json.dumps(name)}: {json.dumps(members)}" for name, members in table["sets"].items())
    return (
        f'{{\n"source": "minecraft-data 3.20.0 (MIT), Minecraft {VERSION}",\n'
        f'"gathered": {json.dumps(table["gathered"])},\n'
        f'"sets": {{\n{sets}\n}},\n"recipes": [\n{recipes}\n]\n}}\n'
    )


def main() -> None:
    """Write the table, or compare it with the committed one."""
    derived = table(minecraft_data(VERSION))
    text = as_text(derived)
    summary = f"{TABLE.name}: {len(derived['recipes'])} recipes, {len(derived['sets'])} sets, {len(text)} bytes"
    if sys.argv[1:] == ["--check"]:
        if text != TABLE.read_text(encoding="utf-8"):
            raise SystemExit(f"{summary}, which is not what is committed; without --check this updates it.")
    elif sys.argv[1:]:
        raise SystemExit(f"Unknown arguments {sys.argv[1:]}; there is only --check.")
    else:
        TABLE.write_text(text, encoding="utf-8")
    print(summary)


if __name__ == "__main__":
    main()
