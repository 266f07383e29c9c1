"""The replay of an episode: all that one page says of it, turn by turn. Knows how nothing of it is drawn."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentgym_envs import Episode, Turn
from agentgym_envs.util.screenshots import FOLDER, ElementBoxes, ScreenshotStore

from agentgym_eval.metrics.usage import Usage
from agentgym_eval.viewer.index import tokens
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages import reading
from agentgym_eval.viewer.pages.reading import Passage, Said
from agentgym_eval.viewer.pages.scenes import Scene, Scenes, written_options
from agentgym_eval.viewer.pages.site import Site


@dataclass(frozen=True, slots=True)
class Halt:
    """Where a replay halts: a turn with what it was given, or the end with what was shown last."""

    number: int
    turn: Turn | None
    """None at the end."""
    lines: list[tuple[str, bool]]
    """Of the observation, each with whether it is new."""
    passages: list[Passage]
    """That a search just found; then the observation is nothing else."""
    said: Said
    thought: list[tuple[str, Passage | None]]
    """In pieces, with the passages that are cited."""
    score: float
    """Earned before."""
    scene: Scene | None
    before: Scene | None
    """The scene of the halt before, for what has changed."""
    picture: bool
    """Whether one was kept of what is shown here."""
    element: int | None
    """The number of the page element that the action is about."""
    places: ElementBoxes | None
    """Where elements are in the picture."""

    @property
    def target(self) -> int | None:
        """Which of the lines shows that element."""
        return reading.line_of(self.element, self.turn.observation) if self.turn else None

    @property
    def kind(self) -> str:
        """What stands on the timeline: `end`, the kind of reply, or `invalid` for an action that the world refused."""
        if self.turn is None:
            return "end"
        return "invalid" if self.turn.kind == "act" and not self.turn.valid else self.turn.kind


def episode_page(site: Site, address: Address, *, scenes: bool = False) -> str:
    """The replay.

    Args:
        site: Whose page it is.
        address: The episode.
        scenes: Draw them even where the world takes its time; otherwise a live page comes first and they later.

    Raises:
        NotFound: when there is no such episode.
    """
    run, file = site.index.run(address.run), site.index.file(address)
    episode = site.index.episode(address)
    later = site.links.live and not scenes and site.stage.is_slow(episode)
    drawn = Scenes() if later else site.stage.scenes(run, episode)
    return site.render(
        "episode.html",
        address=address,
        run=run,
        file=file,
        episode=episode,
        goal=reading.goal(episode),
        options=shlex.join(written_options(run, episode.env)),
        halts=list(_halts(episode, drawn, album(run))),
        note=drawn.note,
        later=later,
        siblings=sorted(site.index.siblings(address), key=lambda row: row.sample),
        counted=_counted(episode),
        tokens=tokens.read_tokens(file.path, address.number, episode, run.path),
    )


def _counted(episode: Episode) -> Usage:
    """What the replies of an endpoint used; no requests where there are none."""
    replies = [turn.reply for turn in episode.turns if turn.reply.seconds is not None]
    return sum((Usage.of(reply.usage) for reply in replies), start=Usage())


def pictures(site: Site, address: Address) -> Iterator[tuple[int, Path]]:
    """The pictures that were kept of an episode, each with its halt, numbered as on the page.

    Raises:
        NotFound: when there is no such episode.
    """
    kept = album(site.index.run(address.run))
    if not kept.folder.is_dir():
        return
    for halt, shown in enumerate(_shown(site.index.episode(address))):
        if (path := kept.find(*shown)) is not None:
            yield halt, path


def album(run: Run) -> ScreenshotStore:
    """Where pictures of a run's episodes are, if there are any: beside its files."""
    return ScreenshotStore((run.path if run.path.is_dir() else run.path.parent) / FOLDER)


def _shown(episode: Episode) -> list[tuple[str, str]]:
    """Task and text of each halt."""
    texts = [turn.observation for turn in episode.turns]
    return [(episode.task_id, text) for text in (*texts, episode.final_observation)]


def _halts(episode: Episode, scenes: Scenes, pictures: ScreenshotStore) -> Iterator[Halt]:
    known: list[Passage] = []
    before, score = None, 0.0
    has_pictures, form = pictures.folder.is_dir(), episode.agent.partition("+")[0]
    for number, (task, text) in enumerate(_shown(episode)):
        turn = episode.turns[number] if number < len(episode.turns) else None
        found = reading.passages(text, f"passage-{number}") if text != before else []
        known += found
        said = reading.said(turn, form) if turn else Said("", None)
        element = reading.element(turn.action) if turn else None
        pictured = has_pictures and pictures.find(task, text) is not None
        yield Halt(
            number,
            turn,
            reading.lines(text, before),
            found,
            said,
            reading.cited(said.thought, known),
            score,
            scenes.at(number),
            scenes.at(number - 1) if number else None,
            pictured,
            element,
            pictures.places(task, text) if pictured and element is not None else None,
        )
        before, score = text, score + (turn.reward if turn else 0.0)
