"""Tests of AgentEvol in two coin environments: exploration, training data, and resuming."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Episode, read_episodes
from agentgym_eval.data.card import duplicate_key
from agentgym_eval.metrics.failure_causes import KINDS, failure_causes
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.storage.distances import read_distances
from agentgym_eval.storage.store import Store
from agentgym_trainer.config import (
    AgentEvolConfig,
    DataConfig,
    Evaluation,
    Exploration,
    Generation,
    Lora,
    Optimizer,
    WorldConfig,
)
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.models.load import load_model, with_lora
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.trajectory import trajectory
from agentgym_trainer.trainers.agent_evol import Evolution
from agentgym_trainer.trainers.exploration import Explorer
from agentgym_trainer.trainers.setup import play_tasks
from coin_world import ENV, OTHER
from faulty_runs import no_space_for, stderr_text
from forked_processes import train_with_signals
from metric_lines import without_measured
from rich.console import Console
from toy_learner import SignalPoint, StopAfterCalls, train_cli
from transformers import AutoConfig

SAMPLES = 8
# A random policy succeeds in an eighth of the first environment's episodes; in the second, heads is always right.
CONFIG = AgentEvolConfig(
    model="scratch",
    scratch=Scratch(vocab=400, hidden=32, layers=1, heads=2),
    world=WorldConfig(ENV, agent="bare", instructions=False, backend="inline"),
    extra_worlds=(WorldConfig(OTHER, agent="bare", instructions=False, backend="inline"),),
    horizon=FixedHorizon(3),
    generation=Generation(max_tokens=6, max_context=200),
    optimizer=Optimizer(lr=1e-2),
    evaluation=Evaluation(tasks=3, samples=2, ks=(1, 2), forensics=True),
    data=DataConfig(episodes=64, noise=1.0, imitate_noise=True, keep="all"),
    epochs=3,
    batch=4,
    save_every=12,
    device="cpu",
    slots=8,
    iterations=2,
    exploration=Exploration(samples=SAMPLES, known=True, most=0),
    base=0.1,
)
EXPLORED = (16 + 10) * SAMPLES


def create_run(path: Path, config: AgentEvolConfig = CONFIG) -> RunFolder:
    """Create the folder of a run that has yet to start."""
    return RunFolder.create(path, config, "coins")


def resume(folder: RunFolder) -> int:
    """Return the exit code of `train --resume`."""
    return train_cli(["--resume", str(folder.path)])


def iteration(folder: RunFolder, number: int) -> Path:
    return folder.path / f"iteration-{number:04d}"


def comparable_episodes(path: Path) -> list[dict[str, Any]]:
    """Return a file's episodes without what differs between runs: timings, paths, and log-probabilities.

    The last bits of log-probabilities depend on what was computed in the same batch.
    """

    def without_logprobs(turn: dict[str, Any]) -> dict[str, Any]:
        sample = turn["reply"]["sample"]
        return turn | {"reply": turn["reply"] | {"sample": sample and sample | {"logprobs": None}}}

    records = [
        json.loads(e.to_json()) | {"seconds": None, "policy": Path(e.policy).parts[-3:]} for e in read_episodes(path)
    ]
    return [record | {"turns": [without_logprobs(turn) for turn in record["turns"]]} for record in records]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def metrics_lines(folder: RunFolder) -> list[dict[str, Any]]:
    return without_measured(folder.read_metrics())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An uninterrupted run."""
    folder = create_run(tmp_path_factory.mktemp("uninterrupted") / "run")
    assert resume(folder) == 0
    return folder


@pytest.mark.long
def test_every_iteration_writes_a_folder_and_a_metrics_line(uninterrupted: RunFolder) -> None:
    lines = metrics_lines(uninterrupted)
    assert [(line["step"], line["iteration"]) for line in lines] == [(1, 0), (2, 1), (3, 2)]
    for number, line in enumerate(lines):
        folder = iteration(uninterrupted, number)
        explored = {"sampled.jsonl", "kept.jsonl", "vocabulary.json.gz"} if number else set[str]()
        assert {path.name for path in folder.iterdir()} == explored | {"sft"}
        run = RunFolder(folder / "sft")
        assert not run.checkpoints.exists()
        assert line["sampled"]["episodes"] == (EXPLORED if number else 0)
        assert line["worlds"].keys() == {"coin/Coin-v0", "coin/OneSided-v0"}
        for name in ("kept", "data"):
            assert sum(world[name] for world in line["worlds"].values()) == line[name]
        assert line["data"] == len(run.read_data())
        assert line["dev"].keys() == line["worlds"]["coin/Coin-v0"]["dev"].keys() == {"sampled", "greedy"}
        file = uninterrupted.evaluation_file(line["step"], "sampled")
        causes = failure_causes(episodes := list(read_episodes(file)), read_distances(file))
        counts = Counter(cause.kind for cause in causes if cause)
        assert any(read_distances(file).values())
        assert line["dev_failures"] == {kind: counts[kind] / len(episodes) for kind in KINDS}
    assert uninterrupted.evaluated_steps("sampled") == uninterrupted.evaluated_steps("greedy") == [0, 1, 2, 3]
    assert json.loads(uninterrupted.summary.read_text())["worlds"].keys() == {"coin/Coin-v0", "coin/OneSided-v0"}
    for decoding in ("sampled", "greedy"):
        assert uninterrupted.evaluated_steps(decoding, test=True) == [0, 3]
    assert not any(
        RunFolder(iteration(uninterrupted, n) / "sft").evaluated_steps("sampled", test=True) for n in range(3)
    )
    assert uninterrupted.curve.stat().st_size > 10_000
    assert uninterrupted.model.resolve() == iteration(uninterrupted, 2) / "sft" / "model"


