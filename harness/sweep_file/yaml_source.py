"""The text of a sweep file turned into plain data, each value with its line. The only YAML here.

Three traps of YAML are shut: a key written twice is refused (the reader would keep the last in
silence), `on`/`off`/`yes`/`no` stay the words that they are (YAML 1.1 makes booleans of them), and
`1:30` or `010` are no numbers in base 60 or 8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.sweep_file.problems import Place, Problem, SpecError, spec_error

_OWN_TAGS = "tag:yaml.org,2002:"
_MOST_VALUES = 100_000  # a few nested aliases can stand for billions
_MOST_DIGITS = 30  # of a whole number: nothing here counts so far
_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_FROM_VARIABLE = re.compile(r"(?:(?:Bearer|Basic|Token) )?\$\{[^}]*\}")
_HIDDEN = '"(not shown)"'
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A sweep file as data: mappings, lists, words, numbers; and where each of them stands."""

    path: Path
    data: dict[str, Any]
    lines: Mapping[Place, int]  # from 1; a mapping's entry has the line of its key


def read_source(path: Path, environment: Mapping[str, str]) -> Source:
    """Return the data of a sweep file, its `${VARIABLES}` filled from `environment`.

    Raises `SpecError` for a file that cannot be read, is no YAML mapping, has a key twice, or
    names a variable that is not set; all of these at once where YAML could be read at all.
    """
    root = _compose(_text_of(path), path)
    walk = _Walk(path, environment)
    data = walk.value(root, ())
    if not isinstance(data, dict):
        walk.problems.insert(0, Problem((), "expected a mapping such as 'name: my-sweep'"))
    if walk.problems:
        raise spec_error(str(path), walk.problems, walk.lines)
    return Source(path=path, data=data, lines=walk.lines)


def text_without_headers(path: Path) -> str:
    """Return the text of a sweep file, the values of its headers hidden: stores keep this text.

    A value that is a `${VARIABLE}` stays. Raises `SpecError` as `read_source` does.
    """
    text = _text_of(path)
    secrets = set(_header_values(_compose(text, path), inside=False, walked=set()))
    for begin, end in sorted(secrets, reverse=True):
        line_end = "\n" if text[begin:end].endswith("\n") else ""  # of a block, which has several
        text = f"{text[:begin]}{_HIDDEN}{line_end}{text[end:]}"
    return text


def _header_values(
    node: yaml.Node, *, inside: bool, walked: set[tuple[int, bool]]
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each scalar that stands inside a mapping named `headers`."""
    if isinstance(node, yaml.ScalarNode):
        if inside and not _FROM_VARIABLE.fullmatch(node.value):
            yield node.start_mark.index, node.end_mark.index
        return
    if (id(node), inside) in walked:
        return
    walked.add((id(node), inside))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _header_values(value, inside=inside or key.value == "headers", walked=walked)
    else:
        for item in node.value:
            yield from _header_values(item, inside=inside, walked=walked)


def _text_of(path: Path) -> str:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise SpecError(f"{path}: not a regular file; expected YAML text in a file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file (looked in {Path.cwd()})") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: byte {error.start} is not UTF-8; expected YAML text") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def _compose(text: str, path: Path) -> yaml.Node:
    _check_characters(text, path)
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise SpecError(f"{path}: {_syntax_message(error)}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: no YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply for a sweep") from None
    finally:
        loader.dispose()
    if node is None:
        raise SpecError(f"{path}: the file is empty; expected a sweep")
    return node


def _check_characters(text: str, path: Path) -> None:
    """Refuse a character that YAML does not take, such as NUL, before its reader trips over it."""
    if found := yaml.SafeLoader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        character = f"U+{ord(found[0]):04X}"
        raise SpecError(f"{path}: line {line}: no YAML: the character {character} is not text")


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    started = error.context_mark
    since = f" ({error.context}, from line {started.line + 1})" if started and error.context else ""
    return f"{place}no YAML: {error.problem or error.context}{since}"


class _Walk:
    """Turns YAML nodes into data; gathers lines, and all problems instead of stopping at one."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self.path = path
        self.environment = environment
        self.lines: dict[Place, int] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()  # nodes being walked: an alias to one of them has no end

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if not node.tag.startswith(_OWN_TAGS) or "python" in node.tag:
            self.problems.append(Problem(place, f"the YAML tag {node.tag} is not taken"))
        if len(self.lines) > _MOST_VALUES:
            raise SpecError(
                f"{self.path}: more than {_MOST_VALUES:,} values; are aliases nested in aliases?"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if id(node) in self._open:
            self.problems.append(Problem(place, "this alias stands inside what it repeats"))
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
            return self._mapping(node, place)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, place: Place) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(place, "a key must be a word"))
                continue
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in data:
                before = self.lines[*place, key]
                message = f"the key '{key}' stands twice (lines {before} and {line}); keep one"
                self.problems.append(Problem((*place, key), message))
                continue
            self.lines[*place, key] = line
            data[key] = self.value(value_node, (*place, key))
        return data

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        text = self._filled(str(node.value), place)
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            self.problems.append(Problem(place, "this is not UTF-8; expected text"))
            return None
        if node.style is None and _NUMBER.fullmatch(text) and len(text) > _MOST_DIGITS:
            self.problems.append(Problem(place, f"a number of {len(text):,} digits is too large"))
            return None
        # A quoted scalar is a word whatever it looks like; only plain ones may be numbers.
        return _plain(text) if node.style is None else text

    def _filled(self, text: str, place: Place) -> str:
        return _VARIABLE.sub(lambda match: self._variable(match[1], place), text)

    def _variable(self, name: str, place: Place) -> str:
        found = self.environment.get(name, "")
        if not found:
            state = "is empty" if name in self.environment else "is not set"
            message = f"the environment variable {name} {state}; run with {name}=… before 'harness'"
            self.problems.append(Problem(place, message))
        return found


def _plain(text: str) -> str | int | float | bool | None:
    """Return an unquoted scalar as the value that it looks like; anything odd stays a word."""
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return int(text.replace("_", ""))
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text
