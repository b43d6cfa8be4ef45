"""Requests that the keys of an engine shape: in the plan, in the runs, in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from raw_server import raw_server

from harness.adapters import ENGINES
from harness.cli import main
from harness.experiment.sweep import SweepRunner
from harness.results.store.sweep_folder import read_runs
from harness.sweep_file import SpecError, load_sweep
from tests.adapters.attached.test_adapter import files_with, plan_of
from tests.harness.experiment.test_sweep import Quiet

SECRET = "route-5d41402abc4b2a76"  # noqa: S105 - a value that no file may hold
SWEEP = """
name: shaped
model: m
hardware: {{gpu: h100-80gb}}
base: {{max_model_len: 2048}}
engines:
{engines}
workloads: [{{kind: shared-prefix, prefix_tokens: 8, suffix_tokens: 8, output_tokens: 2}}]
load: [{{concurrency: 2, requests: 4}}]
blocks: 1
"""
URL = 'engine: url, url: "http://127.0.0.1:9"'


def file(folder: Path, *engines: str) -> Path:
    """Write a sweep of these engines, each the inside of a mapping."""
    path = folder / "sweep.yaml"
    lines = "\n".join(f"  - {{{one}}}" for one in engines)
    path.write_text(SWEEP.format(engines=lines), encoding="utf-8")
    return path


def test_two_forms_of_request_are_two_engines_of_a_sweep(tmp_path: Path) -> None:
    """Each sends its own fields, headers and adapters, and its runs have keys of their own."""
    with raw_server() as server:
        url = f'engine: url, url: "{server.url}"'
        path = file(
            tmp_path,
            f"{url}, label: greedy, headers: {{X-Tenant: {SECRET}}}",
            f"{url}, label: hot, request: {{temperature: 0.7, top_p: 0.9}}, lora: {{ad: '50 %'}}",
            f"{url}, label: chat, api: chat, request: {{chat_template_kwargs: {{think: false}}}}",
        )
        plan = plan_of(path)
        adapters = {name: kind() for name, kind in ENGINES.items()}
        SweepRunner(plan, adapters, tmp_path / "out").run(Quiet())

    sampled = [body for body in server.bodies if body.get("top_p") == 0.9]
    chats = [body for body in server.bodies if "messages" in body]
    assert {body["temperature"] for body in sampled} == {0.7}
    assert {body["model"] for body in sampled} == {"m", "ad"}
    assert {str(body["chat_template_kwargs"]) for body in chats} == {"{'think': False}"}
    assert len({run.key for run in plan.planned}) == len(plan.planned)
    manifests = {run.manifest.label: run.manifest for run in read_runs(tmp_path / "out")}
    requests = {label: one.request for label, one in manifests.items()}
    assert requests["greedy"] is not None
    assert requests["greedy"].headers == ("X-Tenant",)
    assert requests["hot"] is not None
    assert requests["hot"].lora == {"ad": 0.5}
    assert requests["chat"] is not None
    assert requests["chat"].api == "chat"
    assert any("temperature 0.7" in note for note in manifests["hot"].notes)
    tenants = [head for _, head in server.heads if head.get("X-Tenant") == SECRET]
    assert {path for path, _ in server.heads} & {"/v1/models", "/metrics", "/version"}
    assert len(tenants) > 8
    assert files_with(tmp_path / "out", SECRET) == []


@pytest.mark.parametrize(
    ("headers", "stays"),
    [
        (f"{{X-A: {SECRET}}}", '"(not shown)"'),
        (f"{{X-A: '{SECRET}', X-B: 5}}", '"(not shown)"'),
        (f'{{X-A: "Bearer {SECRET}"}}', '"(not shown)"'),
        (f"\n      X-A: >-\n        {SECRET}\n        more", '"(not shown)"'),
        (f"&h {{X-A: {SECRET}}}", '"(not shown)"'),
        ('{X-A: "${ROUTE}"}', "${ROUTE}"),
        ('{X-A: "Bearer ${ROUTE}"}', "Bearer ${ROUTE}"),
    ],
)
def test_the_stored_sweep_file_has_no_value_of_a_header(
    headers: str, stays: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor has the plan; a variable stays as it was written."""
    monkeypatch.setenv("ROUTE", SECRET)
    with raw_server() as server:
        path = file(tmp_path)
        engine = f'  - engine: url\n    url: "{server.url}"\n    headers: {headers}\n'
        path.write_text(SWEEP.format(engines=engine), encoding="utf-8")
        plan = plan_of(path)
        adapters = {name: kind() for name, kind in ENGINES.items()}
        SweepRunner(plan, adapters, tmp_path / "out").run(Quiet())

    document = json.loads((tmp_path / "out/sweep.json").read_text(encoding="utf-8"))
    assert files_with(tmp_path / "out", SECRET) == []
    assert stays in document["sweep"]
    assert all(SECRET in head.get("X-A", "") for _, head in server.heads)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_the_plan_shows_what_every_request_carries(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of headers only."""
    path = file(
        tmp_path,
        f"{URL}, api: messages, request: {{top_k: 5}}, headers: {{X-A: {SECRET}}}, "
        "lora: {b: 0.25}",
    )

    assert main(["plan", str(path), *words]) == 0

    printed = capsys.readouterr().out
    for part in ("messages", "top_k", "5", "X-A", "b", "0.25"):
        assert part in printed
    assert SECRET not in printed


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", URL])
def test_any_engine_that_gets_requests_takes_the_keys(engine: str, tmp_path: Path) -> None:
    """Whoever starts it."""
    name = engine if engine == URL else f"engine: {engine}"
    path = file(
        tmp_path,
        f"{name}, api: responses, request: {{a: [1, {{b: null}}]}}, headers: {{X: y}}, "
        "lora: {c: 1}",
    )

    (choice,) = load_sweep(path, engines=tuple(ENGINES)).engines

    shape = choice.shape
    assert (shape.api, shape.body) == ("responses", {"a": [1, {"b": None}]})
    assert (dict(shape.headers), shape.lora) == ({"X": "y"}, {"c": 1.0})


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (f"{URL}, request: {{max_tokens: 5}}", "the field max_tokens cannot be set"),
        (f"{URL}, request: {{stream: false}}", "the field stream cannot be set"),
        (f"{URL}, request: {{input: x}}", "the field input cannot be set"),
        (f"{URL}, request: [1]", "expected a mapping"),
        (f"{URL}, request: {{a: 1.0e+999}}", "JSON cannot hold"),
        (f"{URL}, headers: {{Host: {SECRET}}}", "the header Host cannot be set"),
        (f'{URL}, headers: {{X: "{SECRET}\\n"}}', "without line breaks"),
        (f"{URL}, headers: {{X: {SECRET}ü}}", "printable ASCII"),
        (f"{URL}, headers: {SECRET}", "expected a mapping from header names to values"),
        (f"{URL}, headers: {{X: [{SECRET}]}}", "needs a text"),
        (f"{URL}, headers: {{'a b': {SECRET}}}", "is not the name of a header"),
        (f"{URL}, lora: {{a: 0.7, b: 0.4}}", "sum to 1.1"),
        (f"{URL}, lora: {{a: 0}}", "expected a share above 0"),
        (f"{URL}, api: chta", "did you mean 'chat'?"),
        (f"{URL}, verify_tls: false", "verify_tls has an effect on an https:// url only"),
        ("engine: vllm, verify_tls: false", "verify_tls has an effect on an https:// url only"),
        ('engine: url, url: "https://h", verify_tls: none.pem', "there is no file none.pem"),
        ("engine: embedded, request: {a: 1}", "gets no HTTP requests; leave out request"),
        ("engine: embedded, api: chat, lora: {a: 1}", "leave out api and lora"),
    ],
)
def test_what_no_request_can_carry_is_refused(engine: str, message: str, tmp_path: Path) -> None:
    """With its line, before anything runs, and without a header's value."""
    with pytest.raises(SpecError) as caught:
        load_sweep(file(tmp_path, engine), engines=tuple(ENGINES))

    assert message in str(caught.value)
    assert "line 7: engines[0]" in str(caught.value)
    assert SECRET not in str(caught.value)
