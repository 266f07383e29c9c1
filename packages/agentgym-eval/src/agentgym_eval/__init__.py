"""Policies that need no torch, resumable runs, pass@k with intervals, reports.

Rooms, each imported by its name so that a command's `--help` loads none but `settings`:

- `settings`: what a run is asked for. `run`: plays it and resumes it. `store`: its folder on disk.
- `data`: episodes as data, and the formats of others. `tool_calls`: calls of functions in messages of others.
- `endpoint`: models behind OpenAI-compatible endpoints. `usage`: what they use.
- `policies`: oracle, random, scripted, and how those of other packages are found.
- `report`: figures of any episodes; `report(episodes, ks=(1, 4))`. `pass_at_k` and `intervals` are its arithmetic.
- `comparison`: two players on the same tasks. `evaluation`: reports and comparisons of runs. `reports`: as files.
- `provenance`: where a run comes from. `viewer`: runs and episodes in a browser.
"""
