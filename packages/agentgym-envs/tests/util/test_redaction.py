"""Tests of what is redacted as a secret, and what isn't."""

from __future__ import annotations

import subprocess
import sys

import pytest
from agentgym_envs import TextEnv
from agentgym_envs.core.registration import WORLDS
from agentgym_envs.core.registry import world_class
from agentgym_envs.util.redaction import is_secret, redacted, redacted_option, redacted_words, resolved
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE


class Vault(TextEnv):
    """An environment that declares an option with an innocuous name as secret."""

    secret_options = frozenset({"vault_codes"})


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("token=CANARY", "token=***"),
        ("token=CANARY with = and spaces", "token=***"),
        ("--token=CANARY", "--token=***"),
        ("API-Key=CANARY", "API-Key=***"),
        ("webarena:wa_password=CANARY", "webarena:wa_password=***"),
        ("--world.options=token=CANARY", "--world.options=token=***"),
        ("agentgym/Remote-v0:token=CANARY", "agentgym/Remote-v0:token=***"),
        ("vault_codes={'a': ('me', 'CANARY)')}", "vault_codes=***"),
        ("mine:vault_codes=('CANARY', \"CANARY\")", "mine:vault_codes=***"),
        ("url=http://CANARY@host:8000/x", "url=http://***@host:8000/x"),
        ("url=http://me:CANARY@host", "url=http://***@host"),
        ("url=http://:CANARY@a:1,https://:CANARY@b:2", "url=http://***@a:1,https://***@b:2"),
        ("retriever=http://user:CAN/ARY@host/retrieve", "retriever=http://***@host/retrieve"),
        ("retriever=http://user:C@N?A#RY@host", "retriever=http://***@host"),
        ("url=http://h/?a=b&token=CANARY&c=d#e", "url=http://h/?a=b&token=***&c=d#e"),
        ("url=http://h/?key=CANARY", "url=http://h/?key=***"),
        ("judge=gpt@http://me:CANARY@h/v1?api_key=CANARY", "judge=gpt@http://***@h/v1?api_key=***"),
        (
            "sites=shopping=http://u:CANARY@h,reddit=http://u:CANARY@h2",
            "sites=shopping=http://***@h,reddit=http://***@h2",
        ),
        ("key=CANARY", "key=***"),
        ("secret_key=CANARY", "secret_key=***"),
        ("SECRET_KEY=CANARY", "SECRET_KEY=***"),
        ("accessToken=CANARY", "accessToken=***"),
        ("url=http://h/?X-Amz-Signature=CANARY&a=b", "url=http://h/?X-Amz-Signature=***&a=b"),
        ('body={"api_key":CANARY,"n":[1]}', 'body={"api_key":***,"n":[1]}'),
        ("url=//u:CAN/ARY@h", "url=//***@h"),
        ("url=http://u:12345/CANARY@shop.example.org/x", "url=http://***@shop.example.org/x"),
        ("url=http://u:1/2/CANARY@10.0.0.7", "url=http://***@10.0.0.7"),
        ("url=http://u:123/CANARY@shop:8000", "url=http://***@shop:8000"),
        ("url=http://CAN/ARY@localhost", "url=http://***@localhost"),
        ('headers={"token": "CAN"ARY", "n": 1}', 'headers={"token": ***, "n": 1}'),
        ("headers={'token': 'CAN'ARY', 'n': 1}", "headers={'token': ***, 'n': 1}"),
        ('headers={"token": ${A}CANARY}', 'headers={"token": ***}'),
    ],
)
def test_secrets_in_options_are_redacted(option: str, shown: str) -> None:
    assert redacted_option(option) == shown
    assert redacted_option(shown) == shown


