"""Tests of the memory of phases: what runs on GPUs need."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import (
    AsyncRollout,
    BaseConfig,
    Distillation,
    EngineSettings,
    Lora,
    Reference,
    RLConfig,
)
from agentgym_trainer.planning.hardware import Hardware, described, this_machine
from agentgym_trainer.planning.phases import ENGINE_WORK, engine_bytes, make_plan
from agentgym_trainer.planning.report import hardware_of
from agentgym_trainer.planning.workload import Workload
from agentgym_trainer.recipes import RECIPES
from planned_runs import QLORA, VLLM, dpo, run
from transformers import AutoConfig

SERVER = EngineSettings(kind="vllm-server", urls=("http://127.0.0.1:8100",))
ON_GPUS = [name for name, recipe in RECIPES.items() if recipe.config.device != "cpu"]


def gigabytes(config: BaseConfig, hardware: str, phase: str, part: str = "") -> float:
    found = make_plan(config, described(hardware)).phase(phase)
    return sum(each.bytes for each in found.device if part in each.name) / 1e9


@pytest.mark.long
@pytest.mark.parametrize("name", ON_GPUS)
def test_recipes_for_gpus_fit_on_eight_of_80_gb(name: str) -> None:
    config = RECIPES[name].config
    if config.model.startswith("runs/"):
        config = replace(config, model="Qwen/Qwen2.5-7B-Instruct")
    # Runs from data can't be sharded: of 7B weights, only an adapter fits.
    lora, hardware = (config.lora, "8xH100") if isinstance(config, RLConfig) else (Lora(rank=32), "8xH100:ddp")
    plan = make_plan(replace(config, engine=VLLM, lora=lora), described(hardware))
    assert plan.fits, plan.problems


@pytest.mark.parametrize(
    ("config", "hardware"),
    [
        pytest.param(run("Qwen/Qwen2.5-0.5B-Instruct"), "24GB", id="0.5B-24GB"),
        pytest.param(run(lora=Lora(rank=32)), "H100", id="7B-lora-80GB"),
        pytest.param(run(engine=SERVER), "4xH100", id="7B-servers-4x80GB"),
        pytest.param(run("Qwen/Qwen2.5-32B-Instruct", engine=SERVER), "16xH100", id="32B-servers-16x80GB"),
    ],
)
def test_what_is_said_to_fit_fits(config: RLConfig, hardware: str) -> None:
    plan = make_plan(config, described(hardware))
    assert plan.fits, plan.problems


def test_full_fine_tuning_holds_16_bytes_a_weight_sharded_or_not() -> None:
    small = run("Qwen/Qwen2.5-0.5B-Instruct")
    for hardware, shards in (("H100", 1), ("4xH100", 4), ("4xH100:ddp", 1)):
        held = sum(gigabytes(small, hardware, "update", part) for part in ("AdamW", "gradients"))
        assert held == pytest.approx(12 * 0.494 / shards, rel=0.01)
        assert gigabytes(small, hardware, "load", "reference") == pytest.approx(2 * 0.494 / shards, rel=0.01)
    assert gigabytes(small, "4xH100:ddp", "update", "buckets") == pytest.approx(4 * 0.494, rel=0.01)


def test_adapters_need_no_reference_and_a_base_in_half_precision() -> None:
    config = run(lora=Lora(rank=32))
    assert gigabytes(config, "H100", "load", "weights") == pytest.approx(15.2 + 0.3, rel=0.02)
    assert gigabytes(config, "H100", "load", "reference") == 0
    # float16 is only computed in: the frozen weights are float32.
    in_fp16 = replace(config, precision="fp16")
    assert gigabytes(in_fp16, "H100", "load", "weights") == pytest.approx(30.5 + 0.3, rel=0.02)


@pytest.mark.parametrize(("lora", "precision", "size"), [(0, "bf16", 4), (0, "no", 4), (16, "bf16", 2), (16, "no", 4)])
def test_another_reference_has_its_own_size_in_the_data_type_of_the_loaded_policy(
    lora: int, precision: str, size: int
) -> None:
    config = dpo(lora=Lora(rank=lora), precision=precision)
    larger = replace(config, reference=Reference(model="Qwen/Qwen2.5-32B-Instruct"))
    hardware, weights, tensor = "8xH100:ddp", 32_763_876_352, 152_064 * 5_120
    largest = max(size * tensor, 4 * 152_064 * 3_584)  # of the policy, or of the reference
    for phase in ("load", "rollout", "update"):
        assert gigabytes(larger, hardware, phase, "reference") == pytest.approx(size * weights / 1e9)
        own = 0 if lora else 4 * 7_615_616_512
        assert gigabytes(config, hardware, phase, "reference") == pytest.approx(own / 1e9)
    assert gigabytes(larger, hardware, "load", "in transit") == pytest.approx(largest / 1e9)
    assert not make_plan(larger, described("H100")).fits


@pytest.mark.long
def test_quantized_layers_take_a_quarter_and_the_rest_stays_in_half_precision() -> None:
    config = run(lora=QLORA)
    work = Workload(config, described("H100"))
    # Embeddings, head and norms of Qwen2.5-7B, and biases, stay; all other weights are in 4 bits with a scale per 64.
    kept = 2 * 3584 * 152_064 + 28 * (2 * 3584 + 3584 + 2 * 512) + 3584
    assert work.shape.weights - work.shape.linear == kept
    assert work.shape.widest == 3584 * 18_944
    weights = 2 * kept + 0.5625 * work.shape.linear + 4 * work.adapter
    assert work.weight_bytes == weights
    assert gigabytes(config, "H100", "update", "weights") == pytest.approx(weights / 1e9)
    assert gigabytes(config, "H100", "update", "a dequantized layer") == pytest.approx(2 * 3584 * 18_944 / 1e9)
    # vLLM has the rounded weights in bfloat16; so have the models that play the test.
    assert engine_bytes(work) - work.cache_bytes(1) - ENGINE_WORK == 2 * 7_615_616_512
    assert gigabytes(config, "H100", "test", "weights") == pytest.approx(2 * 7.615616512)
    plan = make_plan(config, described("H100"))
    assert plan.phase("rounding").first_host - plan.phase("load").first_host == pytest.approx(2 * 7_615_616_512)
    untested = replace(config, evaluation=replace(config.evaluation, test=False))
    assert "test" not in {phase.name for phase in make_plan(untested, described("H100")).phases}


def test_cache_is_split_over_at_most_as_many_gpus_as_there_are_key_heads() -> None:
    needed = {
        split: engine_bytes(
            Workload(run(engine=EngineSettings(kind="vllm-server", tensor_parallel=split)), described("8xH100"))
        )
        for split in (4, 8)
    }
    weights, cache = 2 * 7_615_616_512, Workload(run(), described("8xH100")).cache_bytes(1)
    assert needed[4] - needed[8] == pytest.approx(weights / 8)
    assert needed[8] == pytest.approx(weights / 8 + cache / 4 + ENGINE_WORK)


def test_quantized_weights_are_whole_with_ddp() -> None:
    config = run(lora=QLORA)
    assert gigabytes(config, "8xH100:ddp", "load", "weights") == gigabytes(config, "H100", "load", "weights")


@pytest.mark.long
@pytest.mark.parametrize(("gpu", "size"), [("H100", 2), ("L40S", 2), ("24GB", 2), ("T4", 4), ("V100-32", 4)])
def test_auto_precision_plans_bfloat16_on_gpus_that_compute_in_it(gpu: str, size: int) -> None:
    """The frozen reference is in the data type of the computation."""
    small = run("Qwen/Qwen2.5-0.5B-Instruct", precision="auto")
    assert gigabytes(small, gpu, "load", "reference") == pytest.approx(size * 0.494, rel=0.01)


def test_float32_on_a_gpu_has_the_logits_of_a_gpu() -> None:
    """Of a chunk of 1 GiB of logits, the backward pass has a few copies."""
    config = run("Qwen/Qwen2.5-0.5B-Instruct", engine=SERVER, lora=Lora(rank=8))
    assert gigabytes(config, "V100", "update", "activations") > 3 * 1.07
    in_float32 = replace(config, precision="no")
    assert gigabytes(in_float32, "H100", "update", "activations") > 3 * 1.07


def test_this_machine_has_bfloat16_if_all_of_its_gpus_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for majors, bf16 in (((8, 9), True), ((7, 9), False)):
        found = [SimpleNamespace(total_memory=(40 + major) * 2**30, major=major) for major in majors]
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda gpu, found=found: found[gpu])
        hardware = this_machine(cpu=False)
        assert hardware.bf16 is bf16
        assert hardware.gpu_bytes == (40 + majors[0]) * 2**30


def test_the_engine_sleeps_during_updates_unless_it_is_elsewhere() -> None:
    small = "Qwen/Qwen2.5-0.5B-Instruct"
    assert gigabytes(run(small), "H100", "rollout", "engine") == pytest.approx(0.4 * 85)
    assert gigabytes(run(small), "H100", "update", "engine") < 2
    assert gigabytes(run(small, engine=SERVER), "H100", "rollout", "engine") == 0
    own = run(small, engine=EngineSettings(), async_rollout=AsyncRollout(1))
    assert gigabytes(own, "H100", "update", "engine's weights") == pytest.approx(4 * 0.494, rel=0.01)


def test_offloaded_moments_are_on_the_gpu_during_updates_only() -> None:
    optimizer = replace(run().optimizer, offload=True)
    plan = make_plan(run("Qwen/Qwen2.5-0.5B-Instruct", optimizer=optimizer, save_async="off"), described("H100"))
    with_moments = {phase.name for phase in plan.phases for part in phase.device if part.name == "AdamW's moments"}
    assert with_moments == {"update"}
    assert plan.phase("rollout").first_host - plan.phase("engine").first_host == pytest.approx(8 * 494_032_768)


def test_one_process_loads_a_sharded_model_into_host_memory() -> None:
    phase = make_plan(run(), described("8xH100")).phase("load")
    assert phase.first_host - phase.other_host == pytest.approx((4 + 2) * 7_615_616_512)


@pytest.mark.parametrize(
    ("hardware", "kind", "size"), [("8xH100", "vllm", 2), ("8xH100", "vllm-server", 2), ("H100", "vllm", 0)]
)
def test_weights_that_must_be_gathered_are_copied_once_per_machine(hardware: str, kind: str, size: int) -> None:
    small, devices = "Qwen/Qwen2.5-0.5B-Instruct", "7" if kind == "vllm-server" else ""
    config = run(small, engine=EngineSettings(kind=kind, devices=devices), save_async="off")
    plan = make_plan(config, described(hardware))
    before, after = (plan.phase(name) for name in ("engine", "rollout"))
    assert after.other_host == before.other_host
    assert after.first_host - before.first_host == pytest.approx(size * 494_032_768)


@pytest.mark.parametrize(
    ("hardware", "lora", "first", "others"),
    [
        # Weights and moments in float32, and a sharded model's own files in bfloat16.
        ("H100", 0, 12 * 494_032_768, 0),
        ("4xH100:ddp", 0, 12 * 494_032_768, 0),
        ("4xH100", 0, (12 / 4 + 2) * 494_032_768, 12 / 4 * 494_032_768),
        ("H100", 8, 12 * 4_399_104, 0),
        ("4xH100", 8, (2 * 494_032_768 + 12 * 4_399_104) / 4 + 4 * 4_399_104,
         (2 * 494_032_768 + 12 * 4_399_104) / 4),
    ],
)  # fmt: skip
def test_checkpoints_in_the_background_are_written_from_host_memory(
    hardware: str, lora: int, first: float, others: float
) -> None:
    config = run("Qwen/Qwen2.5-0.5B-Instruct", lora=Lora(rank=lora), engine=SERVER)
    background, at_once = (
        make_plan(replace(config, save_async=setting), described(hardware)).phase("update")
        for setting in ("auto", "off")
    )
    assert background.first_host - at_once.first_host == pytest.approx(first)
    assert background.other_host - at_once.other_host == pytest.approx(others)
    assert background.device == at_once.device


@pytest.mark.long
def test_runs_on_one_cpu_save_at_once_unless_asked() -> None:
    config = run("Qwen/Qwen2.5-0.5B-Instruct", device="cpu", engine=EngineSettings())
    sizes = [make_plan(replace(config, save_async=setting), this_machine(cpu=True)).phase("checkpoint").bytes
             for setting in ("off", "auto", "on")]  # fmt: skip
    assert sizes[1] == sizes[0]
    assert sizes[2] - sizes[0] == pytest.approx(12 * 494_032_768)


@pytest.mark.parametrize(
    ("text", "hardware"),
    [
        ("h100", Hardware("H100", 1, 85.0e9)),
        ("8xH200", Hardware("H200", 8, 150.1e9, sharded=True)),
        ("2xA100-40:ddp", Hardware("A100-40", 2, 42.3e9)),
        ("4x80GB", Hardware("80GB", 4, 0.98 * 80 * 2**30, sharded=True)),
    ],
)
def test_hardware_is_read_as_it_is_printed(text: str, hardware: Hardware) -> None:
    assert described(text) == hardware
    assert described(str(hardware)) == hardware


@pytest.mark.parametrize("text", ["0xH100", "00xH100", "4x0GB", "8x", "8xH10", "H100:zero", "8 H100"])
def test_unreadable_hardware_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="4x80GB"):
        described(text)


def test_gpus_of_a_server_dont_train() -> None:
    config = run(engine=EngineSettings(kind="vllm-server", devices="6,7"))
    assert hardware_of(config, ["8xH100"]) == replace(described("8xH100"), processes=6)
    with pytest.raises(UsageError, match="at least one"):
        hardware_of(config, ["2xH100"])


def test_recipes_for_the_cpu_are_planned_for_this_machine() -> None:
    assert hardware_of(RECIPES["quickstart"].config, ["8xH100"]) == this_machine(cpu=True)


def test_an_unknown_model_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoConfig, "from_pretrained", Mock(side_effect=OSError("no network")))
    with pytest.raises(UsageError, match=r"folder with its config.json.*Qwen2.5 0.5B"):
        make_plan(run("nobody/no-model-7B"), described("H100"))


def test_a_server_on_the_gpus_that_train_is_counted_there() -> None:
    """It has a share of each GPU, wakes with a part of the weights per GPU, and needs a process beside the learner."""
    engine = EngineSettings(kind="vllm-server", memory=0.3, tensor_parallel=4)
    apart = replace(engine, devices="4,5,6,7")
    here = {name: gigabytes(run(engine=engine), "4xH100", name) for name in ("rollout", "update", "weight load")}
    there = {name: gigabytes(run(engine=apart), "4xH100", name) for name in here}
    assert here["rollout"] - there["rollout"] == pytest.approx(1.2 + 0.3 * 85)
    assert here["update"] - there["update"] == pytest.approx(1.2 + 1.0)
    shared = 2 * (2 * 152_064 * 3_584 / 1e9)  # as large as the largest tensor, and the server's copy of it
    assert here["weight load"] - there["weight load"] == pytest.approx(1.2 + 1.0 + shared + 2 * 7.615616512 / 4)
    over_tcp = run(engine=replace(engine, transfer="tcp"))
    assert here["weight load"] - gigabytes(over_tcp, "4xH100", "weight load") == pytest.approx(shared)


@pytest.mark.parametrize("engine", [VLLM, EngineSettings(kind="vllm-server", memory=0.4)])
def test_an_engine_that_samples_during_updates_never_sleeps(engine: EngineSettings) -> None:
    ahead = run(engine=engine, async_rollout=AsyncRollout(max_staleness=1))
    assert gigabytes(run(engine=engine), "8xH100", "update", "engine") == pytest.approx(1.0)
    assert gigabytes(ahead, "8xH100", "update", "engine") == pytest.approx(0.4 * 85)
    assert gigabytes(ahead, "8xH100", "weight load", "engine") == pytest.approx(0.4 * 85)


def test_a_server_that_splits_the_model_fits_where_a_copy_per_gpu_does_not() -> None:
    """32B on 8 GPUs: 65 GB of weights per copy, beside 66 GB of the learner's on each GPU of 150 GB."""
    large = run("Qwen/Qwen2.5-32B-Instruct")
    assert not make_plan(large, described("8xH200")).fits
    split = replace(large, engine=EngineSettings(kind="vllm-server", memory=0.3, tensor_parallel=8))
    assert make_plan(split, described("8xH200")).fits


