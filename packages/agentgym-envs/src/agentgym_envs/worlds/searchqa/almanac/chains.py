"""Questions of one to three hops: a subject, named or described, and a chain of relations.

A question is valid only if each hop has a unique answer, its passages are distinct and of one part, no entity occurs
twice, and the question doesn't contain its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentgym_envs.worlds.searchqa.almanac.answers import Answer
from agentgym_envs.worlds.searchqa.almanac.entities import (
    City,
    Country,
    County,
    Currency,
    Entity,
    Facts,
    State,
    Subdivision,
    Zone,
)
from agentgym_envs.worlds.searchqa.almanac.questions import gives_away
from agentgym_envs.worlds.searchqa.almanac.relations import DESCRIPTIONS, RELATIONS, Description, Relation
from agentgym_envs.worlds.searchqa.almanac.splits import Part, part
from agentgym_envs.worlds.searchqa.almanac.words import capitalised, choose

_LISTED = frozenset({"largest", "second", "third", "fourth", "fifth"})
"""Relations whose passages also state the population of the place: asking for it would not be another hop."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A question without an id."""

    text: str
    answers: tuple[str, ...]
    queries: tuple[str, ...]
    support: tuple[str, ...]
    part: Part


@dataclass(frozen=True, slots=True)
class Form:
    """A question template: the kind of its subject, an optional description of it, and a chain of relations."""

    kind: type[Entity]
    start: Description | None
    relations: tuple[Relation, ...]

    @property
    def hops(self) -> int:
        """The number of passages that a question of this form requires."""
        return len(self.relations) + (self.start is not None)

    @property
    def name(self) -> str:
        """The form's name: `city-country-capital`, or `element-of-symbol-mass` if the subject is described."""
        start = [f"of-{self.start.name}"] if self.start else []
        return "-".join([self.kind.__name__.lower(), *start, *(r.name for r in self.relations)])

    @property
    def counts(self) -> bool:
        """Whether the answer is a count."""
        return bool(self.relations) and self.relations[-1].counts


def forms(hops: int) -> Iterator[Form]:
    """Yield all forms with `hops` hops."""
    for kind in dict.fromkeys(r.kind for r in RELATIONS):
        for chain in _chains(kind, hops):
            yield Form(kind, None, chain)
        for start in DESCRIPTIONS:
            if start.kind is kind:
                for chain in _chains(kind, hops - 1):
                    yield Form(kind, start, chain)


def _chains(kind: type[Entity], length: int) -> Iterator[tuple[Relation, ...]]:
    if length == 0:
        yield ()
    for relation in (r for r in RELATIONS if r.kind is kind and length):
        if length == 1:
            yield (relation,)
        elif relation.leads:
            yield from (
                (relation, *rest) for rest in _chains(relation.leads, length - 1) if _goes_on(relation, rest[0])
            )


def _goes_on(relation: Relation, following: Relation) -> bool:
    """Whether `following` needs another passage: titles and lists of places already state location and population."""
    told = relation.name in _LISTED and following.name == "population"
    placed = following.leads in (Country, State) and following.kind in (City, County, Subdivision)
    far = relation.name == "larger" and following.name == "distance"
    return following is not relation and not (told or placed or far)


def draft(facts: Facts, form: Form, subject: Entity) -> Draft | None:
    """Return the question of that form about that subject; None if it would not be valid."""
    value = form.start.value(facts, subject) if form.start else ""
    path = _path(facts, form, subject)
    if value is None or path is None:
        return None
    visited, answer = path
    key = f"{form.name} {subject.id}"
    queries, support, noun, text = list[str](), list[str](), called(subject), ""
    if form.start:
        noun, text = choose(key, form.start.nouns).format(v=value), choose(key, form.start.asks).format(v=value)
        queries.append(form.start.query.format(v=value))
        support.append(subject.id + form.start.aspect)
    for here, relation in zip(visited, form.relations, strict=True):
        queries.append(f"{searched(here, not queries)} {relation.query}")
        support.append(here.id + relation.aspect)
        text = choose(f"{key} {len(queries)}", relation.asks).format(x=noun)
        noun = choose(f"{key} {len(queries)}", relation.nouns or ("",)).format(x=noun)
    text = capitalised(text)
    if len(set(support)) < len(support) or gives_away(text, answer.texts):
        return None
    return Draft(text, answer.texts, tuple(queries), tuple(support), part(subject))


def _path(facts: Facts, form: Form, subject: Entity) -> tuple[list[Entity], Answer] | None:
    """Return the distinct entities of one part that the relations start from, and the answer of the last relation."""
    visited, answer = list[Entity](), Answer(subject.aliases, subject)
    for relation in form.relations:
        here = answer.entity
        if here is None or part(here) != part(subject):
            return None
        visited.append(here)
        found = relation.find(facts, here)
        if found is None or found.entity in visited:
            return None
        answer = found
    return visited, answer


def called(subject: Entity) -> str:
    """Return the subject's name in a question."""
    match subject:
        case Currency():
            return f"the {subject.name}"
        case State():
            return f"the US state of {subject.name}"
        case Zone():
            return f"the IANA time zone {subject.name}"
        case Subdivision():
            return f"the {subject.type} of {subject.name}"
        case _:
            return subject.name


def searched(subject: Entity, first: bool) -> str:
    """Return the subject's name in a query, as known from the question or from the passages read so far."""
    name = subject.title
    if isinstance(subject, Country):
        name = subject.plain
    elif first and isinstance(subject, City | County | Subdivision):
        name = subject.name
    return " ".join(name.translate(str.maketrans("(),", "   ")).split())
