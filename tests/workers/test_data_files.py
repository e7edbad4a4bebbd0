"""Data sets: files of several kinds, the hub's layout in a local folder, and what is said of bad data."""

import gzip
import json
import os
import subprocess
import sys

import pyarrow
import pytest
from pyarrow import parquet

from tests.data_sets import OWN, own
from workers.tasks import load_task

TASKS = ["gsm8k", "math500", "humaneval", "mbpp"]
TEXT_COLUMN = {"gsm8k": "question", "math500": "answer", "humaneval": "test", "mbpp": "code"}
ID_COLUMN = {"math500": "unique_id", "humaneval": "task_id", "mbpp": "task_id"}


def lines(task):
    return (OWN / f"{task}.jsonl").read_bytes().splitlines()


def changed(task, number, **columns):
    """Our rows with other `columns` in line `number`."""
    found = lines(task)
    found[number - 1] = json.dumps({**json.loads(found[number - 1]), **columns}).encode()
    return b"\n".join(found)


def complaint(task, path):
    with pytest.raises(ValueError) as raised:
        load_task(task, {"path": str(path)})
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def write(tmp_path):
    def write(content, name="rows.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


# ---- good ones


@pytest.mark.parametrize("task", TASKS)
def test_plain_compressed_and_parquet_files_have_the_same_rows(task, write, tmp_path):
    plain = load_task(task, {"path": own(task)})
    compressed = write(gzip.compress((OWN / f"{task}.jsonl").read_bytes()), "rows.jsonl.gz")
    table = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([json.loads(line) for line in lines(task)]), table)
    for path in (compressed, table):
        assert load_task(task, {"path": str(path)}).revision == plain.revision
    assert len(plain.rows) == 10


@pytest.mark.parametrize("task", TASKS)
def test_blank_lines_windows_line_ends_and_a_byte_order_mark_do_no_harm(task, write):
    path = write(b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines(task)) + b"\r\n \r\n")
    assert load_task(task, {"path": str(path)}).revision == load_task(task, {"path": own(task)}).revision


def test_a_text_may_hold_any_line_end_that_json_allows_raw(write):
    path = write(json.dumps({"question": "a\u2028b\x85c", "answer": "1"}, ensure_ascii=False).encode())
    assert load_task("gsm8k", {"path": str(path)}).rows[0].prompt.startswith("a\u2028b\x85c")


OFFLINE = """
from workers.tasks import load_task
print(load_task("gsm8k", {options}).revision)
"""


