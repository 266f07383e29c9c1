"""Workbench, the code host: projects, issues, merge requests, commits and the people behind them."""
