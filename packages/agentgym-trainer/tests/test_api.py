"""Tests of training from Python: `agentgym_trainer.train`, `resume` and `load_run`."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import agentgym_eval
import httpx
import pytest
from accelerate.state import AcceleratorState, is_initialized
from agentgym_eval.util.errors import RunStopped, UsageError
from agentgym_trainer import Run, load_run, resume, train
from agentgym_trainer.cli import _parse
from agentgym_trainer.config import BaseConfig, RLConfig, SFTConfig
from agentgym_trainer.engines.base import EngineError
from agentgym_trainer.run.folder import RunFolder
from huggingface_hub import constants
from metric_lines import without_measured
from toy_learner import coin_flags, sft_flags, train_cli

pytestmark = pytest.mark.long


def _config(flags: list[str]) -> BaseConfig:
    return _parse(flags)[1].config


def _lines(run: Run) -> list[dict[str, Any]]:
    return without_measured(run.metrics())


@pytest.fixture(autouse=True)
def _program_without_accelerate() -> None:  # the command leaves accelerate's state in this process
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of the command."""
    folder = tmp_path_factory.mktemp("command") / "run"
    assert train_cli(coin_flags(folder)) == 0
    return load_run(folder)


def test_function_and_command_train_the_same_model(
    commanded: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    run = train(_config(coin_flags(tmp_path)), out=tmp_path / "run")
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert isinstance(run.config, RLConfig)
    assert run.config == commanded.config
    assert (run.done, run.kind, run.recipe, commanded.recipe) == (True, "rl", "custom", "textcraft-grpo")
    assert _lines(run) == _lines(commanded)
    assert run.model is not None
    assert commanded.model is not None
    weights = [(model / "model.safetensors").read_bytes() for model in (run.model, commanded.model)]
    assert weights[0] == weights[1]
    assert [path.name for path in run.checkpoints] == [path.name for path in commanded.checkpoints] != []
    assert (run.folder / "curve.png").exists()


def test_evaluations_of_a_run_are_reports(commanded: Run) -> None:
    first, *_, last = [at for at in commanded.evaluations if at.decoding == "sampled" and not at.test]
    assert (first.step, last.step) == (0, 6)
    compared = agentgym_eval.compare([first.path, last.path])
    assert compared.comparisons[0].tasks == 4
    assert last.report().pass_at.keys() == {1, 2}
    loaded = agentgym_eval.load_run(commanded.folder)
    assert isinstance(loaded, agentgym_eval.TrainingRun)
    assert loaded.settings["steps"] == 6


def test_interrupted_runs_are_resumed_to_the_same_end(
    commanded: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log, interrupted = RunFolder.log, [KeyboardInterrupt(), EngineError("The engine died.")]

    def failing(folder: RunFolder, metrics: Any) -> None:
        log(folder, metrics)
        if metrics["step"] in (3, 5) and len(interrupted) > (metrics["step"] == 3):
            raise interrupted.pop(0)

    monkeypatch.setattr(RunFolder, "log", failing)
    with pytest.raises(KeyboardInterrupt):
        train(_config(coin_flags(tmp_path)), out=tmp_path / "run")
    assert not load_run(tmp_path / "run").done
    with pytest.raises(UsageError, match="is not an empty folder"):
        train(_config(coin_flags(tmp_path)), out=tmp_path / "run")
    with pytest.raises(RunStopped, match=r"The engine died\. Progress is saved in .*; agentgym_trainer\.resume"):
        resume(tmp_path / "run")
    run = resume(str(tmp_path / "run"))
    assert run.done
    assert _lines(run) == _lines(commanded)
    assert capfd.readouterr() == ("", "")


def test_other_kinds_and_recipes_by_name_are_trained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(sft_flags(tmp_path))
    assert isinstance(config, SFTConfig)
    config = replace(config, precision="bf16")
    with caplog.at_level(logging.INFO, logger="agentgym_trainer"):
        run = train(config, out=tmp_path / "sft")
    assert capfd.readouterr() == ("", "")
    assert (run.kind, run.done) == ("sft", True)
    assert "Training on 64 of 64 episodes of the experts." in caplog.messages

    (tmp_path / "my_recipes.py").write_text(
        "from agentgym_trainer.config.serialization import from_json\n"
        "from agentgym_trainer.config import SFTConfig\nimport json, pathlib\n"
        "from dataclasses import replace\n"
        f"RUN = json.loads(pathlib.Path({str(run.folder / 'run.json')!r}).read_text())\n"
        "MINE = replace(from_json(SFTConfig, RUN['config']), precision='no')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_initialized()  # else another precision would be refused
    again = train("my_recipes:MINE", out=tmp_path / "again", progress=True)
    assert again.recipe == "my_recipes:MINE"
    assert again.config == replace(run.config, precision="no")
    assert "Training on 64 of 64 episodes" in capfd.readouterr().err


def test_rejected_runs_leave_no_folder(tmp_path: Path) -> None:
    config = _config(coin_flags(tmp_path))
    broken = replace(config, model=str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="nowhere"):
        train(broken, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"There is no recipe 'quickstrat'\. Did you mean 'quickstart'"):
        train("quickstrat", out=tmp_path / "run")
    nothing: Any = None
    with pytest.raises(TypeError, match="train takes a configuration such as RLConfig"):
        train(nothing, out=tmp_path / "run")
    for read in (load_run, resume):
        with pytest.raises(UsageError, match="holds no training run"):
            read(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": "agentgym.run/6"}')
    with pytest.raises(UsageError, match=r"holds no training run: run\.json is of the schema agentgym\.run/6"):
        load_run(tmp_path)


def test_without_a_network_the_hub_is_requested_once_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    requests: list[str] = []

    def fail_to_connect(_: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        requests.append(str(request.url))
        if len(requests) > 1:
            pytest.fail(f"the hub was requested: {requests}")
        raise httpx.ConnectError("no network", request=request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", fail_to_connect)
    message = "The model nobody/nothing can't be loaded. .*network access: .*`train --model scratch`"
    with pytest.raises(UsageError, match=message):
        train(RLConfig(model="nobody/nothing", device="cpu"), out=tmp_path / "run")
    assert requests == [constants.ENDPOINT]
    assert not constants.HF_HUB_OFFLINE
    assert "Retrying" not in capfd.readouterr().err


def test_importing_the_package_loads_no_torch() -> None:
    code = (
        "import sys, agentgym_trainer\n"
        "assert not {'torch', 'transformers', 'gymnasium'} & set(sys.modules)\n"
        "assert callable(agentgym_trainer.train)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
