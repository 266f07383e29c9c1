"""The command `train`: parse a recipe and flags, and run the training. Heavy imports are deferred until needed."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, NoReturn, TypeVar

from agentgym_envs.cli.flags import given
from agentgym_envs.util.abandoned_threads import any_abandoned
from agentgym_envs.util.flag_markers import arg
from agentgym_envs.util.installation import command, package_version
from agentgym_eval.storage.labels import checked_tags
from agentgym_eval.util.errors import RunStopped, UsageError
from agentgym_eval.util.stopping import Termination

from agentgym_trainer.algorithms import ADVANTAGES, PRESETS
from agentgym_trainer.cli_choices import choices, chosen, registry
from agentgym_trainer.cli_flags import EXAMPLES, meant
from agentgym_trainer.cli_help import short_help
from agentgym_trainer.cli_unused import dropped_options, unused_flags
from agentgym_trainer.config import BaseConfig, RLConfig, WorldConfig
from agentgym_trainer.config_files import read_run, read_settings, with_settings
from agentgym_trainer.curriculum.horizon import KINDS
from agentgym_trainer.curriculum.task_sampler import SAMPLERS
from agentgym_trainer.engines.base import EngineError
from agentgym_trainer.plugins import POINTS, PluginError, installed
from agentgym_trainer.recipes import DEFAULT, GROUP, RECIPES, check_first_run, find_recipe, tiny
from agentgym_trainer.reward_shaping import REWARDS

if TYPE_CHECKING:
    from rich.console import Console

    from agentgym_trainer.run.folder import RunFolder

_S = TypeVar("_S", bound=BaseConfig)

_INTERRUPTED = 130
_HELP, _HELP_ALL = {"--help", "-h"}, "--help-all"
_FLAGS = "Flags of {}:"
_CHOOSING = "Flags of {} (for the flags of another algorithm, horizon, sampler or reward, give it before --help-all):"


def _one_of(names: Iterable[str], about: str) -> Any:
    return arg(metavar="NAME", help=f"{about}: {', '.join(names)}, or MODULE:NAME.")


@dataclass(frozen=True)
class Command(Generic[_S]):
    """The command line of `train`."""

    config: Annotated[_S, arg(name="")]
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Run folder; default: runs/RECIPE-DATE-TIME."""
    resume: Annotated[Path | None, arg(metavar="PATH")] = None
    """Resume the run in this folder; takes no other flags."""
    config_file: Annotated[Path | None, arg(name="config", metavar="FILE")] = None
    """JSON or TOML file with settings in the form of `config` in run.json. They replace those of the recipe, and flags
    replace them."""
    like: Annotated[Path | None, arg(metavar="RUN")] = None
    """Start a new run with the recipe and the settings of the run in this folder, which flags replace."""
    list: bool = False
    """List the recipes and exit."""
    plan: Annotated[tuple[str, ...] | None, arg(metavar="[HARDWARE]")] = None
    """Print the memory that every phase needs and exit, without loading anything: with 0 if the run fits, else with 1
    and settings with which it would fit. HARDWARE is such as H100, 8xH100, 4x80GB or 8xH100:ddp (several GPUs: FSDP2);
    default: this machine."""
    sweep: Annotated[tuple[str, ...], arg(metavar="FLAG=VALUE,... [...]")] = ()
    """Train one run for each value of a setting, such as optimizer.lr=1e-5,2e-5, and for each combination of several
    settings, in folders of --out (default: runs/RECIPE-sweep). The same command continues a sweep."""
    seeds: tuple[int, ...] = ()
    """Train one run for each seed, within a sweep or without one."""
    tags: tuple[str, ...] = ()
    """Tags of the run, by which the viewer groups and filters runs; there they can be changed later."""
    sweep_processes: int = 1
    """Number of runs of a sweep at a time."""
    tiny: bool = False
    """Smoke test: scale everything down, with a tiny model from scratch on a CPU, overriding flags for sizes."""


