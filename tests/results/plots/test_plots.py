from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from summaries import ARMS, Fixture, as_open_loop, make_distributions, make_summary, only

from harness.results.plots import draw_all
from harness.results.plots.canvas import style
from harness.results.plots.effects import effects_figure
from harness.results.plots.latency import latency_figure
from harness.results.plots.throughput import throughput_figure
from harness.results.report.plot_list import PlannedFigure, planned_figures
from harness.results.summary import parsed_summary

SIMULATED = make_summary()
REAL = make_summary(Fixture(simulated=False, blocks=5, skipped="quantization=int8"))
OPEN = as_open_loop(SIMULATED)
CLIENTS = make_summary(
    Fixture(
        simulated=False,
        blocks=5,
        void=None,
        invalid="chunked_prefill=off",
        degraded="cuda_graphs=off",
    )
)


@pytest.fixture(autouse=True)
def look() -> Iterator[None]:
    with style():
        yield


def drawn(summary: dict[str, Any], planned: PlannedFigure) -> Figure:
    if planned.kind == "effects":
        return effects_figure(parsed_summary(summary), planned)
    if planned.kind == "throughput":
        return throughput_figure(parsed_summary(summary), planned)
    return latency_figure(parsed_summary(summary), planned, requests())


@cache
def requests() -> dict[str, pd.DataFrame]:
    """The requests of `SIMULATED`, which tests do not change."""
    return {
        key: frame.assign(scheduled_ttft_ms=frame["ttft_ms"])
        for key, frame in make_distributions(SIMULATED).items()
    }


