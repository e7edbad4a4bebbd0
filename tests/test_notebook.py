"""notebooks/quickstart.ipynb: its cells run as they stand; those for Colab are commands that this project has."""

import ast
import re
import shlex

import nbformat
import pytest
import typer
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

import launch
from orchestrator import config, probe
from tests.data_sets import ROOT

NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
LAUNCH = re.compile(r"^!\.venv/bin/python launch\.py (.*)$", re.MULTILINE)


def book():
    return nbformat.read(NOTEBOOK, as_version=4)


def tagged(tag):
    return [cell for cell in book().cells if tag in cell.metadata.get("tags", [])]


def colab_commands():
    """The words after `launch.py`, of every such command."""
    return [shlex.split(line) for cell in tagged("colab") for line in LAUNCH.findall(cell.source)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook with its outputs, from a folder of its own, and that folder."""
    store, made = tmp_path_factory.mktemp("notebook"), book()
    made.cells = [cell for cell in made.cells if "colab" not in cell.metadata.get("tags", [])]
    (parameters,) = [cell for cell in made.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = f"STORE = {str(store)!r}"
    client = NotebookClient(made, timeout=300, startup_timeout=300, resources={"metadata": {"path": NOTEBOOK.parent}})
    return client.execute(), store


def outputs(made, kind):
    return [output for cell in made.cells for output in cell.get("outputs", []) if output.output_type == kind]


def printed(made, name="stdout"):
    return "".join(output.text for output in outputs(made, "stream") if output.name == name)


def test_it_is_kept_without_outputs_and_without_anybodys_paths():
    cells = [cell for cell in book().cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)
    assert not re.search(r"/(home|root|tmp|Users)/", NOTEBOOK.read_text())


def test_one_prompt_takes_fewer_passes_for_the_same_text(executed):
    text = printed(executed[0])
    assert "#### 16" in text  # 7 + 5 + 6 - 2
    alone, drafted = map(int, re.search(r"control: (\d+) passes    SPOT: (\d+) passes", text).groups())
    assert 3 * drafted < alone


def test_the_tree_of_a_pass_is_drawn_with_what_was_accepted(executed):
    drafts, accepted, commits = map(
        int, re.search(r"(\d+) drafts, (\d+) accepted, (\d+) commits in this one pass", printed(executed[0])).groups()
    )
    assert 12 >= drafts > accepted > 1 and commits == accepted + 1
    before, after = re.search(r"^before  (.*)\nafter   (.*)$", printed(executed[0]), re.MULTILINE).groups()
    assert before.count("▒") - after.count("▒") == commits


def test_a_sweep_is_run_tabulated_and_plotted(executed):
    made, store = executed
    assert "10/10 samples, 5/5 cells, done" in printed(made)
    assert (store / "notebook" / "report.html").is_file()
    shown = [output.data for output in outputs(made, "display_data")]
    (table,) = [data["text/markdown"] for data in shown if "text/markdown" in data]
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in table.splitlines() if line[0:1] == "|"][2:]
    assert [" ".join(row[:2]) for row in rows] == ["control 0", "spot 8", "spot 20", "stale 8", "stale 20"]
    assert all(row[-2:] == ["100.0%", "2/2"] for row in rows)
    assert len([data for data in shown if "image/png" in data]) == 2


def test_it_shows_no_warning(executed):
    assert printed(executed[0], "stderr") == ""


def test_the_cells_for_colab_are_python_and_shell():
    cells = [cell.source for cell in tagged("colab")]
    assert len(cells) == 6
    for source in cells:
        ast.parse(TransformerManager().transform_cell(source))


def test_the_cells_for_colab_use_verbs_and_options_that_there_are():
    commands = typer.main.get_command(launch.app)
    assert [words[0] for words in colab_commands()] == ["doctor", "probe", "plan", "run"]
    for verb, *rest in colab_commands():
        commands.commands[verb].make_context(verb, rest)


def test_the_grid_for_colab_is_planned_without_a_network(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (grid,) = [cell.source for cell in tagged("colab") if cell.source.startswith("%%writefile colab.yaml\n")]
    (tmp_path / "colab.yaml").write_text(grid.partition("\n")[2])
    assert launch.main(["plan", str(tmp_path / "colab.yaml"), f"store={tmp_path}"]) == 0
    assert "3 cells (3 new), 12 samples" in capsys.readouterr().out


def test_the_probe_for_colab_measures_what_the_grid_asks_for(tmp_path):
    (grid,) = [cell.source for cell in tagged("colab") if cell.source.startswith("%%writefile colab.yaml\n")]
    (tmp_path / "colab.yaml").write_text(grid.partition("\n")[2])
    planned, _ = config.load(str(tmp_path / "colab.yaml"), [])
    (words,) = [rest for verb, *rest in colab_commands() if verb == "probe"]
    parsed = typer.main.get_command(launch.app).commands["probe"].make_context("probe", words).params
    probed, _ = probe.asked(parsed["model"], parsed["task"], parsed["drafter"], parsed["overrides"])
    assert (probed.models, probed.workers.device) == (planned.models, planned.workers.device)
    assert probed.model == planned.model and probed.model["sdar-1.7b"]["dtype"] == "float32"
