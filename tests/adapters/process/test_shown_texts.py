"""Secrets of a sweep file are in no store, no print and no error, wherever they were given."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import harness
from stand_in import settings

from harness.adapters.process.programs import env_for_report
from harness.adapters.process.shown_texts import (
    hidden,
    secret_values,
    shown_words,
    without_accounts,
)
from harness.adapters.runtime import Runtime

MARK = "hf_s3cretWord"
ECHO = """
import os, sys
print("non-default args:", sys.argv, flush=True)
print("environment:", dict(os.environ), flush=True)
raise SystemExit("ValueError: refused " + " ".join(sys.argv))
"""
SWEEP = """
name: quiet
model: m
hardware: {{gpu: h100-80gb, count: 1}}
engines:
  - {engine}
toggles: [prefix_caching]
workloads:
  - {{kind: shared-prefix, name: w, prefix_tokens: 64, suffix_tokens: 16, output_tokens: 4}}
load: [{{concurrency: 2, requests: 8}}]
blocks: 1
"""
GIVEN = [
    f"extra_args: [--hf-token, {MARK}]",
    f"extra_args: [--hf-token={MARK}]",
    f"extra_args: ['--model-loader-extra-config', '{{\"api_key\": \"{MARK}\"}}']",
    f"extra_args: [--tokenizer, 'https://me:{MARK}@host/m']",
    f"env: {{HF_TOKEN: {MARK}}}",
    f"env: {{HF_ENDPOINT: 'https://user:{MARK}@host/x'}}",
    f"env: {{HTTP_PROXY: 'http://{MARK}@proxy:3128'}}",
    f"env: {{HF_ENDPOINT: 'https://host/x?access_token={MARK}'}}",
    f"env: {{AWS_SECRET_ACCESS_KEY: {MARK}}}",
]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engines start on Linux only")
@pytest.mark.parametrize("given", GIVEN)
def test_a_secret_is_in_no_file_and_in_no_print(tmp_path: Path, given: str) -> None:
    """Also where the engine prints its own arguments, and dies with them on its lips."""
    (tmp_path / "echo.py").write_text(ECHO, encoding="utf-8")
    engine = (
        f"{{engine: vllm, runtime: {{command: [{sys.executable}, {tmp_path}/echo.py]}}, {given}}}"
    )
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(engine=engine), encoding="utf-8")

    plans = [harness("plan", str(path), *words) for words in ((), ("--json",))]
    ran = harness("run", str(path), "--out", str(tmp_path / "out"), "--share-machine")
    shown = harness("report", str(tmp_path / "out"), "--json")

    for done in (*plans, ran, shown):
        assert MARK not in done.stdout + done.stderr
    assert [done.returncode for done in plans] == [0, 0]
    assert ran.returncode == 1
    files = [one for one in (tmp_path / "out").rglob("*") if one.is_file()]
    assert any(one.suffix == ".log" for one in files)
    assert [one.name for one in files if MARK.encode() in one.read_bytes()] == []
    sweep = json.loads((tmp_path / "out" / "sweep.json").read_text())["sweep"]
    assert "(not shown)" in sweep


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--hf-token", MARK, "--tp", "2"], ["--hf-token", "(not shown)", "--tp", "2"]),
        (["--api-key", "a", "b", "-x"], ["--api-key", "(not shown)", "(not shown)", "-x"]),
        (["--admin_api_key=short"], ["--admin_api_key=(not shown)"]),
        (["env", "HF_TOKEN=x", "vllm"], ["env", "HF_TOKEN=(not shown)", "vllm"]),
        (["--max-num-batched-tokens", "64"], ["--max-num-batched-tokens", "64"]),
        (["--tokenizer", "a", "--stop-token-ids", "5"],) * 2,
        (["--ssl-keyfile", "/a/b"],) * 2,
    ],
)  # fmt: skip
def test_a_command_is_shown_without_the_values_of_secret_flags(
    given: list[str], words: list[str]
) -> None:
    """Numbers of tokens are no secrets."""
    assert shown_words(given) == words


def test_urls_and_json_are_shown_without_accounts() -> None:
    """Wherever they stand in a text."""
    assert without_accounts("to https://u:p@h/x, http://t@h") == (
        "to https://(not shown)@h/x, http://(not shown)@h"
    )
    assert (
        without_accounts("{'hf_token': 'a', \"n\": 1}") == "{'hf_token': '(not shown)', \"n\": 1}"
    )
    assert without_accounts("http://h/x?a=1&api_key=k&b=2") == (
        "http://h/x?a=1&api_key=(not shown)&b=2"
    )
    env = {"HF_ENDPOINT": "https://u:p@h", "HF_TOKEN": "x", "HF_HOME": "/h", "OTHER": "x"}
    assert env_for_report(env, ("HF_",)) == {
        "HF_ENDPOINT": "https://(not shown)@h", "HF_HOME": "/h", "HF_TOKEN": "(not shown)"
    }  # fmt: skip


def test_short_values_and_places_are_not_searched_for() -> None:
    """They would be found inside of other words."""
    given = replace(
        settings(),
        env={"A_KEY": "1", "HF_TOKEN_PATH": "/root/token", "B_TOKEN": MARK},
        runtime=Runtime(command=("env", f"C_PASSWORD={MARK}2", "vllm")),
    )

    assert secret_values(given) == {MARK, f"{MARK}2"}
    assert hidden({"a": [f"x {MARK}2 y", 1, None]}, secret_values(given)) == {
        "a": ["x (not shown) y", 1, None]
    }


@pytest.mark.parametrize(
    "given",
    [
        f"api_key_env: sk-{MARK}",
        f"api_key_env: [{MARK}]",
        "api_key_env: '${ODD_KEY}'",
        f"url: 'http//{MARK}@h'",
        f"url: 'ftp://me:{MARK}@h'",
        f"url: 'http://me:{MARK}@h'",
    ],
)
def test_a_refusal_does_not_repeat_it(
    tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place in the file is enough."""
    monkeypatch.setenv("ODD_KEY", f"{MARK}!")
    url = "" if given.startswith("url") else "url: 'http://h', "
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(engine=f"{{engine: url, {url}{given}}}"), encoding="utf-8")

    done = harness("plan", str(path))

    assert done.returncode == 2
    assert MARK not in done.stdout + done.stderr
    assert "engines[0]" in done.stderr


@pytest.mark.parametrize("given", ["env: {HF_TOKEN: 1234567}", "extra_args: [--hf-token, 1234567]"])
def test_a_number_that_may_be_a_secret_is_not_repeated(tmp_path: Path, given: str) -> None:
    """It is refused for its type."""
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(engine=f"{{engine: vllm, {given}}}"), encoding="utf-8")

    done = harness("plan", str(path))

    assert done.returncode == 2
    assert "expected a word" in done.stderr
    assert "1234567" not in done.stderr