@pytest.mark.parametrize(
    "option",
    [
        "depth=(2,3)",
        "max_tokens=512",
        "tokens=a@b",
        "token_file=secrets/token",
        "keys=3",
        "url=http://127.0.0.1:8000",
        "sites=shopping=http://h:1,reddit=http://h:2",
        "judge=gpt@http://h/v1",
        "name=a=b",
        "token=${WORLD_TOKEN}",
        "vault_codes=${CODES}",
        'chat_template_kwargs={"add_eos_token":false,"enable_thinking":true}',
        'kwargs={"eos_token": "</s>", "pad_token": null, "nextToken": "2", "stop_tokens": []}',
        'kwargs={"add_token":false,"use_token": true,"other_token":null}',
        "eos_token=</s>",
        "max_token=5",
        "url=https://h/@scope/pkg",
        "url=//localhost:8000/a@b",
        "url=//localhost:8000/a@b.example.org",
        "url=http://127.0.0.1:8000/users/a@b.example.org",
        "url=http://www.example.org:8000/users/a@b.example.org",
        "url=http://registry:5000/image@sha256:12ab",
        "url=http://registry:5000/package@1.2.3",
        "url=http://forge/package@v1.2.rc",
        "url=http://forge/team/project@main",
        'headers={"token": ${A}, "key": "${B}"}',
        "url=http://h:8000/x?email=a@b.c",
        "url=http://[::1]:8000?email=a@b.c",
        "url=http://:${WORLD_TOKEN}@host:8000",
        "url=http://me:${WORLD_TOKEN}@host?token=${WORLD_TOKEN}",
    ],
)
def test_options_without_secrets_are_unchanged(option: str) -> None:
    assert redacted_option(option) == option


@pytest.mark.parametrize(
    "option", ["token=${A}x", "url=http://:${A}x@host", "vault_codes={'a': '${A}', 'b': 'CANARY'}"]
)
def test_text_around_references_is_redacted(option: str) -> None:
    assert "***" in redacted_option(option)
    assert "CANARY" not in redacted_option(option)


def test_secrets_in_command_lines_are_redacted() -> None:
    words = ["train", "--token", "CANARY", "--api-key=CANARY", "--token-file", "f", "--options", "token=CANARY", "a=b"]
    shown = ["train", "--token", "***", "--api-key=***", "--token-file", "f", "--options", "token=***", "a=b"]
    assert redacted_words(words) == shown
    assert redacted_words(["--token", "${T}", "--token", "--tiny"]) == ["--token", "${T}", "--token", "--tiny"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'vault_codes': {'a': ('me', 'CANARY')}, 'n': 1}", "{'vault_codes': ***"),
        (repr("made with\ntoken=CANARY\n\tvault_codes='CANARY'"), r'"made with\ntoken=***'),
        ('{"password": 123456, "n": 1}', '{"password": ***, "n": 1}'),  # a secret may consist of digits
        ('{"token": "CANARY", "n": 1}', '{"token": ***, "n": 1}'),
        (
            'go on: evaluate --options \'vault_codes={"a": "CANARY"}\' --out x',
            "go on: evaluate --options 'vault_codes=***' --out x",
        ),
        ("ConnectError: http://:CANARY@host:1/retrieve is away", "ConnectError: http://***@host:1/retrieve is away"),
        ("{'Authorization': 'Bearer CANARYCANARY'}", "{'Authorization': ***}"),
        ("sent Authorization: Basic CANARYCANARY==", "sent Authorization: Basic ***"),
        ("train --hub-token CANARY --seed 1", "train --hub-token *** --seed 1"),
        (r'{"api_key": "CAN\"ARY", "n": "a"}', '{"api_key": ***, "n": "a"}'),
        (r"{'api_key': 'CAN\'ARY', 'n': 'a'}", "{'api_key': ***, 'n': 'a'}"),
        ('{"accessToken": "CANARY"}', '{"accessToken": ***}'),
        ('{"n": 1, "api_key": "CAN,ARY CANARY', '{"n": 1, "api_key": ***'),
        ("{'vault_codes': {'a':'CANARY','b', 'CANARY", "{'vault_codes': ***"),
        ("eos_token=a,token=CANARY", "eos_token=a,token=***"),
        ("sent X-Api-Key: CANARY to it", "sent X-Api-Key: *** to it"),
        (
            "curl -H 'x-api-key: CANARY' -H \"Private-Token: CANARY\"",
            "curl -H 'x-api-key: ***' -H \"Private-Token: ***\"",
        ),
        ("X-Auth-Token: ${A}CANARY", "X-Auth-Token: ***"),
        ("Api-Key: CANARY\nHost: h", "Api-Key: ***\nHost: h"),
        ("Authorization: Token CANARYCANARY and more", "Authorization: Token *** and more"),
        ("Authorization: Odd CANARYCANARY", "Authorization: Odd ***"),
        ("Authorization: Odd CANARY12 and more", "Authorization: Odd *** and more"),
        ("Authorization=Bearer CANARYCANARY", "Authorization=*** ***"),
        ("Authorization: CANARY", "Authorization: ***"),
        ("Authorization: CANARY12 and more", "Authorization: *** and more"),
        ("curl -H 'Authorization: CANARY' h", "curl -H 'Authorization: ***' h"),
        ("at http://h/@a then http://me:CANARY@h/a", "at http://h/@a then http://***@h/a"),
    ],
)
def test_secrets_in_texts_are_redacted(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "A token is required: send Authorization: Bearer TOKEN, or use HTTP basic with the token as password.",
        "--body 'x' is not of the form KEY=VALUE, such as reasoning_effort=low.",
        "see http://127.0.0.1:8000/v1 (mail a@b), --max-tokens 5, --token-file token",
        "Authorization: whatever the server takes, such as a token: see there. An api-key: nothing else.",
        "Authorization: ${KEY}",
        "a header 'Authorization: Bearer'",
        "The signature: a token, which x-rays and --api-key: need. X-Api-Key: ${KEY}",
        "The key 'k' was used for another session; use a new key.",
    ],
)
def test_prose_is_unchanged(text: str) -> None:
    assert redacted(text) == text


