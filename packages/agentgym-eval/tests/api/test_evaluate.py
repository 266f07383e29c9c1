"""Tests of `agentgym_eval.evaluate` and `collect` as functions."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import agentgym_eval
import gymnasium
import numpy as np
import pytest
from agentgym_envs import Policy, Reply, TurnContext, make
from agentgym_eval import collect, evaluate
from agentgym_eval.cli.main import collect as collect_command
from agentgym_eval.cli.main import evaluate as evaluate_command
from agentgym_eval.policies.harness import HarnessSettings
from agentgym_eval.util.errors import RunStopped, UsageError
from counting_policy import CountingPolicy
from counting_world import ENV, Count
from fake_endpoint import completion_answer, serve_endpoint


class Interrupting(Policy):
    """Plays like `CountingPolicy`, and is interrupted at the nth reply."""

    name = "counter"

    def __init__(self, at: int) -> None:
        self._left, self._counting = at, CountingPolicy()

    async def reply(self, context: TurnContext) -> Reply:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt
        return await self._counting.reply(context)


def lines(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return sorted(({**line, "seconds": 0} for line in read), key=lambda line: (line["task_id"], line["sample"]))


def test_an_object_is_played_silently_and_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policy, handler = CountingPolicy(), signal.getsignal(signal.SIGTERM)
    report = evaluate(policy, ENV, out=tmp_path / "run", samples=4, k=(1, 4))
    assert capfd.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGTERM) == handler
    assert policy.close_count == 0
    assert (report.policy, report.env, report.folder) == ("counter", ENV, tmp_path / "run")
    assert report.success.low < report.success.mean == report.pass_at[1].mean < report.pass_at[4].mean
    assert report.pass_hat[4].mean < report.success.mean
    assert list(report.metrics.by_category) == ["few", "many"]
    titles = ["Results", "By category", "By difficulty", "Why episodes failed", "How episodes ended"]
    assert [table.title for table in report.tables] == titles
    played = list(report.episodes())
    assert (len(played), played[10].sample, played[10].task_id) == (40, 1, "count/test/0")
    assert report.settings["samples"] == 4
    assert report.to_dict() == json.loads((tmp_path / "run/report.json").read_text())
    assert report.markdown() == (tmp_path / "run/report.md").read_text()
    assert report.html().startswith("<!DOCTYPE html>") or "<html" in report.html()
    assert "<svg" in report.html()


def test_function_and_command_play_the_same_run(tmp_path: Path) -> None:
    function = evaluate("oracle:0.5", ENV, out=tmp_path / "function", tasks=6, horizon=20, options={"pause": 0.0})
    flags = "--tasks 6 --horizon 20 --options pause=0.0 --out"
    assert evaluate_command(["--env", ENV, "--policy", "oracle:0.5", *flags.split(), str(tmp_path / "command")]) == 0
    assert lines(tmp_path / "function") == lines(tmp_path / "command")
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("function", "command")]
    assert runs[0]["settings"] == runs[1]["settings"]
    assert len(list(function.episodes())) == 6


def test_an_interrupted_call_is_resumed_by_the_same_call(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate(Interrupting(at=12), ENV, out=tmp_path / "resumed", slots=1)
    kept = len(lines(tmp_path / "resumed"))
    assert 0 < kept < 10
    asked = Interrupting(at=1_000)
    evaluate(asked, ENV, out=tmp_path / "resumed", slots=1)
    evaluate(CountingPolicy(), ENV, out=tmp_path / "whole", slots=1)
    assert lines(tmp_path / "resumed") == lines(tmp_path / "whole")
    assert 1_000 - asked._left < sum(len(episode["turns"]) for episode in lines(tmp_path / "whole"))
    with pytest.raises(UsageError, match="was played with seed 0, not 1"):
        evaluate(CountingPolicy(), ENV, out=tmp_path / "whole", seed=1)
    assert len(list(evaluate(CountingPolicy(), ENV, out=tmp_path / "whole", slots=1, samples=2).episodes())) == 20


def counting(*, pause: float = 0.0) -> gymnasium.Env[str, str]:
    return make(ENV, pause=pause, max_episode_steps=50)


@pytest.mark.parametrize("factory", [Count, counting], ids=["class", "function"])
def test_environments_are_made_by_a_class_or_a_function(tmp_path: Path, factory: Any) -> None:
    before = set(gymnasium.registry)
    report = evaluate("oracle", factory, out=tmp_path, tasks=4, horizon=60, options={"pause": 0.0})
    assert report.success.mean == 1.0
    assert report.env == f"factory/{factory.__name__}-v0"
    assert {episode.env for episode in report.episodes()} == {"counting/Count-v0"}
    assert set(gymnasium.registry) - before <= {"counting/Count-v0"}
    assert evaluate("oracle", factory, out=tmp_path, tasks=4, horizon=60, options={"pause": 0.0}).success.mean == 1.0


def test_a_running_event_loop_as_in_notebooks_is_no_obstacle(tmp_path: Path) -> None:
    async def cell() -> None:
        assert evaluate(CountingPolicy(), ENV, out=tmp_path / "a", tasks=3).metrics.overall.episodes == 3
        with pytest.raises(KeyboardInterrupt):
            evaluate(Interrupting(at=5), ENV, out=tmp_path / "b")

    asyncio.run(cell())


def test_progress_and_warnings_are_shown_on_request(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    broken = {"broken": (2, 5)}
    with caplog.at_level(logging.WARNING, logger="agentgym_eval"):
        report = evaluate("oracle", ENV, out=tmp_path / "a", options=broken)
    assert [message.partition(",")[0] for message in caplog.messages] == ["2 of 10 episodes failed"]
    assert report.metrics.overall.failed == 2
    assert "Traceback" not in capfd.readouterr().err
    evaluate("oracle", ENV, out=tmp_path / "b", progress=True)
    assert "oracle in counting_world:counting/Count-v0: 10 episodes" in capfd.readouterr().err


def test_endpoint_variables_are_those_that_are_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with serve_endpoint(lambda _: completion_answer("Action: stop")) as endpoint:
        variables = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "sk-mine"}
        report = evaluate("openai:fake", ENV, out=tmp_path, tasks=2, environment=variables)
    assert report.usage["requests"] == 2
    loaded = agentgym_eval.load_run(tmp_path)
    assert isinstance(loaded, agentgym_eval.Report)
    assert loaded.usage == report.usage


class Nameless(Policy):
    async def reply(self, context: TurnContext) -> Reply:
        return Reply("Action: stop")


class Stopper:
    """An object that isn't a `Policy`."""

    name = "stopper"

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    async def reply(self, context: TurnContext) -> str:
        return "Action: stop"

    def forget(self, key: int) -> None:
        self.forgotten.append(key)


