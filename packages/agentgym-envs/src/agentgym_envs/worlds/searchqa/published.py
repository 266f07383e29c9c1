"""The seven published question sets that Search-R1 and AgentGym-RL use, as FlashRAG has them.

FlashRAG (Jin et al. 2024, arXiv 2405.13576) writes one JSON object a line, `{"id", "question", "golden_answers"}`, in
files `SET/SPLIT.jsonl`. They are read from a folder laid out so, or fetched through `datasets`. Questions of one's own
go the same way, also as `SET/SPLIT.json` and in the other forms of `read_questions`. Knows nothing about passages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.tasks import SPLITS, Split
from agentgym_envs.retrieval.questions import FORMS, question_of, read_questions
from agentgym_envs.util.installation import install

HUB = "RUC-NLPIR/FlashRAG_datasets"
_PATIENCE = 5.0  # seconds for the hub's first answer


@dataclass(frozen=True, slots=True)
class Published:
    """A published set, and how many of its questions AgentGym numbered."""

    hops: int
    """Passages a question needs, by the set's own account."""
    test: int
    """Questions of the test split; of the development split where the set keeps its test answers to itself."""
    train: int = 0
    """Questions of the training split that AgentGym trained on."""


PUBLISHED = {
    "nq": Published(hops=1, test=3_610, train=79_168),
    "triviaqa": Published(hops=1, test=11_313),
    "popqa": Published(hops=1, test=14_267),
    "hotpotqa": Published(hops=2, test=7_405, train=90_447),
    "2wikimultihopqa": Published(hops=2, test=12_576),
    "musique": Published(hops=2, test=2_417),
    "bamboogle": Published(hops=2, test=125),
}
"""In AgentGym's order."""


@dataclass(frozen=True, slots=True)
class Row:
    """A question of a set."""

    question: str
    answers: tuple[str, ...]
    """All that count as right, the first one preferred."""


def check_set(name: str, folder: Path | None) -> None:
    """Raises ValueError where `load` would for want of such a set, without reading or fetching any."""
    if folder is None and name not in PUBLISHED:
        raise ValueError(
            f"There is no published set {name!r}; there are {', '.join(PUBLISHED)}. Questions of your own are found "
            "with data=FOLDER, as FOLDER/NAME/test.jsonl."
        )
    if folder is not None and not _files(folder / name):
        raise ValueError(
            f"There are no questions in {folder / name}: a set is a folder with train.jsonl, dev.jsonl or test.jsonl "
            f"(or .json): {FORMS}."
        )


@cache
def load(name: str, folder: Path | None) -> Mapping[Split, tuple[Row, ...]]:
    """The splits of the set `name`; a set without a test split is tested on its development split.

    Args:
        name: A key of `PUBLISHED`, or any folder in `folder`.
        folder: Where `name/SPLIT.jsonl` lie; None fetches the set from the hub, or takes the copy fetched before.

    Raises:
        ValueError: when there is no such set or a line isn't in the format.
        DependencyNotInstalled: when a set is to be fetched and `datasets` isn't installed.
        OSError: when it can't be fetched.
    """
    check_set(name, folder)
    found = _fetch(name) if folder is None else {split: _lines(file) for split, file in _files(folder / name).items()}
    rows: dict[Split, tuple[Row, ...]] = {split: tuple(found[split]) for split in SPLITS if split in found}
    if "test" not in rows and "dev" in rows:
        rows["test"] = rows.pop("dev")
    return rows


def _files(folder: Path) -> dict[Split, Path]:
    found: dict[Split, Path] = {}
    for split in SPLITS:
        for file in (folder / f"{split}.json", folder / f"{split}.jsonl"):
            if file.is_file():
                found[split] = file
    return found


def _lines(file: Path) -> Iterator[Row]:
    for question in read_questions(file):
        if not question.answers:
            raise ValueError(f"{file} has questions without answers, such as {question.text!r}; expected {FORMS}.")
        yield Row(question.text, question.answers)


def _fetch(name: str) -> dict[Split, Iterable[Row]]:
    try:
        from datasets import config, load_dataset
    except ImportError as error:
        raise DependencyNotInstalled(
            f"To fetch {name}, install what can: {install('agentgym-envs[datasets]')}. Or give the folder where "
            f"{name}/test.jsonl lies: data=FOLDER."
        ) from error
    try:
        with _quickly_offline(config):
            fetched: Mapping[str, Iterable[Any]] = load_dataset(HUB, name)  # pyright: ignore[reportAssignmentType]
    except OSError as error:  # no network among others
        raise OSError(
            f"{name} can't be fetched from {HUB} ({error}). Where there is no network, copy the set there and give its "
            "folder: data=FOLDER."
        ) from error
    return {split: map(_row, fetched[split]) for split in SPLITS if split in fetched}


@contextmanager
def _quickly_offline(config: Any) -> Generator[None]:
    """Without a network `datasets` works from its cache at once, where it would ask the hub for half a minute first."""
    before: bool = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or not _reachable(config.HF_ENDPOINT)
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def _reachable(url: str) -> bool:
    """Whether anything answers there."""
    import httpx

    try:
        httpx.head(url, timeout=_PATIENCE)
    except httpx.HTTPError:
        return False
    return True


def _row(entry: Mapping[str, Any]) -> Row:
    question = question_of(entry)
    return Row(question.text, question.answers)
