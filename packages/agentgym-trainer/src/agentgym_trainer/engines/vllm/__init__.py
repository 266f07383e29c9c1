"""Engines that sample with vLLM, in this process or through a server."""
