"""Tests that the documented commands for GPUs fit, by `--plan`, on the GPUs that they are documented for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from agentgym_trainer.cli import main
from documents import ROOT, blocks

PAGES = ("docs/scale.md", "docs/howto/scale.md")
GPU = "H100"
"""The GPU of 80 GB that docs/scale.md names."""


def gpu_commands() -> list[list[str]]:
    """Return the arguments of `train` in all commands with vLLM, each with the hardware to plan for."""
    lines = {line: None for page in PAGES for block in blocks(Path(ROOT, page)) for line in block.commands}
    found: list[list[str]] = []
    for line in lines:
        words = shlex.split(line, comments=True)
        if "--engine.kind" not in words or "--plan" in words:
            continue
        start = words.index("agentgym_trainer" if "launch" in words else "train") + 1
        processes = re.search(r"--num_processes (\d+)", line)
        count = int(processes[1]) if processes else 8 if "launch" in words else 1
        if "vllm" in line:
            found.append([*words[start:], "--plan", f"{count}x{GPU}"])
    return [*found, *job_commands()]


def job_commands() -> list[list[str]]:
    """Return the arguments of `train` in the job scripts of clusters, each with the hardware to plan for."""
    jobs = re.findall(r"set -- (\S+ --model .*?) --out", Path(ROOT, PAGES[0]).read_text(encoding="utf-8"))
    return [[*shlex.split(job), "--plan", f"1x{GPU}"] for job in dict.fromkeys(jobs)]


def test_commands_for_one_gpu_one_node_many_nodes_and_jobs_are_found() -> None:
    assert len(job_commands()) == 1
    assert {command[-1] for command in gpu_commands()} == {"1xH100", "4xH100", "8xH100", "16xH100"}


@pytest.mark.parametrize("command", gpu_commands(), ids=lambda command: " ".join(command)[:60])
def test_documented_commands_fit_on_80_gb(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0, capsys.readouterr().out