def offline(options, tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", OFFLINE.replace("{options}", repr(options))]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_local_folder_of_the_hubs_layout_and_the_hubs_cache_load_offline(tmp_path):
    folder = tmp_path / "gsm8k"
    (folder / "main").mkdir(parents=True)
    table = pyarrow.Table.from_pylist([json.loads(line) for line in lines("gsm8k")])
    parquet.write_table(table, folder / "main" / "test-00000-of-00001.parquet")
    parquet.write_table(table.slice(0, 2), folder / "main" / "train-00000-of-00001.parquet")
    card = "configs:\n- config_name: main\n  data_files:\n"
    card += "".join(f"  - split: {split}\n    path: main/{split}-*\n" for split in ("train", "test"))
    (folder / "README.md").write_text(f"---\n{card}---\n")
    revision = load_task("gsm8k", {"path": own("gsm8k")}).revision
    run = offline({"hub": str(folder)}, tmp_path)
    assert run.stdout.strip() == revision, run.stderr

    (made,) = tmp_path.glob("home/datasets/gsm8k/main/0.0.0/*/")  # as if it had been loaded from the hub
    cached = tmp_path / "home" / "datasets" / "openai___gsm8k" / "main" / "0.0.0" / ("7" * 40)
    cached.parent.mkdir(parents=True)
    made.rename(cached)
    run = offline({"hub": "openai/gsm8k", "revision": "7" * 40}, tmp_path)
    assert run.stdout.strip() == revision, run.stderr


def test_a_hub_set_that_is_not_in_the_cache_is_one_line_offline(tmp_path):
    run = offline({"hub": "openai/gsm8k"}, tmp_path)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("workers.work.Absent: hub: cannot load openai/gsm8k (")
    assert last.endswith("a local file goes in path=FILE")


# ---- bad ones


@pytest.mark.parametrize("task", TASKS)
def test_a_missing_file_a_folder_and_an_empty_file_are_named(task, write, tmp_path):
    assert complaint(task, "no.jsonl").startswith("path: no file no.jsonl; JSON lines (plain or .gz) or Parquet")
    assert complaint(task, tmp_path).startswith(f"path: no file {tmp_path}; ")
    for content in (b"", b"\n \n"):
        path = write(content)
        assert complaint(task, path) == f"path: {path} has no rows; at least one is wanted"
    path = write(gzip.compress(b""), "rows.jsonl.gz")
    assert complaint(task, path) == f"path: {path} has no rows; at least one is wanted"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("line", [b'{"question": "b"', b"question,answer", b"[" * 100_000, b"NaN,"])
def test_a_line_that_is_not_json_is_named(task, line, write):
    path = write(b"\n".join([*lines(task)[:2], line]))
    assert complaint(task, path) == f"path: {path} line 3: not JSON; one object a line expected"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("line", [b"[1]", b"null", b'"text"', b"3"])
def test_a_line_that_is_no_object_is_named(task, line, write):
    path = write(b"\n".join([lines(task)[0], line]))
    assert complaint(task, path).startswith(f"path: {path} line 2: {json.loads(line)!a} is no row; a JSON object")


@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_column_is_named_with_what_there_is(task, write):
    row = json.loads(lines(task)[3])
    text = row.pop(TEXT_COLUMN[task])
    path = write(b"\n".join([*lines(task)[:3], json.dumps({**row, "solutoin": text}).encode()]))
    there = ", ".join(map(ascii, [*row, "solutoin"]))
    assert complaint(task, path) == f"path: {path} line 4: no column {TEXT_COLUMN[task]!r}; it has {there}"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("value", [None, 3, ["x"], "", "  ", "\ud800"])
def test_a_value_of_the_wrong_type_is_named(task, value, write):
    path = write(changed(task, 7, **{TEXT_COLUMN[task]: value}))
    assert complaint(task, path).startswith(f"path: {path} line 7: {TEXT_COLUMN[task]}: {value!a} is wrong; text ")


def test_the_names_of_columns_are_shown_on_one_line(write):
    path = write(json.dumps({"a\nb": 1, "\x1b[31m": 2, "c" * 99: 3}).encode())
    there = f"'a\\nb', '\\x1b[31m', '{'c' * 36}..."
    assert complaint("gsm8k", path) == f"path: {path} line 1: no column 'question'; it has {there}"


@pytest.mark.parametrize("tests", ["assert True", [], [1], None, [""], ["assert f()", " \n"], ["assert f( =="], ["\0"]])
def test_mbpp_tests_are_a_list_of_python_texts(tests, write):
    path = write(changed("mbpp", 2, test_list=tests))
    expected = f"path: {path} line 2: test_list: {tests!a} is wrong; a list of one Python test or more expected"
    assert complaint("mbpp", path) == expected


def test_an_answer_without_a_number_is_no_answer_of_gsm8k(write):
    path = write(changed("gsm8k", 2, answer="#### many"))
    assert complaint("gsm8k", path).endswith("line 2: answer: '#### many' is wrong; text with a number expected")


@pytest.mark.parametrize("task", ID_COLUMN)
def test_an_id_that_comes_twice_is_named_with_both_lines(task, write):
    first = json.loads(lines(task)[1])[ID_COLUMN[task]]
    path = write(changed(task, 9, **{ID_COLUMN[task]: first}))
    assert complaint(task, path) == f"path: {path} line 9: {ID_COLUMN[task]} {first!r} is there before (line 2)"


@pytest.mark.parametrize("task", TASKS)
def test_a_gzip_file_that_is_cut_short_or_damaged_is_named_with_its_line(task, write):
    whole = gzip.compress((OWN / f"{task}.jsonl").read_bytes())
    short = write(whole[: len(whole) * 2 // 3], "short.jsonl.gz")
    assert f"{short} line " in complaint(task, short)
    assert complaint(task, short).endswith(": the gzip file is cut short or damaged")
    damaged = write(whole[:40] + bytes(40) + whole[80:], "damaged.jsonl.gz")
    assert complaint(task, damaged).startswith(f"path: {damaged} line 1: ")
    plain = write((OWN / f"{task}.jsonl").read_bytes(), "plain.jsonl.gz")
    assert complaint(task, plain) == f"path: {plain} line 1: the gzip file is cut short or damaged"


@pytest.mark.parametrize("task", TASKS)
def test_text_that_is_not_utf_8_is_named(task, write):
    path = write(b"\n".join([*lines(task)[:4], '{"question": "café"}'.encode("latin-1")]))
    assert complaint(task, path) == f"path: {path} line 5: not UTF-8 text (byte 18 of the line)"


@pytest.mark.parametrize("task", TASKS)
def test_a_parquet_file_that_is_none_is_named(task, write):
    path = write(b"PAR1 no PAR1", "rows.parquet")
    assert complaint(task, path) == f"path: {path} is not Parquet"


@pytest.mark.parametrize("task", TASKS)
def test_a_damaged_parquet_file_is_one_line_wherever_the_damage_is(task, write, tmp_path):
    table = tmp_path / "whole.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([json.loads(line) for line in lines(task)]), table)
    whole = table.read_bytes()
    for at in range(4, len(whole) - 8, len(whole) // 20):
        path = write(whole[:at] + b"\xff" * 40 + whole[at + 40 :], "damaged.parquet")
        try:
            load_task(task, {"path": str(path)})  # not all damage can be seen
        except ValueError as error:
            assert str(error).startswith(f"path: {path} ") and "\n" not in str(error)


def test_the_other_config_of_mbpp_is_told_by_its_columns():
    with pytest.raises(ValueError, match=r"line 1: no column 'text'; it has 'source_file', 'task_id', 'prompt'"):
        load_task("mbpp", {"path": own("mbpp-sanitized")})
