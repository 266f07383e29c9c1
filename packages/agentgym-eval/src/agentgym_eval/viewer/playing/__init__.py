"""Playing a world by hand, and letting a policy go on from there.

- `game`: one attempt at one task, played by whoever is asked next. `saving`: its episode on disk.
- `session`: a game on a thread of its own. `table`: all sessions that are open.
- `pages`: what a browser is shown.
"""