@dataclass(frozen=True)
class Choosing(Command[RLConfig]):
    """The command line of `train` for reinforcement learning."""

    # `chosen` has already applied these to the configuration, since they determine which other flags exist.
    algorithm: Annotated[str | None, _one_of(PRESETS, "Algorithm, instead of the recipe's")] = None
    algorithm_advantages: Annotated[
        str | None,
        arg(name="algorithm.advantages"),
        _one_of(ADVANTAGES, "Advantage estimator, instead of the algorithm's"),
    ] = None
    horizon: Annotated[str | None, _one_of(KINDS, "Horizon schedule, with the recipe's stages")] = None
    sampler: Annotated[str | None, _one_of(SAMPLERS, "Sampler of training tasks, instead of the recipe's")] = None
    reward: Annotated[str | None, _one_of(REWARDS, "Reward shaping, instead of the recipe's")] = None


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Train, and exit with 0 (done), 1 (failed), 2 (wrong usage) or, if the run can be resumed, 130 (interrupted), 143
    (SIGTERM) or 138 (SIGUSR1).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        sys.stdout.write(f"{package_version('agentgym-trainer')}\n")
        sys.exit()
    try:
        code = _run(arguments)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except (UsageError, RunStopped, OSError) as error:  # OSError if the disk is full, for example
        from agentgym_envs.util.redaction import redacted
        from rich.console import Console
        from rich.markup import escape

        Console(stderr=True).print(f"[red]error:[/] {escape(redacted(str(error)))}", highlight=False, soft_wrap=True)
        code = 2 if isinstance(error, UsageError) else 1
    _end(code)


