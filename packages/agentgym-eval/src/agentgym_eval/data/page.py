"""Data cards as the `README.md` of a dataset: Markdown with the YAML header that `datasets` and its hub read.

The header assigns files to splits and types to columns, so that nothing has to be inferred from the first lines.
https://huggingface.co/docs/hub/datasets-manual-configuration
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from agentgym_envs.episodes.episode import SCHEMA as EPISODE_SCHEMA

from agentgym_eval.data.card import SCHEMA, Card, Share, Spread

Files = Mapping[str, Mapping[str, str]]
"""Paths by split, by environment name; a single file for all environments has an empty name."""

_FEATURES = """
  features:
  - {name: schema, dtype: string}
  - {name: env, dtype: string}
  - {name: task_id, dtype: string}
  - {name: split, dtype: string}
  - {name: category, dtype: string}
  - {name: difficulty, dtype: int64}
  - {name: policy, dtype: string}
  - {name: sample, dtype: int64}
  - {name: instructions, dtype: string}
  - name: turns
    list:
    - {name: observation, dtype: string}
    - name: reply
      struct:
      - {name: text, dtype: string}
      - {name: finish, dtype: string}
      - name: sample
        struct:
        - {name: prompt, list: int64}
        - {name: ids, list: int64}
        - {name: logprobs, list: float64}
        - {name: version, dtype: int64}
        - {name: fresh, dtype: bool}
        - {name: versions, list: int64}
      - name: usage
        struct:
        - {name: prompt_tokens, dtype: int64}
        - {name: completion_tokens, dtype: int64}
        - {name: cached_tokens, dtype: int64}
      - {name: seconds, dtype: float64}
      - {name: finish_reason, dtype: string}
      - {name: reasoning, dtype: string}
      - {name: noise, dtype: bool}
      - {name: expert, dtype: bool}
      - {name: label, dtype: string}
      - {name: label_error, dtype: string}
    - {name: action, dtype: string}
    - {name: valid, dtype: bool}
    - {name: reward, dtype: float64}
    - {name: state_key, dtype: string}
    - {name: kind, dtype: string}
    - {name: trial, dtype: int64}
    - {name: loss, dtype: bool}
    - {name: picture, dtype: string}
  - {name: final_observation, dtype: string}
  - {name: stop, dtype: string}
  - {name: score, dtype: float64}
  - {name: success, dtype: bool}
  - {name: error, dtype: string}
  - name: seconds
    struct:
    - {name: world, dtype: float64}
    - {name: policy, dtype: float64}
  - {name: agent, dtype: string}
  - {name: tools, list: json}
  - {name: cluster, dtype: string}
  - {name: final_picture, dtype: string}
"""


def page(card: Card, name: str, files: Files) -> str:
    """Return the card as Markdown with its header.

    Args:
        card: The data card.
        name: Name of the dataset.
        files: Paths of the episode files, relative to the page.
    """
    return "\n".join([*_header(name, files), "", f"# {name}", "", *_body(card, files)]) + "\n"


def _header(name: str, files: Files) -> Iterator[str]:
    default = {
        split: [paths[split] for paths in files.values() if split in paths]
        for split in dict.fromkeys(split for paths in files.values() for split in paths)
    }
    each = {world: {split: [path] for split, path in paths.items()} for world, paths in files.items() if paths}
    configs = ({"default": default} if default else {}) | (each if len(each) > 1 else {})
    yield "---"
    yield f"pretty_name: {json.dumps(name)}"
    yield 'task_categories: ["text-generation"]'
    yield 'tags: ["agents", "agentgym", "trajectories"]'
    yield "configs:" if configs else "configs: []"
    for config, splits in configs.items():
        yield f"- config_name: {json.dumps(config)}"
        yield "  data_files:"
        for split, paths in splits.items():
            yield f"  - {{split: {split}, path: {json.dumps(paths)}}}"
    yield "dataset_info:" if configs else "dataset_info: []"
    for config in configs:
        yield f"- config_name: {json.dumps(config)}{_FEATURES.rstrip()}"
    yield "---"


def _body(card: Card, files: Files) -> Iterator[str]:
    yield (
        f"Episodes of agents in text environments, one JSON line each (schema `{EPISODE_SCHEMA}`; card: `{SCHEMA}`). "
        "Every turn has the observation, the reply, the action parsed from it and the reward; `agent` is the agent's "
        "reply format and habits. Failed episodes are excluded."
    )
    shares = (*card.worlds, card.total) if len(card.worlds) > 1 else card.worlds
    yield from _section("Counts", shares, _COUNTS)
    yield "\nSuccess and score: means over the kept episodes; in parentheses, over all that did not fail."
    yield from _section("Lengths: mean (median, maximum) over the kept episodes", shares, _LENGTHS)
    yield from _section("Kept episodes by", card.worlds, _GROUPS)
    yield "\n## Settings and versions\n"
    used = {"usage": card.usage} if card.usage else {}
    yield from _code("json", json.dumps({"settings": card.settings, "versions": card.versions} | used, indent=2))
    yield "\n## Loading\n"
    yield from _code("python", _reading(files))


def _section(title: str, shares: Sequence[Share], columns: Mapping[str, Callable[[Share], str]]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield _row(["environment", *columns])
    yield _row(["---"] * (len(columns) + 1))
    for share in shares:
        yield _row([share.env or "all", *(cell(share) for cell in columns.values())])


_COUNTS: Mapping[str, Callable[[Share], str]] = {
    "tasks": lambda share: f"{share.tasks:,}",
    "played": lambda share: f"{share.played:,}",
    "failed": lambda share: f"{share.failed:,}",
    "kept": lambda share: f"{share.kept:,}",
    "share kept": lambda share: f"{share.kept_share:.1%}",
    "duplicates": lambda share: f"{share.duplicates:,}",
    "success": lambda share: f"{_percent(share.success)} ({_percent(share.success_played)})",
    "score": lambda share: f"{_percent(share.score)} ({_percent(share.score_played)})",
}
_LENGTHS: Mapping[str, Callable[[Share], str]] = {
    "actions": lambda share: _spread(share.lengths.actions),
    "turns": lambda share: _spread(share.lengths.turns),
    "characters in replies": lambda share: _spread(share.lengths.said),
    "characters in total": lambda share: _spread(share.lengths.characters),
}
_GROUPS: Mapping[str, Callable[[Share], str]] = {
    "split": lambda share: _groups(share.splits),
    "policy": lambda share: _groups(share.policies),
    "agent": lambda share: _groups(share.agents),
    "category": lambda share: _groups(share.categories),
    "stop reason": lambda share: _groups(share.stops),
    "kind of turn": lambda share: _groups(share.kinds),
}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _spread(spread: Spread | None) -> str:
    return f"{spread.mean:,.1f} ({spread.median:,g}, {spread.most:,g})" if spread else "-"


def _groups(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'unnamed'} {count:,}" for name, count in counts.items()) or "-"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _code(language: str, body: str) -> Iterator[str]:
    yield f"```{language}"
    yield body
    yield "```"


def _reading(files: Files) -> str:
    paths = [path for splits in files.values() for path in splits.values()]
    lines = ["from agentgym_envs import read_episodes", "from datasets import load_dataset", ""]
    if "" in files:
        lines += [f'rows = load_dataset("json", data_files="{paths[0]}")']
    else:
        lines += ['rows = load_dataset(".")  # the folder of this page']
    if len(files) > 1:
        lines += [f'rows = load_dataset(".", "{next(iter(files))}")  # one environment']
    return "\n".join([*lines, *(f'episodes = list(read_episodes("{path}"))' for path in paths[:1])])
