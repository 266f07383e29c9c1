"""Tests of the choice of the evaluation by which training runs are compared."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.runs import EpisodeFile
from agentgym_eval.viewer.pages.evaluation_choice import EvaluationChoice
from agentgym_eval.viewer.pages.site import Site
from viewer_runs import GetPage, episode, write_episodes, write_evaluation_run, write_training_run

SUCCESSES = {
    "step-000000-sampled": 1,
    "step-000002-sampled": 3,
    "step-000002-greedy": 4,
    "step-000003-sampled": 3,
    "step-000004-sampled": 2,
    "test-000000-sampled": 0,
    "test-000000-greedy": 0,
    "test-000004-sampled": 4,
    "test-000004-greedy": 2,
}
"""Solved tasks of four, by evaluation of the run `rl`."""


def write_run(folder: Path) -> None:
    write_training_run(folder, split="dev")
    for name, solved in SUCCESSES.items():
        episodes = [episode(f"{name[:4]}/{n}", 0, n < solved, category="ab"[n % 2]) for n in range(4)]
        write_episodes(folder / "evaluations" / f"{name}.jsonl", episodes)


@pytest.fixture
def trained(site: Site) -> Site:
    """A site with the training runs `rl` and `other`, of which only the first has all evaluations, and `plain`."""
    write_run(site.index.root / "rl")
    write_training_run(site.index.root / "other", 2, split="dev")
    write_evaluation_run(site.index.root / "plain", [episode(f"step/{n}", 0, n < 2) for n in range(4)])
    site.index.refresh()
    return site


@pytest.mark.parametrize(
    ("query", "file"),
    [
        ({}, "test-000004-sampled"),
        ({"split": "dev"}, "step-000004-sampled"),
        ({"decoding": "greedy"}, "test-000004-greedy"),
        ({"split": "dev", "decoding": "greedy"}, "step-000002-greedy"),
        ({"step": "first"}, "test-000000-sampled"),
        ({"step": "first", "split": "dev"}, "step-000000-sampled"),
        ({"step": "first", "split": "dev", "decoding": "greedy"}, "step-000002-greedy"),
        ({"step": "best"}, "step-000002-sampled"),
        ({"step": "best", "decoding": "greedy"}, "step-000002-greedy"),
        ({"step": "best", "split": "test"}, "test-000004-sampled"),
        ({"step": "2"}, "step-000002-sampled"),
        ({"step": "004"}, "test-000004-sampled"),
        ({"step": "4", "split": "dev"}, "step-000004-sampled"),
        ({"step": "3", "decoding": "greedy"}, None),
        ({"split": "train"}, None),
    ],
)
def test_evaluation_is_found_by_split_decoding_and_step(trained: Site, query: dict[str, str], file: str | None) -> None:
    found = EvaluationChoice.parse(query).find(trained, trained.index.run("rl"))
    assert (found.name if found else None) == (file and f"evaluations/{file}")


def test_last_evaluation_is_the_one_of_the_list_of_runs(trained: Site) -> None:
    for slug in ("rl", "other"):
        found = EvaluationChoice().find(trained, trained.index.run(slug))
        assert found and found.slug == trained.index.run_metrics()[slug].source


@pytest.mark.parametrize(
    ("outcomes", "best"),
    [
        (([True, False], [True, None]), 0),  # of equal ones the first
        (([True, None, None], [True, True, False]), 4),  # the success without failed episodes is 1 and 2/3
        (([None, None], [True, False]), 4),
        (([None, None], [None, None]), 0),
    ],
)
def test_failed_episodes_are_no_success_in_the_best_evaluation(
    site: Site, outcomes: tuple[list[bool | None], ...], best: int
) -> None:
    folder = site.index.root / "rl"
    write_training_run(folder, split="dev")
    for step, successes in zip((0, 4), outcomes, strict=True):
        path = folder / "evaluations" / f"step-{step:06d}-sampled.jsonl"
        write_episodes(path, [episode(f"t/{task}", 0, success) for task, success in enumerate(successes)])
    site.index.refresh()
    found = EvaluationChoice(step="best").find(site, site.index.run("rl"))
    assert found and found.step == best


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"split": "exam"}, "split must be one of train, dev, test, not exam"),
        ({"decoding": "beam"}, "decoding must be one of sampled, greedy, not beam"),
        ({"step": "-1"}, "step must be a number of training steps or one of last, first, best, not -1"),
        ({"step": "\N{ARABIC-INDIC DIGIT ONE}"}, "step must be a number"),
        ({"step": "9" * 5000}, "step must be a number"),
    ],
)
def test_invalid_choices_are_refused(query: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EvaluationChoice.parse(query)


def test_choice_is_described_and_kept_in_links() -> None:
    choice = EvaluationChoice.parse({"split": "dev", "decoding": "", "step": "last", "run": "rl"})
    assert (choice.description, choice.values()) == ("last evaluation on dev tasks", {"split": "dev"})
    choice = EvaluationChoice.parse({"decoding": "greedy", "step": "007"})
    assert choice.description == "greedy evaluation at step 7"
    assert choice.values() == {"decoding": "greedy", "step": "7"}
    assert EvaluationChoice().values() == {}


def test_shared_choice_is_what_evaluations_have_in_common() -> None:
    def file(step: int | None, decoding: str, split: str = "dev") -> EpisodeFile:
        return EpisodeFile(Path("x"), "x", "x", "evaluation", step, decoding, split)

    played = EpisodeFile(Path("x"), "x", "x", "played")
    assert EvaluationChoice.shared([file(2, "greedy"), file(2, "greedy")]) == EvaluationChoice("dev", "greedy", "2")
    assert EvaluationChoice.shared([file(2, "greedy"), file(4, "sampled")]) == EvaluationChoice("dev")
    assert EvaluationChoice.shared([played, file(0, "sampled", "test")]) == EvaluationChoice("test", "sampled", "0")
    assert (
        EvaluationChoice.shared([file(None, "000004", "held_out")]) == EvaluationChoice.shared([]) == EvaluationChoice()
    )


def rows(page: str) -> list[str]:
    table = re.search(r'aria-label="Results">.*?</table>', page, re.DOTALL)
    return re.findall(r'<tr><td><a href="/run/[^"]+">([^<]+)', table[0]) if table else []


def test_table_uses_the_chosen_evaluation_and_names_its_file(trained: Site, get_page: GetPage) -> None:
    runs = "run=rl&run=other&run=plain"
    page = get_page(f"/compare?{runs}&baseline=plain&split=dev&step=best")
    for file in ("step-000002-sampled", "step-000002-sampled", "episodes"):
        assert f"{file}</small>" in page
    assert "the table compares the best evaluation on dev tasks" in page
    assert "tends to be too high" in page
    link = unescape(re.findall(r'<a href="(/compare\?a=plain&amp;b=rl[^"]*)">', page)[0])
    assert "evaluations/step-000002-sampled</small>" in get_page(link)
    assert f"/compare?{runs}&baseline=rl&split=dev&step=best" in unescape(page)
    assert f'hx-get="/compare?{runs}&baseline=plain&split=dev&step=best"' in unescape(page)
    for option in ('"dev" selected', '"best" selected', '"">any', '"3">3'):
        assert f"<option value={option}" in page
    default = get_page(f"/compare?{runs}&baseline=plain&split=&decoding=&step=last")
    assert "evaluations/test-000004-sampled</small>" in default and "on test tasks if there is one" in default


def test_runs_without_the_evaluation_are_named_with_those_they_have(trained: Site, get_page: GetPage) -> None:
    page = unescape(get_page("/compare?run=rl&run=other&run=plain&split=dev&decoding=greedy"))
    assert rows(page) == ["rl", "plain"] and "Runs (3 of 3)" in page
    sentence = "has no greedy evaluation on dev tasks; it has evaluations on dev tasks, sampled (steps 0, 2)."
    assert f'<a href="/run/other">other</a> {sentence}' in page
    page = get_page("/compare?run=rl&run=other&step=77")
    assert "Fewer than two of the chosen runs have results to compare" in page
    assert page.count("has no evaluation at step 77") == 2
    assert '<option value="77" selected>77' in page


def test_runs_of_evaluate_have_nothing_to_choose(site: Site, get_page: GetPage) -> None:
    for name in ("a", "b"):
        write_evaluation_run(site.index.root / name, [episode(f"t/{n}") for n in range(3)])
    page = get_page("/compare?run=a&run=b&baseline=")
    assert rows(page) == ["a", "b"]
    assert "<select" not in page and "Of training runs" not in page


def test_comparison_of_two_runs_links_to_the_table_of_the_same_evaluations(trained: Site, get_page: GetPage) -> None:
    def link(path: str) -> str:
        (found,) = re.findall(r'<a href="([^"]+)">By category', get_page(path))
        return unescape(found)

    file = next(file.slug for file in trained.index.run("rl").files if file.name.endswith("step-000002-sampled"))
    table = link(f"/compare?a=plain&b=rl&b_file={file}")
    assert table == "/compare?run=plain&run=rl&baseline=plain&split=dev&decoding=sampled&step=2"
    assert "evaluations/step-000002-sampled</small>" in get_page(table)
    same_run = get_page(f"/compare?a=rl&b=rl&a_file={file}&b_file={file}")
    assert "in common" in same_run and "By category" not in same_run
