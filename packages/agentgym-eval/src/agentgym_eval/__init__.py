"""Policies that need no torch, resumable runs, pass@k with intervals, reports.

Rooms, each imported by its name so that a command's `--help` loads none but `settings`:

- `settings`: what a run is asked for. `run`: plays it and resumes it. `store`: its folder on disk.
- `policies`: oracle, random, scripted, and how those of other packages are found.
- `report`: figures of any episodes; `report(episodes, ks=(1, 4))`. `pass_at_k` and `intervals` are its arithmetic.
"""
