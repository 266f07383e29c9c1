"""Texts of the help of commands with settings: example command lines, the flags that most users need, and synonyms,
names that other programs have for their flags.
"""

from __future__ import annotations

EXAMPLES = {
    "serve": (
        "serve",
        "serve --host 0.0.0.0 --port 9000 --token-file tokens.txt --workers 4",
        "serve --world my_worlds:mine/World-v0 --option searchqa:retriever=pyserini:runs/index",
    ),
    "searchqa-index": (
        "searchqa-index corpus.jsonl runs/index",
        "searchqa-index corpus.tsv runs/bm25 --backend bm25 --questions questions.jsonl",
    ),
    "install-browser": (
        "install-browser",
        "install-browser --source npm",
    ),
}
COMMON = {
    "serve": {
        "host": "address to listen on; all but loopback addresses require --token-file",
        "port": "port to listen on; 0 chooses a free one",
        "token-file": "file with access tokens, one per line",
        "workers": "number of worker processes for the sessions",
        "world": "MODULE:ID of an environment of yours; may be repeated",
        "option": "option of an environment, as WORLD:KEY=VALUE; may be repeated",
        "retriever": "also answer Search-R1's POST /retrieve, over bm25, bm25:CORPUS or pyserini:INDEX",
        "max-sessions": "maximum number of open sessions",
    }
}
"""The flags in the short help of commands that have many, with what they are."""
SYNONYMS = {
    "serve": {
        "env": "--world",
        "options": "--option",
        "token": "--token-file, a file",
        "address": "--host",
        "processes": "--workers",
        "timeout": "--deadline",
    },
    "searchqa-index": {"force": "--overwrite"},
    "install-browser": {},
}
