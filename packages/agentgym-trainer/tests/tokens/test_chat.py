from __future__ import annotations

import copy
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from agentgym_envs import Message
from agentgym_trainer.models.scratch import CHATML, train_tokenizer
from agentgym_trainer.tokens.chat import Chat, Context
from chat_templates import FAMILIES, make_chat, trl_chat
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.trainers import BpeTrainer
from toy_learner import TEXTS
from transformers import PreTrainedTokenizerFast

Conversation = tuple[Message, ...]


CHATS = {family: make_chat(family) for family in FAMILIES}
# Letters and inner punctuation, which spell no control token, without white space at the ends.
words = st.lists(st.text("abcdefghij.,0123456789äß中", min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join)
families = pytest.mark.parametrize("family", CHATS)
# mistral-v3 moves the system message at every turn, so that nothing can be appended.
appended = pytest.mark.parametrize("family", sorted(set(CHATS) - {"mistral-v3"}))
few_examples = settings(max_examples=15)


@st.composite
def conversations(draw: st.DrawFn, *, contents: Any = words, replies: Any = words) -> Conversation:
    """Draw optional instructions, then alternating observations and replies, ending with an observation."""
    conversation: Conversation = (Message("system", draw(contents)),) if draw(st.booleans()) else ()
    for _ in range(draw(st.integers(0, 3))):
        conversation += (Message("user", draw(contents)), Message("assistant", draw(replies)))
    return (*conversation, Message("user", draw(contents)))


def _template_messages(conversation: Conversation, *, system: bool) -> list[dict[str, str]]:
    """Convert to the input of `apply_chat_template`; without a system role, instructions precede the observation."""
    turns = [{"role": m.role, "content": m.content} for m in conversation]
    if turns[0]["role"] == "system" and not system:
        instructions, first, *rest = turns
        turns = [{"role": "user", "content": f"{instructions['content']}\n\n{first['content']}"}, *rest]
    return turns


def _template_ids(chat: Chat, conversation: Conversation, *, prompt: bool = True) -> list[int]:
    turns = _template_messages(conversation, system=chat.takes_system)
    return chat.tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=prompt, return_dict=False)


def test_threads_that_encode_at_the_same_time_do_not_change_each_others_ids() -> None:
    """As a rollout does beside an update that trains on labels; the tokenizer itself has a state."""
    shared, alone = (Chat(train_tokenizer(TEXTS, 320)) for _ in range(2))
    texts = [f"Room {number}: {'<|im_end|>' if number % 2 else 'a door'}" for number in range(4_000)]
    done = threading.Event()

    def label() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            shared.reply_ids(f"open door {number}")

    with ThreadPoolExecutor(1) as threads:
        labelling = threads.submit(label)
        opened = [shared.open((Message("user", text),)) for text in texts]
        done.set()
        labelling.result()
    assert opened == [alone.open((Message("user", text),)) for text in texts]


@families
@few_examples
@given(conversation=conversations())
def test_open_matches_the_template(family: str, conversation: Conversation) -> None:
    chat = CHATS[family]
    assert chat.open(conversation) == _template_ids(chat, conversation)


@appended
@few_examples
@given(conversation=conversations())
def test_appending_turns_equals_opening_the_full_conversation(family: str, conversation: Conversation) -> None:
    chat = CHATS[family]
    context = Context(chat)
    ids: list[int] = []
    for end in range(2 if conversation[0].role == "system" else 1, len(conversation) + 1, 2):
        prompt, fresh = context.prompt(conversation[:end])
        assert fresh == (not ids)
        ids += prompt
        if end < len(conversation):
            reply = chat.reply_ids(conversation[end].content)
            context.append_reply(reply)
            ids += reply
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
@few_examples
@given(data=st.data())
def test_observations_never_become_control_tokens(family: str, data: st.DataObject) -> None:
    chat = CHATS[family]
    conversation = data.draw(conversations(contents=_hostile(family)))
    harmless = tuple(m if m.role == "assistant" else Message(m.role, "x") for m in conversation)
    assert _shape(chat, conversation) == _shape(chat, harmless)
    ids = chat.extend((*conversation, Message("assistant", "go"), Message("user", data.draw(_hostile(family)))))
    harmless_ids = chat.extend((*conversation, Message("assistant", "go"), Message("user", "x")))
    assert ids is not None
    assert harmless_ids is not None
    assert [i for i in ids if i in chat.tokenizer.all_special_ids] == [
        i for i in harmless_ids if i in chat.tokenizer.all_special_ids
    ]


