"""The page at /: what it is sent with, and what it does in a browser, over a real port."""

import base64
import hashlib
import re
import time
from importlib.resources import files

import pytest
from recipes.screens import chromium, fill, look, missing, own_plan, picture, served, states, wait

from http_calls import ask
from winnow import SamplingParams
from winnow.server.settings import Settings

DOCUMENT = "The ferry leaves at nine. " * 12
QUESTION = "When does it leave?"
PLAN = "streaming(sink=2, recent=9)"
KEY = "secret"
READ_ON = [  # what is written in one colour on another
    ("ink", "panel"), ("ink", "sunk"), ("soft", "page"), ("soft", "panel"), ("soft", "sunk"), ("soft", "track"),
    ("accent", "panel"), ("on-accent", "accent"), ("bad", "panel"), ("bad", "bad-back"),
]  # fmt: skip
PAGE = (files("winnow.server") / "page.html").read_text(encoding="utf-8")
in_a_browser = pytest.mark.skipif(missing() is not None, reason=f"the page in a browser: {missing()}")


def test_it_needs_no_key_and_holds_nothing(new):
    _, app = new(api_key=(KEY,), allow_plans=(PLAN,))
    reply = ask(app, "/")
    assert reply.status == 200
    assert reply.body.decode() == PAGE
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert ask(app, "/v1/models").status == 401
    assert ask(app, "//").status == 401


def test_its_policy_lets_nothing_else_run(app):
    policy = ask(app, "/").headers["content-security-policy"]
    directives = dict(each.strip().split(" ", 1) for each in policy.split(";"))
    for element in ("script", "style"):
        [text] = re.findall(rf"<{element}>(.*?)</{element}>", PAGE, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        [own, inspectors] = directives[f"{element}-src"].split()
        assert own == f"'sha256-{digest}'"
        assert inspectors.startswith("'sha256-")
    assert directives["default-src"] == "'none'"
    assert directives["connect-src"] == "'self'"
    assert not re.search(r"(src|href|action)=\"(?!data:)", PAGE)
    assert set(re.findall(r"https?://[^\s'\"]+", PAGE)) == {"http://www.w3.org/2000/svg"}
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Storage", "cookie"):
        assert unsafe not in PAGE


@pytest.fixture(scope="module")
def browser():
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def server(llm):
    with served(llm, "tiny", Settings(max_step_tokens=16, api_key=(KEY,))) as made:
        yield made


@pytest.fixture
def page(browser, server):
    """The page, known to the server, with nothing in it yet."""
    look(browser, 1200, phone=False)
    browser.get(server[0])
    fill(browser, {"key": KEY})
    wait(browser, lambda: browser.execute_script("return server.model"), 60)
    browser.get_log("browser")
    yield browser
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [error for error in errors if "status of 4" not in error]


def text(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)", selector
    )


def figure(browser, name):
    return text(browser, f"[data-figure={name}]")


def click(browser, name):
    browser.execute_script("document.getElementById(arguments[0]).click()", name)


def begin(browser, **instead):
    fill(browser, {"document": DOCUMENT, "question": QUESTION, "most": "24"} | instead)
    click(browser, "ask")


def done(browser):
    return all(state.startswith("done") for state in states(browser))


def content():
    return [{"role": "user", "content": f"{DOCUMENT.strip()}\n\n{QUESTION}"}]


@in_a_browser
def test_it_asks_for_the_key(browser, server):
    browser.get(server[0])
    wait(browser, lambda: text(browser, "#problem") != [""], 60)
    assert text(browser, "#problem") == ["This server asks for an API key, and the one above is missing or wrong."]
    assert browser.switch_to.active_element.get_attribute("id") == "key"
    fill(browser, {"key": KEY})
    wait(browser, lambda: text(browser, "#problem") == [""], 60)
    assert text(browser, "#model") == ["tiny, 32,768 positions"]
    browser.refresh()
    assert browser.execute_script("return document.getElementById('key').value + localStorage.length") == "0"


@in_a_browser
def test_answers_under_two_plans_with_their_figures(page, llm):
    fill(page, {"document": DOCUMENT})
    wait(page, lambda: text(page, "#size") == [f"{len(DOCUMENT)} tokens"], 60)
    own_plan(page, 2, PLAN)
    begin(page)
    wait(page, lambda: done(page), 60)
    params = SamplingParams(max_tokens=24)
    [[full], [short]] = [llm.chat(content(), params, plan=plan) for plan in ("full", PLAN)]
    assert text(page, ".answer") == [full.text, short.text]
    assert text(page, "article h2") == ["full", PLAN]
    assert all(float(each) >= 0 for each in figure(page, "ttft") + figure(page, "speed"))
    assert figure(page, "memory") == [f"{each.stats.total_bytes / 2**20:.2f}" for each in (full, short)]
    [whole, part] = figure(page, "units")
    assert whole == f"100 %  {full.stats.units_read:,} of {full.stats.units_full:,} units"
    share = 100 * short.stats.units_read / short.stats.units_full
    assert part == f"{share:.0f} %  {short.stats.units_read:,} of {short.stats.units_full:,} units"
    assert figure(page, "rows")[1].startswith("100 %")
    bars = "return [...document.querySelectorAll('.bar b')].map(each => parseFloat(each.style.width))"
    assert page.execute_script(bars)[-1] == pytest.approx(share, abs=0.01)