def test_the_final_test_of_a_sharded_run_has_whole_weights() -> None:
    """The engine `transformers` samples from them on the GPU; others have their own, which they load from the host."""
    small, weights = "Qwen/Qwen2.5-0.5B-Instruct", 2 * 494_032_768
    assert gigabytes(run(small, engine=EngineSettings()), "8xH100", "test", "weights") == pytest.approx(weights / 1e9)
    plan = make_plan(run(small), described("8xH100"))
    test, engine = plan.phase("test"), plan.phase("engine")
    assert {part.name for part in test.device} == {"engine", "CUDA context"}
    assert test.other_host - engine.other_host == pytest.approx(weights)
    assert "test" not in {phase.name for phase in make_plan(run(small), described("8xH100:ddp")).phases}


def test_a_server_needs_gpus_that_can_be_divided() -> None:
    plan = make_plan(run(engine=EngineSettings(kind="vllm-server", tensor_parallel=3)), described("8xH100"))
    assert any("engine.tensor_parallel 3 doesn't divide" in problem for problem in plan.problems)


def test_a_teacher_is_counted_in_half_precision() -> None:
    teacher = "Qwen/Qwen2.5-0.5B-Instruct"
    config = run(lora=Lora(rank=32), distillation=Distillation(teacher=teacher))
    for phase in ("load", "update", "rollout"):
        assert gigabytes(config, "H100", phase, "teacher") == pytest.approx(2 * 0.494, rel=0.01)
    assert gigabytes(run(), "H100", "load", "teacher") == 0


def test_the_passes_of_a_larger_teacher_are_counted() -> None:
    """With a teacher of 7B, FSDP2 gathers its layers, which are larger than those of a policy of 0.5B."""
    small, large = "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct"
    taught = run(small, engine=SERVER, distillation=Distillation(teacher=large))
    size = {
        name: sum(gigabytes(config, "8xH100", "log-probs", part) for part in ("gathered weights", "activations"))
        for name, config in {"alone": run(small, engine=SERVER), "taught": taught}.items()
    }
    layer, root = 233_057_792, 2 * 152_064 * 3_584 + 3_584
    assert gigabytes(taught, "8xH100", "log-probs", "gathered") == pytest.approx(2 * (root + 2 * layer) / 1e9)
    assert size["taught"] > size["alone"] + 2
    assert gigabytes(taught, "H100", "log-probs", "weights") == gigabytes(run(small), "H100", "log-probs", "weights")
    assert gigabytes(taught, "H100", "load", "in transit") == pytest.approx(2 * 152_064 * 3_584 / 1e9)
    assert gigabytes(run(small), "H100", "load", "in transit") == pytest.approx(4 * 151_936 * 896 / 1e9)
