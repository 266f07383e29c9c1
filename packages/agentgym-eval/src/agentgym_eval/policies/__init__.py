"""Policies that need no torch: oracle, random, scripted, and OpenAI-compatible endpoints."""
