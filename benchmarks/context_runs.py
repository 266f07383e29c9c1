"""The arms of the study of compaction, the expert's episodes that they imitate, and their runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from agentgym_envs import Episode, TurnContext, read_episodes
from agentgym_envs.core.tasks import Split
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.config import DataConfig, Evaluation, Generation, Optimizer, SFTConfig, WorldConfig
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.tokens.chat import Chat
from harness import write_json
from training_runs import PLAYED, finish_sft

TASKS = ("inclined-plane-determine-angle",)
EPISODES = 84
"""Expert episodes: one of each training task."""
COPIES = 16
"""Copies of each expert episode, each with other letters for the planes, so that a model has to copy them."""
TEMPERATURE = 0.5
TEST_TASKS, SAMPLES = 42, 2
FULL = 1536
"""Tokens of the full context, more than any episode of the expert has."""
REPLY = 64
"""Most tokens of a reply."""
TURNS = 50
LETTERS = "ABCDEFGHIJ"
_PLANE = re.compile(r"(?i:(?<=inclined plane ))[A-Ja-j]\b|(?<=\()[A-J](?=, [A-J]\))|(?<=\([A-J], )[A-J](?=\))")
"""The letter of a plane, in observations, in the task and in actions."""
SCRATCH = Scratch(vocab=1800, merges="phrases", hidden=96, layers=3, heads=4, context=FULL)
SFT = SFTConfig(
    model="scratch",
    scratch=SCRATCH,
    horizon=FixedHorizon(TURNS),
    optimizer=Optimizer(lr=3e-3, betas=(0.9, 0.99), schedule="linear", warmup=20, micro_tokens=4096),
    evaluation=Evaluation(tasks=1, test=False, samples=1, ks=(1,)),
    epochs=1,
    batch=4,
    slots=16,
    save_every=200,
    keep_checkpoints=1,
    device="cpu",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the expert's episodes need, in tokens of the models."""

    episodes: int
    actions: float
    """Mean number of actions of an episode."""
    whole: float
    """Tokens that nine in ten whole episodes stay within."""
    first: float
    """The same of the first observation."""
    summary: float = 0.0
    """Mean tokens of a summary."""
    summaries: float = 0.0
    """Mean number of summaries of an episode under compaction."""
    longest: float = 0.0
    """Tokens that 99% of contexts under compaction stay within, replies included."""
    fit: float = 0.0
    """Share of the completion tokens of the expert's episodes under compaction that fit into the quarter context."""
    contexts: float = 0.0
    """Mean number of contexts of an episode under compaction."""

    @property
    def quarter(self) -> int:
        """Tokens of the quarter context."""
        return round(self.whole / 4)

    @property
    def limit(self) -> int:
        """Tokens beyond which the agent compacts."""
        return self.quarter // 2


@dataclass(frozen=True, slots=True)
class Arm:
    """A context and an agent."""

    name: str
    short: str
    """Name of its run folders, and of the file of its demonstrations without `-FULL`."""
    full: bool = False
    compact: bool = False
    again: bool = False
    """Whether it continues from the model of the arm `full`, which it trains a second time on the same data."""

    def agent(self, measured: Measured) -> str:
        """Return the agent."""
        return f"bare+compact:{measured.limit}" if self.compact else "bare"

    def context(self, measured: Measured) -> int:
        """Return the tokens of the context."""
        return FULL if self.full else measured.quarter


WHOLE, NONE, COMPACT = (
    Arm("full context", "full", full=True),
    Arm("quarter context, none", "none"),
    Arm("quarter context, compaction", "compact", compact=True),
)
TWICE = Arm("full context, trained twice", "full-twice", full=True, again=True)
ARMS = (WHOLE, NONE, COMPACT, TWICE)


