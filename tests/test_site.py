"""The site as a reader meets it, and the strictness with which it is built.

The `site` fixture does what ``make book`` does: it executes the chapters (those that are up to date are left alone) and
builds the site. The walk opens every page in headless Chromium, from a server on this machine.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import Page, sync_playwright

from fedlib.experiment import NUMERICS
from fedlib.site import SiteError, build

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = {"desktop": 1280, "phone": 390}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site, all chapters executed in both editions."""
    run = fedlib("run", "--all", cwd=ROOT)
    assert run.returncode == 0, run.stdout
    return build(ROOT).parent


def fedlib(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", "from fedlib.cli import main; main()", *arguments],
        cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )


def test_pages_open_with_words_and_fold_their_code(site):
    cells = [cell for path in (ROOT / "book" / "chapters").glob("*.ipynb") for cell in nbformat.read(path, 4).cells]
    code = [set(cell.metadata.get("tags", ())) for cell in cells if cell.cell_type == "code"]
    assert any("injected-parameters" in tags for tags in code)
    assert all("hide-input" in tags for tags in code)


@pytest.fixture(scope="session")
def address(site):
    """The site on localhost."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128  # a browser opens many connections at once; the default of 5 resets some

    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert executable, f"none of {', '.join(BROWSERS)} is installed; `make test` installs Chromium"
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("chromium"),
            executable_path=executable,
            headless=True,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                  "--disable-background-networking", "--disable-component-update", "--disable-sync"],
        )
        yield context
        context.close()


def pages(site: Path) -> list[str]:
    """Every page of the site. What lies in _static are the theme's own building blocks."""
    found = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    return [path for path in found if not path.startswith("_static/")]


def opened(browser, url: str, width: int) -> tuple[Page, list[str]]:
    """A window of `width` pixels that begins to load `url`, and the list of everything that goes wrong in it."""
    home = urlsplit(url).netloc
    wrong = []
    page = browser.new_page()
    page.set_viewport_size({"width": width, "height": 900})
    page.on("console", lambda message: message.type == "error" and wrong.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
    page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url} {request.failure}"))
    page.on("response", lambda response: response.status >= 400 and wrong.append(f"{response.status}: {response.url}"))

    def leaves(request):
        if urlsplit(request.url).scheme not in ("data", "blob") and urlsplit(request.url).netloc != home:
            wrong.append(f"request leaves the site: {request.url}")

    page.on("request", leaves)
    assert page.goto(url, wait_until="commit").status == 200
    return page, wrong


def visit(browser, url: str, *widths: int) -> list[tuple[dict, list[str]]]:
    """Open `url` in windows of these widths side by side: what the page says of itself in each, and what went wrong."""
    windows = [opened(browser, url, width) for width in widths]
    try:
        for page, _ in windows:
            page.wait_for_load_state("load")
        # As long as a quiet network takes to be one, before and after; to wait for that itself can take for ever.
        page.wait_for_timeout(500)
        seen = [(page.evaluate(FACTS), wrong) for page, wrong in windows]
        page.wait_for_timeout(500)
    finally:
        for page, _ in windows:
            page.close()
    return seen


FACTS = """async () => {
    if (window.MathJax?.startup) await MathJax.startup.promise;
    // Brings in the images that load lazily.
    for (const image of document.images) { image.loading = 'eager'; await image.decode().catch(() => {}); }
    return {
        url: location.href,
        title: document.title,
        words: document.querySelector('main, body').innerText.trim().split(/\\s+/).length,
        overflow: document.documentElement.scrollWidth - window.innerWidth,
        unnamed: [...document.images].filter(i => !i.hasAttribute('alt') ||
            (i.closest('article') && !i.alt.trim())).map(i => i.src.slice(0, 200)),
        broken: [...document.images].filter(i => !i.naturalWidth).map(i => i.src.slice(0, 200)),
        set: document.querySelectorAll('mjx-container').length,
        raw: [...document.querySelectorAll('.math')].filter(m => !m.querySelector('mjx-container')).length,
        misset: [...document.querySelectorAll('mjx-merror')].map(e => e.textContent),
        links: [...document.querySelectorAll('a[href]')].map(a => a.href),
        ids: [...document.querySelectorAll('[id]')].map(e => e.id),
    };
}"""


@pytest.fixture(scope="session")
def walk(site, address, browser) -> dict[tuple[str, str], tuple[dict, list[str]]]:
    """Every page at every width, visited once for all the tests below."""
    found = {}
    for page in pages(site):
        seen = visit(browser, f"{address}/{page}", *WIDTHS.values())
        if any(fault.startswith("failed:") for _, wrong in seen for fault in wrong):
            seen = visit(browser, f"{address}/{page}", *WIDTHS.values())  # a dropped connection is no fault of the page
        found |= {(page, device): one for device, one in zip(WIDTHS, seen, strict=True)}
    return found


