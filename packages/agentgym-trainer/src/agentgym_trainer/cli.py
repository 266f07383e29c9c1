"""`train`: from a recipe and flags to a finished run. Heavy imports wait until there is something to train."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, NoReturn, TypeVar

import tyro
from agentgym_eval.runs.settings import short_name
from agentgym_eval.util.errors import RunStopped, UsageError
from agentgym_eval.util.stopping import Termination
from rich.console import Console
from rich.markup import escape

from agentgym_trainer.algorithms import ADVANTAGES, PRESETS
from agentgym_trainer.cli_choices import choices, chosen, given, registry
from agentgym_trainer.cli_flags import EXAMPLES, meant
from agentgym_trainer.config import AgentEvolConfig, BaseConfig, DPOConfig, RLConfig, SFTConfig, WorldConfig
from agentgym_trainer.curriculum.horizon import KINDS
from agentgym_trainer.curriculum.task_sampler import SAMPLERS
from agentgym_trainer.engines.base import EngineError
from agentgym_trainer.plugins import POINTS, PluginError, installed
from agentgym_trainer.recipes import DEFAULT, GROUP, RECIPES, find_recipe, tiny
from agentgym_trainer.reward_shaping import REWARDS

if TYPE_CHECKING:
    from agentgym_trainer.curriculum.state import Reached
    from agentgym_trainer.run.console import RunConsole
    from agentgym_trainer.run.folder import RunFolder
    from agentgym_trainer.stopping import Stopping

    _Training = Callable[[Any, RunFolder, RunConsole, Stopping], Reached]

_S = TypeVar("_S", bound=BaseConfig)

_INTERRUPTED = 130
_FLAGS = "The flags of {}:"
_CHOOSING = "The flags of {} (for those of another algorithm, horizon, sampler or reward, name it before --help):"


def _one_of(names: Iterable[str], about: str) -> Any:
    return tyro.conf.arg(metavar="NAME", help=f"{about}: {', '.join(names)}, or MODULE:NAME.")


@dataclass(frozen=True)
class Command(Generic[_S]):
    """What `train` is asked for."""

    config: Annotated[_S, tyro.conf.arg(name="")]
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder of the run; runs/RECIPE-DATE-TIME when not given."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Go on with the run in this folder; takes no other settings."""
    list: bool = False
    """Name the recipes, and end."""
    tiny: bool = False
    """All in miniature, with a tiny model from scratch on a CPU, whatever flags say of sizes: to see that it works."""


