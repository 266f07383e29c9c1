"""Tests that no secret in the documentation is written to a run folder, a message or a log."""

from __future__ import annotations

import json
import logging
import logging.config
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import vault_world
from agentgym_envs.cli.main import serve
from agentgym_envs.server.app import build_app
from agentgym_envs.server.logs import log_config
from agentgym_envs.server.settings import Settings
from agentgym_envs.util.redaction import is_secret, redact_logs
from agentgym_eval.cli.main import collect, evaluate
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import RLConfig, WorldConfig
from agentgym_trainer.config.serialization import to_json
from agentgym_trainer.run.folder import RunFolder
from starlette.testclient import TestClient

ROOT = Path(__file__).parents[1]
CANARY = "CANARYcanary42"
OPTIONS = {
    "accounts": f"{{'reddit': ('me', '{CANARY}'), 'gitlab': ('you', '{CANARY}')}}",
    "reset_hook": f"('reset', '--as', '{CANARY}')",
    "token": CANARY,
    "sites": f"shopping=http://me:{CANARY}@shop,reddit=http://me:{CANARY}@forum",
    "judge": f"model@http://me:{CANARY}@judge/v1?api_key={CANARY}",
    "retriever": f"http://:{CANARY}/{CANARY}@search:8000",
    "url": f"http://:{CANARY}@a:8000,http://:{CANARY}@b:8000?token={CANARY}",
    "api_key": CANARY,
}
"""Options of environments that take a secret."""
PAGES = {
    "docs/compat.md": {"url"},
    "docs/evaluation.md": {"OPENAI_API_KEY", "token"},
    "docs/howto/evaluate-an-api-model.md": {"OPENAI_API_KEY"},
    "docs/howto/serve.md": {"--token-file", "token"},
    "docs/howto/train-your-agent.md": {"OPENAI_API_KEY"},
    "docs/retrieval.md": {"retriever"},
    "docs/scale.md": {"--world.backend"},
    "docs/serving.md": {"--token-file", "url", "token"},
    "docs/training.md": {"WANDB_API_KEY", "token"},
    "docs/viewer.md": {"OPENAI_API_KEY"},
    "docs/worlds.md": {"accounts", "judge", "reset_hook", "sites"},
    "docs/webarena.md": {"accounts", "judge", "OPENAI_API_KEY", "reset_hook", "sites"},
}
"""Documents that mention secrets, with the names of these secrets."""
OTHER_SECRETS = {"OPENAI_API_KEY", "WANDB_API_KEY", "--token-file", "--world.backend"}
"""Secrets that aren't options of environments; the tests below set them, too."""
_MENTION = re.compile(r"API_KEY|TOKEN\b|PASSWORD|token[-_]file|Bearer|\$\{\w+\}|\btoken=|reset_hook")
_BODY = ("--base-url", f"http://me:{CANARY}@there/v1?key={CANARY}", "--body", f"api_key={CANARY}")


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set secrets in environment variables, and restore logging afterwards."""
    for name in ("OPENAI_API_KEY", "WANDB_API_KEY"):
        monkeypatch.setenv(name, CANARY)
    log = logging.getLogger("agentgym_envs")
    propagate = log.propagate
    yield
    log.handlers.clear()
    log.propagate = propagate


def options(**changes: str) -> list[str]:
    return [f"{name}={value}" for name, value in (OPTIONS | changes).items()]


def log_as_served() -> None:
    """Send logs to the captured stderr, as `serve` does."""
    logging.config.dictConfig(log_config())


def check_clean(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the captured output; assert that neither it nor any file has the canary."""
    out, err = capsys.readouterr()
    texts = {"stdout": out, "stderr": err}
    texts |= {str(path): path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()}
    assert [line for text in texts.values() for line in text.splitlines() if CANARY in line] == []
    return out + err


def test_all_pages_that_mention_secrets_are_listed() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    mentioning = {path.relative_to(ROOT).as_posix() for path in pages if _MENTION.search(path.read_text())}
    assert {page for page in mentioning if not page.startswith("docs/reference/")} == PAGES.keys()
    assert set().union(*PAGES.values()) <= OPTIONS.keys() | OTHER_SECRETS


def test_every_declared_secret_option_is_tested() -> None:
    assert OPTIONS.keys() >= vault_world.DECLARED > set()
    assert all(map(is_secret, vault_world.DECLARED))


