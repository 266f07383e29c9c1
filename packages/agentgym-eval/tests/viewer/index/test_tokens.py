"""Tests of reading the tokens of episodes, their texts, colors and descriptions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode, Reply, Sample, Turn
from agentgym_eval.storage import vocabulary_file as vocabulary_storage
from agentgym_eval.storage.vocabulary_file import read_vocabulary, vocabulary_file, write_vocabulary
from agentgym_eval.viewer.index import tokens
from agentgym_eval.viewer.index.tokens import Token, css_classes, describe, read_tokens, spans
from agentgym_eval.viewer.index.vocabulary import Vocabulary, find_vocabulary

pytestmark = pytest.mark.quick

TASK = "world/train/ü"


def episode(*samples: Sample | None) -> Episode:
    turns = tuple(Turn("o", Reply("r", sample=sample), "r", True, 0.0, "") for sample in samples)
    return Episode("e", TASK, "train", "c", 1, "p", 1, "", turns, "", "truncated", 0.0, False)


def line(number: int, **changes: Any) -> str:
    segment = {
        "tokens": ["<user>", "Hi", " go"],
        "loss_mask": [0, 0, 1],
        "turn": [-1, -1, 0],
        "logprobs": [None, None, -0.5],
        "advantages": [None, None, -2.0],
        "entropies": [None, None, 1.2],
    }
    record = {"schema": tokens.SCHEMA, "episode": number, "task_id": TASK, "sample": 1, "group": 4, "trained": True}
    return json.dumps({**record, "segments": [segment], **changes}) + "\n"


def test_tokens_are_found_by_the_line_of_their_episode(tmp_path: Path) -> None:
    lines = [line(6, group=9), line(7, task_id="other"), "half", '{"task_id": "world/train/ü"}\n', line(7)]
    (tmp_path / "step-000001.tokens.jsonl").write_text("".join(lines), encoding="utf-8")
    result = read_tokens(tmp_path / "step-000001.jsonl", 7, episode(None), tmp_path)
    assert result.segments == (
        (Token("<user>", False, -1), Token("Hi", False, -1), Token(" go", True, 0, -0.5, -2, 1.2)),
    )
    assert (result.trained, result.group, result.has_text, result.completion_tokens, result.omitted) == (
        True,
        4,
        True,
        1,
        0,
    )
    assert (result.metrics, result.max_advantage()) == (("logprob", "advantage", "entropy"), 2.0)


def write_tokenizer(folder: Path, decoder: Any, model: Any, added: Any = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"decoder": decoder, "model": model, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(record), encoding="utf-8")


def vocabulary(folder: Path, decoder: Any, vocab: Any) -> Vocabulary:
    write_tokenizer(folder / "model", decoder, {"vocab": vocab}, [{"id": 0, "content": "<|im_end|>"}])
    result = find_vocabulary(folder)
    assert result
    return result


def test_byte_level_tokens_are_decoded_at_character_boundaries(tmp_path: Path) -> None:
    pieces = {"Ġ": 1, "é": 2, "â": 3, "Ĥ": 4, "¬": 5, "ĠÃ¼": 6}  # 3, 4 and 5 form a euro sign
    texts = vocabulary(tmp_path, {"type": "ByteLevel"}, pieces).texts
    assert texts([3, 4, 5, 6, 0]) == ["", "", "€", " ü", "<|im_end|>"]
    assert texts([3, 4, 0, 1]) == ["", "", "\N{REPLACEMENT CHARACTER}<|im_end|>", " "]
    assert "".join(texts([1, 3, 4])) == " \N{REPLACEMENT CHARACTER}"
    assert texts([99]) == ["<id 99>"]
    assert texts([]) == []


@pytest.mark.parametrize("vocab", [{"▁go": 1, "<0xE2>": 2, "<0x82>": 3, "<0xAC>": 4}, "scored"])
def test_sentencepiece_byte_fallback_is_decoded(tmp_path: Path, vocab: Any) -> None:
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    scored = [[piece, -1.0] for piece in ("<unk>", "▁go", "<0xE2>", "<0x82>", "<0xAC>")]
    texts = vocabulary(tmp_path, decoder, scored if vocab == "scored" else vocab).texts
    assert texts([1, 2, 3, 4]) == [" go", "", "", "€"]


@pytest.mark.parametrize(
    ("decoder", "model"),
    [({"type": "WordPiece"}, {"vocab": {"a": 1}}), (None, {}), ({"type": "ByteLevel"}, {"vocab": 3}), ({}, {})],
)
def test_unsupported_tokenizers_give_no_vocabulary(tmp_path: Path, decoder: Any, model: Any) -> None:
    write_tokenizer(tmp_path / "model", decoder, model)
    assert find_vocabulary(tmp_path) is None


SAMPLES = (
    Sample((1, 2), (3,), (-0.1,)),
    None,
    Sample((4,), (5, 6), (-0.2, -3.0), fresh=False),
    Sample((7,), (8,), (-1.0,)),
)
BY_IDS = (
    (
        *(Token("1", False, -1), Token("2", False, -1), Token("3", True, 0, -0.1)),
        *(Token("4", False, -1), Token("5", True, 2, -0.2), Token("6", True, 2, -3.0)),
    ),
    (Token("7", False, -1), Token("8", True, 3, -1.0)),
)


@pytest.mark.parametrize("tokens_file", ["", line(3), line(0, segments=[{"tokens": ["a"]}]), line(0, segments=3)])
def test_token_ids_are_shown_without_token_strings(tmp_path: Path, tokens_file: str) -> None:
    (tmp_path / "e.tokens.jsonl").write_text(tokens_file)
    result = read_tokens(tmp_path / "e.jsonl", 0, episode(*SAMPLES), tmp_path)
    assert (result.segments, result.has_text, result.metrics) == (BY_IDS, False, ("logprob",))


def test_token_ids_are_decoded_with_the_tokenizer_of_the_run(tmp_path: Path) -> None:
    assert read_tokens(tmp_path / "e.jsonl", 0, episode(*SAMPLES), tmp_path).has_text is False
    pieces = {"<s>": 1, "A": 2, "Ġroom": 3, ".": 4, "go": 5, "Ċ": 7}
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    write_tokenizer(tmp_path / "checkpoints" / "step-000002", {"type": "ByteLevel"}, {"vocab": pieces})
    result = read_tokens(tmp_path / "e.jsonl", 0, episode(*SAMPLES), tmp_path)
    assert [[token.text for token in segment] for segment in result.segments] == [
        ["<s>", "A", " room", ".", "go", "<id 6>"], ["\n", "<id 8>"],
    ]  # fmt: skip
    assert [[token.completion for token in segment] for segment in result.segments] == [
        [token.completion for token in segment] for segment in BY_IDS
    ]
    assert result.has_text is True


@pytest.mark.parametrize("folder", [".", "iteration-1", "iteration-0/sft"])
def test_token_ids_are_decoded_with_the_vocabulary_of_the_run(tmp_path: Path, folder: str) -> None:
    write_tokenizer(tmp_path / "model", {"type": "ByteLevel"}, {"vocab": {"wrong": 1}})
    pieces = {"Ġ": 1, "é": 2, "â": 3, "Ĥ": 4, "¬": 5, "<|im_end|>": 0}
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    added = [{"id": 0, "content": "<|im_end|>", "special": True}]
    model = {"type": "BPE", "vocab": pieces, "merges": ["a b"]}
    write_vocabulary(tmp_path / folder, {"decoder": {"type": "ByteLevel"}, "model": model, "added_tokens": added})
    result = find_vocabulary(tmp_path)
    assert result and result.texts([1, 3, 4, 5, 0, 9]) == [" ", "", "", "€", "<|im_end|>", "<id 9>"]


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", gzip.compress(b"[]", mtime=0), gzip.compress(b"{", mtime=0)[:-4], b"\x1f\x8b\x08"]
)
def test_damaged_vocabulary_leaves_the_model_to_decode(tmp_path: Path, content: bytes) -> None:
    vocabulary_file(tmp_path).write_bytes(content)
    assert find_vocabulary(tmp_path) is None
    write_tokenizer(tmp_path / "model", {"type": "ByteLevel"}, {"vocab": {"go": 1}})
    result = find_vocabulary(tmp_path)
    assert result and result.texts([1]) == ["go"]


def test_vocabulary_that_unpacks_to_too_much_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vocabulary(tmp_path, {"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"a" * 10_000: 1}}})
    assert find_vocabulary(tmp_path)
    monkeypatch.setattr(vocabulary_storage, "_MAX_BYTES", 9_000)
    assert read_vocabulary(vocabulary_file(tmp_path)) == {}


def test_episode_without_tokens_has_no_segments(tmp_path: Path) -> None:
    assert read_tokens(tmp_path / "e.jsonl", 0, episode(None), tmp_path).segments == ()


def test_tokens_beyond_the_limit_are_counted_as_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MAX_TOKENS", 4)
    result = read_tokens(tmp_path / "e.jsonl", 0, episode(*SAMPLES), tmp_path)
    assert (result.segments, result.omitted) == ((BY_IDS[0][:4],), 4)


@pytest.mark.parametrize("column", ["logprobs", "advantages", "entropies"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400], ids=["nan", "inf", "huge"])
def test_tokens_with_a_number_that_is_not_finite_are_damaged(tmp_path: Path, column: str, value: float) -> None:
    (record,) = json.loads(line(0))["segments"]
    (tmp_path / "a.tokens.jsonl").write_text(line(0, segments=[record | {column: [None, None, value]}]))
    sample = Sample((), (7,), (-1.5,))
    result = read_tokens(tmp_path / "a.jsonl", 0, episode(sample), tmp_path)
    assert result.segments == ((Token("7", True, 0, -1.5),),)


@pytest.mark.parametrize("value", [1e308, -1e308])
def test_tokens_with_extreme_numbers_are_shown(value: float) -> None:
    token = Token("a", True, 0, value, value, value)
    assert css_classes(token, 1e308).startswith("said ")
    assert "(p = " in describe(token)


def test_css_classes_follow_logprob_advantage_and_entropy() -> None:
    def classes(logprob: float, advantage: float, entropy: float) -> str:
        return css_classes(Token("t", True, 0, logprob, advantage, entropy), 2.0)

    assert classes(0.0, 2.0, 0.0) == "said p0 h0 a5"
    assert classes(-0.5, -2.0, 0.6) == "said p1 h1 a_5"
    assert classes(-50.0, 0.0, 40.0) == "said p5 h5 a0"
    assert css_classes(Token("t", True, 0, advantage=0.0), 0.0) == "said a0"
    assert css_classes(Token("t", False, -1), 2.0) == "read"


def test_descriptions_and_spans_of_tokens() -> None:
    assert describe(Token("t", True, 2, -0.5, 1.5, 0.25)) == (
        "turn 2, log-probability -0.500 (p = 0.607), advantage +1.500, entropy 0.250"
    )
    segment = [Token(text, text.isupper(), 0) for text in "abCDe"]
    assert ["".join(token.text for token in span) for span in spans(segment)] == ["ab", "CD", "e"]
