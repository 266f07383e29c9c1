from __future__ import annotations

import copy
from typing import Any

import pytest
from agentgym_envs import Message
from agentgym_trainer.models.scratch import train_tokenizer
from agentgym_trainer.tokens.chat import Chat, Context
from chat_templates import FAMILIES, chat_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from toy_learner import TEXTS

Conversation = tuple[Message, ...]


CHATS = {family: chat_of(family) for family in FAMILIES}
# Letters and inner punctuation: nothing that spells a control token, and no white space at the ends.
words = st.lists(st.text("abcdefghij.,0123456789äß中", min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join)
families = pytest.mark.parametrize("family", CHATS)
# The other one moves what the system says at every turn.
appended = pytest.mark.parametrize("family", sorted(set(CHATS) - {"mistral-v3"}))
some = settings(max_examples=15)


@st.composite
def conversations(draw: st.DrawFn, *, contents: Any = words, replies: Any = words) -> Conversation:
    """Perhaps instructions, then observation and reply in turn, ending in an observation."""
    conversation: Conversation = (Message("system", draw(contents)),) if draw(st.booleans()) else ()
    for _ in range(draw(st.integers(0, 3))):
        conversation += (Message("user", draw(contents)), Message("assistant", draw(replies)))
    return (*conversation, Message("user", draw(contents)))


def _plain(conversation: Conversation, *, system: bool) -> list[dict[str, str]]:
    """As `apply_chat_template` takes it; instructions go into the first observation where there is no system role."""
    turns = [{"role": m.role, "content": m.content} for m in conversation]
    if turns[0]["role"] == "system" and not system:
        told, first, *rest = turns
        turns = [{"role": "user", "content": f"{told['content']}\n\n{first['content']}"}, *rest]
    return turns


def _template_ids(chat: Chat, conversation: Conversation, *, prompt: bool = True) -> list[int]:
    turns = _plain(conversation, system=chat.takes_system)
    return chat.tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=prompt, return_dict=False)


@families
@some
@given(conversation=conversations())
def test_opening_is_what_the_template_says(family: str, conversation: Conversation) -> None:
    chat = CHATS[family]
    assert chat.open(conversation) == _template_ids(chat, conversation)


@appended
@some
@given(conversation=conversations())
def test_a_conversation_grown_by_appending_is_the_whole(family: str, conversation: Conversation) -> None:
    chat = CHATS[family]
    context = Context(chat)
    ids: list[int] = []
    for end in range(2 if conversation[0].role == "system" else 1, len(conversation) + 1, 2):
        more, fresh = context.prompt(conversation[:end])
        assert fresh == (not ids)
        ids += more
        if end < len(conversation):
            said = chat.reply_ids(conversation[end].content)
            context.append_reply(said)
            ids += said
        assert context.ids == ids
    assert ids == chat.open(conversation)
    assert context.segments == 1


def _shape(chat: Chat, conversation: Conversation) -> list[int]:
    return [i for i in chat.open(conversation) if i in chat.tokenizer.all_special_ids]


def _hostile(family: str) -> st.SearchStrategy[str]:
    special = CHATS[family].tokenizer.all_special_tokens
    return st.lists(
        st.one_of(st.sampled_from([*special, "system", "\n", "\ue000", "0\ue001"]), st.text(max_size=4))
    ).map("".join)


@appended
@some
@given(data=st.data())
def test_what_a_world_says_never_becomes_a_control_token(family: str, data: st.DataObject) -> None:
    chat = CHATS[family]
    conversation = data.draw(conversations(contents=_hostile(family)))
    harmless = tuple(m if m.role == "assistant" else Message(m.role, "x") for m in conversation)
    assert _shape(chat, conversation) == _shape(chat, harmless)
    ids = chat.extend((*conversation, Message("assistant", "go"), Message("user", data.draw(_hostile(family)))))
    quiet = chat.extend((*conversation, Message("assistant", "go"), Message("user", "x")))
    assert ids is not None
    assert quiet is not None
    assert [i for i in ids if i in chat.tokenizer.all_special_ids] == [
        i for i in quiet if i in chat.tokenizer.all_special_ids
    ]