def texts(figure: Figure) -> list[Text]:
    """Return all visible texts in their final positions."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    found = figure.findobj(Text)
    return [text for text in found if isinstance(text, Text) and text.get_text().strip()]


def words(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in texts(figure)).split())


def planned(summary: dict[str, Any], kind: str, place: int = -1) -> PlannedFigure:
    return [figure for figure in planned_figures(parsed_summary(summary)) if figure.kind == kind][
        place
    ]


KNOWN = {"simulated": SIMULATED, "real": REAL, "open": OPEN, "clients": CLIENTS}


@cache
def known(name: str, kind: str, place: int = -1) -> Figure:
    """Return a figure of a shared summary, drawn once for all tests."""
    return drawn(KNOWN[name], planned(KNOWN[name], kind, place))


@cache
def words_of(name: str, kind: str, place: int = -1) -> str:
    """Return the words of a shared figure."""
    return words(known(name, kind, place))


@pytest.mark.parametrize("kind", ["effects", "throughput", "latency"])
@pytest.mark.parametrize("name", KNOWN)
def test_no_two_texts_of_a_figure_touch_and_all_are_inside(name: str, kind: str) -> None:
    """With 15 arms and two loads no text is cut off or overlaps another."""
    figure = known(name, kind)

    seen = [text for text in texts(figure) if text.get_visible()]
    boxes = [text.get_window_extent() for text in seen]
    ticks = {text for axes in figure.axes for text in axes.get_xticklabels()}
    for (one, box), (two, other) in itertools.combinations(zip(seen, boxes, strict=True), 2):
        across = min(box.x1, other.x1) - max(box.x0, other.x0)
        up = min(box.y1, other.y1) - max(box.y0, other.y0)
        assert min(across, up) <= 3, f"{one.get_text()!r} lies on {two.get_text()!r}"
    width, height = figure.canvas.get_width_height()
    for text, box in zip(seen, boxes, strict=True):
        assert box.x0 >= 0, text.get_text()
        assert box.y0 >= 0, text.get_text()
        assert box.x1 <= width, text.get_text()
        assert box.y1 <= height, text.get_text()
    assert ticks


@pytest.mark.parametrize("kind", ["effects", "throughput", "latency"])
def test_each_figure_of_a_simulation_says_simulated(kind: str) -> None:
    """Every kind of figure of a simulation has the mark, and no figure of a real engine."""
    assert "SIMULATED" in words_of("simulated", kind)
    assert "simulated" not in words_of("real", kind).lower()


@pytest.mark.parametrize("kind", ["effects", "throughput", "latency"])
def test_each_figure_names_every_arm(kind: str) -> None:
    """Every arm is in the figure, including void and skipped ones."""
    for name in ("simulated", "real"):
        found = words_of(name, kind)
        for arm in ARMS:
            toggle, value = arm.split("=")
            base = ARMS[arm][1:3]
            names = {f"{toggle} {value}", f"{toggle} {'/'.join(base)}", f"{toggle} on/off"}
            assert any(name in found for name in names), arm


@pytest.mark.parametrize("kind", ["effects", "throughput", "latency"])
def test_a_void_arm_is_named_void(kind: str) -> None:
    """A void arm has the word VOID in its row."""
    assert "VOID" in words_of("simulated", kind)


@pytest.mark.parametrize("kind", ["effects", "throughput", "latency"])
def test_an_arm_whose_client_is_invalid_is_named_so(kind: str) -> None:
    """An arm with an INVALID client is drawn like a void arm, with the word INVALID."""
    assert "INVALID" in words_of("clients", kind)
    assert "INVALID" not in words_of("real", kind)


@pytest.mark.parametrize(("kind", "marks"), [("effects", 3), ("throughput", 1), ("latency", 1)])
def test_an_arm_whose_client_is_degraded_carries_a_mark(kind: str, marks: int) -> None:
    """Each value of the arm has a dagger, explained in the caption; TRUSTED clients have none."""
    found = words_of("clients", kind)

    assert found.count("†") > marks
    assert found.count("†: the client is DEGRADED") == 1
    assert "†" not in words_of("clients", kind, 0)


@pytest.mark.parametrize("kind", ["effects", "latency"])
def test_a_void_arm_is_hatched(kind: str) -> None:
    """The band or the outline of a void arm is hatched; other arms are not."""
    whole = make_summary(Fixture(void=None))
    figure, clean = known("simulated", kind), drawn(whole, planned(whole, kind))

    assert figure.findobj(lambda artist: bool(getattr(artist, "get_hatch", lambda: None)()))
    assert not clean.findobj(lambda artist: bool(getattr(artist, "get_hatch", lambda: None)()))


def test_an_effect_is_drawn_at_its_ratio_with_its_interval() -> None:
    """The mark is at the ratio, and the line goes from the low to the high bound."""
    summary = only(SIMULATED, ["baseline", "tensor_parallel=8"])
    figure = drawn(summary, planned(summary, "effects", 0))

    effects = [
        effect
        for effect in summary["effects"]
        if effect["metric"] == "output_tokens_per_s" and effect["workload"] == "support-bot"
    ]
    lines = [list(line.get_xdata()) for line in figure.axes[0].get_lines()]  # type: ignore[arg-type] # arrays
    for effect in effects:
        assert [effect["ratio"]] in lines
        assert [effect["low"], effect["high"]] in lines


def test_an_interval_without_end_does_not_squeeze_the_ratios() -> None:
    """An interval over many decades, as from two blocks, is cut off; ratios stay readable."""
    summary = make_summary()
    for effect in summary["effects"]:
        effect["low"], effect["high"] = effect["ratio"] / 1e6, effect["ratio"] * 1e6

    figure = drawn(summary, planned(summary, "effects", 0))

    low, high = figure.axes[0].get_xlim()
    assert high / low < 1000


def test_the_better_direction_is_written_above_each_metric() -> None:
    """Higher throughput is better, lower latency is better."""
    figure = known("simulated", "effects")

    titles = [axes.get_title() for axes in figure.axes]
    assert [title.split("   ")[1] for title in titles] == ["better →", "← better", "← better"]


def test_verdicts_are_drawn_from_five_blocks_on_only() -> None:
    """With three blocks the ratio has no verdict mark, with five it has."""
    assert "▲" not in words_of("simulated", "effects")
    assert "2.64▲" in words_of("real", "effects", 0)


def test_arms_like_the_baseline_share_its_label() -> None:
    """Arms within the margin of the baseline are listed in its label."""
    found = words_of("simulated", "throughput", 0)

    assert "baseline and within ±3 % of it: baseline-again, speculative ngram" in found


def test_an_unreliable_p99_is_marked_in_the_figure() -> None:
    """The P99 of 20 requests has the mark ~, that of 300 does not."""
    few, many = (words_of("simulated", "latency", place) for place in (0, 1))

    assert "~160" in few
    assert "~" not in many.replace("~ and dotted", "")


def test_a_metric_without_values_is_a_dash() -> None:
    """A figure without any TPOT (one-token answers) has dashes instead."""
    summary = only(make_summary(), ["baseline", "batching=static"])
    for arm in summary["arms"]:
        arm["metrics"]["tpot_ms.p50"] = arm["metrics"]["tpot_ms.p99"] = None
    frames = {
        key: frame.assign(tpot_ms=float("nan"))
        for key, frame in make_distributions(summary).items()
    }

    figure = latency_figure(parsed_summary(summary), planned(summary, "latency", 1), frames)

    assert words(figure).count("–") == 4
    assert "nan" not in words(figure)


def assert_no_text_on_another(figure: Figure) -> None:
    seen = [text for text in texts(figure) if text.get_visible()]
    boxes = [text.get_window_extent() for text in seen]
    for (one, box), (two, other) in itertools.combinations(zip(seen, boxes, strict=True), 2):
        across = min(box.x1, other.x1) - max(box.x0, other.x0)
        up = min(box.y1, other.y1) - max(box.y0, other.y0)
        assert min(across, up) <= 3, f"{one.get_text()!r} lies on {two.get_text()!r}"


def combined(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary with four more flips per arm, as in a full grid."""
    more = {
        name: {"value": "off", "base": "on", "implied": {}}
        for name in ("chunked_prefill", "overlap_scheduling", "prefix_caching", "cuda_graphs")
    }
    copy: dict[str, Any] = json.loads(json.dumps(summary))
    for row in [*copy["arms"], *copy["runs"]]:
        row["flipped"] = row["flipped"] and more | row["flipped"]
    for effect in copy["effects"]:
        if effect["toggle"] != "baseline-again":
            effect["ratio_of"] = f"off+off+off+off+{effect['value']}/on+on+on+on+base"
            effect["toggle"] += "+" + "+".join(more)
    return copy


