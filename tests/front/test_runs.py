"""Run folders: plain files, whole or not there, and nothing in them is believed."""

import dataclasses
import io
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rich.console import Console

import lariax as lx
from lariax import report, runs
from lariax.runs import RunFolderError


@pytest.fixture
def folder(saved_run, tmp_path):
    return runs.claim(tmp_path / "run").write(saved_run)


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


class TestRoundTrip:
    def test_everything_comes_back(self, saved_run, folder):
        back = runs.load(folder)
        assert back.outcome == saved_run.outcome
        assert back.history.keys() == saved_run.history.keys()
        for line, values in saved_run.history.items():
            np.testing.assert_array_equal(back.history[line], values)
        for part in ("x", "multipliers"):
            for name, array in getattr(saved_run, part).items():
                np.testing.assert_array_equal(getattr(back, part)[name], array)
        assert back.certificate.verdict == saved_run.certificate.verdict
        assert str(back.certificate) == str(saved_run.certificate)
        assert [picture["kind"] for picture in back.pictures] == ["bars", "lines", "scatter", "heatmap"]
        assert back.versions["lariax"] == lx.__version__

    def test_without_lariax(self, result, folder):
        """What a stranger needs: a JSON parser and NumPy."""
        rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        assert len(rows) == 200
        assert rows[-1]["constraints"]["top"] == pytest.approx(list(result.history["constraints"]["top"][-1]))
        entry = json.loads((folder / "answer.json").read_text())["arrays"][0]
        assert entry["name"] == "['w']"
        with np.load(folder / "answer.npz") as arrays:
            np.testing.assert_array_equal(arrays[entry["array"]], result.x["w"])
        certificate = json.loads((folder / "certificate.json").read_text())
        assert certificate["constraints"]["sum"]["holds"] == result.certificate.constraints["sum"].holds
        assert json.loads((folder / "settings.json").read_text())["method"]["name"] == "QuadraticPenalty"

    def test_hostile_names(self, hostile_run, tmp_path):
        back = runs.load(runs.claim(tmp_path / "run").write(hostile_run))
        assert list(back.certificate.constraints) == list(hostile_run.certificate.constraints)
        assert back.history.keys() == hostile_run.history.keys()
        assert set(os.listdir(tmp_path)) == {"run"}

    def test_numbers_that_json_lacks(self, saved_run, tmp_path):
        strange = {**saved_run.history, ("objective",): np.resize([np.nan, np.inf, -np.inf, 1e-320], len(saved_run))}
        path = runs.claim(tmp_path / "run").write(dataclasses.replace(saved_run, history=strange))
        np.testing.assert_array_equal(runs.load(path).history[("objective",)], strange[("objective",)])

    def test_single_precision_is_written_short(self):
        assert runs.dumps({"a": np.float32(0.1), "b": np.array([0.1, 2], np.float32)}) == '{"a": 0.1, "b": [0.1, 2.0]}'

    def test_long_vectors_are_summed_up(self):
        history = lx.History(
            {"iteration": np.arange(2), "multipliers": {"flow": np.array([np.ones(17), np.arange(17)])}}
        )
        lines = runs.lines_of(history)
        assert {path[2] for path in lines if len(path) == 3} == {"least", "largest", "length"}
        np.testing.assert_allclose(lines["multipliers", "flow", "length"], [17**0.5, np.linalg.norm(np.arange(17))])


def test_settings_may_be_anything(folder):
    """Whoever wrote them: they are shown, not believed."""
    deep = {}
    for _ in range(300):
        deep = {"a": deep, "b": [{"c": None}]}
    for value in (deep, {"problem": [1], "method": 3, "double": "x"}, {"problem": {"title": {}, "name": 3}}):
        (folder / "settings.json").write_text(json.dumps(value))
        run = runs.load(folder)
        assert "</html>" in report.html([run])
        Console(file=io.StringIO()).print(run, report.comparison([run]))


class TestWriting:
    def test_an_existing_folder_is_never_touched(self, result, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "precious").write_text("data")
        with pytest.raises(RunFolderError, match=r"exists already.*Choose another"):
            runs.save(result, tmp_path / "mine")
        assert os.listdir(tmp_path / "mine") == ["precious"]

    def test_in_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(RunFolderError, match="cannot make the folder"):
            runs.claim(tmp_path / "file" / "run")

    def test_a_full_disk_leaves_nothing_half_written(self, saved_run, tmp_path, monkeypatch):
        place = runs.claim(tmp_path / "run")

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            place.write(saved_run)
        assert os.listdir(place.folder) == []

    def test_fresh_names(self, tmp_path):
        (tmp_path / "a-b-1").mkdir()
        assert runs.claim_next(tmp_path, "a/b").folder.name == "a-b-2"
        assert runs.claim_next(tmp_path, "../..").folder.name == "run-1"
        with ThreadPoolExecutor(8) as pool:  # a sweep: everybody gets a folder
            found = {place.folder for place in pool.map(lambda _: runs.claim_next(tmp_path, "c"), range(8))}
        assert len(found) == 8

    def test_traced_runs(self, tmp_path, result):
        traced = dataclasses.replace(result, continuation=None)
        with pytest.raises(ValueError, match="traced"):
            runs.save(traced, tmp_path / "run")
        assert os.listdir(tmp_path) == []


