"""Kill runs at random moments, resume them, and compare the answers with those of runs that were left alone.

    python -m benchmarks.kill                    # 200 runs, and a page in benchmarks/results
    python -m benchmarks.kill --runs 10 --seed 3

A process solves a problem with checkpoints and is killed (SIGKILL: it can do nothing about it) at a random moment;
another one resumes the run, and every third time is killed as well. One moment in five is uniform over the time that
such a process takes, most of which is compiling; the others over the time after its first checkpoint. Where nothing had
been written yet, the run is started again. The answer in the end must equal that of an undisturbed run in every bit: x,
multipliers, draws, evaluations and the whole history.
"""

import argparse
import contextlib
import datetime as dt
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._results import write

ROWS, SEED = 200, 5
EVERY = 0.02  # seconds between checkpoints: a good part of the kills comes while one is being written


# --- the problems, in the processes that are killed


def _problems() -> dict[str, Any]:
    import jax.numpy as jnp

    import lariax as lx

    def wells(source: Any) -> Any:
        return lx.Problem(
            lambda x, z: jnp.sum(1 - jnp.exp(-((x - 1.5 - 0.3 * z) ** 2) / 4)),
            samples=source,
            constraints={
                "sphere": lx.Equal(lambda x, z: x @ x - 4.0 + 0.5 * z[0] * x[0]),
                "order": lx.AtMost(lambda x: x[0] - x[1], 0.1, samples=None),
            },
        )

    def portfolio(source: Any) -> Any:
        return lx.Problem(
            lambda x, z: (x @ z) ** 2,
            samples=source,
            constraints={"return": lx.AtLeast(lambda x, z: x @ (0.2 + z), 0.1)},
            within=lx.sets.Simplex(),
        )

    def flow(source: Any) -> Any:
        return lx.Problem(
            lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
            samples=source,
            constraints={"flow": lx.Linear(jnp.array([[1.0, -1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]]), 1.0)},
        )

    return {"wells": wells, "portfolio": portfolio, "flow": flow}


def _batches() -> Iterator[Any]:
    import numpy as np

    i = 0
    while True:
        yield np.random.default_rng(i).normal(size=(4096, 4))
        i += 1


def _sources() -> dict[str, Any]:
    import jax
    import numpy as np

    import lariax as lx

    rows = np.random.default_rng(0).normal(size=(ROWS, 4))
    groups = np.arange(ROWS) % 3
    return {
        "Distribution": lambda: lx.Distribution(lambda key: jax.random.normal(key, (4,))),
        "Dataset": lambda: lx.Dataset(rows),
        "epochs": lambda: lx.Dataset(rows, epochs=True),
        "Stratified": lambda: lx.Stratified(rows, by=groups),
        "Stream": lambda: lx.Stream(_batches()),
    }


def _methods() -> dict[str, Any]:
    import lariax as lx

    return {
        "TrackedLagrangian": lx.TrackedLagrangian(),
        "QuadraticPenalty": lx.QuadraticPenalty(step_size=0.02),
        "DualPenalty": lx.DualPenalty(step_size=0.02, dual_step=0.1),
        "LinearizedALM": lx.LinearizedALM(lipschitz=2.0),
    }


CASES = {  # method, source, problem, iterations, options
    "tracked on a distribution": ("TrackedLagrangian", "Distribution", "wells", 60_000, {}),
    "tracked on epochs": ("TrackedLagrangian", "epochs", "portfolio", 60_000, {}),
    "tracked on a stream": ("TrackedLagrangian", "Stream", "wells", 20_000, {"output": "random"}),
    "tracked with looks": ("TrackedLagrangian", "Dataset", "wells", 20_000, {"output": "best"}),
    "penalty on a distribution": ("QuadraticPenalty", "Distribution", "wells", 200_000, {"output": "random"}),
    "penalty on strata": ("QuadraticPenalty", "Stratified", "wells", 150_000, {"batch_size": 2}),
    "penalty on a stream": ("QuadraticPenalty", "Stream", "portfolio", 60_000, {}),
    "dual on data": ("DualPenalty", "Dataset", "wells", 200_000, {"record_every": 10}),
    "dual on epochs": ("DualPenalty", "epochs", "portfolio", 150_000, {"batch_size": 4}),
    "linearized on data": ("LinearizedALM", "Dataset", "flow", 300_000, {}),
    "linearized on a stream": ("LinearizedALM", "Stream", "flow", 60_000, {}),
}


