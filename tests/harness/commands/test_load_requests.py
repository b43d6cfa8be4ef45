"""Requests that a user shapes with options of `harness load`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from raw_server import RawServer, good, raw_server, refused

from harness.adapters.request_shape import OWNED_FIELDS
from harness.cli import main

SECRET = "tenant-9e107d9d372bb6"  # noqa: S105 - a value that no file may hold
FEW = ("--model", "m", "--requests", "3", "--output-tokens", "2")


def loaded(*words: str, server: RawServer, out: Path | None = None) -> int:
    """Load `server` with these options; return the exit code."""
    kept = () if out is None else ("--out", str(out))
    return main(["load", server.url, *FEW, *words, *kept])


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("top_p=0.9", {"top_p": 0.9}),
        ("temperature=0.7", {"temperature": 0.7}),
        ("stop=null", {"stop": None}),
        ('stop=["a", "b"]', {"stop": ["a", "b"]}),
        ('service_tier="flex"', {"service_tier": "flex"}),
        ("logprobs=true", {"logprobs": True}),
        ('chat_template_kwargs={"a": {"b": [1]}}', {"chat_template_kwargs": {"a": {"b": [1]}}}),
        ('{"seed": 5, "min_p": 0}', {"seed": 5, "min_p": 0}),
        ("priority = -3", {"priority": -3}),
    ],
)
def test_a_field_is_in_every_request(given: str, sent: dict[str, Any]) -> None:
    """Warm-up requests included, as JSON."""
    with raw_server() as server:
        code = loaded("--request", given, "--warmup", "2", server=server)

    assert code == 0
    assert len(server.bodies) == 5
    assert all(sent.items() <= body.items() for body in server.bodies)


def test_a_field_is_in_the_probe_of_an_open_loop() -> None:
    """Its server is probed for one token before the load."""
    with raw_server() as server:
        words = ("--model", "m", "--rate", "50", "--duration", "0.4 s", "--request", "top_k=3")
        main(["load", server.url, *words])

    assert {body["top_k"] for body in server.bodies} == {3}
    assert server.bodies[0]["max_tokens"] == 1


@pytest.mark.parametrize("name", sorted(OWNED_FIELDS))
def test_a_field_of_the_harness_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason, before anything is sent."""
    with raw_server() as server:
        code = loaded("--request", f"{name}=1", server=server)

    assert code == 2
    assert f"the field {name} cannot be set: {OWNED_FIELDS[name]}" in capsys.readouterr().err
    assert not server.heads


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("reasoning_effort=low", "for a text write reasoning_effort='\"low\"'"),
        ("tier=flex tier", "for a text write tier='\"flex tier\"'"),
        ("top_p=NaN", "NaN is not a number of JSON"),
        ("top_p=-Infinity", "-Infinity is not a number of JSON"),
        ("top_p", "expected KEY=JSON"),
        ("=1", "expected KEY=JSON"),
        ('x={"a": 1, "a": 2}', "a key is given twice"),
        ("x=" + "[" * 5000, "5,002 characters; expected at most 4,096"),
        ("x=" + "9" * 5000, "5,002 characters; expected at most 4,096"),
        ("x=[1", "is not JSON"),
        ("x=1e999", "the field x has inf, which JSON cannot hold"),
        ("x=99999999999999999999", "the field x has a number of more than 64 bits"),
        ("x=" + "[" * 40 + "]" * 40, "nested more than 32 levels"),
    ],
)
def test_what_is_no_json_is_refused(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that tells how to write it."""
    with pytest.raises(SystemExit) as ended:  # as `main` ends where argparse refuses a value
        raise SystemExit(main(["load", "http://127.0.0.1:9", *FEW, "--request", given]))

    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in error
    assert "Traceback" not in error


def test_a_field_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing tells which one was meant."""
    words = ("--request", "a=1", "--request", '{"a": 2}')

    assert main(["load", "http://127.0.0.1:9", *FEW, *words]) == 2
    assert "--request: a is given twice" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["X-Tenant={}", "X-Tenant: {}", "x-tenant:{}", "X-Tenant = {}"])
