"""Trainers for RL, SFT, DPO and AgentEvol, from a configuration to a finished run."""
