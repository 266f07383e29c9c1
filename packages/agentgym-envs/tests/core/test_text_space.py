"""Tests of `TextSpace`, which contains any text that UTF-8 can encode, also in shared memory of vector environments."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle

import numpy as np
import pytest
from agentgym_envs import TextSpace
from gymnasium import spaces
from gymnasium.spaces import Text
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.utils.env_checker import check_observation_space
from gymnasium.vector.utils import batch_space, create_shared_memory, read_from_shared_memory, write_to_shared_memory
from hypothesis import given
from hypothesis import strategies as st

UNICODE = st.characters(exclude_categories=["Cs"])


@given(st.text(UNICODE, max_size=40))
def test_space_contains_texts_within_its_lengths(text: str) -> None:
    assert text in TextSpace(40)
    assert (text in TextSpace(20)) == (len(text) <= 20)
    assert (text in TextSpace(40, min_length=10)) == (len(text) >= 10)


@pytest.mark.parametrize("value", ["\ud800", b"text", None, 3, ["text"]])
def test_space_contains_only_encodable_text(value: object) -> None:
    assert value not in TextSpace(10)


@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.integers(0, 30))
def test_samples_are_contained_and_deterministic(seed: int, low: int, more: int) -> None:
    first, second = (TextSpace(low + more, min_length=low, seed=seed) for _ in range(2))
    samples = [first.sample() for _ in range(5)]
    assert all(sample in first for sample in samples)
    assert samples == [second.sample() for _ in range(5)]


def test_samples_use_more_than_ascii() -> None:
    text = TextSpace(2000, min_length=2000, seed=0).sample()
    assert 800 < sum(character.isascii() for character in text) < 1200


@pytest.mark.parametrize("lengths", [(3, 4), (-1, -1), (3, -1)])
def test_impossible_lengths_are_rejected(lengths: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="length must be"):
        TextSpace(lengths[0], min_length=lengths[1])


def test_space_is_a_gymnasium_text_space() -> None:
    space = TextSpace(12, min_length=2)
    assert isinstance(space, Text)
    # the attributes of `Text` that converters store
    assert (space.min_length, space.max_length, space.dtype) == (2, 12, np.dtype(str))
    assert len(space.characters) == len(space.character_set) == 0x110000 - 0x800
    assert space.characters == "".join(space.character_list)
    assert is_space_dtype_shape_equiv(space, TextSpace(12))
    assert not is_space_dtype_shape_equiv(space, TextSpace(13))
    assert space != Text(12, min_length=2) != space


@given(st.text(UNICODE, min_size=2, max_size=12))
def test_text_is_flattened_to_character_indices(text: str) -> None:
    space = TextSpace(12, min_length=2)
    assert [space.character_list[space.character_index(character)] for character in text] == list(text)
    flat = spaces.flatten(space, text)
    assert flat in spaces.flatten_space(space)
    assert spaces.unflatten(space, flat) == text


def test_surrogates_have_no_character_index() -> None:
    with pytest.raises(KeyError):
        TextSpace(1).character_index("\ud800")


def test_sample_mask_selects_characters() -> None:
    space = TextSpace(5, seed=0)
    vowels = np.isin(np.array(space.character_list), list("aeiou")).astype(np.int8)
    assert set(space.sample(mask=(5, vowels))) <= set("aeiou")
    assert len(space.sample(mask=(4, None))) == 4


@given(st.lists(st.text(UNICODE, max_size=10)))
def test_json_round_trip(texts: list[str]) -> None:
    space = TextSpace(10)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(texts)))) == texts


def test_spaces_compare_hash_copy_and_pickle() -> None:
    space = TextSpace(10, min_length=2)
    for other in (TextSpace(10, min_length=2), copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert space == other
        assert hash(space) == hash(other)
    assert space != TextSpace(10)
    assert space != "TextSpace(10, min_length=2)"
    assert repr(space) == "TextSpace(10, min_length=2)"


def test_gymnasium_checks_and_batches_the_space() -> None:
    check_observation_space(TextSpace(10))
    assert list(batch_space(TextSpace(5, seed=1), 3).sample()) != ["", "", ""]


@given(st.lists(st.text(UNICODE, max_size=12), min_size=3, max_size=3), st.text(UNICODE, max_size=12))
def test_shared_memory_round_trip(texts: list[str], later: str) -> None:
    space = TextSpace(12)
    memory = create_shared_memory(space, n=3, ctx=multiprocessing)
    view = read_from_shared_memory(space, memory, n=3)
    for i, text in enumerate(texts):
        write_to_shared_memory(space, i, text, memory)
    copied = copy.deepcopy(view)
    assert copied == tuple(texts)
    write_to_shared_memory(space, 1, later, memory)
    assert copied == tuple(texts)
    assert copy.deepcopy(view) == (texts[0], later, texts[2])
