"""Pictures of the server's page: `python -m recipes.screens` asks smollm2 about the demo's document in Chromium.

Writes docs/page-light.png, docs/page-dark.png and docs/page-phone.png. The browser and its driver are Debian's packages
chromium and chromium-driver; selenium is in the extra dev.
"""

from __future__ import annotations

import base64
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from winnow import LLM
from winnow.models.files import asset
from winnow.server.app import new_app
from winnow.server.run import Draining, address, bound, config_of
from winnow.server.service import Service
from winnow.server.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"
QUESTION = "From which port did the Endurance sail on Saturday, August 8?"
PLANS = ("full", "lazyllm(cumulative=[0.8, 0.6, 0.4])")
TOKENS = 48
WIDE, PHONE = (1180, False), (360, True)  # pixels, and whether it is a phone
BROWSERS, DRIVER = ("chromium", "google-chrome"), "chromedriver"
PATIENCE_S = 300


def missing() -> str | None:
    """Why there is no browser, or None where there is one."""
    if find_spec("selenium") is None:
        return "selenium is not installed: pip install selenium"
    if not any(map(shutil.which, BROWSERS)) or shutil.which(DRIVER) is None:
        return "there is no browser: apt-get install chromium chromium-driver"
    return None


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which(DRIVER)))
    try:
        yield browser
    finally:
        browser.quit()


def look(browser: Any, width: int, phone: bool, *, dark: bool = False, height: int = 800) -> None:
    """Show the page on a screen of so many pixels, in a light or a dark scheme."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    still = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})


def picture(browser: Any) -> bytes:
    """All of the page as it is shown now, as PNG."""
    size = browser.execute_script("const e = document.documentElement; return [e.clientWidth, e.scrollHeight];")
    clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    made = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(made["data"])


def fill(browser: Any, values: dict[str, str]) -> None:
    """Put text into the page's fields, by their ids, as pasting it does."""
    for name, value in values.items():
        browser.execute_script(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {bubbles: true}));",
            name,
            value,
        )


def own_plan(browser: Any, number: int, plan: str) -> None:
    """Choose a plan that no list holds."""
    browser.execute_script(
        "const s = document.getElementById(arguments[0]); s.selectedIndex = s.length - 1;"
        "s.dispatchEvent(new Event('change'));",
        f"plan-{number}",
    )
    fill(browser, {f"own-{number}": plan})


def states(browser: Any) -> list[str]:
    """What is said of the two answers."""
    said = "return [...document.querySelectorAll('.state')].map(each => each.textContent)"
    return list(browser.execute_script(said))


def wait(browser: Any, until: Any, seconds: float = PATIENCE_S) -> Any:
    """What `until()` comes to, once it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds, poll_frequency=0.05).until(lambda _: until())


@contextmanager
def served(llm: LLM, name: str, settings: Settings) -> Iterator[tuple[str, Service]]:
    """A server on a port of its own, in this process: its address, and what it is."""
    service, place, ready = Service(llm, settings, name), bound("127.0.0.1", 0), threading.Event()
    server = Draining(config_of(new_app(service)), service, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield address(place), service
    finally:
        server.should_exit = True
        thread.join()


def main() -> None:
    """Ask, and take the pictures."""
    document = (asset("demo") / "document.txt").read_text(encoding="utf-8")
    llm = LLM("smollm2")
    with served(llm, "smollm2", Settings()) as (url, _), chromium() as browser:
        look(browser, *WIDE)
        browser.get(url)
        wait(browser, lambda: browser.execute_script("return server.model"))
        fill(browser, {"document": document, "question": QUESTION, "most": str(TOKENS)})
        own_plan(browser, 2, PLANS[1])
        for _ in range(2):  # times are those of a server that has answered before
            browser.execute_script("document.getElementById('ask').click()")
            wait(browser, lambda: all(state.startswith("done") for state in states(browser)))
        for name, screen, dark in (("light", WIDE, False), ("dark", WIDE, True), ("phone", PHONE, False)):
            look(browser, *screen, dark=dark)
            browser.execute_script("document.activeElement.blur()")
            (DOCS / f"page-{name}.png").write_bytes(picture(browser))


if __name__ == "__main__":
    main()