BROKEN = {
    "no folder": (lambda path: shutil.rmtree(path), "does not exist"),
    "a file": (lambda path: (shutil.rmtree(path), path.write_text("")), "is not a folder"),
    "killed": (lambda path: (path / "run.json").unlink(), "has not ended"),
    "foreign": (lambda path: [f.unlink() for f in path.iterdir()], "not the folder of a run"),
    "foreign run.json": (lambda path: (path / "run.json").write_text("[1]"), "an object with names"),
    "other format": (lambda path: edit(path / "run.json", lambda r: r.update(format="x")), "not a run of Lariax"),
    "newer format": (lambda path: edit(path / "run.json", lambda r: r.update(version=9)), "reads version 1"),
    "strange status": (lambda path: edit(path / "run.json", lambda r: r.update(status="fine")), "must be one of"),
    "negative draws": (lambda path: edit(path / "run.json", lambda r: r.update(draws=-1)), "not be negative"),
    "draws in words": (lambda path: edit(path / "run.json", lambda r: r.update(draws="many")), "of type int"),
    "no draws": (lambda path: edit(path / "run.json", lambda r: r.pop("draws")), "has no 'draws'"),
    "cut history": (
        lambda path: (path / "history.jsonl").write_text((path / "history.jsonl").read_text()[:-300]),
        "lines, and run.json says 200",
    ),
    "mixed history": (
        lambda path: (path / "history.jsonl").write_text('{"iteration": 1}\n' * 200),
        "lacks one of the columns",
    ),
    "history of words": (
        lambda path: (path / "history.jsonl").write_text('{"iteration": "x"}\n' * 200),
        "must be a number",
    ),
    "NaN": (lambda path: (path / "history.jsonl").write_text('{"iteration": NaN}\n' * 200), "NaN is not JSON"),
    "deep": (lambda path: (path / "settings.json").write_text("[" * 100_000), "is not JSON"),
    "long digits": (lambda path: (path / "settings.json").write_text("9" * 10_000), "is not JSON"),
    "binary": (lambda path: (path / "settings.json").write_bytes(b"\xff\x00"), "is not text"),
    "pipe": (lambda path: ((path / "settings.json").unlink(), os.mkfifo(path / "settings.json")), "not a plain file"),
    "link": (
        lambda path: ((path / "answer.npz").unlink(), (path / "answer.npz").symlink_to("/dev/zero")),
        "not a plain file",
    ),
    "no arrays": (lambda path: (path / "answer.npz").write_bytes(b"PK"), "not a file of arrays"),
    "pickle": (
        lambda path: np.savez(path / "answer.npz", array0=np.array([print], dtype=object)),
        "not a file of arrays",
    ),
    "compressed": (lambda path: np.savez_compressed(path / "answer.npz", array0=np.zeros(9)), "is compressed"),
    "whole numbers": (lambda path: np.savez(path / "answer.npz", array0=np.zeros(2, int)), "numbers of type"),
    "other shape": (lambda path: np.savez(path / "answer.npz", array0=np.zeros(3)), "of shape"),
    "strange certificate": (
        lambda path: edit(path / "certificate.json", lambda c: c["constraints"]["sum"].update(holds="yes")),
        "must be one of surely",
    ),
    "other constraints held out": (
        lambda path: edit(path / "certificate.json", lambda c: c["heldout"]["constraints"].pop("sum")),
        "are not the same",
    ),
    "ragged": (
        lambda path: edit(path / "certificate.json", lambda c: c["constraints"]["top"].update(value=[1, [2]])),
        "rows differ in length",
    ),
    "strange picture": (
        lambda path: edit(path / "pictures.json", lambda p: p["pictures"][0].update(kind="movie")),
        "a picture is one of",
    ),
    "picture of the wrong shape": (
        lambda path: edit(path / "pictures.json", lambda p: p["pictures"][1].update(kind="heatmap", series={"a": [1]})),
        "which heatmap cannot show",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_folders(folder, what):
    damage, words = BROKEN[what]
    damage(folder)
    with pytest.raises(RunFolderError, match=words):
        runs.load(folder)
