"""Sampling with vLLM, in this process or through a server."""
