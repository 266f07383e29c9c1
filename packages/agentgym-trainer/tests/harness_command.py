"""A harness as a program: one request, then the reward that its first argument names."""

from __future__ import annotations

import json
import sys

from openai import OpenAI

task = json.load(sys.stdin)
with OpenAI() as client:
    reply = client.chat.completions.create(model="any", messages=[{"role": "user", "content": task["id"]}])
sys.stdout.write(f"The model says {reply.choices[0].message.content!r}.\n")
if sys.argv[1] == "crash":
    sys.exit("the agent has lost its tools")
sys.stdout.write(f"{sys.argv[1]}\n")
