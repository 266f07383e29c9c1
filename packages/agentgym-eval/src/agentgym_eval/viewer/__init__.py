"""The viewer: runs and episodes on disk as pages for a browser, served live or exported as files.

Rooms: `runs` finds what is below a folder, `index` makes its episodes searchable, `links` alone knows what pages are
called, `site` renders, `app` serves, `cli` is the command `view`. Reads files, and knows nothing of training but them.
"""
