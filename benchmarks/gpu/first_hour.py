r"""What to run in the first hour on a machine with 1 or 8 GPUs: checks and measurements, one after the other.

    uv run python benchmarks/gpu/first_hour.py --list
    uv run --extra vllm python benchmarks/gpu/first_hour.py                  # one GPU
    uv run --extra vllm python benchmarks/gpu/first_hour.py --gpus 8         # also the commands for a node
    uv run python benchmarks/gpu/first_hour.py --device cpu --tiny           # only shows that the steps work

Every step is a process with a timeout: one that fails or hangs doesn't end the others. The results are in one file,
`first-hour.json`, with each step's command, exit code, seconds, output and measurements, beside what is expected;
please send it back. Run it again to resume: steps that succeeded aren't repeated, and what the others
left in `first-hour-runs` is removed.

None of the steps has been run on a GPU yet. What is expected is computed or read, not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1]
FSDP2 = FOLDER.parent / "packages/agentgym-trainer/src/agentgym_trainer/accelerate_configs/fsdp2.yaml"
_TAIL = 4000
"""Characters of a step's output that are kept."""


@dataclass(frozen=True)
class Step:
    """A command, and what is expected of it."""

    name: str
    command: tuple[str, ...]
    minutes: float
    """Timeout."""
    expected: str
    gpus: int = 1
    on_cpu: bool = False
    """Whether it also runs with `--device cpu --tiny`."""
    folder: Path | None = None
    """A folder that only this step writes, which must not exist when it begins."""


def steps(model: str, runs: Path, *, tiny: bool, device: str) -> list[Step]:
    """Return all steps in order.

    Args:
        model: Path or name of the model of the training runs.
        runs: Folder of the training runs, which nothing else writes to.
        tiny: Use tiny models.
        device: cuda or cpu.
    """
    small = (*(["--tiny"] if tiny else []), "--device", device)
    python = sys.executable

    def check(name: str, *more: str) -> tuple[str, ...]:
        return python, str(FOLDER / "gpu_checks.py"), "--checks", name, *more, *small

    def script(name: str, *more: str) -> tuple[str, ...]:
        return python, str(FOLDER / f"{name}.py"), *more, *small

    def train(name: str, *more: str, minutes: float, expected: str, processes: int = 1, on_cpu: bool = False) -> Step:
        recipe = ("--tiny",) if tiny else ("textcraft-scaling", "--model", model, "--tasks-per-step", "8")
        where = "auto" if device == "cuda" else device
        # Two steps, since the first one compiles and captures.
        test = ("--evaluation.test-tasks", "8") if name == "train-vllm" else ("--evaluation.no-test",)
        short = ("--steps", "2", "--evaluation.tasks", "8", *test, "--device", where)
        launched = (python,) if processes == 1 else launch(processes)
        command = (*launched, "-m", "agentgym_trainer", *recipe, *short, "--out", str(runs / name), *more)
        return Step(name, command, minutes, expected, 1 if processes == 1 else 8, on_cpu, runs / name)

    def launch(processes: int) -> tuple[str, ...]:
        accelerate = (python, "-m", "accelerate.commands.launch", "--config_file", str(FSDP2))
        return *accelerate, "--num_processes", str(processes)

    vllm = ("--engine.kind", "vllm", "--engine.memory", "0.3")
    server = ("--engine.kind", "vllm-server", "--engine.memory", "0.3", "--engine.transfer", "ipc")
    return [
        Step("facts", check("facts"), 2, "driver 580 or newer, CUDA 13.0, capability 8.0 or newer", on_cpu=True),
        Step("kernels", check("kernels"), 5, "errors below 0.02 for each kernel", on_cpu=True),
        Step("gap-float32", check("gap", "--precision", "no"), 10, "transformers: mean below 1e-4", on_cpu=True),
        Step("gap-bf16", check("gap"), 10, "transformers: mean below 0.01", on_cpu=True),
        Step("gap-vllm-float32", check("gap", "--precision", "no", "--engine", "vllm"), 10, "mean below 1e-3"),
        Step("gap-vllm-bf16", check("gap", "--engine", "vllm"), 10, "mean below 0.02"),
        Step("update", script("gpu_train"), 10, "0.5B, rows of 32k tokens: some 15 GB; MFU of 15 to 35%", on_cpu=True),
        Step("update-stored", script("gpu_train", "--no-checkpointing"), 10,
             "0.5B: 27 GB of activations per 16k tokens of a row, so some 62 GB; 25% faster", on_cpu=True),
        Step("layers", script("gpu_layers"), 15,
             "0.5B, rows of 8k tokens: compiled 1.1 to 1.4 times as fast as plain, after minutes; Liger 1.05 to "
             "1.2 times, with less memory", on_cpu=True),
        Step("save", script("saving"), 10,
             "0.5B, 7.9 GB a checkpoint: stops for about 1 s in the background, 3 s the first time", on_cpu=True),
        Step("load-vllm", check("load", "--engine", "vllm"), 10, "2.0 GB of weights: below 1 s"),
        Step("load-server", check("load", "--engine", "vllm-server"), 10, "2.0 GB, 1.0 GB of it sent at 0.9 GB/s: 2 s"),
        Step("load-server-ipc", check("load", "--engine", "vllm-server", "--transfer", "ipc"), 10,
             "exit code 0, so CUDA IPC works; 1.0 GB copied on the GPU, and the cache allocated: below 1 s"),
        Step("rollout", script("gpu_rollout"), 15, "tokens/s grow up to 64 trajectories or more", on_cpu=True),
        Step("rollout-vllm", script("gpu_rollout", "--engines", "vllm"), 10, "faster than transformers at every size"),
        train("train", minutes=15, expected="exit code 0; logprob_check_gap below 0.02", on_cpu=True),
        train("train-vllm", *vllm, minutes=15, expected="exit code 0; logprob_check_gap below 0.02; the test's engines "
              "start after that of training"),
        train("fsdp2", *vllm, minutes=15, expected="exit code 0; the same gap", processes=8),
        train("train-server", *server, minutes=15, expected="exit code 0; the same gap; CUDA IPC in its log"),
        train("fsdp2-server", *server, "--engine.tensor-parallel", "2", minutes=20, processes=8,
              expected="exit code 0; the same gap, with 4 copies of the model on 2 GPUs each"),
        train("fsdp2-4+4", "--engine.kind", "vllm-server", "--engine.devices", "4,5,6,7", minutes=20, processes=4,
              expected="exit code 0; the same gap; seconds.load below 2 s, over NCCL"),
    ]  # fmt: skip


