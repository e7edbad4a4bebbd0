"""What a grid file may say, and what is said back to a user who got it wrong."""

from pathlib import Path

import pytest

from orchestrator.config import CONFIGS, Config, Source, known, load, load_stored, models, relocated, settings
from orchestrator.errors import UserError
from workers.store import place

MISTAKES = [
    (["limt=5"], "command line: limt: unknown key; did you mean 'limit'?"),
    (["decode.gen_lenght=64"], "command line: decode.gen_lenght: unknown key; did you mean 'gen_length'?"),
    (["limit=five"], "command line: limit: five is the wrong type; a whole number or null expected"),
    (["replays=-1"], "command line: replays: -1: rows a cell, 0 for none"),
    (["limit=0"], "command line: limit: 0: one row or more, or null for all"),
    (["decode=3"], "command line: decode: 3 is the wrong type; key: value lines expected"),
    (["models=[]"], "command line: models: an empty axis; give it at least one value"),
    (["models=tiny-sdar"], "command line: models: the wrong type; a list (text each) expected"),
    (["models=[nope]"], "command line: models: no such model: 'nope'; known: dream-7b, llada-8b, "),
    (["tasks=[arit]"], "command line: tasks: no such task: 'arit'; did you mean 'arith'? known: arith, gsm8k"),
    (["drafters=[spt]"], "command line: drafters: no such drafter: 'spt'; did you mean 'spot'? known: blockspec, "),
    (["drafter.spot.tokgat=1"], "command line: drafter.spot.tokgat: unknown key; did you mean 'tokgate'?"),
    (["drafter.spot.tokgate=x"], "command line: drafter.spot.tokgate: 'x' is the wrong type; float expected"),
    (["drafter.sptt.tokgate=1"], "command line: drafter.sptt.tokgate: no such drafter: 'sptt'; did you mean 'spot'?"),
    (["budgets=[2.5]"], "command line: budgets: [2.5]: budgets are whole numbers, 0 or more"),
    (["budgets=[a]"], "command line: budgets: a is the wrong type; a list (a number each) expected"),
    (["temperatures=[-1]"], "command line: temperatures: a temperature is 0 or more"),
    (["workers.device=gpu"], "command line: workers.device: 'gpu': 'cpu' or 'cuda'"),
    (["workers.count=many"], "command line: workers.count: 'many': 'auto' or one worker or more"),
    (["workers.scorers=many"], "command line: workers.scorers: 'many': 'auto' or one scorer or more"),
    (["workers.scorers=0"], "command line: workers.scorers: 0: 'auto' or one scorer or more"),
    (["decode.stop=never"], "command line: decode.stop: 'never': 'eos' or 'length'"),
    (["decode.unmasking=all"], "command line: decode.unmasking: 'all': single or threshold"),
    (["decode.threshold=1"], "command line: decode.threshold: 1.0: a probability between 0 and 1"),
    (["decode.layout=rows"], "command line: decode.layout: 'rows': batch or concat"),
    (["decode.suffix=drop"], "command line: decode.suffix: 'drop': keep or skip"),
    (["decode.verify=sample"], "command line: decode.verify: 'sample': 'match', the exact one, is all there is"),
    (["name=a/b"], "command line: name: 'a/b': letters, digits"),
    (["store=${x}"], "command line: store: Interpolation key 'x' not found"),
    (["store=${"], "command line: store: 'store=${' is not YAML"),
    (["limit=${store}"], "command line: limit: runs is the wrong type; a whole number or null expected"),
    (["store=???"], "command line: store: ???: a value is missing"),
    (["decode.stop=???"], "command line: decode.stop: ???: a value is missing"),
    (["models=['???']"], "command line: models: ???: a value is missing"),
    (["store=gs://bucket"], "command line: store: 'gs://bucket': a folder, or s3://bucket/prefix"),
    (["store=s3://"], "command line: store: 's3://': a folder, or s3://bucket/prefix"),
    (
        ["mlflow=sqlite:///s3://bucket/mlflow.db"],
        "command line: mlflow: 'sqlite:///s3://bucket/mlflow.db': no database",
    ),
    (["mlflow=foo://x"], "command line: mlflow: 'foo://x': sqlite:///FILE, the address of an MLflow server"),
    (["mlflow=mlruns"], "command line: mlflow: 'mlruns': sqlite:///FILE"),
    (["mlflow=sqlite://runs/mlflow.db"], "command line: mlflow: 'sqlite://runs/mlflow.db': sqlite:///FILE"),
    (["mlflow=http://"], "command line: mlflow: 'http://': sqlite:///FILE"),
    (["model.tiny-sdar.family=null"], "command line: model.tiny-sdar.family: missing; every model has one"),
    (["model.tiny-sdar.revision=3"], "command line: model.tiny-sdar.revision: 3 is the wrong type; text expected"),
    (["model.tiny-sdar.block_length=0"], "command line: model.tiny-sdar.block_length: 0: one position or more"),
    (["model.tiny-sdar.mask=1"], "command line: model.tiny-sdar.mask: unknown key; did you mean 'mask_id'?"),
    (["model.tiny-sdar.mask_id=-1"], "command line: model.tiny-sdar.mask_id: -1: a token id is 0 or more"),
    (["model.tiny-sdar.stop_ids=3"], "command line: model.tiny-sdar.stop_ids: 3 is the wrong type; a list expected"),
    (["model.tiny-sdar.stop_ids=[]"], "command line: model.tiny-sdar.stop_ids: []: a list of token ids, or null"),
    (["model.tiny-sdar.chat=true"], "model.tiny-sdar.chat: True is the wrong type; key: value lines, false or null"),
    (["model.tiny-sdar.chat={a: [1]}"], "command line: model.tiny-sdar.chat: 'a': [1]; `name: value`, with text, a"),
    (["model.tiny-sdar.chat={tokenize: true}"], "model.tiny-sdar.chat: tokenize: set by the product, not here"),
    (["model.tiny-sdar.decode.stop=never"], "command line: model.tiny-sdar.decode: stop: 'never': 'eos' or 'length'"),
    (["model.tiny-sdar.decode.stp=eos"], "model.tiny-sdar.decode: stp: unknown key; did you mean 'stop'?"),
    (["model.tiny-sdar.decode.cache=1"], "model.tiny-sdar.decode: cache: 1 is the wrong type; true or false expected"),
    (["model.tiny-sdar.size.params=1"], "command line: model.tiny-sdar.size: params: unknown key; did you mean"),
    (["model.sdar-1.7c.dtype=x"], "command line: model.sdar-1.7c.dtype: no such model: 'sdar-1'; did you mean 'sdar-"),
    (["limit"], "command line: limit: not an override; write key=value"),
    (["limit=["], "command line: limit: 'limit=[' is not YAML"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=lambda value: str(value)[:30])
def test_a_wrong_override_is_one_line_saying_where_what_and_what_would_be_right(overrides, message):
    with pytest.raises(UserError) as raised:
        load("quickstart", overrides)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [tiny-sdar]\ntempratures: [0]\n", "tempratures: unknown key; did you mean 'temperatures'?"),
        ("models: [tiny-sdar\n", "not YAML"),
        ("- a\n- b\n", "not a mapping"),
        ("3\n", "not a mapping"),
        ("name: \udcff\n", "not UTF-8 text"),
        ("models: ['???']\n", "models: ???: a value is missing"),
        ("", "models: an empty axis"),
        (
            "drafter: {spot: {tokgat: 1}}\nmodels: [tiny-sdar]\ndrafters: [spot]\n",
            "unknown key; did you mean 'tokgate'",
        ),
    ],
)
def test_a_wrong_grid_file_is_named(tmp_path, text, message):
    grid = tmp_path / "mine.yaml"
    grid.write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match=r"mine\.yaml") as raised:
        load(str(grid))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_grid_lists_the_known_ones():
    with pytest.raises(UserError, match="no such grid; known: gsm8k-tiny, "):
        load("quikstart")


