"""Check every call of this project into vLLM against the Python sources of vLLM's CUDA wheel, without a GPU.

    uv run python scripts/check_vllm_calls.py                      # downloads the pinned wheel, some 330 MB
    uv run python scripts/check_vllm_calls.py --sources FOLDER     # a folder that contains vLLM's package, unpacked

The calls are read from our sources: imported names, calls and attributes of vLLM's objects, `collective_rpc` names,
HTTP routes with their parameters, environment variables, and the flags of servers that we start or document. They are
compared with vLLM's definitions by `ast`; nothing of vLLM is imported. Values and behaviour aren't checked.

Run it before the pinned version of vLLM changes. It ends with exit code 1 if a call doesn't fit.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from vllm_sources import Definition, Function, Sources, misfit, signature_of

ROOT = Path(__file__).parents[1]
CODE = ROOT / "packages/agentgym-trainer/src/agentgym_trainer/engines/vllm"
WORKER = "vllm.v1.worker.gpu_worker.Worker"
ARGUMENTS = "vllm.engine.arg_utils.EngineArgs"
RUNNERS = ("vllm.v1.worker.gpu_model_runner.GPUModelRunner", "vllm.v1.worker.gpu.model_runner.GPUModelRunner")
_MODEL_CONFIG = "vllm.config.model.ModelConfig"
_CLIENT = "vllm.v1.engine.core_client.InprocClient"
OBJECTS: dict[str, dict[str, tuple[str, ...]]] = {
    "in_process.py": {
        "self._engine": ("vllm.v1.engine.llm_engine.LLMEngine",),
        "client": (_CLIENT,),
        "self._engine.model_config": (_MODEL_CONFIG,),
        "self._engine.model_executor": ("vllm.v1.executor.uniproc_executor.UniProcExecutor",),
        "super()": ("vllm.v1.executor.uniproc_executor.UniProcExecutor",),
        "arguments": (ARGUMENTS,),
        "config": ("vllm.config.vllm.VllmConfig",),
        "output": ("vllm.outputs.RequestOutput",),
        "reply": ("vllm.outputs.CompletionOutput",),
        "span": ("vllm.outputs.WeightVersionSpan",),
    },
    "worker.py": {
        "self": (WORKER,),
        "self.vllm_config": ("vllm.config.vllm.VllmConfig",),
        "self.vllm_config.device_config": ("vllm.config.device.DeviceConfig",),
        "self.vllm_config.model_config": (_MODEL_CONFIG,),
        "model": (_MODEL_CONFIG,),
        "lora": ("vllm.config.lora.LoRAConfig",),
        "worker": (WORKER,),
        "worker.model_runner": RUNNERS,
        "manager": ("vllm.lora.worker_manager.LRUCacheWorkerLoRAManager",),
        "manager.lora_config": ("vllm.config.lora.LoRAConfig",),
        "slots": ("vllm.lora.model_manager.LRUCacheLoRAModelManager",),
        "helper": ("vllm.lora.peft_helper.PEFTHelper",),
    },
}
"""vLLM's classes of the objects that our sources call without annotations, by file and expression."""
ENGINE_SETTINGS = ("__init__", "_scheduling", "_adapters")
"""Functions of `in_process.py` whose dictionaries become arguments of `EngineArgs`."""
_FLAG = re.compile(r"--([a-z][a-z0-9-]+)")


@dataclass(frozen=True, order=True)
class Finding:
    """A use of vLLM in our sources, and what is wrong with it (empty: nothing)."""

    place: str
    use: str
    fault: str = ""


