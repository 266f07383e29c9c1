"""Tests of renamed episodes: a bijection of names, consistent within an episode, with commands that still parse."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentgym_envs import Episode, EpisodeSpec, Reply, Sample, make, play_many, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import DataConfig, DPOConfig, SFTConfig, WarmStart, WorldConfig
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.trainers.renaming import Names, rename, rename_share
from coin_world import ENV, Coin
from toy_learner import coin_flags, sft_flags, train_cli

WORLDS = {"textcraft": "agentgym/TextCraft-v0", "babyai": "agentgym/BabyAI-v0", "searchqa": "agentgym/SearchQA-v0"}


def play(world: str, agent: str) -> tuple[list[Episode], Names]:
    env = Agent.parse(agent).wrap(make(WORLDS[world]))
    tasks = text_env(env).tasks.train
    specs = [EpisodeSpec(tasks[i].id, seed=0) for i in range(0, len(tasks), len(tasks) // 40)]
    expert = Oracle(0.2 if text_env(env).lists_actions else 0.0)
    return list(play_many(env, expert, specs, horizon=15)), text_env(env).interchangeable_names()


@pytest.fixture(scope="module", params=WORLDS)
def played(request: pytest.FixtureRequest) -> tuple[list[Episode], Names]:
    """Episodes of an environment whose expert gives reasons, and its interchangeable names."""
    return play(request.param, "react")


class Inverse:
    """The inverse of the permutations that a generator with this seed draws."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def permutation(self, count: int) -> Any:
        return np.argsort(self._rng.permutation(count))


def texts(episode: Episode) -> list[str]:
    turns = [text for turn in episode.turns for text in (turn.observation, turn.reply.text, turn.action or "")]
    return [episode.instructions, *turns, episode.final_observation]


def test_renaming_is_undone_by_the_inverse_permutation(played: tuple[list[Episode], Names]) -> None:
    (episodes, names), changed = played, 0
    for seed, episode in enumerate(episodes):
        renamed = rename(episode, names, np.random.default_rng(seed))
        inverse: Any = Inverse(seed)
        assert rename(renamed, names, inverse) == episode
        changed += renamed != episode
    assert changed / len(episodes) > 0.9  # a few name no color


def test_only_names_change_and_always_to_the_same_name(played: tuple[list[Episode], Names]) -> None:
    episodes, names = played
    group_of = {name: group for group in names for name in group}
    for seed, episode in enumerate(episodes):
        renamed = rename(episode, names, np.random.default_rng(seed))
        words = set(re.findall(r"\w+", " ".join(texts(episode) + texts(renamed)).lower()))
        present = sorted((name for name in group_of if words.issuperset(name.split())), key=len, reverse=True)
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(present)})(?!\w)", re.IGNORECASE)
        mapped: dict[str, str] = {}
        for before, after in zip(texts(episode), texts(renamed), strict=True):
            assert pattern.split(before) == pattern.split(after)
            for old, new in zip(pattern.findall(before), pattern.findall(after), strict=True):
                assert old[0].isupper() == new[0].isupper()
                assert mapped.setdefault(old.lower(), new.lower()) == new.lower()
        assert len(set(mapped.values())) == len(mapped)
        assert all(group_of[old] == group_of[new] for old, new in mapped.items())
        kept = ("reward", "valid", "loss", "state_key", "kind", "trial")
        for before, after in zip(episode.turns, renamed.turns, strict=True):
            assert [getattr(before, name) for name in kept] == [getattr(after, name) for name in kept]
            assert before.reply.noise == after.reply.noise


def test_episodes_get_different_names(played: tuple[list[Episode], Names]) -> None:
    (episode, *_), names = played
    first, second, again = (rename(episode, names, np.random.default_rng(seed)) for seed in (1, 2, 1))
    assert first == again
    assert first != second


def test_renamed_commands_are_still_listed(played: tuple[list[Episode], Names]) -> None:
    episodes, names = played
    for seed, episode in enumerate(episodes):
        renamed = rename(episode, names, np.random.default_rng(seed))
        for before, after in zip(episode.turns, renamed.turns, strict=True):
            assert after.action
            assert after.action in after.reply.text
            if "Available actions: " in before.observation:
                listed = json.loads(after.observation.partition("Available actions: ")[2].splitlines()[0])
                assert after.action in listed
        briefing, was = renamed.turns[0].observation.splitlines(), episode.turns[0].observation.splitlines()
        crafted = [(a.action, b.action) for a, b in zip(renamed.turns, episode.turns, strict=True)]
        assert all((now in briefing) == (then in was) for now, then in crafted)


def test_renamed_textcraft_commands_parse() -> None:
    episodes, names = play("textcraft", "function-call")
    for seed, episode in enumerate(episodes):
        renamed = rename(episode, names, np.random.default_rng(seed))
        env = Agent.parse(episode.agent).wrap(make(WORLDS["textcraft"]))
        env.reset(options={"task": episode.task_id})
        assert renamed.tools == episode.tools
        for turn in renamed.turns:
            observation, *_, info = env.step(turn.reply.text)
            assert info["action"] == turn.action
            # The game has other recipes and the inventory other items, but every name is that of an item.
            assert "don't understand" not in observation
            assert "There is no item" not in observation


