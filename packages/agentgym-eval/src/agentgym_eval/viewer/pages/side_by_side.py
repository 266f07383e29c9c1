"""Episodes side by side, turn for turn: the attempts of a group, or two runs at one task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym_envs import Episode, Turn

from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import Row
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages import reading
from agentgym_eval.viewer.pages.reading import Said
from agentgym_eval.viewer.pages.site import Site

MOST = 24
"""Episodes on one page."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A turn of one of the episodes."""

    turn: Turn
    said: Said
    same: bool
    """Whether this episode has gone the way of the first one up to and with this turn."""


@dataclass(frozen=True, slots=True)
class Column:
    """An episode among others."""

    row: Row
    run: Run
    episode: Episode
    cells: list[Cell]


def siblings_page(site: Site, address: Address) -> str:
    """The attempts at the same task in the same file: in a training step, its group. Raises `NotFound`."""
    rows = sorted(site.index.siblings(address), key=lambda row: row.sample)
    return _page(site, rows[:MOST], len(rows), address)


def beside_page(site: Site, left: Address, right: Address) -> str:
    """Two episodes. Raises `NotFound`."""
    return _page(site, [site.index.row(left), site.index.row(right)], 2, left)


def _page(site: Site, rows: Sequence[Row], there_are: int, address: Address) -> str:
    episodes = [site.index.episode(row.address) for row in rows]
    first = episodes[0]
    columns = [
        Column(row, site.index.run(row.address.run), episode, _cells(episode, first))
        for row, episode in zip(rows, episodes, strict=True)
    ]
    return site.render(
        "side_by_side.html",
        columns=columns,
        there_are=there_are,
        address=address,
        length=max(len(column.cells) for column in columns),
        tasks=list(dict.fromkeys(episode.task_id for episode in episodes)),
        goal=reading.goal(first),
        apart=_apart(columns),
    )


def _cells(episode: Episode, first: Episode) -> list[Cell]:
    cells: list[Cell] = []
    same, form = True, episode.agent.partition("+")[0]
    for number, turn in enumerate(episode.turns):
        other = first.turns[number] if number < len(first.turns) else None
        same = same and other is not None and _did(turn) == _did(other)
        cells.append(Cell(turn, reading.said(turn, form), same))
    return cells


def _did(turn: Turn) -> tuple[str, str]:
    """Where an agent stood and what it did; how it put that doesn't matter."""
    return turn.state_key, turn.reply.text if turn.action is None else turn.action


def _apart(columns: Sequence[Column]) -> int | None:
    """The first turn that not all have alike; None where they are alike to the end."""
    longest = max(len(column.cells) for column in columns)
    for number in range(longest):
        if not all(number < len(column.cells) and column.cells[number].same for column in columns):
            return number
    return None
