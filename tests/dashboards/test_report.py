"""The report page: complete, self-contained, and the same for the same records."""

import html.parser
import re
from xml.etree import ElementTree

import pytest

from dashboards import plots, report
from orchestrator import results
from tests.fake_sweep import control, decode, on_disk, real_cell, score

CONTROL, SPOT, LARGE, SSD = real_cell(), real_cell("spot", 4), real_cell("spot", 8), real_cell("ssd", 4)
CELLS = (CONTROL, SPOT, LARGE, SSD)


def drafts(by_depth):
    return {"drafted": 40, "drafted_passes": 10, "accepted": sum(by_depth), "accepted_by_depth": by_depth}


def records(rows=2):
    for i in range(rows):
        row = f"r{i}"
        yield control(CONTROL.key, row, 60)
        yield decode(SPOT.key, row, 20, 60, **drafts([9, 6]))
        yield decode(LARGE.key, row, 15, 60, **drafts([9, 8, 7]))
        yield decode(SSD.key, row, 30, 60, **drafts([5]))
        yield score(row, i == 0)


def page(tmp_path, cells=CELLS, made=None, rows=2):
    sweep = on_disk(tmp_path, *cells, rows=rows, records=records() if made is None else made)
    return report.write_report(sweep.folder).read_text(encoding="utf-8")


class Balance(html.parser.HTMLParser):
    """Fails on an element closed out of turn."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_table_figures_verdict_and_samples(tmp_path):
    text = page(tmp_path)
    assert "<b>3.00</b>" in text and "4.00" in text and "2.00" in text
    assert text.count("<svg") == 4
    assert "6 of 6 texts are identical to the control&#39;s." in text
    assert text.count("<details>") == 2 and "text of r1" in text and "control: 60 → spot 8: 15" in text


def test_the_share_of_the_position_oracle_is_shown_where_there_is_one(tmp_path):
    oracle = real_cell("oracle-positions", 4, method="oracle", drafter_options=(("knows", "positions"),))
    made = [control(CONTROL.key, "r0", 60), decode(SPOT.key, "r0", 30, 60), decode(oracle.key, "r0", 20, 60)]
    text = page(tmp_path / "with", cells=(CONTROL, SPOT, oracle), made=made)
    assert "<th>oracle share</th>" in text and "<td>75%</td>" in text
    assert "oracle share" not in page(tmp_path / "without")


def test_the_environment_is_shown(tmp_path):
    text = page(tmp_path)
    assert "<div>torch: 2.9</div>" in text and "<div>threads: 1</div>" in text


def test_every_element_is_closed_in_turn(tmp_path):
    parser = Balance()
    parser.feed(page(tmp_path))
    assert parser.open == []


def test_the_page_loads_nothing(tmp_path):
    text = page(tmp_path)
    assert not re.search(r"<(script|link|img|iframe)|@import|url\((?!#)|(?:src|href)=\"(?!#)", text)


def test_the_same_records_give_the_same_page(tmp_path):
    assert page(tmp_path / "a") == page(tmp_path / "b")


def test_model_output_is_escaped(tmp_path):
    evil = [control(CONTROL.key, "r0", 60) | {"text": "<script>alert(1)</script>"}]
    text = page(tmp_path, made=evil)
    assert "<script>" not in text and "&lt;script&gt;" in text


@pytest.mark.parametrize("cells", [(), (CONTROL,), CELLS])
def test_a_sweep_without_records_has_a_page_too(tmp_path, cells):
    text = page(tmp_path, cells=cells, made=[])
    assert "No sample yet." in text and "<svg" not in text


def test_a_bug_is_red_and_a_rounding_difference_is_counted(tmp_path):
    wrong = {"identical": False, "text": "other", "text_sha": "x"}
    made = [control(CONTROL.key, "r0", 60), decode(SPOT.key, "r0", 20, 60, difference="bug", **wrong),
            decode(SSD.key, "r0", 20, 60, difference="numeric", **wrong)]  # fmt: skip
    text = page(tmp_path, made=made)
    assert 'class="verdict bad"' in text and "0 of 2 texts" in text and "1 differ within rounding" in text
    assert "and 1 for no numeric reason: a bug." in text


def test_a_failed_sample_shows_its_error(tmp_path):
    made = [control(CONTROL.key, "r0", 60),
            decode(SPOT.key, "r0", 0, 0, status="failed", error="CUDA error", text_sha=None)]  # fmt: skip
    assert "CUDA error" in page(tmp_path, made=made)


def test_the_sample_browser_says_what_it_leaves_out(tmp_path):
    assert "first 20 of 30" in page(tmp_path, made=records(30), rows=30)


def rows_of(tmp_path):
    sweep, samples = results.load(on_disk(tmp_path, *CELLS, records=records()).folder)
    return results.over_seeds(results.summary(sweep, samples)).to_dict("records")


def test_a_method_has_one_colour_and_the_control_is_grey(tmp_path):
    palette = plots.colours(rows_of(tmp_path))
    assert list(palette) == ["spot", "ssd", "none"] and len(set(palette.values())) == 3


@pytest.mark.parametrize("draw", [plots.nfe_by_budget, plots.throughput_by_nfe, plots.survival, plots.time_split])
def test_a_figure_is_one_svg_with_its_text_as_text(tmp_path, draw):
    rows = rows_of(tmp_path)
    root = ElementTree.fromstring(draw(rows, plots.colours(rows)))
    texts = ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("spot" in text for text in texts)


@pytest.mark.parametrize("draw", [plots.nfe_by_budget, plots.throughput_by_nfe, plots.survival, plots.time_split])
def test_a_figure_without_points_still_draws(draw):
    assert draw([], plots.colours([])).startswith("<svg")