@pytest.mark.parametrize("kind", ["effects", "latency"])
def test_names_of_many_flips_do_not_run_into_each_other(kind: str) -> None:
    """Arms with five flips need five or more lines, and their rows are higher."""
    summary = combined(SIMULATED)

    assert_no_text_on_another(drawn(summary, planned(summary, kind)))


def test_closed_and_open_loop_in_one_figure_keep_their_titles_apart() -> None:
    """The title with two kinds of TTFT does not overlap the adjacent titles."""
    loads = [make_summary(), as_open_loop(make_summary())]
    parts = ("arms", "runs", "effects")
    both = combined(
        {**SIMULATED, **{part: loads[0][part] + loads[1][part] for part in parts}}
    )  # long names leave narrow columns

    figure = drawn(both, planned(both, "effects"))

    assert "TTFT p50 / TTFT p50 from due" in words(figure)
    assert_no_text_on_another(figure)


def test_long_names_of_loads_keep_inside_the_figure() -> None:
    """Four long load names use several lines of the legend."""
    summary = as_open_loop(only(make_summary(), ["baseline", "baseline-again"]))
    for part in ("runs", "arms", "effects"):
        rows = [row for row in summary[part] if row["load"]["value"] == 1]
        summary[part] = [
            {**row, "load": {**row["load"], "value": 1000.25 * i, "arrivals": "constant"}}
            for i in range(1, 5)
            for row in rows
        ]

    figure = drawn(summary, planned(summary, "effects"))

    assert_no_text_on_another(figure)
    width, _ = figure.canvas.get_width_height()
    assert all(text.get_window_extent().x1 <= width for text in texts(figure))
    assert "4,001 conversations/s constant, 20 requests, 300 s" in words(figure)