@pytest.mark.long
def test_an_adapter_is_merged_into_the_initial_model(uninterrupted: RunFolder, tmp_path: Path) -> None:
    model, chat = load_model(str(uninterrupted.model), dtype=torch.float32, device=torch.device("cpu"))
    with_lora(model, Lora(rank=2), seed=0).save_pretrained(tmp_path / "adapter")
    path = str(tmp_path / "adapter")
    chat.tokenizer.save_pretrained(path)
    folder = create_run(tmp_path / "run", replace(CONFIG, model=path, iterations=1, epochs=1))
    assert resume(folder) == 0
    assert AutoConfig.from_pretrained(folder.start).hidden_size == 32  # an adapter has no such file
    config = json.loads((iteration(folder, 1) / "sft" / "run.json").read_text())["config"]
    assert config["model"] == str(folder.start)
    assert folder.evaluated_steps("sampled", test=True) == [0, 2]


@pytest.mark.long
def test_success_rises_with_training_on_successful_episodes(uninterrupted: RunFolder) -> None:
    """Behavioral cloning of the random expert has no preference; training on successful episodes teaches heads."""
    success = [line["worlds"]["coin/OneSided-v0"]["sampled"]["success"] for line in metrics_lines(uninterrupted)[1:]]
    assert success[0] < 0.4
    assert success[1] > success[0] + 0.05


# Training data.


def max_logprob_gap(folder: Path, recorded: Episode) -> float:
    """Return the largest difference between a model's and the rollout log-probabilities of an episode."""
    model, _ = load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))
    gaps = [0.0]
    for segment in trajectory(recorded).segments:
        with torch.no_grad():
            logp = model(torch.tensor([segment.ids])).logits[0].log_softmax(-1)
        gaps += [
            abs(logp[i - 1, token].item() - segment.logprobs[i])
            for i, token in enumerate(segment.ids)
            if segment.loss_mask[i]
        ]
    return max(gaps)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.long
def test_iterations_train_on_episodes_of_the_previous_model(uninterrupted: RunFolder, number: int) -> None:
    kept = list(read_episodes(iteration(uninterrupted, number) / "kept.jsonl"))
    models = {n: iteration(uninterrupted, n) / "sft" / "model" for n in range(3)}
    assert {episode.policy for episode in kept} == {str(models[number - 1])}
    other_models = [models[n] for n in models if n != number - 1] + [uninterrupted.start]
    for recorded in kept[:3]:
        assert max_logprob_gap(models[number - 1], recorded) < 1e-4
        assert min(max_logprob_gap(other, recorded) for other in other_models) > 1e-2
    # The training data also has a share of the base data, and what earlier iterations kept.
    data = RunFolder(iteration(uninterrupted, number) / "sft").read_data()
    policies = Counter(recorded.policy for recorded in data)
    assert policies.keys() == {"oracle:1", *(str(models[n]) for n in range(number))}
    assert policies["oracle:1"] <= round(CONFIG.base * len(uninterrupted.read_data()))
    base = {duplicate_key(recorded) for recorded in uninterrupted.read_data()}
    earlier = [
        recorded for n in range(1, number) for recorded in read_episodes(iteration(uninterrupted, n) / "kept.jsonl")
    ]
    explored = {duplicate_key(recorded) for recorded in [*earlier, *kept]} - base
    assert {duplicate_key(recorded) for recorded in data} - base == explored
    assert explored - {duplicate_key(recorded) for recorded in earlier}