def chosen(all_steps: Sequence[Step], *, gpus: int, device: str, names: Sequence[str]) -> Iterator[Step]:
    """Yield the steps for this machine, or of these names."""
    for step in all_steps:
        if step.gpus <= gpus and (device == "cuda" or step.on_cpu) and (not names or step.name in names):
            yield step


def run(step: Step, out: Path) -> dict[str, Any]:
    """Run a step in a process group of its own, which is killed at the timeout, and return what it did.

    What an earlier attempt left in the step's own folder is removed first.
    """
    if step.folder is not None:
        shutil.rmtree(step.folder, ignore_errors=True)
    measured = out.with_name(f"{out.stem}-{step.name}.json")
    script = step.command[1].endswith(".py")
    command = [*step.command, *(["--out", str(measured)] if script else [])]
    began, log = time.monotonic(), out.with_name(f"{out.stem}-{step.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = process.wait(step.minutes * 60)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    result = json.loads(measured.read_text()) if measured.is_file() else None
    return {
        "command": command, "expected": step.expected, "exit_code": code, "timeout": code is None,
        "seconds": time.monotonic() - began, "output": text[-_TAIL:], "measured": result,
    }  # fmt: skip


def _terminate(*_: object) -> None:
    """End this process, and with it the running step."""
    sys.exit(128 + signal.SIGTERM)


def main(words: Sequence[str] | None = None) -> None:
    """Run the steps that haven't succeeded yet, and write the file after each; end with 1 if one failed."""
    parser = argparse.ArgumentParser(description="Run checks and measurements for the first hour on GPUs.")
    parser.add_argument("--list", action="store_true", help="print the steps, and run nothing")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs of this machine")
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct", help="path or name, for training runs")
    parser.add_argument("--out", type=Path, default=Path("runs/first-hour/first-hour.json"), help="file of the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="device of the models")
    parser.add_argument("--tiny", action="store_true", help="tiny models, which only show that the steps work")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="run only these steps, again")
    settings = parser.parse_args(words)
    signal.signal(signal.SIGTERM, _terminate)
    every = steps(
        settings.model, settings.out.with_name(f"{settings.out.stem}-runs"), tiny=settings.tiny, device=settings.device
    )
    if unknown := set(settings.only) - {step.name for step in every}:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are: {', '.join(step.name for step in every)}")
    wanted = list(chosen(every, gpus=settings.gpus, device=settings.device, names=settings.only))
    if settings.list:
        for step in wanted:
            print(f"{step.name} (at most {step.minutes:g} minutes)\n    {' '.join(step.command)}")
            print(f"    expected: {step.expected}")
        return
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(settings.out.read_text()) if settings.out.is_file() else {}
    for step in wanted:
        if results.get(step.name, {}).get("exit_code") == 0 and not settings.only:
            continue
        print(f"{step.name} …", flush=True)
        found = results[step.name] = run(step, settings.out)
        settings.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
        state = "timeout" if found["timeout"] else f"exit code {found['exit_code']}"
        print(f"    {state} after {found['seconds']:.0f} s; expected: {step.expected}", flush=True)
    failed = [step.name for step in wanted if results[step.name]["exit_code"] != 0]
    print(f"{settings.out}: {len(wanted) - len(failed)} of {len(wanted)} steps succeeded. {' '.join(failed)}".rstrip())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
