"""Evaluation without torch: policies, resumable runs, pass@k with confidence intervals, and reports.

Import subpackages by name, so that a command's `--help` loads only settings:

- `runs`: settings of runs, resumable runs, and comparisons of finished runs.
- `storage`: run folders on disk, with episodes, recorded replies and provenance.
- `data`: episodes as data, and conversion from and to the formats of other libraries.
- `policies`: oracle, random and scripted policies, models behind endpoints, and policies of other packages.
- `metrics`: metrics of episodes (pass@k, confidence intervals, token usage), and comparisons on the same tasks.
- `reports`: reports of runs as files. `viewer`: runs and episodes in a browser.
- `cli`: the commands. `util`: errors, progress display, signals, tool-call messages.
"""
