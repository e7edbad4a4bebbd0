"""Debian's Chromium without a window, driven by selenium: what a page shows, asks for, and complains of."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

SECONDS = 90  # for something to be seen, on a busy machine
FLAGS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "disable-dev-shm-usage", "no-first-run",
    "disable-background-networking", "disable-component-update", "disable-sync", "disable-default-apps",
    "disable-domain-reliability", "no-default-browser-check", "hide-scrollbars", "force-device-scale-factor=1",
)  # fmt: skip


class Browser:
    """A tab. Every page is waited for by what it is to show, never by time."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str, width: int = 1280, height: int = 900) -> None:
        """Go to `address`, with `width` by `height` CSS pixels to see it through."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get_log("performance")  # what was asked for earlier is not this page's
        self.driver.get_log("browser")
        self.driver.get(address)

    def see(self, *texts: str) -> str:
        """The page's text, once it has all of `texts`."""
        return self.until(lambda: all(text in self.text() for text in texts) and self.text(), f"no {texts}")

    def text(self) -> str:
        return self.driver.execute_script("return document.body ? document.body.innerText : ''")

    def find(self, css: str) -> WebElement:
        """The first element of this selector that can be seen, once there is one."""
        return self.until(lambda: next((e for e in self.all(css) if e.is_displayed()), None), f"no {css}")

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def until(self, condition: Callable[[], Any], otherwise: str) -> Any:
        """What `condition` gives, once that is something; AssertionError with what is seen instead."""
        from selenium.common.exceptions import StaleElementReferenceException, TimeoutException

        ignored = (StaleElementReferenceException,)
        try:
            return WebDriverWait(self.driver, SECONDS, 0.1, ignored).until(lambda _: condition())
        except TimeoutException:
            raise AssertionError(f"{otherwise} in:\n{self.text()}") from None

    def complaints(self) -> list[str]:
        """What the page's console has as errors since `open`: exceptions, and what could not be loaded."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def asked_for(self) -> list[str]:
        """The addresses that the page had loaded since `open`, its own first; data: and blob: are none."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [address for address in sent if not address.startswith(("data:", "blob:"))]

    def overflow(self) -> int:
        """By how many pixels the page is wider than what it is seen through."""
        script = "const e = document.scrollingElement; return e.scrollWidth - e.clientWidth"
        return self.driver.execute_script(script)

    def picture(self, name: str, folder: Path, whole: bool = False) -> Path:
        """What is seen, or the `whole` page, as `folder`/name.png."""
        import base64

        asked: dict[str, Any] = {"format": "png"}
        if whole:
            size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            asked |= {"captureBeyondViewport": True, "clip": {**size, "x": 0, "y": 0, "scale": 1}}
        data = self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"]
        (folder / f"{name}.png").write_bytes(base64.b64decode(data))
        return folder / f"{name}.png"


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A new browser, which keeps what it keeps in `profile`."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver"), env=os.environ | {"HOME": str(profile)}))
    try:
        driver.get("about:blank")  # the page of a new tab goes on loading its parts
        yield Browser(driver)
    finally:
        driver.quit()
