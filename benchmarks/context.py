"""Compaction against none in SciWorld, in a context of a quarter of an episode, by models from scratch.

    uv run python benchmarks/context.py --seeds 0
    uv run python benchmarks/context.py --report docs/results --seeds 0

A model from scratch imitates the expert on tasks with two inclined planes, whose letters are permuted in copies of the
expert's episodes, so that it learns to copy them. A quarter context has a quarter of the tokens that nine in ten whole
episodes of the expert on training tasks stay within. The arms differ in their context and agent alone: the expert's
episodes are played by the arm's agent, and cut to its context. Seeds share the data and the tokenizer, and the arms of
a seed the random weights. A batch has the contexts of about four episodes in all arms. Test tasks are played at a
temperature of 0.5.

The primary outcome, fixed before any test task was played: success on test tasks of compaction minus none, both in the
quarter context, paired by task, over the episodes of all seeds. Secondary: success in the full context, which was meant
as the upper reference, and the share of none's episodes that end because the context is full. Tasks, copies and
temperature were chosen anew after a first version's full context had no success in 84 test episodes, and the full
context that is trained twice was added after the full context of this version had none; by then neither of the two
compared arms had played a test task.

The first command finishes what isn't recorded in --out, the second writes a page and JSON from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs import Episode, TurnContext, read_episodes
from agentgym_eval.metrics.comparison import Comparison, Difference, compare
from agentgym_eval.metrics.failure_causes import LABELS, failure_cause
from agentgym_eval.metrics.intervals import Interval, share
from agentgym_eval.metrics.summary import by_task, success_of
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.config import DataConfig, Evaluation, Generation, Optimizer, SFTConfig, WorldConfig
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.tokens.chat import Chat
from harness import markdown, run_parallel, show, study_arguments, write_json, write_report
from outcomes import commits
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
    from agentgym_trainer.tokens.trajectory import Trimming, trajectory

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
    trimming = Trimming(measured.quarter)
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


def play(model: Path, config: SFTConfig, path: Path, split: str, *, quick: bool) -> list[Episode]:
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


# Reporting.


def parameters(study: Study) -> int:
    """Return the number of weights of the models."""
    from safetensors.torch import load_file

    return sum(weight.numel() for weight in load_file(study.start(study.seeds[0]) / "model.safetensors").values())


@dataclass(frozen=True, slots=True)
class Played:
    """The test episodes of an arm over all seeds."""

    arm: Arm
    seeds: tuple[tuple[Episode, ...], ...]

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """The episodes of all seeds."""
        return tuple(chain.from_iterable(self.seeds))

    @property
    def success(self) -> Interval:
        """Success over tasks, each with its episodes of all seeds."""
        return share([success_of(attempts) for attempts in by_task(self.episodes).values()])

    @property
    def score(self) -> float:
        """Mean score."""
        return float(np.mean([episode.score or 0.0 for episode in self.episodes if not episode.failed]))

    @property
    def full_contexts(self) -> float:
        """Share of the episodes that ended because the context was full, or a reply too long."""
        return float(np.mean([episode.stop == "length" for episode in self.episodes]))

    @property
    def ended_by_feedback(self) -> float:
        """Share of the episodes that a full context ended, in which the last observation says what would be valid."""
        last = [episode.turns[-1].observation for episode in self.episodes if episode.stop == "length"]
        return float(np.mean([text.startswith(("No known action", "Ambiguous")) for text in last or [""]]))

    @property
    def causes(self) -> dict[str, float]:
        """Share of the episodes that failed for each cause."""
        causes = [failure_cause(episode) for episode in self.episodes]
        found = [cause.kind for cause in causes if cause is not None]
        return {kind: found.count(kind) / len(causes) for kind in sorted(set(found), key=found.count, reverse=True)}

    @property
    def turns(self) -> float:
        """Mean number of actions."""
        return float(np.mean([sum(turn.kind == "act" for turn in episode.turns) for episode in self.episodes]))

    @property
    def summaries(self) -> float:
        """Mean number of summaries."""
        return float(np.mean([sum(turn.kind == "summary" for turn in episode.turns) for episode in self.episodes]))


def read_played(study: Study, arm: Arm) -> Played:
    """Read the test episodes of an arm.

    Raises:
        SystemExit: If a run isn't finished.
    """
    files = [study.run(arm, seed) / PLAYED for seed in study.seeds]
    if missing := [str(file.parent) for file in files if not file.exists()]:
        raise SystemExit(f"The runs {', '.join(missing)} aren't finished; run the script without --report first.")
    return Played(arm, tuple(tuple(read_episodes(file)) for file in files))


def compare_arms(first: Played, second: Played) -> Comparison:
    """Compare two arms over the episodes of all seeds, paired by task."""
    return compare(first.episodes, second.episodes, names=(first.arm.name, second.arm.name))


def report(study: Study, folder: Path, command: str) -> None:
    """Write the page and JSON."""
    measured = study.measured
    whole, none, compact, _ = found = [read_played(study, arm) for arm in ARMS]
    primary, reference = compare_arms(none, compact), compare_arms(whole, compact)
    by_seed = [
        compare(a, b, names=(none.arm.name, compact.arm.name)).success
        for a, b in zip(none.seeds, compact.seeds, strict=True)
    ]
    rows = [_row(arm, measured) for arm in found]
    show("Success on test tasks", rows)
    causes = [_cause_row(arm) for arm in found]
    show("Causes of failure", causes)
    example = next((e for e in compact.episodes if e.success and any(t.kind == "summary" for t in e.turns)), None)
    summaries = [turn.reply.text for turn in example.turns if turn.kind == "summary"] if example else ["(none)"]
    page = _PAGE.format(
        command=command,
        commit=commits([study.run(arm, seed) for arm in ARMS for seed in study.seeds]),
        table=markdown(rows),
        causes=markdown(causes),
        primary=_difference(primary.success),
        by_seed="; ".join(f"seed {n}: {_difference(at)}" for n, at in zip(study.seeds, by_seed, strict=True)),
        reference=_difference(reference.success),
        score=_difference(primary.score),
        full=f"{none.full_contexts:.0%}",
        compact_full=f"{compact.full_contexts:.0%}",
        feedback=f"{compact.ended_by_feedback:.0%}",
        decided=sum(episode.stop == "terminated" for episode in compact.episodes),
        right=sum(bool(episode.success) for episode in compact.episodes),
        none_actions=f"{none.turns:.1f}",
        compact_summaries=f"{compact.summaries:.1f}",
        tasks=primary.tasks,
        samples=SAMPLES,
        names=" and ".join(f"`{name}`" for name in TASKS),
        episodes=measured.episodes,
        actions=f"{measured.actions:.0f}",
        whole=f"{measured.whole:.0f}",
        quarter=measured.quarter,
        limit=measured.limit,
        first=f"{measured.first:.0f}",
        expert_summary=f"{measured.summary:.0f}",
        expert_summaries=f"{measured.summaries:.1f}",
        longest=f"{measured.longest:.0f}",
        fit=f"{measured.fit:.1%}",
        failed=sum(episode.failed for arm in found for episode in arm.episodes),
        copies=COPIES,
        temperature=TEMPERATURE,
        turns=TURNS,
        parameters=parameters(study),
        summary=summaries[-1],
    )
    record = {
        "command": command,
        "commit": commits([study.run(arm, seed) for arm in ARMS for seed in study.seeds]),
        "seeds": study.seeds,
        "measured": measured,
        "quarter": measured.quarter,
        "limit": measured.limit,
        "arms": [_record(arm, measured) for arm in found],
        "compaction minus none": primary.to_dict(),
        "compaction minus none, by seed": [at.to_dict() for at in by_seed],
        "compaction minus full context": reference.to_dict(),
    }
    write_report(folder, "context", page, record)


def _difference(at: Difference) -> str:
    return f"{100 * at.difference.mean:+.1f} points ({100 * at.difference.low:+.1f} to {100 * at.difference.high:+.1f})"


def _row(played: Played, measured: Measured) -> dict[str, str]:
    success = played.success
    return {
        "arm": played.arm.name,
        "agent": f"`{played.arm.agent(measured)}`",
        "context": str(played.arm.context(measured)),
        "success, %": f"{100 * success.mean:.1f} ({100 * success.low:.1f} to {100 * success.high:.1f})",
        "each seed": ", ".join(f"{100 * replace(played, seeds=(seed,)).success.mean:.1f}" for seed in played.seeds),
        "score, %": f"{100 * played.score:.1f}",
        "ended by a full context": f"{played.full_contexts:.0%}",
        "actions": f"{played.turns:.1f}",
        "summaries": f"{played.summaries:.1f}",
    }


def _cause_row(played: Played) -> dict[str, str]:
    kinds = ("wrong_answer", "loop", "invalid_actions", "format", "token_budget", "turn_budget")
    causes = played.causes
    return {"arm": played.arm.name, **{LABELS[kind]: f"{causes.get(kind, 0.0):.0%}" for kind in kinds}}


def _record(played: Played, measured: Measured) -> dict[str, Any]:
    return {
        "arm": played.arm.name,
        "agent": played.arm.agent(measured),
        "context": played.arm.context(measured),
        "success": played.success.to_dict(),
        "by_seed": [replace(played, seeds=(seed,)).success.to_dict() for seed in played.seeds],
        "score": played.score,
        "ended_by_a_full_context": played.full_contexts,
        "causes": played.causes,
        "actions": played.turns,
        "summaries": played.summaries,
        "episodes": len(played.episodes),
        "failed": sum(episode.failed for episode in played.episodes),
    }


_PAGE = """# Compaction in a quarter of an episode's context

