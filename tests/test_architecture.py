"""The rules of docs/architecture.md, held by reading the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("harness", "workloads", "adapters", "results")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# An outside library lives in as few files as can be.
ONE_HOME = {
    "matplotlib": r"results/plots/\w+\.py",
    "yaml": r"harness/spec/yaml_source\.py",
    "pydantic": r"harness/spec/(field_models|engine_models|models|errors)\.py",
    "jinja2": r"results/report\.py",
    "pyarrow": r"results/parquet\.py",
    "scipy": r"(results/(statistics|plots/\w+)|harness/prediction/fit)\.py",
    "rich": r"(harness/(commands/sweeps|output|progress|plan/text)|results/(engine_)?tables)\.py",
}
# Results are functions of stored records: no clock, no network, no chance.
NOT_FOR_RESULTS = {"time", "socket", "asyncio", "aiohttp", "urllib", "http", "random", "subprocess"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_follow_the_arrows(path: Path) -> None:
    """Only harness knows the other packages; they know neither each other nor harness."""
    package = path.relative_to(ROOT).parts[0]
    if package == "harness":
        return

    used = {module for module in imports(parsed(path)) if module.split(".")[0] == "harness"}

    assert {
        module for module in used if not f"{module}.".startswith(f"harness.{package}.")
    } == set()


def test_no_file_imports_a_bare_name() -> None:
    """`adapters`, `results` and `workloads` may be anybody's: ours are below `harness`."""
    bare = {"adapters", "results", "workloads"}
    for folder in (*PACKAGES, "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            used = {module.split(".")[0] for module in imports(parsed(path))}
            assert not used & bare, name_of(path)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_imported_inside_a_function(path: Path) -> None:
    """A late import hides a cycle; only the command line may, for its start-up time."""
    if name_of(path) == "harness/cli.py":
        return

    for function in functions(parsed(path)):
        late = [
            node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not late, f"{function.name} imports late"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_and_functions_stay_small(path: Path) -> None:
    """A file has at most 400 lines, a function at most 60."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400

    for function in functions(parsed(path)):
        assert (function.end_lineno or 0) - function.lineno < 60, function.name


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_outside_libraries_have_one_home(path: Path) -> None:
    """Whoever replaces a library finds it in one place."""
    used = {module.split(".")[0] for module in imports(parsed(path))}

    for library, home in ONE_HOME.items():
        if library in used:
            assert re.fullmatch(home, name_of(path)), f"{library} is imported here"


def test_results_read_no_clock_and_no_network() -> None:
    """A mended formula needs no engine: everything in results is a function of the store."""
    for path in SOURCES:
        if path.is_relative_to(ROOT / "results"):
            used = {module.split(".")[0] for module in imports(parsed(path))}
            assert not used & NOT_FOR_RESULTS, name_of(path)


def test_the_instrument_never_imports_the_specimens_insides() -> None:
    """Of the embedded engine, harness uses its doors only."""
    doors = {
        "harness.adapters.embedded.core",
        "harness.adapters.embedded.sequence",
        "harness.adapters.embedded.adapter",
        "harness.adapters.embedded.server",
        "harness.adapters.embedded.capacity",
        "harness.adapters.embedded.prediction",
        "harness.adapters.embedded.fitted",
        "harness.adapters.embedded.profile_file",
    }
    for path in SOURCES:
        if path.is_relative_to(ROOT / "harness"):
            modules = {
                node.module
                for node in ast.walk(parsed(path))
                if isinstance(node, ast.ImportFrom) and node.module
            }
            inside = {
                module for module in modules if module.startswith("harness.adapters.embedded")
            }
            assert inside <= doors, name_of(path)


def test_modules_form_no_cycle() -> None:
    """Every module can be understood after the ones that it imports."""
    names = {
        f"harness.{name_of(path)[:-3].replace('/', '.').removesuffix('.__init__')}".replace(
            "harness.harness", "harness"
        ): path
        for path in SOURCES
    }
    edges = {
        name: {used for used in imports(parsed(path)) if used in names and used != name}
        for name, path in names.items()
    }
    done: set[str] = set()
    while ready := {name for name, used in edges.items() if name not in done and used <= done}:
        done |= ready

    assert set(edges) - done == set()


def test_every_file_that_the_architecture_names_exists() -> None:
    """The page and the folder list cannot drift apart."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`((?:harness|workloads|adapters|results|tests|docs|examples)/[\w./-]+)`", page)
    )

    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_source_file_stands_in_the_architecture() -> None:
    """A reader finds each file's noun in the page."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    missing = [
        name_of(path) for path in SOURCES if path.stem != "__init__" and name_of(path) not in page
    ]
    assert missing == []
