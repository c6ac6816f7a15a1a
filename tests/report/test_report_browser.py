"""The page in headless Chromium: it opens fast, asks nobody for anything, and its controls work."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import many_records

from harness.gate.baseline import baseline_from_records
from harness.gate.comparison import Comparison, compare
from harness.report.compare import Side, side_by_side
from harness.report.html import render_comparison, render_report
from harness.report.model import ReportInput
from harness.verdict import Evidence

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Page:
    """A page of ours, with all that it said and asked for."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.said, self.asked = page, [], []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        start = time.perf_counter()
        page.goto(path.as_uri())
        if "<script>" in path.read_text():
            page.locator("html[data-ready=yes]").wait_for(state="attached")
        self.seconds = time.perf_counter() - start
        self.path = path

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def column(self, number: int) -> list[str]:
        return list(self.page.locator(f"#record-table tbody td:nth-child({number})").all_inner_texts())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 20,000 records."""
    records = many_records(20_000)
    before = baseline_from_records(records[:3000])
    result = compare(Comparison(records[5:], before, frozenset(before)))
    placed = [
        record.replace(
            evidence=tuple(
                Evidence("bound", False, {"ratio": 40.0, "worst": {"request": 0, "position": _last(record), "head": 3}})
                if e.kind == "bound" and e.passed is False
                else e
                for e in record.evidence
            )
        )
        for record in records
    ]
    path = tmp_path_factory.mktemp("report") / "large.html"
    path.write_text(render_report(ReportInput(placed, "20,000 records", baseline=("h200", result))))
    return path


def _last(record: Any) -> int:
    return int(record.case.requests[0].kv_len) - 1


@pytest.fixture
def page(browser: Any, large: Path) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    yield Page(opened, large)
    opened.close()


def assert_quiet(page: Page) -> None:
    assert page.said == []
    assert page.asked == [page.path.as_uri()]


def test_it_opens_in_under_2_seconds(page: Page, browser: Any, large: Path) -> None:
    """A limit of the issue. The best of three: the machine may be busy with other tests."""
    seconds = [page.seconds]
    for _ in range(2):
        again = browser.new_page()
        seconds.append(Page(again, large).seconds)
        again.close()
    assert min(seconds) < 2.0
    assert "20,000 records" in page.text("header")
    assert_quiet(page)


def test_the_filter(page: Page) -> None:
    page.page.select_option("#f-adapter", "flash-attn-3")
    page.page.select_option("#f-verdict", "WRONG")
    assert set(page.column(2)) == {"flash-attn-3"}
    assert set(page.column(1)) == {"WRONG"}
    page.page.fill("#f-text", "no such case")
    page.page.locator("#f-count", has_text="0 of 20,000 records").wait_for()
    assert page.column(1) == []
    page.page.click("#f-reset")
    page.page.locator("#f-count", has_text="20,000 records").wait_for()
    assert len(page.column(1)) == 25
    assert_quiet(page)


def test_the_sort(page: Page) -> None:
    errors = page.page.locator("#record-table th button", has_text="max-abs-diff")
    errors.click()
    errors.click()
    shown = [float(text) for text in page.column(4)]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] > 0.5
    heading = page.page.locator("#record-table th", has_text="max-abs-diff")
    assert heading.get_attribute("aria-sort") == "descending"
    errors.click()
    ascending = [float(text) for text in page.column(4)]
    assert ascending == sorted(ascending)
    assert ascending[0] < 0.01
    assert_quiet(page)


def test_a_finding_is_opened_by_keyboard_and_can_be_read(page: Page) -> None:
    first = page.page.locator(".finding summary").first
    first.focus()
    page.page.keyboard.press("Enter")
    body = page.text(".finding .body")
    assert "attn-harness replay" in body
    assert "swa-merge-window-missing (window)" in body
    assert "certificate/flat" in body
    assert page.page.locator(".finding figure svg rect").count() > 4
    page.page.locator(".finding .body summary", has_text="case as JSON").first.click()
    assert '"page_order"' in page.text(".finding pre")
    assert "[object" not in page.text("main")
    assert_quiet(page)


def test_a_cell_of_the_matrix_shows_its_cases(page: Page) -> None:
    page.page.locator("#matrix-table td.fails button").first.click()
    assert page.page.input_value("#f-adapter") != ""
    assert page.page.input_value("#f-family") != ""
    assert page.page.locator(".finding").count() > 0
    assert_quiet(page)


def test_a_record_leads_to_its_finding(page: Page) -> None:
    link = page.page.locator("#record-table .link").first
    name = link.inner_text()
    link.click()
    assert name in page.text(".finding[open] h3")


def test_everything_can_be_reached_by_keyboard(page: Page) -> None:
    """Tabbing from the top passes the filter, a finding, the matrix and a column of the records."""
    page.page.keyboard.press("/")
    assert page.page.evaluate("document.activeElement.id") == "f-text"
    script = """() => {
        const open = [...document.querySelectorAll("button, select, input, summary, [tabindex='0']")];
        const hidden = node => node.offsetParent === null && !node.closest("details");
        return open.filter(node => node.tabIndex < 0 || hidden(node)).length;
    }"""
    assert page.page.evaluate(script) == 0
    clickable = "() => [...document.querySelectorAll('[onclick]')].length"
    assert page.page.evaluate(clickable) == 0


def test_dark_print_and_a_narrow_screen(page: Page, tmp_path: Path) -> None:
    """Screenshots can be kept by setting REPORT_SCREENSHOTS to a folder."""
    folder = Path(os.environ.get("REPORT_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.page.evaluate(background)
    page.page.screenshot(path=folder / "light.png")
    page.page.emulate_media(color_scheme="dark")
    assert page.page.evaluate(background) != light
    page.page.screenshot(path=folder / "dark.png")
    page.page.emulate_media(media="print", color_scheme="light")
    assert not page.page.locator("#filter").is_visible()
    assert page.page.locator("#matrix-table").is_visible()
    page.page.emulate_media(media="screen")
    page.page.set_viewport_size({"width": 390, "height": 800})
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    page.page.screenshot(path=folder / "narrow.png")
    assert all((folder / name).stat().st_size > 10_000 for name in ("light.png", "dark.png", "narrow.png"))
    assert_quiet(page)


def test_side_by_side(browser: Any, tmp_path: Path) -> None:
    old, new = many_records(600, seed=1), many_records(600, seed=1)
    new[3:9] = [
        record.replace(verdict=other.verdict) for record, other in zip(new[3:9], many_records(6, 5), strict=True)
    ]
    path = tmp_path / "both.html"
    path.write_text(render_comparison(side_by_side(Side("old", tuple(old)), Side("new", tuple(new)))))
    opened = browser.new_page()
    page = Page(opened, path)
    assert "600 cases in both" in page.text("header")
    assert page.page.locator("svg rect").count() > 10
    assert_quiet(page)
    opened.close()