@dataclass(frozen=True)
class Choosing(Command[RLConfig]):
    """What `train` is asked for in reinforcement learning."""

    # What these name is in the configuration already: it decides which flags there are (`chosen`).
    algorithm: Annotated[str | None, _one_of(PRESETS, "Another algorithm than the recipe's")] = None
    algorithm_advantages: Annotated[
        str | None,
        tyro.conf.arg(name="algorithm.advantages"),
        _one_of(ADVANTAGES, "Another advantage estimator than the algorithm's"),
    ] = None
    horizon: Annotated[str | None, _one_of(KINDS, "Another kind of schedule, with the recipe's stages")] = None
    sampler: Annotated[str | None, _one_of(SAMPLERS, "Another way to draw training tasks")] = None
    reward: Annotated[str | None, _one_of(REWARDS, "Other rewards to train on than the recipe's")] = None


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Train, and exit with 0 (done), 1 (failed), 2 (wrong usage) or, where the run is to be resumed, 130 (interrupted),
    143 (SIGTERM) or 138 (SIGUSR1).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        from agentgym_envs.util.installation import package_version

        sys.stdout.write(f"{package_version('agentgym-trainer')}\n")
        sys.exit()
    try:
        sys.exit(_run(arguments))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except (UsageError, RunStopped, OSError) as error:  # the last when a disk is full, for one
        from agentgym_envs.util.redaction import redacted

        Console(stderr=True).print(f"[red]error:[/] {escape(redacted(str(error)))}", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _run(arguments: Sequence[str]) -> int:
    # Signals are noted from here on, so that one that comes while all is loaded ends a run like any other.
    with Termination() as early, ExitStack() as held:
        return _train(arguments, held, early)


def _train(arguments: Sequence[str], held: ExitStack, early: Termination) -> int:
    recipe, asked = _parse(arguments)
    console = Console(stderr=True)
    for sentence in _left_out(find_recipe(recipe).config, asked.config, arguments):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    console.print("Loading torch and transformers …", highlight=False)
    from agentgym_envs.core.registry import look_here
    from agentgym_envs.util.installation import command
    from agentgym_envs.util.redaction import redact_logs

    look_here()
    redact_logs()
    folder, config, recipe = _open(recipe, asked, arguments, held)
    from transformers.utils import logging as transformers_logging

    from agentgym_trainer.learner.finite_checks import NotFinite
    from agentgym_trainer.rollout.failures import TooManyFailed
    from agentgym_trainer.run.console import RunConsole
    from agentgym_trainer.run.summary import show_results
    from agentgym_trainer.run.trackers import open_trackers
    from agentgym_trainer.stopping import Stopped, Stopping
    from agentgym_trainer.trainers.setup import init_processes
    from agentgym_trainer.trainers.test_split import play_test

    # Bars and notes on loading and saving would tear the run's own bars apart.
    transformers_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    # What one process has to say, the others needn't say again; errors they tell all the same.
    ranks = init_processes(config)
    console = Console(stderr=True, quiet=not ranks.is_main)
    console.print(f"recipe {recipe}, run folder {folder.path}", highlight=False, soft_wrap=True, markup=False)
    began = time.monotonic()
    again = (
        command("train") if ranks.count == 1 else f"{command('accelerate', ours=False)} launch … -m agentgym_trainer"
    )
    resume = f"{again} --resume {shlex.quote(str(folder.path))}"
    with Stopping(partial(console.print, highlight=False), ranks=ranks, early=early) as stopping:
        try:
            if ranks.any(stopping()):
                raise Stopped
            tracker = RunConsole(console)
            with ExitStack() as stack:
                with ranks.errors_together():
                    if ranks.is_main:
                        stack.enter_context(open_trackers(config, folder, tracker.say))
                reached = _training(config)(config, folder, tracker, stopping)
                done = reached.done and play_test(config, folder, tracker, stopping, steps=reached.step)
        except KeyboardInterrupt:
            console.print(f"{stopping.word}; go on with: {resume}", highlight=False, soft_wrap=True, markup=False)
            return stopping.exit_code
        except (EngineError, PluginError, TooManyFailed, Stopped) as error:
            if not stopping.at_once:  # else it may be the same signal that has ended the engine
                raise RunStopped(f"{error} What is done is saved; go on with: {resume}") from error
            told = f"{stopping.word}. What is done is saved; go on with: {resume}"
            console.print(told, highlight=False, soft_wrap=True, markup=False)
            return stopping.exit_code
        except NotFinite as error:
            raise RunStopped(
                f"{error} With the cause removed, go on with: {resume}; with other settings, such as a lower "
                "optimizer.lr, begin a run with --model and that checkpoint."
            ) from error
        except UsageError:
            if ranks.is_main and not asked.resume:
                folder.discard()
            raise
    if not done:
        console.print(
            f"Saved after step {reached.step}; go on with: {resume}", highlight=False, soft_wrap=True, markup=False
        )
        return stopping.exit_code
    if ranks.is_main:
        show_results(config, folder, Console(), seconds=time.monotonic() - began)
    return 0


def _training(config: BaseConfig) -> _Training:
    """What takes a run of this kind from its beginning, or from where it was left, to its end."""
    match config:
        case AgentEvolConfig():
            from agentgym_trainer.trainers.agent_evol import train
        case SFTConfig():
            from agentgym_trainer.trainers.sft import train
        case DPOConfig():
            from agentgym_trainer.trainers.dpo import train
        case _:
            from agentgym_trainer.trainers.rl import train
    return train


def _parse(arguments: Sequence[str]) -> tuple[str, Command[Any]]:
    """The recipe, and what the flags make of it. The recipe comes first; without one it is the quickstart."""
    recipe, flags = DEFAULT, list(arguments)
    if flags and not flags[0].startswith("-"):
        recipe = flags.pop(0)
    config = find_recipe(recipe).config
    lines = [f"  {name}: {known.about}" for name, known in RECIPES.items()]
    if not {"--help", "-h", "--list"}.isdisjoint(flags):  # looking through all packages takes a moment
        lines += _registered()
    listing = "\n".join(lines)
    if "--list" in flags:
        sys.stdout.write(f"{listing}\n")
        sys.exit(0)
    about = "\n".join(["Recipes:", listing, "", "Examples:", *(f"  {example}" for example in EXAMPLES)])
    try:
        default, which = _command(config, flags)
        try:
            command = tyro.cli(
                type(default) if isinstance(default, Choosing) else Command[type(default.config)],
                prog=f"train {recipe}",
                description=f"train [RECIPE] [--flags]\n\n{about}\n\n{which.format(recipe)}",
                args=flags,
                default=default,
                config=(tyro.conf.AvoidSubcommands,),
                registry=registry(),
            )
        except SystemExit as end:
            if end.code == 2:
                known = {flag: choice.known for flag, choice in choices(default.config).items()}
                for sentence in meant(flags, default, known):
                    Console(stderr=True).print(f"train: {sentence}", highlight=False, soft_wrap=True, markup=False)
            raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    return recipe, command


def _registered() -> Iterator[str]:
    """A line for each kind of setting that installed packages have registered some of, with their names."""
    groups = {GROUP: "recipes", **{point.group: f"{point.what}s" for point in POINTS.values()}}
    for group, found in installed(*groups).items():
        if found:
            yield f"  {groups[group]} of installed packages: {', '.join(sorted(found))}"


def _command(config: BaseConfig, flags: Sequence[str]) -> tuple[Command[Any], str]:
    """What a recipe asks for, before its flags do, and how those of its kind are introduced."""
    config = _moved(config, flags)
    return (Choosing(chosen(config, flags)), _CHOOSING) if isinstance(config, RLConfig) else (Command(config), _FLAGS)


def _moved(config: _S, flags: Sequence[str]) -> _S:
    """The configuration without the options of worlds for which others are named: they belong to the recipe's."""

    def moved(world: WorldConfig, place: str) -> WorldConfig:
        name = given(flags, f"--{place}.env")
        same = name in (None, world.env) or str(name).lower() == short_name(world.env)
        return world if same else replace(world, options=())

    others = tuple(moved(world, f"extra_worlds.{i}") for i, world in enumerate(config.extra_worlds))
    return replace(config, world=moved(config.world, "world"), extra_worlds=others)


def _left_out(recipe: BaseConfig, asked: BaseConfig, flags: Sequence[str]) -> Iterator[str]:
    """A sentence for each world of the recipe whose options went with it, where no others were given."""
    places = ["world", *(f"extra_worlds.{i}" for i in range(len(recipe.extra_worlds)))]
    for place, theirs, ours in zip(places, recipe.worlds, asked.worlds, strict=False):
        if theirs.options and not ours.options and given(flags, f"--{place}.options") is None:
            yield (
                f"The recipe's options {' '.join(theirs.options)} belong to {theirs.env}, and {ours.env} is played "
                f"without them; --{place}.options KEY=VALUE ... gives it others."
            )


def _open(
    recipe: str, command: Command[Any], arguments: Sequence[str], held: ExitStack
) -> tuple[RunFolder, BaseConfig, str]:
    """The run's folder, configuration and recipe, the same for all of its processes. `held` gives the folder back."""
    from agentgym_eval.storage.lock import FolderLock

    from agentgym_trainer.run.folder import RunFolder
    from agentgym_trainer.trainers.setup import init_processes

    if command.resume:
        if not arguments[0].startswith("--resume") or len(arguments) != (1 if "=" in arguments[0] else 2):
            raise UsageError("--resume goes on with a run as it was begun and takes no recipe or other flags.")
        folder, config, recipe = RunFolder.open(command.resume)
        ranks = init_processes(config)
        with ranks.errors_together():
            if ranks.is_main:
                held.enter_context(FolderLock(folder.path))
        return folder, config, recipe
    config = tiny(command.config) if command.tiny else command.config
    ranks = init_processes(config)
    # By the clock of one process.
    path = ranks.broadcast(command.out or Path("runs", f"{recipe.replace(':', '-')}-{datetime.now():%Y%m%d-%H%M%S}"))
    with ranks.errors_together():
        if ranks.is_main:
            RunFolder.check(path, config)
            held.enter_context(FolderLock(path))
            return RunFolder.create(path, config, recipe), config, recipe
    return RunFolder(path), config, recipe
