"""Tests of the episodes before and after an episode in a filtered, sorted list."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentgym_eval.viewer.index.index import Index, NotFound
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import Filters
from viewer_runs import episode, write_evaluation_run, write_training_run

SORTS = ("", "number", "task", "env", "category", "policy", "run", "step", "stop", "cause", "turns", "invalid", "score")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("viewer")
    draw = random.Random(0)
    outcomes = (True, False, None)
    played = [
        episode(f"t/{draw.randrange(5)}", n, draw.choice(outcomes), turns=draw.randrange(1, 4)) for n in range(30)
    ]
    write_evaluation_run(folder / "runs" / "eval", [*played, episode("t/5", reply="a red door")])
    write_training_run(folder / "runs" / "rl")
    index = Index(folder / "runs", folder / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.mark.parametrize("sort", [*SORTS, *(f"-{sort}" for sort in SORTS if sort)])
@pytest.mark.parametrize("filters", [{}, {"success": "no"}, {"run": "eval", "turns_from": 2}, {"text": "north"}])
def test_neighbours_are_those_of_the_list_in_every_order(
    index: Index, sort: str, filters: dict[str, str | int]
) -> None:
    asked = Filters(sort=sort, size=1000, **filters)  # type: ignore[arg-type]
    addresses: list[Address | None] = [row.address for row in index.list(asked).rows]
    assert len(addresses) > 5
    shown = Filters(sort=sort, size=4, **filters)  # type: ignore[arg-type]
    for at, (previous, address, following) in enumerate(
        zip([None, *addresses], addresses, [*addresses[1:], None], strict=False)
    ):
        assert address is not None
        found = index.neighbours(address, shown)
        assert (found.previous, found.next) == (previous, following)
        assert (found.position, found.total) == (at + 1, len(addresses))
        assert address in [row.address for row in index.list(found.filters).rows]


def test_episode_outside_the_filter_is_between_those_that_match(index: Index) -> None:
    filters = Filters(run="eval", sort="number", success="no")
    matching = [row.address.number for row in index.list(filters).rows]
    other = next(row.address for row in index.list(Filters(run="eval", sort="number", success="yes")).rows)
    found = index.neighbours(other, filters)
    before, after = (each.number if each else None for each in (found.previous, found.next))
    assert before == max((n for n in matching if n < other.number), default=None)
    assert after == min((n for n in matching if n > other.number), default=None)
    assert (found.position, found.total) == (None, len(matching))


def test_only_other_episodes_match(index: Index) -> None:
    found = index.neighbours(Address("eval", "episodes", 3), Filters(text="red door"))
    assert Address("eval", "episodes", 30) in (found.previous, found.next)
    found = index.neighbours(Address("eval", "episodes", 3), Filters(text="unicorn"))
    assert (found.previous, found.next, found.position, found.total) == (None, None, None, 0)


def test_neighbours_follow_a_growing_file_and_many_lists(tmp_path: Path) -> None:
    run = write_evaluation_run(tmp_path / "runs" / "eval", [episode(f"t/{n}") for n in range(3)])
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    last = Address("eval", "episodes", 2)
    assert index.neighbours(last, Filters(sort="number")).next is None
    with (run / "episodes.jsonl").open("a") as file:
        file.write(episode("t/3").to_json() + "\n")
    index.refresh()
    for turns in range(20):
        index.neighbours(last, Filters(sort="number", turns_to=turns))
    assert index.neighbours(last, Filters(sort="number")).next == Address("eval", "episodes", 3)
    with pytest.raises(NotFound, match="no episode 9"):
        index.neighbours(Address("eval", "episodes", 9), Filters())
    index.close()
