"""Chromium through Playwright: sessions, tabs, logins, and waiting for idle pages."""
