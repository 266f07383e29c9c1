"""The design of the study of horizon schedules: arms, regimes, and the order of the runs.

docs/results/horizon-plan.md registers it in words; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from agentgym_trainer.algorithms import GRPO, KL, PPO, Algorithm, GroupRelative, ReinforcePP
from agentgym_trainer.config import (
    CriticModel,
    DAgger,
    Evaluation,
    Generation,
    Optimizer,
    RLConfig,
    RolloutFiles,
    WarmStart,
    WorldConfig,
)
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, BackwardHorizon, Horizon, StepHorizon
from agentgym_trainer.recipes import RECIPES

from horizon.corridor import ENV_ID, STRATA
from horizon.schedules import RandomHorizon, ReverseHorizon

SHORT, MIDDLE, LONG = 6, 12, 24
UPDATES = 60
EVERY = 5
"""Updates between evaluations."""
TURNS = 768
"""Turns per update, to within half a group."""
SAMPLES = 2
"""Number of episodes of each test task in the environments with small models."""
LRS = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
"""Learning rates that the pilot runs choose from."""
LOOKS = (range(1, 13), range(13, 25))
"""Seeds of the first and the second look."""
BABYAI_SEEDS = range(1, 7)
TEXTCRAFT_SEEDS = range(1, 4)
NEVER = 10**9

CORRIDOR = RLConfig(
    model="scratch",
    scratch=Scratch(vocab=320, hidden=48, layers=2, heads=4, context=512),
    world=WorldConfig(f"horizon.corridor:{ENV_ID}", (), "bare", instructions=False),
    generation=Generation(max_tokens=8, max_context=512),
    optimizer=Optimizer(lr=1e-3, micro_tokens=8192),
    critic=CriticModel(lr=2e-3),
    warm_start=WarmStart(episodes=2000, noise=0.45, imitate_noise=True, epochs=1, batch=8, lr=5e-3),
    # `runs.py` plays the test tasks, with as many samples as `Cell.samples`.
    evaluation=Evaluation(tasks=48, test=False, test_tasks=192, samples=1, ks=(1,), every=EVERY),
    rollouts=RolloutFiles(every=0),
    horizon=StepHorizon((LONG,), NEVER),
    steps=UPDATES,
    # The fewest groups: those of the longest horizon then have at most this many turns, and more groups fill up.
    tasks_per_step=4,
    turns_per_step=TURNS,
    group_size=8,
    minibatches=2,
    scale_minibatches=False,
    save_every=NEVER,
    device="cpu",
)
BABYAI = replace(
    CORRIDOR,
    scratch=Scratch(vocab=512, hidden=96, layers=3, heads=4, context=1536),
    # Two levels for each stratum.
    world=WorldConfig(
        "agentgym/BabyAI-v0",
        (
            "levels=('OneRoomS8', 'UnlockLocal', 'OpenRedBlueDoors', 'KeyCorridorS3R1', "
            "'FindObjS5', 'KeyCorridorS3R2')",
            "available_actions_in_text=False",
        ),
        agent="bare",
        instructions=False,
    ),
    generation=Generation(max_tokens=16, max_context=1536),
    warm_start=WarmStart(episodes=4000, noise=0.35, imitate_noise=True, epochs=2, batch=16, lr=5e-3),
    evaluation=replace(CORRIDOR.evaluation, every=2 * EVERY),
)
_SMOLLM2 = RECIPES["smollm2-textcraft"].config
assert isinstance(_SMOLLM2, RLConfig)
TEXTCRAFT_OPTIONS: dict[str, Any] = {"depth": (2, 3), "distractors": 2}
TEXTCRAFT_TURNS = (4, 8, 12)
TEXTCRAFT_UPDATES = 36
TEXTCRAFT = replace(
    _SMOLLM2,
    world=replace(_SMOLLM2.world, options=tuple(f"{name}={value}" for name, value in TEXTCRAFT_OPTIONS.items())),
    generation=replace(_SMOLLM2.generation, max_context=1536),
    warm_start=replace(_SMOLLM2.warm_start, episodes=320, dagger=DAgger(rounds=1, episodes=160)),
    evaluation=Evaluation(tasks=16, test=False, test_tasks=80, samples=2, ks=(1, 2), every=TEXTCRAFT_UPDATES // 3),
    rollouts=RolloutFiles(every=0),
    horizon=StepHorizon(TEXTCRAFT_TURNS[-1:], NEVER),
    steps=TEXTCRAFT_UPDATES,
    tasks_per_step=4,
    turns_per_step=384,
    save_every=4,
    threads=1,
)
ENVIRONMENTS = {
    "corridor": CORRIDOR,
    "same rule": replace(CORRIDOR, world=replace(CORRIDOR.world, options=("depth_specific=False",))),
    "BabyAI": BABYAI,
    "TextCraft": TEXTCRAFT,
}
"""What all runs of an environment share."""
IN_AND_BEYOND = {"up to 4": range(1, 5), "5 to 11": range(5, 12)}
"""Strata of TextCraft's tasks by the expert's turns: within the shortest horizon, and beyond it."""


def strata_of(environment: str) -> Mapping[str, range]:
    """Return the strata of an environment's tasks: the expert's turns by name."""
    return IN_AND_BEYOND if environment == "TextCraft" else STRATA


@dataclass(frozen=True, slots=True)
class Regime:
    """What keeps the policy close to the warm start, and how often a batch is used."""

    kl: float
    epochs: int
    lr: float = 1.0
    """Multiple of the arm's learning rate."""