def test_overrides_reach_lists_nested_keys_and_catalogue_entries():
    overrides = ["limit=5", "budgets=[0,8]", "decode.gen_length=64", "drafter.spot.tokgate=0.7", "workers.count=3"]
    config, _ = load("quickstart", [*overrides, "task.arith.size=7", "model.tiny-sdar.path=/elsewhere"])
    assert (config.limit, config.budgets, config.decode.gen_length, config.workers.count) == (5, [0, 8], 64, 3)
    assert config.drafter["spot"]["tokgate"] == 0.7
    assert config.task["arith"]["size"] == 7
    assert config.model["tiny-sdar"]["path"] == "/elsewhere"


def test_a_grid_file_is_named_after_itself_and_may_bring_its_own_entries(tmp_path):
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "models: [tiny-sdar]\ntasks: [arith]\ndrafters: [bold]\nbudgets: [4]\n"
        "drafter: {bold: {method: spot, checkpoint: x.safetensors, tokgate: 0.9}}\n"
    )
    config, _ = load(str(grid))
    assert config.name == "mine"
    assert config.drafter["bold"]["tokgate"] == 0.9


def test_the_mlflow_store_lies_in_the_store():
    assert load("quickstart", ["store=/data/s"])[0].mlflow == "sqlite:////data/s/mlflow.db"
    assert load("quickstart", ["mlflow=null"])[0].mlflow is None


