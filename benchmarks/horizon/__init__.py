"""The study of horizon schedules; `run.py` is its command."""
