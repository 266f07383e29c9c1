"""Helpers that don't depend on environments: files, JSON, Java, Chromium, redaction."""
