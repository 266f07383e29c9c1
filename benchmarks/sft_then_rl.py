"""Reinforcement learning that starts from SFT against RL from scratch, matched in tokens, those of SFT counted.

    uv run python benchmarks/sft_then_rl.py --processes 2
    uv run python benchmarks/sft_then_rl.py --report docs/results

All of a seed begin with the same model with random weights, on the quickstart's levels. What is imitated counts each
time that it is read; of RL all tokens of the episodes that it played count, whether they took part in the loss or not,
so that playing isn't free. The first command runs what hasn't been run yet (`--quick`: miniatures, which show that it
works); the second reads the runs and writes a page, a picture and JSON.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_envs import read_episodes
from agentgym_trainer.config import BaseConfig, DataConfig, Evaluation, Optimizer, RLConfig, SFTConfig, WarmStart
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from many_runs import (  # the file beside this one
    PLAYED,
    Figures,
    Run,
    command_line,
    commits,
    curve,
    interval,
    markdown,
    miniature,
    open_run,
    play_held_out,
    run,
    show,
    start_of,
    success_by_task,
)
from rich.console import Console

TOKENS = 300_000
TASKS, SAMPLES = 96, 2

RL = replace(
    RECIPES["quickstart"].config,
    horizon=FixedHorizon(12),
    optimizer=Optimizer(lr=5e-4, micro_tokens=4096),
    warm_start=WarmStart(episodes=0),
    evaluation=Evaluation(tasks=48, samples=1, ks=(1,), every=6),
    tasks_per_step=8,
    group_size=8,
    epochs=1,
    minibatches=4,
    save_every=20,
)
_COMMON = {f.name: getattr(RL, f.name) for f in fields(BaseConfig)}
IMITATION = SFTConfig(
    **_COMMON
    | {
        "optimizer": Optimizer(lr=3e-3, schedule="linear", warmup=10, micro_tokens=4096),
        "save_every": 200,
    },
    epochs=2,
    batch=8,
)


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to spend the tokens."""

    name: str
    short: str
    """For folders."""
    data: DataConfig | None
    """What is imitated first."""
    acts: bool = True
    """Whether the tokens that are left are spent on RL."""
    every: int = 5
    """Updates by RL between evaluations."""


ARMS = (
    Arm("SFT, then RL", "sft-rl", DataConfig(episodes=240)),
    Arm("RL from random weights", "rl", None, every=40),
    Arm("RL after imitating random play", "random-rl", DataConfig(episodes=100, noise=1.0, keep="all")),
    Arm("SFT alone", "sft", DataConfig(episodes=1075), acts=False),
)


@dataclass(frozen=True, slots=True)
class Chain:
    """An arm with a seed."""

    arm: Arm
    rl: Run
    """Of an arm that doesn't act, only its folder is used."""
    sft: SFTConfig

    @property
    def sft_folder(self) -> Path:
        """Folder of what is imitated."""
        return self.rl.path.with_name(f"{self.arm.short}-sft")