def test_evaluate_writes_no_secrets_and_resumes_with_changed_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*more: str, **changes: str) -> int:
        arguments = ["--env", vault_world.ENV, "--policy", "oracle", "--out", str(tmp_path / "run"), *_BODY, *more]
        arguments += ["--options", *options(**changes)]
        monkeypatch.setattr("sys.argv", ["evaluate", *arguments])
        return evaluate(arguments)

    log_as_served()
    assert run() == 1  # one of three tasks fails with a message that has the options
    output = check_clean(tmp_path, capsys)
    assert "The vault is made with" in output
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert "accounts=***" in record["settings"]["options"]
    assert "retriever=http://***@search:8000" in record["settings"]["options"]
    assert "accounts=***" in record["command"]
    assert '"error":"EnvFault: The vault jammed' in (tmp_path / "run/episodes.jsonl").read_text()
    assert run(accounts=f"{{'reddit': ('me', '{CANARY}-changed')}}", token=f"{CANARY}-changed") == 1
    assert run(retriever=f"http://:{CANARY}@another:8000") == 2
    assert "retriever=http://***@another:8000" in check_clean(tmp_path, capsys)
    assert run("--max-failed", "0", accounts="${NOT_THERE}") == 2
    assert "The environment variable NOT_THERE is not set" in check_clean(tmp_path, capsys)


def test_collect_writes_no_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log_as_served()
    monkeypatch.setenv("ACCOUNTS", OPTIONS["accounts"])
    arguments = ["--env", vault_world.ENV, "--policy", "oracle", "--max-failed", "1", "--out", str(tmp_path / "data")]
    arguments += [*_BODY, "--options", *options(accounts="${ACCOUNTS}")]
    monkeypatch.setattr("sys.argv", ["collect", *arguments])
    assert collect(arguments) == 0
    check_clean(tmp_path, capsys)
    card = json.loads((tmp_path / "data/card.json").read_text())
    assert "accounts=${ACCOUNTS}" in card["command"]
    assert "token=***" in card["command"]


def test_training_accepts_variable_references_and_rejects_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["train", "--world.options", *options(), "--hub-token", CANARY])
    for name, value in OPTIONS.items():
        world = WorldConfig(env=vault_world.ENV, options=(f"{name}={value}",))
        with pytest.raises(UsageError, match=r"\*\*\*.* is a secret. Export it as an environment variable") as error:
            RunFolder.create(tmp_path / "rejected", RLConfig(world=world), "mine")
        assert CANARY not in str(error.value)
    with pytest.raises(UsageError, match=r"http://\*\*\*@a:8000"):
        RunFolder.create(tmp_path / "rejected", RLConfig(extra_worlds=(WorldConfig(backend=OPTIONS["url"]),)), "mine")
    assert not (tmp_path / "rejected").exists()
    world = WorldConfig(
        vault_world.ENV, ("accounts=${ACCOUNTS}", "depth=(2,3)"), backend="http://:${WORLD_TOKEN}@a:8000"
    )
    folder = RunFolder.create(tmp_path / "run", RLConfig(world=world), "mine")
    assert RunFolder.open(folder.path)[1].world == world
    assert CANARY not in json.dumps(to_json(RLConfig(world=world)))  # sent to experiment trackers
    check_clean(tmp_path, capsys)


def test_serve_prints_and_logs_no_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_as_served()
    token = tmp_path / "token"
    token.write_text(f"{CANARY} {CANARY}")
    token.chmod(0o600)
    invalid = [["--option", f"nowhere:{pair}"] for pair in options()]
    invalid += [["--token-file", str(token)], ["--retriever", f"https+http://me:{CANARY}@host"]]
    assert [serve(["--world", vault_world.ENV, "--port", "0", *flags]) for flags in invalid] == [2] * len(invalid)
    token.unlink()
    server_options = tuple(f"vault/Vault-v0:{pair}" for pair in options())
    app = build_app(Settings(world=(vault_world.ENV,), option=server_options))
    with TestClient(app, raise_server_exceptions=False) as client:
        session = client.post("/v1/sessions", json={"world": "vault/Vault-v0"}).json()["id"]
        responses = [
            client.post(f"/v1/sessions/{session}/reset", json={"task": "vault/test/1"}),
            client.post(f"/v1/sessions/{session}/reset", json={"task": "vault/test/0"}),
            client.post(f"/v1/sessions/{session}/step", json={"action": "kick"}),
        ]
    assert [response.status_code for response in responses] == [502, 200, 500]
    assert "The vault jammed" in responses[0].text
    assert CANARY not in "".join(response.text for response in responses)
    output = check_clean(tmp_path, capsys)
    assert "An environment violated its contract by raising RuntimeError" in output


def test_logs_without_handlers_are_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    assert logging.lastResort is not None
    redact_logs()
    record = logging.LogRecord("x", logging.WARNING, "", 0, "made with token=%s", (CANARY,), None)
    assert logging.lastResort.format(record) == "made with token=***"
