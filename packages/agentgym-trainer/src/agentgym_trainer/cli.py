"""`train`: from a recipe and flags to a finished run. Heavy imports wait until there is something to train."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Generic, NoReturn, TypeVar

import tyro
from agentgym_eval.errors import RunStopped, UsageError
from agentgym_eval.settings import short_name
from rich.console import Console
from rich.markup import escape

from agentgym_trainer.algorithms import PRESETS
from agentgym_trainer.config import DPO, SFT, AgentEvol, Config, Setup, World
from agentgym_trainer.config_json import nearest
from agentgym_trainer.engines import EngineError
from agentgym_trainer.flags import EXAMPLES, meant
from agentgym_trainer.horizon import KINDS, by_kind
from agentgym_trainer.recipes import DEFAULT, RECIPES, tiny
from agentgym_trainer.sampler import Middling, Sampler, Uniform

if TYPE_CHECKING:
    from agentgym_trainer.progress import Reached
    from agentgym_trainer.run_folder import RunFolder
    from agentgym_trainer.tracking import Tracker

    _Train = Callable[[Any, RunFolder, Tracker, Callable[[], bool]], Reached]

_S = TypeVar("_S", bound=Setup)

_INTERRUPTED = 130
_SAME_S = 1.0
"""A launcher of many processes passes Ctrl-C on to those that had it from the terminal already."""
_FLAGS = "The flags of {}:"
_CHOOSING = "The flags of {} (for those of another algorithm, horizon or sampler, name it before --help):"
_SAMPLERS: dict[str, Sampler] = {"uniform": Uniform(), "middling": Middling()}


def _one_of(names: Iterable[str], about: str) -> Any:
    return tyro.conf.arg(metavar="NAME", help=f"{about}: {', '.join(names)}.")


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
class Choosing(Command[Config]):
    """What `train` is asked for in reinforcement learning."""

    # What these name is in the configuration already: it decides which flags there are (`_chosen`).
    algorithm: Annotated[str | None, _one_of(PRESETS, "Another algorithm than the recipe's")] = None
    horizon: Annotated[str | None, _one_of(KINDS, "Another kind of schedule, with the recipe's stages")] = None
    sampler: Annotated[str | None, _one_of(_SAMPLERS, "Another way to draw training tasks")] = None


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Train, and exit with 0 (done), 1 (failed), 2 (wrong usage) or 130 (interrupted, to be resumed)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        from agentgym_envs.installation import package_version

        sys.stdout.write(f"{package_version('agentgym-trainer')}\n")
        sys.exit()
    try:
        sys.exit(_run(arguments))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except (UsageError, RunStopped, OSError) as error:  # the last when a disk is full, for one
        from agentgym_envs.redaction import redacted

        Console(stderr=True).print(f"[red]error:[/] {escape(redacted(str(error)))}", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _run(arguments: Sequence[str]) -> int:
    recipe, asked = _parse(arguments)
    console = Console(stderr=True)
    for sentence in _left_out(RECIPES[recipe].config, asked.config, arguments):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    console.print("Loading torch and transformers …", highlight=False)
    from agentgym_envs.installation import command
    from agentgym_envs.redaction import redact_logs
    from agentgym_envs.registry import look_here

    look_here()
    redact_logs()
    folder, config, recipe = _open(recipe, asked, arguments)
    from transformers.utils import logging as transformers_logging

    from agentgym_trainer.beginning import join
    from agentgym_trainer.results import finish
    from agentgym_trainer.trackers import tracked
    from agentgym_trainer.tracking import Tracker

    # Bars and notes on loading and saving would tear the run's own bars apart.
    transformers_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    # What one process has to say, the others needn't say again; errors they tell all the same.
    ranks = join(config)
    console = Console(stderr=True, quiet=not ranks.leads)
    console.print(f"recipe {recipe}, run folder {folder.path}", highlight=False, soft_wrap=True, markup=False)
    began = time.monotonic()
    again = (
        command("train") if ranks.count == 1 else f"{command('accelerate', ours=False)} launch … -m agentgym_trainer"
    )
    resume = f"{again} --resume {shlex.quote(str(folder.path))}"
    with _interruptible(console) as stopping:
        try:
            tracker = Tracker(console)
            with ExitStack() as stack:
                with ranks.together():
                    if ranks.leads:
                        stack.enter_context(tracked(config, folder, tracker.say))
                reached = _training(config)(config, folder, tracker, stopping)
        except KeyboardInterrupt:
            console.print(f"Interrupted; go on with: {resume}", highlight=False, soft_wrap=True, markup=False)
            return _INTERRUPTED
        except EngineError as error:
            raise RunStopped(f"{error} What is done is saved; go on with: {resume}") from error
        except UsageError:
            if ranks.leads and not asked.resume:
                folder.discard()
            raise
    if not reached.done:
        console.print(
            f"Saved after step {reached.step}; go on with: {resume}", highlight=False, soft_wrap=True, markup=False
        )
        return _INTERRUPTED
    if ranks.leads:
        finish(config, folder, Console(), seconds=time.monotonic() - began)
    return 0


def _training(config: Setup) -> _Train:
    """What takes a run of this kind from its beginning, or from where it was left, to its end."""
    match config:
        case AgentEvol():
            from agentgym_trainer.evol import train
        case SFT():
            from agentgym_trainer.sft import train
        case DPO():
            from agentgym_trainer.dpo import train
        case _:
            from agentgym_trainer.train import train
    return train


def _parse(arguments: Sequence[str]) -> tuple[str, Command[Any]]:
    """The recipe, and what the flags make of it. The recipe comes first; without one it is the quickstart."""
    recipe, flags = DEFAULT, list(arguments)
    if flags and not flags[0].startswith("-"):
        recipe = flags.pop(0)
    if recipe not in RECIPES:
        raise UsageError(f"There is no recipe {recipe!r}. {nearest(recipe, RECIPES)}")
    listing = "\n".join(f"  {name}: {known.about}" for name, known in RECIPES.items())
    if "--list" in flags:
        sys.stdout.write(f"{listing}\n")
        sys.exit(0)
    about = "\n".join(["Recipes:", listing, "", "Examples:", *(f"  {example}" for example in EXAMPLES)])
    default, which = _command(RECIPES[recipe].config, flags)
    try:
        command = tyro.cli(
            type(default) if isinstance(default, Choosing) else Command[type(default.config)],
            prog=f"train {recipe}",
            description=f"train [RECIPE] [--flags]\n\n{about}\n\n{which.format(recipe)}",
            args=flags,
            default=default,
            config=(tyro.conf.AvoidSubcommands,),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    except SystemExit as end:
        if end.code == 2:
            for sentence in meant(flags, default, _choices(default.config)):
                Console(stderr=True).print(f"train: {sentence}", highlight=False, soft_wrap=True, markup=False)
        raise
    return recipe, command


def _command(config: Setup, flags: Sequence[str]) -> tuple[Command[Any], str]:
    """What a recipe asks for, before its flags do, and how those of its kind are introduced."""
    config = _moved(config, flags)
    return (Choosing(_chosen(config, flags)), _CHOOSING) if isinstance(config, Config) else (Command(config), _FLAGS)


def _moved(config: _S, flags: Sequence[str]) -> _S:
    """The configuration without the options of worlds for which others are named: they belong to the recipe's."""

    def moved(world: World, place: str) -> World:
        name = _given(flags, f"--{place}.env")
        same = name in (None, world.env) or str(name).lower() == short_name(world.env)
        return world if same else replace(world, options=())

    others = tuple(moved(world, f"others.{i}") for i, world in enumerate(config.others))
    return replace(config, world=moved(config.world, "world"), others=others)


