"""The names of policies. Nothing is imported here, so that completion and `agentgym list` are fast."""

GROUP = "agentgym.policies"
"""Entry points `NAME = MODULE:OBJECT`, where the object is what `custom.build_policy` takes."""

POLICIES = {
    "oracle": "The environment's own expert; it needs the environment in the same process.",
    "oracle:NOISE": "The expert that takes a random action with this probability, such as oracle:0.3.",
    "random": "A uniformly random choice among the available actions.",
    "scripted:FILE": "The actions in a text file, one a line, the same in every episode.",
    "openai:MODEL": "A model behind an OpenAI-compatible endpoint (OPENAI_BASE_URL, OPENAI_API_KEY).",
}
"""The policies of this package, as commands take them, with a description."""
