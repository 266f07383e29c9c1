from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import two_processes
from accelerate import Accelerator
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.run.manifest import find_damage
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.chat import Chat
from forked_processes import run_processes, run_two_processes
from safetensors.torch import load_file
from toy_learner import make_learner, make_trajectories, update_on

CONFIGS = Path(str(files("agentgym_trainer"))) / "accelerate_configs"
SHIPPED = ["cpu-ddp", "ddp", "fsdp2", "hsdp"]


@pytest.mark.long
def test_two_processes_update_like_one_with_ddp_and_sharding(tmp_path: Path) -> None:
    cases = list(two_processes.CASES)
    out, log = tmp_path / "updates.pt", tmp_path / "log"
    assert run_two_processes(two_processes.main, out, [*cases, "sharded", *cases], log=log) == [0, 0], log.read_text()
    updates = torch.load(out)
    assert updates.pop("processes") == 2
    assert len(updates) == 2 * len(cases)
    for case in cases:
        metrics, weights = two_processes.train(case, Accelerator(cpu=True))
        for name in (case, f"{case}, sharded"):
            joint_metrics, updated = updates[name]
            _assert_balanced(joint_metrics)
            _assert_equal_metrics(joint_metrics, metrics)
            assert updated.keys() == weights.keys()
            for parameter, tensor in weights.items():
                torch.testing.assert_close(updated[parameter], tensor, atol=1e-5, rtol=0)


def _assert_balanced(metrics: dict[str, float]) -> None:
    """Check that balancing made the process with the most tokens faster, if it did anything."""
    assert 1 <= metrics["imbalance"] <= metrics["imbalance_dealt"]


def _assert_equal_metrics(metrics: dict[str, float], expected: dict[str, float]) -> None:
    """Compare all metrics but those of how micro-batches are filled."""
    packing = ("fill", "padding", "shared", "imbalance", "imbalance_dealt")
    one, other = ({name: v for name, v in values.items() if name not in packing} for values in (metrics, expected))
    assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_sharded_bfloat16_keeps_float32_log_probabilities(
    new_model: Callable[..., Any], chat: Chat, tmp_path: Path, lora_rank: int
) -> None:
    models, out, log = (
        {"policy": new_model(init=1.0), "teacher": new_model(1)},
        tmp_path / "scores.pt",
        tmp_path / "log",
    )
    folders = [tmp_path / name for name in models]
    for model, folder in zip(models.values(), folders, strict=True):
        model.save_pretrained(folder)
        chat.tokenizer.save_pretrained(folder)
    ended = run_two_processes(two_processes.score_and_update, *folders, out, lora_rank, log=log)
    assert ended == [0, 0], log.read_text()
    found = torch.load(out)
    exact, teacher = (make_learner(model) for model in models.values())
    batch = make_batch(make_trajectories(21, 4))
    logprobs_N = exact.logprobs(batch)
    expected = {"policy": logprobs_N, "reference": logprobs_N, "entropies": exact.entropies(batch)}
    for name, exact_N in {**expected, "teacher": teacher.logprobs(batch)}.items():
        # accelerate's own policy would round them to bfloat16.
        assert not torch.equal(found[name], found[name].bfloat16().float())
        torch.testing.assert_close(found[name], exact_N, atol=0.1, rtol=0)
    assert found["metrics"]["ratio"] == pytest.approx(1, abs=1e-6)
    assert found["metrics"]["skipped"] == 0
    assert found["dtypes"] == {"torch.float32"}
    _assert_saved(tmp_path / "checkpoints" / "step-000001", found["weights"], adapter=lora_rank > 0)


def _assert_saved(checkpoint: Path, weights: dict[str, torch.Tensor], *, adapter: bool) -> None:
    """Check that a checkpoint holds the adapter in float32, or the whole model in the data type of the computation."""
    saved = load_file(checkpoint / ("adapter_model.safetensors" if adapter else "model.safetensors"))
    named = {name.removeprefix("policy.").replace(".default", ""): weight for name, weight in weights.items()}
    assert len(saved) > 10
    assert all("lora_" in name for name in saved) == adapter
    for name, weight in saved.items():
        assert torch.equal(weight, named[name] if adapter else named[name].bfloat16()), name


