"""The viewer: browser pages for the runs and episodes on disk, served live or exported as files.

`index` finds the runs below a folder and makes their episodes searchable, `pages` renders the HTML, `playing` runs
episodes interactively, and `server` serves or exports the pages. The command `view` is in `cli`. The viewer only reads
files and does not depend on the trainer.
"""
