"""SPOT sweeps from the command line.

    python launch.py run quickstart                       # the whole product in three minutes, on two CPU cores
    python launch.py plan quickstart budgets=[0,4,8,20]   # what would run; nothing is loaded
    python launch.py resume quickstart                    # after a crash, or Ctrl-C: loses nothing, repeats nothing

Exit codes: 0 complete, 1 finished with failed samples or a bug (or ended at the first, with --fail-fast), 2 the user's
mistake, 3 gave up (a model could not be loaded, more samples failed than `tolerate` allows, no worker came, the ledger
could not be written), 130 after Ctrl-C, 143 after SIGTERM. (`rescore`: 1 if a text cannot be scored.)
"""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from orchestrator import config as configs
from orchestrator import estimate, outlook
from orchestrator.config import AXES, COMMAND_LINE, ROOT, Config, Settings, Source, shown
from orchestrator.driver import Driver, Mirror, NoMirror, Outcome
from orchestrator.errors import Exit, UserError
from orchestrator.estimate import counted
from orchestrator.executors import (
    Executor,
    InlineExecutor,
    RayExecutor,
    check_room,
    one_line,
    said_in_one_line,
    wanted_scorers,
)
from orchestrator.grid import decode_spec
from orchestrator.ledger import FULL, Ledger, Sweep, has_sweep, holder, read_sweep, write_sweep
from orchestrator.metrics import Metered, Metrics
from orchestrator.plan import Backend, Plan, backend, load_tasks, make_plan, make_sweep
from orchestrator.progress import counter, view, workers_line
from orchestrator.rescore import Rescored, TextCounts, any_unscored, check_canaries, check_data
from orchestrator.rescore import rescore as score_again
from orchestrator.scoring import LocalScorers, RayScorers, Scorers
from orchestrator.standing import failures_table, follow, read_workers, states_table
from orchestrator.traces import load_traces, made_of, make_shards, trace_tasks
from workers.store import Place, StoreError, open_store, place
from workers.work import MethodTask, ModelSpec, SampleTask, TraceTask

ABOUT = """Grids of models, tasks, drafters, budgets, temperatures and seeds, decoded with SPOT.

Start with: **python launch.py run quickstart**"""