def stop(context: TurnContext) -> Reply:
    return Reply("Action: stop")


async def shout(context: TurnContext) -> Any:
    return len(context.conversation)


def test_any_object_with_a_reply_is_a_policy_and_so_is_a_function(tmp_path: Path) -> None:
    stopper = Stopper()
    played = {
        policy: evaluate(policy, ENV, out=tmp_path / policy.__class__.__name__, tasks=3) for policy in (stopper, stop)
    }
    for policy, report in played.items():
        assert [turn.reply.text for episode in report.episodes() for turn in episode.turns] == ["Action: stop"] * 3
        assert {episode.policy for episode in report.episodes()} == {"stopper" if policy is stopper else "stop"}
    assert len(stopper.forgotten) == 3
    assert collect(stop, ENV, out=tmp_path / "data.jsonl", tasks=2).card.total.kept == 2


def test_a_reply_that_is_no_text_raises_an_error_with_the_policys_name(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="The policy shout returned 2, which is neither a text nor a Reply"):
        evaluate(shout, ENV, out=tmp_path, tasks=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("orcale", ENV), "There is no policy 'orcale'. Did you mean oracle?"),
        ((lambda context: "Action: stop", ENV), "is not a policy: pass a name"),
        ((Nameless(), ENV), "is not a policy: pass a name"),
        ((Stopper, ENV), "is not a policy: pass a name"),
        ((7, ENV), "is not a policy: pass a name"),
        ((json, ENV), "is not a policy: pass a name"),
        (("oracle", "TextKraft"), "There is no environment 'TextKraft'. Did you mean"),
        (("oracle", Count()), "pass the class or a function instead of an instance"),
        (("oracle", 7), "7 is not a name of an environment"),
    ],
)
def test_wrong_arguments_raise_errors_that_help(arguments: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        evaluate(*arguments, out=tmp_path / "run")
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "error", "sentence"),
    [
        ({"taks": 2}, TypeError, "There is no option 'taks'. Did you mean tasks?"),
        ({"tasks": "2"}, TypeError, "The option tasks must be of type int, not str: '2'."),
        ({"slots": True}, TypeError, "The option slots must be of type int, not bool: True."),
        ({"temperature": None}, TypeError, "The option temperature must be of type float, not NoneType: None."),
        ({"task": "a/1"}, TypeError, "The option task must be a list or tuple of strings, not 'a/1'."),
        ({"split": "tset"}, UsageError, "split must be train, dev or test, not 'tset'."),
        (
            {"options": ["depth=(2,2)"]},
            TypeError,
            "The option options must be a dict, such as {'depth': (2, 2)}, not ['depth=(2,2)'].",
        ),
    ],
)
def test_options_of_other_names_or_types_are_refused(
    option: Any, error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        evaluate("oracle", ENV, out=tmp_path / "run", **option)
    assert sentence in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_count_as_numbers(tmp_path: Path) -> None:
    options: Any = {"tasks": np.int64(2), "temperature": np.float32(0.5), "max_failed": 1}
    evaluate("oracle", ENV, out=tmp_path, **options)
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["tasks"] == 2


def test_options_that_a_run_folder_cannot_record_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="option note is of type PosixPath, which a run folder can't record"):
        evaluate("oracle", ENV, out=tmp_path / "run", options={"note": Path("note")})
    with pytest.raises(UsageError, match="no option 'paus'"):
        evaluate("oracle", ENV, out=tmp_path / "run", options={"paus": 1})


