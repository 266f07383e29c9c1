"""Tests of SkyRL-gym's environments as environments, with its own and with ours through the adapter outwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from agentgym_envs import make, text_env
from dev_packages import require_packages

require_packages("skyrl_gym")
import pandas
import skyrl_gym

ASK = [{"role": "system", "content": "Think."}, {"role": "user", "content": "What is 20 + 22?"}]
STAIRS = "textcraft/test/red_sandstone_stairs"


def written(file: Path, *rows: dict[str, object]) -> str:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(file)


def sums(number: int) -> list[dict[str, object]]:
    rewards = [{"ground_truth": str(i)} for i in range(number)]
    return [
        {"prompt": ASK, "reward_spec": reward, "extra_info": {"index": 0}, "data_source": "sums"} for reward in rewards
    ]


def test_an_environment_of_several_turns_is_played_to_its_end(tmp_path: Path) -> None:
    env = make("skyrl:gsm8k_multi_turn", rows=written(tmp_path / "sums.jsonl", *sums(43)), max_turns=4)
    tasks = text_env(env).tasks
    assert [len(tasks.train) + len(tasks.dev), len(tasks.test)] == [39, 4]
    task = tasks["gsm8k_multi_turn/train/42"]
    assert task.category == "sums"
    observation, info = env.reset(options={"task": task.id})
    assert (observation, info["task_id"]) == ("Think.\n\nWhat is 20 + 22?", task.id)
    observation, reward, done, _, _ = env.step("20 + 22 = 41\n#### 41")
    assert ("tentative numeric answer" in observation, reward, done) == (True, pytest.approx(0.05), False)
    _, reward, done, _, info = env.step("#### 42")
    assert (reward, done, info["score"], info["success"]) == (pytest.approx(0.95), True, 1.0, True)
    env.reset(options={"task": task.id})
    steps = [env.step("no idea") for _ in range(4)]
    assert [step[2:4] for step in steps] == [(False, False)] * 3 + [(False, True)]
    assert steps[-1][4]["success"] is False
    env.close()
    env.close()


def test_a_module_registers_an_environment_that_is_ours_underneath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "crafting_for_skyrl", ModuleType("crafting_for_skyrl"))
    skyrl_gym.register(id="crafting", entry_point="agentgym_envs.adapters.skyrl:SkyRLWorld")
    rows = {"prompt": [], "world": "textcraft", "task": STAIRS, "agent": "bare"}
    env = make("skyrl:crafting_for_skyrl:crafting", rows=written(tmp_path / "rows.jsonl", rows))
    ours = make("agentgym/TextCraft-v0")
    observation, _ = env.reset(options={"task": text_env(env).tasks.test.ids[0]})
    first, _ = ours.reset(options={"task": STAIRS})
    assert observation.endswith(first)
    assert env.step("fly")[4]["valid"] is False
    total, done = 0.0, False
    while not done:
        action = text_env(ours).oracle()
        expected = ours.step(action)
        observation, reward, done, _, info = env.step(action)
        total += float(reward)
        assert done or observation == expected[0]
    assert (total, info["success"]) == (1.0, True)
    env.close()
    ours.close()
    skyrl_gym.envs.deregister("crafting")


def test_rows_of_parquet_and_of_a_file_of_test_tasks(tmp_path: Path) -> None:
    pandas.DataFrame(sums(3)).to_parquet(tmp_path / "test.parquet")
    train = written(tmp_path / "train.jsonl", *sums(2))
    env = make("skyrl:gsm8k", rows=train, test_rows=str(tmp_path / "test.parquet"))
    tasks = text_env(env).tasks
    assert (tasks.train.ids, len(tasks.test)) == (["gsm8k/train/0", "gsm8k/train/1"], 3)
    assert tasks.test[2].payload["reward_spec"] == {"ground_truth": "2"}
    env.reset(options={"task": "gsm8k/test/2"})
    assert env.step("#### 2")[4]["success"] is True
    env.close()


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = {**sums(1)[0], "prompt": "one\u2028two\x85three"}
    file.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    env = make("skyrl:gsm8k", rows=str(file))
    assert env.reset(options={"split": "test"})[0] == row["prompt"]
    env.close()


def test_the_limit_of_turns_truncates(tmp_path: Path) -> None:
    rows = written(tmp_path / "sums.jsonl", *sums(1))
    env = make("skyrl:gsm8k_multi_turn", rows=rows, max_turns=2)
    for replies, end in (
        (["no idea", "no idea"], (False, True)),
        (["#### 1", "#### 1"], (False, True)),
        (["no idea", "#### 0"], (True, False)),
        (["#### 0"], (True, False)),
    ):
        env.reset(options={"split": "test"})
        assert [env.step(reply)[2:4] for reply in replies] == [(False, False)] * (len(replies) - 1) + [end]
    env.close()
    env = make("skyrl:gsm8k", rows=rows)
    env.reset(options={"split": "test"})
    assert env.step("#### 1")[2:4] == (True, False)  # its only turn is no limit
    env.close()


def test_wrong_names_and_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no environment 'gsm9k', but .*gsm8k, "):
        make("skyrl:gsm9k", rows="any")
    with pytest.raises(ValueError, match="module of the environment skyrl:no_such_module:sums"):
        make("skyrl:no_such_module:sums")
    with pytest.raises(ValueError, match="needs rows: --options rows=FILE"):
        make("skyrl:gsm8k")
    with pytest.raises(ValueError, match="can't be read"):
        make("skyrl:gsm8k", rows=str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no rows"):
        make("skyrl:gsm8k", rows=str(tmp_path / "empty.jsonl"))
    with pytest.raises(ValueError, match="line 1 is no JSON object"):
        make("skyrl:gsm8k", rows=written(tmp_path / "list.jsonl", [1]))  # type: ignore[arg-type]
