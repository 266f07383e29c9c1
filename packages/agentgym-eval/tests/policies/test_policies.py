"""Tests of the policies of the package: oracle, random, scripted, and policies from entry points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentgym_envs import EnvFault, EpisodeSpec, Policy, Reply, TurnContext, play
from agentgym_envs.agents.agent import Agent
from agentgym_envs.agents.formats import Bare, ReAct
from agentgym_eval.policies import policies
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.runs.run import open_run
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError
from counting_world import ENV, Count

pytestmark = pytest.mark.quick

SETTINGS: dict[str, Any] = {"temperature": 1.0, "seed": 0, "max_tokens": 8}


def build(spec: str) -> Policy:
    return find_policy(spec)(**SETTINGS)


def actions(spec: str, *, goal: int = 9, sample: int = 0, **options: Any) -> list[str | None]:
    env: Any = ReAct(gymnasium.wrappers.TimeLimit(Count(**options), 12))
    episode = play(env, build(spec), EpisodeSpec(f"count/test/{goal}", sample, 0, "test"))
    return [turn.action for turn in episode.turns]


def test_oracle_succeeds_in_the_reply_format_of_the_wrapper() -> None:
    episode = play(ReAct(Count()), build("oracle"), EpisodeSpec("count/test/2"))
    assert episode.success
    assert episode.turns[0].reply == Reply("Thought: \nAction: add")


class CountWithThoughts(Count):
    def oracle_thought(self) -> str:
        return f"I am at {self._count} of {self._goal}."


def test_oracle_thoughts_are_part_of_its_replies() -> None:
    replies = [
        turn.reply.text for turn in play(ReAct(CountWithThoughts()), build("oracle"), EpisodeSpec("count/test/1")).turns
    ]
    assert replies == ["Thought: I am at 0 of 1.\nAction: add", "Thought: I am at 1 of 1.\nAction: stop"]


def test_random_actions_have_a_fixed_thought() -> None:
    episode = play(
        ReAct(gymnasium.wrappers.TimeLimit(CountWithThoughts(), 3)), build("oracle:1"), EpisodeSpec("count/test/2")
    )
    thoughts = {turn.reply.text.partition("\n")[0] for turn in episode.turns}
    assert thoughts == {"Thought: I try something at random."}


def test_thoughts_are_not_requested_if_the_format_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "oracle_thought", lambda self: pytest.fail("the thought was requested"))
    episode = play(Bare(Count()), build("oracle"), EpisodeSpec("count/test/1"))
    assert [turn.reply.text for turn in episode.turns] == ["add", "stop"]


def test_oracle_noise_is_the_share_of_random_actions() -> None:
    assert actions("oracle:0") == actions("oracle")
    firsts = [actions("oracle:0.5", sample=i)[0] for i in range(400)]
    assert 0.25 - 0.07 < firsts.count("stop") / 400 < 0.25 + 0.07  # half of the random half
    assert build("oracle:0.5").name == "oracle:0.5"
    assert build("oracle:0").name == "oracle"


def test_random_actions_of_a_noisy_oracle_are_marked() -> None:
    env = ReAct(gymnasium.wrappers.TimeLimit(Count(), 12))
    for sample in range(20):
        turns = play(env, build("oracle:0.5"), EpisodeSpec("count/test/1", sample)).turns
        assert [turn.reply.noise for turn in turns] == ["at random" in turn.reply.text for turn in turns]
    assert not any(turn.reply.noise for turn in play(env, build("random"), EpisodeSpec("count/test/1")).turns)


def test_random_policy_is_deterministic_per_attempt() -> None:
    assert actions("random", sample=1) == actions("random", sample=1)
    assert len({tuple(actions("random", sample=i)) for i in range(10)}) > 1


def test_random_policy_needs_available_actions() -> None:
    with pytest.raises(UsageError, match="counting/Count-v0 lists no available actions"):
        actions("random", listed=False)


@pytest.mark.parametrize(
    ("policy", "lacking", "message"),
    [
        ("random", "lists_actions", "counting/Count-v0 lists no available actions here"),
        ("oracle:0.5", "lists_actions", "counting/Count-v0 lists no available actions here"),
        ("oracle", "has_oracle", "counting/Count-v0 has no expert, so oracle can't play it"),
    ],
)
def test_unplayable_environments_are_refused_before_they_start(
    policy: str, lacking: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Count, lacking, False)
    monkeypatch.setattr(Count, "reset", lambda *_, **__: pytest.fail("the environment was started"))
    settings = PlaySettings(env=ENV, policy=policy)
    with open_run(settings, tmp_path / "run") as run, pytest.raises(UsageError, match=message):
        next(run.play())


@pytest.mark.parametrize(
    ("lacking", "remedy"),
    [
        ((), "play oracle or scripted:FILE."),
        (
            ("lists_actions",),
            "give --options listed=True (for train, --world.options), or play oracle or scripted:",
        ),
        (("lists_actions", "has_oracle"), "give --options listed=True (for train, --world.options), or play scripted:"),
        (("actions_option", "lists_actions", "has_oracle"), "play scripted:FILE or a model."),
    ],
)
def test_refusal_of_random_names_what_the_environment_has(
    lacking: tuple[str, ...], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Count, "actions_option", "listed=True")
    for name in lacking:
        monkeypatch.setattr(Count, name, False)
    with pytest.raises(UsageError) as error:
        actions("random", listed=False)
    sentence = "counting/Count-v0 lists no available actions here, so none can be drawn: "
    assert str(error.value).startswith(sentence + remedy)


def test_script_is_played_in_order_and_its_last_line_repeats(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("add\n\n  jump \nadd\n")
    assert actions(f"scripted:{script}") == ["add", "jump", *["add"] * 10]


class CountWithReasons(Count):
    """An environment whose expert has thoughts and plans."""

    def oracle_thought(self) -> str:
        return f"{self._goal - self._count} to go."

    def oracle_plan(self) -> str:
        return f"Add {self._goal - self._count} times, then stop."


def non_action_replies(
    spec: str, habits: str, env_class: type[Count] = CountWithReasons, goal: int = 3
) -> list[tuple[str, str]]:
    """Return the kind and text of each reply that is not an action."""
    env: Any = Agent.parse(f"bare{habits}").wrap(gymnasium.wrappers.TimeLimit(env_class(), 4))
    episode = play(env, build(spec), EpisodeSpec(f"count/test/{goal}", 0, 0, "test"))
    return [(turn.kind, turn.reply.text) for turn in episode.turns if turn.kind != "act"]


def test_oracle_plans_reflects_and_summarizes_with_its_reasons() -> None:
    assert non_action_replies("oracle", "+plan:2+reflect:2+window:1", goal=3) == [
        ("plan", "Add 3 times, then stop."),
        ("reflect", "After 2 actions the goal is not reached. I will go on. 1 to go."),
        ("plan", "Add 1 times, then stop."),
        (
            "summary",
            "I have played 2 actions, and the goal is not reached.\n"
            "My last actions:\n- add: Count: 1.\n- add: Count: 2.\nAdd 1 times, then stop.",
        ),
    ]
    assert ("reflect", "I did not reach the goal. I will try again.") in non_action_replies("oracle", "+retry", goal=9)


@pytest.mark.parametrize("spec", ["oracle", "random", "scripted"])
def test_policies_without_reasons_give_generic_replies(spec: str, tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("add\n")
    replies = non_action_replies(
        f"scripted:{script}" if spec == "scripted" else spec, "+plan+reflect:1+window:1+retry", Count, 9
    )
    assert {kind for kind, _ in replies} >= {"plan", "reflect"}
    assert all(text.endswith(".") for _, text in replies)
    assert all("add" not in text for kind, text in replies if (spec, kind) != ("oracle", "summary"))


def test_script_restarts_in_each_trial_and_continues_past_a_window(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("add\njump\nadd\nstop\n")
    env: Any = Agent.parse("bare+plan+window:1+retry").wrap(Count())
    episode = play(env, build(f"scripted:{script}"), EpisodeSpec("count/test/9"))
    actions = [turn.action for turn in episode.turns if turn.kind == "act"]
    assert actions == ["add", "jump", "add", "stop"] * 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EnvFault("jammed"), "EnvFault: jammed"),
        (LookupError("no way"), "EnvFault: counting/Count-v0 raised LookupError: no way (test_policies.py, line "),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("method", ["oracle", "oracle_thought"])
def test_errors_of_an_expert_fail_the_episode(
    method: str, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Count) -> str:
        raise error

    monkeypatch.setattr(Count, method, failing)
    episode = play(ReAct(Count()), build("oracle"), EpisodeSpec("count/test/2"))
    assert episode.stop == "failed"
    assert str(episode.error).startswith(message)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("orcale", r"no policy 'orcale'. Did you mean oracle\? There are: oracle, oracle:NOISE, random, scripted:FILE"),
        ("oracle:2", "number from 0 to 1"),
        ("oracle:much", "number from 0 to 1"),
        ("random:3", "takes no argument"),
        ("scripted:/nowhere/at/all", "can't be read"),
        ("scripted", "scripted needs a file: write --policy scripted:FILE"),
        ("nomod:f", "The module of the policy nomod:f can't be imported: No module named 'nomod'."),
        ("oracel:0.3", r"There is no policy 'oracel:0.3'. Did you mean oracle\?"),
        ("nomod", "There is no policy 'nomod'."),
        ("openai:", "openai needs a model"),
    ],
)
def test_invalid_names_and_arguments_are_rejected_with_advice(spec: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        find_policy(spec)  # before anything is built


def test_empty_script_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UsageError, match="holds no action"):
        build(f"scripted:{tmp_path / 'empty.txt'}")


class FakeEntryPoint:
    """An installed entry point, or one whose import fails."""

    def __init__(self, name: str, factory: Any) -> None:
        self.name, self._factory = name, factory

    def load(self) -> Any:
        if isinstance(self._factory, Exception):
            raise self._factory
        return self._factory


class Echo(Policy):
    def __init__(self, argument: str, **settings: Any) -> None:
        self.name, self.settings = argument, settings

    async def reply(self, context: TurnContext) -> Reply:
        return Reply("stop")


def test_policies_of_other_packages_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        policies, "entry_points", lambda group: [FakeEntryPoint("echo", Echo)] if group == policies.GROUP else []
    )
    policy: Any = build("echo:a/b:c")
    assert (policy.name, policy.settings) == ("a/b:c", SETTINGS)
    with pytest.raises(UsageError, match=r"Did you mean echo\?.*echo:ARGUMENT"):
        build("ecko:x")
    monkeypatch.setattr(
        policies, "entry_points", lambda group: [FakeEntryPoint("echo", lambda argument, **_: object())]
    )
    with pytest.raises(UsageError, match="echo:x is no policy: an object of type object is neither"):
        build("echo:x")


def test_missing_packages_and_failed_builds_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        policies, "entry_points", lambda group: [FakeEntryPoint("hf", ImportError("No module named 'torch'"))]
    )
    with pytest.raises(UsageError, match="hf:x can't be built: No module named 'torch'"):
        build("hf:x")
    monkeypatch.setattr(policies, "entry_points", lambda group: [])
    with pytest.raises(UsageError, match=r"hf:x comes with agentgym-trainer, .* uv sync"):
        build("hf:x")


MINE = """
from agentgym_envs import Policy, Reply
class Mine(Policy):
    name = "mine"
    def __init__(self, argument="none", **settings):
        self.argument, self.settings = argument, settings
    async def reply(self, context):
        return Reply("stop")
