"""How the layers of the models that train are computed: attention, other kernels, and whether they are compiled."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate import Accelerator
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import RLConfig
from agentgym_trainer.models.attention import choose_attention
from agentgym_trainer.models.compiled import check_compiler, compile_layers
from agentgym_trainer.models.liger import apply_liger, why_not_liger
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.planning.shapes import find_config


@dataclass(frozen=True)
class Layers:
    """How layers are computed."""

    attention: str
    """Name of the attention, from `choose_attention`."""
    liger: bool = False
    """Whether RMSNorm and gated MLPs are Liger's."""
    compile: bool = False
    """Whether decoder layers are compiled."""

    def __str__(self) -> str:
        """Name what differs from plain layers, for messages."""
        liger = ", RMSNorm and MLPs of Liger" if self.liger else ""
        compiled = ", layers compiled when first used, which may take minutes" if self.compile else ""
        return f"attention {self.attention}{liger}{compiled}"

    def applied(self, model: PolicyModel) -> PolicyModel:
        """Change the layers of a model that already has this attention; return the same model.

        Raises:
            ValueError: Its layers can't be compiled.
        """
        for trunk in model.trunks:
            if self.liger:
                apply_liger(trunk)
            if self.compile:
                compile_layers(trunk)
        return model


def choose_layers(config: RLConfig, accelerator: Accelerator) -> Layers:
    """Choose how to compute the layers of a run's models, before any model is loaded.

    Args:
        config: The configuration of the run.
        accelerator: Determines device and precision.

    Raises:
        ValueError: What `kernels` or `compile` ask for isn't possible for this model or on this machine.
    """
    if config.compile:
        check_compiler()
    attention = choose_attention(accelerator.device, accelerator.mixed_precision)
    return Layers(attention, _uses_liger(config, accelerator), config.compile)


def _uses_liger(config: RLConfig, accelerator: Accelerator) -> bool:
    if config.kernels == "off" or config.compile:
        return False
    # Without CUDA, a model that would have to be looked up on the hub isn't.
    on_gpu = accelerator.device.type == "cuda"
    try:
        obstacle = why_not_liger(find_config(config).model_type if on_gpu else "", accelerator.device)
    except UsageError as error:  # loading the model says what is wrong with it
        obstacle = str(error)
    if obstacle and config.kernels == "liger":
        raise ValueError(f"{obstacle} Set kernels to auto or off to train without Liger.")
    return obstacle is None
