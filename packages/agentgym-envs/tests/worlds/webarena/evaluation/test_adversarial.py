"""The judge against right and wrong answers and addresses, made for a task of every template of the embedded sites.

Five ways to be right score 1, and at least five hedges or wrong ones score 0. Nothing is started: only the judge is
asked, so tasks that end with changes of a database are not here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from agentgym_envs.worlds.webarena.evaluation import string_match, url_match
from agentgym_envs.worlds.webarena.evaluation.answer_tokens import WORD, tokens
from agentgym_envs.worlds.webarena.evaluation.parts import check_eval
from agentgym_envs.worlds.webarena.sites import store

Task = dict[str, Any]


def _tasks(kind: str) -> list[Task]:
    tasks = [task for split in store.tasks().values() for task in split if kind in task["eval"]["eval_types"]]
    return [task | {"eval": check_eval(task["eval"])} for task in tasks]


@pytest.fixture(scope="module")
def answered() -> list[Task]:
    """All tasks with an answer."""
    return _tasks("string_match")


@pytest.fixture(scope="module")
def located() -> list[Task]:
    """All tasks that end on a page."""
    return _tasks("url_match")


def _scores(task: Task, answer: str) -> bool:
    return asyncio.run(string_match.score(task, answer, None)) == 1


# Answers.


def _phrases(task: Task) -> list[str]:
    references = task["eval"]["reference_answers"]
    return [references["must_equal"]] if "must_equal" in references else references["must_state"]


def _other_notation(phrase: str) -> str:
    """Write a value as a person might, or a text in capitals."""
    if match := re.fullmatch(r"(?:(\d+) h )?(\d+) min", phrase):
        return f"{match[1]} hours and {match[2]} minutes" if match[1] else f"{match[2]} minutes"
    if re.fullmatch(r"[\d,]+\.\d+", phrase):
        return f"{phrase.replace(',', '')}0"
    if re.fullmatch(r"\d{4,}", phrase) and phrase[0] != "0":
        return f"{int(phrase):,}"
    if "–" in phrase:
        return phrase.replace("–", " - ")
    if re.fullmatch(r"0\d{4} \d{6}", phrase):
        return phrase.replace(" ", "")
    return phrase.upper()


def _right_answers(task: Task) -> Iterator[str]:
    phrases = _phrases(task)
    yield task["plan"][-1]["answer"]
    yield f"  {', '.join(phrases)}. "
    yield "\n".join(f"**{phrase}**" for phrase in phrases)
    yield '"' + " / ".join(phrases).swapcase() + '"'
    yield "; ".join(map(_other_notation, phrases))
    if "must_equal" in task["eval"]["reference_answers"]:
        yield f"({phrases[0]})"
    else:
        yield f"It is {' and '.join(reversed(phrases))}, as far as I can see on the page."
        if len(phrases) > 1:
            yield "\n".join(f"{number}. {phrase}" for number, phrase in enumerate(phrases, start=1))
        yield f"{' ('.join(phrases)}{')' * (len(phrases) - 1)} is the answer to what you asked me."
    if terms := task["eval"]["reference_answers"].get("terms"):
        stated = ", ".join(phrases)
        yield f"{stated} ({' + '.join(terms)})"
        yield f"{' - '.join(terms)} = {_with_unit(stated, task['intent'])}"


def _with_unit(number: str, intent: str) -> str:
    return f"{number} km" if "kilometres" in intent else f"${number}"


@pytest.mark.long
def test_right_answers_of_every_task_score(answered: list[Task]) -> None:
    wrong = [
        (task["template"], answer, _phrases(task))
        for task in answered
        for answer in _right_answers(task)
        if not _scores(task, answer)
    ]
    assert wrong == []


def _next(value: str) -> str:
    """Change the last digit of a value, or a letter of an address."""
    digit = re.search(r"\d(?=\D*$)", value)
    if digit is None:
        return value[:-1] + ("a" if value[-1] != "a" else "b")
    return value[: digit.start()] + str((int(digit[0]) + 1) % 10) + value[digit.end() :]


def _values(phrases: list[str]) -> list[str]:
    """Return the phrases that are one value as a whole, not a row of a table."""
    single = [(phrase, tokens(phrase)) for phrase in phrases]
    return [phrase for phrase, found in single if len(found) == 1 and found[0].kind not in (WORD, "day")]


def _wrong_answers(task: Task) -> Iterator[str]:
    phrases, references = _phrases(task), task["eval"]["reference_answers"]
    right = ", ".join(phrases)
    yield ""
    yield "It can't be done." if phrases == ["N/A"] else "N/A"
    yield " ".join(map(str, range(1000)))
    yield f"{right} " + "I don't know whether this is really the case but believe so because somebody wrote that once"
    yield re.sub(r"[^\W_]", "x", right)
    rivals = references.get("must_not_state", ())
    for rival in rivals[:: max(1, len(rivals) // 4)]:
        yield f"{right} or {rival}"
        yield ", ".join((rival, *phrases[1:]))
    yield ", ".join((*phrases, *rivals, "N/A"))
    for value in _values(phrases):
        yield f"{right} or {_next(value)}"
        yield right.replace(value, _next(value))
        if {token.kind for token in tokens(value)} == {"number"}:
            yield from (right.replace(value, hedge) for hedge in _sums(Decimal(value.replace(",", ""))))
            yield from (f"{right} ({hedge})" for hedge in _sums(Decimal(value.replace(",", ""))))
            yield from (right.replace(value, stated) for stated in _in_wrong_units(value, task["intent"]))
    terms = references.get("terms", ())
    for term in terms:
        if tokens(term) != tokens(right):
            yield term
            yield f"{right} or {' or '.join(terms)} or {_next(term)}"
            yield f"{right} or {term}" if len(terms) > 1 else f"{right} or {_next(term)}"
    if len(phrases) > 1:
        yield from (", ".join(phrase for phrase in phrases if phrase != missing) for missing in phrases)


def _in_wrong_units(value: str, intent: str) -> Iterator[str]:
    wrong = [" %", " kg", " minutes", " miles", "k", " €", " km/h"]
    yield from (f"{value}{unit}" for unit in wrong)
    yield from (f"{sign}{value}" for sign in ("€", "£", "EUR "))
    yield f"${value}" if "kilometres" in intent or "people" in intent else f"{value} km"


def _sums(right: Decimal) -> Iterator[str]:
    """List candidates that add up, with or without their sum or difference: a single one of them is right."""
    step = Decimal("1.75")
    for candidates in ([right - 2 * step, right, right + step, right + 3 * step], [right, right * 3 + step]):
        listed = " ".join(map(str, candidates))
        yield f"{listed} {sum(candidates)}"
        yield f"{listed} {max(candidates) * 2 - sum(candidates)}"
    yield f"{right} {right - step} {step}"  # the other two add up to the right one
    yield f"{right} or {right + step} or {step}"  # their difference is the right one
    yield f"{right + step} - {step}, that is {right}"


@pytest.mark.long
def test_hedges_and_wrong_answers_of_every_task_do_not_score(answered: list[Task]) -> None:
    scoring = [
        (task["template"], answer, _phrases(task))
        for task in answered
        for answer in _wrong_answers(task)
        if _scores(task, answer)
    ]
    assert scoring == []


def test_at_least_five_answers_of_each_kind(answered: list[Task]) -> None:
    for task in answered:
        assert min(len({*_right_answers(task)}), len({*_wrong_answers(task)})) >= 5, task["intent"]


def test_no_text_decides_alone_without_rivals(answered: list[Task]) -> None:
    """A listing of names must not score: each text has rivals, or a value of the answer has only one of its kind."""
    for task in answered:
        references = task["eval"]["reference_answers"]
        if "must_equal" not in references:
            assert references.get("must_not_state") or _values(references["must_state"]), task["intent"]


@pytest.mark.long
def test_answers_of_other_tasks_do_not_score(answered: list[Task]) -> None:
    """All answers to the tasks of a template, in one, are a hedge; one other answer is wrong."""
    by_template: dict[str, list[Task]] = {}
    for task in answered:
        by_template.setdefault(task["template"], []).append(task)
    for template, tasks in by_template.items():
        answers = list(dict.fromkeys(task["plan"][-1]["answer"] for task in tasks))
        if len(answers) > 1:
            assert not any(_scores(task, ", ".join(answers)) for task in tasks), template
        for task in tasks:
            own = set(tokens(task["plan"][-1]["answer"]))
            others = [answer for answer in answers if set(tokens(answer)) != own]
            assert not any(_scores(task, other) for other in others), task["intent"]


# Addresses.


def _matches(task: Task, canonical: str) -> float:
    return url_match.score(task["eval"], "about:blank", canonical)


def _right_addresses(task: Task) -> Iterator[str]:
    for url in task["eval"]["reference_url"].split(" |OR| "):
        parts = urlsplit(url)
        path = f"{parts.scheme}://{parts.netloc}{quote(parts.path, safe='/%')}"
        fields = parse_qsl(parts.query)
        query = f"?{parts.query}" if parts.query else ""
        yield url
        yield f"{url}#comments"
        yield f"{path}/{query}"
        yield f"{path}?{urlencode([*reversed(fields)])}"
        yield f"{path}?{urlencode([('sort', 'oldest'), *fields])}"
        yield f"{path}?{urlencode([*fields, ('dir', 'asc')])}"
        numeric = [(key, f"{value}.00" if value.isdecimal() else value) for key, value in fields]
        yield f"{path}?{urlencode(numeric)}"
        for form in ("%m/%d/%Y", "%B %d, %Y", "%d %b %Y"):
            yield f"{path}?{urlencode([(key, _date(value, form)) for key, value in fields])}"
        any_case = task["eval"].get("url_any_case", ())
        yield f"{path}?{urlencode([(key, value.upper() if key in any_case else value) for key, value in fields])}"
        defaults = task["eval"].get("url_defaults", {})
        yield f"{path}?{urlencode([(key, value) for key, value in fields if defaults.get(key) != value])}"


def _date(value: str, form: str) -> str:
    """Write a date in another form; other values stay as they are."""
    return date.fromisoformat(value).strftime(form) if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else value


def test_at_least_five_addresses_of_each_kind(located: list[Task]) -> None:
    for task in located:
        assert min(len({*_right_addresses(task)}), len({*_wrong_addresses(task)})) >= 5, task["intent"]


def test_right_addresses_of_every_task_score(located: list[Task]) -> None:
    wrong = [(task["template"], url) for task in located for url in _right_addresses(task) if _matches(task, url) != 1]
    assert wrong == []


def _wrong_addresses(task: Task) -> Iterator[str]:
    url = task["eval"]["reference_url"].split(" |OR| ")[0]
    parts = urlsplit(url)
    origin, fields = f"{parts.scheme}://{parts.netloc}", parse_qsl(parts.query)
    yield ""
    yield "about:blank"
    yield origin
    yield f"{origin}/search?q={quote(url)}"
    yield url.replace(parts.path, f"{parts.path}1")
    yield url.replace(parts.path, parts.path[:-1])
    yield url.replace(parts.netloc, f"other.{parts.netloc}")
    for key, _ in fields:
        rest = [(field, given) for field, given in fields if field != key]
        yield f"{origin}{parts.path}?{urlencode([*rest, (key, 'other')])}"
        if key not in task["eval"].get("url_defaults", {}):
            yield f"{origin}{parts.path}?{urlencode(rest)}"


def test_wrong_addresses_of_every_task_do_not_score(located: list[Task]) -> None:
    scoring = [
        (task["template"], url) for task in located for url in _wrong_addresses(task) if _matches(task, url) == 1
    ]
    assert scoring == []
    pages = {url for task in located for url in task["eval"]["reference_url"].split(" |OR| ")}
    for task in located[::5]:
        own = task["eval"]["reference_url"].split(" |OR| ")
        others = [url for url in pages if url not in own and _matches(task, url) == 1]
        assert others == [], task["intent"]
