"""Tests of `--prompt`: it is sent and recorded, belongs to the run's identity, and can't be exchanged on resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import read_episodes
from agentgym_eval import collect as collect_from_python
from agentgym_eval import evaluate as evaluate_from_python
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.cli.view import view
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.runs.settings import EvaluateSettings
from agentgym_eval.util.errors import UsageError

FUNCTION = """
def short(instructions, format_instructions):
    return f"Short: {len(instructions)} {format_instructions}"

def nothing(instructions, format_instructions):
    return None

def make():
    return lambda instructions, format_instructions: "local"
"""


@pytest.fixture
def prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_prompts.py").write_text(FUNCTION, encoding="utf-8")
    (tmp_path / "prompt.md").write_text("Take <care>.\n{format_instructions}\n", encoding="utf-8")
    return tmp_path / "prompt.md"


def flags(out: Path, *more: str) -> list[str]:
    return ["--env", "textcraft", "--policy", "oracle", "--tasks", "2", "--agent", "bare", "--out", str(out), *more]


def sent(file: Path) -> set[str]:
    return {episode.instructions for episode in read_episodes(file)}


def settings_in(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["settings"]


def test_a_prompt_is_sent_recorded_and_shown(prompt: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert evaluate(flags(out, "--prompt", "prompt.md")) == 0
    text = "Take <care>.\nAnswer with one action on one line and nothing else."
    assert sent(out / "episodes.jsonl") == {text}
    assert settings_in(out)["prompt"] == "prompt.md"
    assert len(settings_in(out)["prompt_sha256"]) == 64
    assert view([str(out), "--export", str(tmp_path / "pages")]) in (0, None)
    assert any("Take &lt;care&gt;." in page.read_text("utf-8") for page in (tmp_path / "pages").rglob("*.html"))
    again = tmp_path / "again"
    assert evaluate(["--like", str(out), "--out", str(again)]) == 0
    assert settings_in(again) == settings_in(out)
    assert sent(again / "episodes.jsonl") == {text}


def test_runs_without_a_prompt_have_no_such_setting(tmp_path: Path) -> None:
    assert evaluate(flags(tmp_path)) == 0
    assert not {"prompt", "prompt_sha256"} & settings_in(tmp_path).keys()


def test_a_run_goes_on_with_the_same_prompt_only(
    prompt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    given = flags(out, "--prompt", "prompt.md")
    assert evaluate(given) == 0
    assert evaluate([*given, "--samples", "2"]) == 0
    assert len(sent(out / "episodes.jsonl")) == 1
    before = (out / "episodes.jsonl").read_bytes()
    prompt.write_text("Hurry.", encoding="utf-8")
    capsys.readouterr()
    assert evaluate([*given, "--samples", "3"]) == 2
    assert "another text of the prompt prompt.md (restore it): choose" in capsys.readouterr().err
    assert evaluate([*flags(out), "--samples", "3"]) == 2
    assert "prompt 'prompt.md', not None:" in capsys.readouterr().err
    assert evaluate([*flags(out, "--prompt", "own_prompts:short"), "--samples", "3"]) == 2
    error = capsys.readouterr().err
    assert "prompt 'prompt.md', not 'own_prompts:short':" in error
    assert "sha256" not in error
    assert (out / "episodes.jsonl").read_bytes() == before
    prompt.write_text("Take <care>.\n{format_instructions}", encoding="utf-8")
    assert evaluate([*given, "--samples", "3"]) == 0


def test_collected_episodes_have_the_prompt(prompt: Path, tmp_path: Path) -> None:
    out = tmp_path / "data.jsonl"
    assert collect(flags(out, "--prompt", "own_prompts:short")) == 0
    (text,) = sent(out)
    assert text.startswith("Short: ")
    card = json.loads((tmp_path / "data.card.json").read_text(encoding="utf-8"))
    assert card["settings"]["prompt"] == "own_prompts:short"


def test_python_takes_names_paths_and_functions(prompt: Path, tmp_path: Path) -> None:
    import own_prompts  # type: ignore[import-not-found]  # written by the fixture

    options: dict[str, Any] = {"tasks": 1, "agent": "bare"}
    for number, given in enumerate((prompt, "own_prompts:short", own_prompts.short)):
        out = tmp_path / str(number)
        evaluate_from_python("oracle", "textcraft", out=out, prompt=given, **options)
        name = str(prompt) if given is prompt else "own_prompts:short"
        assert settings_in(out)["prompt"] == name
    assert (
        sent(tmp_path / "1/episodes.jsonl")
        == sent(tmp_path / "2/episodes.jsonl")
        != sent(tmp_path / "0/episodes.jsonl")
    )
    collected = collect_from_python("oracle", "textcraft", out=tmp_path / "d.jsonl", prompt=prompt, **options)
    assert {episode.instructions for episode in collected.episodes()} == sent(tmp_path / "0/episodes.jsonl")
    with pytest.raises(UsageError, match="can't be found by its name, which a run folder records"):
        evaluate_from_python("oracle", "textcraft", out=tmp_path / "x", prompt=own_prompts.make(), **options)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("none.md", "There is no prompt file none.md in "),
        ("nobody", "There is no prompt 'nobody'."),
        ("own_prompts:shrot", "own_prompts has no 'shrot'. Did you mean short?"),
        ("own_prompts:nothing", "The prompt of textcraft can't be written: The prompt own_prompts:nothing returned no"),
        ("own_prompts:make", "must take two arguments"),
    ],
)
def test_what_can_t_be_used_is_refused_before_anything_is_written(
    given: str, complaint: str, prompt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(flags(tmp_path / "run", "--prompt", given)) == 2
    error = capsys.readouterr().err
    assert error.startswith("evaluate: ")
    assert complaint in error
    assert not (tmp_path / "run").exists()


def test_settings_that_exclude_a_prompt() -> None:
    common: Callable[..., EvaluateSettings] = lambda **more: EvaluateSettings(  # noqa: E731
        env=("textcraft",), policy=("hf:x",), prompt="p.md", **more
    )
    with pytest.raises(UsageError, match=r"--prompt p.md writes the instructions; leave out --no-instructions"):
        common(instructions=False)
    with pytest.raises(UsageError, match="leave them out: --prompt"):
        common(harness=HarnessSettings(harness_command="true"))