def _work(role: str, case: str, folder: Path, answer: Path, cache: Path) -> None:
    """One process: solve, or resume, and write down everything about the answer but the time it took."""
    import jax
    import numpy as np

    import lariax as lx

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    method, source, problem, iterations, options = CASES[case]
    made = _problems()[problem](_sources()[source]())
    if role == "resume":
        result = lx.resume(folder, made)
    else:
        checkpoint = None if role == "reference" else lx.Checkpoint(folder, every=EVERY)
        x0 = np.full(4, 0.25)
        result = lx.solve(
            made, x0, _methods()[method], iterations=iterations, seed=SEED, checkpoint=checkpoint, **options
        )
    history = {name: result.history[name] for name in result.history if name != "seconds"}
    told = (result.x, result.multipliers, result.draws, result.evaluations, result.iterations, history)
    leaves = jax.tree_util.tree_leaves_with_path((told, result.status))
    with open(answer, "wb") as file:
        np.savez(file, **{jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})


# --- the one that kills


def _start(*what: Any) -> int:
    """A process that has imported everything and has not begun to compute; forking one is cheaper than starting it."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks after its threads have started, which they have not
        child = os.fork()
    if child:
        return child
    try:
        _work(*what)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _finish(*what: Any) -> None:
    """Run a process to its end."""
    _, status = os.waitpid(_start(*what), 0)
    if status:
        print(f"a process failed: {what}", flush=True)


class Span(NamedTuple):
    """How long an undisturbed process takes, in all and after its first checkpoint."""

    whole: float
    running: float


def _timed(case: str, folder: Path, answer: Path, cache: Path) -> Span:
    began = time.monotonic()
    child = _start("solve", case, folder, answer, cache)
    _await_checkpoint(child, folder)
    saved = time.monotonic()
    os.waitpid(child, 0)
    return Span(time.monotonic() - began, time.monotonic() - saved)


def _await_checkpoint(child: int, folder: Path) -> None:
    """Until a new one is there, or the process has ended."""
    before = set(folder.iterdir()) if folder.exists() else set()
    while not (folder.exists() and set(folder.iterdir()) - before):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.002)


def _kill(draw: random.Random, span: Span, *what: Any) -> bool:
    """Whether the process was still running when its moment came, and was killed."""
    child = _start(*what)
    if draw.random() < 0.2:
        time.sleep(draw.uniform(0, span.whole))
    else:
        _await_checkpoint(child, what[2])
        time.sleep(draw.uniform(0, span.running))
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _equal(a: Path, b: Path) -> bool:
    import numpy as np

    if not (a.exists() and b.exists()):
        return False
    with np.load(a, allow_pickle=False) as one, np.load(b, allow_pickle=False) as other:
        return one.files == other.files and all(one[name].tobytes() == other[name].tobytes() for name in one.files)


class Tally(NamedTuple):
    """What happened to the runs of a case."""

    runs: int = 0
    equal: int = 0
    kills: int = 0
    early: int = 0  # before the first checkpoint
    late: int = 0  # not killed: the process had ended before its moment came, and the run is begun again
    writing: int = 0  # while a checkpoint was being written

    def plus(self, **more: int) -> "Tally":
        return self._replace(**{name: getattr(self, name) + count for name, count in more.items()})


def _trial(case: str, tally: Tally, span: Span, draw: random.Random, home: Path, cache: Path) -> Tally:
    """One run to its end, killed once or twice on the way."""
    folder, answer = Path(tempfile.mkdtemp(dir=home)), home / "answer.npz"
    answer.unlink(missing_ok=True)
    kills, wanted, role = 0, 2 if tally.runs % 3 == 2 else 1, "solve"
    while kills < wanted:
        if not _kill(draw, span, role, case, folder, answer, cache):  # it had ended: from the beginning
            shutil.rmtree(folder)
            folder.mkdir()
            kills, role, tally = 0, "solve", tally.plus(late=1)
            span = Span(0.7 * span.whole, 0.7 * span.running)  # the machine was busier when this was measured
            continue
        left = [path.name for path in folder.iterdir()]
        saved = any(name.endswith(".lariax") for name in left)
        kills, role = kills + 1, "resume" if saved else "solve"
        tally = tally.plus(kills=1, early=not saved, writing=any(name.endswith(".part") for name in left))
    _finish(role, case, folder, answer, cache)
    shutil.rmtree(folder)
    return tally.plus(runs=1, equal=_equal(answer, home / f"{case}.npz"))


def trials(runs: int, seed: int, cases: dict[str, Any], home: Path) -> dict[str, Tally]:
    """So many runs, of all cases in turn; fewer after Ctrl-C."""
    import lariax  # noqa: F401 (so that the processes that are forked have it)

    draw, cache = random.Random(seed), home / "cache"
    (home / "undisturbed").mkdir()
    tallies, spans = dict.fromkeys(cases, Tally()), {}
    for case in cases:  # everything compiled before the first kill: a kill may spoil a file of the cache
        _finish("reference", case, home, home / f"{case}.npz", cache)
        spans[case] = _timed(case, home / "undisturbed" / case, home / "answer.npz", cache)
        if not _equal(home / "answer.npz", home / f"{case}.npz"):
            raise SystemExit(f"{case}: checkpoints change the answer")
    with contextlib.suppress(KeyboardInterrupt):  # what was done until then counts
        for i in range(runs):
            case = list(cases)[i % len(cases)]
            tallies[case] = _trial(case, tallies[case], spans[case], draw, home, cache)
            print(f"{i + 1}. {case}: {tallies[case]}", flush=True)
    return tallies


def table(tallies: dict[str, Tally]) -> str:
    lines = [
        "| run | processes killed | of these before the first checkpoint | while one was being written | "
        "runs finished | equal in every bit |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    total = Tally(*map(sum, zip(*tallies.values(), strict=True)))
    for case, tally in [*tallies.items(), ("**all**", total)]:
        lines.append(f"| {case} | {tally.kills} | {tally.early} | {tally.writing} | {tally.runs} | {tally.equal} |")
    return "\n".join(lines)


def _about(runs: int, seed: int, tallies: dict[str, Tally]) -> str:
    late = sum(tally.late for tally in tallies.values())
    return "\n".join(
        [
            "## Survival: killed and resumed",
            "",
            f"`python -m benchmarks.kill --runs {runs} --seed {seed}`, {dt.date.today().isoformat()}, {os.cpu_count()} "
            f"cores shared with other work; Python {platform.python_version()}, jax {version('jax')}.",
            "",
            f"Processes that solve a problem with a checkpoint every {EVERY} s are killed (SIGKILL) at random moments; "
            "others resume. Every third run is killed twice. A process that ends before its moment comes is not "
            f"killed, and its run begins again ({late} times). Equal: x, multipliers, draws, evaluations and the whole "
            "history have the bits of a run that was left alone.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill runs at random moments, resume them, compare the answers.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this one, or several")
    options = parser.parse_args()
    cases = {name: CASES[name] for name in options.case or CASES}
    with tempfile.TemporaryDirectory() as home:
        tallies = trials(options.runs, options.seed, cases, Path(home))
    text = table(tallies)
    if not options.case:
        write("kill", f"{_about(options.runs, options.seed, tallies)}\n\n{text}")
    print(text)
    if any(tally.equal != tally.runs for tally in tallies.values()):
        raise SystemExit("some answers differ")


if __name__ == "__main__":
    main()