def chains_of(out: Path, seeds: Sequence[int], *, quick: bool) -> list[Chain]:
    """All of them, seed by seed."""
    found = list[Chain]()
    for seed in seeds:
        for arm in ARMS:
            config: RLConfig = replace(miniature(RL) if quick else RL, seed=seed, warm_start=WarmStart(episodes=0))
            config = replace(config, evaluation=replace(config.evaluation, every=arm.every))
            path, tasks = out / f"seed-{seed}" / arm.short, 6 if quick else TASKS
            rl = Run(arm.name, seed, config, 5_000 if quick else TOKENS, path, SAMPLES, tasks, unit="tokens")
            data = arm.data or DataConfig()
            few = replace(data, episodes=data.episodes // 25) if quick else data
            sft = replace(IMITATION, data=few, seed=seed, evaluation=replace(config.evaluation, every=60))
            found.append(Chain(arm, rl, sft))
    return found


# Running.


def run_chain(chain: Chain, start: Path) -> str:
    """Imitate, act, and play the test tasks, as far as it hasn't been done. Returns what is worth saying."""
    model, left = start, chain.rl.budget
    if chain.arm.data:
        model = _imitate(replace(chain.sft, model=str(start)), chain.sft_folder)
        left -= imitated_tokens(RunFolder(chain.sft_folder))
    if chain.arm.acts:
        return run(replace(chain.rl, budget=left), model)
    chain.rl.path.mkdir(parents=True, exist_ok=True)
    play_held_out(model, chain.rl, chain.rl.path / PLAYED)
    return f"{chain.arm.name}, seed {chain.rl.seed}: {chain.rl.budget - left:,} tokens"


def imitated_tokens(folder: RunFolder) -> int:
    """Tokens that a run of supervised fine-tuning has read, each time that it read them."""
    from agentgym_trainer.models.load import load_chat
    from agentgym_trainer.tokens.trajectory import Trimming
    from agentgym_trainer.trainers.sft import encode_examples

    _, config, _ = RunFolder.open(folder.path)
    assert isinstance(config, SFTConfig)
    trimming = Trimming(config.generation.max_context)
    examples = encode_examples(load_chat(str(folder.model)), folder.read_data(), trimming)
    return config.epochs * sum(len(example.ids) for example in examples)


def _imitate(config: SFTConfig, path: Path) -> Path:
    """The model that has imitated."""
    from agentgym_trainer.trainers.sft import train

    folder = open_run(config, path)
    if not folder.model.exists():
        with path.joinpath("log.txt").open("a") as log:
            train(config, folder, RunConsole(Console(file=log, width=160)), Stopping())
    return folder.model


def run_all(chains: Sequence[Chain], starts: Path, processes: int, console: Console) -> None:
    """Make the models to begin with, one per seed, then run everything."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        first = {chain.rl.seed: chain.rl for chain in chains}
        making = {seed: pool.submit(start_of, asked, starts / f"seed-{seed}") for seed, asked in first.items()}
        made = {seed: future.result() for seed, future in making.items()}
        running = [pool.submit(run_chain, chain, made[chain.rl.seed]) for chain in chains]
        for done, future in enumerate(as_completed(running), 1):
            console.print(f"{done}/{len(chains)} {future.result()}", highlight=False, soft_wrap=True)


# What came of it.


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one arm, over its seeds."""

    arm: Arm
    imitated: tuple[int, ...]
    """Tokens, of each seed."""
    played: tuple[int, ...]
    """Tokens of the episodes of RL."""
    trained: tuple[int, ...]
    """Those of them that took part in the loss."""
    updates: tuple[int, ...]
    before: Figures
    """Success on the test tasks with random weights, seeds x tasks."""
    taught: tuple[float, ...]
    """Held-out success of each seed when the imitation ended; none where nothing is imitated."""
    after: Figures
    curves: tuple[tuple[Figures, Figures], ...]
    """Of each seed: tokens at its evaluations, and held-out success then."""
    failed: int


def outcome(chains: Sequence[Chain], starts: Path) -> Outcome:
    """Read what the runs of one arm left.

    Raises:
        SystemExit: when one hasn't ended.
    """
    for chain in chains:
        if not (chain.rl.path / PLAYED).exists():
            raise SystemExit(f"{chain.rl.path} hasn't ended; run it first.")
    sft_runs = [RunFolder(chain.sft_folder) for chain in chains if chain.arm.data]
    imitated = [imitated_tokens(RunFolder(chain.sft_folder)) if chain.arm.data else 0 for chain in chains]
    lines = [list(RunFolder(chain.rl.path).read_metrics()) for chain in chains]
    begun = [list(read_episodes(starts / f"seed-{chain.rl.seed}" / PLAYED)) for chain in chains]
    ended = [list(read_episodes(chain.rl.path / PLAYED)) for chain in chains]
    return Outcome(
        chains[0].arm,
        tuple(imitated),
        tuple(sum(line["tokens"]["total"] for line in some) for some in lines),
        tuple(sum(line["tokens"]["trained"] for line in some) for some in lines),
        tuple(map(len, lines)),
        np.array([success_by_task(episodes) for episodes in begun]),
        tuple(float(_held_out(folder)[1][-1]) for folder in sft_runs),
        np.array([success_by_task(episodes) for episodes in ended]),
        tuple(_curve(chain, tokens) for chain, tokens in zip(chains, imitated, strict=True)),
        sum(episode.failed for episodes in ended for episode in episodes),
    )


def _held_out(sft: RunFolder) -> tuple[Figures, Figures]:
    """At what share of what is imitated there were evaluations, and held-out success then."""
    steps = np.array(sft.evaluated_steps("sampled"))
    success = [np.mean(success_by_task(sft.read_evaluation(step, "sampled") or [])) for step in steps.tolist()]
    return steps / steps[-1], np.array(success)


def _curve(chain: Chain, imitated: int) -> tuple[Figures, Figures]:
    """Tokens and success at the evaluations of what is imitated, and then of RL."""
    tokens, success = np.zeros(0), np.zeros(0)
    if imitated:
        share, success = _held_out(RunFolder(chain.sft_folder))
        tokens = share * imitated
    if chain.arm.acts:
        spent, found = curve(RunFolder(chain.rl.path), "tokens")
        again = 1 if imitated else 0  # what SFT ends with, RL begins with
        tokens = np.concatenate([tokens, imitated + spent[again:]])
        success = np.concatenate([success, found.mean(1)[again:]])
    return tokens, success


def report(outcomes: Sequence[Outcome], folder: Path, console: Console, command: str, commit: str) -> None:
    """Write the page, the picture and the figures, and show the table."""
    rows = [_row(found, outcomes[0]) for found in outcomes]
    show("Success on held-out tasks, sampled", rows, console)
    folder.mkdir(parents=True, exist_ok=True)
    draw(outcomes, folder / "sft-then-rl.png")
    (folder / "sft-then-rl.json").write_text(json.dumps([_record(found) for found in outcomes], indent=1) + "\n")
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        commit=commit,
        tokens=f"{TOKENS:,}",
        arms="\n".join(f"- **{arm.name}**: {_about(arm)}." for arm in ARMS),
        reading=_READING,
        epochs=IMITATION.epochs,
        seeds=len(outcomes[0].imitated),
        tasks=outcomes[0].after.shape[1],
        samples=SAMPLES,
        before=f"{outcomes[0].before.mean():.3f}",
        failed=sum(found.failed for found in outcomes),
    )
    (folder / "sft-then-rl.md").write_text(page, encoding="utf-8")


