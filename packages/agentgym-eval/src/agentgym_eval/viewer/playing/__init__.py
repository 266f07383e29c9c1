"""Interactive play: a human plays an environment by hand, and a policy can take over at any turn.

- `game`: one attempt at one task; each reply comes from the human or a policy. `saving`: stores its episode on disk.
- `session`: a game with its own thread. `table`: all open sessions.
- `pages`: the routes and pages.
"""
