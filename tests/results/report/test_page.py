from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from summaries import ARMS, Fixture, as_open_loop, make_summary, only

from harness.results.report.page import write_report
from harness.results.report.plot_list import planned_figures
from harness.results.summary import parsed_summary

VOID_TAGS = {"meta", "img", "br"}


class Page(HTMLParser):
    """What a browser would find: tags, attributes, and the text of each section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.section = "head"
        self.words: dict[str, list[str]] = {}
        self.rows: list[list[str]] = []
        self.rows_of: dict[str, list[list[str]]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        if tag == "tr":
            self.rows.append([])
            self.rows_of.setdefault(self.section, []).append(self.rows[-1])
        if tag == "br" and self.rows:
            self.rows[-1][-1] += " "
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.setdefault(self.section, []).append(data)
        if self.rows and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def text(self, section: str | None = None) -> str:
        """The visible text of one section or of all, blanks folded."""
        parts = self.words if section is None else {section: self.words[section]}
        return " ".join(" ".join(word for words in parts.values() for word in words).split())

    def row(self, section: str, start: str) -> list[str]:
        """The cells of a section's first row whose first cell starts like this, blanks folded."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.rows_of[section]]
        return next(row for row in rows if row and row[0].startswith(start))


def page(summary: dict[str, Any], folder: Path) -> tuple[str, Page]:
    """Write the report with small pictures in place of the figures, and read it."""
    plots = [folder / figure.file for figure in planned_figures(parsed_summary(summary))]
    for plot in plots:
        Image.new("RGB", (4, 4), "white").save(plot)
    path = write_report(parsed_summary(summary), plots, folder / "report.html")
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


@pytest.mark.parametrize(
    "fixture",
    [Fixture(), Fixture(blocks=5, labels=("vllm", "sglang"), simulated=False)],
    ids=["simulated", "real"],
)
def test_the_page_needs_nothing_but_itself(tmp_path: Path, fixture: Fixture) -> None:
    """No address, no script, no style sheet or picture from outside; every tag is closed."""
    text, found = page(make_summary(fixture), tmp_path)

    assert not found.open
    assert not re.search(r"https?://|//[a-z]|@import|url\(", text)
    assert "script" not in {tag for tag, _ in found.tags}
    assert "link" not in {tag for tag, _ in found.tags}
    for _, attributes in found.tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))


def test_links_of_the_page_lead_somewhere(tmp_path: Path) -> None:
    """Each entry of the contents names a section that is there."""
    _, found = page(make_summary(), tmp_path)

    targets = {attributes["href"] for tag, attributes in found.tags if tag == "a"}
    sections = {f"#{attributes['id']}" for tag, attributes in found.tags if tag == "section"}
    assert targets == sections


def test_all_figures_are_inside_with_title_and_alternative_text(tmp_path: Path) -> None:
    """One picture a figure, each told in words for those who do not see it."""
    summary = make_summary()
    _, found = page(summary, tmp_path)

    pictures = [attributes for tag, attributes in found.tags if tag == "img"]
    figures = planned_figures(parsed_summary(summary))
    assert [picture["alt"] for picture in pictures] == [
        f"{figure.title} (simulated)" for figure in figures
    ]
    assert all(figure.caption in found.text("figures") for figure in figures)


def test_a_simulation_is_called_one_wherever_figures_stand(tmp_path: Path) -> None:
    """Title, banner, findings, figures and tables carry the mark."""
    text, found = page(make_summary(), tmp_path)

    assert "<title>quickstart (simulated)</title>" in text
    assert "SIMULATED: times were computed from a model" in found.text("head")
    for section in ("findings", "figures", "tables"):
        assert "(simulated)" in found.text(section)


def test_a_real_engine_is_not_called_simulated(tmp_path: Path) -> None:
    """The word is nowhere on the page of an engine that ran on a GPU."""
    text, _ = page(make_summary(Fixture(simulated=False)), tmp_path)

    assert "simulated" not in text.lower()