def test_single_toggles_are_above_pairs() -> None:
    """Pairs are between the last single toggle and the control."""
    summary = make_summary()
    for effect in summary["effects"]:
        if effect["arm"] == "quantization=int4":
            effect["toggle"] = "quantization+cuda_graphs"

    figure = drawn(summary, planned(summary, "effects"))

    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[-2].startswith("quantization int4")
    assert names[-1].startswith("baseline-again")


def test_open_loop_draws_ttft_from_when_a_request_was_due() -> None:
    """The axis label says that the TTFT counts from due, not from the send."""
    assert "TTFT from due" in words_of("open", "latency")
    assert "TTFT p50 from due" in words_of("open", "effects")


def test_names_are_drawn_as_they_are_and_never_leave_the_folder(tmp_path: Path) -> None:
    """Dollars are no formula, and a name with slashes and dots does not choose another folder."""
    summary = only(make_summary(), ["baseline"])
    for part in ("runs", "arms"):
        for entry in summary[part]:
            entry["workload"] = f"../../$x_{{{entry['workload']}}}$"

    paths = draw_all(parsed_summary(summary), make_distributions(summary), tmp_path)

    assert {path.parent for path in paths} == {tmp_path}
    assert len(set(paths)) == 6
    figure = drawn(summary, planned(summary, "throughput"))
    assert "../../$x_{chat}$" in words(figure)


def test_names_that_differ_in_signs_only_get_files_of_their_own() -> None:
    """Two workloads whose names make the same plain letters do not overwrite each other."""
    summary = make_summary()
    for part in ("runs", "arms", "effects"):
        for entry in summary[part]:
            entry["workload"] = {"chat": "a b", "support-bot": "a/b"}[entry["workload"]]

    files = [figure.file for figure in planned_figures(parsed_summary(summary))]

    assert len(files) == len(set(files)) == 8


def test_many_loads_are_spread_over_several_figures() -> None:
    """Six loads make two figures of effects, of four and two loads, with colours that go on."""
    summary = make_summary()
    for part in ("runs", "arms", "effects"):
        rows = [row for row in summary[part] if row["load"]["value"] == 1]
        summary[part] = [
            {**row, "load": {**row["load"], "value": value}}
            for value in range(1, 7)
            for row in rows
        ]

    figures = [
        figure for figure in planned_figures(parsed_summary(summary)) if figure.kind == "effects"
    ]

    loads = [[panel.load.value for panel in figure.panels] for figure in figures]
    assert loads == [[1, 2, 3, 4], [5, 6]] * 2
    assert [figure.first_load for figure in figures] == [0, 4] * 2
    assert "concurrency 6" in words(drawn(summary, figures[1]))


def test_draw_all_writes_one_readable_png_a_figure(tmp_path: Path) -> None:
    """Eight figures for two workloads at two loads, each 1600 pixels wide and not blank."""
    summary = only(SIMULATED, ["baseline", "baseline-again", "prefix_caching=off"])

    paths = draw_all(parsed_summary(summary), make_distributions(summary), tmp_path)

    kinds = [path.name.partition("-")[0] for path in paths]
    assert kinds == ["effects"] * 2 + ["throughput"] * 2 + ["latency"] * 4
    for path in paths:
        with Image.open(path) as image:
            assert image.width == 1600
            assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20


def test_nothing_measured_means_no_figures(tmp_path: Path) -> None:
    """A sweep whose arms are all skipped has nothing to draw, and that is no error."""
    summary = only(make_summary(Fixture(skipped="batching=static")), ["batching=static"])

    assert draw_all(parsed_summary(summary), {}, tmp_path) == []


def test_drawing_leaves_the_settings_of_matplotlib_alone(tmp_path: Path) -> None:
    """A program that draws for itself finds its own settings again."""
    summary = only(SIMULATED, ["baseline"])
    with mpl.rc_context({"font.size": 23.0}):
        draw_all(parsed_summary(summary), {}, tmp_path)

        assert mpl.rcParams["font.size"] == 23.0