def _about(arm: Arm) -> str:
    """What it does with its tokens."""
    if not arm.data:
        return "all tokens are played"
    player = "the expert plays" if arm.data.noise < 1 else "random actions play"
    kept = "those that succeed" if arm.data.keep == "success" else "all of them"
    rest = "; the rest is played" if arm.acts else ""
    return f"of {arm.data.episodes:,} training tasks as {player} them, {kept} are imitated{rest}"


def _row(found: Outcome, first: Outcome) -> dict[str, str]:
    against = "–"
    if found is not first:
        # Seeds and tasks are the same, so they are drawn together.
        against = "{:+.3f} ({:+.3f} to {:+.3f})".format(*interval(found.after - first.after))
    return {
        "": found.arm.name,
        "tokens imitated": f"{np.mean(found.imitated):,.0f}",
        "tokens of RL": f"{np.mean(found.played):,.0f}",
        "of them in the loss": f"{np.mean(found.trained):,.0f}",
        "updates by RL": f"{np.mean(found.updates):.0f}",
        "after imitation": f"{np.mean(found.taught):.3f}" if found.taught else "–",
        "at the end": "{:.3f} ({:.3f} to {:.3f})".format(*interval(found.after)),
        "each seed": ", ".join(f"{success:.3f}" for success in found.after.mean(1)),
        f"against {first.arm.name}": against,
    }


