"""Multi-turn reinforcement learning of language agents, from a world to a learning curve."""

import logging

# peft imports bitsandbytes if it is installed, which on some CPUs reports that it can't download a kernel, which isn't
# used (`models.quantization.keep_layout`).
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
