"""AgentEvol in two worlds of coins: who played what, what is learned from, and that interruptions don't show."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from agentgym_envs import Episode, read_episodes
from agentgym_eval.data.card import duplicate_key
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.storage.store import Store
from agentgym_trainer.config import (
    AgentEvolConfig,
    DataConfig,
    Evaluation,
    Exploration,
    Generation,
    Optimizer,
    WorldConfig,
)
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.models.load import load_model
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.trajectory import trajectory
from agentgym_trainer.trainers.agent_evol import Evolution, distinct, select_training_episodes
from agentgym_trainer.trainers.exploration import Explorer
from agentgym_trainer.trainers.setup import play_tasks
from coin_world import ENV, OTHER
from forked_processes import train_until
from rich.console import Console
from toy_learner import AskedAfter, Moment, episode, train_cli

SAMPLES = 8
# Whoever plays at random in the first world is right in every eighth episode; in the second, heads is always right.
CONFIG = AgentEvolConfig(
    model="scratch",
    scratch=Scratch(vocab=400, hidden=32, layers=1, heads=2),
    world=WorldConfig(ENV, agent="bare", instructions=False, backend="inline"),
    extra_worlds=(WorldConfig(OTHER, agent="bare", instructions=False, backend="inline"),),
    horizon=FixedHorizon(3),
    generation=Generation(max_tokens=6, max_context=200),
    optimizer=Optimizer(lr=1e-2),
    evaluation=Evaluation(tasks=3, samples=2, ks=(1, 2)),
    data=DataConfig(episodes=64, noise=1.0, keep="all"),
    epochs=3,
    batch=4,
    save_every=12,
    device="cpu",
    slots=8,
    iterations=2,
    exploration=Exploration(samples=SAMPLES, known=True, most=0),
    base=0.1,
)
PLAYED = (16 + 10) * SAMPLES


def begin(path: Path, config: AgentEvolConfig = CONFIG) -> RunFolder:
    """The folder of a run that has yet to go on."""
    return RunFolder.create(path, config, "coins")


def go_on(folder: RunFolder) -> int:
    """The exit code of `train --resume`."""
    return train_cli(["--resume", str(folder.path)])


def iteration(folder: RunFolder, number: int) -> Path:
    return folder.path / f"iteration-{number:04d}"


def told(path: Path) -> list[dict[str, Any]]:
    """The episodes of a file without what differs from run to run: timings, and the last bits of log-probabilities,
    which hang on what was computed together.
    """

    def plain(turn: dict[str, Any]) -> dict[str, Any]:
        sample = turn["reply"]["sample"]
        return turn | {"reply": turn["reply"] | {"sample": sample and sample | {"logprobs": None}}}

    found = [
        json.loads(e.to_json()) | {"seconds": None, "policy": Path(e.policy).parts[-3:]} for e in read_episodes(path)
    ]
    return [record | {"turns": [plain(turn) for turn in record["turns"]]} for record in found]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in folder.read_metrics()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nothing interrupted."""
    folder = begin(tmp_path_factory.mktemp("whole") / "run")
    assert go_on(folder) == 0
    return folder


@pytest.mark.long
def test_every_iteration_is_a_folder_and_a_line(whole: RunFolder) -> None:
    logged = lines(whole)
    assert [(line["step"], line["iteration"]) for line in logged] == [(1, 0), (2, 1), (3, 2)]
    for number, line in enumerate(logged):
        folder = iteration(whole, number)
        assert {path.name for path in folder.iterdir()} == ({"sampled.jsonl", "kept.jsonl"} if number else set()) | {
            "sft"
        }
        run = RunFolder(folder / "sft")
        assert not run.checkpoints.exists()
        assert line["sampled"]["episodes"] == (PLAYED if number else 0)
        assert line["worlds"].keys() == {"coin/Coin-v0", "coin/OneSided-v0"}
        for name in ("kept", "data"):
            assert sum(world[name] for world in line["worlds"].values()) == line[name]
        assert line["data"] == len(run.read_data())
        assert line["dev"].keys() == line["worlds"]["coin/Coin-v0"]["dev"].keys() == {"sampled", "greedy"}
    assert whole.evaluated_steps("sampled") == whole.evaluated_steps("greedy") == [0, 1, 2, 3]
    assert json.loads(whole.summary.read_text())["worlds"].keys() == {"coin/Coin-v0", "coin/OneSided-v0"}
    assert whole.evaluated_steps("sampled", test=True) == whole.evaluated_steps("greedy", test=True) == [0, 3]
    assert not any(RunFolder(iteration(whole, n) / "sft").evaluated_steps("sampled", test=True) for n in range(3))
    assert whole.curve.stat().st_size > 10_000
    assert whole.model.resolve() == iteration(whole, 2) / "sft" / "model"