app = typer.Typer(help=ABOUT, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)
RUN, CLUSTER, SEEN, MODELS = "Run a grid", "On a cluster", "What came of it", "Targets and drafters"  # of the help
GridName = Annotated[str, typer.Argument(metavar="GRID", help="A name in configs/grid, or the path of a YAML file.")]
SweepName = Annotated[str, typer.Argument(metavar="NAME", help="A sweep in the store, or the grid it was run from.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Changes to the config: limit=5 budgets=[0,8] workers.device=cuda"),
]
StoreOnly = Annotated[
    list[str] | None, typer.Argument(metavar="store=PLACE", help="Where the sweep is, if not in runs.")
]
ModelOption = Annotated[str, typer.Option(help="The target, an entry of configs/model.")]
TaskOption = Annotated[str, typer.Option(help="Whose prompts to trace; its train split is used, if it has one.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Answer with one JSON object on stdout; the rest of what is said goes to stderr.")
]
Answer = dict[str, Any]
Layout = Literal["long", "paper"]
Form = Literal["terminal", "csv", "markdown", "latex", "html"]
TracesOption = Annotated[
    str | None,
    typer.Option(help="A folder or s3://bucket/prefix with traces, for those that are made to stay. [default: by OUT]"),
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Begin nothing more once a sample has failed.")]

WATCH_SECONDS, WATCH_S3_SECONDS = 1.0, 5.0  # between two looks at the ledger; a look at S3 is two requests or more
MOST_CHANGED = 12  # cells whose accuracy `rescore` prints before the table


def main(arguments: Sequence[str] | None = None, workers: Backend | None = None) -> int:
    """Run the command line `arguments` (the process's own by default) and return the exit code.

    A UserError, what S3 says, or a file that cannot be opened becomes its one line here and nowhere else. `workers`
    stands in for workers/ in tests.
    """
    try:
        app(args=None if arguments is None else list(arguments), obj=workers)
    except (UserError, OSError) as error:
        print(f"error: {_said(error)}", file=sys.stderr)
        return _code(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _said(error: UserError | OSError) -> str:
    """What went wrong, in one line."""
    if isinstance(error, UserError | StoreError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename is not None else one_line(error)


def _code(error: UserError | OSError) -> Exit:
    """A full disk is no mistake of the command line's."""
    return Exit.GAVE_UP if isinstance(error, OSError) and error.errno in FULL else Exit.MISTAKE


@contextmanager
def answering(as_json: bool, once: bool = True) -> Iterator[Answer]:
    """What a verb puts in the dict is printed as one line of JSON at its end, if `as_json`, and all else on stderr.

    A verb that ends without an answer says `error`, the line that stderr has, and `exit_code`; one that answers not
    `once` but line by line only where it has failed.
    """
    answer: Answer = {}
    if not as_json:
        yield answer
        return
    stdout = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield answer
    except (UserError, OSError) as error:
        answer.update(error=_said(error), exit_code=_code(error))
        raise
    except KeyboardInterrupt:
        answer.update(error="stopped", exit_code=Exit.SIGNAL + signal.SIGINT)
        raise
    except typer.Exit as end:
        if once and not answer:
            answer.update(error="stopped" if end.exit_code > Exit.SIGNAL else "failed", exit_code=end.exit_code)
        raise
    finally:
        if once or answer:
            print(json.dumps(answer, ensure_ascii=False), file=stdout)


# ---- run, resume, plan


@app.command(rich_help_panel=RUN)
def run(
    context: typer.Context,
    grid: GridName,
    overrides: Overrides = None,
    fail_fast: FailFast = False,
    as_json: AsJson = False,
) -> None:
    """Run a grid. A sweep of that name goes on where it stopped; a changed grid amends it.

    JSON: sweep, folder, exit_code, status, stopped, signal, ran, ignored, failed and bugs ([{cell, row, ...}]),
    given_up, texts, report, table (as `report`'s).
    """
    answer = context.with_resource(answering(as_json))
    config, source = configs.load(grid, overrides or [])
    raise typer.Exit(_run(config, source, context.obj or backend(), False, fail_fast, answer))


@app.command(rich_help_panel=RUN)
def resume(
    context: typer.Context,
    name: SweepName,
    overrides: Overrides = None,
    retry_failed: Annotated[bool, typer.Option(help="Decode failed samples once more.")] = False,
    fail_fast: FailFast = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a sweep as its sweep.yaml describes it, whatever has become of the grid file since.

    JSON: as `run`'s.
    """
    answer = context.with_resource(answering(as_json))
    for text in overrides or []:
        if text.startswith("name="):
            raise UserError(
                COMMAND_LINE, "name", "a sweep keeps its name; start another with: python launch.py run GRID"
            )
    config, source = _stored(read_sweep(_folder(name, overrides or [])), overrides or [])
    raise typer.Exit(_run(config, source, context.obj or backend(), retry_failed, fail_fast, answer))


def _stored(sweep: Sweep, overrides: Sequence[str]) -> tuple[Config, Source]:
    """The config of a sweep that exists, with changes; the store= that its folder was found by is none."""
    changes = [text for text in overrides if not text.startswith("store=")]
    stored = configs.relocated(sweep.config, sweep.folder)
    return configs.load_stored(stored, sweep.folder / "sweep.yaml", changes)


@app.command(rich_help_panel=RUN)
def plan(
    context: typer.Context,
    grid: GridName,
    overrides: Overrides = None,
    probe: Annotated[
        list[Path] | None,
        typer.Option(
            help="Times by this file of `launch.py probe`, one a model. (Default: runs/probe/MODEL-DEVICE.json)"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what `run` would do: cells, samples, passes, and what is timed: hours and, with cluster=NAME, cost.

    Starts no Ray, needs no GPU, loads no target. Of a folder of configs/grid, such as `paper`, every grid, and the sum.

    JSON: sweep, folder, notes, unresolved, cells, samples, left, sample_tasks, states, workers, model_loads, passes,
    most_passes, passes_by, worker_hours, most_worker_hours, hours_by, untimed, cluster, usd, most_usd, places, table.
    Of a folder: grids (a list of these) and total.
    """
    answer = context.with_resource(answering(as_json))
    console, workers, names, found = Console(), context.obj or backend(), configs.grids(grid), []
    for name in names:
        looked = outlook.look(*configs.load(name, overrides or []), workers, probe or [])
        found.append(outlook.as_dict(looked))
        if len(names) > 1:
            console.print(f"[bold]{name}[/]")
        if len(names) == 1:
            _print_notes(console, looked.plan)
        for part in outlook.printed(looked, alone=len(names) == 1):
            _print(console, part) if isinstance(part, str) else console.print(part)
        console.print(f"[dim]{escape(str(looked.plan.config.folder))}[/]")
    if len(names) == 1:
        answer.update(found[0])
        return
    summed = outlook.total(found)
    answer.update(grids=found, total=summed)
    for line in outlook.total_lines(summed, len(names)):
        _print(console, line)


def _run(config: Config, source: Source, workers: Backend, retry_failed: bool, fail_fast: bool, answer: Answer) -> int:
    """Whatever is wrong with the input is found before the sweep's folder or a model is touched.

    So is a lack of room; for that a cluster at `workers.address` is connected to, no Ray is started here. And so is a
    scorer that does not work here, if there is anything to score.
    """
    plan = make_plan(config, source, workers)
    count = check_room(config, source)
    if _anything_left(plan, retry_failed):
        check_canaries(plan.tasks, source, workers.make_judge)
    console = Console()
    _print_notes(console, plan)
    try:
        outcome = _drive(console, plan, workers, count, retry_failed, fail_fast)
    except KeyboardInterrupt as stop:
        stopped, code = "stopped", Exit.SIGNAL + (stop.args[0] if stop.args else signal.SIGINT)
        print(f"{stopped}; go on with: {_command('resume', config.folder)}", file=sys.stderr)
        answer.update(sweep=config.name, folder=str(config.folder), error=stopped, exit_code=code)
        return code
    except OSError as error:
        return _cannot_go_on(config, error, "sweep", "resume", answer)
    results = _print_outcome(console, outcome, config)
    answer.update(sweep=config.name, folder=str(config.folder), exit_code=outcome.exit_code, **_outcome(outcome))
    answer.update(results)
    return outcome.exit_code


def _drive(console: Console, plan: Plan, workers: Backend, count: int, retry_failed: bool, fail_fast: bool) -> Outcome:
    config = plan.config
    with Ledger.write(config.folder, time.time(), partial(_print, console)) as ledger:
        pending = any(plan.waves(ledger.results(), retry_failed))
        mirror, say = _mirror(_amend(console, plan, workers, pending)), partial(_print, console)
        try:
            with view(console, config.name) as shown:
                make_executor = partial(_executor, config, workers, count)
                make_scorers = partial(_scorers, config, workers, count)
                meter = Metrics(config.name) if _on_cluster(config) else None
                driver = Driver(plan, ledger, make_executor, make_scorers, mirror, shown, say, meter=meter)
                return driver.run(retry_failed, fail_fast)
        finally:
            if mirror.behind:
                why = mirror.error or "it did not answer in time"
                say(f"MLflow lacks this sweep ({why}); bring it up with: {_command('sync', config.folder)}")


def _cannot_go_on(config: Config, error: OSError, what: str, verb: str, answer: Answer) -> Exit:
    """A full disk, a store that is gone: what was recorded before is kept."""
    why = str(error) if isinstance(error, StoreError) else one_line(error)
    stopped = f"{config.folder}: the {what} cannot go on ({why})"
    print(f"error: {stopped}; then: {_command(verb, config.folder)}", file=sys.stderr)
    answer.update(sweep=config.name, folder=str(config.folder), error=stopped, exit_code=Exit.GAVE_UP)
    return Exit.GAVE_UP


def _outcome(outcome: Outcome) -> Answer:
    return {
        "status": outcome.status,
        "stopped": outcome.stopped,
        "signal": outcome.signal,
        "ran": outcome.ran,
        "ignored": outcome.ignored,
        "failed": [{"cell": cell.label, "row": row, "error": error} for cell, row, error in outcome.failed],
        "bugs": [{"cell": cell.label, "row": row} for cell, row in outcome.bugs],
        "given_up": outcome.given_up,
        "texts": asdict(outcome.texts),
    }


def _amend(console: Console, plan: Plan, workers: Backend, pending: bool) -> Sweep:
    """Write sweep.yaml, and say what has changed since the last run of this name.

    The environment is the one that made the results: where nothing is `pending`, it stays what it was.
    """
    folder = plan.config.folder
    previous = read_sweep(folder) if has_sweep(folder) else None
    if previous is not None and not pending:
        environment = previous.environment
    else:
        environment = workers.environment(next(iter(plan.models.values())))  # every model's workers are alike
    sweep = make_sweep(plan, folder, environment, previous)
    if previous is not None:
        before = {cell.key for cell in previous.cells}
        added, gone = len(plan.cells.keys() - before), len(before - plan.cells.keys())
        for name in (name for name in ("decoder", "scorers") if name in previous.environment):
            if environment.get(name) != previous.environment[name]:
                _print(console, _changed_sources(name), "[yellow]note[/] ")
        new, left = _changed_rows(sweep, previous), _changed_rows(previous, sweep)
        if new or left:
            cells = f"{counted(added, 'new cell')}, {counted(new, 'new sample')}"
            console.print(f"amended: {cells}; {counted(gone, 'cell')}, {counted(left, 'sample')} no longer asked for")
        if left:
            _print(console, "what they gave stays in the ledger, and is shown again once the grid asks for it")
    write_sweep(sweep)
    return sweep


def _changed_rows(sweep: Sweep, other: Sweep) -> int:
    """How many samples of `sweep` the `other` has not."""
    return sum(len(set(rows) - set(other.rows.get(key, ()))) for key, rows in sweep.rows.items())


def _changed_sources(name: str) -> str:
    remedy = {
        "decoder": "if texts or passes may differ, raise SEMANTICS (workers/work.py) and run anew",
        "scorers": "if verdicts may differ, raise the task's SCORER and run: launch.py rescore",
    }
    return f"the {name}'s sources have changed since this sweep was last run; {remedy[name]}"


def _executor(config: Config, workers: Backend, count: int) -> Executor:
    if config.workers.executor == "inline":
        return InlineExecutor(workers.make_worker, count)
    make_worker = Metered(workers.make_worker, config.name) if _on_cluster(config) else workers.make_worker
    return RayExecutor(make_worker, config.workers, count, wanted_scorers(config.workers, count))


def _on_cluster(config: Config) -> bool:
    """Whether there is a Ray that somebody may watch, and not one that is here for this sweep alone."""
    return config.workers.executor == "ray" and config.workers.address is not None


def _scorers(config: Config, workers: Backend, decoding: int) -> Scorers:
    count = wanted_scorers(config.workers, decoding)
    if config.workers.executor == "inline":
        return LocalScorers(workers.make_judge, count)
    return RayScorers(workers.make_judge, config.workers, count, decoding)


def _anything_left(plan: Plan, retry_failed: bool) -> bool:
    """Whether a run of this plan would decode or score."""
    ledger = Ledger(plan.config.folder)
    waves = plan.waves(ledger.results(), retry_failed)
    return any(waves) or any_unscored(plan.cells, plan.tasks, ledger)


def _mirror(sweep: Sweep) -> Mirror:
    uri = sweep.config["mlflow"]
    if uri is None:
        return NoMirror()
    from orchestrator import tracking

    return tracking.Mirror(uri, sweep, _drawings())


@app.command(rich_help_panel=RUN)
def rescore(
    context: typer.Context,
    name: SweepName,
    overrides: Overrides = None,
    every: Annotated[bool, typer.Option("--all", help="Every text, for a scorer that is being worked on.")] = False,
    as_json: AsJson = False,
) -> None:
    """Score a sweep's texts again, decoding nothing: those without a score, with an error, or of an older scorer.

    Needs no GPU, no model and no Ray. Exit code 1 if texts are left that cannot be scored.

    JSON: scored, changed, texts, before and after (right and scored samples by cell), report, table (as `report`'s).
    """
    answer = context.with_resource(answering(as_json))
    folder, workers, console = _folder(name, overrides or []), context.obj or backend(), Console()
    for key in (text.partition("=")[0] for text in overrides or []):
        if key not in ("store", "mlflow", "workers.scorers") and not key.startswith("task."):
            wrong = "says nothing about scoring; task.NAME.KEY=, workers.scorers=, mlflow= and store= do"
            raise UserError(COMMAND_LINE, key, wrong)
    sweep = read_sweep(folder)
    config, source = _stored(sweep, overrides or [])
    tasks = load_tasks(config, source, workers)
    check_data(sweep, tasks, source)
    check_canaries(tasks, source, workers.make_judge)
    count = wanted_scorers(replace(config.workers, address=None), 0)
    make_scorers = partial(LocalScorers, workers.make_judge, count)
    try:
        with Ledger.write(folder, time.time(), partial(_print, console)) as ledger, counter(console, "texts") as show:
            found = score_again(sweep, tasks, ledger, make_scorers, every, show, time.time)
    except KeyboardInterrupt:
        print("stopped; the scores that were made are kept, and the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    except OSError as error:
        raise typer.Exit(_cannot_go_on(config, error, "scoring", "rescore", answer)) from None
    _print_rescored(console, found)
    if found.scored and config.mlflow is not None:
        _try_sync(console, folder, config.mlflow)
    results = _print_results(console, folder)
    answer.update(scored=found.scored, changed=found.changed, texts=asdict(found.counts))
    answer.update(before=found.before, after=found.after, **results)
    raise typer.Exit(int(found.counts.errors > 0))


# ---- on a cluster that goes on without this machine


AddressOption = Annotated[
    str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="The dashboard of the cluster's head node.")
]
DASHBOARD = "http://127.0.0.1:8265"  # where `ray dashboard` and `kubectl port-forward` bring it


@app.command(rich_help_panel=CLUSTER)
def submit(
    context: typer.Context,
    grid: GridName,
    overrides: Overrides = None,
    address: AddressOption = DASHBOARD,
    as_json: AsJson = False,
) -> None:
    """Run a grid on a cluster, its driver on the head node: code and configs are shipped, this machine may go.

    JSON: sweep, job.
    """
    from orchestrator import submit as jobs

    answer = context.with_resource(answering(as_json))
    config, source = configs.load(grid, overrides or [])
    client = jobs.connect(address)
    jobs.check_versions(client)
    job = jobs.submit(client, grid, config, source, overrides or [])
    where = [] if address == DASHBOARD else ["--address", address]
    _print(Console(), f"submitted as {job}; follow it with: {_command('logs', config.name, *where)}")
    answer.update(sweep=config.name, job=job)


@app.command(rich_help_panel=CLUSTER)
def logs(name: SweepName, address: AddressOption = DASHBOARD) -> None:
    """Follow what the driver of a submitted sweep says, to its end. Exit code 0 if it succeeded."""
    from orchestrator import submit as jobs

    client = jobs.connect(address)
    job = jobs.find(client, _submitted(name))
    try:
        jobs.follow(client, job, partial(print, end="", flush=True))
    except KeyboardInterrupt:
        print("the sweep goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    how = jobs.ended(client, job)
    _print(Console(stderr=True), f"{job.submission_id}: {how}")
    raise typer.Exit(int(how != "SUCCEEDED"))


@app.command(rich_help_panel=CLUSTER)
def stop(context: typer.Context, name: SweepName, address: AddressOption = DASHBOARD, as_json: AsJson = False) -> None:
    """Stop a submitted sweep as Ctrl-C does: what is decoded is recorded, and `submit` goes on with it.

    JSON: job, status.
    """
    from orchestrator import submit as jobs

    answer = context.with_resource(answering(as_json))
    client = jobs.connect(address)
    job = jobs.find(client, _submitted(name))
    how = jobs.ended(client, job) or jobs.stop(client, job)
    _print(Console(), f"{job.submission_id}: {how}")
    answer.update(job=job.submission_id, status=how)


def _submitted(name: str) -> str:
    """The sweep's name, which the grid of that name may set."""
    return configs.load(name, [])[0].name if configs.find_grid(name) is not None else name


# ---- looking at a sweep


@app.command(rich_help_panel=SEEN)
def status(
    context: typer.Context,
    name: SweepName,
    overrides: StoreOnly = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only what failed, by error.")] = False,
    as_json: AsJson = False,
) -> None:
    """How far a sweep is, read from its ledger: works with or without a driver, starts nothing.

    JSON: sweep, folder, driver, finished, cells, cells_done, samples, samples_done, failed, rate, seconds_left, nfe,
    nfe_ratio, workers (by model and state), to_score, causes, texts, states, failures ([{cause, error, count, cells,
    rows}]), table.
    """
    answer = context.with_resource(answering(as_json))
    folder = _viewed(name, overrides)
    driver, standing, console = holder(folder), next(follow(folder)), Console()
    shown = standing.progress(time.time(), read_workers(folder) if driver else {})
    answer.update(standing.as_dict(driver, shown))
    failures = standing.failures()
    if not failed:
        console.print(states_table(standing.states))
    if failures:
        console.print(failures_table(failures))
    done = f"{shown.samples_done - shown.failed}/{shown.samples} samples, {shown.failed} failed"
    who = f"a driver is at work ({driver})" if driver else "no driver is running"
    _print(console, "; ".join(filter(None, (f"{done}, {_texts(standing.texts)}", who, workers_line(shown)))))


@app.command(rich_help_panel=SEEN)
def watch(context: typer.Context, name: SweepName, overrides: StoreOnly = None, as_json: AsJson = False) -> None:
    """Follow a sweep until it ends, by its ledger: from any terminal or machine that sees the store.

    Exit code 0 once it is complete, 1 if samples failed or the driver is gone before the end.

    JSON: a line whenever something has changed: sweep, driver, finished, cells, cells_done, samples, samples_done,
    failed, rate, seconds_left, nfe, nfe_ratio, workers (by model and state), to_score, causes.
    """
    stdout = sys.stdout
    context.with_resource(answering(as_json, once=False))
    folder, console, said = _viewed(name, overrides), Console(), ""
    standings = follow(folder)
    with view(console, folder.name) as shown:
        while True:
            driver = holder(folder)  # first: what it writes before it ends is read then
            standing = next(standings)
            progress = standing.progress(time.time(), read_workers(folder) if driver else {})
            shown.update(progress)
            line = json.dumps(standing.line(driver, progress), ensure_ascii=False)
            if as_json and line != said:
                print(said := line, file=stdout, flush=True)
            if driver is None or standing.ended:
                break
            time.sleep(WATCH_SECONDS if isinstance(folder, Path) else WATCH_S3_SECONDS)
    if not standing.ended:
        _print(console, f"no driver is running; go on with: {_command('resume', folder)}")
    raise typer.Exit(int(not standing.ended or bool(standing.failures())))


def _texts(counts: TextCounts) -> str:
    """`40 texts scored, 2 in error, 3 to score`."""
    more = {"in error": counts.errors, "to score": counts.missing}
    return ", ".join([f"{counted(counts.scored, 'text')} scored", *(f"{n} {word}" for word, n in more.items() if n)])


@app.command(rich_help_panel=SEEN)
def report(
    context: typer.Context,
    name: SweepName,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="store=, or baseline=[SWEEP:]METHOD for the ratios.")
    ] = None,
    layout: Annotated[Layout, typer.Option(help="A line a cell, or a paper's main table.")] = "long",
    form: Annotated[Form, typer.Option("--format", help="All but `terminal` print the table alone.")] = "terminal",
    as_json: AsJson = False,
) -> None:
    """Print the result table, and write the HTML report. Of a sweep at any stage; starts nothing.

    Ratios are against the draft-free control, or baseline=METHOD, as in baseline=spiffy; baseline=SWEEP:METHOD is one
    of another sweep, for threshold decoding beside one position a pass.

    JSON: report (the page, with --format terminal), table: a line a cell, with every number that the page has.
    """
    answer = context.with_resource(answering(as_json))
    baseline = [text.removeprefix("baseline=") for text in overrides or [] if text.startswith("baseline=")]
    others = [text for text in overrides or [] if not text.startswith("baseline=")]
    folder = _viewed(name, others)
    read_sweep(folder)
    base = _baseline(baseline[-1], folder, others) if baseline else None
    if form == "terminal":
        answer.update(_print_results(Console(), folder, layout, base))
        return
    from orchestrator import tables

    sweep, table, rows = _numbers(folder, base)
    answer.update(table=json.loads(table.to_json(orient="records")))
    if form == "csv":
        print(tables.to_csv(table) if layout == "long" else tables.main_csv(rows), end="")
        return
    sheet = tables.LAYOUTS[layout](rows)
    print(tables.html_page(sheet, sweep.name) if form == "html" else tables.FORMATS[form](sheet), end="")


def _baseline(text: str, folder: Place, overrides: Sequence[str]) -> tuple[Place, str]:
    """`METHOD` of the sweep itself, or `SWEEP:METHOD`; UserError where there is none."""
    from orchestrator import results

    where, _, method = text.rpartition(":")
    base = _folder(where, overrides) if where else folder
    results.check_method(read_sweep(base), method)
    return base, method


def _numbers(folder: Place, base: tuple[Place, str] | None) -> tuple[Sweep, Any, Any]:
    """The sweep, `results.summary` and its `over_seeds`, with ratios against `base`."""
    from orchestrator import results

    sweep, samples = results.load(folder)
    if base is not None and base != (folder, "control"):
        other, others = (sweep, samples) if base[0] == folder else results.load(base[0])
        called = base[1] if base[0] == folder else f"{other.name}:{base[1]}"
        samples = results.against(samples, base[1], others, called)
    table = results.summary(sweep, samples)
    return sweep, table, results.over_seeds(table, samples)


@app.command(rich_help_panel=SEEN)
def compare(
    context: typer.Context,
    name: SweepName,
    other: Annotated[
        str, typer.Argument(metavar="NAME|published|FILE.yaml", help="Another sweep, or what is published.")
    ],
    overrides: StoreOnly = None,
    as_json: AsJson = False,
) -> None:
    """Two sweeps, cell by cell on the rows that both have; or a sweep beside published figures. Starts nothing.

    `published` is all of configs/published, FILE.yaml one of them or your own. Of two sweeps it shows which cells
    differ in passes, text and accuracy, who wins, what only one has, and what differs in their settings.

    JSON: of two sweeps: a, b, cells, wins_ties_losses, only_a, only_b, settings; else: figures (each with source, ours
    and verdicts) and unmet, those that speak of no cell of the sweep.
    """
    from orchestrator import compare as comparing
    from orchestrator import published, results, tables

    answer, console = context.with_resource(answering(as_json)), Console()
    figures = published.named(other)
    ours = results.load(_viewed(name, overrides))
    if figures is not None:
        met, unmet = comparing.of_published(ours, figures)
        answer.update(comparing.published_as_dict(met, unmet))
        console.print(tables.terminal(comparing.published_sheet(met), console.width))
        if unmet:
            _print(console, f"{len(unmet)} other figures speak of no cell that it has, or of what no sweep measures")
        return
    found = comparing.of_sweeps(ours, results.load(_viewed(other, overrides)))
    answer.update(comparing.as_dict(found))
    console.print(tables.terminal(comparing.sheet(found), console.width))
    for line in comparing.lines(found):
        _print(console, line)


@app.command(rich_help_panel=SEEN)
def sync(
    context: typer.Context,
    name: SweepName,
    overrides: StoreOnly = None,
    anew: Annotated[
        bool, typer.Option("--rebuild", help="Delete this sweep's runs there, and make them anew.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring MLflow to what the ledger says, after a run without it. Not while a driver is at work.

    JSON: folder, mlflow.
    """
    answer = context.with_resource(answering(as_json))
    folder = _viewed(name, overrides)
    uri = _mlflow(read_sweep(folder))
    if driver := holder(folder):
        raise UserError(str(folder), "", f"a driver is at work ({driver}) and keeps MLflow up to date; wait for it")
    _sync(folder, uri, anew)
    _print(Console(), f"MLflow at {uri} has all of {folder}")
    answer.update(folder=str(folder), mlflow=uri)


def _sync(folder: Place, uri: str, anew: bool = False) -> None:
    from orchestrator import tracking

    try:
        tracking.rebuild(uri, folder, _drawings(), anew)
    except UserError:
        raise
    except Exception as error:  # whatever MLflow and its database make of it
        raise UserError(str(folder), "mlflow", f"{uri}: {tracking.why(error)}") from None


def _drawings() -> Any:
    """What dashboards/ draws for MLflow."""
    from dashboards import mlflow_plots
    from dashboards.report import write_report
    from orchestrator.tracking import Drawings

    return Drawings(write_report, mlflow_plots.of_cell, mlflow_plots.of_sweep)


def _try_sync(console: Console, folder: Place, uri: str) -> None:
    """MLflow may be away: the scores are in the ledger, and `sync` brings it up."""
    try:
        _sync(folder, uri)
    except UserError as error:
        _print(console, f"MLflow lacks the new scores ({error}); bring it up with: {_command('sync', folder)}")


@app.command(rich_help_panel=SEEN)
def ui(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The sweep, or grid, whose store to show.")] = None,
    overrides: StoreOnly = None,
) -> None:
    """Browse the results in MLflow's own interface: a server on this machine, or the address of the one there is."""
    from orchestrator import mlflow_store

    uri, store = _store_of(name, overrides or []) if name else (f"sqlite:///{Config.store}/mlflow.db", Path("."))
    if (database := mlflow_store.database(uri)) and not database.is_file():
        remedy = "run a sweep, or make it of a sweep's records with: python launch.py sync NAME"
        raise UserError(COMMAND_LINE, name or "ui", f"no MLflow database {database} yet; {remedy}")
    if (root := mlflow_store.artifact_root(uri, store)) is None:
        print(uri)
        return
    page, port = mlflow_store.runs_page(uri), str(mlflow_store.free_port())
    for name, value in mlflow_store.ALONE.items():
        os.environ.setdefault(name, value)
    where = ["--backend-store-uri", uri, "--default-artifact-root", root]
    command = [sys.executable, "-m", "mlflow", "ui", *where, "--port", port, "--workers", "1"]
    print(f"http://127.0.0.1:{port}/{page} has MLflow at {uri} in some seconds; Ctrl-C ends it", flush=True)
    os.execv(command[0], command)


def _store_of(name: str, overrides: Sequence[str]) -> tuple[str, Place]:
    """The MLflow store of the sweep `name`, or the one that the grid `name` would write to; and its sweep store."""
    folder = _folder(name, overrides)
    if has_sweep(folder):
        return _mlflow(read_sweep(_viewed(name, overrides))), folder.parent
    config = configs.load(name, overrides)[0]
    if config.mlflow is None:
        raise UserError(COMMAND_LINE, "mlflow", "this grid keeps no MLflow store (mlflow: null)")
    return config.mlflow, config.folder.parent


@app.command(rich_help_panel=SEEN)
def analyze(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [KEY=VALUE]...", help="A sweep in the store, if any, and changes to its config."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Without a sweep: the target, an entry of configs/model.")] = None,
    task: Annotated[str | None, typer.Option(help="Without a sweep: whose prompts, an entry of configs/task.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts to look at; a sweep's first ones.")] = 50,
    block_lengths: Annotated[str, typer.Option(metavar="16,32", help="Decode at these block lengths as well.")] = "",
    as_json: AsJson = False,
) -> None:
    """What limits drafting on a target: stale tokens, the order of commits, the oracles' headroom.

    Takes what it can from the sweep's ledger and decodes the rest in this process: minutes. Writes a page, its figures
    and CSV files.

    JSON: page, failed, tables: by name, their lines (as in the CSV files).
    """
    from orchestrator import analysis

    answer = context.with_resource(answering(as_json))

    named = bool(words) and "=" not in (words or [""])[0]
    name, changes = (words or [""])[0] if named else None, (words or [])[named:]
    if named == bool(model and task) or (named and (model or task)):
        raise UserError(COMMAND_LINE, "analyze", "name a sweep, or give --model and --task")
    lengths = _whole_numbers("--block-lengths", block_lengths)
    if name:
        subject = analysis.of_sweep(_folder(name, changes), changes, prompts)
    else:
        subject = analysis.of_model(str(model), str(task), changes, prompts)
    analysis.check(subject, lengths)
    plan = make_plan(subject.config, subject.source, context.obj or backend())
    check_room(subject.config, subject.source)
    console = Console()
    try:
        with analysis.tracker(console) as track:
            found = analysis.analyze(subject, plan, lengths, track)
    except KeyboardInterrupt:
        print("stopped; what is decoded is kept, and the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    from dashboards.analysis import write

    for table in analysis.printed(found):
        console.print(table)
    for line in found.failed:
        _print(console, line, "[red]failed[/] ")
    page = write(found)
    _print(console, f"page: {page}")
    tables = {name: json.loads(table.to_json(orient="records")) for name, table in found.tables.items()}
    answer.update(page=str(page), failed=list(found.failed), tables=tables)
    raise typer.Exit(int(bool(found.failed)))


def _whole_numbers(option: str, text: str) -> list[int]:
    """`16,32` as numbers."""
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UserError(COMMAND_LINE, option, f"{text!r}: whole numbers, as in 16,32") from None


# ---- what there is


@app.command(rich_help_panel=MODELS)
def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the targets of configs/model, and which of them are on this machine. Asks no network.

    JSON: by model, its entry and `here`.
    """
    answer = context.with_resource(answering(as_json))
    entries = configs.models()
    from workers.models import held

    places = held(entries)
    answer.update({name: entry | {"here": places[name]} for name, entry in entries.items()})
    console, table = Console(), _models_table(entries, places)
    whole = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(console.width, whole)).print(table)  # a name cut short could not be copied


def _models_table(entries: Mapping[str, Mapping[str, Any]], places: Mapping[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("model", "family", "block", "mask id", "dtype", "size", "checkpoint", "revision", "here"):
        table.add_column(heading, justify="right" if heading in ("block", "mask id", "size") else "left")
    for name, entry in entries.items():
        mask = "its own" if entry["mask_id"] is None else str(entry["mask_id"])
        numbers = (str(entry["block_length"]), mask, entry["dtype"] or "float32", _size(entry["size"] or {}))
        revision = entry["revision"] or ("weights" if places[name] == "folder" else "newest")
        table.add_row(Text(name), entry["family"], *numbers, Text(entry["path"]), revision[:12], places[name])
    return table


def _size(published: Mapping[str, float]) -> str:
    """`8.2 B, 16.4 GB`, or what of it is known."""
    known = [f"{published['parameters'] / 1e9:.1f} B"] if "parameters" in published else []
    return ", ".join([*known, *([f"{published['gigabytes']:.1f} GB"] if "gigabytes" in published else [])])


# ---- one prompt


@app.command(rich_help_panel=MODELS)
def decode(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="One user turn.")],
    overrides: Overrides = None,
    passes: Annotated[bool, typer.Option(help="Print a line a pass.")] = True,
    as_json: AsJson = False,
) -> None:
    """Decode one prompt and show what every pass was offered and accepted. Takes the first value of every axis.

    By default tiny-sdar with spot at budget 8, T = 0; for others: drafters=[stale] budgets=[20] temperatures=[1]

    JSON: cell, text, tokens, nfe, cache_passes, drafted and accepted (a pass each), seconds, replay (every pass as
    workers/replay.py has it, null with --no-passes).
    """
    answer = context.with_resource(answering(as_json))
    one = ["drafters=[spot]", "budgets=[8]", "temperatures=[0]"]
    config, source = configs.load("quickstart", [*one, *(overrides or [])])
    plan = make_plan(config, source, backend())
    check_room(config, source)
    from workers.single import narrate, summary
    from workers.worker import Worker

    cell = next((cell for cell in plan.grid.cells if not cell.is_control), plan.grid.cells[0])
    drafter = None if cell.is_control else plan.drafters[cell.model, cell.drafter]
    with said_in_one_line(f"model {cell.model} could not be loaded"):
        worker = Worker(plan.models[cell.model])
    model = plan.models[cell.model]
    spec = decode_spec(config, model, cell.temperature, cell.seed)
    task = SampleTask("", model, "prompt", prompt, prompt, spec, None)
    with said_in_one_line(f"model {cell.model} could not decode this"):
        decoding = worker.decode(task, MethodTask(cell.key, drafter, cell.budget), keep=passes)
    replay = worker.replay(task, decoding) if passes else None
    for line in narrate(replay) if replay else ():
        print(line)
    text = worker.text(decoding.tokens)
    print(text)
    print(summary(decoding), file=sys.stderr)
    if as_json:
        offered, taken = ([getattr(a_pass, what) for a_pass in decoding.passes] for what in ("drafted", "accepted"))
        answer.update(cell=cell.label, text=text, tokens=decoding.tokens, nfe=decoding.nfe, seconds=decoding.seconds)
        answer.update(cache_passes=decoding.cache_passes, drafted=offered, accepted=taken, replay=replay)


# ---- a new machine


@app.command(rich_help_panel=RUN)
def doctor(
    context: typer.Context, grid: GridName = "quickstart", overrides: Overrides = None, as_json: AsJson = False
) -> None:
    """Whether a grid would run on this machine: what it needs, a line each, with the remedy for what is wrong.

    Exit code 1 if anything that the grid needs is wrong.

    JSON: findings ([{name, state, said}]).
    """
    from orchestrator.doctor import examine

    answer = context.with_resource(answering(as_json))
    config, source = configs.load(grid, overrides or [])
    console, found = Console(), []
    for finding in examine(config, source):
        _print(console, finding.line)
        found.append(finding)
    answer.update(findings=[asdict(finding) for finding in found])
    raise typer.Exit(int(any(finding.state == "bad" for finding in found)))


@app.command(rich_help_panel=MODELS)
def probe(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The target, an entry of configs/model.")],
    overrides: Overrides = None,
    task: Annotated[str, typer.Option(help="Whose first prompts to decode, an entry of configs/task.")] = "arith",
    drafter: Annotated[str, typer.Option(help="Who drafts, an entry of configs/drafter.")] = "spot",
    out: Annotated[
        Path | None, typer.Option(help="The file of findings. (Default: runs/probe/MODEL-DEVICE.json)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a target does on this machine: memory, speed, rounding, and the cost of a pass by its number of drafts.

    Decodes three prompts in this process; minutes. On a GPU: workers.device=cuda. `plan` tells times by the findings.

    JSON: the findings, as in their file.
    """
    answer = context.with_resource(answering(as_json))
    from orchestrator import probe as probing

    config, source = probing.asked(model, task, drafter, overrides or [])
    plan = make_plan(config, source, context.obj or backend())
    check_room(config, source)
    file = out or estimate.default_file(config, model)
    probing.check_out(file)
    from workers.probe import load
    from workers.probe import probe as measured

    console = Console()
    say = partial(_print, console)
    try:
        with said_in_one_line(f"model {model} could not be loaded"):
            loaded = load(plan.models[model], say)
        with said_in_one_line(f"model {model} could not be probed"):
            found = measured(loaded, [task for wave in plan.waves({}) for task in wave], say)
    except KeyboardInterrupt:
        print("stopped; nothing is written", file=sys.stderr)
        raise typer.Exit(130) from None
    probing.write(found, file)
    for part in probing.printed(found):
        console.print(part)
    _print(console, f"findings: {file}")
    answer.update(found.as_dict())


# ---- training


@app.command(rich_help_panel=MODELS)
def train_target(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The checkpoint folder.")] = Path("assets/tiny-sdar"),
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train the tiny target on arith, from scratch or from the last checkpoint in OUT/training.

    JSON: out.
    """
    answer = context.with_resource(answering(as_json))
    from spot.training.tiny_target import TrainSettings
    from spot.training.tiny_target import train_target as train
    from workers.tasks.arith import problem

    def example(index: int) -> tuple[str, str]:
        asked = problem(index, "train")
        return asked.question, asked.answer

    try:
        train(example, out, configs.settings(TrainSettings(), overrides or []), partial(print, flush=True))
    except ValueError as error:
        raise UserError(COMMAND_LINE, "out", str(error)) from None
    answer.update(out=str(out))


@app.command(rich_help_panel=MODELS)
def collect_traces(
    context: typer.Context,
    to: Annotated[str, typer.Option(help="Where the shards go: a folder, or s3://bucket/prefix.")],
    model: ModelOption = "tiny-sdar",
    task: TaskOption = "arith",
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts to trace.")] = 1500,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Decode prompts draft-free and keep what the target saw and did. Goes on where it was stopped.

    For the threshold rule: decode.unmasking=threshold decode.threshold=0.9

    JSON: to, prompts, shards.
    """
    answer = context.with_resource(answering(as_json))
    workers = context.obj or backend()
    config, source, shards = _shards(workers, model, task, prompts, to, overrides or [])
    with _keeping(to):
        _make_shards(config, source, workers, shards)
    traced = sum(len(shard.rows) for shard in shards)
    print(f"{counted(traced, 'prompt')} traced, {counted(len(shards), 'shard')} in {to}")
    answer.update(to=to, prompts=traced, shards=len(shards))


@app.command(rich_help_panel=MODELS)
def train_drafter(
    context: typer.Context,
    model: ModelOption = "tiny-sdar",
    task: TaskOption = "arith",
    out: Annotated[Path, typer.Option(help="The checkpoint file.")] = Path("assets/tiny-spot.safetensors"),
    prompts: Annotated[int, typer.Option(min=10, help="How many prompts to trace; a tenth is held out.")] = 1500,
    traces: TracesOption = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train the order model on a target's draft-free traces, and print its held-out accuracy.

    Traces what is not traced yet, then trains in this process on workers.device. An override without a section
    (steps=500) is the training's, one with (decode.gen_length=64) the grid's.

    JSON: out, accuracy: the held-out shares, as printed.
    """
    answer = context.with_resource(answering(as_json))
    from spot.training.order import OrderSettings, accuracy_tables, make_order_model

    settings, of_grid = _settings(OrderSettings(), overrides or [])
    workers, store = context.obj or backend(), traces or str(out.parent / f"{out.stem}.traces")
    config, source, shards = _shards(workers, model, task, prompts, store, of_grid)
    if config.decode_of(model).commit_threshold is not None:
        raise source.error("decode.unmasking", "'threshold': the order model learns from 'single', a position a step")
    _check_block(source, shards[0].model)
    _check_out(out)
    with _keeping(store):
        _make_shards(config, source, workers, shards)
        device, say = _training_device(config), partial(print, flush=True)
        try:
            found = make_order_model(load_traces(shards), settings, out, made_of(shards), device, say)
        except ValueError as error:
            raise UserError(COMMAND_LINE, "prompts", str(error)) from None
        if traces is None:
            open_store(store).clear()
    for line in accuracy_tables(found):
        print(line)
    answer.update(out=str(out), accuracy=found)


@app.command(rich_help_panel=MODELS)
def calibrate(
    context: typer.Context,
    model: ModelOption = "tiny-sdar",
    task: TaskOption = "arith",
    out: Annotated[Path, typer.Option(help="The graph's file.")] = Path("assets/tiny-spiffy.json"),
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts to trace.")] = 50,
    size: Annotated[int, typer.Option(min=1, help="How many formulas to keep: the largest budget it is for.")] = 64,
    accumulate: Annotated[bool, typer.Option(help="Score a formula by its parents' counts too, as published.")] = True,
    traces: TracesOption = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate Spiffy's graph of formulas on a target's draft-free traces.

    JSON: out, formulas (their number).
    """
    answer = context.with_resource(answering(as_json))
    from spot.drafters.spiffy import save_graph
    from spot.training.spiffy import calibrate as calibrated

    workers, store = context.obj or backend(), traces or str(out.parent / f"{out.stem}.traces")
    config, source, shards = _shards(workers, model, task, prompts, store, overrides or [])
    _check_out(out)
    with _keeping(store):
        _make_shards(config, source, workers, shards)
        formulas = calibrated(load_traces(shards), size, accumulate)
        if not formulas:
            raise UserError(COMMAND_LINE, "prompts", "every block is filled in one step; there is nothing to calibrate")
        save_graph(formulas, out, {"method": "spiffy", "accumulate": accumulate, **made_of(shards)})
        if traces is None:
            open_store(store).clear()
    print(f"{len(formulas)} formulas in {out}")
    answer.update(out=str(out), formulas=len(formulas))


@app.command(rich_help_panel=MODELS)
def calibrate_sets(
    context: typer.Context,
    model: ModelOption = "tiny-sdar-96",
    task: TaskOption = "arith",
    order: Annotated[Path, typer.Option(help="The order model to build on.")] = Path("assets/tiny-spot.safetensors"),
    out: Annotated[Path, typer.Option(help="The checkpoint file.")] = Path("assets/tiny-spot-sets.safetensors"),
    threshold: Annotated[list[float] | None, typer.Option(help="τ, may be given several times; 0.9 and 0.99.")] = None,
    prompts: Annotated[int, typer.Option(min=10, help="How many prompts to trace; a tenth is held out.")] = 50,
    traces: TracesOption = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate SPOT-Sets for a target: a head on the order model that foretells who passes the threshold.

    JSON: out, accuracy: by threshold and foreteller, the shares by number of hypothetical steps.
    """
    answer = context.with_resource(answering(as_json))
    from spot.training.sets import SetsSettings, make_sets_model

    settings, of_grid = _settings(SetsSettings(), overrides or [])
    workers, store = context.obj or backend(), traces or str(out.parent / f"{out.stem}.traces")
    _check_out(out)
    if not order.is_file():
        raise UserError(COMMAND_LINE, "order", f"no file {order}")
    try:
        workers.trained_rows(workers.resolve_drafter("spot", {"method": "spot", "checkpoint": str(order)}))
    except ValueError as error:
        raise UserError(COMMAND_LINE, "order", str(error).removeprefix("checkpoint: ")) from None
    found = {}
    with _keeping(store):
        for value in threshold or [0.9, 0.99]:
            rule = ["decode.unmasking=threshold", f"decode.threshold={value}"]
            config, source, shards = _shards(workers, model, task, prompts, store, [*of_grid, *rule])
            _check_block(source, shards[0].model)
            _make_shards(config, source, workers, shards)
            found[value] = load_traces(shards)
        origin = made_of(shards) | {"step_rule": " and ".join(f"threshold {value:g}" for value in found)}
        device, say = _training_device(config), partial(print, flush=True)
        try:
            accuracy = make_sets_model(order, found, settings, out, origin, device, say)
        except ValueError as error:
            raise UserError(COMMAND_LINE, "", str(error)) from None
        if traces is None:
            open_store(store).clear()
    print("held-out sets foretold, % by number of hypothetical steps")
    for name, shares in accuracy.items():
        for who, by_depth in shares.items():
            numbers = "".join("     –" if share is None else f"{100 * share:6.1f}" for share in by_depth)
            print(f"τ {name:5} {who:18}{numbers}")
    answer.update(out=str(out), accuracy=accuracy)


@app.command(rich_help_panel=MODELS)
def import_drafter(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="A released order model, a .pt file of tensors.")],
    out: Annotated[Path, typer.Option(help="The checkpoint file.")],
    names: Annotated[Path | None, typer.Option(help="A YAML file of `theirs: ours` lines, a tensor a line.")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring a released order model into the project's form: every tensor finds its place, or is named.

    JSON: out.
    """
    answer = context.with_resource(answering(as_json))
    from spot.training.import_drafter import import_order_model

    _check_out(out)
    try:
        import_order_model(path, out, configs.read(names) if names is not None else {})
    except ValueError as error:
        raise UserError(str(path), "", str(error)) from None
    except OSError as error:
        raise _unreadable(error) from None
    print(f"imported to {out}; use it with drafter.spot.checkpoint={out}")
    answer.update(out=str(out))


def _settings(defaults: Settings, overrides: Sequence[str]) -> tuple[Settings, list[str]]:
    """The training's settings, and what is left for the grid: keys with a section (task.gsm8k.path=FILE), and axes."""
    of_grid = [text for text in overrides if "." in (key := text.partition("=")[0]) or key in AXES]
    return configs.settings(defaults, [text for text in overrides if text not in of_grid]), of_grid


def _shards(
    workers: Backend, model: str, task: str, prompts: int, store: str, overrides: Sequence[str]
) -> tuple[Config, Source, list[TraceTask]]:
    """The shards of the first `prompts` rows of a task, of its train split where it has splits; touches no store."""
    for key in (text.partition("=")[0] for text in overrides):
        if key in AXES:
            raise UserError(COMMAND_LINE, key, "no axis here; traces are of one --model and one --task, at T = 0")
    configs.check_one("model", model)
    configs.check_one("task", task)
    chosen = ["drafters=[stale]", f"models=[{model}]", f"tasks=[{task}]"]
    config, source = configs.load("quickstart", [*chosen, *overrides])
    asked = {"split": "train", "size": prompts}  # a generated data set is as large as it is asked to be
    chosen += [f"task.{task}.{key}={value}" for key, value in asked.items() if key in config.task[task]]
    config, source = configs.load("quickstart", [*chosen, *overrides])
    plan = make_plan(config, source, workers)
    rows = plan.tasks[task].rows[:prompts]
    if len(rows) < min(prompts, 2):
        raise source.error(f"task.{task}", "one row; a row to learn from and one to hold out are the least")
    try:
        decode = decode_spec(config, plan.models[model], 0.0, 0)
        return config, source, trace_tasks(plan.models[model], task, rows, decode, store)
    except ValueError as error:
        raise UserError(COMMAND_LINE, store, str(error)) from None


def _make_shards(config: Config, source: Source, workers: Backend, shards: Sequence[TraceTask]) -> None:
    """Make what the store lacks; the command ends here, with 1, where that fails."""
    count = check_room(config, source)
    executor, say = partial(_executor, config, workers, count), partial(_print, Console())
    failed = make_shards(shards, executor, config.retries, config.workers.scale_timeout, say)
    for line in failed:
        say(line, "[red]failed[/] ")
    if failed:
        raise typer.Exit(1)


@contextmanager
def _keeping(store: str) -> Iterator[None]:
    """Shards outlive Ctrl-C and a store that stops answering."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; finished shards are kept in {store}, and the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> UserError:
    """What the system, or S3, says of a file."""
    return UserError(str(error.filename), "", error.strerror) if error.strerror else UserError("", "", str(error))


def _training_device(config: Config) -> str:
    """This process's device for training: the workers' kind if it is here too, with all the cores there are."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return config.workers.device if torch.cuda.is_available() else "cpu"


def _check_block(source: Source, model: ModelSpec) -> None:
    """An order model has places for so many positions."""
    from spot.order_model import LONGEST_BLOCK

    if model.block_length > LONGEST_BLOCK:
        wrong = f"{model.block_length}: an order model is for blocks of up to {LONGEST_BLOCK} positions"
        raise source.error(f"model.{model.name}.block_length", wrong)


def _check_out(out: Path) -> None:
    """A checkpoint's folder is there before an hour is spent on what is to go in it, and is no folder itself."""
    if out.is_dir():
        raise UserError(COMMAND_LINE, "out", f"{out}: a folder; the name of a file expected")
    if not out.parent.is_dir():
        raise UserError(COMMAND_LINE, "out", f"{out}: no folder {out.parent}")


def _folder(name: str, overrides: Sequence[str]) -> Place:
    """Where sweep `name` is: a folder or s3:// address, a sweep in the store, or what the grid `name` writes to."""
    stores = [text for text in overrides if text.startswith("store=")]
    store = _place("store", stores[-1].removeprefix("store=") if stores else Config.store)
    for folder in [_place(name, name), store / name] if "://" not in name else [_place(name, name)]:
        if has_sweep(folder):
            return folder if folder.name or not isinstance(folder, Path) else folder.resolve()
    if configs.find_grid(name) is not None:
        return configs.load(name, stores)[0].folder
    sweeps = [found for found in open_store(store).folders() if has_sweep(store / found)]
    wrong = f"no such sweep in {store} and no such grid; sweeps: {configs.listed(sweeps)}"
    raise UserError(COMMAND_LINE, name, wrong)


def _place(key: str, where: str) -> Place:
    try:
        return place(where)
    except ValueError:
        raise UserError(COMMAND_LINE, key, f"{where!r}: a folder, or s3://bucket/prefix") from None


def _viewed(name: str, overrides: Sequence[str] | None) -> Place:
    """The folder of a sweep that is only looked at: no override but store= means anything."""
    for text in overrides or []:
        if not text.startswith("store="):
            raise UserError(COMMAND_LINE, text.partition("=")[0], "only store= says anything about a sweep that exists")
    return _folder(name, overrides or [])


def _mlflow(sweep: Sweep) -> str:
    """The address of the sweep's MLflow store."""
    uri: str | None = configs.relocated(sweep.config, sweep.folder)["mlflow"]
    if configs.has_password(uri):  # one that was written by hand
        raise UserError(shown(sweep.folder / "sweep.yaml"), "mlflow", configs.PASSWORD_REFUSED)
    if uri is None:
        raise UserError(shown(sweep.folder / "sweep.yaml"), "mlflow", "this sweep keeps no MLflow store (mlflow: null)")
    return uri


# ---- printing


def _print_notes(console: Console, plan: Plan) -> None:
    for note in plan.grid.notes:
        _print(console, note, "[yellow]note[/] ")


def _print_outcome(console: Console, outcome: Outcome, config: Config) -> Answer:
    """All of it; returns `_print_results`'s."""
    if not outcome.ran and not outcome.signal and not outcome.stopped and not outcome.given_up:
        console.print("nothing to decode: every sample has its record")
    if outcome.ignored:
        console.print(f"{outcome.ignored} records came for a sample that already had one, and were ignored")
    for cell, row, error in outcome.failed:
        _print(console, f"{cell.label}, row {row}: {error}", "[red]failed[/] ")
    for model, error in outcome.given_up.items():
        _print(console, f"model {model} could not be loaded, its samples are left: {error}", "[red]failed[/] ")
    if outcome.stopped:
        _print(console, f"stopped early, samples are left: {outcome.stopped}", "[red]failed[/] ")
    results = _print_results(console, config.folder)
    if outcome.failed:
        _print(console, f"retry:  {_command('resume', config.folder, '--retry-failed')}")
    _print_unscored(console, outcome.texts, config.folder)
    if outcome.signal:
        _print(console, f"interrupted; go on with: {_command('resume', config.folder)}")
    for cell, row in outcome.bugs:
        print(f"bug: {cell.label}, row {row}: the text is not the control's", file=sys.stderr)
    return results


def _print_unscored(console: Console, texts: TextCounts, folder: Place) -> None:
    """Texts without a verdict, and the way to one."""
    if texts.missing:
        _print(console, f"{counted(texts.missing, 'text')} not scored yet; go on with: {_command('resume', folder)}")
    if texts.errors:
        why = f"{counted(texts.errors, 'text')} could not be scored ({texts.error})"
        _print(console, f"{why}; try again with: {_command('rescore', folder)}")


def _print_rescored(console: Console, found: Rescored) -> None:
    changed, errors = counted(found.changed, "verdict"), found.counts.errors
    console.print(f"scored {counted(found.scored, 'text')}: {changed} changed, {errors} in error")
    if found.counts.errors:
        _print(console, f"the first: {found.counts.error}", "[red]error[/] ")
    cells = [label for label in found.after if found.after[label] != found.before[label]]
    for label in cells[:MOST_CHANGED]:
        _print(console, f"{label}: {_accuracy(found.before[label])}, now {_accuracy(found.after[label])}")
    if len(cells) > MOST_CHANGED:
        console.print(f"and {counted(len(cells) - MOST_CHANGED, 'more cell')}")


def _accuracy(right: tuple[int, int]) -> str:
    """`75.0% of 40`, or "not scored"."""
    return f"{right[0] / right[1]:.1%} of {right[1]}" if right[1] else "not scored"


def _print_results(
    console: Console, folder: Place, layout: Layout = "long", base: tuple[Place, str] | None = None
) -> Answer:
    """The table, the report's path and the way to MLflow; as JSON, the first two."""
    from dashboards.report import write_report
    from orchestrator import tables

    sweep, table, rows = _numbers(folder, base)
    page = str(write_report(folder))
    against = "" if base is None else " (the page's ratios are against the control)"
    console.print(tables.terminal(tables.LAYOUTS[layout](rows), console.width))
    _print(console, f"report: {page}{against}")
    if sweep.config["mlflow"] is not None:
        _print(console, f"browse: {_command('ui', folder)}")
    return {"report": page, "table": json.loads(table.to_json(orient="records"))}


def _print(console: Console, text: str, markup: str = "") -> None:
    """A line that is not wrapped, so that it can be pasted; whatever brackets `text` has are printed as they are."""
    console.print(markup + escape(text), highlight=False, soft_wrap=True)


def _command(*words: str | Place) -> str:
    """The command line that continues with `words`, as it works when pasted here, in an activated venv or not."""
    python = Path(sys.executable)
    program = _from_here(python) if python.is_relative_to(ROOT / ".venv") else "python"
    return shlex.join([program, _from_here(ROOT / "launch.py"), *map(str, words)])


def _from_here(path: Path) -> str:
    """As short as it can be; the folder that one is in may have been deleted."""
    try:
        return os.path.relpath(path)
    except FileNotFoundError:
        return str(path)


if __name__ == "__main__":
    sys.exit(main())