def test_a_stored_config_reads_back_as_it_was_and_does_not_follow_the_catalogue():
    config, _ = load("quickstart", ["drafter.spot.tokgate=0.7", "seeds=[3]"])
    stored = config.as_dict()
    assert load_stored(stored, Path("sweep.yaml"))[0] == config
    del stored["drafter"]["spot"]["tokgate"]  # as if the option had come later
    assert "tokgate" not in load_stored(stored, Path("sweep.yaml"))[0].drafter["spot"]


def test_an_entry_that_only_the_stored_config_knows_can_be_overridden():
    stored = load("quickstart")[0].as_dict()
    stored["drafter"]["bold"] = stored["drafter"].pop("spot")
    stored["drafters"] = ["bold"]
    config, _ = load_stored(stored, Path("sweep.yaml"), ["drafter.bold.tokgate=0.5"])
    assert config.drafter["bold"]["tokgate"] == 0.5


def one_model(tmp_path: Path, model: str, decode: str = "{}") -> str:
    """A grid file with one model, its own."""
    grid = tmp_path / "mine.yaml"
    axes = "models: [mine]\ntasks: [arith]\ndrafters: [stale]\nbudgets: [4]\n"
    grid.write_text(f"{axes}decode: {decode}\nmodel: {{mine: {model}}}\n")
    return str(grid)


@pytest.fixture
def catalogue(tmp_path, monkeypatch) -> Path:
    """configs/model in a folder of the test's own, with the rest of configs/ as it is."""
    for section in CONFIGS.iterdir():
        (tmp_path / section.name).symlink_to(section)
    (tmp_path / "model").unlink()
    (tmp_path / "model").mkdir()
    monkeypatch.setattr("orchestrator.config.CONFIGS", tmp_path)
    return tmp_path / "model"


TARGET = "family: sdar\npath: x\nblock_length: 4\n"


def test_every_published_target_is_in_the_catalogue_and_every_entry_is_valid():
    entries = models()
    assert {"sdar-8b", "sdar-4b", "sdar-1.7b", "llada2-mini", "llada-8b", "dream-7b"} <= entries.keys()
    for name in entries:
        assert load("quickstart", [f"models=[{name}]"])[0].model == {name: entries[name]}


def test_what_is_published_of_a_target_is_all_in_its_entry():
    for name, entry in models().items():
        if not name.startswith("tiny"):
            assert entry["mask_id"] and entry["stop_ids"] and entry["dtype"] == "bfloat16"
            assert 1.9 < 1e9 * entry["size"]["gigabytes"] / entry["size"]["parameters"] < 2.1  # bfloat16: two bytes


def test_a_published_target_says_its_block_length_where_its_name_does():
    for name, entry in models().items():
        if entry["path"].startswith("JetLM/"):
            trained = entry["path"].partition("-Chat-b")[2] or "4"
            assert entry["block_length"] == int(trained)
            assert name.partition("-b")[2] == ("" if trained == "32" else trained)


def test_a_name_with_a_dot_can_be_overridden():
    config, _ = load(
        "quickstart", ["models=[sdar-1.7b]", "model.sdar-1.7b.dtype=float32", "model.sdar-1.7b.chat=false"]
    )
    assert (config.model["sdar-1.7b"]["dtype"], config.model["sdar-1.7b"]["chat"]) == ("float32", False)
    with pytest.raises(UserError, match=r"configs/model/sdar-1\.7b\.yaml: model\.sdar-1\.7b\.family: "):
        raise Source("mine.yaml").error("model.sdar-1.7b.family", "wrong")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TARGET + "dtpe: x\n", "mine.yaml: model.mine.dtpe: unknown key; did you mean 'dtype'?"),
        ("family: sdar\npath: x\n", "mine.yaml: model.mine.block_length: missing; every model has one"),
        (TARGET + "stop_ids: [a]\n", "mine.yaml: model.mine.stop_ids: ['a']: a list of token ids"),
        (TARGET + "decode: {threshold: 2.0}\n", "mine.yaml: model.mine.decode: threshold: 2.0: a probability"),
        ("family: [sdar\n", "mine.yaml: not YAML"),
        ("- sdar\n", "mine.yaml: not a mapping"),
    ],
)
def test_a_broken_entry_is_one_line_naming_its_file(catalogue, text, message):
    (catalogue / "mine.yaml").write_text(text)
    for find in (models, lambda: load("quickstart", ["models=[mine]"])):
        with pytest.raises(UserError) as raised:
            find()
        assert message in str(raised.value)


