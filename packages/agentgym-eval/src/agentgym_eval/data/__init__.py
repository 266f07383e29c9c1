"""Episodes as data: files of them, converted to and from what others read.

Rooms, each imported by its name so that a command's `--help` loads no more than it shows:

- `formats`: `read_data(paths)` gives the episodes in files of any format, told apart by their content; and `write`.
- `trl`, `agentgym`: one format each. `recorded`: conversations that somebody else wrote down, as episodes.
- `cli`: the command `convert`.
"""
