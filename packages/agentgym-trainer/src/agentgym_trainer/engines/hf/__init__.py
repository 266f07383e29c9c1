"""Sampling with a Hugging Face model in this process."""