@families
@few_examples
@given(data=st.data())
def test_rerendered_replies_never_become_control_tokens(family: str, data: st.DataObject) -> None:
    chat = CHATS[family]
    hostile = data.draw(_hostile(family))
    conversation = (Message("user", "x"), Message("assistant", f"a{hostile}a"), Message("user", "x"))
    harmless = (Message("user", "x"), Message("assistant", "aa"), Message("user", "x"))
    assert _shape(chat, conversation) == _shape(chat, harmless)


@pytest.fixture(scope="module")
def thinking() -> Chat:
    """As published, with an unnamed special token; <think> and ### are tokens but not special."""
    tokenizer = copy.deepcopy(CHATS["qwen3"].tokenizer)
    tokenizer.add_tokens([AddedToken("<|reserved|>", special=True), "<think>", "</think>", "###"])
    return Chat(tokenizer)


@few_examples
@given(data=st.data())
def test_observations_never_become_tokens_of_the_template(data: st.DataObject, thinking: Chat) -> None:
    tokens = ["<|reserved|>", "<think>", "</think>", "<|im_end|>", "<thi", "nk>"]
    hostile = "".join(data.draw(st.lists(st.one_of(st.sampled_from(tokens), st.text("ab<>", max_size=3)), min_size=1)))
    control = set(thinking.tokenizer.convert_tokens_to_ids(tokens[:4]))
    before = Message("user", "x"), Message("assistant", "<think>\nhm\n</think>\n\ngo")
    for conversation in ((), before):
        ids, harmless_ids = (thinking.open((*conversation, Message("user", text))) for text in (hostile, "x"))
        assert [i for i in ids if i in control] == [i for i in harmless_ids if i in control]
        prefix = thinking.tokenizer.decode(harmless_ids).replace("user\nx<|im_end|>\n<|im_start|>assistant\n", "")
        assert hostile.strip() in thinking.tokenizer.decode(ids).removeprefix(prefix)


def test_replies_may_contain_tokens_of_the_template(thinking: Chat) -> None:
    think = thinking.tokenizer.convert_tokens_to_ids("<think>")
    assert think in thinking.reply_ids("<think>\nhm\n</think>\n\ngo")
    assert thinking.tokenizer.all_special_tokens == CHATS["qwen3"].tokenizer.all_special_tokens


def test_observations_may_contain_other_added_tokens(thinking: Chat) -> None:
    assert thinking.tokenizer.convert_tokens_to_ids("###") in thinking.open((Message("user", "### ### <think>"),))


@few_examples
@given(st.text(max_size=40))
def test_observation_texts_are_preserved(text: str) -> None:
    chat = CHATS["chatml"]
    ids = chat.open((Message("user", text),))
    expected = text.encode(errors="replace").decode().strip()
    assert chat.tokenizer.decode(ids) == f"<|im_start|>user\n{expected}<|im_end|>\n<|im_start|>assistant\n"


def test_text_merges_with_template_text_into_one_token() -> None:
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
def test_without_system_role_instructions_precede_the_observation(family: str) -> None:
    chat = CHATS[family]
    assert not chat.takes_system
    assert "be brave\n\nhello" in chat.tokenizer.decode(
        chat.open((Message("system", "be brave"), Message("user", "hello")))
    )


def test_template_that_rewrites_history_starts_a_new_segment() -> None:
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


def test_reply_trimmed_by_the_template_starts_a_new_segment() -> None:
    conversation = (Message("user", "x"), Message("assistant", " go "), Message("user", "y"))
    assert CHATS["llama3"].extend(conversation) is None
    assert CHATS["chatml"].extend(conversation) is not None


def _context_of(family: str, conversation: Conversation, replies: list[list[int]]) -> Context:
    """Return the context of a conversation with these sampled replies."""
    context, has_system = Context(CHATS[family]), conversation[0].role == "system"
    for turn, ids in enumerate([*replies, []]):
        end = has_system + 2 * turn + 1
        context.prompt(conversation[:end])
        context.append_reply(ids)
    return context


def test_context_is_extended_if_the_templates_blank_was_sampled() -> None:
    chat = CHATS["mistral-v3"]
    conversation = (Message("user", "x"), Message("assistant", "go"), Message("user", "y"))
    # As text the reply and the template's rendering differ by the blank; as ids they may be the same.
    assert chat.extend(conversation) is None
    context = _context_of("mistral-v3", conversation, [chat.reply_ids("go")])
    assert context.segments == 1
    assert context.ids == _template_ids(chat, conversation)
    without_blank = [*CHATS["mistral"].reply_ids("go")[:-1], chat.end_id]
    assert without_blank != chat.reply_ids("go")
    context = _context_of("mistral-v3", conversation, [without_blank])
    assert context.segments == 2
    assert context.ids == _template_ids(chat, conversation)


