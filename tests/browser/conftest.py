"""One JupyterLab server and one browser for all tests here, and a page for each."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jupyterpage import Lab, Notebook, jupyterlab, opened, write_notebook
from leftovers import snapshot

from mqlab.contract.waiting import until_sync

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
LAUNCH += ["--disable-component-update", "--disable-sync"]

Open = Callable[..., Notebook]


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where the browser is."""
    found = subprocess.run([ROOT / "scripts" / "chromium"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return found.stdout.strip()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """Headless."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=LAUNCH)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(browser: Browser, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The server."""
    with jupyterlab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(autouse=True)
def leaves_nothing(lab: Lab, browser: Browser, runtime_dir: Path) -> Iterator[None]:
    """As everywhere; the browser's own processes come and go, and playwright writes pictures from threads that it keeps."""
    before = snapshot(runtime_dir)
    yield

    def left() -> list[str]:
        return [line for line in snapshot(runtime_dir).new_since(before) if "--type=" not in line and "thread asyncio_" not in line]

    try:
        until_sync(lambda: not left(), timeout=10)
    except TimeoutError:
        pytest.fail("left behind:\n  " + "\n  ".join(left()), pytrace=False)


@pytest.fixture
def open_notebook(browser: Browser, lab: Lab, leaves_nothing: None) -> Iterator[Open]:
    """Opens a notebook of the server's folder by its name; or of cells: ``open_notebook("name.ipynb", "1 + 1", …)``."""
    with ExitStack() as cleanup:

        def enter(name: str, *cells: str) -> Notebook:
            if cells:
                write_notebook(lab.root / name, *cells)
            notebook: AbstractContextManager[Notebook] = opened(browser, lab, name)
            return cleanup.enter_context(notebook)

        yield enter