def test_whatever_a_user_named_is_text(tmp_path: Path) -> None:
    """Names, reasons and notes with markup are shown, never run: no tag comes out of them."""
    evil = "<script>alert('x')</script>\"><img src=x onerror=y>"
    summary = make_summary(Fixture(labels=("embedded", evil)))
    summary.update(name=evil, model=evil, notes=[evil], assumptions=[evil])
    summary["hardware"]["gpu"] = evil
    for part in ("runs", "arms", "effects"):
        for entry in summary[part]:
            entry["workload"] += evil
    for entry in [*summary["runs"], *summary["arms"]]:
        entry["reason"] = evil if entry["status"] != "ok" else None
    for run in summary["runs"]:
        run["warnings"] = [{"name": evil, "message": evil, "remedy": evil}]
        proof = {"requested": evil, "effective": evil, "observed": 0.0, "verdict": "contradicted"}
        run["evidence"] = {evil: proof}
        run["skipped_rows"] = {evil: 3}
        run["notes"] = [evil]

    text, found = page(summary, tmp_path)

    assert "<script" not in text
    assert all("onerror" not in attributes for _, attributes in found.tags)
    assert found.text().count("alert('x')") > 100


def test_findings_are_sorted_by_size_with_the_control_last(tmp_path: Path) -> None:
    """The largest change of any primary metric comes first, the A/A at the end."""
    _, found = page(make_summary(), tmp_path)

    start = next(i for i, row in enumerate(found.rows) if "toggle" in row[0])
    names = [" ".join(row[0].split()) for row in found.rows[start + 1 : start + 15]]
    assert names[:3] == [
        "prefix_caching on/off",
        "paged_kv on/off (off ⇒ prefix_caching off)",
        "quantization int4/none",
    ]
    assert names[-1] == "baseline-again (again/baseline)"


def test_a_finding_shows_ratio_interval_and_verdict(tmp_path: Path) -> None:
    """From five blocks on the cell holds all three; below there is no verdict anywhere."""
    _, five = page(make_summary(Fixture(blocks=5)), tmp_path)
    _, three = page(make_summary(), tmp_path)

    assert five.row("findings", "quantization int4/none")[1] == "2.64▲ [2.54 to 2.75] better"
    assert three.row("findings", "quantization int4/none")[1] == "2.64 [2.54 to 2.75]"
    assert "3 blocks: ratios without a verdict" in three.text("findings")
    assert not re.search(r"\] (better|worse)", three.text("findings"))


def test_the_page_says_first_what_is_furthest_from_the_baseline(tmp_path: Path) -> None:
    """Before the tables, one line a panel names the largest ratio of each metric."""
    _, found = page(make_summary(), tmp_path)

    assert (
        "support-bot · concurrency 1, 20 requests : output tokens/s × 2.64, quantization int4/none"
    ) in found.text("findings")


def test_of_effects_that_tie_the_plainest_is_furthest(tmp_path: Path) -> None:
    """paged_kv off drags prefix_caching off along: where both did the same, it is no news."""
    summary = only(make_summary(), ["baseline", "paged_kv=off", "prefix_caching=off"])
    for effect in summary["effects"]:
        effect["ratio"] = 3.0 if effect["arm"] == "paged_kv=off" else 2.99

    _, found = page(summary, tmp_path)

    first = found.text("findings").partition("Assumed")[0]
    assert "output tokens/s × 2.99, prefix_caching on/off; TTFT" in first
    assert "paged_kv" not in first


def test_pairs_stand_after_single_toggles(tmp_path: Path) -> None:
    """However large the change of two flips, what one does alone is read first."""
    summary = only(make_summary(), ["baseline", "batching=static", "cuda_graphs=off"])
    for effect in summary["effects"]:
        if effect["arm"] == "batching=static":
            effect.update(toggle="batching+cuda_graphs", ratio=9.0)
    for arm in summary["arms"]:
        if arm["arm"] == "batching=static":
            arm["flipped"]["cuda_graphs"] = {"value": "off", "base": "on", "implied": {}}

    _, found = page(summary, tmp_path)

    names = [row[0].strip() for row in found.rows_of["findings"]]
    assert names[1:3] == [
        "cuda_graphs on/off",
        "batching static + cuda_graphs off (static/continuous)",
    ]


