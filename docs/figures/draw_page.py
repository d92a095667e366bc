"""Take the pictures of the page in docs/serving.md: a service over a small bank, in chromium.

PYTHONPATH=. python docs/figures/draw_page.py    # writes page-*.png beside this file; about a minute

The bank has four tasks over MiniLM, learned from sentences that this script makes. Needs chromium and selenium, as
`make test-browser` does.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.webdriver.support.ui import Select, WebDriverWait

import intarsia
from intarsia import Bottleneck, LoRA, Settings
from intarsia.bank.bank import Bank
from tests.support.browser import browser, resize
from tests.support.service import running

HERE = Path(__file__).parent
PEOPLE, PLACES = ("Ada Novak", "Juan Silva", "Mei Tanaka", "Omar Haddad"), ("Lisbon", "Kyoto", "Nairobi", "Oslo")
GOOD, BAD = ("warm", "spotless", "delicious", "friendly"), ("cold", "dirty", "tasteless", "rude")
TOPICS = {
    "food": ("The soup was {}", "The cook and the dinner were {}", "A {} breakfast with fresh bread"),
    "room": ("The room was {}", "Our bed and the bathroom were {}", "A {} room above the street"),
    "staff": ("The waiter was {}", "The people at the desk were {}", "A {} welcome from the staff"),
}
TEXT = "Mei Tanaka gave us a friendly welcome in Kyoto, but the soup was cold."
SETTINGS = Settings(learning_rate=2e-3, epochs=10, batch_size=16)


def reviews(count: int, seed: int) -> list[dict[str, Any]]:
    """Sentences with an opinion, a topic, people and places."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        good, topic = draw.random() < 0.5, draw.choice(list(TOPICS))
        said = draw.choice(TOPICS[topic]).format(draw.choice(GOOD if good else BAD))
        person, place = draw.choice(PEOPLE), draw.choice(PLACES)
        words = f"{person} from {place} said: {said[0].lower()}{said[1:]}".split()
        tags = ["B-PER", "I-PER", "O", "B-LOC", *["O"] * (len(words) - 4)]
        if number % 2:
            words, tags = (
                [*words[5:], "in", words[3], "with", *words[:2]],
                [*tags[5:], "O", "B-LOC", "O", "B-PER", "I-PER"],
            )
        stars = (4.0 if good else 1.0) + draw.random()
        rows.append(
            {
                "text": f"{said}, said {person} from {place} on day {number}.",
                "opinion": "good" if good else "bad",
                "topic": topic,
                "stars": stars,
                "tokens": [*words, str(number)],
                "tags": [*tags, "O"],
            }
        )
    return rows


def learn(folder: Path) -> Bank:
    """A bank with four tasks; `opinion` has two versions."""
    bank = intarsia.open(folder, "minilm")
    rows = reviews(160, seed=0)

    def column(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"text": row["text"], "label": row[name]} for row in rows]

    bank.learn("opinion", column("opinion", rows[:60]), method=LoRA(8), settings=SETTINGS)
    bank.learn("opinion", column("opinion", rows), method=Bottleneck(8), settings=SETTINGS)
    bank.learn("topic", column("topic", rows), method=Bottleneck(8), settings=SETTINGS)
    bank.learn("stars", column("stars", rows), kind="score", method=Bottleneck(8), settings=SETTINGS)
    tagged = [{"tokens": row["tokens"], "tags": row["tags"]} for row in rows]
    bank.learn("names", tagged, method=Bottleneck(8), settings=SETTINGS)
    return bank


class Camera:
    """The page in a browser, and its pictures."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def find(self, css: str) -> Any:
        return self.wait(lambda: self.driver.find_elements("css selector", css))[0]

    def wait(self, true: Any) -> Any:
        return WebDriverWait(self.driver, 180, 0.1).until(lambda _: true())

    def shows(self, css: str, text: str) -> None:
        self.wait(lambda: text in self.find(css).text)

    def take(self, name: str, width: int, *, dark: bool = False, css: str = "body", most: int = 2400) -> None:
        """A picture of an element, in 256 colours."""
        resize(self.driver, width, 800, dark=dark)
        tall = self.driver.execute_script("return document.documentElement.scrollHeight")
        resize(self.driver, width, max(600, min(most, tall)), dark=dark)
        path = HERE / f"page-{name}.png"
        (self.driver.save_screenshot if css == "body" else self.find(css).screenshot)(str(path))
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
        print(f"{path.name}: {path.stat().st_size // 1000} KB")


def draw(camera: Camera, url: str, folder: Path) -> None:
    resize(camera.driver, 1280, 900)
    camera.driver.get(url)
    camera.find("#task-table tbody tr")
    camera.find("#text").send_keys(TEXT)
    for _ in range(3):  # the first answer loads the tasks
        camera.driver.execute_script("document.getElementById('ask-status').textContent = ''")
        camera.find("#ask-button").click()
        camera.shows("#ask-status", "answered")
    camera.wait(lambda: camera.find("#figures dd").text not in ("–", "0.0"))
    camera.take("wide", 1280)
    camera.take("small-dark", 390, dark=True, most=1700)
    resize(camera.driver, 1280, 900)
    camera.find("#task-table tbody tr:nth-child(2) button").click()
    camera.find("#compare-text").submit()
    camera.find("#task-body .card")
    camera.take("versions", 1100, css="#task-dialog", most=1300)
    camera.find("#task-close").click()

    data = folder / "hotel reviews.csv"
    lines = [f'"{row["text"]}",{row["opinion"]}' for row in reviews(200, seed=5)]
    data.write_text("review,verdict\n" + "\n".join(lines) + "\n", encoding="utf-8")
    camera.find("#file").send_keys(str(data))
    camera.shows("#preview-problem", "Choose the text column")
    Select(camera.find("#column-text")).select_by_value("review")
    camera.shows("#preview-problem", "Choose the label column")
    Select(camera.find("#column-label")).select_by_value("verdict")
    camera.shows("#found", "2 labels")
    camera.find("#method").send_keys("houlsby-8")
    camera.find("#epochs").send_keys("5")
    camera.find("#learn-button").click()
    camera.shows("#jobs-status", "is learned")
    camera.wait(lambda: len(camera.driver.find_elements("css selector", "#followed svg")) == 2)
    camera.take("learn", 1280, css="#learn", most=3000)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bank = learn(Path(folder) / "bank")
        with running(bank, jobs=True, encoder="minilm") as service, browser() as driver:
            draw(Camera(driver), service.url, Path(folder))


if __name__ == "__main__":
    main()
