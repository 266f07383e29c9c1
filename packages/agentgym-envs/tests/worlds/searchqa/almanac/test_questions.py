"""Tests of the almanac's questions: their numbers, disjoint splits, answerability, and that guessing fails."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import Any

import pytest
from agentgym_envs.util.qa_metrics import exact_match, normalise
from agentgym_envs.worlds.searchqa.almanac import Question, passages, questions

SHA256 = {
    "train": "b933bc18c84d4cc9ce90aeb2b94b32f83b4d18ce5a3d3c10c6c8aca8d98e5021",
    "test": "2cc5a89f45284f8130366f1be3ba449afc084a03e122df056351e0e199dda2d4",
}
PLAIN = ("1-hop", "2-hop", "3-hop")
TEXTS = {p.id: p for p in passages()}
SPLITS = ("train", "test")


def row(q: Question) -> list[Any]:
    return [q.id, q.split, q.category, q.hops, q.text, q.answers, q.queries, q.support]


def all_questions() -> list[Question]:
    return [*questions("train"), *questions("test")]


@pytest.mark.parametrize("split", SPLITS)
def test_questions_match_their_checksum(split: Any) -> None:
    sha = hashlib.sha256()
    for question in questions(split):
        sha.update(json.dumps(row(question), ensure_ascii=True).encode() + b"\n")
    assert sha.hexdigest() == SHA256[split]


def test_splits_have_enough_questions_of_every_hop_count() -> None:
    for split, minimum in (("train", 20_000), ("test", 2_000)):
        categories = Counter(q.category for q in questions(split))
        assert sum(categories.values()) >= minimum
        assert {c.split()[0] for c in categories} == set(PLAIN)
        assert set(categories) - set(PLAIN) == {f"{n}-hop count" for n in (1, 2, 3)} | {
            f"{n}-hop comparison" for n in (2, 3)
        }
        assert all(categories[hops] >= 0.2 * sum(categories.values()) for hops in PLAIN)


def test_train_and_test_questions_share_no_passages() -> None:
    used = [{passage for q in questions(split) for passage in q.support} for split in ("train", "test")]
    assert not used[0] & used[1]
    entities = [{"/".join(p.split("/")[:2]) if p.startswith("country") else p for p in support} for support in used]
    assert not entities[0] & entities[1]


def test_ids_are_unique_and_contain_split_and_hops() -> None:
    assert len({q.id for q in all_questions()}) == len(all_questions())
    for q in all_questions():
        match = re.fullmatch(r"almanac/(train|test)/([123])hop-[a-z0-9-]+/\d{4}", q.id)
        assert match, q.id
        assert match[1] == q.split
        assert int(match[2]) == q.hops
        assert q.category.startswith(f"{q.hops}-hop")


def test_each_hop_has_its_own_query_and_passage() -> None:
    for q in all_questions():
        assert q.hops == len(q.queries) == len(q.support) == len(set(q.support)), q
        assert all(passage in TEXTS for passage in q.support), q
        assert all(re.search(r"\w", query) and "{" not in query for query in q.queries), q


@pytest.mark.long
def test_passages_form_a_chain_that_ends_with_the_answer() -> None:
    for q in all_questions():
        if q.category.endswith("comparison"):
            assert any(exact_match(name, q.answers) for name in map(_plain_title, q.support)), q
            continue
        last = TEXTS[q.support[-1]]
        text = f" {normalise(last.text)} {normalise(last.title)} "
        assert any(f" {normalise(a)} " in text for a in q.answers), (q, last.text)
        for current, following in zip(q.support, q.support[1:], strict=False):
            assert normalise(_plain_title(following)) in normalise(f"{TEXTS[current].title} {TEXTS[current].text}"), q


def _plain_title(passage_id: str) -> str:
    owner = "/".join(passage_id.split("/")[:2]) if passage_id.startswith("country/") else passage_id
    title = TEXTS[owner].title.split(" (")[0]
    if passage_id.startswith("city/"):
        return title.split(",")[0]
    return title.split(", ")[0] if passage_id.startswith("county/") else title.removesuffix(" language")


def test_questions_do_not_contain_their_answers() -> None:
    for q in all_questions():
        if not q.category.endswith("comparison"):
            assert all(map(normalise, q.answers)), q
            text = f" {normalise(q.text)} "
            assert not any(f" {normalise(a)} " in text for a in q.answers), q


def test_constant_answers_are_rarely_correct() -> None:
    for split in SPLITS:
        for category in {q.category for q in questions(split)}:
            of_category = [q for q in questions(split) if q.category == category]
            counts = Counter(answer for q in of_category for answer in {normalise(a) for a in q.answers})
            assert counts.most_common(1)[0][1] <= max(0.03 * len(of_category), 2), (
                split,
                category,
                counts.most_common(3),
            )


def test_comparisons_are_few_and_have_one_answer() -> None:
    for split in SPLITS:
        compared = [q for q in questions(split) if q.category.endswith("comparison")]
        assert 0.03 * len(questions(split)) < len(compared) < 0.1 * len(questions(split))
        for q in compared:
            assert sum(exact_match(_plain_title(s), q.answers) for s in q.support) == 1, q


def test_texts_are_unique_well_formed_questions() -> None:
    assert len({q.text for q in all_questions()}) == len(all_questions())
    for q in all_questions():
        assert q.text.endswith("?"), q
        assert q.text[0].isupper(), q
        assert not re.search(r"\b(the the|of of|in in|None)\b|  |[{}]", q.text), q
        assert len(q.text.split()) <= 45, q


def test_answers_are_distinct_aliases() -> None:
    for q in all_questions():
        assert q.answers
        assert len(set(q.answers)) == len(q.answers), q
        assert all(answer.strip() == answer and answer for answer in q.answers), q


def test_numbers_match_with_and_without_separators() -> None:
    grouped = [q for q in all_questions() if re.fullmatch(r"\d{1,3}(,\d{3})+", q.answers[0])]
    assert len(grouped) > 1000
    for q in grouped:
        assert exact_match(q.answers[0].replace(",", ""), q.answers)


@pytest.mark.parametrize("split", SPLITS)
def test_first_questions_are_a_representative_sample(split: Any) -> None:
    total, first = Counter(q.category for q in questions(split)), Counter(q.category for q in questions(split)[:500])
    for category, number in total.items():
        assert abs(first[category] / 500 - number / len(questions(split))) < 0.06


def test_unknown_split_is_rejected() -> None:
    with pytest.raises(ValueError, match="has no split 'dev'; it has train and test"):
        questions("dev")  # pyright: ignore[reportArgumentType]
