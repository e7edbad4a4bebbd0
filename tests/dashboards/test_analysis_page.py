"""The page of an analysis: complete, self-contained, its files beside it."""

import re

import pandas as pd
import pytest

from dashboards.analysis import write
from orchestrator.analysis import Analysis
from tests.dashboards.test_report import Balance

PLACE = {"model": "tiny", "task": "arith", "temperature": 0.0}
NO_CELLS = pd.DataFrame(columns=[*PLACE, "name", "method", "knows", "budget", "n", "nfe", "nfe_ratio", "oracle_share"])
NO_LENGTHS = pd.DataFrame(columns=["checkpoint", "task", "temperature", "block_length", "name", "budget", "nfe_ratio"])


def accuracy():
    shares = {"stale token": [1.0, 0.95], "order model": [0.75, None], "stale confidence": [0.22, 0.03]}
    return pd.DataFrame(
        {**PLACE, "measure": name, "by": by, "at": at, "asked": 8, "share": share}
        for name, values in shares.items()
        for by in ("block", "depth")
        for at, share in enumerate(values)
    )


def cell(name, budget, ratio, share, knows=None):
    return {**PLACE, "name": name, "method": "x", "knows": knows, "budget": budget, "n": 2, "nfe": 60 / ratio,
            "nfe_ratio": ratio, "oracle_share": share}  # fmt: skip


def made(folder, headroom=NO_CELLS, lengths=NO_LENGTHS):
    return Analysis("first <run>", folder, (("seed", "0"),), accuracy(), headroom, lengths)


def whole(folder):
    headroom = pd.DataFrame([cell("spot", 4, 2.5, 0.8), cell("spot", 8, 3.5, 0.85),
                             cell("oracle-positions †", 4, 4.0, 1.0, "positions")])  # fmt: skip
    lengths = pd.DataFrame({"checkpoint": "c/d", "task": "arith", "temperature": 0.0, "block_length": length,
                            "name": "spot", "budget": 4, "n": 2, "nfe": 20, "nfe_ratio": ratio}
                           for length, ratio in ((16, 2.0), (32, 2.5)))  # fmt: skip
    return made(folder, headroom, lengths)


def test_the_page_has_every_figure_its_numbers_and_a_sentence(tmp_path):
    text = write(whole(tmp_path)).read_text()
    assert text.count("<svg") == 5
    assert "names 100.0% of the next tokens" in text and "order model 75%, stale confidence 22%" in text
    assert "<td>3.50×</td>" in text and "<td>85%</td>" in text and "divide the passes by 4.0." in text


def test_the_files_beside_it_are_the_tables_and_the_figures(tmp_path):
    write(whole(tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"accuracy.csv", "headroom.csv", "block-lengths.csv", "index.html"} < names
    figures = {"tiny-arith-T-0-block", "tiny-arith-T-0-depth", "tiny-arith-T-0-headroom", "tiny-arith-T-0-recovered",
               "c-d-arith-T-0-block-length"}  # fmt: skip
    assert {f"{figure}.{kind}" for figure in figures for kind in ("svg", "png")} < names
    assert (tmp_path / "tiny-arith-T-0-block.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """The report reads it, and `run` ends with a report."""

    def killed(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write(whole(tmp_path))
    assert not (tmp_path / "accuracy.csv").exists()


def test_it_loads_nothing_and_every_element_is_closed_in_turn(tmp_path):
    text = write(whole(tmp_path)).read_text()
    assert not re.search(r"<(script|link|img|iframe)|@import|url\((?!#)|(?:src|href)=\"(?!#)", text)
    assert "first &lt;run&gt;" in text
    parser = Balance()
    parser.feed(text)
    assert parser.open == []


def test_without_oracles_or_block_lengths_their_figures_are_left_out(tmp_path):
    text = write(made(tmp_path)).read_text()
    assert text.count("<svg") == 2 and "Headroom" not in text and not (tmp_path / "headroom.csv").exists()


def test_the_same_analysis_gives_the_same_page(tmp_path):
    assert write(whole(tmp_path / "a")).read_text() == write(whole(tmp_path / "b")).read_text()
