"""Compare reinforcement learning that starts from SFT with RL from scratch, with equal tokens, including those of SFT.

    uv run python benchmarks/sft_then_rl.py --processes 2
    uv run python benchmarks/sft_then_rl.py --report docs/results

All methods of a seed begin with the same random weights, on the quickstart's levels. Tokens of SFT count once per
epoch; of RL, all tokens of the episodes count, in the loss or not, so that rollouts aren't free. The first command
finishes all runs; the second writes a page, a picture and JSON from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from agentgym_trainer.config import BaseConfig, DataConfig, Evaluation, Optimizer, SFTConfig, WarmStart
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.run.folder import RunFolder
from harness import markdown, run_parallel, show, study_arguments, write_report
from outcomes import (
    Outcome,
    Values,
    commits,
    difference_text,
    outcome,
    picture,
    seeds_text,
    success_by_task,
)
from training_runs import (
    EPISODES_64,
    PLAYED,
    Run,
    finish_run,
    finish_sft,
    make_starts,
    miniature,
    play_held_out,
    quickstart,
    sft_tokens,
)

TOKENS = 300_000
TASKS, SAMPLES = 96, 2

RL = replace(
    quickstart(),
    **EPISODES_64,
    horizon=FixedHorizon(12),
    optimizer=Optimizer(lr=5e-4, micro_tokens=4096),
    warm_start=WarmStart(episodes=0),
    evaluation=Evaluation(tasks=48, samples=1, ks=(1,), every=6),
    save_every=20,
)
_COMMON: dict[str, Any] = {field.name: getattr(RL, field.name) for field in fields(BaseConfig)}
SFT = replace(
    SFTConfig(**_COMMON),
    optimizer=Optimizer(lr=3e-3, schedule="linear", warmup=10, micro_tokens=4096),
    save_every=200,
    epochs=2,
    batch=8,
)


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to use the tokens."""

    name: str
    short: str
    """Name of its run folders."""
    data: DataConfig | None
    """Data of SFT."""
    rl: bool = True
    """Whether the remaining tokens are used for RL."""
    every: int = 5
    """Updates of RL between evaluations."""


ARMS = (
    Arm("SFT, then RL", "sft-rl", DataConfig(episodes=240)),
    Arm("RL from random weights", "rl", None, every=40),
    Arm(
        "RL after imitating random play",
        "random-rl",
        DataConfig(episodes=100, noise=1.0, imitate_noise=True, keep="all"),
    ),
    Arm("SFT alone", "sft", DataConfig(episodes=1075), rl=False),
)


@dataclass(frozen=True, slots=True)
class Chain:
    """The runs of an arm with one seed."""

    arm: Arm
    rl: Run
    """Without RL, its folder only has the held-out episodes."""
    sft: SFTConfig

    @property
    def sft_folder(self) -> RunFolder:
        """Folder of the SFT run."""
        return RunFolder(self.rl.path.with_name(f"{self.arm.short}-sft"))