@in_a_browser
def test_the_trace_of_an_answer_opens_in_the_inspector(page, llm):
    own_plan(page, 2, PLAN)
    begin(page)
    wait(page, lambda: done(page), 60)
    here = page.current_window_handle
    page.execute_script("document.querySelectorAll('.trace')[1].click()")
    wait(page, lambda: len(page.window_handles) == 2, 60)
    page.switch_to.window(next(handle for handle in page.window_handles if handle != here))
    try:
        wait(page, lambda: text(page, "#plan") == [PLAN], 60)
        assert len(page.find_elements("css selector", "#tiles > *")) > 2
        [answer] = llm.chat(content(), SamplingParams(max_tokens=24), plan=PLAN)
        page.execute_script("document.getElementById('slider').value = 99")
        assert (
            page.execute_script("return JSON.parse(document.getElementById('trace').textContent).stats")["units_read"]
            == answer.stats.units_read
        )
        assert not [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    finally:
        page.close()
        page.switch_to.window(here)
    assert text(page, ".more .hint") == ["", ""]


@in_a_browser
def test_one_after_the_other_unless_both_are_wanted_at_once(page, server, monkeypatch):
    service, seen = server[1], set()
    step = service.engine.step

    def watched():
        seen.add(len(service.background._listeners))
        return step()

    monkeypatch.setattr(service.engine, "step", watched)
    begin(page, most="400")
    wait(page, lambda: done(page), 120)
    assert max(seen) == 1
    click(page, "together")
    begin(page, most="400")
    wait(page, lambda: done(page), 120)
    assert max(seen) == 2


@in_a_browser
def test_errors_are_sentences(page):
    own_plan(page, 2, "strming")
    begin(page)
    wait(page, lambda: states(page)[1] == "failed", 60)
    assert states(page)[0].startswith("done")
    assert text(page, ".answer")[1].startswith("Unknown policy 'strming': did you mean streaming?")
    assert text(page, ".answer")[1].endswith(".")
    begin(page, question="")
    assert text(page, "#problem") == ["Ask a question about the document."]
    assert page.switch_to.active_element.get_attribute("id") == "question"
    begin(page, most="0.5")
    assert text(page, "#problem") == ["The answer needs a whole number of tokens, 1 or more."]
    begin(page, document="a " * 40000)
    wait(page, lambda: states(page)[0] == "failed", 60)
    assert "32768 positions" in text(page, ".answer")[0].replace(",", "")
    wait(page, lambda: "more than the model’s 32,768 positions" in text(page, "#size")[0], 60)


@in_a_browser
def test_stopping_gives_the_bytes_back(page, server, monkeypatch):
    engine = server[1].engine
    step = engine.step

    def slow():  # the model ends this answer after 669 tokens: longer than all that is waited for here
        time.sleep(0.2)
        return step()

    monkeypatch.setattr(engine, "step", slow)
    begin(page, document="The boat leaves at noon.", most="20000")
    wait(page, lambda: text(page, ".answer")[0], 60)
    assert engine.reserved_bytes > 0
    click(page, "stop")
    wait(page, lambda: states(page) == ["stopped", "not asked"], 60)
    wait(page, lambda: engine.reserved_bytes == 0, 60)
    assert page.execute_script("return document.getElementById('stop').disabled")


@in_a_browser
def test_files_are_read_where_they_are_text(page, tmp_path):
    (tmp_path / "notes.md").write_text(DOCUMENT, encoding="utf-8")
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\xff\x00")
    page.find_element("id", "file").send_keys(str(tmp_path / "notes.md"))
    wait(page, lambda: text(page, "#size") == [f"{len(DOCUMENT)} tokens"], 60)
    page.find_element("id", "file").send_keys(str(tmp_path / "picture.txt"))
    wait(page, lambda: text(page, "#problem") != [""], 60)
    assert text(page, "#problem") == ["picture.txt is not text in UTF-8. Choose a text or Markdown file."]
    dropped = (
        "const data = new DataTransfer(); data.items.add(new File(['It sails.'], 'a.txt'));"
        "document.getElementById('drop').dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}));"
    )
    page.execute_script(dropped)
    wait(page, lambda: text(page, "#size") == ["9 tokens"], 60)


@in_a_browser
def test_by_keyboard_alone(page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys):
        ActionChains(page).send_keys(*keys).perform()
        return page.execute_script("return document.activeElement.id")

    page.execute_script("document.getElementById('key').focus()")
    reached = [press(Keys.TAB) for _ in range(9)]
    assert reached == ["document", "file", "clear", "question", "plan-1", "plan-2", "most", "together", "ask"]
    for name in reached:
        style = "getComputedStyle(document.activeElement)"
        page.execute_script("document.getElementById(arguments[0]).focus({focusVisible: true})", name)
        if name == "file":
            style = "getComputedStyle(document.querySelector('.file .button'))"
        assert page.execute_script(f"return {style}.outlineStyle") == "solid"
        named = (
            "const e = document.activeElement; return (e.labels[0] || e).textContent || e.getAttribute('aria-label')"
        )
        assert page.execute_script(named).strip() or page.switch_to.active_element.get_attribute("aria-label")
    page.execute_script("document.getElementById('document').focus()")
    press(DOCUMENT)
    for _ in range(3):
        press(Keys.TAB)
    press(QUESTION)
    ActionChains(page).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    wait(page, lambda: states(page)[0] in ("reading", "answering") or done(page), 60)
    press(Keys.ESCAPE)
    wait(page, lambda: not page.execute_script("return Boolean(running)"), 60)
    assert states(page)[0] in ("stopped", "done", "done, at its limit")
    regions = page.execute_script("return [...document.querySelectorAll('.answer')].map(each => each.ariaLive)")
    assert regions == ["polite", "polite"]


@in_a_browser
def test_a_phone_needs_no_sideways_scrolling(page):
    look(page, 360, phone=True)
    begin(page, document="x" * 500)
    own_plan(page, 2, "streaming(sink=2, recent=9) + " + "y" * 200)
    wait(page, lambda: done(page), 60)
    widest = (
        "return Math.max(...[...document.querySelectorAll('body *')].filter(e => !e.closest('.file, select, svg'))"
        ".map(e => e.getBoundingClientRect().right))"
    )
    assert page.execute_script("return document.documentElement.scrollWidth") == 360
    assert page.execute_script(widest) <= 360


@in_a_browser
def test_nothing_jumps_while_an_answer_streams(page):
    places = (
        "return [...document.querySelectorAll('article, .answer, dl, dt, .bar')].map(e => {"
        "const r = e.getBoundingClientRect(); return [r.top + scrollY, r.left, r.height].join() })"
    )
    for width in (1200, 360):
        look(page, width, phone=width < 500)
        before, seen = page.execute_script(places), []

        def watch(seen=seen):
            seen.append(page.execute_script(places))
            return done(page)

        begin(page, most="60")
        wait(page, watch, 60)
        assert {moved for each in seen for moved in zip(before, each, strict=True) if moved[0] != moved[1]} == set()


@in_a_browser
def test_a_dark_scheme_and_contrast(page):
    colours = {}
    for dark in (False, True):
        look(page, 1200, phone=False, dark=dark)
        styles = "const s = getComputedStyle(document.documentElement);"
        styles += "return arguments[0].map(name => s.getPropertyValue(name))"
        names = sorted({each for pair in READ_ON for each in pair})
        found = dict(zip(names, page.execute_script(styles, [f"--{name}" for name in names]), strict=True))
        for ink, paper in READ_ON:
            assert contrast(found[ink], found[paper]) >= 4.5, (dark, ink, paper)
        colours[dark] = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert colours == {False: "rgb(246, 245, 241)", True: "rgb(20, 23, 26)"}
    assert picture(page).startswith(b"\x89PNG")


def contrast(one, other):
    """The ratio of WCAG 2.2."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour.strip()[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@in_a_browser
def test_what_is_said_is_text_and_never_markup(page):
    evil = "<img src=x onerror=document.title='run'>"
    own_plan(page, 2, evil)
    begin(page, document=evil, question=evil)
    wait(page, lambda: states(page)[1] == "failed", 60)
    assert page.execute_script("return document.images.length") == 0
    assert page.title == "Winnow"
    assert text(page, "article h2")[1] == evil


@in_a_browser
def test_the_plans_of_a_server_that_takes_no_others(browser, llm):
    with served(llm, "tiny", Settings(allow_plans=(PLAN,))) as (url, _):
        browser.get(url)
        wait(browser, lambda: browser.execute_script("return server.model"), 60)
        shown = text(browser, "#plan-1 option")
        chosen = browser.execute_script("return ['1', '2'].map(chosen)")
    assert shown == chosen == ["full", PLAN]
