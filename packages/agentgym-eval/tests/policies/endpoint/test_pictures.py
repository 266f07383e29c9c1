"""Tests of pictures in the requests to an endpoint, in run folders, and of their errors."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentgym_envs.util.images import pixels
from agentgym_envs.util.screenshots import ScreenshotStore
from agentgym_eval import evaluate as evaluate_in_python
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.policies.endpoint.settings import EndpointSettings
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.runs.settings import EvaluateSettings
from agentgym_eval.util.errors import UsageError
from counting_world import ENV as TEXT_ENV
from fake_endpoint import Answer, completion_answer, error_answer, read_run, serve_endpoint, tool_call_answer
from numpy.typing import NDArray
from pictured_world import COLOR, ENV, HEIGHT, SIDE, WIDTH

GOAL = "count/test/3"
PREFIX = "data:image/png;base64,"


def image_of(part: dict[str, Any]) -> NDArray[np.uint8]:
    url = part["image_url"]["url"]
    assert url.startswith(PREFIX)
    return pixels(base64.b64decode(url.removeprefix(PREFIX), validate=True))


def squares(image: NDArray[np.uint8]) -> int:
    """Return the number of squares, and check their places."""
    assert image.shape == (HEIGHT, WIDTH, 3)
    colored = (image == np.array(COLOR)).all(axis=2)
    count = int(colored.sum()) // SIDE**2
    assert colored[:SIDE, : count * SIDE].all()
    return count


def counts_of(request: dict[str, Any]) -> list[int | None]:
    """Return the numbers of squares in the pictures of the user messages, None for those that are text."""
    found: list[int | None] = []
    for message in request["messages"]:
        if message["role"] == "user":
            content = message["content"]
            assert isinstance(content, str) or [part["type"] for part in content] == ["text", "image_url"]
            found.append(None if isinstance(content, str) else squares(image_of(content[1])))
    return found


def look_and_count(request: dict[str, Any]) -> Answer:
    """Count to three by the last picture alone."""
    return completion_answer(f"Thought: I see.\nAction: {'add' if counts_of(request)[-1] != 3 else 'stop'}")


def flags(out: Path, *more: str) -> list[str]:
    return ["--env", ENV, "--task", GOAL, "--out", str(out), *more]


@pytest.mark.parametrize(
    ("asked", "agent", "sent"),
    [
        (["--pictures", "1"], "react+pictures:1", [[0], [None, 1], [None, None, 2], [None, None, None, 3]]),
        (["--agent", "react+pictures"], "react+pictures", [[0], [0, 1], [None, 1, 2], [None, None, 2, 3]]),
    ],
)
def test_newest_pictures_are_sent_and_stored(
    tmp_path: Path, asked: list[str], agent: str, sent: list[list[int | None]]
) -> None:
    with serve_endpoint(look_and_count) as fake:
        assert evaluate(flags(tmp_path, *fake.flags, *asked)) == 0
    assert list(map(counts_of, fake.requests)) == sent
    (episode,) = read_run(tmp_path)
    assert (episode.success, episode.agent) == (True, agent)
    store = ScreenshotStore(tmp_path / "pictures")
    paths = [store.get(turn.picture) for turn in episode.turns]
    assert [squares(pixels(path.read_bytes())) for path in paths if path] == [0, 1, 2, 3]
    assert PREFIX not in (tmp_path / "episodes.jsonl").read_text()


def test_pictures_follow_tool_answers_in_messages_of_their_own(tmp_path: Path) -> None:
    def answer(request: dict[str, Any]) -> Answer:
        last = request["messages"][-1]
        assert last["role"] == "user"
        image = image_of(last["content"][-1])
        return tool_call_answer(("act", {"action": "add" if squares(image) < 3 else "stop"}), thought="I see.")

    with serve_endpoint(answer) as fake:
        assert evaluate(flags(tmp_path, *fake.flags, "--agent", "function-call+pictures:1")) == 0
    (episode,) = read_run(tmp_path)
    assert episode.success
    roles = [message["role"] for message in fake.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert isinstance(fake.requests[1]["messages"][1]["content"], str)


def test_interrupted_run_resumes_with_its_recorded_replies(tmp_path: Path) -> None:
    left = [2]

    def answer(request: dict[str, Any]) -> Answer:
        left[0] -= 1
        return look_and_count(request) if left[0] >= 0 else error_answer(401, "no key")

    with serve_endpoint(answer) as fake:
        assert evaluate(flags(tmp_path, *fake.flags, "--pictures", "2")) == 1
        left[0] = 10
        assert evaluate(flags(tmp_path, *fake.flags, "--pictures", "2")) == 0
        assert len(fake.requests) == 3 + 2  # two recorded replies are played again
        assert evaluate(flags(tmp_path, *fake.flags, "--pictures", "1")) == 2  # another run
    assert read_run(tmp_path)[0].success


def test_pictures_in_python(tmp_path: Path) -> None:
    with serve_endpoint(look_and_count) as fake:
        endpoint = EndpointSettings(base_url=fake.base_url)
        report = evaluate_in_python("openai:tiny-1", ENV, out=tmp_path, task=[GOAL], pictures=1, endpoint=endpoint)
    assert report.success.mean == 1


def test_collected_data_has_its_pictures(tmp_path: Path) -> None:
    out = tmp_path / "data"
    task = ["--env", ENV, "--split", "test", "--task", GOAL, "--policy", "oracle", "--pictures", "1"]
    assert collect([*task, "--out", str(out)]) == 0
    assert collect([*task, "--out", str(tmp_path / "one" / "file.jsonl")]) == 0
    for path, folder in ((out / "count" / "test.jsonl", out), (tmp_path / "one" / "file.jsonl", tmp_path / "one")):
        record = json.loads(path.read_text())
        found = [ScreenshotStore(folder / "pictures").get(turn["picture"]) for turn in record["turns"]]
        assert [squares(pixels(file.read_bytes())) for file in found if file] == [0, 1, 2, 3]
    assert len(list((out / "pictures").glob("*.png"))) == len(list((out / "pictures").glob("*.json"))) == 4


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (["--env", TEXT_ENV, "--pictures", "1"], "has no screenshots with these options, .* leave out --pictures"),
        (["--env", TEXT_ENV, "--agent", "react+pictures"], "leave out the habit pictures of --agent"),
        (["--env", ENV, "--pictures", "1", "--options", "screenshot=False"], "has no screenshots with these options"),
    ],
)
def test_wrong_requests_for_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], complaint: str
) -> None:
    assert evaluate(["--policy", "openai:tiny-1", "--out", str(tmp_path / "out"), *asked]) == 2
    assert re.search(complaint, " ".join(capsys.readouterr().err.split()))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"pictures": 0}, "--pictures must be at least 1, not 0"),
        ({"pictures": 1, "agent": "react+pictures"}, "leave out --pictures"),
        ({"pictures": 1, "harness": HarnessSettings(harness_command="x")}, "leave them out: --pictures"),
    ],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        EvaluateSettings(env=(ENV,), policy=("openai:tiny-1",), **settings)


def test_policy_that_sees_no_pictures_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(flags(tmp_path, "--policy", "counting_policy:CountingPolicy", "--pictures", "1")) == 2
    assert "doesn't see pictures. Leave out --pictures, or choose one that does" in " ".join(
        capsys.readouterr().err.split()
    )


def test_endpoint_that_takes_no_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_endpoint(lambda _: error_answer(400, "tiny-1 is not a multimodal model")) as fake:
        assert evaluate(flags(tmp_path, *fake.flags, "--pictures", "1")) == 1
    assert "If the model doesn't see pictures, leave out --pictures." in " ".join(capsys.readouterr().err.split())
