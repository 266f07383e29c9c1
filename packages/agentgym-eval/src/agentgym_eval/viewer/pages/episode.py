"""The replay of an episode: everything the page shows, turn by turn."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentgym_envs import Episode, Turn
from agentgym_envs.util.screenshots import FOLDER, Box, ElementBoxes, ScreenshotStore, element_boxes

from agentgym_eval.metrics.failure_causes import episode_key, failure_cause
from agentgym_eval.metrics.usage import Usage
from agentgym_eval.runs.recorded_env import raw_env_options, recorded_prompt
from agentgym_eval.storage.distances import read_distances
from agentgym_eval.viewer.index import tokens
from agentgym_eval.viewer.index.evaluation_report import prices
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.neighbours import Neighbours
from agentgym_eval.viewer.index.queries import Filters
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages import reading
from agentgym_eval.viewer.pages.reading import Passage, ReplyParts
from agentgym_eval.viewer.pages.scenes import Scene, Scenes
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.pages.snippets import snippets


@dataclass(frozen=True, slots=True)
class Mark:
    """An element or a point of a screenshot that an action is about."""

    label: str
    box: Box
    """Left, top, right and bottom; a point is a box without area."""

    @property
    def is_point(self) -> bool:
        """Whether it is a point."""
        left, top, right, bottom = self.box
        return right <= left and bottom <= top


@dataclass(frozen=True, slots=True)
class ReplayFrame:
    """One position of a replay: a turn with its observation, or the end with the final observation."""

    number: int
    turn: Turn | None
    """None at the end."""
    lines: list[tuple[str, bool]]
    """The lines of the observation, each with whether it is new."""
    passages: list[Passage]
    """Search results; if there are any, they are the whole observation."""
    reply: ReplyParts
    thought: list[tuple[str, Passage | None]]
    """The thought in pieces, with the passages they cite."""
    score: float
    """The score before this turn."""
    scene: Scene | None
    previous_scene: Scene | None
    """The scene of the previous frame, to highlight changes."""
    has_picture: bool
    """Whether a screenshot was recorded."""
    element: str | None
    """The number or name of the page element that the action is about."""
    marks: list[Mark]
    """What the action is about, in the screenshot."""
    size: tuple[int, int]
    """Width and height of the screenshot in pixels, the unit of the marks."""

    @property
    def target_line(self) -> int | None:
        """The line of the observation that shows `element`."""
        return reading.line_of(self.element, self.turn.observation) if self.turn else None

    @property
    def kind(self) -> str:
        """The kind shown on the timeline: `end`, `expert` for a turn of the environment's expert before the policy's,
        the kind of the reply, or `invalid` for a rejected action.
        """
        if self.turn is None:
            return "end"
        if self.turn.reply.expert:
            return "expert"
        return "invalid" if self.turn.kind == "act" and not self.turn.valid else self.turn.kind


def episode_page(site: Site, address: Address, filters: Filters | None = None, *, scenes: bool = False) -> str:
    """Render the replay.

    Args:
        site: The site the page belongs to.
        address: The episode.
        filters: The list that it was opened from; None for the list of its file.
        scenes: Render scenes even if the environment is slow; by default a live page loads without them and fetches
            them afterwards.

    Raises:
        NotFound: if the episode doesn't exist.
    """
    run, file = site.index.run(address.run), site.index.file(address)
    episode = site.index.episode(address)
    defer_scenes = site.links.live and not scenes and site.scene_replayer.is_slow(episode)
    neighbours = site.index.neighbours(address, filters or Filters(run=run.slug, file=file.slug, sort="number"))
    replayed = Scenes() if defer_scenes else site.scene_replayer.scenes(run, episode)
    return site.render(
        "episode.html",
        address=address,
        run=run,
        file=file,
        episode=episode,
        goal=reading.goal(episode),
        cause=failure_cause(episode, distances=read_distances(file.path).get(episode_key(episode))),
        options=shlex.join(raw_env_options(run.settings, episode.env)),
        prompt=recorded_prompt(run.settings, episode.env),
        frames=list(_frames(episode, replayed, screenshot_store(run))),
        note=replayed.note,
        defer_scenes=defer_scenes,
        neighbours=neighbours,
        listed_in=filters,
        annotation=site.index.row(address).annotation,
        used_labels=site.index.labels(),
        first_turns=_first_turns(site, neighbours),
        siblings=sorted(site.index.siblings(address), key=lambda row: row.sample),
        usage=_usage(episode),
        price=prices(run),
        tokens=tokens.read_tokens(file.path, address.number, episode, run.path),
    )


def _first_turns(site: Site, neighbours: Neighbours) -> dict[Address, int]:
    """Return the turn to show first of each neighbour in a search: the turn that its result in the list links to."""
    addresses = filter(None, (neighbours.previous, neighbours.next))
    found = snippets(site.index, addresses, neighbours.filters.text)
    return {address: snippet.turn for address, snippet in found.items()}


def _usage(episode: Episode) -> Usage:
    """Sum the usage of replies from an endpoint; zero requests if there are none."""
    replies = [turn.reply for turn in episode.turns if turn.reply.seconds is not None]
    return sum((Usage.of(reply.usage) for reply in replies), start=Usage())


def screenshots(site: Site, address: Address) -> Iterator[tuple[int, Path]]:
    """Yield the recorded screenshots of an episode, each with the number of its frame.

    Raises:
        NotFound: if the episode doesn't exist.
    """
    store = screenshot_store(site.index.run(address.run))
    if not store.folder.is_dir():
        return
    for number, observed in enumerate(_observations(site.index.episode(address))):
        if (path := observed.screenshot(store)) is not None:
            yield number, path


def screenshot_store(run: Run) -> ScreenshotStore:
    """Return the store of the run's screenshots, in the folder of its files; the folder may not exist."""
    return ScreenshotStore((run.path if run.path.is_dir() else run.path.parent) / FOLDER)