def test_collected_data_is_that_of_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = collect("oracle", ENV, out=tmp_path / "function.jsonl", tasks=5)
    assert capfd.readouterr() == ("", "")
    flags = ["--env", ENV, "--policy", "oracle", "--tasks", "5", "--out", str(tmp_path / "command.jsonl")]
    assert collect_command(flags) == 0
    read = [
        [{**json.loads(line), "seconds": 0} for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("function", "command")
    ]
    assert read[0] == read[1]
    assert found.card.total.kept == len(list(found.episodes())) == 5
    assert not (tmp_path / "function.jsonl.partial").exists()


def test_several_environments_are_collected_into_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = collect("oracle", [counting, "textcraft"], out=tmp_path / "data", tasks=2, keep="success")
    assert found.path.is_dir()
    assert found.card.total.played == 4
    assert len(list(found.episodes())) == found.card.total.kept
    assert caplog.messages == []
    with pytest.raises(UsageError, match="exists already"):
        collect("oracle", [counting, "textcraft"], out=tmp_path / "data", tasks=2)
    with pytest.raises(UsageError, match="keep must be all or success, not 'sucess'"):
        collect("oracle", ENV, out=tmp_path / "no", keep="sucess")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="collect takes no harness"):
        collect("oracle", ENV, out=tmp_path / "no", harness=HarnessSettings())


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys, agentgym_eval\n"
        "assert not {'gymnasium', 'numpy', 'agentgym_eval.api'} & set(sys.modules)\n"
        "assert callable(agentgym_eval.evaluate)\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'starlette'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        agentgym_eval.evaluat  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
