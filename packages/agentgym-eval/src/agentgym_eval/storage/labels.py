"""Labels of episodes and tags of runs: short texts by which lists are filtered."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentgym_eval.util.errors import UsageError

_MAX_LABELS = 20
_MAX_LABEL = 60


def checked_labels(labels: Iterable[str], name: str, owner: str) -> tuple[str, ...]:
    """Return labels sorted and distinct, without spaces around them.

    Args:
        labels: The labels; empty ones are left out.
        name: What they are called in messages.
        owner: What has them in messages, at the beginning of a sentence.

    Raises:
        UsageError: for labels that can't be told from filters or are too many or too long.
    """
    distinct = sorted({" ".join(label.split()) for label in labels} - {""})
    for label in distinct:
        if not re.fullmatch(r"\w[^,]*", label) or not label.isprintable():
            raise UsageError(f"A {name} begins with a letter or digit and has no comma, unlike {label[:50]!r}.")
        if len(label) > _MAX_LABEL:
            raise UsageError(f"A {name} has at most {_MAX_LABEL} characters; write {label[:30]}… as a note.")
    if len(distinct) > _MAX_LABELS:
        raise UsageError(f"{owner} has at most {_MAX_LABELS} {name}s, not {len(distinct)}.")
    return tuple(distinct)


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags of a run, sorted and distinct, from texts that can each have several, separated by commas.

    Raises:
        UsageError: as `checked_labels`.
    """
    return checked_labels((tag for text in tags for tag in text.split(",")), "tag", "A run")
