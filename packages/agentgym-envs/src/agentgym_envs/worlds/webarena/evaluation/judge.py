"""The model that compares free answers: any OpenAI-compatible endpoint.

As in WebArena it grades like a teacher (correct, incorrect, partially correct: only the first counts) and compares
reasons why a task can't be done (same, different). The words that it is asked in are our own, so figures may differ a
little from those judged with WebArena's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from agentgym_envs.core.text_env import EnvFault

_PAUSES: Final = (0.5, 2.0, 8.0)  # seconds before each new attempt
_GRADE = """You grade a student's answer to a question. It may be worded differently from the reference answer: what \
counts is whether it means the same. "N/A" in any of the texts means that the thing can't be done.

Question: {question}
Reference answer: {reference}
Student's answer: {answer}

Say in a sentence why, and end with your verdict on a line of its own: correct, incorrect or partially correct."""
_REASON = """Someone was given a task that can't be done, and reported how it went. Decide whether the report names \
the actual reason, be it between the lines.

Task: {question}
Actual reason: {reference}
Report: {answer}

Say in a sentence why, and end with your verdict on a line of its own: same or different."""


def needs_judge(task: Mapping[str, Any]) -> bool:
    """Whether the end of a task can only be judged by a model: its answer is matched loosely."""
    judged = task["eval"]
    return "string_match" in judged["eval_types"] and "fuzzy_match" in (judged.get("reference_answers") or {})


def refusal(name: str) -> str:
    """The sentence for a task called `name` that is asked for without a judge."""
    return (
        f"Task {name} has an answer that only a model can judge (fuzzy_match), and none is configured: give "
        "judge=Judge(base_url='http://HOST:PORT/v1', model='NAME'), any OpenAI-compatible endpoint, or choose another "
        "task."
    )


@dataclass(frozen=True, slots=True)
class Judge:
    """A model behind an OpenAI-compatible endpoint."""

    base_url: str
    """Up to and with `/v1`."""
    model: str
    """The name that the endpoint has for it."""
    api_key: str = field(default="", repr=False)
    """Sent as a bearer token where there is one."""
    timeout: float = 60.0
    """Seconds for one answer."""
    pauses: Sequence[float] = _PAUSES
    """Seconds before each new attempt after no answer, or a status of 429 or 5xx."""

    async def correct(self, question: str, reference: str, answer: str) -> bool:
        """Whether `answer` says what `reference` says; partially is no.

        Raises:
            EnvFault: when the endpoint fails, or gives no verdict.
        """
        prompt = _GRADE.format(question=question, reference=reference, answer=answer)
        return await self._verdict(prompt, ("partially correct", "incorrect", "not correct", "correct")) == "correct"

    async def same_reason(self, task: str, reason: str, report: str) -> bool:
        """Whether `report` gives `reason` as what keeps `task` from being done.

        Raises:
            EnvFault: when the endpoint fails, or gives no verdict.
        """
        prompt = _REASON.format(question=task, reference=reason, answer=report)
        return await self._verdict(prompt, ("different", "not the same", "same")) == "same"

    async def _verdict(self, prompt: str, choices: tuple[str, ...]) -> str:
        """The first of `choices` that the model's last line says, or else that its whole answer does."""
        said = (await self._ask(prompt)).lower()
        last = next((line for line in reversed(said.splitlines()) if re.search("[a-z]", line)), "")
        for text in (last, said):
            for choice in choices:
                if re.search(rf"\b{choice}\b", text):
                    return choice
        raise EnvFault(f"The judge {self.model} gave no verdict ({', '.join(choices)}): {said[:200]!r}.")

    async def _ask(self, prompt: str) -> str:
        body = {"model": self.model, "temperature": 0, "messages": [{"role": "user", "content": prompt}]}
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        trouble = ""
        async with httpx.AsyncClient(timeout=self.timeout) as client:
            for pause in (0.0, *self.pauses):
                await asyncio.sleep(pause)
                try:
                    answer = await client.post(url, json=body, headers=headers)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    trouble = repr(error)
                    continue
                if answer.status_code == 200:
                    return self._content(answer)
                trouble = f"status {answer.status_code}: {answer.text[:200]}"
                if answer.status_code < 500 and answer.status_code != 429:
                    break
        raise EnvFault(f"The judge {self.model} at {url} can't be asked: {trouble}.")

    def _content(self, answer: httpx.Response) -> str:
        try:
            return str(answer.json()["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError) as error:
            raise EnvFault(f"{self.base_url} doesn't answer as OpenAI's API does: {answer.text[:200]!r}.") from error