def _record(found: Outcome) -> dict[str, Any]:
    mean, low, high = interval(found.after)
    return {
        "arm": found.arm.name,
        "tokens": {"imitated": found.imitated, "rl": found.played, "rl_in_the_loss": found.trained},
        "updates": found.updates,
        "before": found.before.mean(1).tolist(),
        "taught": found.taught,
        "after": found.after.mean(1).tolist(),
        "after_all": {"mean": float(mean), "low": float(low), "high": float(high)},
        "failed": found.failed,
        "curves": [{"tokens": x.tolist(), "success": y.tolist()} for x, y in found.curves],
    }


def draw(outcomes: Sequence[Outcome], picture: Path) -> None:
    """Held-out success over tokens: the mean of the seeds, and their range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for n, found in enumerate(outcomes):
        x = np.linspace(0, min(tokens[-1] for tokens, _ in found.curves), 60)
        y_SX = np.array([np.interp(x, tokens, success) for tokens, success in found.curves])
        axes.plot(x, y_SX.mean(0), color=f"C{n}", label=found.arm.name)
        axes.fill_between(x, y_SX.min(0), y_SX.max(0), color=f"C{n}", alpha=0.12, linewidth=0)
    axes.set(xlabel="tokens, imitated and played", ylabel="held-out success, sampled", ylim=(0, 1))
    axes.legend(loc="upper left")
    axes.grid(alpha=0.2)
    figure.savefig(picture, dpi=130)
    plt.close(figure)


_PAGE = """# RL that starts from SFT against RL from scratch

```sh
{command}
```

The quickstart's world (BabyAI's `OneRoomS8`, `OpenRedDoor`, `OpenRedBlueDoors`, `UnlockLocal`) and model (0.33M
parameters with random weights, one per seed and the same for all); at most 12 turns. All spend about {tokens}
tokens: what is imitated counts each of the {epochs} times that it is read; of RL all tokens of the episodes that it
played count (`tokens.seen` in the metrics), what worlds say included and whether they took part in the loss or
not (`tokens.trained`), so that playing isn't free. RL is GRPO with 64 episodes and four optimizer steps per update
at a learning rate of 5e-4; it ends with the update that spends the last token. SFT is in batches of 8 episodes at a
learning rate that falls from 3e-3 to 0.

{arms}

{table}

{tasks} held-out tasks that nothing trains on, {samples} sampled episodes of each at temperature 1; with random
weights success is {before}. Means over {seeds} seeds with 95% intervals by a bootstrap that draws seeds and, within
each, tasks; differences are paired by seed and task. With {seeds} seeds such intervals are, if anything, too
narrow. At commit {commit}. Failed episodes: {failed}.

![Held-out success over tokens](sft-then-rl.png)

Lines are means over seeds of the evaluations in the course of training (48 tasks, one sampled episode each); bands
are the range of the seeds.

{reading}
"""

_READING = """With random weights hardly a reply ends before the token budget, no episode succeeds, no group of episodes
differs, and not one token takes part in the loss: from there RL can't begin. Random play teaches how to say actions,
though after so little of it many replies still don't end; success stays so rare that hardly a group has anything to
compare. RL that starts from SFT has something to compare from its first update on, but a dozen updates change little:
success after imitation and at the end are over different tasks, and over the same ones the line in the picture is
nearly flat.

That isn't to say that RL is the best use of so few tokens: spent on more of the expert's episodes, they come to much
more. An expert's episode is short and says at each turn what is right; a played one is long and says in the end whether
it was. Where there is an expert as good as this one and as cheap, imitate it first. What RL comes to with several times
the budget, from a clumsy expert, is among [the quickstart's results](quickstart.md)."""


def main() -> None:
    """Run what hasn't been run, or report what has."""
    (asked, command), console = command_line(__doc__ or ""), Console()
    chains, starts = chains_of(asked.out, asked.seeds, quick=asked.quick), asked.out / "starts"
    if asked.report is None:
        run_all(chains, starts, asked.processes, console)
    else:
        by_arm = [[chain for chain in chains if chain.arm is arm] for arm in ARMS]
        commit = commits(c.rl.path if c.arm.acts else c.sft_folder for c in chains)
        report([outcome(of_one, starts) for of_one in by_arm], asked.report, console, command, commit)


if __name__ == "__main__":
    main()