def test_a_models_own_decode_settings_hold_where_the_grid_makes_none(catalogue):
    (catalogue / "mine.yaml").write_text(TARGET + "decode: {threshold: 0.95, gen_length: 64}\n")
    (catalogue / "other.yaml").write_text(TARGET)
    chosen = ["models=[mine,other]", "decode.threshold=0.5"]  # the quickstart's file sets gen_length
    assert load("quickstart", chosen)[0].decode_of("mine").threshold == 0.5
    config = load("quickstart", chosen[:1])[0]
    assert [config.decode_of(name).threshold for name in ("mine", "other")] == [0.95, 0.9]
    assert [config.decode_of(name).gen_length for name in ("mine", "other")] == [128, 128]
    resumed = load_stored(config.as_dict(), Path("sweep.yaml"))[0]
    assert resumed == config
    assert load_stored(config.as_dict(), Path("sweep.yaml"), chosen[1:])[0].decode_of("mine").threshold == 0.5


def test_what_a_grid_says_of_a_model_holds_for_that_model(tmp_path):
    entry = "{family: sdar, path: x, block_length: 4, decode: {threshold: 0.7}}"
    grid = one_model(tmp_path, entry, "{threshold: 0.5, gen_length: 64}")
    decode = load(grid)[0].decode_of("mine")
    assert (decode.threshold, decode.gen_length) == (0.7, 64)
    asked = ["models=[tiny-sdar]", "decode.threshold=0.5", "model.tiny-sdar.decode.threshold=0.8"]
    assert load("quickstart", asked)[0].decode_of("tiny-sdar").threshold == 0.8


def test_every_bundled_grid_is_valid():
    for name in known("grid"):
        assert load(name)[0].name == Path(name).name


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "{family: sdar, path: x, block_length: '32'}",
            "block_length: '32' is the wrong type; a whole number expected",
        ),
        ("{family: sdar, path: null, block_length: 4}", "model.mine.path: missing"),
        ("{family: sdar, path: x}", "model.mine.block_length: missing"),
        (
            "{family: sdar, path: x, block_length: 4, dtpe: float32}",
            "model.mine.dtpe: unknown key; did you mean 'dtype'?",
        ),
    ],
)
def test_a_model_of_ones_own_has_every_key_it_needs_and_no_other(tmp_path, entry, message):
    with pytest.raises(UserError) as raised:
        load(one_model(tmp_path, entry))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:////a/b.db",
        "sqlite+pysqlite:///b.db",
        "postgresql+psycopg://u@h:5432/d",
        "postgresql://me@corp@h/d",
        "mysql://h/d",
        "https://h:5000",
        "http://h:5000/",
        "databricks",
        "databricks://profile",
        "null",
    ],
)
def test_every_mlflow_store_that_there_is_is_taken(uri):
    assert str(load("quickstart", [f"mlflow={uri}"])[0].mlflow) in (uri, "None")


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me:hunter2@h/d",
        "https://me:hunter2@h",
        "mysql://h/d?password=hunter2",
        "ftp://me:hunter2@h",
        "postgresql://me@corp:hunter2@h/d",
        "postgresql://me:hunter2/x@h/d",
        "https://hunter2@h/x.mlflow",
        "postgresql://h/d?sslpassword=hunter2",
        "mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3Dhunter2",
    ],
)
def test_a_password_is_refused_and_not_repeated(uri):
    with pytest.raises(UserError, match=r"command line: mlflow: sweep\.yaml would keep the password") as raised:
        load("quickstart", [f"mlflow={uri}"])
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("text", ["exclude={drafters: spot}", "zip={models: drafters}", "models.a=3"])
def test_a_mapping_in_the_place_of_a_list_is_a_mistake(text):
    key = text.partition("=")[0]
    with pytest.raises(UserError, match=rf"command line: {key}: the wrong type; a list \(.* each\) expected"):
        load("quickstart", [text])


def test_settings_are_checked_like_a_grid():
    with pytest.raises(UserError, match="command line: limit: Interpolation key 'x' not found"):
        settings(Config("x"), ["limit=${x}"])


def test_the_database_of_a_store_on_s3_is_here():
    config, _ = load("quickstart", ["store=s3://bucket/x"])
    assert (str(config.folder), config.mlflow) == ("s3://bucket/x/quickstart", "sqlite:///runs/mlflow.db")
    moved = relocated(config.as_dict(), place("s3://other/y/quickstart"))
    assert (moved["store"], moved["mlflow"]) == ("s3://other/y", "sqlite:///runs/mlflow.db")
    assert relocated(config.as_dict(), place("new/quickstart"))["mlflow"] == "sqlite:///new/mlflow.db"