_NOISE = st.text(st.sampled_from("-/@:=?&'\"({ token\n"), max_size=200)


@given(_NOISE, _NOISE)
def test_secrets_are_redacted_in_any_surrounding_text(before: str, after: str) -> None:
    for secret in ("token=CANARY", "http://me:CANARY@host", "--token CANARY", "Authorization: Bearer CANARYCANARY"):
        assert "CANARY" not in redacted(f"{before} {secret} {after}")


_REPETITIVE = [
    *(("", unit) for unit in ("/", "-", "a-", "//a", "token=(", "?a=", "aB", "x-", "//a/b", "authorization: ")),
    ("//a:1/", "b"),
    ("", "//:"),
    ("//:" * 2_000, "a"),
    ("", "//:" * 200 + "a://abc@"),
    ("", "//:" * 200 + " @"),
]
"""Texts on which a pattern could backtrack for long: a beginning, and what is repeated after it."""


@pytest.mark.parametrize(("beginning", "unit"), _REPETITIVE)
def test_repetitive_text_never_grows(beginning: str, unit: str) -> None:
    text = beginning + unit * 1_000
    assert len(redacted(text)) <= len(text)


@pytest.mark.long
def test_redaction_takes_linear_time() -> None:
    """A million characters take less than a second each; a pattern that takes quadratic time exceeds the timeout."""
    code = (
        "from agentgym_envs.util.redaction import redacted\n"
        f"for beginning, unit in {_REPETITIVE!r}:\n"
        "    redacted(beginning + unit * (1_000_000 // len(unit)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_environment_variable_references_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_TOKEN", "CANARY")
    assert resolved("http://:${WORLD_TOKEN}@host?a=$WORLD_TOKEN") == "http://:CANARY@host?a=$WORLD_TOKEN"
    with pytest.raises(ValueError, match=r"variable WORLD_TOKENS is not set. Set it: export WORLD_TOKENS="):
        resolved("${WORLD_TOKENS}")


_SECRET_WORDS = ("password", "token", "secret", "credential", "authorization")


@pytest.mark.parametrize("world", [*(world.id for world in WORLDS), "agentgym/Remote-v0"])
def test_options_described_as_secret_are_declared_secret(world: str) -> None:
    cls = world_class(world)
    assert cls is not None
    lines = [line.strip() for line in (cls.__doc__ or "").partition("Args:")[2].splitlines()]
    options = {line.partition(":")[0]: line.lower() for line in lines if line.partition(":")[0].isidentifier()}
    secret = {name for name, description in options.items() if any(word in description for word in _SECRET_WORDS)}
    assert {name for name in secret if not is_secret(name)} <= {"url"}  # its password is detected by the URL's syntax
    assert cls.secret_options <= options.keys()