def test_a_bar_that_would_go_further_has_an_arrow(tmp_path: Path) -> None:
    """A ratio of 64 fills its half like one of 4, and only the arrow tells them apart."""
    summary = only(make_summary(), ["baseline", "batching=static"])
    for effect in summary["effects"]:
        effect["ratio"] = {"output_tokens_per_s": 64, "ttft_ms.p50": 1 / 5}.get(effect["metric"], 4)

    _, found = page(summary, tmp_path)

    bars = [attributes["class"] for tag, attributes in found.tags if tag == "i"]
    assert bars == ["none over right", "none over left", "none"] * 4


def test_runs_that_were_skipped_are_not_counted_as_done(tmp_path: Path) -> None:
    """180 planned, 12 of them skipped: the page counts by what became of them."""
    _, found = page(make_summary(Fixture(skipped="batching=static")), tmp_path)

    assert "runs 165 ok, 12 skipped, 3 void" in found.text("head")


def test_the_heading_has_the_gpus_of_the_baseline(tmp_path: Path) -> None:
    """Where the baseline takes 8 of them, 4 is not what the figures are of."""
    summary = make_summary()
    for arm in summary["arms"]:
        arm["gpus"] = 4 if arm["arm"] == "tensor_parallel=8" else 8

    _, found = page(summary, tmp_path)

    assert "on 8 × a100-80gb" in found.text("head")
    assert "4 × a100-80gb" not in found.text("head")


def test_the_page_says_once_what_the_ratios_are_of(tmp_path: Path) -> None:
    """on/off has the baseline above, int8/none the arm: that is told before the tables."""
    _, found = page(make_summary(), tmp_path)

    told = found.text("findings")
    assert told.count("Ratio of A/B: the figure of A over that of B, so below 1 A has less.") == 1


def test_tables_hold_every_arm_with_its_figures(tmp_path: Path) -> None:
    """Each arm has a row in each of the four tables, in the units of the heads."""
    _, found = page(make_summary(), tmp_path)

    for arm in ("baseline", "baseline-again", *(name.replace("=", " ") for name in ARMS)):
        rows = [row for row in found.rows if " ".join(row[0].split()).startswith(arm)]
        assert len([row for row in rows if len(row) > 10]) >= 4, arm
    assert found.row("tables", "kv_cache_dtype fp8")[1:9] == [
        *("49.4", "51.0", "12.3", "445", "70.3", "~159", "19.6", "~25.9"),
    ]


def test_absent_figures_are_dashes_or_leave_no_column(tmp_path: Path) -> None:
    """A void arm shows dashes; a metric that no arm has (cost without a price) has no column."""
    text, found = page(make_summary(), tmp_path)

    void = next(row for row in found.rows if "VOID" in row[0])
    assert set(void[1:]) == {"–"}
    assert "cost per million" not in text
    assert not re.search(r"\b(None|nan|inf)\b", found.text())


def test_a_price_brings_its_column(tmp_path: Path) -> None:
    """With a price the cost stands in the tables and the price among the facts."""
    summary = make_summary()
    summary["price_per_gpu_hour"] = 2.5
    for arm in summary["arms"]:
        arm["metrics"]["cost_per_million_output_tokens"] = 1.234

    _, found = page(summary, tmp_path)

    assert "2.50 per GPU and hour" in found.text("head")
    rows = [row for row in found.rows_of["tables"] if row[0].startswith("kv_cache_dtype fp8")]
    assert [row[-1] for row in rows if row[-1] == "1.23"] == ["1.23"] * 4


