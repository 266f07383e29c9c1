"""Episodes side by side, turn by turn: the attempts of a group, or two episodes from different runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym_envs import Episode, Turn

from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import Row
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages import reading
from agentgym_eval.viewer.pages.reading import ReplyParts
from agentgym_eval.viewer.pages.site import Site

MOST = 24
"""Maximum number of episodes on one page."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A turn of one of the episodes."""

    turn: Turn
    reply: ReplyParts
    same: bool
    """Whether this episode equals the first one in states and actions up to and including this turn."""


@dataclass(frozen=True, slots=True)
class Column:
    """One of the episodes."""

    row: Row
    run: Run
    episode: Episode
    cells: list[Cell]


def siblings_page(site: Site, address: Address) -> str:
    """Render all attempts at the same task in the same file; in a training step, its group. Raises `NotFound`."""
    rows = sorted(site.index.siblings(address), key=lambda row: row.sample)
    return _page(site, rows[:MOST], len(rows), address)


def pair_page(site: Site, left: Address, right: Address) -> str:
    """Render two episodes side by side. Raises `NotFound`."""
    return _page(site, [site.index.row(left), site.index.row(right)], 2, left)


def _page(site: Site, rows: Sequence[Row], total: int, address: Address) -> str:
    episodes = [site.index.episode(row.address) for row in rows]
    first = episodes[0]
    columns = [
        Column(row, site.index.run(row.address.run), episode, _cells(episode, first))
        for row, episode in zip(rows, episodes, strict=True)
    ]
    return site.render(
        "side_by_side.html",
        columns=columns,
        total=total,
        address=address,
        length=max(len(column.cells) for column in columns),
        tasks=list(dict.fromkeys(episode.task_id for episode in episodes)),
        goal=reading.goal(first),
        diverged=_divergence(columns),
    )


def _cells(episode: Episode, first: Episode) -> list[Cell]:
    cells: list[Cell] = []
    same, reply_format = True, episode.agent.partition("+")[0]
    for number, turn in enumerate(episode.turns):
        other = first.turns[number] if number < len(first.turns) else None
        same = same and other is not None and _state_and_action(turn) == _state_and_action(other)
        cells.append(Cell(turn, reading.split_reply(turn, reply_format), same))
    return cells


def _state_and_action(turn: Turn) -> tuple[str, str]:
    """Return what makes two turns equal: the state and the action, without the thought."""
    return turn.state_key, turn.reply.text if turn.action is None else turn.action


def _divergence(columns: Sequence[Column]) -> int | None:
    """Return the first turn that differs between the episodes; None if they are all equal."""
    longest = max(len(column.cells) for column in columns)
    for number in range(longest):
        if not all(number < len(column.cells) and column.cells[number].same for column in columns):
            return number
    return None
