"""Helpers without knowledge of environments: files, JSON, Java, Chromium, redaction."""