@pytest.mark.long
def test_what_went_well_is_learned(whole: RunFolder) -> None:
    """Cloning can't tell heads from tails; who learns from what was right says heads where that is right."""
    success = [line["worlds"]["coin/OneSided-v0"]["sampled"]["success"] for line in lines(whole)[1:]]
    assert success[0] < 0.4
    assert success[1] > success[0] + 0.05


# It is not behavioural cloning.


def surprise(model: Path, found: Episode) -> float:
    """How far the log-probabilities of what was said in an episode are from those that it was sampled with, at most."""
    policy, _ = load_model(str(model), dtype=torch.float32, device=torch.device("cpu"))
    gaps = [0.0]
    for segment in trajectory(found).segments:
        with torch.no_grad():
            logp = policy(torch.tensor([segment.ids])).logits[0].log_softmax(-1)
        gaps += [
            abs(logp[i - 1, token].item() - segment.logprobs[i])
            for i, token in enumerate(segment.ids)
            if segment.loss_mask[i]
        ]
    return max(gaps)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.long
def test_what_an_iteration_learns_was_said_by_the_model_of_the_one_before(whole: RunFolder, number: int) -> None:
    kept = list(read_episodes(iteration(whole, number) / "kept.jsonl"))
    models = {n: iteration(whole, n) / "sft" / "model" for n in range(3)}
    assert {episode.policy for episode in kept} == {str(models[number - 1])}
    others = [models[n] for n in models if n != number - 1] + [whole.start]
    for found in kept[:3]:
        assert surprise(models[number - 1], found) < 1e-4
        assert min(surprise(other, found) for other in others) > 1e-2
    # And it was trained on them, beside its share of the base data and what iterations before it kept.
    data = RunFolder(iteration(whole, number) / "sft").read_data()
    by = Counter(found.policy for found in data)
    assert by.keys() == {"oracle:1", *(str(models[n]) for n in range(number))}
    assert by["oracle:1"] <= round(CONFIG.base * len(whole.read_data()))
    base = {duplicate_key(found) for found in whole.read_data()}
    earlier = [found for n in range(1, number) for found in read_episodes(iteration(whole, n) / "kept.jsonl")]
    fresh = {duplicate_key(found) for found in [*earlier, *kept]} - base
    assert {duplicate_key(found) for found in data} - base == fresh
    assert fresh - {duplicate_key(found) for found in earlier}


@pytest.mark.long
def test_every_task_is_played_so_often_and_the_successful_are_kept(whole: RunFolder) -> None:
    for number in (1, 2):
        sampled = list(read_episodes(iteration(whole, number) / "sampled.jsonl"))
        times = Counter((episode.env, episode.task_id, episode.split) for episode in sampled)
        assert set(times.values()) == {SAMPLES}
        assert {split for *_, split in times} == {"train"}
        kept = list(read_episodes(iteration(whole, number) / "kept.jsonl"))
        assert kept == [episode for episode in sampled if episode.success]
    first, second = (told(iteration(whole, number) / "sampled.jsonl") for number in (1, 2))
    assert first != second


