from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sweep_file.problems import SpecError
from harness.sweep_file.quantities import (
    duration_ns,
    duration_text,
    plain_number,
    positive_share,
    share,
)
from harness.sweep_file.yaml_source import read_source

words = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=8).filter(
    lambda word: "${" not in word
)
numbers = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
documents = st.dictionaries(
    words,
    st.recursive(
        words | numbers | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=8,
    ),
    min_size=1,
    max_size=3,
)


def read(folder: Path, text: str, environment: dict[str, str] | None = None) -> Any:
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return read_source(path, environment or {})


def message(folder: Path, text: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(SpecError) as caught:
        read(folder, text, environment)
    return str(caught.value)


@settings(max_examples=50, deadline=None)
@given(document=documents)
def test_json_is_read_as_what_it_says(
    document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every JSON document, which is YAML too, comes out as the data that it holds."""
    text = json.dumps(document, ensure_ascii=False)

    assert read(tmp_path_factory.getbasetemp(), text).data == document


def test_each_value_has_its_line(tmp_path: Path) -> None:
    """A value is found again by its place: entries at their key, items where they begin."""
    source = read(tmp_path, "a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n")

    assert source.lines[("a",)] == 1
    assert source.lines["b", 0] == 3
    assert source.lines["b", 1, "c"] == 4
    assert source.lines["b", 1, "d"] == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("none", "none"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", 1000),
        ("-3", -3),
        ("1e3", 1000.0),
        (".5", 0.5),
        ('"5"', "5"),
        ("'true'", "true"),
        (".inf", ".inf"),
    ],
)
def test_a_word_is_a_number_or_switch_only_where_it_looks_like_one(
    tmp_path: Path, text: str, value: object
) -> None:
    """YAML 1.1's surprises (booleans of `off`, base 60, base 8, dates) stay words."""
    found = read(tmp_path, f"key: {text}\n").data["key"]

    assert found == value
    assert type(found) is type(value)


def test_variables_are_filled_and_then_read(tmp_path: Path) -> None:
    """A variable's text stands for itself: plain it may be a number, it never makes structure."""
    text = 'n: ${N}\npath: "${DIR}/x"\nquoted: "${N}"\n'

    data = read(tmp_path, text, {"N": "5", "DIR": "a: [b"}).data

    assert data == {"n": 5, "path": "a: [b/x", "quoted": "5"}


def test_every_missing_variable_is_named_with_its_line(tmp_path: Path) -> None:
    """A variable that is not set, or empty, would silently be another sweep."""
    told = message(tmp_path, "a: ${ONE}\nb: ${TWO}\n", {"TWO": ""})

    assert "line 1: a: the environment variable ONE is not set" in told
    assert "line 2: b: the environment variable TWO is empty" in told


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """YAML readers keep the last one in silence, and another sweep runs than was meant."""
    told = message(tmp_path, "load:\n  a: 1\n  b: 2\n  a: 3\n")

    assert "line 2: load.a: the key 'a' stands twice (lines 2 and 4); keep one" in told


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the file is empty"),
        ("- a\n- b\n", "expected a mapping"),
        ("a: [1, 2\nb: 3\n", "line 2, column 2: no YAML"),
        ("a: 1\n b: 2\n", "line 2"),
        ("a: &x [*x]\n", "this alias stands inside what it repeats"),
        ("a: !!python/object:os.system x\n", "the YAML tag"),
        ("a: !secret x\n", "the YAML tag !secret is not taken"),
        ("? [a]\n: 1\n", "a key must be a word"),
        ("a: 1\n---\nb: 2\n", "no YAML"),
    ],
)
def test_what_is_no_sweep_is_told_apart(tmp_path: Path, text: str, part: str) -> None:
    """One message says what is wrong with the file, and where."""
    told = message(tmp_path, text)

    assert part in told
    assert told.startswith(str(tmp_path / "a.yaml"))