def _end(code: int) -> NoReturn:
    """Exit, without waiting for threads if one of them is blocked for good."""
    if any_abandoned():
        from rich.console import Console

        Console(stderr=True).print(
            "A rollout didn't end within 10 seconds, since an environment's step or the engine blocks its thread. The "
            "process ends without closing them. An environment that may hang needs --world.backend thread or process.",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    # Signals are recorded from here on, so that one during the imports ends the run like any other.
    with Termination() as early, ExitStack() as locks:
        return _train(arguments, locks, early)


def _train(arguments: Sequence[str], locks: ExitStack, early: Termination) -> int:
    recipe, parsed = _parse(arguments)
    if parsed.plan is not None:
        return _plan(parsed, parsed.plan, arguments)
    tags = checked_tags(parsed.tags)
    if parsed.sweep or parsed.seeds:
        return _sweep(recipe, parsed, arguments, early)
    if parsed.resume:
        _check_resume(parsed.resume, arguments)
    from rich.console import Console

    console = Console(stderr=True)
    _name_flags_without_effect(parsed.config, arguments, console)
    console.print("Loading torch and transformers …", highlight=False)
    from agentgym_envs.core.feedback import EnvFault
    from agentgym_envs.core.registration import look_here
    from agentgym_envs.util.redaction import redact_logs

    look_here()
    redact_logs()
    folder, config, recipe = _open(recipe, parsed, tags, arguments, locks)

    from agentgym_trainer.api import train_in
    from agentgym_trainer.learner.finite_checks import NotFinite
    from agentgym_trainer.rollout.failures import TooManyFailed
    from agentgym_trainer.run.console import RunConsole
    from agentgym_trainer.run.summary import show_results
    from agentgym_trainer.stopping import Stopped, Stopping
    from agentgym_trainer.trainers.setup import init_processes

    # Its messages would break the run's progress bars.
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    # Only the main process prints progress; all print errors.
    ranks = init_processes(config)
    console = Console(stderr=True, quiet=not ranks.is_main)
    known = RECIPES.get(recipe)
    cost = f" ({known.cost})" if known and known.cost else ""
    console.print(f"recipe {recipe}{cost}, run folder {folder.path}", highlight=False, soft_wrap=True, markup=False)
    started = time.monotonic()
    program = (
        command("train") if ranks.count == 1 else f"{command('accelerate', ours=False)} launch … -m agentgym_trainer"
    )
    resume = f"{program} --resume {shlex.quote(str(folder.path))}"
    with Stopping(partial(console.print, highlight=False), ranks=ranks, early=early) as stopping:
        try:
            if ranks.any(stopping()):
                raise Stopped
            reached, done = train_in(folder, config, RunConsole(console), stopping)
        except KeyboardInterrupt:
            console.print(f"{stopping.word}; resume with: {resume}", highlight=False, soft_wrap=True, markup=False)
            return stopping.exit_code
        except (EngineError, EnvFault, PluginError, TooManyFailed, Stopped) as error:
            if not stopping.at_once:  # otherwise the same signal may have ended the engine
                raise RunStopped(f"{error} {folder.progress}; resume with: {resume}") from error
            message = f"{stopping.word}. {folder.progress}; resume with: {resume}"
            console.print(message, highlight=False, soft_wrap=True, markup=False)
            return stopping.exit_code
        except NotFinite as error:
            changed = "such as to a lower optimizer.lr, start a new run with --model and that checkpoint"
            if not any(folder.checkpoints.glob("*")):
                warm = isinstance(config, RLConfig) and config.warm_start.episodes and not folder.start.exists()
                changed = f"such as to a lower {'warm_start' if warm else 'optimizer'}.lr, start a new run"
            raise RunStopped(
                f"{error} After fixing the cause, resume with: {resume}; to change settings, {changed}."
            ) from error
        except UsageError as error:
            if ranks.is_main and not parsed.resume:
                folder.discard()
                if folder.has_trained_start:
                    start = shlex.quote(str(folder.start))
                    raise UsageError(
                        f"{error} The warm start is kept: --model {start} --warm-start.episodes 0 begins with it."
                    ) from error
            raise
    if not done:
        console.print(
            f"Saved after step {reached.step}; resume with: {resume}", highlight=False, soft_wrap=True, markup=False
        )
        return stopping.exit_code
    if ranks.is_main:
        took, suggested = time.monotonic() - started, known.next if known else ""
        show_results(config, folder, Console(), model_step=reached.model_step, seconds=took, suggested=suggested)
    return 0


def _parse(arguments: Sequence[str]) -> tuple[str, Command[Any]]:
    """Parse the command line into the recipe's name (the first argument; default: quickstart) and the command."""
    recipe, config, flags = _base(arguments)
    lines = [f"  {name}: {known.about}{f' ({known.cost})' * bool(known.cost)}" for name, known in RECIPES.items()]
    if not {*_HELP, _HELP_ALL, "--list"}.isdisjoint(flags):  # searching all installed packages is slow
        lines += _registered()
    listing, program = "\n".join(lines), command("train")
    if "--list" in flags:
        sys.stdout.write(f"{listing}\n")
        sys.exit(0)
    about = "\n".join(["Recipes:", listing, "", "Examples:", *(f"  {command(example)}" for example in EXAMPLES)])
    try:
        default, heading = _command(config, flags)
        if not _HELP.isdisjoint(flags):
            sys.stdout.write(short_help(recipe, default, listing))
            sys.exit(0)
        import tyro

        flags = ["--help" if flag == _HELP_ALL else flag for flag in flags]
        try:
            parsed = tyro.cli(
                type(default) if isinstance(default, Choosing) else Command[type(default.config)],
                prog=f"{program} {recipe}",
                description=f"{program} [RECIPE] [--flags]\n\n{about}\n\n{heading.format(recipe)}",
                args=flags,
                default=default,
                config=(tyro.conf.AvoidSubcommands,),
                registry=registry(),
            )
        except SystemExit as end:
            if end.code == 2:
                from rich.console import Console

                known = {flag: choice.known for flag, choice in choices(default.config).items()}
                of_each_kind = (DEFAULT, "sft-textcraft", "dpo-textcraft", "evol-textcraft")
                others = {name: Command(RECIPES[name].config) for name in of_each_kind}
                for sentence in meant(flags, default, known, others):
                    Console(stderr=True).print(f"train: {sentence}", highlight=False, soft_wrap=True, markup=False)
            raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    return recipe, parsed


def parse_config(arguments: Sequence[str]) -> BaseConfig:
    """Return the configuration of the run that a command line starts.

    Raises:
        UsageError: if a recipe, run, file or value is wrong.
        SystemExit: with 2, after reporting wrong flags.
    """
    parsed = _parse(arguments)[1]
    return tiny(parsed.config) if parsed.tiny else parsed.config


def _base(arguments: Sequence[str]) -> tuple[str, BaseConfig, list[str]]:
    """Return the recipe, the configuration that flags change (the recipe's, or that of `--like`, with the settings of
    `--config`), and the flags.

    Raises:
        UsageError: There is no such recipe, run or file, or the file has unknown settings.
    """
    named, flags = None, list(arguments)
    if flags and not flags[0].startswith("-"):
        named = flags.pop(0)
    run, file = given(flags, "--like"), given(flags, "--config")
    settings, recipe = read_settings(Path(file)) if file else ({}, None)
    if run:
        if named:
            raise UsageError(f"--like {run} takes the recipe of that run; leave out {named}.")
        config, recipe = read_run(Path(run))
    else:
        recipe = named or recipe or DEFAULT
        config = find_recipe(recipe).config
    return recipe, with_settings(config, settings, Path(file)) if file else config, flags


def _name_flags_without_effect(config: BaseConfig, arguments: Sequence[str], console: Console) -> None:
    """Print a sentence for each flag that has no effect, and for options of the base that another environment drops."""
    for sentence in (*dropped_options(_base(arguments)[1], config, arguments), *unused_flags(config, arguments)):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)