@pytest.mark.long
def test_who_learns_from_the_base_data_alone_is_the_cloned_model_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each iteration begins with the model that the run began with, and not with the last one."""
    poor = replace(CONFIG, base=0.0, exploration=Exploration(tasks=1, min_score=1.0), iterations=1)
    folder = begin(tmp_path / "run", poor)
    assert go_on(folder) == 1
    said = " ".join(capfd.readouterr().err.split())
    assert f"There is nothing to train on in iteration 1: none of the episodes in {iteration(folder, 1)}" in said
    assert "Traceback" not in said
    record = json.loads(folder.settings.read_text())
    record["config"]["base"] = 1.0
    folder.settings.write_text(json.dumps(record))
    assert go_on(folder) == 0
    assert weights(iteration(folder, 1) / "sft" / "model") == weights(iteration(folder, 0) / "sft" / "model")
    assert [line["data"] for line in lines(folder)] == [lines(folder)[0]["data"]] * 2


# Interruptions.


def assert_same(run: RunFolder, whole: RunFolder) -> None:
    """The same files with the same content, but for timings."""
    assert lines(run) == lines(whole)
    for number in range(3):
        here, there = iteration(run, number), iteration(whole, number)
        for name in ("sampled.jsonl", "kept.jsonl") if number else ():
            assert told(here / name) == told(there / name)
        assert weights(here / "sft" / "model") == weights(there / "sft" / "model")
    assert sorted(path.relative_to(run.path) for path in run.path.rglob("*")) == sorted(
        path.relative_to(whole.path) for path in whole.path.rglob("*")
    )


@pytest.mark.long
def test_asked_to_stop_while_exploring_it_goes_on_and_plays_nothing_twice(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, played = copy_of(whole, tmp_path), Counter[tuple[str, str, str, int]]()
    append = Store.append

    def counted(store: Store, found: Episode) -> None:
        played[found.policy, found.env, found.task_id, found.sample] += 1
        append(store, found)

    monkeypatch.setattr(Store, "append", counted)
    with monkeypatch.context() as patch:
        patch.setattr("agentgym_trainer.trainers.agent_evol.train", _asked_after(40))
        assert go_on(folder) == 130
    assert f"Saved after step 2; resume with: uv run train --resume {folder.path}" in " ".join(
        capfd.readouterr().err.split()
    )
    assert played.total() == 40
    assert go_on(folder) == 0
    assert set(played.values()) == {1}
    assert played.total() == PLAYED
    assert_same(folder, whole)


def copy_of(whole: RunFolder, place: Path) -> RunFolder:
    """The same run before its second iteration."""
    folder = RunFolder(place / "run")
    shutil.copytree(whole.path, folder.path, symlinks=True)
    shutil.rmtree(iteration(folder, 2))
    folder.rewind(2)
    folder.model.unlink()
    folder.model.symlink_to(iteration(folder, 1).relative_to(folder.path) / "sft" / "model")
    return folder


def _asked_after(times: int) -> Any:
    """`train`, asked to stop from the nth time on that it wants to know."""
    from agentgym_trainer.trainers.agent_evol import train

    return lambda config, folder, tracker, _: train(config, folder, tracker, AskedAfter(times))


@pytest.mark.long
@pytest.mark.parametrize(
    "moment",
    [
        # Half of the way nobody gets a reply any more.
        Moment("agentgym_trainer.rollout.runner:EnginePolicy", "reply", PLAYED, signal.SIGTERM, forever=True),
        Moment("agentgym_eval.storage.store:Store", "append", PLAYED // 2),
        Moment("agentgym_trainer.trainers.trl_run:TRLRunCallback", "on_log", 5),
        Moment("agentgym_trainer.trainers.sft", "train", 1),
    ],
    ids=lambda moment: moment.method,
)
def test_ended_by_a_signal_and_resumed_is_as_if_nothing_had_happened(
    moment: Moment, whole: RunFolder, tmp_path: Path
) -> None:
    folder, log = copy_of(whole, tmp_path), tmp_path / "log"
    code = 143 if moment.forever else -signal.SIGKILL
    assert train_until(moment, ["--resume", str(folder.path)], log) == code, log.read_text()
    assert go_on(folder) == 0
    assert_same(folder, whole)


# What is played.


@pytest.mark.parametrize(("tasks", "known"), [(0, False), (0, True), (10, False)])
def test_tasks_that_the_base_data_lacks_are_explored(tasks: int, known: bool) -> None:
    config = replace(CONFIG, exploration=Exploration(tasks=tasks, samples=2, known=known))
    with open_environments(config) as worlds:
        first, second = (world.name for world in worlds)
        base = {(first, f"coin/train/{number}") for number in range(12)}
        explorer = Explorer(config, worlds, frozenset(base), RunConsole(Console()), Stopping())
        played = Counter((world.name, job.task_id) for world, jobs in explorer.draw_episodes(1) for job in jobs)
        everything = Explorer(config, worlds, frozenset(), RunConsole(Console()), Stopping()).draw_episodes(1)
    if tasks:
        assert played.total() == 2 * tasks
    else:
        assert Counter(env for env, _ in played) == {first: 16 if known else 4, second: 10}
    assert bool(played.keys() & base) is known
    assert tasks or sum(len(jobs) for _, jobs in everything) == PLAYED // SAMPLES * 2


def test_where_the_base_data_has_every_task_all_are_explored() -> None:
    config = replace(CONFIG, exploration=Exploration(samples=SAMPLES))
    with open_environments(config) as worlds:
        every = {(world.name, task.id) for world in worlds for task in world.tasks.train}
        explorer = Explorer(config, worlds, frozenset(every), RunConsole(Console()), Stopping())
        assert sum(len(jobs) for _, jobs in explorer.draw_episodes(1)) == PLAYED


def test_experts_can_play_few_tasks_often() -> None:
    with open_environments(CONFIG) as worlds:
        played = list(play_tasks(Oracle(1.0), CONFIG, worlds, 40, tasks=6))
    assert len(played) == 40
    assert len({(episode.env, episode.task_id) for episode in played}) == 6


# What is kept.


def _ended(score: float, *, stop: str = "terminated", said: str = "said") -> Episode:
    made = episode([None], [score], stop=stop)
    turns = tuple(replace(turn, reply=replace(turn.reply, text=said)) for turn in made.turns)
    return replace(made, turns=turns, success=None if made.failed else score == 1)


def test_what_is_kept_succeeded_or_scored_enough_and_was_not_cut() -> None:
    sampled = [_ended(1.0), _ended(0.6), _ended(0.2), _ended(1.0, stop="length"), _ended(0.0, stop="failed")]
    assert select_training_episodes(sampled, Exploration(most=0)) == sampled[:1]
    assert select_training_episodes(sampled, Exploration(keep="all", most=0)) == sampled[:3]
    assert select_training_episodes(sampled, Exploration(keep="all", min_score=0.5, most=0)) == sampled[:2]


def test_of_a_task_as_many_are_kept_as_asked_for_and_those_are_the_best() -> None:
    sampled = [_ended(0.2), _ended(0.6), _ended(1.0), _ended(1.0, said="again")]
    other = [replace(found, task_id="coin/train/2") for found in sampled[:2]]
    elsewhere = [replace(found, env=OTHER) for found in sampled[:1]]
    everything = [*sampled, *other, *elsewhere]
    assert select_training_episodes(everything, Exploration(keep="all")) == [sampled[2], other[1], elsewhere[0]]
    assert select_training_episodes(everything, Exploration(keep="all", most=2)) == [
        *sampled[2:],
        *other[::-1],
        *elsewhere,
    ]


def test_worlds_can_have_thresholds_of_their_own() -> None:
    here = [_ended(1.0), _ended(0.6), _ended(0.2), _ended(0.0, stop="failed")]
    there = [replace(found, env=OTHER) for found in here]
    rule = Exploration(thresholds=(f"{OTHER}=0.2",), most=0)
    assert select_training_episodes([*here, *there], rule) == [here[0], *there[:2]]


@pytest.mark.parametrize("threshold", ["0.5", "=0.5", "coin/Coin-v0", "coin/Coin-v0=one", "coin/Coin-v0=1", "x=-0.1"])
def test_thresholds_that_make_no_sense_are_refused(threshold: str) -> None:
    with pytest.raises(ValueError, match=f"ENV=SCORE with a score from 0 to below 1, not {threshold}"):
        Exploration(thresholds=(threshold,))


def test_of_duplicates_the_first_stays() -> None:
    first, again = _ended(1.0), replace(_ended(1.0), policy="another", sample=3)
    other, elsewhere = _ended(1.0, said="other"), replace(first, task_id="coin/train/2")
    assert distinct([first, other, again, elsewhere]) == [first, other, elsewhere]


@pytest.mark.parametrize("settings", [{"iterations": 0}, {"base": 1.5}, {"base": math.nan}])
def test_what_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        replace(CONFIG, **settings)


@pytest.mark.parametrize(("memory", "numbers"), [("all", [1, 2, 3]), ("last", [3])])
def test_what_explorations_kept_is_learned_from_all_or_the_last(
    tmp_path: Path, memory: Literal["all", "last"], numbers: list[int]
) -> None:
    run = Evolution(replace(CONFIG, memory=memory), RunFolder(tmp_path), RunConsole(Console()), Stopping())
    assert run.sources(3) == [run.iteration(number).kept for number in numbers]
    assert run.sources(0) == []
