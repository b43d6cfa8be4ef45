"""The rules of docs/architecture.md, held by reading the source."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from repository import ROOT

PACKAGES = ("harness", "workloads", "adapters", "results")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# An outside library lives in as few files as can be.
ONE_HOME = {
    "matplotlib": r"results/plots/\w+\.py",
    "yaml": r"harness/sweep_file/yaml_source\.py",
    "pydantic": r"(harness/sweep_file/form/\w+|results/(store/\w+|summary))\.py",
    "jinja2": r"results/report/page\.py",
    "pyarrow": r"results/store/parquet\.py",
    "scipy": r"(results/(statistics|plots/\w+)|harness/prediction/fit)\.py",
    "rich": r"(harness/(commands/sweeps|output|progress|plan/printed/plan)"
    r"|results/report/((engine_)?tables|terminal))\.py",
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


def module_of(path: Path) -> str:
    """Return the name by which a source file is imported."""
    name = name_of(path)[:-3].replace("/", ".").removesuffix(".__init__")
    return name if name.split(".")[0] == "harness" else f"harness.{name}"


def package_of(module: str) -> str:
    """Return the folder that a module stands in; a package is its own."""
    return module if module in PACKAGE_EXPORTS else module.rpartition(".")[0]


def doors(path: Path) -> Path:
    """Return the file of a package that lists its names: the stub, where they are loaded late."""
    stub = path.with_suffix(".pyi")
    return stub if stub.exists() else path


def exports(path: Path) -> frozenset[str]:
    """Return the `__all__` of a package."""
    for node in parsed(doors(path)).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name("__all__")], value=ast.List(elts=names))
                | ast.AnnAssign(target=ast.Name("__all__"), value=ast.List(elts=names))
            ):
                return frozenset(ast.literal_eval(name) for name in names)
    return frozenset()


PACKAGE_EXPORTS = {module_of(path): exports(path) for path in SOURCES if path.name == "__init__.py"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_reaches_past_the_door_of_a_folder(path: Path) -> None:
    """From another folder a module takes what that folder lists in `__all__`, and no more.

    Its own folder, and those above it, it may import from file by file.
    """
    own = f"{package_of(module_of(path))}."
    past = []
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("harness"):
            continue
        package = package_of(str(node.module))
        if not own.startswith(f"{package}."):
            listed = PACKAGE_EXPORTS[package] if package == node.module else frozenset()
            past += [f"{node.module}.{one.name}" for one in node.names if one.name not in listed]

    assert past == []


def test_packages_list_only_what_others_import() -> None:
    """A name that no other folder and no test imports need not be public."""
    used = {
        (node.module, one.name)
        for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }
    late = {("harness.commands", "command"), ("harness.commands", "is_foreseen")}

    unused = {(package, name) for package, names in PACKAGE_EXPORTS.items() for name in names}
    assert unused - used - late == set()


def test_no_exported_name_is_a_module_of_its_folder() -> None:
    """Importing the module would put it in the place of the name."""
    for path in SOURCES:
        if path.name == "__init__.py":
            modules = {file.stem for file in path.parent.iterdir()}
            assert not exports(path) & modules, name_of(path)


def test_the_instrument_never_imports_the_specimens_insides() -> None:
    """Of the embedded engine, harness uses its doors only."""
    doors = {"harness.adapters.embedded", "harness.adapters.embedded.server"}
    for path in SOURCES:
        if path.is_relative_to(ROOT / "harness"):
            modules = {
                node.module
                for node in ast.walk(parsed(path))
                if isinstance(node, ast.ImportFrom) and node.module
            }
            package = "harness.adapters.embedded"
            inside = {module for module in modules if module.startswith(package)}
            assert inside <= doors, name_of(path)


def test_a_folder_holds_at_most_a_dozen_files() -> None:
    """A reader takes in a folder at a glance."""
    folders = Counter(path.parent for path in SOURCES if path.name != "__init__.py")

    assert {name_of(folder): count for folder, count in folders.items() if count > 12} == {}


def modules_used(path: Path, names: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of ours that a file imports: a file where one is named, else its folder."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module in names:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                is_file = module in names and alias.name not in PACKAGE_EXPORTS.get(node.module, ())
                yield module if is_file else node.module


def test_modules_form_no_cycle() -> None:
    """Every module can be understood after the ones that it imports."""
    names = {module_of(path): path for path in SOURCES}
    edges = {name: {*modules_used(path, names)} - {name} for name, path in names.items()}
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


def test_every_folder_stands_in_the_architecture() -> None:
    """A reader finds each folder's purpose in the page."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    folders = {f"{name_of(path.parent)}/" for path in SOURCES}
    assert [folder for folder in sorted(folders) if f"`{folder}`" not in page] == []
