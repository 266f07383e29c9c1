"""Policies without a model, and how policies of other packages are found by name.

They choose actions and leave the reply format to the environment's wrapper. Where a reply is not an action (a plan, a
reflection, a summary) they answer in plain sentences; the expert gives its own reasons and, in a summary, its last
steps. Random choices come from the generator of the turn, so a resumed run draws the same numbers as an uninterrupted
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Protocol

import gymnasium
from agentgym_envs import Policy, Reply, TurnContext, text_env
from agentgym_envs.core.feedback import faulting
from agentgym_envs.episodes.policy import last_steps
from agentgym_envs.util.installation import install

from agentgym_eval.policies.custom import build_policy, import_policy, is_module
from agentgym_eval.policies.endpoint.settings import OPENAI, EndpointSettings
from agentgym_eval.policies.names import GROUP, POLICIES
from agentgym_eval.util.errors import Unplayable, UsageError, did_you_mean

_HOMES = {"hf": "agentgym-trainer", "vllm": "agentgym-trainer"}
_KNOWN = ("oracle", "random", "scripted", "openai", *_HOMES)
_MISSPELT = 0.75
"""Similarity of a name to that of a policy from which it isn't taken for a module's."""


class PolicyFactory(Protocol):
    """Builds a policy. Loads whatever is heavy."""

    def __call__(self, *, temperature: float, seed: int, max_tokens: int, pictures: bool = False) -> Policy:
        """Build the policy. `seed` is for random choices that can't come from `TurnContext.rng`; a resumed run passes
        another one. `pictures` tells whether the agent gets pictures, for policies that load a model which sees them.
        """
        ...


_RANDOM_THOUGHT = "I try something at random."
"""The reason that an expert gives for a random action."""


class EnvPolicy(Policy):
    """A policy that chooses actions with access to the environment."""

    needs_env: ClassVar[bool] = True

    def check(self, env: gymnasium.Env[str, str]) -> None:
        """Check, before the first reset, that the policy can play the environment.

        Raises:
            Unplayable: if it can't.
        """

    async def reply(self, context: TurnContext) -> Reply:
        """The chosen action in the agent's reply format, or an answer in plain sentences.

        Raises:
            EnvFault: if the environment raised anything.
        """
        env = context.env
        if env is None:
            raise TypeError(f"The policy {self.name} plays environments of this process only.")
        return self.act(env, context) if context.kind == "act" else self.answer(env, context)

    def act(self, env: gymnasium.Env[str, str], context: TurnContext) -> Reply:
        """Reply with an action."""
        raise NotImplementedError

    def answer(self, env: gymnasium.Env[str, str], context: TurnContext) -> Reply:
        """Reply to a request for a plan, a reflection or a summary."""
        match context.kind:
            case "plan":
                return Reply("I will try one action after the other and see what comes of it.")
            case "reflect" if not context.acts:
                return Reply("I did not reach the goal. I will try again.")
            case "reflect":
                return Reply(f"After {context.acts} actions the goal is not reached. I will go on.")
            case _:
                return Reply(f"I have played {context.acts} actions, and the goal is not reached.")


def _formatted(env: gymnasium.Env[str, str], action: str, thought: str = "") -> Reply:
    return Reply(env.get_wrapper_attr("format")(action, thought))


def _random_action(env: gymnasium.Env[str, str], context: TurnContext) -> str:
    actions: list[str] | None = context.info["available_actions"]
    if not actions:
        raise _without_actions(env, text_env(env).task.env)
    return actions[int(context.rng.integers(len(actions)))]


def _check_actions(env: gymnasium.Env[str, str]) -> None:
    if not text_env(env).lists_actions:
        raise _without_actions(env, _id(env))


def _without_actions(env: gymnasium.Env[str, str], env_id: str) -> Unplayable:
    world = text_env(env)
    option = world.actions_option if not world.lists_actions else ""
    listing = f"give --options {option} (for train, --world.options), or " if option else ""
    others = "oracle or scripted:FILE" if world.has_oracle else "scripted:FILE or a model"
    return Unplayable(f"{env_id} lists no available actions here, so none can be drawn: {listing}play {others}.")


def _id(env: gymnasium.Env[str, str]) -> str:
    return env.spec.id if env.spec else type(text_env(env)).__name__


@dataclass(frozen=True, slots=True)
class Oracle(EnvPolicy):
    """The environment's own expert with its reasons; with probability `noise` it takes a random available action.

    Random actions are marked as `Reply.noise`. They lead the expert to states in which it shows how to recover from
    mistakes. With `labels`, their `Reply.label` is what the expert itself would have replied.
    """

    noise: float = 0.0
    labels: bool = False

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - derived from the noise
        """`oracle` or `oracle:NOISE`."""
        return f"oracle:{self.noise:g}" if self.noise else "oracle"

    def check(self, env: gymnasium.Env[str, str]) -> None:
        """Check that the environment has an expert, and lists actions if some are random."""
        if not text_env(env).has_oracle:
            raise Unplayable(
                f"{_id(env)} has no expert, so oracle can't play it: play random or a model. A training run goes "
                "without the expert's episodes with --warm-start.episodes 0."
            )
        if self.noise:
            _check_actions(env)

    def act(self, env: gymnasium.Env[str, str], context: TurnContext) -> Reply:
        """The expert's next action, or a random one.

        Raises:
            Unplayable: if the environment has no expert.
        """
        self.check(env)
        if self.noise and context.rng.random() < self.noise:
            label = self._own(env).text if self.labels else None
            return replace(_formatted(env, _random_action(env, context), _RANDOM_THOUGHT), noise=True, label=label)
        return self._own(env)

    def _own(self, env: gymnasium.Env[str, str]) -> Reply:
        world = text_env(env)
        with faulting(world.task.env):
            thought = world.oracle_thought() if env.get_wrapper_attr("thinks") else ""
            return _formatted(env, world.oracle(), thought)

    def answer(self, env: gymnasium.Env[str, str], context: TurnContext) -> Reply:
        """The expert's plan or reason, and for a summary also its last steps and what it saw after them. About a trial
        that is over it has no reason to give.
        """
        plain, world = EnvPolicy.answer(self, env, context), text_env(env)
        with faulting(world.task.env):
            match context.kind:
                case "plan":
                    return Reply(world.oracle_plan() or plain.text)
                case "reflect" if not context.acts:
                    return plain
                case "reflect":
                    return Reply(f"{plain.text} {world.oracle_thought()}".strip())
                case _:
                    return Reply("\n".join(filter(None, (plain.text, last_steps(context.steps), world.oracle_plan()))))


@dataclass(frozen=True, slots=True)
class Random(EnvPolicy):
    """A uniformly random choice among the available actions."""

    name: str = "random"

    def check(self, env: gymnasium.Env[str, str]) -> None:
        """Check that the environment lists actions."""
        _check_actions(env)

    def act(self, env: gymnasium.Env[str, str], context: TurnContext) -> Reply:
        """A random action."""
        return _formatted(env, _random_action(env, context))


@dataclass(frozen=True, slots=True)
class Scripted(EnvPolicy):
    """Given actions in order, the same in every episode. The last one is repeated until the episode ends."""

    actions: tuple[str, ...]
    name: str = "scripted"

    def act(self, env: gymnasium.Env[str, str], context: TurnContext) -> Reply:
        """The next action of the script."""
        return _formatted(env, self.actions[min(context.acts, len(self.actions) - 1)])


def _oracle(argument: str) -> Policy:
    try:
        noise = float(argument or 0)
    except ValueError:
        noise = -1.0
    if not 0 <= noise <= 1:
        raise UsageError(f"The noise in oracle:{argument} must be a number from 0 to 1, such as oracle:0.3.")
    return Oracle(noise)


def _random(argument: str) -> Policy:
    if argument:
        raise UsageError(f"random takes no argument; write --policy random instead of random:{argument}.")
    return Random()


def _scripted(argument: str) -> Policy:
    if not argument:
        raise UsageError("scripted needs a file: write --policy scripted:FILE, a text file with an action per line.")
    try:
        lines = Path(argument).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"scripted:{argument} can't be read ({error}); give a text file with an action per line."
        ) from error
    actions = tuple(line.strip() for line in lines if line.strip())
    if not actions:
        raise UsageError(f"{argument} holds no action; write one per line.")
    return Scripted(actions, f"scripted:{argument}")


def _openai(
    model: str,
    endpoint: EndpointSettings,
    environment: Mapping[str, str],
    *,
    temperature: float,
    seed: int,
    max_tokens: int,
    pictures: bool = False,
) -> Policy:
    del pictures  # only the endpoint knows whether its model sees them
    from agentgym_eval.policies.endpoint.client import Client
    from agentgym_eval.policies.endpoint.player import Endpoint

    address = endpoint.base_url or environment.get("OPENAI_BASE_URL") or OPENAI
    client = Client(address, environment.get("OPENAI_API_KEY", "").strip(), rate=endpoint.rate, seed=seed)
    return Endpoint(
        client,
        model,
        temperature=temperature,
        max_tokens=max_tokens,
        body=endpoint.fields(),
        native_tools=endpoint.native_tools,
    )


def _built(policy: Policy, **_: Any) -> Policy:
    return policy


_OWN: dict[str, Callable[[str], Policy]] = {"oracle": _oracle, "random": _random, "scripted": _scripted}


def find_policy(
    spec: str, *, endpoint: EndpointSettings | None = None, environment: Mapping[str, str] | None = None
) -> PolicyFactory:
    """The factory of the policy called `NAME` or `NAME:ARGUMENT`: one of this package, an entry point of an installed
    package, or MODULE:NAME. Nothing heavy is loaded before the factory is called, except for a module that is named.

    `find_policy("hf:PATH")(temperature=1.0, seed=0, max_tokens=512)` is a policy.

    Args:
        spec: Name and argument.
        endpoint: Settings of the endpoint of `openai:MODEL`.
        environment: Environment variables: OPENAI_API_KEY, and OPENAI_BASE_URL where `endpoint` has no address.

    Raises:
        UsageError: if there is no such policy, its module can't be imported, or a policy of this package can't use the
            argument; factories of other packages raise it themselves.
    """
    name, _, argument = spec.partition(":")
    if name in _OWN:
        return partial(
            _built, _OWN[name](argument)
        )  # now, so that a wrong argument ends the command before a run begins
    if name == "openai":
        if not argument:
            raise UsageError(
                "openai needs a model: write --policy openai:MODEL, with the name that the endpoint has for it."
            )
        return partial(_openai, argument, endpoint or EndpointSettings(), environment or {})
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in installed:
        return partial(_of_entry_point, installed[name], spec, argument)
    misspelt = did_you_mean(name, [*_KNOWN, *installed], cutoff=_MISSPELT) and not is_module(name)
    if name in _HOMES or not argument or misspelt:
        raise UsageError(_unknown(name, spec, sorted(installed)))
    found, its_argument = import_policy(spec)
    return partial(_of_object, found, spec, its_argument)


def _of_entry_point(entry: EntryPoint, spec: str, argument: str, **settings: Any) -> Policy:
    try:
        found = entry.load()
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(f"The policy {spec} can't be built: {error}") from error
    return build_policy(found, spec, argument, settings)


def _of_object(found: Any, spec: str, argument: str, **settings: Any) -> Policy:
    return build_policy(found, spec, argument, settings)


def _unknown(name: str, spec: str, installed: list[str]) -> str:
    if name in _HOMES:
        home = _HOMES[name]
        return f"The policy {spec} comes with {home}, which is not installed here: {install(home)}"
    written = ", ".join([*POLICIES, *(f"{n}:ARGUMENT" for n in installed)])
    return (
        f"There is no policy {spec!r}.{did_you_mean(name, [*_KNOWN, *installed])} There are: {written}; "
        "hf:PATH and vllm:PATH come with agentgym-trainer, and MODULE:NAME is one of your own."
    )
