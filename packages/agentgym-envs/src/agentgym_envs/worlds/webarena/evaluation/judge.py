"""The LLM judge of free-form answers, behind any OpenAI-compatible endpoint.

As in WebArena it grades answers (correct, incorrect, partially correct: only the first counts) and compares reasons why
a task can't be done (same, different). The prompts are our own, so scores may differ slightly from those with
WebArena's prompts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from agentgym_envs.core.text_env import EnvFault

_PAUSES: Final = (0.5, 2.0, 8.0)  # seconds before each retry
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
_AGAIN = "Now only your verdict, and nothing else: {choices}."
_PREFIX = re.compile(r"(?:(?:my|the|final|overall) )*(?:verdict|grade)(?: is)? ")


def needs_judge(task: Mapping[str, Any]) -> bool:
    """Whether a task needs a judge model, because its answer has a `fuzzy_match` reference."""
    evaluation = task["eval"]
    return "string_match" in evaluation["eval_types"] and "fuzzy_match" in (evaluation.get("reference_answers") or {})


def missing_judge_message(name: str) -> str:
    """Return the error message for the task `name` if no judge is configured."""
    return (
        f"Task {name} needs a judge model (fuzzy_match), and none is configured: give "
        "judge=Judge(base_url='http://HOST:PORT/v1', model='NAME') of an OpenAI-compatible endpoint, or choose another "
        "task."
    )


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge model behind an OpenAI-compatible endpoint."""

    base_url: str
    """The URL up to and including `/v1`."""
    model: str
    """The model's name at the endpoint."""
    api_key: str = field(default="", repr=False)
    """Sent as a bearer token unless it is empty."""
    timeout: float = 60.0
    """Timeout of a request in seconds."""
    pauses: Sequence[float] = _PAUSES
    """Seconds before each retry, after a connection error, a timeout, or status 429 or 5xx."""

    async def correct(self, question: str, reference: str, answer: str) -> bool:
        """Whether `answer` means the same as `reference`; partially correct counts as false.

        Raises:
            EnvFault: if the endpoint fails or returns no verdict.
        """
        prompt = _GRADE.format(question=question, reference=reference, answer=answer)
        return await self._verdict(prompt, ("correct", "incorrect", "partially correct")) == "correct"

    async def same_reason(self, task: str, reason: str, report: str) -> bool:
        """Whether `report` gives `reason` as the reason why `task` can't be done.

        Raises:
            EnvFault: if the endpoint fails or returns no verdict.
        """
        prompt = _REASON.format(question=task, reference=reason, answer=report)
        return await self._verdict(prompt, ("same", "different")) == "same"

    async def _verdict(self, prompt: str, choices: tuple[str, ...]) -> str:
        """Return the one of `choices` that the last line of the response consists of; if it is none, ask once more.

        A sentence with such a word is no verdict: "a correct answer would be 42" says that the answer is wrong.
        """
        messages = [{"role": "user", "content": prompt}]
        response = ""
        for _ in range(2):
            response = await self._request(messages)
            said = _last_words(response)
            if said in choices:
                return said
            again = {"role": "user", "content": _AGAIN.format(choices=" or ".join(choices))}
            messages += [{"role": "assistant", "content": response}, again]
        raise EnvFault(f"The judge {self.model} gave no verdict ({', '.join(choices)}): {response[:200]!r}.")

    async def _request(self, messages: Sequence[Mapping[str, str]]) -> str:
        body = {"model": self.model, "temperature": 0, "messages": messages}
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        problem = ""
        async with httpx.AsyncClient(timeout=self.timeout) as client:
            for pause in (0.0, *self.pauses):
                await asyncio.sleep(pause)
                try:
                    response = await client.post(url, json=body, headers=headers)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    problem = repr(error)
                    continue
                if response.status_code == 200:
                    return self._content(response)
                problem = f"status {response.status_code}: {response.text[:200]}"
                if response.status_code < 500 and response.status_code != 429:
                    break
        raise EnvFault(f"The request to the judge {self.model} at {url} failed: {problem}.")

    def _content(self, response: httpx.Response) -> str:
        try:
            return str(response.json()["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError) as error:
            raise EnvFault(
                f"The response of {self.base_url} is not in OpenAI's format: {response.text[:200]!r}."
            ) from error


def _last_words(response: str) -> str:
    """Return the words of the last line that has any, in lower case, without markup and words such as "verdict:"."""
    lines = (" ".join(re.findall("[a-z]+", line)) for line in reversed(response.lower().splitlines()))
    return _PREFIX.sub("", next(filter(None, lines), ""), count=1)
