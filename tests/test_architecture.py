"""The house rules on who may import whom, and what importing the package may load."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import agentkit_fast

PACKAGE = Path(agentkit_fast.__file__).parent
# Heavy partners are imported inside the function or method that needs them, in the module that adapts them.
PARTNERS = {
    "httpx2": {"runners.http", "runners._http", "tokens"},
    "jinja2": {"prompt"},
    "jsonschema_rs": {"validation"},
    "llama_cpp": {"runners._local", "runners.local", "cli", "tokens"},
    "llguidance": {"runners._local", "runners.local", "cli"},
    "mcp": {"mcp", "cli"},
    "numpy": {"runners._local", "endpoint_tokenizer", "tokens", "prompt", "runners.local"},
    "opentelemetry": {"tracing"},
    "tokenizers": {"tokens"},
    "langchain_core": {"hosts"},
    "agents": {"hosts"},
    "pydantic_ai": {"hosts"},
}
FORBIDDEN = {
    "turn": ("stores", "runners", "hosts", "cli"),
    "session": ("stores", "runners", "hosts", "cli"),
    "stores": ("session", "turn", "shaping", "compaction", "runners", "hosts", "cli"),
    "runners": ("session", "turn", "shaping", "compaction", "stores", "hosts", "cli"),
    "entries": ("session", "turn", "shaping", "stores", "runners", "hosts", "cli"),
    "messages": ("entries", "session", "turn", "shaping", "stores", "runners", "hosts", "cli"),
    "errors": ("entries", "messages", "session", "turn", "shaping", "stores", "runners", "hosts", "cli"),
}


@functools.cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def _is_type_checking(test: ast.expr) -> bool:
    """A block nobody runs. Looked at by node: to write every condition out as text took most of the time."""
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def imports(tree: ast.AST) -> set[str]:
    """Dotted names imported anywhere below `tree`, but for blocks under TYPE_CHECKING."""
    names: set[str] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            todo.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(node.module)
        todo.extend(ast.iter_child_nodes(node))
    return names


def below(name: str, parent: str) -> bool:
    return name == parent or name.startswith(parent + ".")


@pytest.mark.parametrize("name", sorted(modules()))
def test_direction(name: str) -> None:
    wanted = imports(modules()[name])
    for source, targets in FORBIDDEN.items():
        if not below(name, source):
            continue
        for target in targets:
            full = f"agentkit_fast.{target}"
            assert not any(below(other, full) for other in wanted), f"{name} must not import {full}"
    for partner, homes in PARTNERS.items():
        if any(below(other, partner) for other in wanted):
            assert any(below(name, home) for home in homes), f"{name} must not import {partner}"


def test_rust_core_knows_nothing_of_python() -> None:
    manifest = Path(__file__).resolve().parent.parent / "rust" / "core" / "Cargo.toml"
    if not manifest.exists():
        pytest.skip("not a source checkout")
    assert "pyo3" not in manifest.read_text(encoding="utf-8")


def test_importing_the_package_loads_no_partner() -> None:
    script = (
        "import sys, agentkit_fast\n"
        f"bad = [name for name in {sorted(PARTNERS)!r} if name in sys.modules]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd="/")


def test_every_public_name_is_there() -> None:
    assert agentkit_fast.__all__ == sorted(set(agentkit_fast.__all__))
    for name in agentkit_fast.__all__:
        assert getattr(agentkit_fast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        agentkit_fast.Sesion
