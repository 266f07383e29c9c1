"""Episodes as data: reading and writing files of episodes in the formats of other libraries.

Import these modules by name, so that a command's `--help` loads no more than it needs:

- `formats`: `read_data(paths)` reads episodes from files of any format, detected from their content; `records` and
  `content` write them.
- `trl`, `agentgym`: one format each. `recorded`: recorded conversations as episodes.
"""