```sh
{command}
```

At commit {commit}.

An agent with `compact:N` writes a summary when its context has more than N tokens, and goes on from the first
observation, the summary and the current observation ([habits](../agents.md#habits)). This study measures what
that is worth where the context is a quarter of what an episode needs.

**Tasks.** SciWorld's {names}: go to the workshop, let a block slide down two inclined planes, measure both times with
the stopwatch, and focus on the plane that the task asks for. Whole episodes of the expert on {episodes} training tasks
have {actions} actions on average, and nine in ten of them at most {whole} tokens of the models: a quarter is {quarter}.
The first observation has up to {first}.

**Models.** A model of {parameters:,} parameters from scratch, with `bare` replies and without instructions, imitates
the expert. The expert's episodes are played by the arm's agent and cut to the arm's context, and the tokens of
summaries are trained like those of actions. Each episode is trained on once in each of {copies} copies, in which the
letters of the planes are permuted: without that, a model learns the episodes by heart. Under compaction at {limit}
tokens the expert writes {expert_summaries} summaries of {expert_summary} tokens in an episode; {fit} of its completion
tokens fit into the quarter context. It sums up its last eight actions with what it saw after them, and what remains to
be done.

**Outcome.** {tasks} test tasks, {samples} episodes of each and seed at a temperature of {temperature}, at most {turns}
actions. The primary outcome was fixed before any test task was played: success of compaction minus none, both in the
quarter context. Settings of an earlier version (two task types, no copies, temperature 1) were changed after its full
context had no success in 84 test episodes; its other arms were never played.

{table}

Success with 95% intervals over tasks. **Primary outcome: compaction minus none {primary}**, paired by task over the
episodes of all seeds ({by_seed}). These intervals treat the trained models as fixed. Secondary: compaction minus full
context {reference}. Not declared beforehand: the score of compaction minus that of none, {score}; it is ScienceWorld's,
with partial credit for steps of the experiment. The second full context continues from the first, on the same data,
since the first had no success: it shows what the model still learns.

**Does none fail because the context is full?** {full} of its episodes end there, after {none_actions} actions on
average. Shares of all episodes that failed, by [cause](../evaluation.md#why-episodes-fail):

{causes}

A loop, invalid actions or missing actions in the last turns count as the cause also of an episode that a full context
then ends. Failed episodes, which would be faults of the environment: {failed}.

**Under compaction** {compact_full} of the episodes still end because the context is full, {feedback} of them after an
action that ScienceWorld doesn't know or asks about, mostly one that names another plane than the task's two. The answer
takes more than half of the quarter context, and occurs in no episode of the expert. {decided} episodes reach the
decision, and {right} of them decide right; guessing would be right in half.

The last summary in a successful episode under compaction ({compact_summaries} summaries per episode on average):

```text
{summary}
```

**The full context is no upper reference here.** These models hardly learn to copy the letter of a plane over a long
context, and then repeat themselves until the horizon. Compaction makes that easier beside keeping the episode going:
contexts are short, every summary repeats the letters, and summaries are more tokens to learn from. Compared with none,
whose episodes end before the experiment is over, all of that is in the difference; it isn't the value of the memory
alone.

What this study can't tell: the variation from one training run to the next, if there is one seed; whether a pretrained
model would gain as much; and what reinforcement learning adds, since nothing here is trained on rewards. The tokenizer
merges whole phrases, so a token is longer than a language model's.
"""


def main() -> None:
    """Finish all runs, or report them."""
    settings, command = study_arguments(__doc__)
    study = Study(settings.out, tuple(settings.seeds), settings.quick)
    if settings.report is not None:
        report(study, settings.report, command)
        return
    run_parallel([partial(prepare, study)], 1)
    for again in (False, True):
        arms = [arm for arm in ARMS if arm.again == again]
        run_parallel([partial(finish, study, arm, seed) for seed in study.seeds for arm in arms], settings.processes)


if __name__ == "__main__":
    main()