def test_evidence_goes_from_requested_to_verdict(tmp_path: Path) -> None:
    """Runs that agree share a row with their number; the contradicted ones stand apart."""
    _, found = page(make_summary(), tmp_path)

    rows = [row for row in found.rows if row[0] == "chunked_prefill"]
    assert rows == [
        ["chunked_prefill", "off", "off", "0", "verified", "9"],
        ["chunked_prefill", "off", "off", "212", "contradicted", "3"],
    ]


def test_doubts_assumptions_and_notes_are_told(tmp_path: Path) -> None:
    """What a reader must know stands on the page, with what to do about it."""
    summary = make_summary()
    summary["runs"][0]["skipped_rows"] = {"longer than the context": 12_345}
    _, found = page(summary, tmp_path)

    assert found.row("warnings", "few-requests")[1:] == [
        "P99 rests on 20 requests",
        "raise requests to 300",
        "90 runs",
    ]
    assert all(text in found.text("findings") for text in summary["assumptions"])
    assert summary["notes"][0] in found.text("warnings")
    assert "support-bot: 12,345, longer than the context" in found.text("warnings")
    assert "VOID chunked_prefill off: chunked_prefill: asked for off" in found.text("tables")


def test_without_doubts_the_page_says_that_it_asked(tmp_path: Path) -> None:
    """No doubt is a result too."""
    summary = make_summary()
    for run in summary["runs"]:
        run["warnings"] = []

    _, found = page(summary, tmp_path)

    assert "No check found a reason to distrust a run" in found.text("warnings")


def test_open_loop_tables_show_both_counts_of_ttft(tmp_path: Path) -> None:
    """The headline counts from due; the findings name it."""
    _, found = page(as_open_loop(make_summary()), tmp_path)

    assert "TTFT p50 from due" in found.text("findings")
    assert "TTFT from due p50" in found.text("tables")


def test_a_sweep_without_a_single_figure_still_gets_its_page(tmp_path: Path) -> None:
    """Everything skipped: the reasons are there, the figures are not, nothing breaks."""
    summary = only(make_summary(Fixture(skipped="batching=static")), ["batching=static"])

    _, found = page(summary, tmp_path)

    assert "No figures were drawn" in found.text("figures")
    assert "SKIPPED batching static: needs hardware" in found.text("tables")
    assert "nothing to compare" in found.text("findings").lower()


def test_the_page_stays_small(tmp_path: Path) -> None:
    """Without its pictures the page of 180 runs is a fraction of a megabyte."""
    text, _ = page(make_summary(), tmp_path)

    assert len(text) < 300_000


def test_the_page_tells_how_far_its_clients_are_believed(tmp_path: Path) -> None:
    """Counts, the worst figures against their limits, each reason once, and marks in the tables."""
    fixture = Fixture(
        simulated=False, void=None, invalid="chunked_prefill=off", degraded="cuda_graphs=off"
    )
    _, found = page(make_summary(fixture), tmp_path)

    assert "174 TRUSTED; 3 DEGRADED; 3 INVALID" in found.text("client")
    assert found.row("client", "chat · concurrency 100")[1:] == [
        "0.40 ms (limit 4 ms)", "95 ms (limit 4 ms)", "31 % (limit 80 %)",
    ]  # fmt: skip
    invalid, degraded = (found.row("client", word) for word in ("INVALID", "DEGRADED"))
    assert (invalid[0], invalid[3]) == ("INVALID loop_lag", "3")
    assert "woke 5.5 ms late" in degraded[1]
    assert "--workers 2" in degraded[2]
    assert found.row("tables", "cuda_graphs off DEGRADED")
    assert found.row("tables", "chunked_prefill off INVALID")[1] == "–"


def test_a_page_of_virtual_time_says_that_it_has_no_client(tmp_path: Path) -> None:
    """Nothing to certify is said once, and no table of nothing follows."""
    _, found = page(make_summary(), tmp_path)

    assert "180 without a certificate (virtual time: there is none to certify)" in found.text(
        "client"
    )
    assert "client" not in found.rows_of
