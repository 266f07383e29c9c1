"""An extension of vLLM's workers that maps files instead of GPU memory, for servers on a CPU with vLLM's backend ipc.

The requests, vLLM's backend with its checks, and the reload of the model are real; only CUDA's own functions aren't.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from agentgym_trainer.engines.vllm.worker import WeightReceiver
from file_memory import map_file
from torch.multiprocessing import reductions


class FileReceiver(WeightReceiver):
    """The extension; importing its module replaces CUDA's functions."""


reductions.rebuild_cuda_tensor = map_file
torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid="device-0")
torch.accelerator.synchronize = lambda *_: None
