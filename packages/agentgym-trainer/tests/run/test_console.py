from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_eval.metrics.summary import report
from agentgym_trainer.config import RLConfig, WorldConfig
from agentgym_trainer.run import summary
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from matplotlib import pyplot as plt
from rich.console import Console
from toy_learner import episode

WORLDS = ("agentgym/TextCraft-v0", "agentgym/BabyAI-v0")


def line(step: int, **changes: Any) -> dict[str, Any]:
    """What the loop logs of a step, as far as it is shown."""
    figures = {"success": 0.25, "score": 0.5, "turns": 3.04, "failed": 0}
    return {
        "step": step,
        "env_steps": 40 * step,
        "horizon": 4,
        "stage": {"number": 0, "since": 0, "why": "begin"},
        **figures,
        "worlds": {WORLDS[0]: dict(figures)},
        "approx_kl": 0.01,
        "entropy": 1.234,
        "advantage/mean_token": -0.2501,
        "grad_norm": 0.5,
        "tokens_per_s": 12345.6,
        "seconds": {"rollout": 3.0, "engine": 2.0, "update": 1.0, "checkpoint": 9.0},
        **changes,
    }


def shown(*lines: dict[str, Any], terminal: bool = False, width: int = 80) -> str:
    """What is on the screen once these steps were taken."""
    out = io.StringIO()
    tracker = RunConsole(Console(file=out, force_terminal=terminal, width=width, color_system=None))
    with tracker.showing():
        for metrics in lines:
            tracker.step(metrics, lines[-1]["step"])
    return re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", out.getvalue())


def test_a_step_shows_how_it_went() -> None:
    assert shown(line(1)) == (
        "step 1/1: success 0.25 · score 0.50 · turns 3.0 of 4 · KL 0.0100 · entropy 1.23 · "
        "advantage -0.25 · grad norm 0.50 · 12,346 tokens/s · engine busy 50%\n"
    )


def test_the_divergence_from_the_reference_goes_before_that_from_the_sampler() -> None:
    assert "KL 0.2000 ·" in shown(line(1, ref_kl=0.2))


def test_what_there_is_no_figure_for_is_a_dash() -> None:
    said = shown(line(1, success=None, score=None, turns=None, failed=7, grad_norm=None))
    assert said.startswith("step 1/1: success – · score – · turns – of 4")
    assert said.endswith("grad norm – · 12,346 tokens/s · engine busy 50% · 7 failed\n")


def test_of_several_worlds_each_has_its_success() -> None:
    worlds = {WORLDS[0]: {"success": 0.5}, WORLDS[1]: {"success": None}}
    assert "success 0.25 · TextCraft-v0 0.50 · BabyAI-v0 – · score" in shown(line(1, worlds=worlds))


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("steps", "the next stage of the schedule"),
        ("plateau", "success in evaluations has stopped rising"),
        ("cut", "many episodes were truncated while they still earned reward"),
    ],
)
def test_a_new_stage_is_said_once(why: str, reason: str) -> None:
    stage = {"number": 1, "since": 1, "why": why}
    said = shown(line(1), line(2, horizon=8, stage=stage), line(3, horizon=8, stage=stage))
    assert said.count(f"From step 2 on, episodes have up to 8 turns: {reason}.\n") == 1
    assert said.count("From step") == 1


def test_warnings_stay_on_the_screen_with_their_step_whatever_they_say() -> None:
    warning = {"id": "flat-groups", "sentence": "Nothing was learned [red]in step 2[/]."}
    said = shown(line(1, warnings=[]), line(2, warnings=[warning]), line(3), terminal=True, width=200)
    assert said.count("Warning (flat-groups, step 2): Nothing was learned [red]in step 2[/].") == 1
    assert said.count("Warning") == 1


def test_what_is_said_is_no_markup() -> None:
    console = Console(file=io.StringIO(), width=200)
    RunConsole(console).say("wandb follows this run no more (401 at [/tmp/x], [red]or so[/])")
    assert console.file.getvalue() == "wandb follows this run no more (401 at [/tmp/x], [red]or so[/])\n"  # type: ignore[attr-defined]


