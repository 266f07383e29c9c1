"""Flags of endpoints that have no effect, because of the policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_OF_REQUESTS = ("base-url", "body", "native-tools", "no-native-tools", "rate")
_OF_USAGE = ("price", "budget")
_WITHOUT_USAGE = ("oracle", "random", "scripted", "hf", "vllm")
"""Policies that aren't billed by the token. One of another package may be."""


def unused_flags(policies: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each flag of the command line that has no effect with these policies."""
    names = {policy.partition(":")[0] for policy in policies}
    unused = () if "openai" in names else _OF_REQUESTS
    unused += _OF_USAGE if names <= {*_WITHOUT_USAGE} else ()
    given = (argument[2:].partition("=")[0].replace("_", "-") for argument in arguments if argument.startswith("--"))
    for flag in dict.fromkeys(given):
        if flag in unused:
            yield f"--{flag} has no effect: that needs --policy openai:MODEL."
