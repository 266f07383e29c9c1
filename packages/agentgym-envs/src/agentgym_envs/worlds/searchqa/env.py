"""The environment `agentgym/SearchQA-v0`: a question, a retriever, and an answer that ends the episode."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from agentgym_envs.core.tasks import Task, TaskSet
from agentgym_envs.core.text_env import MAX_ACTION_CHARS, MAX_OBSERVATION_CHARS, EnvFault, Feedback, TextEnv, writable
from agentgym_envs.retrieval import Hit, Passage, Retriever, check_spec, open_retriever
from agentgym_envs.util.qa_metrics import exact_match, f1
from agentgym_envs.worlds.searchqa.almanac import name_words
from agentgym_envs.worlds.searchqa.published import check_set
from agentgym_envs.worlds.searchqa.reasons import Derivation
from agentgym_envs.worlds.searchqa.tasks import ALMANAC, task_set

MAX_TOP_K = 50
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"<(?=/?\w)")
_HELP = (
    "Give one action: <search>what to look for</search>, or <answer>the answer</answer> when you know it. "
    "It ends the task."
)
_UNKNOWN = "unknown"


class SearchQA(TextEnv):
    """Answer a question by searching passages. An answer ends the episode, right or wrong.

    Args:
        dataset: `almanac`, which is embedded; a published set (`nq`, `triviaqa`, `popqa`, `hotpotqa`,
            `2wikimultihopqa`, `musique`, `bamboogle`); the name of a set of your own in `data`; or several of them.
        data: Folder of the published sets and your own, in the format of FlashRAG, SQuAD or HotpotQA, such as
            `data/nq/test.jsonl`. Without it, published sets are downloaded through the package `datasets`.
        retriever: The retriever's spec; see `agentgym_envs.retrieval.open_retriever`.
        top_k: Passages shown per search.
        render_mode: `ansi` for the text.

    The score is 1 for an exact match with one of the answers after SQuAD's normalization, else 0. `info["raw"]` has the
    `answer`, its `f1`, the number of `searches` and the ids of the passages that the last search `found`. A task's
    category is the number of hops in the almanac, else the name of the set; its difficulty is the number of hops. The
    limit on turns is Gymnasium's `max_episode_steps`.
    """

    package: ClassVar[str] = __package__ or ""
    client_options = frozenset({"top_k"})
    step_seconds = 1e-3
    step_waits = True  # the retriever may be another process, on another machine

    def __init__(
        self,
        *,
        dataset: str | Sequence[str] = ALMANAC,
        data: str | Path | None = None,
        retriever: str = "bm25",
        top_k: int = 3,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        names = (dataset,) if isinstance(dataset, str) else tuple(dict.fromkeys(dataset))
        if not names:
            raise ValueError(f"dataset is empty; name a set, such as {ALMANAC!r}.")
        if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= MAX_TOP_K:
            raise ValueError(f"top_k must be an integer from 1 to {MAX_TOP_K}, not {top_k!r}.")
        self._spec = check_spec(retriever)
        self._names = names
        self._folder = None if data is None else Path(data).expanduser().resolve()
        for name in names:
            if name != ALMANAC:
                check_set(name, self._folder)
        self._top_k = top_k
        self._retriever: Retriever | None = None

    @property
    def tasks(self) -> TaskSet:
        """The questions of the sets this environment was created with."""
        return task_set(self._names, self._folder)

    def oracle(self) -> str:
        """Return the derivation's next query, then the answer if all supporting passages were found, else `unknown`.

        Published sets have no derivations: there the oracle searches for the question itself, then gives the answer.
        """
        derivation, step = self._derivation()
        if step < len(derivation.queries):
            return f"<search>{derivation.queries[step]}</search>"
        known = set(derivation.support) <= self._read.keys()
        return f"<answer>{derivation.answer if known else _UNKNOWN}</answer>"

    def oracle_thought(self) -> str:
        """Quote the fact found by the last query, and state what is searched next."""
        derivation, step = self._derivation()
        return derivation.before(step) if step < len(derivation.queries) else derivation.at_the_end()

    def oracle_plan(self) -> str:
        """Return the facts found so far, the next query, and how many are left."""
        derivation, step = self._derivation()
        return derivation.outline(step)

    def interchangeable_names(self) -> tuple[tuple[str, ...], ...]:
        """Return the words that names in the almanac consist of; published sets have none."""
        return (name_words(),) if self._names == (ALMANAC,) else ()

    def _derivation(self) -> tuple[Derivation, int]:
        """Return the question's derivation, and the index of its first query that wasn't made yet."""
        payload = self.task.payload
        question, answer = _single_spaced(payload["question"]), _single_spaced(payload["answers"][0])
        queries, support = payload.get("queries", [question]), payload.get("support", ())
        compares = self.task.category.endswith("comparison")
        derivation = Derivation(question, queries, support, answer, compares, self._read)
        return derivation, next((i for i, query in enumerate(queries) if query not in self._asked), len(queries))

    def _start(self, task: Task) -> str:
        self._open()
        self._asked: list[str] = []
        self._found: tuple[str, ...] = ()
        self._read: dict[str, Passage] = {}
        self._answer: str | None = None
        return f"Question: {task.payload['question']}"

    def _act(self, action: str) -> Feedback:
        if len(action) > MAX_ACTION_CHARS:
            return Feedback(f"An action has at most {MAX_ACTION_CHARS} characters. {_HELP}", valid=False)
        actions = [(verb, _single_spaced(words)) for verb, words in _ACTION.findall(action)]
        if len(actions) != 1:
            return Feedback(_HELP, valid=False)
        verb, words = actions[0]
        if not words:
            return Feedback(f"There is nothing in your <{verb}>. {_HELP}", valid=False)
        if verb == "search":
            return Feedback(self._search(words))
        self._answer = words
        return Feedback("The answer is right." if self._right() else "The answer is wrong.", terminated=True)

    def _open(self) -> Retriever:
        """Return the retriever; open it first if necessary, as in a copy of this environment."""
        if self._retriever is None:
            self._retriever = open_retriever(self._spec)
        return self._retriever

    def _search(self, query: str) -> str:
        try:
            (hits,) = self._open().search([query], self._top_k)
        except ValueError as error:  # a missing or unsuitable index shows only at the first search
            raise EnvFault(f"{self._spec} can't be searched: {error}") from error
        self._asked.append(query)
        self._found = tuple(hit.passage.id for hit in hits)
        self._read.update((hit.passage.id, hit.passage) for hit in hits)
        return information(hits)

    def _right(self) -> bool:
        return self._answer is not None and exact_match(self._answer, self.task.payload["answers"])

    def _standing(self) -> tuple[float, bool]:
        right = self._right()
        return float(right), right

    def _state(self) -> str:
        """Return the passages seen so far and the answer: they matter to the agent, though no transition uses them."""
        return f"{self.task.id}: {sorted(self._read)} {self._answer}"

    def _raw(self) -> dict[str, Any]:
        return {
            "answer": self._answer,
            "f1": f1(self._answer or "", self.task.payload["answers"]),
            "searches": len(self._asked),
            "found": list(self._found),
        }

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_retriever": None}  # can't be copied; the copy opens the shared retriever itself

    def close(self) -> None:
        """Release the retriever."""
        if self._retriever is not None:
            self._retriever.close()
            self._retriever = None


def information(hits: Sequence[Hit]) -> str:
    """Format hits as in Search-R1. Tags in passages are escaped, and passages are truncated to fit an observation."""
    limit = (MAX_OBSERVATION_CHARS - 1_000) // max(1, len(hits))
    listed = [_clip(f"Doc {i}(Title: {hit.passage.title}) {hit.passage.text}", limit) for i, hit in enumerate(hits, 1)]
    return f"<information>{chr(10).join(listed) or 'Nothing was found.'}</information>"


def _clip(text: str, limit: int) -> str:
    text = _TAG.sub("&lt;", writable(_single_spaced(text)))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _single_spaced(text: str) -> str:
    return " ".join(text.split())
