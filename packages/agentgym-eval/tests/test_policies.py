from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentgym_envs import EnvFault, Job, Policy, Reply, WorldSeat, play
from agentgym_envs.wrappers import ReAct
from agentgym_eval import policies
from agentgym_eval.errors import UsageError
from agentgym_eval.policies import find_policy
from counting_world import Count

SETTINGS: dict[str, Any] = {"temperature": 1.0, "seed": 0, "max_tokens": 8}


def build(spec: str) -> Policy:
    return find_policy(spec)(**SETTINGS)


def actions(spec: str, *, goal: int = 9, sample: int = 0, **options: Any) -> list[str | None]:
    env: Any = ReAct(gymnasium.wrappers.TimeLimit(Count(**options), 12))
    episode = play(env, build(spec), Job(f"count/test/{goal}", sample, 0, "test"))
    return [turn.action for turn in episode.turns]


def test_the_oracle_succeeds_and_speaks_in_the_wrapper_s_form() -> None:
    episode = play(ReAct(Count()), build("oracle"), Job("count/test/2"))
    assert episode.success
    assert episode.turns[0].reply == Reply("Thought: \nAction: add")


def test_noise_mixes_in_other_actions_in_its_proportion() -> None:
    assert actions("oracle:0") == actions("oracle")
    firsts = [actions("oracle:0.5", sample=i)[0] for i in range(400)]
    assert 0.25 - 0.07 < firsts.count("stop") / 400 < 0.25 + 0.07  # half of the half that is random
    assert build("oracle:0.5").name == "oracle:0.5"
    assert build("oracle:0").name == "oracle"


def test_random_draws_from_the_seat_so_an_attempt_repeats_and_attempts_differ() -> None:
    assert actions("random", sample=1) == actions("random", sample=1)
    assert len({tuple(actions("random", sample=i)) for i in range(10)}) > 1


def test_a_world_that_lists_no_actions_can_not_be_played_at_random() -> None:
    with pytest.raises(UsageError, match="counting/Count-v0 lists no available actions"):
        actions("random", listed=False)


def test_a_script_is_played_in_order_and_its_last_line_repeated(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("add\n\n  jump \nadd\n")
    assert actions(f"scripted:{script}") == ["add", "jump", *["add"] * 10]


def test_a_fault_of_the_expert_fails_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    def jammed(self: Count) -> str:
        raise EnvFault("jammed")

    monkeypatch.setattr(Count, "oracle", jammed)
    assert play(Count(), build("oracle"), Job("count/test/2")).stop == "failed"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("orcale", r"no policy 'orcale'. Did you mean oracle\? There are: oracle, oracle:NOISE, random, scripted:FILE"),
        ("oracle:2", "number from 0 to 1"),
        ("oracle:much", "number from 0 to 1"),
        ("random:3", "takes no argument"),
        ("scripted:/nowhere/at/all", "can't be read"),
    ],
)
def test_wrong_names_and_arguments_say_what_to_do(spec: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        build(spec)


def test_an_empty_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UsageError, match="holds no action"):
        build(f"scripted:{tmp_path / 'empty.txt'}")


class Entry:
    """An installed entry point."""

    def __init__(self, name: str, maker: Any) -> None:
        self.name, self._maker = name, maker

    def load(self) -> Any:
        if isinstance(self._maker, Exception):
            raise self._maker
        return self._maker


class Echo:
    def __init__(self, argument: str, **settings: Any) -> None:
        self.name, self.settings = argument, settings

    def reply(self, seats: list[WorldSeat]) -> list[Reply]:
        return [Reply("stop") for _ in seats]


def test_policies_of_other_packages_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        policies, "entry_points", lambda group: [Entry("echo", Echo)] if group == policies.GROUP else []
    )
    policy: Any = build("echo:a/b:c")
    assert (policy.name, policy.settings) == ("a/b:c", SETTINGS)
    with pytest.raises(UsageError, match=r"Did you mean echo\?.*echo:ARGUMENT"):
        build("ecko:x")


def test_what_is_not_installed_or_can_not_be_built_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "entry_points", lambda group: [Entry("hf", ImportError("No module named 'torch'"))])
    with pytest.raises(UsageError, match="hf:x can't be built: No module named 'torch'"):
        build("hf:x")
    monkeypatch.setattr(policies, "entry_points", lambda group: [])
    with pytest.raises(UsageError, match=r"hf:x comes with agentgym-trainer, .* pip install"):
        build("hf:x")
