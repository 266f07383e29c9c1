"""MiniWoB++ as a task set: its pages, a server for them, and an oracle that follows a script for each page."""