def test_nested_aliases_cannot_fill_the_memory(tmp_path: Path) -> None:
    """Ten lines that stand for billions of values are refused, not unfolded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]

    assert "more than 100,000 values" in message(tmp_path, "\n".join(lines))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing files, folders and bytes that are no text each have their message."""
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"a: \xff\xfe")

    for path, part in ((tmp_path / "no.yaml", "no such file"), (binary, "not UTF-8")):
        with pytest.raises(SpecError, match=part) as caught:
            read_source(path, {})
        assert str(path) in str(caught.value)
    with pytest.raises(SpecError, match="cannot be read"):
        read_source(tmp_path, {})


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1 s", 10**9),
        ("50ms", 50_000_000),
        ("0.1 s", 100_000_000),
        ("5 min", 300 * 10**9),
        ("1.5 h", 5400 * 10**9),
        ("3 µs", 3000),
        ("7 ns", 7),
        ("0 s", 0),
    ],
)
def test_durations_are_whole_nanoseconds(text: str, ns: int) -> None:
    """A duration is exact: 0.1 s is 100,000,000 ns, whatever binary floats make of it."""
    assert duration_ns(text) == ns


@pytest.mark.parametrize("value", ["5", 5, 0.5, "s", "5 sec", "--1 s", "1 S", "1 m", None, True])
def test_a_duration_without_a_known_unit_is_refused(value: object) -> None:
    """5 may be seconds or milliseconds: only the author knows."""
    with pytest.raises(ValueError, match="expected a duration with its unit"):
        duration_ns(value)


@given(ns=st.integers(0, 10**6))
def test_a_duration_written_out_reads_back(ns: int) -> None:
    """What a plan prints may be pasted into a sweep file."""
    assert duration_ns(duration_text(ns)) == ns


@pytest.mark.parametrize(
    ("value", "number"), [("1 %", 0.01), ("100%", 1.0), (0.02, 0.02), (0, 0.0), ("0.5 %", 0.005)]
)
def test_shares_are_percents_or_fractions(value: object, number: float) -> None:
    """`1 %` and 0.01 are the same share."""
    assert share(value) == number


@pytest.mark.parametrize("value", [1.5, 5, "5", "101 %", -0.1, True, None, "1 % of it"])
def test_a_share_that_may_be_a_percent_is_refused(value: object) -> None:
    """A bare 5 may be 5 % or five times."""
    with pytest.raises(ValueError, match="expected a share"):
        share(value)


def test_a_character_that_is_no_text_is_told_with_its_line(tmp_path: Path) -> None:
    """A NUL in a file is the author's to mend, whatever the reader of YAML thinks of it."""
    assert message(tmp_path, "a: 1\nb: x\x00y\n").endswith(
        "a.yaml: line 2: no YAML: the character U+0000 is not text"
    )


@pytest.mark.parametrize(
    ("number", "text"), [(1e6, "1000000"), (0.1, "0.1"), (3, "3"), (2.123456789, "2.123456789")]
)
def test_numbers_are_written_in_plain_digits(number: float, text: str) -> None:
    """1e+06 is nothing that one writes into a sweep file."""
    assert plain_number(number) == text


@pytest.mark.parametrize("share_of", ["0.9", 0, 1.5, -1, None])
def test_a_share_that_must_not_be_0_says_so(share_of: object) -> None:
    """Its bounds are in the message."""
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        positive_share(share_of)


def test_a_duration_says_when_it_is_negative_and_keeps_its_unit() -> None:
    """-10 s has a unit: what is wrong is the sign. 100 s is not written as 1.66667 min."""
    with pytest.raises(ValueError, match="a duration must not be negative; found '-10 s'"):
        duration_ns("-10 s")
    assert [duration_text(seconds * 10**9) for seconds in (100, 300, 5400, 7200)] == [
        "100 s", "5 min", "90 min", "2 h",
    ]  # fmt: skip