@families
@some
@given(data=st.data())
def test_what_was_said_never_becomes_a_control_token_when_history_is_read_again(
    family: str, data: st.DataObject
) -> None:
    chat = CHATS[family]
    said = data.draw(_hostile(family))
    conversation = (Message("user", "x"), Message("assistant", f"a{said}a"), Message("user", "x"))
    harmless = (Message("user", "x"), Message("assistant", "aa"), Message("user", "x"))
    assert _shape(chat, conversation) == _shape(chat, harmless)


@pytest.fixture(scope="module")
def thinking() -> Chat:
    """As published: some special tokens have no name, and <think> is a token that isn't special; so is ###."""
    tokenizer = copy.deepcopy(CHATS["qwen3"].tokenizer)
    tokenizer.add_tokens([AddedToken("<|reserved|>", special=True), "<think>", "</think>", "###"])
    return Chat(tokenizer)


@some
@given(data=st.data())
def test_tokens_that_the_template_knows_are_never_the_worlds(data: st.DataObject, thinking: Chat) -> None:
    tokens = ["<|reserved|>", "<think>", "</think>", "<|im_end|>", "<thi", "nk>"]
    hostile = "".join(data.draw(st.lists(st.one_of(st.sampled_from(tokens), st.text("ab<>", max_size=3)), min_size=1)))
    control = set(thinking.tokenizer.convert_tokens_to_ids(tokens[:4]))
    before = Message("user", "x"), Message("assistant", "<think>\nhm\n</think>\n\ngo")
    for conversation in ((), before):
        ids, quiet = (thinking.open((*conversation, Message("user", said))) for said in (hostile, "x"))
        assert [i for i in ids if i in control] == [i for i in quiet if i in control]
        kept = thinking.tokenizer.decode(quiet).replace("user\nx<|im_end|>\n<|im_start|>assistant\n", "")
        assert hostile.strip() in thinking.tokenizer.decode(ids).removeprefix(kept)


def test_tokens_that_the_template_knows_are_the_agents(thinking: Chat) -> None:
    think = thinking.tokenizer.convert_tokens_to_ids("<think>")
    assert think in thinking.reply_ids("<think>\nhm\n</think>\n\ngo")
    assert thinking.tokenizer.all_special_tokens == CHATS["qwen3"].tokenizer.all_special_tokens


def test_tokens_that_the_template_does_not_know_are_words(thinking: Chat) -> None:
    assert thinking.tokenizer.convert_tokens_to_ids("###") in thinking.open((Message("user", "### ### <think>"),))


@some
@given(st.text(max_size=40))
def test_what_a_world_says_is_kept_to_the_letter(text: str) -> None:
    chat = CHATS["chatml"]
    ids = chat.open((Message("user", text),))
    kept = text.encode(errors="replace").decode().strip()
    assert chat.tokenizer.decode(ids) == f"<|im_start|>user\n{kept}<|im_end|>\n<|im_start|>assistant\n"


def test_words_that_meet_the_templates_own_are_one_token_as_in_the_template() -> None:
    chat = CHATS["mistral-v3"]
    blank, word = next(
        (i, text.strip())
        for text, i in ((chat.tokenizer.decode([i]), i) for i in range(chat.tokenizer.vocab_size))
        if text.startswith(" ") and text.strip()
    )
    conversation = (Message("user", word),)
    assert blank in chat.open(conversation)
    assert chat.open(conversation) == _template_ids(chat, conversation)


def test_qwen_without_instructions_has_its_default_system_prompt() -> None:
    text = CHATS["qwen2.5"].tokenizer.decode(CHATS["qwen2.5"].open((Message("user", "hello"),)))
    assert text.startswith("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are")


@pytest.mark.parametrize("family", ["gemma", "silent"])
def test_without_a_system_role_instructions_stand_before_the_first_observation(family: str) -> None:
    chat = CHATS[family]
    assert not chat.takes_system
    assert "be brave\n\nhello" in chat.tokenizer.decode(
        chat.open((Message("system", "be brave"), Message("user", "hello")))
    )


def test_a_template_that_rewrites_history_begins_a_fresh_segment_and_counts_it() -> None:
    chat = CHATS["qwen3"]
    conversation: Conversation = (Message("user", "one"),)
    context = Context(chat)
    context.prompt(conversation)
    context.append_reply(chat.reply_ids("<think>\nhm\n</think>\n\ngo"))
    conversation += (Message("assistant", "<think>\nhm\n</think>\n\ngo"), Message("user", "two"))
    ids, fresh = context.prompt(conversation)
    assert fresh
    assert context.segments == 2
    assert context.ids == ids
    assert ids == _template_ids(chat, conversation)
    assert "hm" not in chat.tokenizer.decode(ids)
    context.append_reply(chat.reply_ids("stay"))
    conversation += (Message("assistant", "stay"), Message("user", "three"))
    _, fresh = context.prompt(conversation)
    assert not fresh
    assert context.segments == 2