def test_a_header_goes_out_with_everything_and_its_value_nowhere_else(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queries for models, version and metrics, and every request of the load."""

    def quoting(_: dict[str, Any]) -> bytes:
        return refused(f"tenant {SECRET} has no quota left", "429 Too Many Requests")

    with raw_server(quoting) as server:
        loaded("--header", form.format(SECRET), server=server, out=tmp_path / "kept")

    heads = [{name.lower(): text for name, text in head.items()} for _, head in server.heads]
    assert len(heads) > 4
    assert {head.get("x-tenant") for head in heads} == {SECRET}
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    printed = "".join(capsys.readouterr())
    assert SECRET.encode() not in stored
    assert SECRET not in printed
    assert "has no quota left" in printed
    manifest = json.loads((tmp_path / "kept/load/manifest.json").read_text())
    assert [name.lower() for name in manifest["request"]["headers"]] == ["x-tenant"]


def test_a_header_may_come_from_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then its value is in no command line either."""
    monkeypatch.setenv("TENANT_NAME", SECRET)
    words = ("--header-env", "X-Tenant=TENANT_NAME", "--header", "X-Route=a=b:c")
    with raw_server() as server:
        code = loaded(*words, server=server, out=tmp_path / "kept")

    assert code == 0
    assert all(head["X-Tenant"] == SECRET for _, head in server.heads)
    assert all(head["X-Route"] == "a=b:c" for _, head in server.heads)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in stored
    assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--header", "Host=a"), "the header Host cannot be set"),
        (("--header", "content-length: 5"), "the header content-length cannot be set"),
        (("--header", "Transfer-Encoding=chunked"), "cannot be set"),
        (("--header", "ACCEPT-ENCODING=gzip"), "cannot be set"),
        (("--header", "Connection=close"), "cannot be set"),
        (("--header", f"X-A={SECRET}\r\nX-B: 1"), "printable ASCII without line breaks"),
        (("--header", f"X-A={SECRET}é"), "printable ASCII"),
        (("--header", f"X-A={SECRET}日本"), "printable ASCII"),
        (("--header", f"X A={SECRET}"), "is not the name of a header"),
        (("--header", f"Ü={SECRET}"), "is not the name of a header"),
        (("--header", "X-A="), "the header X-A has an empty value"),
        (("--header", SECRET), "expected NAME=VALUE"),
        (("--header", f"X-A={SECRET}", "--header", "x-a=2"), "x-a is given twice"),
        (("--header-env", "X-A=NOT_SET_ANYWHERE"), "empty or not set"),
        (("--header-env", "X-A"), "expected NAME=VARIABLE"),
    ],
)
def test_a_header_that_no_request_can_carry_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent, and without its value."""
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["load", "http://127.0.0.1:9", *FEW, *words]))

    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in error
    assert SECRET not in error


def test_a_key_and_a_header_of_authorization_exclude_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the two would be sent, and nothing tells which was meant."""
    monkeypatch.setenv("A_KEY", SECRET)
    words = ("--api-key-env", "A_KEY", "--header", "authorization=Basic abc")

    assert main(["load", "http://127.0.0.1:9", *FEW, *words]) == 2
    assert "Authorization is set by a header and by the key in A_KEY" in capsys.readouterr().err


@pytest.mark.parametrize("shares", [{"a": 0.5}, {"a": 0.7, "b": 0.3}, {"a": 0.2, "b": 0.3}])
def test_adapters_get_their_share_of_the_requests(shares: dict[str, float]) -> None:
    """The rest goes to the base model; the same seed sends the same requests to each."""

    def names(server: RawServer) -> list[str]:
        words = [word for name, share in shares.items() for word in ("--lora", f"{name}={share}")]
        main(["load", server.url, "--model", "m", "--output-tokens", "1", *words])
        return [body["model"] for body in server.bodies]

    with raw_server() as first, raw_server() as second:
        sent, again = names(first), names(second)

    assert sent == again
    expected = {**shares, "m": 1 - sum(shares.values())}
    for name, share in expected.items():
        assert sent.count(name) == pytest.approx(100 * share, abs=15)
        assert (sent.count(name) == 0) == (share < 0.01)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (("a=0.7", "b=0.4"), "sum to 1.1"),
        (("a=1", "b=0.001"), "sum to 1.001"),
        (("a=0",), "expected NAME=SHARE"),
        (("a=1.5",), "expected NAME=SHARE"),
        (("a=nan",), "expected NAME=SHARE"),
        (("a",), "expected NAME=SHARE"),
        (("a=0.1", "a=0.2"), "a is given twice"),
    ],
)
def test_shares_that_cannot_be_are_refused(
    shares: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent."""
    words = [word for share in shares for word in ("--lora", share)]
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["load", "http://127.0.0.1:9", *FEW, *words]))

    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("shares", [("a=0.7", "b=0.2", "c=0.1"), ("a=60%", "b=40%"), ("a=1",)])
def test_shares_that_sum_to_one_leave_nothing_to_the_base_model(shares: tuple[str, ...]) -> None:
    """Rounding of a sum included."""
    words = [word for share in shares for word in ("--lora", share)]
    with raw_server() as server:
        main(["load", server.url, "--model", "m", "--output-tokens", "1", *words])

    assert "m" not in {body["model"] for body in server.bodies}


@pytest.mark.parametrize("temperature", ["0.7", "1", "2.5"])
def test_a_changed_temperature_is_shown_with_the_results(
    temperature: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In print and in the manifest."""
    with raw_server() as server:
        loaded("--request", f"temperature={temperature}", server=server, out=tmp_path / "kept")

    assert f"temperature {temperature} in every request" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "kept/load/manifest.json").read_text())
    assert manifest["request"]["body"] == {"temperature": float(temperature)}


def test_a_load_that_sets_nothing_has_nothing_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor has one that sets the temperature that is sent anyway a note."""
    with raw_server(good) as server:
        loaded(server=server, out=tmp_path / "kept")
        loaded("--request", "temperature=0", server=server)

    assert "in every request" not in capsys.readouterr().out
    assert json.loads((tmp_path / "kept/load/manifest.json").read_text())["request"] is None


@pytest.mark.parametrize("words", [("--no-verify-tls",), ("--ca", "there-is-no-such-file.pem")])
def test_trust_in_certificates_needs_https(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """An option without effect is refused."""
    assert main(["load", "http://127.0.0.1:9", *FEW, *words]) == 2
    assert f"{words[0]} has an effect on an https:// URL only" in capsys.readouterr().err
