"""What `train --plan` prints, and the refusal of a run that can't fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator
from agentgym_envs.util.importing import described as described_error
from agentgym_eval.util.errors import UsageError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentgym_trainer.config import BaseConfig, OfflineConfig
from agentgym_trainer.planning.hardware import Hardware, described, on_gpus, this_machine
from agentgym_trainer.planning.phases import Phase, Plan, make_plan
from agentgym_trainer.planning.proposals import propose
from agentgym_trainer.planning.workload import Workload

_SHOWN = 1e8
"""Bytes of the smallest part that is listed."""


def hardware_of(config: BaseConfig, description: Sequence[str]) -> Hardware:
    """Return the hardware for the values of `--plan`: none for this machine, or one description.

    This machine's GPUs are used with FSDP2 in reinforcement learning, and with DDP otherwise.

    GPUs that `engine.devices` gives to a vLLM server have no training process.

    Raises:
        UsageError: A description can't be read, there are several, or no GPU is left to train on.
    """
    if len(description) > 1:
        raise UsageError(f"--plan takes one description of hardware, such as 8xH100, not {' '.join(description)}.")
    cpu = config.device == "cpu"
    asked = described(description[0]) if description else None
    hardware = this_machine(cpu=cpu) if cpu or asked is None else asked
    if asked is None and isinstance(config, OfflineConfig):
        hardware = replace(hardware, sharded=False)
    taken = (
        len(config.engine.devices.split(",")) if config.engine.devices and config.engine.kind == "vllm-server" else 0
    )
    if not taken or not hardware.on_gpu:
        return hardware
    left = hardware.processes - taken
    if left < 1:
        raise UsageError(f"engine.devices takes all GPUs of {hardware}; leave at least one for training.")
    return replace(hardware, processes=left, sharded=hardware.sharded and left > 1)


def print_plan(config: BaseConfig, description: Sequence[str], console: Console) -> bool:
    """Print the memory that a run needs, and proposals if it doesn't fit. Returns whether it fits.

    Raises:
        UsageError: The hardware can't be read, or the model is unknown.
    """
    plan = make_plan(config, hardware_of(config, description))
    console.print(_heading(plan), highlight=False, soft_wrap=True, markup=False)
    console.print(_table(plan))
    if plan.fits:
        console.print("[green]It fits.[/] Upper bounds (≤) are reached if every context has maximum length.")
        return True
    for problem in plan.problems:
        console.print(f"[red]It doesn't fit:[/] {escape(problem)}", highlight=False, soft_wrap=True)
    found = propose(plan)
    for proposal in found:
        console.print(f"It fits with {proposal}", highlight=False, soft_wrap=True, markup=False)
    if not found:
        console.print("No settings were found with which it fits; choose a smaller model.", highlight=False)
    return False


def check_memory(config: BaseConfig, accelerator: Accelerator, say: Callable[[str], None]) -> None:
    """Refuse a run on GPUs that can't work, before anything is loaded. On CPUs, which may swap, it does nothing.

    Args:
        config: The configuration of the run.
        accelerator: Determines the device and how the processes share the model.
        say: Called with a sentence if the run can't be planned.

    Raises:
        UsageError: It can't work; the message says what is too large, and with what it would fit.
    """
    if accelerator.device.type != "cuda" or not config.check_memory:
        return
    gpu = torch.cuda.get_device_properties(accelerator.device)
    parallel, processes = accelerator.parallelism_config, accelerator.num_processes
    if parallel is not None and parallel.dp_shard_enabled:
        processes = parallel.dp_shard_size or processes  # with hybrid sharding, these hold all weights together
    try:
        plan = make_plan(config, on_gpus(processes, [gpu], sharded=accelerator.is_fsdp2))
    except Exception as error:  # noqa: BLE001 - a model that can't be planned may train nevertheless
        say(f"The memory that this run needs isn't checked, since it can't be computed: {described_error(error)}")
        return
    refuse_misfit(plan)


def refuse_misfit(plan: Plan) -> None:
    """Refuse a run that can't work on its hardware, even if no episode is long.

    Raises:
        UsageError: It can't; the message says what is too large, and with what it would fit.
    """
    if plan.certain:
        ways = "; or ".join(map(str, propose(plan))) or "a smaller model"
        raise UsageError(
            f"This run doesn't fit on {plan.hardware}: {' '.join(plan.problems)} It fits with {ways}. --plan shows all "
            "phases, and --no-check-memory starts the run nevertheless."
        )


def _heading(plan: Plan) -> str:
    work, hardware = Workload(plan.config, plan.hardware), plan.hardware
    weights = f"{work.shape.weights / 1e9:.2f}B weights"
    trained = f"{work.adapter / 1e6:.0f}M in adapters train" if work.adapter else "all train"
    trained += f", {work.shape.linear / 1e9:.2f}B in 4 bits" if work.quantized else ""
    mode = ""
    if hardware.on_gpu:
        mode = f" ({hardware.gpu_bytes / 1e9:.1f} GB each{', FSDP2' if hardware.sharded else ''})"
    checkpointing = "on" if work.checkpointing else "off"
    return (
        f"{plan.config.model} ({weights}, {trained}) on {hardware}{mode}, micro-batches of {work.pack:,} tokens, "
        f"gradient checkpointing {checkpointing}"
    )


def _table(plan: Plan) -> Table:
    on_gpu = plan.hardware.on_gpu
    table = Table("phase", *(["GPU GB", "host GB, first", "others"] if on_gpu else ["GB"]), "of which")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for phase in plan.phases:
        numbers = [phase.bytes]
        if on_gpu:
            numbers += [phase.first_host, phase.other_host]
        over = phase.bytes > (plan.hardware.gpu_bytes or plan.hardware.host_bytes or float("inf"))
        style = "red" if over else None
        table.add_row(phase.name, *(f"{number / 1e9:.1f}" for number in numbers), _parts(phase), style=style)
    return table


def _parts(phase: Phase) -> str:
    shown = sorted((part for part in phase.device if part.bytes >= _SHOWN), key=lambda part: -part.bytes)
    return ", ".join(f"{part.name} {'' if part.certain else '≤ '}{part.bytes / 1e9:.1f}" for part in shown)