def faults(walk, find) -> list[str]:
    return [f"{page} ({device}): {fault}" for (page, device), seen in walk.items() for fault in find(*seen)]


def test_every_page_of_the_contents_is_there_and_says_something(walk, site):
    contents = re.findall(r"(?:root|file): (\S+)", (ROOT / "_toc.yml").read_text())
    assert {f"{name}.html" for name in contents} <= set(pages(site))
    for name in contents:
        facts, _ = walk[f"{name}.html", "desktop"]
        assert facts["title"] and facts["words"] > 50, name


def test_every_edition_of_every_chapter_is_in_the_contents():
    editions = yaml.safe_load((ROOT / "notebooks" / "editions.yml").read_text())
    assert editions
    listed = (ROOT / "_toc.yml").read_text().split()
    assert not [name for chapter in editions for edition in editions[chapter]
                if (name := f"book/chapters/{chapter}-{edition}") not in listed]


def test_no_error_no_missing_file_and_no_request_to_another_host(walk):
    assert not faults(walk, lambda facts, wrong: wrong)


def test_no_page_scrolls_sideways(walk):
    assert not faults(walk, lambda facts, wrong: [f"{facts['overflow']} px too wide"] * (facts["overflow"] > 0))


def test_every_image_loads_and_has_a_text_alternative(walk):
    assert not faults(walk, lambda facts, wrong: [f"no text: {source}" for source in facts["unnamed"]])
    assert not faults(walk, lambda facts, wrong: [f"broken: {source}" for source in facts["broken"]])


def test_formulas_are_set(walk):
    assert walk["book/intro.html", "phone"][0]["set"] > 0
    assert not faults(walk, lambda facts, wrong: facts["misset"])
    assert not faults(walk, lambda facts, wrong: [f"{facts['raw']} formulas not set"] * (facts["raw"] > 0))


def test_every_link_inside_the_site_leads_somewhere(walk, site, address):
    anchors = {facts["url"]: set(facts["ids"]) for facts, _ in walk.values()}

    def dead(facts, wrong):
        for link in facts["links"]:
            target, anchor = urldefrag(link)
            if not target.startswith(address):
                continue
            path = site / urlsplit(target).path.lstrip("/")
            if not path.exists() or (anchor and target in anchors and anchor not in anchors[target]):
                yield link

    assert not faults(walk, dead)


def test_search_finds_a_page(site, address, browser):
    page = browser.new_page()
    page.goto(f"{address}/search.html?q=verdict")
    page.wait_for_selector("#search-results li a")
    page.close()


def test_the_walk_sees_what_is_wrong(tmp_path, browser):
    """The walk's own alarm: a page that asks another port of this machine for a script, and is wrong otherwise too."""
    (tmp_path / "index.html").write_text(
        "<script src='http://127.0.0.1:9/x.js'></script><img src=missing.png><p style='width: 500px'>wide</p>"
    )
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ((facts, wrong),) = visit(browser, f"http://127.0.0.1:{server.server_port}/index.html", 390)
    server.shutdown()
    server.server_close()
    assert "request leaves the site: http://127.0.0.1:9/x.js" in wrong
    assert any(fault.startswith("404") for fault in wrong)
    assert len(facts["unnamed"]) == len(facts["broken"]) == 1
    assert facts["overflow"] > 100


# The strictness of the build, on small books that have the real configuration.


@pytest.fixture
def book(tmp_path) -> Path:
    """A sound book of one page and one executed notebook."""
    shutil.copytree(ROOT / "book" / "_static", tmp_path / "book" / "_static")
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copy(ROOT / "book" / "references.bib", tmp_path / "book")
    (tmp_path / "book" / "chapters").mkdir()
    page(tmp_path, "intro", "Text that is in order.")
    chapter(tmp_path, "sound", new_code_cell("1", execution_count=1))
    return tmp_path


def contents(root: Path) -> None:
    """Rewrite _toc.yml to hold every page and notebook that is there."""
    names = sorted(path.relative_to(root).with_suffix("").as_posix() for path in (root / "book").rglob("*.[im][pd]*"))
    toc = {"format": "jb-book", "root": "book/intro", "chapters": [{"file": n} for n in names if n != "book/intro"]}
    (root / "_toc.yml").write_text(yaml.safe_dump(toc))