REGIMES = {
    "stable": Regime(kl=0.05, epochs=1),
    "paper-like": Regime(kl=1e-3, epochs=2),
    "no KL": Regime(kl=0.0, epochs=2, lr=2.0),
    "recipe": Regime(kl=0.0, epochs=1),
}


@dataclass(frozen=True, slots=True)
class Arm:
    """What is compared."""

    tuned_as: str
    """The arm whose pilot runs choose the learning rate; empty in TextCraft, where it is that of the recipe."""
    horizon: Horizon
    algorithm: Algorithm = GRPO
    rate: float = 1.0
    """Multiple of the learning rate."""
    mask_truncated: bool = False
    """Whether episodes that the horizon truncated are out of the loss."""


_GROWING = (SHORT, MIDDLE, LONG)
_STEP = StepHorizon(_GROWING, UPDATES // 3)
_FIXED: dict[int, Horizon] = {turns: StepHorizon((turns, LONG), NEVER) for turns in _GROWING}
"""Only training has the shorter horizon; evaluations have the longest."""
ZERO_SUM = {"length-weighted": GroupRelative(baseline="length"), "batch-normalised": GroupRelative(whiten=True)}
"""Advantages whose weighted sum over the tokens of an update is 0."""
ARMS: dict[str, Arm] = {
    **{f"fixed {turns}": Arm(f"fixed {turns}", horizon) for turns, horizon in _FIXED.items()},
    "step": Arm("step", _STEP),
    **{
        f"fixed {turns}, {name}": Arm(f"fixed {turns}", horizon, replace(GRPO, advantages=advantages))
        for name, advantages in ZERO_SUM.items()
        for turns, horizon in _FIXED.items()
    },
    "adaptive": Arm("step", AdaptiveHorizon(_GROWING, UPDATES // 6, patience=2, gain=0.03, cut=0.0)),
    "reverse": Arm("step", ReverseHorizon(_GROWING[::-1], UPDATES // 3)),
    "random": Arm("step", RandomHorizon(_GROWING)),
    "fixed 24, gamma .95": Arm("fixed 24", _FIXED[LONG], replace(GRPO, advantages=GroupRelative(gamma=0.95))),
    "fixed 24, masked": Arm("fixed 24", _FIXED[LONG], mask_truncated=True),
    "step, rate of fixed 24": Arm("fixed 24", _STEP),
    "backward": Arm("backward", BackwardHorizon((3, 6, 12), UPDATES // 4, LONG)),
    **{
        f"{name}, {schedule}": Arm(schedule, horizon, algorithm)
        for name, algorithm in (("PPO", PPO), ("REINFORCE++", ReinforcePP))
        for schedule, horizon in (("fixed 6", _FIXED[SHORT]), ("fixed 24", _FIXED[LONG]), ("step", _STEP))
    },
}
_WHITENED = replace(GRPO, advantages=ZERO_SUM["batch-normalised"])
_SHORTEST, _, _LONGEST = TEXTCRAFT_TURNS
IN_TEXTCRAFT: dict[str, Arm] = {
    f"fixed {_SHORTEST}": Arm("", StepHorizon((_SHORTEST, _LONGEST), NEVER), _WHITENED),
    f"fixed {_LONGEST}": Arm("", StepHorizon((_LONGEST,), NEVER), _WHITENED),
    f"fixed {_LONGEST}, half the rate": Arm("", StepHorizon((_LONGEST,), NEVER), _WHITENED, rate=0.5),
    f"step to {_LONGEST}": Arm("", StepHorizon(TEXTCRAFT_TURNS, TEXTCRAFT_UPDATES // 3), _WHITENED),
    f"backward to {_LONGEST}": Arm("", BackwardHorizon((2, 4, 6), TEXTCRAFT_UPDATES // 4, _LONGEST), _WHITENED),
}
PLAIN = ("fixed 6", "fixed 12", "fixed 24", "step")
PRIMARY = (*PLAIN, *(arm for arm in ARMS if any(arm.endswith(f", {name}") for name in ZERO_SUM)))
CONTROLS = (
    "step, rate of fixed 24",
    "adaptive",
    "reverse",
    "random",
    "fixed 24, gamma .95",
    "fixed 24, masked",
    "backward",
)
OTHERS = tuple(arm for arm in ARMS if arm.startswith(("PPO", "REINFORCE++")))
IN_BABYAI = ("fixed 6", "fixed 24", "step", "fixed 24, length-weighted", "fixed 24, batch-normalised")
TUNED = tuple(dict.fromkeys(arm.tuned_as for arm in ARMS.values()))


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    block: str
    regime: str
    arm: str
    seed: int
    lr: float
    environment: str = "corridor"

    @property
    def key(self) -> tuple[str, str, str, int, float]:
        """What identifies the run's record."""
        return self.block, self.regime, self.arm, self.seed, self.lr

    @property
    def samples(self) -> int:
        """Number of episodes of each test task."""
        return 4 if self.environment == "TextCraft" else SAMPLES

    def config(self, environments: Mapping[str, RLConfig] = ENVIRONMENTS) -> RLConfig:
        """Return the configuration of the run, apart from its model, given what all runs of an environment share."""
        base, regime = environments[self.environment], REGIMES[self.regime]
        arm = (IN_TEXTCRAFT if self.environment == "TextCraft" else ARMS)[self.arm]
        kl = KL(arm.algorithm.kl.where, arm.algorithm.kl.estimator, regime.kl) if regime.kl else KL()
        if regime.kl and kl.where == "off":  # PPO has no penalty of its own
            kl = KL("loss", "k3", regime.kl)
        horizon = replace(arm.horizon, seed=self.seed) if isinstance(arm.horizon, RandomHorizon) else arm.horizon
        return replace(
            base,
            algorithm=replace(arm.algorithm, kl=kl),
            horizon=horizon,
            truncation="mask" if arm.mask_truncated else "reward",
            epochs=regime.epochs,
            optimizer=replace(base.optimizer, lr=self.lr * arm.rate * regime.lr),
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class Pilot:
    """Runs that only choose learning rates, in the regime paper-like."""

    name: str
    arms: tuple[str, ...]
    lrs: tuple[float, ...]
    seeds: tuple[int, ...]
    environment: str = "corridor"

    def cells(self, seed: int) -> list[Cell]:
        """Return the runs of a seed."""
        pairs = product(self.arms, self.lrs)
        return [Cell(self.name, "paper-like", arm, seed, lr, self.environment) for arm, lr in pairs]

    def chosen(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
        """Return the learning rate of each arm, or None if runs are missing: the one with the highest mean success on
        dev tasks at the end; of equals, the lowest.
        """
        found: dict[tuple[str, float], list[float]] = {}
        for record in records:
            if record["block"] == self.name:
                success = float(np.mean(record["curve"][-1]["success"]))
                found.setdefault((record["arm"], record["lr"]), []).append(success)
        if any(len(found.get(pair, ())) < len(self.seeds) for pair in product(self.arms, self.lrs)):
            return None
        return {arm: max(self.lrs, key=lambda lr: (float(np.mean(found[arm, lr])), -lr)) for arm in self.arms}


PILOT = Pilot("pilot", TUNED, LRS, (100, 101))
BABYAI_PILOT = Pilot("BabyAI pilot", ("fixed 6", "fixed 24", "step"), LRS[:3], (100,), "BabyAI")
PILOTS = tuple(pilot.name for pilot in (PILOT, BABYAI_PILOT))


@dataclass(frozen=True, slots=True)
class Block:
    """Runs of one regime. All arms of a seed come before the next seed, so that finished runs are balanced."""

    name: str
    regime: str
    arms: tuple[str, ...]
    seeds: Sequence[int]
    environment: str = "corridor"
    pilot: Pilot | None = PILOT
    """What chooses the learning rates; None: that of the environment's settings."""

    def cells(self, seed: int, lrs: Mapping[str, float]) -> list[Cell]:
        """Return the runs of a seed, given the learning rate of each tuned arm."""
        own = ENVIRONMENTS[self.environment].optimizer.lr
        found = {arm: own if self.pilot is None else lrs[ARMS[arm].tuned_as] for arm in self.arms}
        return [Cell(self.name, self.regime, arm, seed, lr, self.environment) for arm, lr in found.items()]


BLOCKS = (
    Block("primary", "paper-like", PRIMARY, LOOKS[0]),
    Block("controls", "paper-like", CONTROLS, LOOKS[0]),
    Block("stable", "stable", PLAIN, LOOKS[0]),
    Block("no KL", "no KL", PLAIN, LOOKS[0]),
    Block("same rule", "paper-like", ("fixed 6", "fixed 24", "step"), LOOKS[0], "same rule"),
    Block("other algorithms", "paper-like", OTHERS, LOOKS[0]),
    Block("BabyAI", "paper-like", IN_BABYAI, BABYAI_SEEDS, "BabyAI", BABYAI_PILOT),
    Block("TextCraft", "recipe", tuple(IN_TEXTCRAFT), TEXTCRAFT_SEEDS, "TextCraft", None),
    Block("primary", "paper-like", PRIMARY, LOOKS[1]),
)


def batches(records: Sequence[Mapping[str, Any]], names: Container[str]) -> Iterator[list[Cell]]:
    """Yield the runs of each seed of the blocks with these names, in order. The records of pilot runs must be added to
    `records` before the next runs are asked for.
    """
    for block in BLOCKS:
        if block.name not in names:
            continue
        lrs: Mapping[str, float] | None = {}
        if (pilot := block.pilot) is not None:
            for seed in pilot.seeds:
                yield pilot.cells(seed)
            if (lrs := pilot.chosen(records)) is None:
                raise ValueError(f"The runs of the {pilot.name}, which choose learning rates, have no records yet.")
        for seed in block.seeds:
            yield block.cells(seed, lrs)