class Plain(Policy):
    name = "plain"
    async def reply(self, context):
        return Reply("stop")
class box:
    ready = Plain()
def nothing(argument, **settings):
    return argument
def broken(argument, **settings):
    raise OSError("no such file")
def looks_up(argument, **settings):
    return {}[argument]
class Nameless(Policy):
    async def reply(self, context):
        return Reply("stop")
class Duck:
    name = "duck"
    def reply(self, context):
        return "stop"
    __call__ = reply
duck = Duck()
def says_stop(context):
    return "stop"
async def waits(context):
    return Reply("stop")
"""


def replied(policy: Policy) -> Reply:
    """Return the reply of a policy that waits for nothing."""
    context: Any = None
    with pytest.raises(StopIteration) as ended:
        policy.reply(context).send(None)
    return ended.value.value


def test_policies_are_named_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_policies.py").write_text(MINE)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    policy: Any = build("my_policies:Mine:a:b")
    assert (policy.argument, policy.settings) == ("a:b", SETTINGS)
    assert build("my_policies:Plain").name == "plain"
    assert build("my_policies:box.ready") is build("my_policies:box.ready")
    others = ("my_policies:Duck", "my_policies:duck", "my_policies:says_stop", "my_policies:waits")
    assert [build(spec).name for spec in others] == ["duck", "duck", "says_stop", "waits"]
    assert [replied(build(spec)) for spec in others] == [Reply("stop")] * 4
    for spec, sentence in {
        "my_policies:Mien": "my_policies has no 'Mien'. Did you mean Mine?",
        "my_policies:nothing:x": "my_policies:nothing:x is no policy: an object of type str is neither",
        "my_policies:box.redy": "my_policies has no 'box.redy'.",
        "my_policies:broken": "my_policies:broken can't be built: no such file",
        "my_policies:looks_up:x": "my_policies:looks_up:x can't be built: it raised KeyError('x').",
        "my_policies:Nameless": "my_policies:Nameless has no name for reports: give the class Nameless a `name`",
        "my_policies:Plain:x": "my_policies:Plain:x can't be built: Plain() takes no arguments",
        "my_policies:says_stop:x": "my_policies:says_stop:x can't be built: says_stop() got an unexpected keyword",
        "my_broken:Mine": "ZeroDivisionError: division by zero (my_broken.py, line 1)",
        "my_polices:Mine": "The module of the policy my_polices:Mine can't be imported: No module named 'my_polices'.",
        "no.such.module:Mine": "can't be imported: No module named 'no'.",
    }.items():
        with pytest.raises(UsageError) as error:
            build(spec)
        assert sentence in str(error.value)
