"""Chromium through Playwright: sessions, tabs and when a page is idle."""
