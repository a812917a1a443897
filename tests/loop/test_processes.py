"""Two and four processes with a mesh of eight devices: one answer, killed and resumed, on another number of them."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("on_processes.py")


def started(size, folder, *mode, apart=False):
    """`apart`: every process but the first has a folder of its own."""
    folders = [folder / f"of{rank}" if apart and rank else folder for rank in range(size)]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    return [
        subprocess.Popen(
            [sys.executable, DRIVER, str(rank), str(size), port, str(folders[rank]), *map(str, mode)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for rank in range(size)
    ]


def finished(size, folder, *mode):
    """What each process printed last."""
    processes = started(size, folder, *mode)
    outputs = [process.communicate(timeout=400) for process in processes]
    for process, (_, error) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, error[-3000:]
    lines = [output.strip().splitlines() for output, _ in outputs]
    return [json.loads(line[-1]) if line and line[-1].startswith("{") else None for line in lines]


@pytest.mark.long_but("2-local-penalty")
@pytest.mark.parametrize(
    ("size", "kind", "method"),
    [
        (2, "local", "penalty"),
        (2, "local", "default"),
        (4, "rows", "penalty"),
        (2, "large", "default"),
        (2, "stream", "default"),
        (2, "once", "penalty"),
        (4, "stream", "penalty"),
    ],
    ids=[
        *("2-local-penalty", "2-local-default", "4-rows-penalty", "2-large-default"),
        *("2-stream-default", "2-once-penalty", "4-stream-penalty"),
    ],
)
def test_every_process_has_the_answer_of_one(size, kind, method, tmp_path):
    (alone,) = finished(1, tmp_path, f"{kind}-{method}-plain")
    for found in finished(size, tmp_path, f"{kind}-{method}-plain"):
        assert found["x"] == pytest.approx(alone["x"], rel=1e-9)
        assert found["y"] == pytest.approx(alone["y"], rel=1e-7, abs=1e-9)
        assert found["history"] == pytest.approx(alone["history"], rel=1e-9)
        assert (found["status"], found["iterations"]) == (alone["status"], alone["iterations"])


@pytest.mark.long
def test_a_run_goes_on_on_another_number_of_processes(tmp_path):
    """Vectors that are cut: saved by two, resumed by one and by four. The samples are the same, as there are eight
    devices in each case, so that rounding is all that differs."""
    (whole,) = finished(1, tmp_path, "large-penalty-plain")
    for size in (1, 4):
        folder = tmp_path / str(size)
        finished(2, folder, "large-penalty-half")
        for found in finished(size, folder, "large-penalty-resume"):
            assert found["x"] == pytest.approx(whole["x"], rel=1e-9)
            assert found["iterations"] == whole["iterations"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "kind", "killed"),
    [
        (2, "local", "all"),
        (4, "local", "all"),
        (4, "local", "one"),
        (2, "stream", "all"),
        (2, "blocks", "all"),
        (4, "blocks", "all"),
    ],
)
def test_processes_are_killed_and_resumed(size, kind, killed, tmp_path):
    """To the bits of a run that nobody stops. If one is killed, the others end too, with an error. One has written."""
    processes = started(size, tmp_path, f"{kind}-penalty-begin", apart=True)
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob("checkpoint-*"))) < 2 or not any(
        path.name > "checkpoint-00000003" for path in tmp_path.glob("checkpoint-*")
    ):
        assert time.monotonic() < deadline, "no checkpoints came"
        assert all(process.poll() is None for process in processes)
        time.sleep(0.2)
    for process in processes if killed == "all" else processes[-1:]:
        process.kill()
    for process in processes:
        process.communicate(timeout=300)
        assert process.returncode != 0
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    first, *others = finished(size, tmp_path, f"{kind}-penalty-resume")
    assert others == [first] * (size - 1)
    assert first["iterations"] > 100  # 100 more than the checkpoint had
    assert first["status"] == "budget"
    whole, *_ = finished(size, tmp_path / "none", f"{kind}-penalty-plain", first["iterations"])
    assert (whole["x"], whole["y"]) == (first["x"], first["y"])


@pytest.mark.long
def test_streams_are_resumed_by_as_many_processes(tmp_path):
    finished(2, tmp_path, "stream-penalty-half")
    (alone,) = started(1, tmp_path, "stream-penalty-resume")
    _, error = alone.communicate(timeout=400)
    assert "read by 2 processes" in error