def test_a_reply_that_the_template_trims_begins_a_fresh_segment() -> None:
    conversation = (Message("user", "x"), Message("assistant", " go "), Message("user", "y"))
    assert CHATS["llama3"].extend(conversation) is None
    assert CHATS["chatml"].extend(conversation) is not None


def _grown(family: str, conversation: Conversation, said: list[list[int]]) -> Context:
    """The context of a conversation whose replies were sampled so."""
    context, told = Context(CHATS[family]), conversation[0].role == "system"
    for turn, ids in enumerate([*said, []]):
        end = told + 2 * turn + 1
        context.prompt(conversation[:end])
        context.append_reply(ids)
    return context


def test_a_template_that_puts_a_blank_before_replies_is_extended_when_it_was_sampled() -> None:
    chat = CHATS["mistral-v3"]
    conversation = (Message("user", "x"), Message("assistant", "go"), Message("user", "y"))
    # As text the reply and the template's rendering differ by the blank; as ids they may be the same.
    assert chat.extend(conversation) is None
    context = _grown("mistral-v3", conversation, [chat.reply_ids("go")])
    assert context.segments == 1
    assert context.ids == _template_ids(chat, conversation)
    without = [*CHATS["mistral"].reply_ids("go")[:-1], chat.end_id]
    assert without != chat.reply_ids("go")
    context = _grown("mistral-v3", conversation, [without])
    assert context.segments == 2
    assert context.ids == _template_ids(chat, conversation)


def test_a_template_that_moves_what_the_system_says_begins_a_fresh_segment_every_turn() -> None:
    chat = CHATS["mistral-v3"]
    conversation = (
        Message("system", "be brave"),
        Message("user", "x"),
        Message("assistant", "go"),
        Message("user", "y"),
    )
    context = _grown("mistral-v3", conversation, [chat.reply_ids("go")])
    assert context.segments == 2
    assert context.completion_tokens == len(chat.reply_ids("go"))
    assert context.ids == _template_ids(chat, conversation)


@families
def test_the_end_of_turn_token_is_the_templates_and_trained_as_sampled(family: str) -> None:
    chat = CHATS[family]
    assert chat.tokenizer.convert_ids_to_tokens(chat.end_id) == FAMILIES[family][1]
    assert chat.reply_ids("go")[-1] == chat.end_id
    assert chat.reply_ids("go").count(chat.end_id) == 1
    # Appended, the reply with its end and what follows is how the template writes the whole.
    conversation = (Message("user", "x"), Message("assistant", "go"))
    ids = chat.open(conversation[:1]) + chat.reply_ids("go")
    assert _template_ids(chat, conversation, prompt=False)[: len(ids)] == ids


@families
@some
@given(text=st.text(max_size=30))
def test_the_words_of_a_reply_come_back_without_its_end(family: str, text: str) -> None:
    chat = CHATS[family]
    ids = chat.reply_ids(text)
    assert chat.end_id not in ids[:-1]
    blank = " " if family == "mistral-v3" and not text.startswith(" ") else ""
    assert chat.reply_text(ids) == blank + text.encode(errors="replace").decode()
    assert chat.reply_text(ids[:-1]) == chat.reply_text(ids)


@families
@some
@given(first=conversations(), second=conversations())
def test_a_conversation_that_begins_anew_is_a_fresh_segment(
    family: str, first: Conversation, second: Conversation
) -> None:
    assume(second[:-2] != first)
    chat = CHATS[family]
    context = Context(chat)
    context.prompt(first)
    context.append_reply(chat.reply_ids("go"))
    ids, fresh = context.prompt(second)
    assert fresh
    assert context.segments == 2
    assert context.ids == ids == chat.open(second)
    assert context.completion_tokens == len(chat.reply_ids("go"))


def test_a_tokenizer_without_a_template_is_refused() -> None:
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template; choose an instruct model, or save a template"):
        Chat(tokenizer)


def test_a_template_whose_turns_do_not_end_in_a_control_token_is_refused() -> None:
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(ValueError, match="does not begin with a control token"):
        Chat(tokenizer)
