"""Markers of flags in the annotations of settings, for tyro, which is imported only when it reads an annotation.

In modules with `from __future__ import annotations`, `Annotated[int | None, arg(metavar="INT")]` stays a string until
tyro resolves it. So a command whose help doesn't need tyro starts without it.
"""

from __future__ import annotations

from typing import Any


def arg(*, name: str | None = None, metavar: str | None = None, help: str | None = None) -> Any:
    """Return `tyro.conf.arg`: how a flag is called and described.

    Args:
        name: The flag's name instead of the field's; an empty one leaves out the prefix of a nested field's flags.
        metavar: What the help shows for the value.
        help: The description instead of the field's docstring.
    """
    import tyro

    return tyro.conf.arg(name=name, metavar=metavar, help=help)


def positional() -> Any:
    """Return `tyro.conf.Positional`: the field is an argument without a flag."""
    import tyro

    return tyro.conf.Positional


def switch() -> Any:
    """Return `tyro.conf.FlagCreatePairsOff`: the field has a flag `--name` and no `--no-name`."""
    import tyro

    return tyro.conf.FlagCreatePairsOff