def test_sets_of_alternatives_and_their_members_keep_their_names() -> None:
    (episode, *_), names = play("textcraft", "bare")
    turn = replace(episode.turns[0], observation="8 oak planks, planks, charcoal or coal, oak planks of wool")
    renamed = rename(replace(episode, turns=(turn,)), names, np.random.default_rng(0))
    assert renamed.turns[0].observation == turn.observation
    obtained = dict.fromkeys(["diamond", "iron ingot", "wheat"])  # crafted or gathered
    assert any(obtained.keys() <= set(group) and len(group) < 15 for group in names)


def test_names_of_several_words_are_units_with_their_capitals_and_sampled_ids_are_dropped() -> None:
    reply = Reply("Redstone is red stone, Stone, STONE", sample=Sample((1,), (2,), (0.0,)), reasoning="stone")
    (episode, *_), _ = play("babyai", "bare")
    turn = replace(episode.turns[0], reply=reply, action=None)
    names = (("red stone", "stone"),)
    swapping = next(seed for seed in range(9) if np.random.default_rng(seed).permutation(2)[0])
    renamed = rename(replace(episode, turns=(turn,)), names, np.random.default_rng(swapping))
    assert renamed.turns[0].reply == Reply("Redstone is stone, Red stone, RED STONE", reasoning="red stone")


def test_the_share_of_renamed_episodes() -> None:
    config = SFTConfig(world=WorldConfig(WORLDS["babyai"], agent="bare"))
    episodes, _ = play("babyai", "bare")
    with open_environments(config) as worlds:
        assert rename_share(episodes, worlds, 0.0, 0) == episodes
        many = episodes * 10
        renamed = rename_share(many, worlds, 0.3, 0)
        # One in 720 permutations of the colors changes nothing.
        assert sum(a != b for a, b in zip(many, renamed, strict=True)) / len(many) == pytest.approx(0.3, abs=0.08)
        assert renamed == rename_share(many, worlds, 0.3, 0) != rename_share(many, worlds, 0.3, 1)
        others = [replace(episode, env="other/Other-v0") for episode in episodes]
        assert rename_share(others, worlds, 1.0, 0) == others


def test_environments_without_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        open_environments(SFTConfig(world=WorldConfig(ENV))) as worlds,
        pytest.raises(UsageError, match="Episodes of coin/Coin-v0 can't be renamed"),
    ):
        rename_share([], worlds, 0.5, 0)
    assert train_cli(sft_flags(tmp_path / "run", "--data.rename", "1")) == 2
    stderr = capsys.readouterr().err
    assert "declares no interchangeable names" in stderr
    assert "Training on" not in stderr  # refused before the expert plays
    with pytest.raises(ValueError, match=r"set data\.rename 0"):
        DPOConfig(data=DataConfig(rename=0.5))
    for kind in (DataConfig, WarmStart):
        with pytest.raises(ValueError, match="probabilities, from 0 to 1"):
            kind(rename=1.5)
    for copies in ({"copies": 2}, {"copies": 0, "rename": 0.5}):
        for kind, name in ((DataConfig, "data"), (WarmStart, "warm_start")):
            with pytest.raises(ValueError, match=rf"set {name}\.rename, too"):
                kind(**copies)


@pytest.mark.long
def test_runs_rename_what_they_train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[tuple[float, int]] = []

    def recording(episodes: Sequence[Episode], worlds: Any, share: float, seed: int) -> list[Episode]:
        found = rename_share(episodes, worlds, share, seed)
        renamed.append((share, sum(texts(a) != texts(b) for a, b in zip(episodes, found, strict=True))))
        return found

    monkeypatch.setattr(Coin, "interchangeable_names", _sides)
    monkeypatch.setattr("agentgym_trainer.trainers.warm_start.rename_share", recording)
    monkeypatch.setattr("agentgym_trainer.trainers.training_data.rename_share", recording)
    dagger = ("--warm-start.dagger.rounds", "1", "--warm-start.dagger.episodes", "20")
    flags = ("--steps", "1", "--evaluation.no-test", "--warm-start.rename", "1", "--warm-start.copies", "2", *dagger)
    assert train_cli(coin_flags(tmp_path / "rl", *flags)) == 0
    run = RunFolder(tmp_path / "sft")
    copied = ("--data.rename", "1", "--data.copies", "2")
    assert train_cli(sft_flags(run.path, *copied, "--epochs", "1", "--evaluation.no-test")) == 0
    assert [share for share, _ in renamed] == [1.0] * 3
    # A permutation of two names is the identity in half of the cases.
    for (_, count), episodes in zip(renamed, (2 * 96, 20, 2 * 64), strict=True):
        assert 0.2 < count / episodes < 0.8
    assert len(run.read_data()) == 64
    assert all(episode.success for episode in run.read_data())  # saved with the original names
    for turn in (turn for episode in run.read_data() for turn in episode.turns):
        assert turn.action == turn.reply.text


def _sides(_: Coin) -> Names:
    return (("heads", "tails"),)


@pytest.mark.parametrize("letters", ["st\u0131ck", "\u017ftick"])
def test_words_that_only_match_without_case_keep_their_letters(letters: str) -> None:
    (episode, *_), names = play("textcraft", "react")
    (first, *rest) = episode.turns
    said = replace(first, reply=replace(first.reply, text=f"Thought: {letters}"))
    renamed = rename(replace(episode, turns=(said, *rest)), names, np.random.default_rng(0))
    assert renamed.turns[0].reply.text == f"Thought: {letters}"
