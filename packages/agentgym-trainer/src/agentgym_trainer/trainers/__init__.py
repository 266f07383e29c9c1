"""The ways to train: RL, SFT, DPO and AgentEvol, from a configuration to a finished run."""
