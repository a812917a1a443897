"""The site: every public name with an example, no warning, no broken link, nothing loaded from elsewhere."""

import html.parser
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import lariax
from front.browser import Browser, executable

ROOT = Path(__file__).parent.parent
API = "\n".join(page.read_text() for page in sorted((ROOT / "docs/api").glob("*.md")))
WHOLE = sorted(set(re.findall(r"automodule:: (lariax\.\w+)", API)))
"""Modules whose names are all public."""

NAMED = re.findall(r"auto(?:class|function|exception):: (lariax\.[\w.]+)", API)
LISTED = {f"{module}.{name}" for module in WHOLE for name in importlib.import_module(module).__all__}
EXAMPLES = {*NAMED, *LISTED}


def found(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_public_name_is_in_the_reference():
    packages = {name for name in lariax.__all__ if inspect.ismodule(getattr(lariax, name))}
    described = {name.removeprefix("lariax.") for name in [*NAMED, *re.findall(r"data:: (lariax\.\w+)", API)]}
    assert set(lariax.__all__) - packages - described == set()
    assert {f"lariax.{name}" for name in packages} - {"lariax.rates"} <= set(WHOLE)
    assert len(NAMED) == len(set(NAMED))


@pytest.mark.parametrize("path", sorted(EXAMPLES))
def test_every_public_name_has_an_example(path):
    if path == "lariax.AbstractScheduledMethod":
        assert found(path) is lariax.AbstractMethod
    assert ">>>" in (inspect.getdoc(found(path)) or "")


class Links(html.parser.HTMLParser):
    """What a page loads, where it links to, and the places in it."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.places = [], [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.places |= {attributes.get("id"), attributes.get("name")}
        if tag == "a":
            self.links.append(attributes.get("href") or "")
        elif tag == "link" and attributes.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loads.append(attributes.get("href") or "")
        else:
            self.loads.append(attributes.get("src") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html"]
    folders = ["-d", tmp_path_factory.mktemp("doctrees"), "-c", ROOT / "docs", ROOT, out]
    run = subprocess.run([*command, *map(str, folders)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return out


@pytest.mark.long
def test_the_site_loads_nothing_from_elsewhere(site):
    pages = {path: Links(path) for path in site.rglob("*.html")}
    assert len(pages) > 50
    for path, page in pages.items():
        assert [url for url in page.loads if urlsplit(url).scheme or url.startswith("//")] == [], path
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import\s|url\(\s*['\"]?(https?:)?//", sheet.read_text()), sheet


@pytest.mark.long
def test_links_within_the_site_lead_somewhere(site):
    pages = {path: Links(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme:
                continue
            known = pages[target].places if target in pages else None
            if not target.exists() or (parts.fragment and known is not None and unquote(parts.fragment) not in known):
                broken.append((path.relative_to(site), link))
    assert broken == []


OUTSIDE = """(() => {
    const edge = document.documentElement.clientWidth + 1, out = [];
    const scrolls = element => /auto|scroll|hidden/.test(getComputedStyle(element).overflowX);
    for (let element of document.querySelectorAll("article *")) {
        if (element.getBoundingClientRect().right <= edge) continue;
        let holder = element.parentElement;
        while (holder && !scrolls(holder)) holder = holder.parentElement;
        if (!holder) out.push(element.outerHTML.slice(0, 80));
    }
    return out;
})()"""
"""Parts of a page beyond the right edge of the screen that cannot be scrolled to within their own box."""


@pytest.mark.long
@pytest.mark.skipif(executable() is None, reason="no Chromium here: `make browser` installs Debian's where it may")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_phones_and_desktops_and_are_quiet(site, tmp_path, width, scheme):
    browser = Browser(tmp_path / "profile")
    page = browser.page()
    page.size(width)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        for path in sorted({*site.rglob("*.html")} - {site / "index.html"}):  # which leads on to the first page
            page.errors.clear()
            page.requests.clear()
            page.call("Page.navigate", url=path.as_uri())
            page.wait(f"location.href === '{path.as_uri()}' && document.readyState === 'complete'")
            assert page.run(OUTSIDE) == [], path
            assert page.errors == [], path
            assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == [], path
    finally:
        browser.close()
