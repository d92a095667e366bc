"""The page in a real browser: what people see, type and hear. `make test-browser` requires the browser."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from tests.support import browser as browsers
from tests.support.families import opinions
from tests.support.service import Running, running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        browsers.missing() is not None and not browsers.required(), reason=str(browsers.missing())
    ),
]  # fmt: skip
SECONDS = 60
TEXT = "a good film"


@pytest.fixture(scope="module")
def service(learned: Path, encoder: Encoder, base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("page") / "bank"
    shutil.copytree(learned, folder)
    with running(Bank(folder, encoder), jobs=True, encoder=base) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert browsers.missing() is None, browsers.missing()
    with browsers.browser() as driver:
        yield driver


class Page:
    """The page, as a test sees it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def all(self, css: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", css))

    def __call__(self, css: str) -> Any:
        """The element, as soon as it is there."""
        return self.wait(lambda: self.all(css), css)[0]

    def wait(self, true: Any, what: str) -> Any:
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self.driver, SECONDS, 0.05, ignored_exceptions=[StaleElementReferenceException])
        return waiting.until(lambda _: true(), what)

    def click(self, css: str) -> None:
        """Click an element, also if the page draws it again meanwhile."""
        self.wait(lambda: (self(css).click(), True)[1], css)

    def says(self, css: str, text: str) -> None:
        """Wait until the element's text holds `text`."""
        self.wait(lambda: text in self(css).text, f"{css}: {text}")

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    @property
    def focus(self) -> Any:
        return self.driver.switch_to.active_element

    def faults(self) -> list[str]:
        """Errors of scripts, of the content security policy, and of files that are missing."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def page(browser: Any, service: Running) -> Iterator[Page]:
    browsers.resize(browser, 1280, 900)
    browser.get(service.url)
    made = Page(browser)
    made("#task-table tbody tr")
    yield made
    assert made.faults() == []


def ask(page: Page, text: str, second: str = "") -> list[Any]:
    page("#text").clear()
    page("#text").send_keys(text)
    page("#second").clear()
    page("#second").send_keys(second)
    page("#ask-button").click()
    page.wait(lambda: "answered" in page("#ask-status").text, "answers")
    return page.all("#answers > li")


def test_all_tasks_answer_one_text(page: Page, service: Running) -> None:
    cards = ask(page, TEXT)
    said = {card.find_element("tag name", "h3").text: card.text for card in cards}
    assert list(said) == ["opinion", "pairs", "rating", "tags"]
    results = service.post("/v1/tasks/opinion/predict", {"inputs": [TEXT]}).json()["results"][0]
    for label, probability in results["probabilities"].items():
        assert f"{label}\n{100 * probability:.0f} %" in said["opinion"]
    assert "second field" in said["pairs"] and "3 tasks answered" in page("#ask-status").text
    assert TEXT in said["tags"]
    assert "second field" not in ask(page, TEXT, "it was so")[1].text


def test_chosen_tasks_answer(page: Page) -> None:
    page("#task-table input[value=rating]").click()
    assert page("#chosen").text == "rating ×" and page("input[value=chosen]").is_selected()
    assert [card.find_element("tag name", "h3").text for card in ask(page, TEXT)] == ["rating"]
    page("#chosen button").click()
    assert page("input[value=all]").is_selected() and not page("#task-table input[value=rating]").is_selected()
    page("input[value=chosen]").click()
    page("#ask-button").click()
    page.says("#ask-problem", "No task is chosen")


def test_text_never_becomes_markup(page: Page) -> None:
    for text in ("<img src=x onerror=alert(1)>", "<b>good</b> &amp; 'fine' ☃ \U0001f600"):
        cards = ask(page, text)
        assert page.all("#answers img, #answers b") == []
        assert " ".join(text.split()) in cards[3].text


def test_the_list_shows_and_finds_tasks(page: Page) -> None:
    row = page("#task-table tbody tr").text
    assert all(part in row for part in ("opinion", "one label", "no, yes", "[", "accuracy", "KB", " %"))
    page("#search").send_keys("ra")
    page.says("#tasks-status", "1 task.")
    assert len(page.all("#task-table tbody tr")) == 1
    page("#search").send_keys("zzz")
    page.says("#tasks-status", "No task has a name that begins with")


def test_live_figures_follow_the_service(page: Page) -> None:
    ask(page, TEXT)
    names = [each.text for each in page.all("#figures dt")]
    values = lambda: dict(zip(names, (each.text for each in page.all("#figures dd")), strict=True))  # noqa: E731
    page.wait(lambda: values()["Tasks a pass"] not in ("–", "0.0"), "tasks a pass")
    assert "ms" in values()["Latency p50"] and values()["Queue"] == "0"


def test_versions_are_compared_and_restored(page: Page, service: Running) -> None:
    page("#task-table tbody button").click()
    page("#task-body table")
    assert [row.text.split()[0] for row in page.all("#task-body tbody tr")] == ["2", "1"]
    assert page("#task-body svg[role=img]").accessible_name.startswith("Validation accuracy. Version 2:")
    page("#compare-text").send_keys(TEXT)
    page("#task-body form button").click()
    page("#task-body .card")
    assert [card.text.split("\n")[0] for card in page.all("#task-body .card")] == ["Version 2", "Version 1"]
    page("#task-body tbody tr:nth-child(2) button").click()
    page.says("#task-status", "Version 1 is served again, as version 3")
    assert service.get("/v1/tasks/opinion").json()["version"] == 3
    assert page.focus.text == "Close"
    page.wait(
        lambda: "3" in page.all("#task-table tbody tr td[data-name=Version]")[0].get_attribute("textContent"), "3"
    )


def test_the_keyboard_is_enough(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.press(Keys.TAB)
    assert page.focus.text == "Skip to the question"
    page.press(Keys.ENTER, Keys.TAB)
    assert page.focus.get_attribute("id") == "text"
    page.press(*TEXT, Keys.TAB, Keys.TAB, Keys.TAB)
    assert page.focus.get_attribute("id") == "ask-button"
    page.press(Keys.ENTER)
    page.says("#ask-status", "answered in one request")
    page("#search").click()
    page.press(Keys.TAB, Keys.SPACE, Keys.TAB)
    assert page("#chosen").text == "opinion ×" and page.focus.text == "opinion"
    page.press(Keys.ENTER)
    page("#task-body table")
    assert page.focus.get_attribute("id") == "task-close"
    page.press(Keys.ESCAPE)
    assert page.focus.text == "opinion" and not page("#task-dialog").is_displayed()


def test_the_focus_survives_a_new_list(page: Page) -> None:
    box = page("#task-table input[value=rating]")
    page.driver.execute_script(
        "arguments[0].focus(); arguments[1].dispatchEvent(new Event('input'))", box, page("#search")
    )
    page.wait(lambda: page("#task-table input[value=rating]") != box, "the list is drawn again")
    assert page.focus.get_attribute("value") == "rating"


def test_every_control_has_a_name_and_live_regions_speak(page: Page) -> None:
    ask(page, TEXT)
    controls = page.all("input, select, textarea, button, a, summary")
    nameless = [
        each.get_attribute("outerHTML") for each in controls if each.is_displayed() and not each.accessible_name
    ]
    assert nameless == []
    assert page("#text").aria_role == "textbox" and page("#text").accessible_name == "Text"
    assert page("#ask").aria_role == "region" and page("#ask").accessible_name == "Ask"
    assert page("#ask-status").aria_role == "status"
    assert [level.tag_name for level in page.all("h1, h2, h3") if level.is_displayed()][:3] == ["h1", "h2", "h3"]
    browsers.resize(page.driver, 360, 800)
    assert page("#task-table tbody tr td").aria_role == "cell"  # although a narrow page draws blocks


@pytest.mark.parametrize("width", [360, 700, 1280, 1900])
def test_nothing_overflows(page: Page, width: int) -> None:
    browsers.resize(page.driver, width, 800, dark=width == 360)
    ask(page, "word " * 40 + "w" * 300)
    page.click("#task-table input[value=rating]")
    inner, outer = page.driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert inner <= outer


def test_a_service_that_ends_is_named(page: Page) -> None:
    page.driver.execute_script("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    page("#text").send_keys(TEXT)
    page("#ask-button").click()
    page.says("#ask-problem", "The service does not answer.")
    page.says("#live-problem", "The service does not answer.")


def test_a_task_is_learned_from_a_file(page: Page, tmp_path: Path, service: Running) -> None:
    from selenium.webdriver.support.ui import Select

    rows = [f"{row['text']} {number},{row['label']}" for number, row in enumerate(opinions(60))]
    path = tmp_path / "My Reviews.csv"
    path.write_text("review,Sentiment\n" + "\n".join([*rows, "a text without a label,"]))
    page("#file").send_keys(str(path))
    page.says(
        "#preview-problem", "My Reviews.csv: no column has a name that stands for the texts. Choose the text column"
    )
    assert page("#preview-table").text.startswith("review Sentiment\n")
    Select(page("#column-text")).select_by_value("review")
    page.says("#preview-problem", "Choose the label column below")
    Select(page("#column-label")).select_by_value("Sentiment")
    page.says("#preview-problem", "line 62")
    page.says("#preview-problem", "leave such rows out (tick the box below)")
    assert not page("#learn-button").is_enabled()
    page("#drop-missing").click()
    page.says("#found", "2 labels: no (30), yes (30)")
    assert page("#name").get_attribute("value") == "my-reviews" and not page("#preview-problem").is_displayed()
    page("#name").clear()
    page("#name").send_keys("not a name!")
    page("#epochs").send_keys("2")
    page("#learn-button").click()
    page.wait(lambda: page("#learn-problem").text, "a bad name is refused")
    (fault,) = page.faults()  # the browser notes the refusal
    assert "422" in fault
    page("#name").clear()
    page("#name").send_keys("reviews")
    page("#learn-button").click()
    page.says("#jobs-status", "reviews is learned: version 1")
    page.wait(lambda: "reviews" in page("#task-table").text, "the new task in the list")
    names = page.wait(lambda: [each.accessible_name for each in page.all("#followed svg")], "curves")
    assert names[0].startswith("Loss.") and page("#job-list li").text.startswith("reviews done")
    page.says("#followed", "accuracy")  # the score on the test part
    page.driver.refresh()
    page("#job-list button").click()  # the curve of a job that has ended
    page.says("#jobs-status", "reviews is learned: version 1")
    page.wait(lambda: page.focus.text == "reviews", "the focus stays on the job, although the list is drawn again")


def test_problems_of_files_are_told_in_the_words_of_the_page(page: Page, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import Select

    def give(name: str, content: bytes, problem: str) -> None:
        (tmp_path / name).write_bytes(content)
        page("#file").send_keys(str(tmp_path / name))
        page.says("#preview-problem", problem)
        assert "=" not in page("#preview-problem").text and "--enc" not in page("#preview-problem").text

    stars = "text,stars\n" + "\n".join(f"{row['text']} {at},{at % 5 + 1}" for at, row in enumerate(opinions(60)))
    give(
        "texts.csv",
        b"text\n" + b"a film\n" * 12,
        "texts.csv has only the column “text”. A task needs a column of texts",
    )
    give(
        "a.csv",
        b"tweet,content,label\n" + b"x,y,z\n" * 12,
        "several columns could be the text (content, tweet). Choose the text",
    )
    give("photo.csv", b"\x89PNG\r\n\x1a\n\x00\xff", "photo.csv is a PNG image. Expected text")
    give("sheet.csv", b"PK\x03\x04\x00\xff\n\xff", "sheet.csv is a zip archive")
    give("letters.csv", b"text,label\n\xc3\xa9,a\n\xff,b\n", "line 3: not valid UTF-8")
    give("notes", b"text", "notes has no ending. Expected one of: .csv")
    give("sheet.xlsx", b"PK", "sheet.xlsx ends in .xlsx. Expected one of: .csv")
    give("none.csv", b"", "none.csv is empty.")
    give("Stars (final).csv", stars.encode(), "no column has a name that stands for the labels")
    assert page("#name").get_attribute("value") == "stars-final"
    Select(page("#column-label")).select_by_value("stars")
    page.says("#found", "Predicts one label.")
    Select(page("#kind")).select_by_value("score")
    page.says("#found", "Predicts a number.")


def test_long_names_stay_in_the_page(page: Page, service: Running, tmp_path: Path) -> None:
    rows = [f"{row['text']} {at},label {at % 20:02} {'of a long list' * 3}" for at, row in enumerate(opinions(200))]
    (tmp_path / "long.csv").write_text("text,label\n" + "\n".join(rows))
    browsers.resize(page.driver, 360, 800)
    page("#file").send_keys(str(tmp_path / "long.csv"))
    page.says("#found", "20 labels")
    page("#name").clear()
    page("#name").send_keys("x" * 64)
    page("#epochs").send_keys("1")
    page("#learn-button").click()
    page.says("#jobs-status", "is learned: version 1")
    assert "x" * 64 in page("#followed").text
    assert "of a long list" in ask(page, TEXT)[-1].text
    inside = "(e) => e.closest('.scroll') || e.getBoundingClientRect().right <= innerWidth"
    assert page.driver.execute_script(f"return [...document.querySelectorAll('#learn *, #answers *')].every({inside})")
    page("#followed button").click()
    page("#task-body table")
    assert "8 more" in page("#task-body dl").text and page("#task-body table").aria_role == "table"
    assert page.driver.execute_script("return document.querySelector('dialog').scrollWidth") <= 360


def test_only_administrators_learn(browser: Any, learned: Path, encoder: Encoder) -> None:
    with running(Bank(learned, encoder), admin="secret", jobs=True) as service:
        browser.get(service.url)
        page = Page(browser)
        page("#task-table tbody button").click()
        page("#task-body tbody tr:nth-child(2) button").click()
        page.says("#task-problem", "administrator's key")
        assert page("#key-help").get_attribute("innerText") == "It stays on this page."
        page("#task-close").click()
        page("#key").send_keys("wrong")
        page("#file").send_keys(str(Path(__file__).parents[2] / "requirements.txt"))
        page.says("#preview-problem", "The administrator's key is not valid.")
        page("#key").clear()
        page("#key").send_keys("secret\t")
        page.says("#preview-problem", "column")
        browser.get("about:blank")  # the page must not ask a service that has ended
    with running(Bank(learned, encoder)) as service:
        service.service.options = dataclasses.replace(service.service.options, jobs=False)
        browser.get(service.url)
        Page(browser).says("#learn-off", "Jobs are switched off")
        browser.get("about:blank")
    browser.get_log("browser")  # the refusals above


def test_a_large_bank_has_pages(browser: Any, learned: Path, encoder: Encoder, tmp_path: Path) -> None:
    shutil.copytree(learned, tmp_path / "bank")
    bank = Bank(tmp_path / "bank", encoder)
    inlay = bank.store.load("rating")
    for number in range(30):
        bank.store.add(dataclasses.replace(inlay, name=f"task-{number:02}"))
    with running(bank, jobs=True) as service:
        browser.get(service.url)
        page = Page(browser)
        page.says("#tasks-status", "Tasks 1 to 25 of 34.")
        page("#next").click()
        page.says("#tasks-status", "Tasks 26 to 34 of 34.")
        assert not page("#next").is_enabled() and page.focus.text == "Previous"
        page("#previous").click()
        page.says("#tasks-status", "Tasks 1 to 25 of 34.")
        page("#search").send_keys("task-2")
        page.says("#tasks-status", "10 tasks.")
        assert len(ask(page, TEXT, "it was so")) == 34  # all tasks, not only those that the list shows
        browsers.resize(browser, 360, 740)
        page("#task-table tbody button").click()
        page("#task-body table")
        assert page.driver.execute_script("return document.querySelector('dialog').scrollWidth") <= 360
        assert page.faults() == []
