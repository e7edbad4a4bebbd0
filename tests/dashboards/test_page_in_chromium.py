"""The report page as a reader meets it, in a real browser: filter, difference, replay; wide and narrow; by keyboard."""

import pytest

from dashboards.report import write_report
from tests.dashboards.test_report import CELLS, CONTROL, EVIL, REPLAY, SPOT, SSD
from tests.fake_sweep import control, decode, on_disk, score

pytestmark = pytest.mark.service("chromium")


def records():
    yield control(CONTROL.key, "r0", 60) | {"text": "Mia has 3 pens.\n#### 3", "replay": REPLAY}
    yield decode(SPOT.key, "r0", 20, 60) | {"replay": REPLAY}
    yield decode(
        SSD.key, "r0", 30, 60, identical=False, difference="bug", text="Mia has 4 big pens.\n#### 3", text_sha="x"
    )
    yield control(CONTROL.key, "r1", 60) | {"text": EVIL}
    yield decode(SPOT.key, "r1", 0, 0, status="failed", error=f"CUDA error {EVIL}", text_sha=None)
    yield score("r0", True)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    from tests.browser import browser  # selenium is not on every machine

    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = on_disk(tmp_path_factory.mktemp("sweep"), *CELLS, records=records()).folder
    return write_report(folder).as_uri()


@pytest.fixture(params=[1280, 390])
def opened(tab, page, request):
    tab.open(page, width=request.param)
    tab.see("5 of 5 samples")
    yield tab
    assert tab.complaints() == [] and tab.asked_for() == [page]
    assert tab.overflow() == 0


def choose(tab, name, value):
    """Set the filter `name`."""
    for label in tab.all("#filters label"):
        if label.find_element("tag name", "span").text == name:
            next(o for o in label.find_elements("tag name", "option") if o.text == value).click()
            return
    raise AssertionError(f"no filter {name}")


def found(tab):
    return [" ".join(summary.text.split()) for summary in tab.all(".sample > summary")]


def test_samples_are_found_by_method_state_and_text(opened):
    assert len(found(opened)) == 5
    choose(opened, "method", "spot")
    assert len(found(opened)) == 2 and opened.see("2 of 5 samples")
    choose(opened, "text", "failed")
    assert "r1 spot 4" in found(opened)[0] and len(found(opened)) == 1
    choose(opened, "method", "all")
    choose(opened, "text", "all")
    search = opened.find("#filters input")
    search.send_keys("BIG PENS")
    assert len(found(opened)) == 1 and "ssd 4" in found(opened)[0]
    search.clear()
    search.send_keys("cuda")
    assert len(found(opened)) == 1 and "failed" in found(opened)[0]


def test_a_differing_sample_is_compared_with_its_control(opened):
    opened.find("button[data-sample]").click()
    box = opened.find(".difference")
    assert [part.text for part in box.find_elements("css selector", "del")] == ["3"]
    assert [part.get_property("textContent") for part in box.find_elements("css selector", "ins")] == ["4 big"]


def test_no_sample_is_passed_over_where_one_was_shown_on_top(tab, tmp_path):
    made = [decode(SSD.key, "r0", 30, 60, identical=False, difference="bug", text="other", text_sha="x")]
    made += [control(CONTROL.key, f"r{i}", 60) for i in range(20)] + [
        decode(SPOT.key, f"r{i}", 9, 60) for i in range(20)
    ]
    made += [decode(SSD.key, f"r{i}", 9, 60) for i in range(1, 20)]
    tab.open(write_report(on_disk(tmp_path, *CELLS, records=made, rows=20).folder).as_uri(), width=1280)
    tab.see("60 of 60 samples")
    tab.find("button[data-sample]").click()
    tab.find("#more").click()
    listed = found(tab)
    assert len(listed) == 61 and len(set(listed)) == 60 and not tab.all("#more")[0].is_displayed()


def tokens(tab, kind):
    return [token.text for token in tab.all(f".player .tokens .{kind}")]


def test_a_decode_is_replayed_step_by_step_by_keyboard_buttons_and_slider(opened):
    from selenium.webdriver.common.keys import Keys

    choose(opened, "method", "spot")
    choose(opened, "replay", "with")
    opened.find(".sample > summary").send_keys(Keys.ENTER)
    player = opened.find(".player")
    assert "how many?" in opened.text()
    assert "Pass 1 of 2: no drafts" in player.text and tokens(opened, "new") == ["a"]
    player.send_keys(Keys.CONTROL, Keys.ARROW_RIGHT)  # not this page's
    assert "Pass 1 of 2: no drafts" in player.text
    player.send_keys(Keys.ARROW_RIGHT)
    assert "Pass 2 of 2: 2 drafts offered" in player.text and tokens(opened, "offered") == ["b", "c"]
    assert len(opened.all(".player .tree .offered")) == 2
    player.send_keys(Keys.ARROW_RIGHT)
    assert "1 of 2 drafts accepted" in player.text
    assert (tokens(opened, "taken"), tokens(opened, "new")) == (["b"], ["c"])
    assert [e.text for e in opened.all(".player .tree .taken")] == ["1b"] and len(
        opened.all(".player .tree .missed")
    ) == 1
    player.send_keys(Keys.HOME)
    assert "Pass 1 of 2" in player.text
    opened.find(".player input[type=range]").send_keys(Keys.END)
    assert "Pass 2 of 2: 1 of 2" in player.text
    opened.find(".player button[title^=play]").click()  # from the end it begins anew
    assert "Pass 1 of 2" in player.text
    opened.until(lambda: "Pass 2 of 2: 1 of 2" in player.text, "no end of the replay")


def test_what_a_model_says_is_shown_as_text_and_does_nothing(opened):
    choose(opened, "text", "failed")
    opened.find(".sample > summary").click()
    assert EVIL in opened.find(".sample pre").text
    choose(opened, "text", "all")
    opened.find("#filters input").send_keys("onerror")
    for summary in opened.all(".sample > summary"):
        summary.click()
    assert EVIL in opened.text() and opened.all("#browser img") == []


def test_the_page_can_be_read_in_the_dark_and_without_a_script(tab, page):
    tab.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    tab.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        tab.open(page, width=390)
        body = tab.find("body")
        assert body.value_of_css_property("background-color") == "rgba(21, 25, 29, 1)"
        assert tab.find("noscript p").is_displayed() and not tab.all("#browser")[0].is_displayed()
    finally:
        tab.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        tab.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