@pytest.mark.long
def test_every_task_is_sampled_equally_often_and_successes_are_kept(uninterrupted: RunFolder) -> None:
    for number in (1, 2):
        sampled = list(read_episodes(iteration(uninterrupted, number) / "sampled.jsonl"))
        counts = Counter((episode.env, episode.task_id, episode.split) for episode in sampled)
        assert set(counts.values()) == {SAMPLES}
        assert {split for *_, split in counts} == {"train"}
        kept = list(read_episodes(iteration(uninterrupted, number) / "kept.jsonl"))
        assert kept == [episode for episode in sampled if episode.success]
    first, second = (comparable_episodes(iteration(uninterrupted, number) / "sampled.jsonl") for number in (1, 2))
    assert first != second


@pytest.mark.long
def test_training_on_base_data_alone_reproduces_the_cloned_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each iteration starts from the initial model, not from the previous one."""
    config = replace(CONFIG, base=0.0, exploration=Exploration(tasks=1, min_score=1.0), iterations=1)
    folder = create_run(tmp_path / "run", config)
    assert resume(folder) == 1
    stderr = " ".join(capfd.readouterr().err.split())
    assert f"There is nothing to train on in iteration 1: none of the episodes in {iteration(folder, 1)}" in stderr
    assert "Traceback" not in stderr
    record = json.loads(folder.settings.read_text())
    record["config"]["base"] = 1.0
    folder.settings.write_text(json.dumps(record))
    assert resume(folder) == 0
    assert weights(iteration(folder, 1) / "sft" / "model") == weights(iteration(folder, 0) / "sft" / "model")
    assert [line["data"] for line in metrics_lines(folder)] == [metrics_lines(folder)[0]["data"]] * 2


# Interruptions.


def assert_same(run: RunFolder, uninterrupted: RunFolder) -> None:
    """Assert that two runs have the same files with the same content, except for timings."""
    assert metrics_lines(run) == metrics_lines(uninterrupted)
    for number in range(3):
        folder, expected = iteration(run, number), iteration(uninterrupted, number)
        for name in ("sampled.jsonl", "kept.jsonl") if number else ():
            assert comparable_episodes(folder / name) == comparable_episodes(expected / name)
        assert weights(folder / "sft" / "model") == weights(expected / "sft" / "model")
    assert sorted(path.relative_to(run.path) for path in run.path.rglob("*")) == sorted(
        path.relative_to(uninterrupted.path) for path in uninterrupted.path.rglob("*")
    )


@pytest.mark.long
def test_stopped_exploration_resumes_without_repeating_episodes(
    uninterrupted: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, played = copy_after_first_iteration(uninterrupted, tmp_path), Counter[tuple[str, str, str, int]]()
    append = Store.append

    def count_append(store: Store, recorded: Episode) -> None:
        played[recorded.policy, recorded.env, recorded.task_id, recorded.sample] += 1
        append(store, recorded)

    monkeypatch.setattr(Store, "append", count_append)
    with monkeypatch.context() as patch:
        patch.setattr("agentgym_trainer.trainers.agent_evol.train", _train_with_stop_after(40))
        assert resume(folder) == 130
    assert f"Saved after step 2; resume with: uv run train --resume {folder.path}" in " ".join(
        capfd.readouterr().err.split()
    )
    assert played.total() == 40
    assert resume(folder) == 0
    assert set(played.values()) == {1}
    assert played.total() == EXPLORED
    assert_same(folder, uninterrupted)


def copy_after_first_iteration(uninterrupted: RunFolder, parent: Path) -> RunFolder:
    """Copy a run as of the end of its first iteration."""
    folder = RunFolder(parent / "run")
    shutil.copytree(uninterrupted.path, folder.path, symlinks=True)
    shutil.rmtree(iteration(folder, 2))
    folder.rewind(2)
    folder.model.unlink()
    folder.model.symlink_to(iteration(folder, 1).relative_to(folder.path) / "sft" / "model")
    return folder


def _train_with_stop_after(times: int) -> Any:
    """Return a `train` that is stopped from its nth check for a stop request on."""
    from agentgym_trainer.trainers.agent_evol import train

    return lambda config, folder, tracker, _: train(config, folder, tracker, StopAfterCalls(times))


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        # From halfway on, no reply returns.
        SignalPoint("agentgym_trainer.rollout.runner:EnginePolicy", "reply", EXPLORED, signal.SIGTERM, forever=True),
        SignalPoint("agentgym_eval.storage.store:Store", "append", EXPLORED // 2),
        SignalPoint("agentgym_trainer.trainers.trl_run:TRLRunCallback", "on_log", 5),
        SignalPoint("agentgym_trainer.trainers.sft", "train", 1),
    ],
    ids=lambda point: point.method,
)
def test_runs_ended_by_signals_resume_identically(point: SignalPoint, uninterrupted: RunFolder, tmp_path: Path) -> None:
    folder, log = copy_after_first_iteration(uninterrupted, tmp_path), tmp_path / "log"
    code = 143 if point.forever else -signal.SIGKILL
    assert train_with_signals(point, ["--resume", str(folder.path)], log) == code, log.read_text()
    assert resume(folder) == 0
    assert_same(folder, uninterrupted)


@pytest.mark.long
def test_full_disk_at_the_end_of_an_iteration(uninterrupted: RunFolder, tmp_path: Path, capfd: Any) -> None:
    folder = RunFolder(shutil.copytree(uninterrupted.path, tmp_path / "run", symlinks=True))
    folder.metrics.write_text("".join(folder.metrics.read_text().splitlines(keepends=True)[:2]))
    with no_space_for("model", "symlink_to"):
        assert resume(folder) == 1
    assert f"error: {folder.model} can't be written: [Errno 28] No space left on device" in stderr_text(capfd)
    assert resume(folder) == 0
    assert metrics_lines(folder) == metrics_lines(uninterrupted)


@pytest.mark.parametrize(("copies", "rename"), [(1, 0.0), (3, 1.0)])
def test_renamed_copies_are_no_duplicates(uninterrupted: RunFolder, tmp_path: Path, copies: int, rename: float) -> None:
    data = replace(CONFIG.data, copies=copies, rename=rename)
    evolution: Any = Evolution(replace(CONFIG, data=data, base=1.0), RunFolder(tmp_path), None, None)  # type: ignore[arg-type]
    demonstration = uninterrupted.read_data()[0]
    (kept := tmp_path / "kept.jsonl").write_text(f"{demonstration.to_json()}\n" * 2)
    assert evolution._merged(1, [demonstration] * copies * 2, [kept]) == [demonstration] * (copies * 2 if rename else 1)


# Exploration.


@pytest.mark.parametrize(("tasks", "include_known"), [(0, False), (0, True), (10, False)])
def test_tasks_missing_in_the_base_data_are_explored(tasks: int, include_known: bool) -> None:
    config = replace(CONFIG, exploration=Exploration(tasks=tasks, samples=2, known=include_known))
    with open_environments(config) as worlds:
        first, second = (world.name for world in worlds)
        base = {(first, f"coin/train/{number}") for number in range(12)}
        explorer = Explorer(config, worlds, frozenset(base), RunConsole(Console()), Stopping())
        played = Counter((world.name, spec.task_id) for world, specs in explorer.draw_episodes(1) for spec in specs)
        all_specs = Explorer(config, worlds, frozenset(), RunConsole(Console()), Stopping()).draw_episodes(1)
    if tasks:
        assert played.total() == 2 * tasks
    else:
        assert Counter(env for env, _ in played) == {first: 16 if include_known else 4, second: 10}
    assert bool(played.keys() & base) is include_known
    assert tasks or sum(len(specs) for _, specs in all_specs) == EXPLORED // SAMPLES * 2


def test_all_tasks_are_explored_if_the_base_data_has_them_all() -> None:
    config = replace(CONFIG, exploration=Exploration(samples=SAMPLES))
    with open_environments(config) as worlds:
        all_tasks = {(world.name, task.id) for world in worlds for task in world.tasks.train}
        explorer = Explorer(config, worlds, frozenset(all_tasks), RunConsole(Console()), Stopping())
        assert sum(len(specs) for _, specs in explorer.draw_episodes(1)) == EXPLORED


def test_the_expert_can_repeat_a_few_tasks() -> None:
    with open_environments(CONFIG) as worlds:
        played = list(play_tasks(Oracle(1.0), CONFIG, worlds, 40, tasks=6))
    assert len(played) == 40
    assert len({(episode.env, episode.task_id) for episode in played}) == 6


def test_what_an_environment_draws_differs_between_demonstrations_of_a_task() -> None:
    world = WorldConfig("agentgym/TextCraft-v0", ("depth=(1,1)", "layout=episode"), agent="bare", instructions=False)
    config = replace(CONFIG, world=world, extra_worlds=())
    with open_environments(config) as worlds:
        first, again = ([*play_tasks(Oracle(), config, worlds, 8, tasks=1)] for _ in range(2))
    texts = [episode.turns[0].observation for episode in first]
    assert len({*texts}) == 8
    assert texts == [episode.turns[0].observation for episode in again]


def test_experts_play_a_task_of_each_environment_whatever_its_weight() -> None:
    rare = replace(CONFIG.extra_worlds[0], weight=0.05)
    config = replace(CONFIG, extra_worlds=(rare,))
    with open_environments(config) as worlds:
        for tasks in (2, 3):
            played = list(play_tasks(Oracle(1.0), config, worlds, 200, tasks=tasks))
            by_env = Counter(env for env, _ in {(episode.env, episode.task_id) for episode in played})
            assert len(played) == 200
            assert by_env == {worlds[0].name: tasks - 1, worlds[1].name: 1}
