"""Players that need no model, and how the players of other packages are found by name.

All of them think in actions and leave the form of the reply to the wrapper around the world. Asked for something else
than an action they answer in plain sentences, the expert with its own reasons. Anything random is drawn from the seat's
own generator, so a resumed run draws what an unbroken one would have drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from agentgym_envs import EnvFault, Player, Policy, Reply, WorldSeat, text_env
from agentgym_envs.core.feedback import faulting
from agentgym_envs.util.installation import install

from agentgym_eval.policies.endpoint.settings import OPENAI, EndpointSettings
from agentgym_eval.util.errors import Unplayable, UsageError, did_you_mean

GROUP = "agentgym.policies"
"""Entry points `NAME = package:maker`, called as `maker(argument, temperature=..., seed=..., max_tokens=...)`."""

_HOMES = {"hf": "agentgym-trainer", "vllm": "agentgym-trainer"}


class PolicyFactory(Protocol):
    """Builds a policy; whatever is heavy about it happens here."""

    def __call__(self, *, temperature: float, seed: int, max_tokens: int) -> Policy | Player:
        """Who plays: a policy, which all that wait ask at once, or a player, whom each asks at its own time. `seed` is
        for what can't be drawn from `Seat.rng`; a resumed run gives another one.
        """
        ...


_AT_RANDOM = "I try something at random."
"""All the reason there is for an expert's noise."""


def _say(seat: WorldSeat, action: str, thought: str = "") -> Reply:
    return Reply(seat.env.get_wrapper_attr("format")(action, thought))


def _plain_words(seat: WorldSeat) -> Reply:
    """What someone without reasons answers where something else than an action is asked for."""
    match seat.kind:
        case "plan":
            return Reply("I will try one action after the other and see what comes of it.")
        case "reflect" if not seat.acts:
            return Reply("I did not reach the goal. I will try again.")
        case "reflect":
            return Reply(f"After {seat.acts} actions the goal is not reached. I will go on.")
        case _:
            return Reply(f"I have played {seat.acts} actions, and the goal is not reached.")


def _random_action(seat: WorldSeat) -> str:
    actions: list[str] | None = seat.info["available_actions"]
    if not actions:
        world = text_env(seat.env).task.env
        raise Unplayable(
            f"{world} lists no available actions here, so none can be drawn; play oracle or scripted:FILE."
        )
    return actions[int(seat.rng.integers(len(actions)))]


@dataclass(frozen=True, slots=True)
class Oracle:
    """The world's own expert with its reasons, which with probability `noise` plays a random available action instead.

    Noisy demonstrations teach a model the grammar and how to recover, and leave reinforcement learning something to do.
    """

    noise: float = 0.0

    @property
    def name(self) -> str:
        """`oracle` or `oracle:NOISE`."""
        return f"oracle:{self.noise:g}" if self.noise else "oracle"

    def reply(self, seats: Sequence[WorldSeat]) -> Sequence[Reply | EnvFault]:
        """One reply per seat; the fault of a world that broke while its expert was thinking."""
        return [self._one(seat) for seat in seats]

    def _one(self, seat: WorldSeat) -> Reply | EnvFault:
        if seat.kind == "act" and self.noise and seat.rng.random() < self.noise:
            return _say(seat, _random_action(seat), _AT_RANDOM)
        try:
            with faulting(text_env(seat.env).task.env):
                return self._act(seat) if seat.kind == "act" else self._explain(seat)
        except EnvFault as fault:
            return fault

    def _act(self, seat: WorldSeat) -> Reply:
        world = text_env(seat.env)
        thought = world.oracle_thought() if seat.env.get_wrapper_attr("thinks") else ""
        return _say(seat, world.oracle(), thought)

    def _explain(self, seat: WorldSeat) -> Reply:
        """What is left to do and, where that isn't the question, how far it came. When a trial is over its reasons have
        nothing to say.
        """
        plain, world = _plain_words(seat), text_env(seat.env)
        match seat.kind:
            case "plan":
                return Reply(world.oracle_plan() or plain.text)
            case "reflect" if not seat.acts:
                return plain
            case "reflect":
                return Reply(f"{plain.text} {world.oracle_thought()}".strip())
            case _:
                return Reply(f"{plain.text}\n{world.oracle_plan()}".strip())


@dataclass(frozen=True, slots=True)
class Random:
    """Any of the available actions, each as likely as the next."""

    name: str = "random"

    def reply(self, seats: Sequence[WorldSeat]) -> Sequence[Reply]:
        """One action per seat."""
        return [_say(seat, _random_action(seat)) if seat.kind == "act" else _plain_words(seat) for seat in seats]


@dataclass(frozen=True, slots=True)
class Scripted:
    """Given actions in order, the same in every episode. The last one is repeated until the world ends the episode."""

    actions: tuple[str, ...]
    name: str = "scripted"

    def reply(self, seats: Sequence[WorldSeat]) -> Sequence[Reply]:
        """The action of each seat's turn."""
        return [self._one(seat) for seat in seats]

    def _one(self, seat: WorldSeat) -> Reply:
        if seat.kind != "act":
            return _plain_words(seat)
        return _say(seat, self.actions[min(seat.acts, len(self.actions) - 1)])


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
) -> Player:
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
    """The maker of the policy called `NAME` or `NAME:ARGUMENT`; nothing heavy is loaded before it is called.

    `find_policy("hf:PATH")(temperature=1.0, seed=0, max_tokens=512)` is a policy.

    Args:
        spec: Name and argument.
        endpoint: What `openai:MODEL` is asked through.
        environment: Where its key is found, as OPENAI_API_KEY, and its address if `endpoint` has none.

    Raises:
        UsageError: when no installed package has a policy of that name, or one of ours is given an argument that it
            can't use; the maker of another package's raises it itself.
    """
    name, _, argument = spec.partition(":")
    if name in _OWN:
        return partial(_built, _OWN[name](argument))  # now, so that a wrong argument is said before a run begins
    if name == "openai":
        if not argument:
            raise UsageError(
                "openai needs a model: write --policy openai:MODEL, with the name that the endpoint has for it."
            )
        return partial(_openai, argument, endpoint or EndpointSettings(), environment or {})
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in installed:
        raise UsageError(_unknown(name, spec, sorted(installed)))

    def make(**settings: Any) -> Policy | Player:
        try:
            return installed[name].load()(argument, **settings)
        except UsageError:
            raise
        except (ImportError, OSError, ValueError) as error:
            raise UsageError(f"The policy {spec} can't be built: {error}") from error

    return make


def _unknown(name: str, spec: str, installed: list[str]) -> str:
    if name in _HOMES:
        home = _HOMES[name]
        return f"The policy {spec} comes with {home}, which is not installed here: {install(home)}"
    known = ["oracle", "random", "scripted", "openai", *installed]
    written = ", ".join(
        ["oracle", "oracle:NOISE", "random", "scripted:FILE", "openai:MODEL", *(f"{n}:ARGUMENT" for n in installed)]
    )
    return (
        f"There is no policy {spec!r}.{did_you_mean(name, [*known, *_HOMES])} There are: {written}; "
        "hf:PATH and vllm:PATH come with agentgym-trainer."
    )
