"""A run seen while it goes on: who may ask, what a browser shows, what a notebook gets."""

import http.client
import json
import sys
import threading
import types
from urllib.parse import urlsplit

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx
from front.browser import Browser, executable
from lariax import report
from lariax.report import _watch
from lariax.report._watch import MOST_ROWS


def snapshot(k):
    record = {
        "iteration": k,
        "draws": 4 * k,
        "seconds": 0.001 * k,
        "objective": 1 / k,
        "feasibility": 1 / k**2,
        "stationarity": 0.0,
        "constraints": {"gap": np.array([0.1, 1 / k])},
        "multipliers": {"gap": np.array([0.5, 1.0])},
    }
    return lx.Snapshot(k, jnp.zeros(2), {}, record)


@pytest.fixture
def watch():
    with report.Watch("<b>small</b>", where="page") as watch:
        yield watch


def asked(watch, path, host=None, method="GET"):
    place = urlsplit(watch.address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def token(watch):
    return urlsplit(watch.address).query


class TestServer:
    def test_it_listens_to_this_machine_alone(self, watch):
        assert watch._shown._server.server_address[0] == "127.0.0.1"
        assert len(token(watch)) > len("token=") + 20

    @pytest.mark.parametrize("path", ["/", "/numbers"])
    @pytest.mark.parametrize("query", ["", "?token=", "?token=guess", "?token=%C3%A4"])
    def test_nothing_without_the_token(self, watch, path, query):
        answer, body = asked(watch, path + query)
        assert answer.status == 403
        assert body == b"Open the address that Lariax has printed, with its token.\n"

    @pytest.mark.parametrize("host", ["evil.example", "localhost:80", "127.0.0.1"])
    def test_nor_by_another_name(self, watch, host):
        """A page of somebody else, whose name was made to mean this address."""
        assert asked(watch, f"/numbers?{token(watch)}", host=host)[0].status == 403

    def test_what_there_is(self, watch):
        answer, body = asked(watch, f"/?{token(watch)}")
        assert answer.status == 200
        assert b"<h1>" in body
        assert "default-src 'none'" in answer.getheader("Content-Security-Policy")
        assert "unsafe" not in answer.getheader("Content-Security-Policy")
        assert answer.getheader("Cache-Control") == "no-store"
        assert asked(watch, f"/etc/passwd?{token(watch)}")[0].status == 404
        assert asked(watch, f"/?{token(watch)}", method="POST")[0].status == 501

    def test_numbers(self, watch):
        found = json.loads(asked(watch, f"/numbers?{token(watch)}")[1])
        assert (found["count"], found["words"], found["panels"]) == (0, "Compiling.", [])
        for k in range(1, 31):
            watch(snapshot(k))
        found = json.loads(asked(watch, f"/numbers?{token(watch)}")[1])
        assert (found["title"], found["count"], found["ended"]) == ("<b>small</b>", 30, False)
        assert found["words"] == "30 iterations, 120 draws, 0.0 s, feasibility 0.001111, stationarity 0"
        assert [panel["title"] for panel in found["panels"]][:4] == ["Feasibility", "Stationarity", "Objective", "gap"]

    def test_the_page_closes(self):
        watch = report.Watch(where="page")
        watch.close()
        with pytest.raises(ConnectionRefusedError):
            asked(watch, "/")

    def test_a_long_run_takes_bounded_room(self, watch):
        for k in range(1, 5 * MOST_ROWS):
            watch(snapshot(k))
        assert len(watch._rows) <= MOST_ROWS
        assert watch._rows[-1]["iteration"] == 5 * MOST_ROWS - 1


class Address(str):
    def as_uri(self):
        return str(self)


@pytest.mark.skipif(executable() is None, reason="no Chromium: the live page is not tested in a browser")
def test_in_a_browser(tmp_path):
    browser = Browser(tmp_path)
    page = browser.page()
    try:
        for width in (1200, 390):
            page.size(width)
            watch = report.Watch("<b>small</b>", where="page")
            page.open(Address(watch.address))
            for k in range(1, 21):
                watch(snapshot(k))
            page.wait("document.documentElement.dataset.records === '20'")
            assert page.run("document.querySelector('h1').textContent") == "<b>small</b>"
            assert page.run("document.getElementById('status').textContent").startswith("20 iterations, 80 draws")
            before = page.run("[...document.querySelectorAll('path.line')].map(line => line.getAttribute('d'))")
            assert len(before) == 8  # feasibility, stationarity, objective twice, two entries of gap, two multipliers
            assert all(before[:4])
            page.run("window.kept = [...document.querySelectorAll('.plot')]")
            for k in range(21, 41):
                watch(snapshot(k))
            page.wait("document.documentElement.dataset.records === '40'")
            after = page.run("[...document.querySelectorAll('path.line')].map(line => line.getAttribute('d'))")
            assert len(after) == len(before)
            assert after[0] != before[0]
            assert page.run("window.kept.every((plot, i) => plot === document.querySelectorAll('.plot')[i])")
            assert page.run("document.documentElement.scrollWidth <= window.innerWidth")
            ends = threading.Thread(target=watch.close, args=("The run has ended. Its report is here.",))
            ends.start()
            page.wait("document.documentElement.dataset.ended === 'yes'")
            ends.join()
            words = page.run("document.getElementById('status').textContent")
            assert words == "The run has ended. Its report is here."
            assert not page.errors
            assert all(url.startswith("http://127.0.0.1:") for url in page.requests)
    finally:
        browser.close()


class TestCell:
    def test_one_picture_updated_in_place(self, monkeypatch):
        """The part of IPython that it calls, in its place."""
        shown = []
        handle = types.SimpleNamespace(update=lambda figure: shown.append(("update", figure)))

        def display(figure, display_id):
            shown.append(("display", figure))
            return handle

        monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
        monkeypatch.setattr(_watch, "PAUSE", 0.0)
        monkeypatch.setattr(_watch, "SHARE", 0)
        watch = report.Watch(where="cell")
        for k in (1, 2, 3):
            watch(snapshot(k))
        assert [what for what, _ in shown] == ["display", "update", "update"]
        monkeypatch.setattr(_watch, "PAUSE", 1000.0)
        watch(snapshot(4))
        watch(snapshot(5))  # too soon
        assert len(shown) == 4
        watch.close()  # the end is shown
        assert len(shown) == 5
        assert shown[-1][1]._repr_png_().startswith(b"\x89PNG")

    def test_chosen_by_where_it_runs(self, monkeypatch):
        shell = types.SimpleNamespace(kernel=1)
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
        assert report.Watch().address == ""

    def test_wrong_place(self):
        with pytest.raises(ValueError, match="where must be one of 'page', 'cell', found 'tab'"):
            report.Watch(where="tab")
