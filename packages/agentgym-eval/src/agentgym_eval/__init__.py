"""Policies that need no torch, evaluation runs, pass@k with intervals, reports."""