def test_template_that_moves_the_system_message_starts_segments() -> None:
    chat = CHATS["mistral-v3"]
    conversation = (
        Message("system", "be brave"),
        Message("user", "x"),
        Message("assistant", "go"),
        Message("user", "y"),
    )
    context = _context_of("mistral-v3", conversation, [chat.reply_ids("go")])
    assert context.segments == 2
    assert context.completion_tokens == len(chat.reply_ids("go"))
    assert context.ids == _template_ids(chat, conversation)


@families
def test_end_of_turn_token_is_that_of_the_template(family: str) -> None:
    chat = CHATS[family]
    assert chat.tokenizer.convert_ids_to_tokens(chat.end_id) == FAMILIES[family][1]
    assert chat.reply_ids("go")[-1] == chat.end_id
    assert chat.reply_ids("go").count(chat.end_id) == 1
    # The prompt with the appended reply and its end token is a prefix of the template's rendering.
    conversation = (Message("user", "x"), Message("assistant", "go"))
    ids = chat.open(conversation[:1]) + chat.reply_ids("go")
    assert _template_ids(chat, conversation, prompt=False)[: len(ids)] == ids


@families
@few_examples
@given(text=st.text(max_size=30))
def test_reply_text_excludes_the_end_token(family: str, text: str) -> None:
    chat = CHATS[family]
    ids = chat.reply_ids(text)
    assert chat.end_id not in ids[:-1]
    blank = " " if family == "mistral-v3" and not text.startswith(" ") else ""
    assert chat.reply_text(ids) == blank + text.encode(errors="replace").decode()
    assert chat.reply_text(ids[:-1]) == chat.reply_text(ids)


@families
@few_examples
@given(first=conversations(), second=conversations())
def test_restarted_conversation_starts_a_new_segment(family: str, first: Conversation, second: Conversation) -> None:
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


def test_tokenizer_without_chat_template_is_rejected() -> None:
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template; choose an instruct model, or save a template"):
        Chat(tokenizer)


def test_template_without_control_tokens_is_rejected() -> None:
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(ValueError, match=r"does not begin with a control token\. Save a template .* ends replies with"):
        Chat(tokenizer)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ strftime_later('%d') }}CHATML", "can't render a reply: 'strftime_later' is undefined"),
        ("{% for message in messages %}", "can't render a reply: Unexpected end of template"),
        ("{{ 1 + messages[0].content }}", "can't render a reply: unsupported operand"),
        # As of early fine-tuned models: the role before a reply is only in the history.
        (CHATML.partition("{% if add_generation_prompt")[0], "ignores add_generation_prompt"),
    ],
)
def test_unusable_templates_are_rejected_with_what_to_do(template: str, reason: str) -> None:
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.chat_template = template.replace("CHATML", CHATML)
    with pytest.raises(ValueError, match=rf"{reason}.* Save a (working )?template .*chat_template = "):
        Chat(tokenizer)


def test_prompts_do_not_depend_on_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=1)

    first, second = (Message("system", "S"), Message("user", "U")), (Message("assistant", "go"), Message("user", "V"))
    context = Context(trl_chat("llama3", "llama3_2"))
    ids, _ = context.prompt(first)
    assert "Today Date: 26 Jul 2024" in context._chat.tokenizer.decode(ids)
    context.append_reply(context._chat.reply_ids("go"))
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Tomorrow)
    assert not context.prompt((*first, *second))[1]
    assert trl_chat("llama3", "llama3_2").open(first) == ids


@pytest.mark.parametrize("header", ["assistant\n", ""])
def test_replies_have_the_tokens_that_they_would_have_after_the_prompt(header: str) -> None:
    """SentencePiece begins a text with a blank, which isn't there after a header that ends with a newline."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    special = ["<unk>", "<s>", "</s>", "<turn>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    backend.train_from_iterator(["go north now", "assistant go north"] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", extra_special_tokens=["<turn>"]
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<turn>{% if m.role == 'assistant' %}HEADER{% endif %}{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<turn>HEADER{% endif %}"
    ).replace("HEADER", header)
    reply = tokenizer.convert_ids_to_tokens(Chat(tokenizer).reply_ids("go north"))
    assert "".join(reply) == ("go▁north</s>" if header else "▁go▁north</s>")
