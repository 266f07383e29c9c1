"""Worlds on other machines: the client of our HTTP server, as an environment and as slots of a pool.

Knows the protocol (`/v1`) and nothing of how a server is made.
"""