def _plan(parsed: Command[Any], hardware: Sequence[str], arguments: Sequence[str]) -> int:
    """Print the memory that the run needs; returns the exit code."""
    if parsed.resume:
        raise UsageError("--plan plans new runs: give it the recipe and the flags of the run, without --resume.")
    from rich.console import Console

    from agentgym_trainer.planning.report import print_plan
    from agentgym_trainer.rollout.environments import check_environments

    _name_flags_without_effect(parsed.config, arguments, Console(stderr=True))
    config = tiny(parsed.config) if parsed.tiny else parsed.config
    check_first_run(config)
    check_environments(config)
    return 0 if print_plan(config, hardware, Console()) else 1


def _sweep(recipe: str, parsed: Command[Any], arguments: Sequence[str], early: Termination) -> int:
    """Train all runs of a sweep; returns the exit code."""
    if parsed.resume:
        raise UsageError("--resume continues a single run; the same command as before continues a sweep.")
    from agentgym_trainer.sweep import run_sweep, sweep_runs

    out = parsed.out or Path("runs", f"{recipe.replace(':', '-')}-sweep")
    runs = sweep_runs(arguments, parsed.sweep, parsed.seeds, out)
    again = f"{command('train')} {shlex.join(arguments)}"
    return run_sweep(runs, parsed.sweep_processes, parse_config, again, early)


def _registered() -> Iterator[str]:
    """Yield a line for each kind of plugin with the names that installed packages have registered."""
    groups = {GROUP: "recipes", **{point.group: f"{point.what}s" for point in POINTS.values()}}
    for group, found in installed(*groups).items():
        if found:
            yield f"  {groups[group]} of installed packages: {', '.join(sorted(found))}"


def _command(config: BaseConfig, flags: Sequence[str]) -> tuple[Command[Any], str]:
    """Return the command with the recipe's configuration as defaults, and the heading of its flags in the help."""
    config = _without_foreign_options(config, flags)
    return (Choosing(chosen(config, flags)), _CHOOSING) if isinstance(config, RLConfig) else (Command(config), _FLAGS)


def _without_foreign_options(config: _S, flags: Sequence[str]) -> _S:
    """Remove the recipe's options of environments that the flags replace, since others don't have these options."""

    def without(world: WorldConfig, path: str) -> WorldConfig:
        name = given(flags, f"--{path}.env")
        if name is None:
            return world
        from agentgym_eval.runs.settings import short_name

        return world if name == world.env or name.lower() == short_name(world.env) else replace(world, options=())

    extra = tuple(without(world, f"extra_worlds.{i}") for i, world in enumerate(config.extra_worlds))
    return replace(config, world=without(config.world, "world"), extra_worlds=extra)


def _check_resume(run: Path, arguments: Sequence[str]) -> None:
    """Refuse other arguments, and what isn't a training run, before torch is loaded."""
    if not arguments[0].startswith("--resume") or len(arguments) != (1 if "=" in arguments[0] else 2):
        raise UsageError("--resume uses the settings of the resumed run, and takes no recipe or other flags.")
    read_run(run)


def _open(
    recipe: str, parsed: Command[Any], tags: Sequence[str], arguments: Sequence[str], locks: ExitStack
) -> tuple[RunFolder, BaseConfig, str]:
    """Create or open the run folder; all processes get the same folder, configuration and recipe. The folder stays
    locked until `locks` is closed.
    """
    from agentgym_trainer.api import open_existing, open_new

    if parsed.resume:
        return open_existing(parsed.resume, locks)
    config = tiny(parsed.config) if parsed.tiny else parsed.config
    path = parsed.out or Path("runs", f"{recipe.replace(':', '-')}-{datetime.now():%Y%m%d-%H%M%S}")
    return open_new(path, config, recipe, locks, tags), config, recipe