def chains_of(out: Path, seeds: Sequence[int], *, quick: bool) -> list[Chain]:
    """Return all runs, seed by seed."""
    found = list[Chain]()
    base, budget, tasks = (miniature(RL), 5_000, 6) if quick else (RL, TOKENS, TASKS)
    for seed in seeds:
        for arm in ARMS:
            config = replace(base, seed=seed, evaluation=replace(base.evaluation, every=arm.every))
            config = replace(config, warm_start=WarmStart(episodes=0))
            run = Run(arm.name, seed, config, budget, out / f"seed-{seed}" / arm.short, SAMPLES, tasks, unit="tokens")
            data = arm.data or DataConfig()
            data = replace(data, episodes=data.episodes // 25) if quick else data
            sft = replace(SFT, data=data, seed=seed, evaluation=replace(base.evaluation, every=60))
            found.append(Chain(arm, run, sft))
    return found


# Running.


def finish_chain(chain: Chain, start: Path) -> str:
    """Run SFT and RL and play the held-out tasks, as far as it isn't done yet; return the name of the runs."""
    model, run = start, chain.rl
    if chain.arm.data:
        model = finish_sft(replace(chain.sft, model=str(start)), chain.sft_folder.path)
        run = replace(run, budget=run.budget - sft_tokens(chain.sft_folder))
    if chain.arm.rl:
        return finish_run(run, model)
    run.path.mkdir(parents=True, exist_ok=True)
    play_held_out(model, run, run.path / PLAYED)
    return f"{chain.arm.name}, seed {run.seed}"


# Outcomes.


@dataclass(frozen=True, slots=True)
class ArmOutcome:
    """The runs of an arm, over seeds."""

    arm: Arm
    rl: Outcome
    imitated: tuple[int, ...]
    """Tokens of SFT of each seed."""
    taught: tuple[float, ...]
    """Held-out success at the end of SFT of each seed; empty without SFT."""
    curves: tuple[tuple[Values, Values], ...]
    """For each seed: tokens at its evaluations, of SFT and RL, and held-out success."""

    def rl_tokens(self, kind: str) -> list[int]:
        """Return the tokens of RL of each seed: all ("total"), or those in the loss ("trained")."""
        return [sum(line["tokens"][kind] for line in lines) for lines in self.rl.lines]


def arm_outcome(chains: Sequence[Chain], starts: Path) -> ArmOutcome:
    """Read the runs of an arm."""
    rl = outcome([chain.rl for chain in chains], starts)
    imitated = tuple(sft_tokens(chain.sft_folder) if chain.arm.data else 0 for chain in chains)
    sft = [_sft_curve(chain.sft_folder) if chain.arm.data else (np.zeros(0), np.zeros(0)) for chain in chains]
    curves: list[tuple[Values, Values]] = []
    for (share, sft_success), tokens, (rl_spent, rl_success) in zip(sft, imitated, rl.curves, strict=True):
        if not chains[0].arm.rl:
            curves.append((share * tokens, sft_success))
            continue
        first = 1 if tokens else 0  # the first evaluation of RL repeats the last one of SFT
        success = np.concatenate([sft_success, rl_success.mean(1)[first:]])
        curves.append((np.concatenate([share * tokens, tokens + rl_spent[first:]]), success))
    taught = tuple(float(success[-1]) for _, success in sft if len(success))
    return ArmOutcome(chains[0].arm, rl, imitated, taught, tuple(curves))


def _sft_curve(folder: RunFolder) -> tuple[Values, Values]:
    """Return the share of the steps at each evaluation, and held-out success."""
    steps = np.array(folder.evaluated_steps("sampled"), dtype=np.float64)
    played = [folder.read_evaluation(int(step), "sampled") or [] for step in steps]
    return steps / steps[-1], np.array([np.mean(success_by_task(episodes)) for episodes in played], dtype=np.float64)


def report(outcomes: Sequence[ArmOutcome], folder: Path, command: str, commit: str) -> None:
    """Write the page, the picture and JSON."""
    rows = [_row(found, outcomes[0]) for found in outcomes]
    show("Success on held-out tasks, sampled", rows)
    draw(outcomes, folder / "sft-then-rl.png")
    before = outcomes[0].rl.before
    page = _PAGE.format(
        table=markdown(rows),
        command=command,
        commit=commit,
        tokens=f"{TOKENS:,}",
        arms="\n".join(f"- **{arm.name}**: {_description(arm)}." for arm in ARMS),
        epochs=SFT.epochs,
        seeds=len(before),
        tasks=before.shape[1],
        samples=SAMPLES,
        before=f"{before.mean():.3f}",
        taught=f"{np.mean(outcomes[0].taught):.3f}",
        last=f"{np.mean([success[-1] for _, success in outcomes[0].curves]):.3f}",
        failed=sum(found.rl.failed for found in outcomes),
    )
    write_report(folder, "sft-then-rl", page, [_record(found) for found in outcomes])


def _description(arm: Arm) -> str:
    if not arm.data:
        return "all tokens are used for RL"
    actor = "the expert" if arm.data.noise < 1 else "a random policy"
    kept = "the successful" if arm.data.keep == "success" else "all"
    rest = "; the remaining tokens are used for RL" if arm.rl else ""
    return f"SFT on {kept} episodes of {actor} on {arm.data.episodes:,} training tasks{rest}"


def _row(found: ArmOutcome, first: ArmOutcome) -> dict[str, str]:
    difference = "–" if found is first else difference_text(first.rl.after.mean(1), found.rl.after.mean(1))
    return {
        "": found.arm.name,
        "SFT tokens": f"{np.mean(found.imitated):,.0f}",
        "RL tokens": f"{np.mean(found.rl_tokens('total')):,.0f}",
        "in the loss": f"{np.mean(found.rl_tokens('trained')):,.0f}",
        "RL updates": f"{found.rl.updates:.0f}",
        "after SFT": f"{np.mean(found.taught):.3f}" if found.taught else "–",
        "at the end": f"{found.rl.after.mean():.3f}",
        "each seed": seeds_text(found.rl.after),
        f"difference to {first.arm.name}": difference,
    }


def _record(found: ArmOutcome) -> dict[str, Any]:
    rl_tokens = found.rl_tokens("total")
    return {
        "arm": found.arm.name,
        "tokens": {"imitated": found.imitated, "rl": rl_tokens, "rl_in_the_loss": found.rl_tokens("trained")},
        "updates": [len(lines) for lines in found.rl.lines],
        "before": found.rl.before.mean(1).tolist(),
        "taught": found.taught,
        "after": found.rl.after.mean(1).tolist(),
        "failed": found.rl.failed,
        "curves": [{"tokens": x.tolist(), "success": y.tolist()} for x, y in found.curves],
    }


def draw(outcomes: Sequence[ArmOutcome], file: Path) -> None:
    """Draw held-out success over tokens: the mean over seeds, and their range."""
    with picture(file, figsize=(8, 5)) as axes:
        for n, found in enumerate(outcomes):
            x = np.linspace(0, min(tokens[-1] for tokens, _ in found.curves), 60)
            y_SX = np.array([np.interp(x, tokens, success) for tokens, success in found.curves])
            # Dashes show the line below where two are equal.
            axes.plot(x, y_SX.mean(0), color=f"C{n}", linestyle="-" if n < 2 else "--", label=found.arm.name)
            axes.fill_between(x, y_SX.min(0), y_SX.max(0), color=f"C{n}", alpha=0.12, linewidth=0)
        axes.set(xlabel="tokens of SFT and RL", ylabel="held-out success, sampled", ylim=(-0.02, 1))
        axes.legend(loc="upper left")
        axes.grid(alpha=0.2)


_PAGE = """# RL that starts from SFT against RL from scratch

```sh
{command}
```

The quickstart's environment (BabyAI's `OneRoomS8`, `OpenRedDoor`, `OpenRedBlueDoors`, `UnlockLocal`) and model (0.33M
parameters with random weights, one per seed and the same for all); at most 12 turns. All use about {tokens} tokens:
those of SFT count in each of its {epochs} epochs; of RL, all tokens of the episodes count (`tokens.total` in the
metrics), including observations, in the loss or not (`tokens.trained`), so that rollouts aren't free. RL is GRPO with
64 episodes and four optimizer steps per update at a learning rate of 5e-4; it ends with the update that reaches the
budget. SFT has batches of 8 episodes and a learning rate that falls from 3e-3 to 0.

{arms}

{table}

{tasks} held-out tasks that nothing is trained on, {samples} sampled episodes of each at temperature 1; with random
weights, success is {before}. Means over {seeds} seeds; differences are paired by seed, with 95% t-intervals over seeds.
At commit {commit}. Failed episodes: {failed}.

![Held-out success over tokens](sft-then-rl.png)

Lines are means over seeds of the evaluations during training (48 tasks, one sampled episode each); bands are the range
of the seeds.

With random weights, hardly any reply ends before the token budget, no episode succeeds, all rewards of a group are
equal, and no token has a gradient: RL can't begin. Random play teaches the form of actions, though after so few
episodes many replies still don't end; success is so rare that hardly any group has different rewards. RL that starts
from SFT has different rewards from its first update on, but a dozen updates changed little: success after SFT and at
the end are measured on different tasks. On the tasks of the picture, it was {taught} after SFT and {last} at the last
evaluation.

So RL isn't the best use of so few tokens: used for more of the expert's episodes, they give much higher success. An
expert's episode is short and has the right action at every turn; a rollout is long and has one reward at its end. With
an expert as good and as cheap as this one, imitate it first. The results of RL with several times the budget, from a
noisy expert, are among [the quickstart's](quickstart.md).
"""


def main() -> None:
    """Finish all runs, or report them."""
    settings, command = study_arguments(__doc__)
    chains, starts = chains_of(settings.out, settings.seeds, quick=settings.quick), settings.out / "starts"
    if settings.report is None:
        made = make_starts([chain.rl for chain in chains], starts, settings.processes)
        run_parallel([partial(finish_chain, chain, made[chain.rl.seed]) for chain in chains], settings.processes)
    else:
        by_arm = [[chain for chain in chains if chain.arm is arm] for arm in ARMS]
        commit = commits(c.rl.path if c.arm.rl else c.sft_folder.path for c in chains)
        report([arm_outcome(of_arm, starts) for of_arm in by_arm], settings.report, command, commit)


if __name__ == "__main__":
    main()
