"""Policies of other packages and of users' modules: what an entry point or MODULE:NAME stands for."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import reduce
from typing import Any

from agentgym_envs import Policy
from agentgym_envs.util.importing import import_named

from agentgym_eval.policies.objects import as_policy
from agentgym_eval.util.errors import UsageError, did_you_mean


def import_policy(spec: str) -> tuple[Any, str]:
    """Import what MODULE:NAME or MODULE:NAME:ARGUMENT stands for, and return it with the argument.

    Raises:
        UsageError: if the module can't be imported, or has no such name.
    """
    path, _, rest = spec.partition(":")
    attribute, _, argument = rest.partition(":")
    try:
        module = import_named(path, f"the policy {spec}")
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        return reduce(getattr, attribute.split("."), module), argument
    except AttributeError as error:
        public = [name for name in vars(module) if not name.startswith("_")]
        raise UsageError(f"{path} has no {attribute!r}.{did_you_mean(attribute, public)}") from error


def build_policy(found: Any, spec: str, argument: str, settings: dict[str, Any]) -> Policy:
    """Return the policy that a loaded object stands for.

    Args:
        found: A policy, an object with a `name` and a `reply`, a class of either that takes no arguments, a function
            from the conversation to the reply, or a factory, called as
            `found(argument, temperature=..., seed=..., max_tokens=...)`.
        spec: What the user named.
        argument: The argument of the name, or an empty string.
        settings: The other arguments of a factory; `pictures` is left out if it doesn't take it.

    Raises:
        UsageError: if it can't be built, or isn't a policy.
    """
    try:
        made = found if isinstance(found, Policy) else _made(found, argument, settings)
    except UsageError:
        raise
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise UsageError(f"The policy {spec} can't be built: {error}") from error
    except Exception as error:
        raise UsageError(f"The policy {spec} can't be built: it raised {error!r}.") from error
    if isinstance(made, Policy) and not getattr(made, "name", ""):
        raise UsageError(
            f"The policy {spec} has no name for reports: give the class {type(made).__name__} a `name`, a text."
        )
    if (policy := as_policy(made)) is None:
        raise UsageError(
            f"{spec} is no policy: an object of type {type(made).__name__} is neither an agentgym_envs.Policy, nor has "
            "it a `name` and a method `reply`."
        )
    return policy


def _made(found: Any, argument: str, settings: dict[str, Any]) -> Any:
    """Return the policy itself, or what it stands for: call a class or a factory, and leave other objects alone."""
    is_class = bool(inspect.isclass(found))
    if not callable(found) or (hasattr(found, "reply") and not is_class):
        return found
    call: Callable[..., Any] = found
    if "pictures" in settings and not _takes(found, argument, **settings):
        settings = {name: value for name, value in settings.items() if name != "pictures"}
    if not argument and not _takes(call, argument, **settings):
        if is_class and _takes(call):
            return call()
        if not is_class and _takes(call, None):
            return call  # a function from the conversation to the reply
    return call(argument, **settings)


def _takes(function: Any, *arguments: Any, **keywords: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except (TypeError, ValueError):
        return False
    return True


def is_module(name: str) -> bool:
    """Return whether there is a module of this name, which isn't imported for that."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
