"""Tests of the documentation's site: it builds without warnings, is complete, and needs no other server."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from dev_packages import require_packages
from documents import ROOT

pytestmark = pytest.mark.long
require_packages("myst_nb", "sphinx", "sphinx_book_theme")

SOURCES = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb")]


class Links(HTMLParser):
    """The targets of links, the addresses that the page loads, and the ids of its elements."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values.get("id", "")}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("next", "prev", "search", "index"):
            self.loaded.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])


def make_site(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts/make_site.py"
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all versions, which has the latest."""
    folder = tmp_path_factory.mktemp("site")
    made = make_site("--out", folder)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    found = (site / "latest").rglob("*.html")
    return {page: Links(page) for page in found if page.parent.name != "_static"}  # which has the theme's templates


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on a server, which logs nothing."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def page_of(source: Path) -> str:
    path = source.relative_to(ROOT / "docs")
    return str(path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html"))


def test_every_document_is_a_page_in_the_navigation(site: Path, pages: dict[Path, Links]) -> None:
    latest = site / "latest"
    readme = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    outside = {f"{name.lower()}.html" for name in re.findall(r"^\| \[[^]]+\]\(\.\./(\w+)\.md\)", readme, re.MULTILINE)}
    assert outside >= {"changelog.html", "contributing.html"}
    expected = {page_of(source) for source in SOURCES} | outside
    assert {str(page.relative_to(latest)) for page in pages} - {"genindex.html", "search.html"} == expected
    navigation = re.search(r'<nav class="bd-links.*?</nav>', (latest / "index.html").read_text(), re.DOTALL)
    assert navigation is not None
    assert {*re.findall(r'href="([^"#]+)"', navigation[0])} == expected - {"index.html"}
    captions = re.findall(r'caption-text">([^<]+)', navigation[0])
    headings = re.findall(r"^## (.+)$", readme, re.MULTILINE)
    assert captions == [heading for heading in headings if heading not in ("Commands", "Installation")]


def test_links_of_all_pages_have_targets(pages: dict[Path, Links]) -> None:
    checked = 0
    for page, found in pages.items():
        for link in [*found.links, *found.loaded]:
            parts = urlsplit(link)
            if parts.scheme or link == "#" or link.endswith("../versions.js"):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.is_file(), f"{page}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{page}: {link}"
                checked += 1
    assert checked > 100


def test_pages_load_nothing_from_other_servers(site: Path, pages: dict[Path, Links]) -> None:
    loaded = {address for found in pages.values() for address in found.loaded}
    assert any(address.endswith(".css?v=" + address.rpartition("=")[2]) for address in loaded)
    assert [address for address in loaded if urlsplit(address).netloc] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_linked_files_of_the_repository_are_downloads(site: Path, pages: dict[Path, Links]) -> None:
    links = [link for link in pages[site / "latest/training.html"].links if link.endswith("grpo_one_file.py")]
    assert links
    assert (site / "latest" / links[0]).read_bytes() == (ROOT / "examples/grpo_one_file.py").read_bytes()


@pytest.fixture
def browser(requires_browser: None) -> Iterator[Any]:
    from agentgym_envs.util.chromium import find_chromium
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        yield browser
        browser.close()


def test_search_needs_no_other_server(site: Path, address: str, browser: Any) -> None:
    page = browser.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    for start in (address, site.as_uri()):
        page.goto(f"{start}/latest/search.html?q=scalinginter")
        page.locator("#search-results .search li a").first.wait_for()
        results = [link.get_attribute("href") or "" for link in page.locator("#search-results li a").all()]
        assert any("results/scaling-inter.html" in link for link in results)
    assert {urlsplit(url).netloc for url in requested} == {urlsplit(address).netloc, ""}


def test_pages_fit_the_width_of_a_phone(pages: dict[Path, Links], browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, java_script_enabled=False)  # twice as fast
    widths: dict[str, int] = {}
    for path in pages:
        page.goto(path.as_uri())
        widths[str(path)] = page.evaluate("document.documentElement.scrollWidth")
    assert len(widths) > 50
    assert {name: width for name, width in widths.items() if width > 390} == {}


def test_the_menu_leads_to_the_page_in_another_version(site: Path, address: str, browser: Any) -> None:
    head = subprocess.run(["git", "cat-file", "-e", "HEAD:docs/conf.py"], cwd=ROOT, capture_output=True, check=False)
    if head.returncode:
        pytest.skip("This isn't a git checkout, so there is no revision to build: clone the repository to check it.")
    made = make_site("--tag", "HEAD", "--out", site)
    assert made.returncode == 0, made.stdout + made.stderr
    (site / "HEAD/viewer.html").unlink()  # as in a version without the page
    page = browser.new_page()
    page.goto(f"{address}/index.html")
    page.wait_for_url("**/latest/index.html")
    menu = page.locator("#versions")

    page.goto(f"{address}/latest/howto/serve.html")
    assert menu.locator("option").all_inner_texts() == ["latest", "HEAD"]
    assert menu.input_value() == "latest"
    menu.select_option("HEAD")
    page.wait_for_url("**/HEAD/howto/serve.html")
    assert menu.input_value() == "HEAD"

    page.goto(f"{address}/latest/viewer.html")
    menu.select_option("HEAD")
    page.wait_for_url("**/HEAD/index.html")
    page.goto(f"{site.as_uri()}/HEAD/howto/serve.html")
    menu.select_option("latest")
    page.wait_for_url("**/latest/index.html")


def small_docs(folder: Path, readme: str) -> Path:
    """Write a repository whose documentation is one page."""
    docs = folder / "docs"
    for name in ("_extensions", "_static", "_templates"):
        shutil.copytree(ROOT / "docs" / name, docs / name)
    shutil.copy(ROOT / "docs/conf.py", docs)
    (docs / "README.md").write_text(readme)
    return docs


@pytest.mark.parametrize(
    ("readme", "warning"),
    [
        ("# Title\n\n[page](page.md)\n", "'myst' cross-reference target not found: 'page.md'"),
        ("# Title\n\n[heading](#heading)\n", "heading"),
        ("# Title\n\n## Heading\n\n[heading](#heading) and [folder](../docs)\n", ""),
    ],
    ids=["missing page", "missing heading", "no fault"],
)
def test_broken_links_fail_the_build(tmp_path: Path, readme: str, warning: str) -> None:
    docs = small_docs(tmp_path, readme)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", docs, tmp_path / "out"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (built.returncode == 0) is (not warning), built.stderr
    assert warning in built.stderr


def test_pages_outside_the_navigation_fail_the_build(tmp_path: Path) -> None:
    docs = small_docs(
        tmp_path, "# Title\n\n## Start\n\n| page | contents |\n|---|---|\n| [one](one.md) | [two](two.md) |\n"
    )
    (docs / "one.md").write_text("# One\n")
    (docs / "two.md").write_text("# Two\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", docs, tmp_path / "out"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode != 0
    assert "two.md: WARNING: document isn't included in any toctree" in built.stderr
    assert "one.md: WARNING" not in built.stderr


def test_tags_without_a_site_are_refused(tmp_path: Path) -> None:
    first = subprocess.run(
        ["git", "rev-list", "--max-parents=0", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if first.returncode:
        pytest.skip("This isn't a git checkout: clone the repository to check it.")
    made = make_site("--tag", first.stdout.split()[0], "--out", tmp_path)
    assert made.returncode == 1
    assert "has no docs/conf.py" in made.stderr
    assert list(tmp_path.iterdir()) == []


def test_versions_are_sorted_by_number(tmp_path: Path) -> None:
    code = (
        "import runpy, pathlib, sys\n"
        "names = runpy.run_path(sys.argv[1])\n"
        "names['list_versions'](pathlib.Path(sys.argv[2]))\n"
    )
    for name in ("v0.9.0", "v0.10.0", "latest", "v0.2.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    subprocess.run([sys.executable, "-c", code, ROOT / "scripts/make_site.py", tmp_path], check=True)
    listed = (tmp_path / "versions.js").read_text().removeprefix("window.siteVersions = ").rstrip(";\n")
    assert json.loads(listed) == ["latest", "v0.10.0", "v0.9.0", "v0.2.0"]
    assert 'url=latest/index.html"' in (tmp_path / "index.html").read_text()