def test_a_run_that_goes_on_within_a_stage_says_nothing_of_it() -> None:
    assert "From step" not in shown(line(7, stage={"number": 1, "since": 3, "why": "steps"}))


def test_a_terminal_shows_bars_with_the_figures_below_however_narrow() -> None:
    screen = shown(line(1), line(2, failed=3), terminal=True, width=60)
    last = screen[screen.rindex("Reinforcement learning") :]
    assert "2/2" in last.splitlines()[0]
    assert "success 0.25 · score 0.50" in last.splitlines()[1]
    assert "3 failed" in last


def test_phases_are_passed_on_and_said_unless_there_is_nothing() -> None:
    out = io.StringIO()
    tracker = RunConsole(Console(file=out))
    assert list(tracker.phase("Counting", iter("abc"), 3)) == ["a", "b", "c"]
    assert list(tracker.phase("Waiting", iter(""), 0)) == []
    assert re.fullmatch(r"Counting: 3 in \d+ s\n", out.getvalue())


def test_an_evaluation_is_said_with_its_interval() -> None:
    out = io.StringIO()
    played = [replace(episode([None]), task_id=f"coin/test/{i}") for i in range(2)]
    RunConsole(Console(file=out)).evaluation(5, "greedy", "dev", report(played))
    assert out.getvalue() == "after 5 steps, greedy on 2 dev tasks: success 0.000 (0.000 to 0.658)\n"


# What is left at the end.


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RLConfig, RunFolder, list[Any]]:
    """A finished run of two worlds, and the pictures that are drawn of it."""
    config = RLConfig(
        world=WorldConfig(WORLDS[0]),
        extra_worlds=(WorldConfig(WORLDS[1], instructions=False, options=("levels='GoTo'",)),),
    )
    folder = RunFolder(tmp_path)
    for step in (0, 300):
        for manner in ("sampled", "greedy"):
            played = [replace(episode([None]), env=world, task_id=f"{world}/1") for world in WORLDS]
            for test in (False, True):
                folder.save_evaluation(step, manner, played, test=test)
    worlds = {WORLDS[0]: {"success": 0.5}, WORLDS[1]: {"success": None}}
    for step in range(1, 301):
        stage = {"number": int(step > 100), "since": 100 * (step > 100), "why": "plateau" if step > 100 else "begin"}
        folder.log(line(step, worlds=worlds, horizon=8 if step > 100 else 4, stage=stage))
    pictures: list[Any] = []
    monkeypatch.setattr(plt, "close", pictures.append)
    return config, folder, pictures


def test_every_world_has_its_curve_with_the_schedule_on_it(mixed: tuple[RLConfig, RunFolder, list[Any]]) -> None:
    config, folder, pictures = mixed
    summary.show_results(config, folder, Console(file=io.StringIO()), seconds=1.0)
    (picture,) = pictures
    assert [axes.get_title() for axes in picture.axes] == list(WORLDS)
    for axes, points in zip(picture.axes, (300, 0), strict=True):
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


TABLES = (("test", "once, after training; 95% intervals"), ("dev", "during training; 95% intervals"))


def test_every_world_has_its_rows_and_its_command(mixed: tuple[RLConfig, RunFolder, list[Any]]) -> None:
    config, folder, _ = mixed
    out = io.StringIO()
    summary.show_results(config, folder, Console(file=out, width=120), seconds=1.0)
    for row in ("TextCraft-v0, sampled", "TextCraft-v0, greedy", "BabyAI-v0, sampled", "BabyAI-v0, greedy"):
        assert out.getvalue().count(row) == 2
    test, during = (out.getvalue().index(f"2 {split} tasks, played {when}") for split, when in TABLES)
    assert test < during
    commands = [text for text in out.getvalue().splitlines() if text.startswith("  uv run evaluate")]
    assert [command.split()[4] for command in commands] == list(WORLDS)
    assert commands[1].endswith("--no-instructions --options \"levels='GoTo'\"")
