"""Workbench, the code host: projects, issues, merge requests, commits and people."""