@dataclass(frozen=True, slots=True)
class Study:
    """All runs."""

    out: Path
    seeds: tuple[int, ...]
    quick: bool = False

    @property
    def file(self) -> Path:
        """File of what was measured on the expert's episodes; it exists if and only if they are all recorded."""
        return self.out / "data" / "measured.json"

    @property
    def measured(self) -> Measured:
        """What was measured on the expert's episodes."""
        return Measured(**json.loads(self.file.read_text(encoding="utf-8")))

    def demonstrations(self, arm: Arm) -> Path:
        """Return the file of the expert's episodes under the arm's agent."""
        return self.out / "data" / ("compact.jsonl" if arm.compact else "plain.jsonl")

    def data(self, arm: Arm) -> Path:
        """Return the file of their copies with other letters, which the arm is trained on."""
        return self.demonstrations(arm).with_suffix(".renamed.jsonl")

    def start(self, seed: int) -> Path:
        """Return the folder of a seed's random weights."""
        return self.out / f"seed-{seed}" / "start"

    def run(self, arm: Arm, seed: int) -> Path:
        """Return the run folder of an arm."""
        return self.out / f"seed-{seed}" / arm.short

    def config(self, arm: Arm, seed: int) -> SFTConfig:
        """Return the configuration of a run."""
        measured = self.measured
        world = WorldConfig("agentgym/SciWorld-v0", (f"tasks={TASKS}",), arm.agent(measured), instructions=False)
        return replace(
            SFT,
            model=str(self.run(WHOLE, seed) / "model" if arm.again else self.start(seed)),
            world=world,
            generation=Generation(max_tokens=REPLY, max_context=arm.context(measured)),
            data=DataConfig(files=(str(self.data(arm)),)),
            batch=round(SFT.batch * measured.contexts) if arm.compact else SFT.batch,
            seed=seed,
        )


# The expert's episodes.


@dataclass(frozen=True, slots=True)
class CountingOracle(Oracle):
    """The expert, which compacts where a model with this chat would."""

    chat: Chat | None = None

    def count_tokens(self, context: TurnContext) -> int:
        """Return the number of tokens of a context for the model."""
        return Oracle.count_tokens(self, context) if self.chat is None else len(self.chat.open(context.conversation))


def play_expert(agent: str, episodes: int, chat: Chat | None = None) -> list[Episode]:
    """Return the expert's episodes of training tasks under an agent."""
    from agentgym_trainer.rollout.environments import open_environments
    from agentgym_trainer.trainers.setup import play_tasks

    world = WorldConfig("agentgym/SciWorld-v0", (f"tasks={TASKS}",), agent, instructions=False)
    config = replace(SFT, world=world, generation=Generation(max_tokens=REPLY, max_context=10**6))
    with open_environments(config) as worlds:
        return list(play_tasks(CountingOracle(chat=chat), config, worlds, episodes))


def token_counts(chat: Chat, episode: Episode) -> list[int]:
    """Return the number of tokens of each of an episode's contexts."""
    from agentgym_trainer.tokens.encode import encode
    from agentgym_trainer.tokens.trajectory import trajectory

    return [len(segment.ids) for segment in trajectory(encode(chat, episode)).segments]


