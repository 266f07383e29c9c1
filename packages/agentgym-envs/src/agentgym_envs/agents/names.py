"""The names of reply formats. Nothing is imported here, so that completion is fast."""

FORMAT_NAMES = ("react", "bare", "tags", "function-call", "code-act")
"""The keys of `formats.REPLY_FORMATS`."""
GROUP = "agentgym.agents"
"""Entry points `NAME = MODULE:CLASS` of other packages, for reply formats. Episodes record MODULE:CLASS."""
