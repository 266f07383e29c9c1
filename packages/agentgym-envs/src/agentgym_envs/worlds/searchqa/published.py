"""The seven published question sets of Search-R1 and AgentGym-RL, in FlashRAG's format.

FlashRAG (Jin et al. 2024, arXiv 2405.13576) has one JSON object per line, `{"id", "question", "golden_answers"}`, in
files `SET/SPLIT.jsonl`. The sets are read from a folder of this layout, or downloaded through `datasets`. Your own
questions use the same layout, also as `SET/SPLIT.json` and in the other formats of `read_questions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.tasks import SPLITS, Split
from agentgym_envs.retrieval.questions import FORMS, question_of, read_questions
from agentgym_envs.util.hub import quickly_offline
from agentgym_envs.util.installation import install

HUB = "RUC-NLPIR/FlashRAG_datasets"


@dataclass(frozen=True, slots=True)
class Published:
    """A published set, with its number of questions in AgentGym."""

    hops: int
    """Passages that a question needs, according to the set's authors."""
    test: int
    """Questions of the test split, or of the development split if the test answers aren't public."""
    train: int = 0
    """Questions of the training split that AgentGym uses."""


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
    """All accepted answers, the preferred one first."""


def check_set(name: str, folder: Path | None) -> None:
    """Raise ValueError if `load` would not find the set, without reading or downloading anything."""
    if folder is None and name not in PUBLISHED:
        raise ValueError(
            f"There is no published set {name!r}; there are {', '.join(PUBLISHED)}. For questions of your own, set "
            "data=FOLDER, with questions in FOLDER/NAME/test.jsonl."
        )
    if folder is not None and not _files(folder / name):
        raise ValueError(
            f"There are no questions in {folder / name}: a set is a folder with train.jsonl, dev.jsonl or test.jsonl "
            f"(or .json): {FORMS}."
        )


@cache
def load(name: str, folder: Path | None) -> Mapping[Split, tuple[Row, ...]]:
    """Load the splits of the set `name`. Without a test split, the development split is used for testing.

    Args:
        name: A key of `PUBLISHED`, or any folder in `folder`.
        folder: The folder with `name/SPLIT.jsonl`; None downloads the set from the hub, or uses its cached copy.

    Raises:
        ValueError: if there is no such set or a line is malformed.
        DependencyNotInstalled: if a download is needed and `datasets` isn't installed.
        OSError: if the download fails.
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
            f"Downloading {name} needs the package datasets: {install('agentgym-envs[datasets]')}. Or set data=FOLDER "
            f"to the folder that contains {name}/test.jsonl."
        ) from error
    try:
        with quickly_offline(config, config.HF_ENDPOINT):
            fetched: Mapping[str, Iterable[Any]] = load_dataset(HUB, name)  # pyright: ignore[reportAssignmentType]
    except OSError as error:  # no network among others
        raise OSError(
            f"{name} can't be downloaded from {HUB} ({error}). Without a network, copy the set to this machine and set "
            "data=FOLDER."
        ) from error
    return {split: map(_row, fetched[split]) for split in SPLITS if split in fetched}


def _row(entry: Mapping[str, Any]) -> Row:
    question = question_of(entry)
    return Row(question.text, question.answers)