@pytest.mark.long
def test_sharded_checkpoints_are_written_in_the_background(chat: Chat, tmp_path: Path) -> None:
    folder, out, log = tmp_path / "checkpoints", tmp_path / "weights.pt", tmp_path / "log"
    chat.tokenizer.save_pretrained(tmp_path / "model")
    assert run_two_processes(two_processes.resume_sharded, folder, out, log=log) == [0, 0], log.read_text()
    uninterrupted, resumed = torch.load(out)
    assert uninterrupted.keys() == resumed.keys()
    for name, weight in uninterrupted.items():
        assert torch.equal(resumed[name], weight), name
    assert sorted(path.name for path in folder.iterdir()) == ["step-000002"]
    assert find_damage(folder / "step-000002") is None


@pytest.mark.long
def test_four_processes_with_hybrid_sharding_update_like_one(tmp_path: Path) -> None:
    out, log = tmp_path / "update.pt", tmp_path / "log"
    assert run_processes(4, two_processes.update_hybrid, out, log=log) == [0] * 4, log.read_text()
    joint = torch.load(out)
    metrics, weights = two_processes.update_quarter(Accelerator(cpu=True))
    _assert_balanced(joint["metrics"])
    _assert_equal_metrics(joint["metrics"], metrics)
    for parameter, tensor in weights.items():
        torch.testing.assert_close(joint["weights"][parameter], tensor, atol=1e-5, rtol=0)


def test_the_launcher_replicates_over_machines_with_hybrid_sharding() -> None:
    words = ["--config_file", str(CONFIGS / "hsdp.yaml"), "train"]
    environment = prepare_multi_gpu_env(_validate_launch_command(launch_command_parser().parse_args(words))[0])
    sizes = [environment[f"PARALLELISM_CONFIG_DP_{name}_SIZE"] for name in ("REPLICATE", "SHARD")]
    assert sizes == ["2", "8"]


@pytest.mark.parametrize("name", SHIPPED)
def test_accelerate_accepts_the_shipped_configurations(name: str) -> None:
    path = CONFIGS / f"{name}.yaml"
    assert load_config_from_file(str(path)).num_processes > 1
    parsed = launch_command_parser().parse_args(["--config_file", str(path), "train"])
    arguments, _, _ = _validate_launch_command(parsed)
    assert (arguments.multi_gpu, arguments.use_fsdp) == (name in ("cpu-ddp", "ddp"), name in ("fsdp2", "hsdp"))


def test_every_shipped_configuration_is_tested() -> None:
    assert sorted(path.stem for path in CONFIGS.iterdir()) == sorted(SHIPPED)


def test_places_determine_the_split_into_minibatches(new_model: Callable[..., Any]) -> None:
    trajectories = make_trajectories(3, 6)
    places = [(number, 0) for number in range(6)]
    algorithm = replace(GRPO, kl=replace(GRPO.kl, where="off"))

    def updated_weights(order: list[int], **options: Any) -> torch.Tensor:
        student = make_learner(new_model())
        update_on(student, [trajectories[i] for i in order], algorithm, minibatches=3, **options)
        return torch.cat([parameter.detach().flatten() for parameter in student.policy.parameters()])

    in_order, shuffled = list(range(6)), [4, 0, 5, 2, 1, 3]
    expected = updated_weights(in_order)
    assert torch.equal(updated_weights(in_order, places=places), expected)
    torch.testing.assert_close(
        updated_weights(shuffled, places=[places[i] for i in shuffled]), expected, atol=1e-5, rtol=0
    )
    assert not torch.allclose(updated_weights(shuffled), expected, atol=1e-4)
