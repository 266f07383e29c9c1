"""Tests of the almanac's corpus: its size, its text quality, and its checksum."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest
from agentgym_envs.retrieval import Passage
from agentgym_envs.worlds.searchqa.almanac import name_words, passages

# A different checksum means a different corpus; mention it in the changelog.
SHA256 = "efa8f003e03874f8a41b36d3ea277f2872b331a978f743e4c74267e9cecd8400"


def digest(rows: Iterable[object]) -> str:
    sha = hashlib.sha256()
    for row in rows:
        sha.update(json.dumps(row, ensure_ascii=True).encode() + b"\n")
    return sha.hexdigest()


def kind(passage: Passage) -> str:
    first, *rest = passage.id.split("/")
    return f"{first}/{rest[1]}" if first == "country" and len(rest) == 2 else first


def test_corpus_matches_its_checksum() -> None:
    assert digest([p.id, p.title, p.text] for p in passages()) == SHA256


def test_corpus_has_40_000_passages_of_many_kinds() -> None:
    kinds = Counter(map(kind, passages()))
    assert sum(kinds.values()) >= 40_000
    assert kinds["city"] > 30_000
    assert kinds["subdivision"] > 4_000
    assert kinds["county"] > 3_000
    assert kinds["language"] > 1_000
    assert min(kinds.values()) >= 50
    assert set(kinds) >= {"country", "country/borders", "country/places", "currency", "element", "script", "zone"}


def test_ids_and_titles_are_unique() -> None:
    assert len({p.id for p in passages()}) == len(passages())
    assert len({p.title for p in passages()}) == len(passages())


def test_passages_have_the_length_of_encyclopedia_chunks() -> None:
    words = [len(p.text.split()) for p in passages()]
    assert min(words) >= 15
    assert max(words) <= 120
    assert sum(n >= 30 for n in words) >= 0.9 * len(words)
    for passage in passages():
        assert len(re.findall(r"\.( |$)", passage.text)) >= 2, passage


@pytest.mark.long
def test_sentences_are_well_formed() -> None:
    for passage in passages():
        text = f"{passage.title}. {passage.text}"
        assert not re.search(r"\b(the the|a a|an an|a [aeio]|None(?! of))\b", passage.text), passage
        assert not re.search(r"  |[{}\[\]†]|\.\.|,,| ,| \.(?![a-z]{2})", text), passage
        assert passage.text.endswith("."), passage
        assert passage.text[0] == passage.text[0].upper(), passage
        assert not re.search(
            r"(?<![\d,.])1 (places|countries|kilometres|isotopes|languages|counties)\b", passage.text
        ), passage
        assert not re.search(r"(?<![\d,.])0 (places|countries|kilometres|inhabitants|languages)\b", passage.text), (
            passage
        )


@pytest.mark.long
def test_facts_vary_in_wording_and_order() -> None:
    shapes = defaultdict[str, Counter[str]](Counter)
    for passage in passages():
        names = re.escape(passage.title.split(",")[0].split(" (")[0])
        shapes[kind(passage)][re.sub(rf"{names}|[\d,.]*\d", "#", passage.text)[:40]] += 1
    for name in ("city", "county", "subdivision", "element", "language", "country"):
        (_, count), *_ = shapes[name].most_common(1)
        assert count < 0.6 * sum(shapes[name].values()), name
    cities = [re.findall(r"(?:^|\. )(\w+ \w+)", p.text) for p in passages() if kind(p) == "city"]
    assert len({tuple(starts[1:]) for starts in cities}) > 1000


def test_words_of_names_are_written_in_capitals_everywhere() -> None:
    names = set(name_words())
    assert len(names) > 30_000
    assert {"portugal", "kuala", "lumpur", "saint"} <= names
    assert not {"currency", "codes", "largest", "county", "north", "which", "the"} & names
    found = {word for p in passages() for word in re.findall(r"\w+", p.text) if word.lower() in names}
    assert all(word in (word.capitalize(), word.upper()) for word in found)