def prepare(study: Study) -> str:
    """Record the expert's episodes, measure them, and save the initial models, as far as it isn't done yet."""
    from agentgym_trainer.models.load import load_chat, scratch_model
    from agentgym_trainer.tokens.encode import encode
    from agentgym_trainer.tokens.trajectory import ContextLimit, Trimming, trajectory

    wanted = 12 if study.quick else EPISODES
    plain_file, compact_file = (study.demonstrations(arm) for arm in (WHOLE, COMPACT))
    if not plain_file.exists():
        write_episodes(plain_file, play_expert("bare", wanted))
    plain = list(read_episodes(plain_file))
    if not study.data(WHOLE).exists():
        write_episodes(study.data(WHOLE), renamed(plain))
    # The tokenizer has to know the words of summaries before it can tell when they are due: by an estimate here.
    corpus_file = plain_file.with_name("tokenizer.jsonl")
    if not corpus_file.exists():
        write_episodes(corpus_file, play_expert("bare+compact:300", min(64, wanted)))
    for seed in study.seeds:
        if not study.start(seed).exists():
            corpus = renamed([*plain, *read_episodes(corpus_file)])
            model, chat = scratch_model(SCRATCH, list(corpus), seed=seed)
            unfinished = study.start(seed).with_name("unfinished")
            model.save_pretrained(unfinished)
            chat.tokenizer.save_pretrained(unfinished)
            unfinished.rename(study.start(seed))
    if study.file.exists() and study.measured.contexts:
        return "the expert's episodes"
    chat = load_chat(str(study.start(study.seeds[0])))
    whole = [sum(token_counts(chat, episode)) for episode in plain]
    first = [trajectory(encode(chat, episode)).segments[0].loss_mask.index(True) for episode in plain]
    actions = float(np.mean([len(episode.turns) for episode in plain]))
    measured = Measured(len(plain), actions, float(np.quantile(whole, 0.9)), float(np.quantile(first, 0.9)))
    write_json(study.file, measured)  # the other arms need no more
    if not compact_file.exists():
        write_episodes(compact_file, play_expert(COMPACT.agent(measured), wanted, chat))
    compact = list(read_episodes(compact_file))
    write_episodes(study.data(COMPACT), renamed(compact))
    trimming = Trimming(ContextLimit(measured.quarter))
    for episode in compact:
        for segment in trajectory(encode(chat, episode)).segments:
            trimming.trim(segment)
    summaries = [turn.reply.text for episode in compact for turn in episode.turns if turn.kind == "summary"]
    counts = list(chain.from_iterable(token_counts(chat, episode) for episode in compact))
    measured = replace(
        measured,
        summary=float(np.mean([len(chat.reply_ids(text)) for text in summaries])),
        summaries=len(summaries) / len(compact),
        longest=float(np.quantile(counts, 0.99)),
        fit=1 - trimming.lost / trimming.total,
        contexts=len(counts) / len(compact),
    )
    write_json(study.file, measured)
    return "the expert's episodes"


def renamed(episodes: Sequence[Episode]) -> Iterator[Episode]:
    """Yield `COPIES` copies of each episode, each with the letters of planes permuted in all of its texts."""
    rng = np.random.default_rng(0)
    for episode in (each for each in episodes for _ in range(COPIES)):
        letters = dict(zip(LETTERS, rng.permutation(list(LETTERS)).tolist(), strict=True))

        def other(found: re.Match[str], letters: Mapping[str, str] = letters) -> str:
            letter = letters[found[0].upper()]
            return letter if found[0].isupper() else letter.lower()

        rename = partial(_PLANE.sub, other)
        turns = tuple(
            replace(
                turn,
                observation=rename(turn.observation),
                reply=replace(turn.reply, text=rename(turn.reply.text)),
                action=turn.action and rename(turn.action),
            )
            for turn in episode.turns
        )
        yield replace(episode, turns=turns, final_observation=rename(episode.final_observation))


def write_episodes(file: Path, episodes: Iterable[Episode]) -> None:
    """Write episodes to a file, which doesn't exist before it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text("".join(f"{episode.to_json()}\n" for episode in episodes), encoding="utf-8")
    unfinished.rename(file)


# Running.


def finish(study: Study, arm: Arm, seed: int) -> str:
    """Train an arm and play the test tasks, as far as it isn't done yet; return its name."""
    path, config = study.run(arm, seed), study.config(arm, seed)
    model = finish_sft(config, path)
    if not (path / PLAYED).exists():
        write_episodes(path / PLAYED, play(model, config, path, "test", quick=study.quick))
    return f"{arm.name}, seed {seed}"


def play(model: Path, config: SFTConfig, path: Path, split: Split, *, quick: bool) -> list[Episode]:
    """Play the held-out tasks of a split with a model, in the context of its configuration."""
    from agentgym_eval.runs.environments import spread
    from agentgym_trainer.rollout.environments import episode_specs, open_environments
    from agentgym_trainer.rollout.play import engine_policy
    from agentgym_trainer.rollout.runner import RolloutRequest
    from agentgym_trainer.trainers.setup import saved_model

    with open_environments(config) as (world,), saved_model(config, str(model), path, print, lambda: None) as opened:
        rollouts, chat = opened
        held_out = world.tasks.split(split)
        specs = episode_specs(spread(held_out, 4 if quick else TEST_TASKS), samples=SAMPLES, seed=config.seed)
        policy = engine_policy(config, rollouts.engine, chat, temperature=TEMPERATURE)
        return list(rollouts.play([RolloutRequest(world, specs, TURNS)], policy))