class Checker:
    """Compares our sources with vLLM's."""

    def __init__(self, vllm: Sources, ours: Mapping[str, str]) -> None:
        """Take vLLM's sources, and ours as texts by the names of their files."""
        self._vllm = vllm
        self._trees = {name: ast.parse(text) for name, text in ours.items()}
        self._entrypoints = vllm.texts("vllm/entrypoints")

    def findings(self) -> list[Finding]:
        """Check all uses."""
        found: list[Finding] = []
        for file, tree in self._trees.items():
            found += self._imports(file, tree)
            found += self._uses(file, tree)
            found += self._requests(file, tree)
            found += self._unused(file, tree)
        return sorted({*found, *self._settings()})

    def flags(self, place: str, words: str, environment: bool = True) -> Iterator[Finding]:
        """Check the flags, and the environment variables, of a server's command line."""
        arguments = "\n".join(ast.unparse(node) for node in self._flag_classes())
        for flag in sorted(set(_FLAG.findall(words))):
            field = flag.replace("-", "_")
            names = {field, field.removeprefix("no_")}
            known = any(re.search(rf"^    {name}:", arguments, re.MULTILINE) for name in names)
            known = known or any(f'"--{flag}"' in text for text in self._entrypoints.values())
            yield Finding(place, f"--{flag}", "" if known else "vLLM's server has no such flag")
        variables = self._vllm.texts("vllm")[self._vllm.path("vllm.envs")]
        for name in sorted(set(re.findall(r"\bVLLM_\w+", words))) if environment else ():
            yield Finding(place, name, "" if f'"{name}"' in variables else "vLLM reads no such variable")

    def _flag_classes(self) -> Iterator[ast.AST]:
        for name in ("AsyncEngineArgs", "EngineArgs"):
            yield self._named(f"vllm.engine.arg_utils.{name}").node
        for path, text in self._entrypoints.items():
            if path.name == "cli_args.py":
                yield from (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))

    def _named(self, name: str) -> Definition:
        module, _, attribute = name.rpartition(".")
        found = self._vllm.find(module, attribute)
        if found is None:
            raise SystemExit(f"vLLM has no {name}; correct OBJECTS in {Path(__file__).name}.")
        return found

    def _imports(self, file: str, tree: ast.AST) -> Iterator[Finding]:
        for module, name in imported(tree).values():
            found = self._vllm.find(module, name)
            yield Finding(file, f"from {module} import {name}", "" if found else "there is no such name")

    def _uses(self, file: str, tree: ast.AST) -> Iterator[Finding]:
        """Check calls of imported names, and calls and attributes of `OBJECTS`."""
        objects, names = OBJECTS.get(file, {}), imported(tree)
        for function in [n for n in ast.walk(tree) if isinstance(n, Function)]:
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and (classes := objects.get(ast.unparse(node.value))):
                    yield from (self._attribute(file, node, name) for name in classes)
                if isinstance(node, ast.Call):
                    yield from self._call(file, node, function, names)

    def _attribute(self, file: str, node: ast.Attribute, name: str) -> Finding:
        known = self._vllm.member(self._named(name), node.attr) is not None
        return Finding(file, ast.unparse(node), "" if known else f"{name} has no {node.attr}")

    def _call(
        self, file: str, call: ast.Call, function: ast.AST, names: Mapping[str, tuple[str, str]]
    ) -> Iterator[Finding]:
        callee, objects = call.func, OBJECTS.get(file, {})
        if isinstance(callee, ast.Name) and callee.id in names and (found := self._vllm.find(*names[callee.id])):
            signature = self._vllm.signature(found)
            yield self._fits(file, call, function, signature and (lambda *a, **k: misfit(signature, *a, **k)))
        if not isinstance(callee, ast.Attribute):
            return
        receiver = ast.unparse(callee.value)
        classes = objects.get(receiver, ())
        if receiver in names:
            classes = (".".join(names[receiver]),)
        for name in classes:
            yield self._method(file, call, function, name, callee.attr)
        if callee.attr == "collective_rpc" and isinstance(call.args[0], ast.Constant):
            yield from self._remote(file, str(call.args[0].value), call, function)
        if callee.attr == "call_workers" and isinstance(call.args[0], ast.Constant):
            yield self._extension(file, call)
        if callee.attr == "wake_up":
            yield from self._tags(file, call)

    def _method(self, file: str, call: ast.Call, function: ast.AST, name: str, method: str) -> Finding:
        node = self._vllm.member(self._named(name), method)
        if not isinstance(node, Function):
            return Finding(file, ast.unparse(call), "" if node else f"{name} has no {method}")
        signature = signature_of(node, bound=True)
        return self._fits(file, call, function, lambda *a, **k: misfit(signature, *a, **k))

    def _fits(self, file: str, call: ast.Call, function: ast.AST, check: Callable[..., str | None] | None) -> Finding:
        positional, names, partial = arguments(call, function)
        fault = check(positional, names, partial=partial) if check else "its signature isn't known"
        return Finding(file, ast.unparse(call), fault or "")

    def _remote(self, file: str, method: str, call: ast.Call, function: ast.AST) -> Iterator[Finding]:
        """Check a call by name on the workers; a worker may pass all arguments on to its model runner."""
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        args, names = given.get("args"), _keys(given.get("kwargs"), function)
        positional = len(args.elts) if isinstance(args, ast.Tuple) else 0
        for name in (WORKER, *RUNNERS):
            node = self._vllm.member(self._named(name), method)
            if isinstance(node, Function):
                fault = misfit(signature_of(node, bound=True), positional, names, partial=False)
                yield Finding(file, f"{name}.{method}({', '.join(names)})", fault or "")
            elif name == WORKER:
                yield Finding(file, f"{name}.{method}", f"{WORKER} has no {method}")

    def _extension(self, file: str, call: ast.Call) -> Finding:
        """Check a call by name of a method with which our extension adds to the workers."""
        method = call.args[0]
        assert isinstance(method, ast.Constant)
        ours = [n for n in ast.walk(self._trees["worker.py"]) if isinstance(n, Function) and n.name == method.value]
        fault = "" if ours else "the extension has no such method"
        if ours and not any(isinstance(arg, ast.Starred) for arg in call.args):
            fault = misfit(signature_of(ours[0], bound=True), len(call.args) - 1, [], partial=False) or ""
        return Finding(file, ast.unparse(call), fault)

    def _tags(self, file: str, call: ast.Call) -> Iterator[Finding]:
        """Check the parts that an engine wakes up against the tags of the worker's memory pools."""
        tree = self._vllm.module(WORKER.rpartition(".")[0])
        assert tree
        keywords = [k.value for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "tag"]
        tags = {value.value for value in keywords if isinstance(value, ast.Constant)}
        for node in ast.walk(call):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                fault = "" if node.value in tags else f"there are: {', '.join(sorted(map(str, tags)))}"
                yield Finding(file, f"wake_up of {node.value}", fault)

    def _requests(self, file: str, tree: ast.AST) -> Iterator[Finding]:
        """Check the routes of HTTP requests, and the names of their parameters."""
        for function in [n for n in ast.walk(tree) if isinstance(n, Function)]:
            for call in [n for n in ast.walk(function) if isinstance(n, ast.Call) and _sends(n)]:
                words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                path = next((word for word in words if word.startswith("/")), None)
                if path is not None:
                    yield self._route(file, call, function, path, words[0].lower() if len(words) > 1 else "get")

    def _route(self, file: str, call: ast.Call, function: ast.AST, path: str, method: str) -> Finding:
        use = f"{method.upper()} {path}"
        for source, text in self._entrypoints.items():
            for node in ast.walk(ast.parse(text)) if f'"{path}"' in text else ():
                if isinstance(node, Function) and any(_serves(d, method, path) for d in node.decorator_list):
                    unknown = [key for key in request_keys(call, function) if not self._takes(source, node, key)]
                    return Finding(file, use, f"it takes no {', '.join(unknown)}" if unknown else "")
        return Finding(file, use, "the server has no such route")

    def _takes(self, source: Path, handler: Function, key: str) -> bool:
        """Whether a route takes a parameter: an argument, a field of its request, or a key that it reads."""
        if key in {arg.arg for arg in (*handler.args.args, *handler.args.kwonlyargs)}:
            return True
        if any(isinstance(n, ast.Constant) and n.value == key for n in ast.walk(handler)):
            return True
        module = self._vllm.name(source)
        for arg in handler.args.args:
            found = self._vllm.find(module, ast.unparse(arg.annotation)) if arg.annotation else None
            if found and isinstance(found.node, ast.ClassDef) and self._vllm.member(found, key):
                return True
        return False

    def _settings(self) -> Iterator[Finding]:
        """Check the dictionaries that become arguments of `EngineArgs`."""
        tree, known = self._trees.get("in_process.py"), self._vllm.fields(self._named(ARGUMENTS))
        for function in [n for n in ast.walk(tree or ast.Module([], [])) if isinstance(n, Function)]:
            for node in ast.walk(function) if function.name in ENGINE_SETTINGS else ():
                for key in node.keys if isinstance(node, ast.Dict) else ():
                    if isinstance(key, ast.Constant):
                        fault = "" if key.value in known else f"{ARGUMENTS} has no such field"
                        yield Finding("in_process.py", f"EngineArgs({key.value}=…)", fault)

    def _unused(self, file: str, tree: ast.AST) -> Iterator[Finding]:
        """Report expressions of `OBJECTS` that no longer occur."""
        present = {ast.unparse(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for expression in sorted(OBJECTS.get(file, {}).keys() - present):
            yield Finding(file, expression, f"it doesn't occur any more; remove it from {Path(__file__).name}")


def imported(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """Return the module and name of everything that is imported from vLLM, by its local name."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").split(".")[0] == "vllm"]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in nodes for alias in node.names}


def arguments(call: ast.Call, function: ast.AST) -> tuple[int, list[str], bool]:
    """Return the number of positional arguments, the keywords, and whether there may be more."""
    names, partial = [keyword.arg for keyword in call.keywords if keyword.arg], False
    for keyword in call.keywords:
        if keyword.arg is None:
            keys = _keys(keyword.value, function)
            names, partial = [*names, *keys], partial or not keys
    stars = any(isinstance(arg, ast.Starred) for arg in call.args)
    return sum(not isinstance(arg, ast.Starred) for arg in call.args), names, partial or stars


def request_keys(call: ast.Call, function: ast.AST) -> list[str]:
    """Return the names of a request's query parameters and of the fields of its body."""
    values = [keyword.value for keyword in call.keywords if keyword.arg in ("json", "params")]
    return [key for value in values for key in _keys(value, function)]


def _keys(value: ast.AST | None, function: ast.AST) -> list[str]:
    """Return the keys of a dictionary, or of the dictionary that a local name was assigned."""
    if isinstance(value, ast.Name):
        assigned = [n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.AnnAssign)]
        targets = [(t, n.value) for n in assigned for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
        value = next((v for t, v in targets if isinstance(t, ast.Name) and t.id == value.id), None)
    if not isinstance(value, ast.Dict):
        return []
    return [key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def _sends(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "post", "request", "_request")


def _serves(decorator: ast.AST, method: str, path: str) -> bool:
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute) and decorator.args):
        return False
    first = decorator.args[0]
    return decorator.func.attr == method and isinstance(first, ast.Constant) and first.value == path


def server_commands() -> dict[str, str]:
    """Return the command lines of vLLM servers that we start, suggest in messages, or document, by their place."""
    from agentgym_trainer.engines.vllm import process
    from agentgym_trainer.engines.vllm.requirements import COMMAND

    commands = {"requirements.py": COMMAND}
    for cpu in (False, True):
        with patch.object(process, "is_cpu_build", lambda cpu=cpu: cpu), patch.object(process, "find_spec"):
            settings = {"lora_rank": 8, "transfer": "ipc", "sleeps": True}
            command = process.VllmServerSettings(Path("model"), 4096, "bfloat16", 0.4, "0", **settings).command(1)
        commands[f"process.py, {'CPU' if cpu else 'GPU'}"] = " ".join(command)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            if match := re.search(r"(?:\w+=\S+ )*vllm serve .*?(?=[&`]|$)", line):
                commands[f"{page.relative_to(ROOT)}: {match[0][:30]}"] = match[0]
    return commands


def our_sources() -> dict[str, str]:
    """Return the texts of our modules that call vLLM."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(CODE.glob("*.py"))}


def pinned() -> str:
    """Return the requirement of the extra `vllm`."""
    project = tomllib.loads((ROOT / "packages/agentgym-trainer/pyproject.toml").read_text(encoding="utf-8"))
    return project["project"]["optional-dependencies"]["vllm"][0].split(";")[0].strip()


def download(folder: Path) -> Path:
    """Download vLLM's wheel with pip, and unpack its Python sources only."""
    wheels = folder / "wheels"
    tags = ("--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--python-version=3.11")
    command = ["uv", "tool", "run", "pip", "download", "--no-deps", *tags, f"--dest={wheels}", pinned()]
    subprocess.run(command, check=True)
    (wheel,) = wheels.glob("vllm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    wheel.unlink()
    return folder


def check(folder: Path) -> list[Finding]:
    """Check all uses of vLLM against the sources in a folder."""
    checker = Checker(Sources(folder), our_sources())
    found = checker.findings()
    for place, words in server_commands().items():
        found += checker.flags(place, words)
    return found


def main() -> None:
    """Check, print every use and what is wrong, and end with 1 if anything is."""
    parser = argparse.ArgumentParser(description="Check our calls into vLLM against its CUDA wheel, without a GPU.")
    parser.add_argument("--sources", type=Path, help="folder that contains the package vllm; default: download it")
    sources = parser.parse_args().sources
    with tempfile.TemporaryDirectory() as temporary:
        found = check(sources or download(Path(temporary)))
    for finding in found:
        mark = f"WRONG: {finding.fault}" if finding.fault else "ok"
        print(f"{finding.place:24} {' '.join(finding.use.split())[:100]:100} {mark}")
    wrong = sum(bool(finding.fault) for finding in found)
    print(f"{len(found)} uses of {pinned()} checked, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