def page(root: Path, name: str, text: str) -> None:
    (root / "book" / f"{name}.md").write_text(f"# The page {name}\n\n{text}\n")
    contents(root)


def chapter(root: Path, name: str, *cells) -> None:
    notebook = new_notebook(cells=[new_markdown_cell(f"# The chapter {name}"), *cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, root / "book" / "chapters" / f"{name}.ipynb")
    contents(root)


def problems(root: Path) -> str:
    with pytest.raises(SiteError) as error:
        build(root)
    return str(error.value)


def test_a_sound_book_is_built_once_and_again_when_a_page_changes(book):
    index = build(book)
    assert index == book / "_build" / "html" / "index.html"
    written = index.stat().st_mtime_ns, index.stat().st_ino
    assert build(book) == index and (index.stat().st_mtime_ns, index.stat().st_ino) == written
    page(book, "intro", "Other text.")
    assert "Other text." in (build(book).parent / "book" / "intro.html").read_text()
    assert sorted(path.name for path in (book / "_build").iterdir()) == ["html"]


def test_every_warning_fails_the_first_and_the_repeated_build_and_names_its_page(book):
    index = build(book)
    page(book, "link", "See [that page](nowhere.md).")
    page(book, "label", "See {ref}`no-such-label`.")
    page(book, "citation", "As {cite:t}`nobody1999` says.")
    page(book, "picture", "![a curve](missing.png)")
    page(book, "glued", "The number is {glue}`no-such-key`.")
    warning = new_output("stream", name="stderr", text="UserWarning: something is odd")
    chapter(book, "warned", new_code_cell("1", execution_count=1),
            new_code_cell("2", execution_count=2, outputs=[warning]))
    toc = yaml.safe_load((book / "_toc.yml").read_text())
    toc["chapters"].append({"file": "book/chapters/absent-digits"})
    (book / "_toc.yml").write_text(yaml.safe_dump(toc))

    first = problems(book)
    for name, what in {
        "book/link.md:3": "nowhere.md",
        "book/label.md:3": "no-such-label",
        "book/citation.md:3": "nobody1999",
        "book/picture.md:3": "missing.png",
        "book/glued.md:3": "no-such-key",
        "book/chapters/warned.ipynb, cell 3": "stderr",
        "book/intro.md": "book/chapters/absent-digits",
    }.items():
        assert any(name in line and what in line for line in first.splitlines()), f"{name} {what}\n{first}"
    assert problems(book) == first
    assert index.exists(), "the last sound site stays"


def test_a_cell_that_failed_or_was_not_executed_fails_the_build(book):
    error = new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])
    chapter(book, "broken", new_code_cell("1", execution_count=1),
            new_code_cell("1 / 0", execution_count=2, outputs=[error]))
    chapter(book, "idle", new_code_cell("1"))
    for _ in range(2):
        message = problems(book)
        assert "book/chapters/broken.ipynb, cell 3: ZeroDivisionError: division by zero" in message
        assert "book/chapters/idle.ipynb, cell 2: was not executed" in message


def test_stale_records_fail_every_build_but_the_site_is_there(book):
    used = book / "data" / "records" / "mnist" / "0123456789abcdef.json"
    used.parent.mkdir(parents=True)
    path = book / "book" / "chapters" / "sound.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["fedlib"] = {"records": {used.stem: {"file": used.relative_to(book).as_posix()}}}
    nbformat.write(notebook, path)
    used.write_text(json.dumps({"provenance": {"numerics": NUMERICS - 1}}))
    for _ in range(2):
        message = problems(book)
        assert "stale" in message and f"book/chapters/sound.ipynb: data/records/mnist/{used.name}" in message
    assert (book / "_build" / "html" / "book" / "chapters" / "sound.html").exists()
    used.write_text(json.dumps({"provenance": {"numerics": NUMERICS}}))
    assert build(book).exists()


def test_the_command_ends_with_1_on_the_first_and_the_repeated_build(book):
    (book / "notebooks").mkdir()  # by which the command knows a checkout of the book
    assert fedlib("site", cwd=book).returncode == 0
    page(book, "link", "See [that page](nowhere.md).")
    for _ in range(2):
        run = fedlib("site", cwd=book)
        assert run.returncode == 1
        assert "book/link.md:3" in run.stdout and "Traceback" not in run.stdout


def test_a_wrong_configuration_fails_the_build(book):
    config = book / "_config.yml"
    config.write_text(config.read_text() + "\nno_such_setting: 1\ntitle: [1, 2]\n")
    for _ in range(2):
        assert "title" in problems(book)