def _given(flags: Sequence[str], name: str) -> str | None:
    """The last value of a flag; None where it isn't there."""
    found = None
    for flag, following in pairwise([*flags, ""]):
        setting, equals, value = flag.partition("=")
        if setting.replace("_", "-") == name:
            found = value if equals else following
    return found


def _left_out(recipe: Setup, asked: Setup, flags: Sequence[str]) -> Iterator[str]:
    """A sentence for each world of the recipe whose options went with it, where no others were given."""
    places = ["world", *(f"others.{i}" for i in range(len(recipe.others)))]
    for place, theirs, ours in zip(places, recipe.worlds, asked.worlds, strict=False):
        if theirs.options and not ours.options and _given(flags, f"--{place}.options") is None:
            yield (
                f"The recipe's options {' '.join(theirs.options)} belong to {theirs.env}, and {ours.env} is played "
                f"without them; --{place}.options KEY=VALUE ... gives it others."
            )


def _chosen(config: Config, flags: Sequence[str]) -> Config:
    """The configuration with the algorithm, horizon and sampler that are named; which flags there are hangs on them.

    Raises:
        UsageError: when one of them doesn't exist.
    """
    for setting, choices in _choices(config).items():
        if (name := _given(flags, f"--{setting}")) is not None:
            if name not in choices:
                raise UsageError(f"There is no {setting} {name!r}. {nearest(name, choices)}")
            config = replace(config, **{setting: choices[name]})
    return config


def _choices(config: Setup) -> dict[str, Mapping[str, Any]]:
    """The settings that a name stands for, by the flag that gives the name; none where a kind of run has no choice."""
    if not isinstance(config, Config):
        return {}
    return {"algorithm": PRESETS, "horizon": by_kind(config.horizon), "sampler": _SAMPLERS}


def _open(recipe: str, command: Command[Any], arguments: Sequence[str]) -> tuple[RunFolder, Setup, str]:
    """The run's folder, configuration and recipe, the same for all of its processes."""
    from agentgym_trainer.run_folder import RunFolder

    if command.resume:
        if not arguments[0].startswith("--resume") or len(arguments) != (1 if "=" in arguments[0] else 2):
            raise UsageError("--resume goes on with a run as it was begun and takes no recipe or other flags.")
        return RunFolder.open(command.resume)
    from agentgym_trainer.beginning import join

    config = tiny(command.config) if command.tiny else command.config
    ranks = join(config)
    # By the clock of one process.
    path = ranks.tell(command.out or Path("runs", f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}"))
    with ranks.together():
        return RunFolder.create(path, config, recipe) if ranks.leads else RunFolder(path), config, recipe


@contextmanager
def _interruptible(console: Console) -> Generator[Callable[[], bool]]:
    """Ctrl-C once asks the run to stop and save; twice stops it where it is."""
    asked: float | None = None

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        now = time.monotonic()
        if asked is None:
            asked = now
            console.print("Stopping after this step; Ctrl-C again stops at once.", highlight=False)
        elif now - asked > _SAME_S:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: asked is not None
    finally:
        signal.signal(signal.SIGINT, before)
