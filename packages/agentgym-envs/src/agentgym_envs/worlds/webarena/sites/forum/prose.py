"""Generates the forum's texts from frames and each community's vocabulary. Does not depend on the database."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from agentgym_envs.worlds.webarena.sites.names import BRANDS, TOWNS

_HERE = Path(__file__).parent
_SECTION = re.compile(r"^\[([^\]]+)\](.*)\n", re.MULTILINE)
_SLOT = re.compile(r"(?:\b([aA]) )?\{(\w+)\}")
_TRIES = 8
Words = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Topic:
    """A community and its vocabulary."""

    name: str
    """As in its URL: `gardening`."""
    title: str
    about: str
    hint: str
    """A description that doesn't use the name."""
    flairs: Sequence[str]
    words: Words
    """Vocabulary by kind: `thing`, `trouble`, `advice`, `win`, `view`, `ask`."""


def topics() -> list[Topic]:
    """Return all communities in a fixed order."""
    found: list[Topic] = []
    for name in ("topics_outdoors.txt", "topics_making.txt", "topics_mind.txt", "topics_life.txt"):
        for key, title, text in _sections(name):
            lines = {kind: rest for kind, _, rest in (line.partition(": ") for line in text.splitlines()) if kind}
            found += _towns(lines) if key == "town" else [_topic(key, title, lines)]
    return found


def _topic(name: str, title: str, lines: Mapping[str, str]) -> Topic:
    words = {kind: lines[kind].split("; ") for kind in ("thing", "trouble", "advice", "win", "view", "ask")}
    return Topic(name, title, lines["about"], lines["hint"], lines["flairs"].split("; "), words)


def _towns(lines: Mapping[str, str]) -> list[Topic]:
    """Return the communities of the towns: a shared vocabulary with each town's own streets."""
    found: list[Topic] = []
    for line in (_HERE / "spots.txt").read_text(encoding="utf-8").splitlines():
        town, _, spots = line.partition(": ")
        local = {kind: text.replace("{town}", town) for kind, text in lines.items()}
        topic = _topic(town.lower(), town, local)
        words = {kind: _at_spots(phrases, spots.split("; ")) for kind, phrases in topic.words.items()}
        found.append(Topic(topic.name, town, topic.about, topic.hint, topic.flairs, words))
    return found


def _at_spots(phrases: Sequence[str], spots: Sequence[str]) -> list[str]:
    placed = [phrase.replace("{spot}", spot) for phrase in phrases for spot in spots]
    return list(dict.fromkeys(placed))


def _sections(name: str) -> list[tuple[str, str, str]]:
    parts = _SECTION.split((_HERE / name).read_text(encoding="utf-8"))[1:]
    return [(key, title.strip(), text.strip()) for key, title, text in zip(*[iter(parts)] * 3, strict=True)]


class Writer:
    """Writes titles, bodies and comments, avoiding repetitions."""

    def __init__(self, random: Random) -> None:
        self._random = random
        sections = {key: text for key, _, text in _sections("frames.txt")}
        self.words: dict[str, list[str]] = {
            key.removeprefix("word "): text.split("; ") for key, text in sections.items() if key.startswith("word ")
        }
        self.words |= {"town": list(TOWNS), "brand": list(BRANDS)}
        self._frames = {key: text.splitlines() for key, text in sections.items() if not key.startswith("word ")}
        self._written: set[tuple[str, str]] = set()

    def write(self, kind: str, topic: Topic, thing: str | None = None) -> str:
        """Return a text of a kind (`title ask`, `body help`, `comment`, `reply`...), about `thing` if given."""
        text = ""
        for _ in range(_TRIES):
            text = self.fill(self._random.choice(self._frames[kind]), topic.words, thing)
            if (topic.name, text) not in self._written:
                break
        self._written.add((topic.name, text))
        return text

    def title(self, kind: str, topic: Topic, thing: str) -> str | None:
        """Return a unique title, or None if several attempts failed."""
        for _ in range(_TRIES):
            text = self.fill(self._random.choice(self._frames[f"title {kind}"]), topic.words, thing)
            if ("", text) not in self._written:
                self._written.add(("", text))
                return text
        return None

    def fill(self, frame: str, words: Words, thing: str | None = None) -> str:
        """Fill the slots of a frame; capitalized slots get a capital, and `a` becomes `an` before a vowel."""
        used: set[str] = set()

        def put(slot: re.Match[str]) -> str:
            article, name = slot[1], slot[2]
            text = thing if name == "thing" and thing else self._word(name.lower().rstrip("2"), name, words, used)
            text = self.fill(text, words, thing) if "{" in text else text
            text = text[0].upper() + text[1:] if name[0].isupper() else text
            if article is None:
                return text
            return f"{article}{'n' if text[0] in 'aeiouAEIOU' else ''} {text}"

        filled = _SLOT.sub(put, frame)
        return filled[0].upper() + filled[1:] if frame[0].isupper() or frame[0] == "{" else filled

    def _word(self, kind: str, name: str, words: Words, used: set[str]) -> str:
        pool = self.words["time2"] if name == "time2" else words[kind] if kind in words else self.words[kind]
        choices = [word for word in pool if word not in used] or list(pool)
        used.add(word := self._random.choice(choices))
        return word
