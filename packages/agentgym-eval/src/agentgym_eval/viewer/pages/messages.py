"""The messages that the model received for one turn, rebuilt from the recorded episode by the code that played it.

Where the token ids of the turn were recorded, its exact context is shown as tokens, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any

from agentgym_envs import Conversation, Episode, Turn
from agentgym_envs.episodes.conversation import replay
from agentgym_envs.util.screenshots import Picture, ScreenshotStore

from agentgym_eval.util.tool_calls import native, plain
from agentgym_eval.viewer.index import tokens
from agentgym_eval.viewer.index.evaluation_report import prices
from agentgym_eval.viewer.index.index import NotFound
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.index.tokens import Tokens
from agentgym_eval.viewer.pages.episode import screenshot_store
from agentgym_eval.viewer.pages.scenes import played_unseen
from agentgym_eval.viewer.pages.site import Site


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """The request of one turn."""

    messages: Sequence[Mapping[str, Any]]
    """In OpenAI's form; empty if they are unknown."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Functions sent in a field of their own."""
    unknown: str = ""
    """Why the messages are unknown, as a sentence."""

    def to_json(self) -> str:
        """Return the request's messages, with its tools if there are any, as JSON."""
        record = {"messages": self.messages} | ({"tools": self.tools} if self.tools else {})
        return json.dumps(record, ensure_ascii=False, indent=2)


def turn_request(run: Run, episode: Episode, number: int) -> TurnRequest:
    """Rebuild the request of a turn. Raises `NotFound` if the episode has no such turn."""
    if not 0 <= number < len(episode.turns):
        raise NotFound(f"The episode has no turn {number}; it has {len(episode.turns)}.")
    (request,) = _turn_requests(run, episode, [number])
    return request


def _turn_requests(run: Run, episode: Episode, numbers: Sequence[int]) -> list[TurnRequest]:
    """Rebuild the requests of some turns; if they are unknown, that holds for all turns."""
    if played_unseen(episode):
        unknown = "An agent of another program played, which composed its messages by itself."
    else:
        try:
            conversations = [conversation for conversation, _ in replay(episode, pictures=True)]
        except ValueError as error:
            unknown = f"The messages can't be rebuilt: {error}"
        else:
            store = screenshot_store(run)
            sent = (_with_images(conversations[number], store) for number in numbers)
            return [_as_sent(run, episode, conversation) for conversation in sent]
    return [TurnRequest((), unknown=unknown)] * len(numbers)


def _with_images(conversation: Conversation, store: ScreenshotStore) -> Conversation:
    """Return the conversation with the stored images of its pictures; a picture whose file is missing is left out."""

    def stored(picture: Picture | None) -> Picture | None:
        path = picture and store.get(picture.digest)
        return Picture(picture.digest, path.read_bytes()) if picture and path else None

    return tuple(replace(message, picture=stored(message.picture)) for message in conversation)


def _as_sent(run: Run, episode: Episode, conversation: Conversation) -> TurnRequest:
    """Convert a conversation to messages as the policy for endpoints does: tools are in a field of their own, unless
    that was switched off.
    """
    as_tools = run.settings.get("native_tools", True) and "--no-native-tools" not in run.command
    if episode.tools and as_tools:
        return TurnRequest(native(conversation, write=json.dumps), episode.tools)
    return TurnRequest(plain(conversation, episode.tools))


def messages_page(site: Site, address: Address, number: int) -> str:
    """Render the request and the reply of one turn. Raises `NotFound`."""
    run, episode = site.index.run(address.run), site.index.episode(address)
    request = turn_request(run, episode, number)
    path = site.index.file(address).path
    return site.render(
        "messages.html",
        address=address,
        run=run,
        episode=episode,
        number=number,
        turn=episode.turns[number],
        request=request,
        price=prices(run),
        tokens=_context(tokens.read_tokens(path, address.number, episode, run.path), episode.turns, number),
    )


def all_messages_page(site: Site, address: Address) -> str:
    """Render the requests and replies of all turns of an episode; of each request, the messages that differ from those
    of the previous turn on. Raises `NotFound`.
    """
    run, episode = site.index.run(address.run), site.index.episode(address)
    requests = _turn_requests(run, episode, range(len(episode.turns)))
    if not requests:
        raise NotFound(f"{address.run}/{address.file}, episode {address.number} has no turns.")
    return site.render(
        "all_messages.html",
        address=address,
        run=run,
        episode=episode,
        requests=requests,
        repeated=[0, *(_repeated(*each) for each in pairwise(requests))],
        price=prices(run),
    )


def _repeated(before: TurnRequest, request: TurnRequest) -> int:
    """Return the number of messages with which a request repeats the beginning of the one before."""
    pairs = zip(before.messages, request.messages, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _context(found: Tokens, turns: Sequence[Turn], number: int) -> Tokens:
    """Return the context and the reply of one turn; without segments if they weren't recorded, or not completely."""
    sampled = turns[number].reply.sample
    if sampled is None:
        return replace(found, segments=())
    starts = [at for at, turn in enumerate(turns[: number + 1]) if turn.reply.sample and turn.reply.sample.fresh]
    first = starts[-1] if starts else 0
    wanted = sum(
        len(turn.reply.sample.prompt) + len(turn.reply.sample.ids)
        for turn in turns[first : number + 1]
        if turn.reply.sample
    )
    segment = next(
        (each for each in found.segments if any(token.turn == number and token.completion for token in each)), ()
    )
    kept = tuple(takewhile(lambda token: token.turn <= number, segment))[:wanted]
    return replace(found, segments=(kept,) if kept else (), omitted=wanted - len(kept))