@dataclass(frozen=True, slots=True)
class _Observed:
    """The observation of a frame."""

    task: str
    text: str
    picture: str | None
    """Digest of the picture that the policy saw."""

    def screenshot(self, store: ScreenshotStore) -> Path | None:
        """Return the file of the picture that the policy saw, or else of the one that the environment stored."""
        return store.get(self.picture) or store.find(self.task, self.text)


def _observations(episode: Episode) -> list[_Observed]:
    """Return the observation of each frame."""
    seen = [(turn.observation, turn.picture) for turn in episode.turns]
    return [_Observed(episode.task_id, *each) for each in (*seen, (episode.final_observation, episode.final_picture))]


def _marks(action: str | None, places: ElementBoxes | None) -> list[Mark]:
    """Return the marks of an action on the screenshot with these element boxes."""
    boxes = places.boxes if places else {}
    found: list[Mark] = []
    for target in reading.targets(action):
        if target.point is not None:
            x, y = target.point
            found.append(Mark(f"Point {x},{y}", (x, y, x, y)))
        elif target.element is not None and target.element in boxes:
            label = f"Element {target.element}" if target.element.isdecimal() else target.element
            found.append(Mark(label, boxes[target.element]))
    return found


def _size(places: ElementBoxes | None, path: Path | None) -> tuple[int, int]:
    """Return width and height of a screenshot, from its PNG header if the element boxes are unknown; (0, 0) if it has
    none.
    """
    if places is not None:
        return places.width, places.height
    with suppress(OSError):
        if path is not None and (head := path.read_bytes()[:24]).startswith(b"\x89PNG") and len(head) == 24:
            return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    return 0, 0


def _frames(episode: Episode, scenes: Scenes, store: ScreenshotStore) -> Iterator[ReplayFrame]:
    known_passages: list[Passage] = []
    before, score = None, 0.0
    has_store, reply_format = store.folder.is_dir(), episode.agent.partition("+")[0]
    for number, observed in enumerate(_observations(episode)):
        text = observed.text
        turn = episode.turns[number] if number < len(episode.turns) else None
        passages = reading.passages(text, f"passage-{number}") if text != before else []
        known_passages += passages
        reply = reading.split_reply(turn, reply_format) if turn else ReplyParts("", None)
        element = reading.element(turn.action) if turn else None
        screenshot = observed.screenshot(store) if has_store else None
        marks, size = list[Mark](), (0, 0)
        if turn and screenshot:
            places = element_boxes(screenshot)
            marks, size = _marks(turn.action, places), _size(places, screenshot)
        yield ReplayFrame(
            number,
            turn,
            reading.lines(text, before),
            passages,
            reply,
            reading.cited(reply.thought, known_passages),
            score,
            scenes.at(number),
            scenes.at(number - 1) if number else None,
            screenshot is not None,
            element,
            marks if all(size) else [],
            size,
        )
        before, score = text, score + (turn.reward if turn else 0.0)
