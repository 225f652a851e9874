"""Pages in a real browser: nothing fetched, nothing complained of, everything drawn, on a desk, on a phone and on paper.

Needs Chromium, for example Debian's `chromium`. Without one these are skipped, except where PERFGATE_BROWSER=required.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.history.store import Store
from tests.fakes import folders
from tests.fakes.history import draw_levels, make_entry
from tests.fakes.recorded import BESIDE, EQUAL, ROUTED, SLOWER, SPINNING, UNDECIDED

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Families of readers' machines, by their files, from wide to narrow: a page must fit with each of them. The default is whatever
# this machine chooses by itself.
FONTS = {
    "default": "",
    "dejavu": "DejaVuSans*.ttf",
    "liberation": "LiberationSans-*.ttf",
    "freefont": "FreeSans*.*tf",
    "noto": "NotoSans-*.ttf",
}
FONT_FOLDERS = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"))
FONT_CONFIG = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><dir>{folder}</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESK, PHONE = {"width": 1180, "height": 900}, {"width": 390, "height": 844}
MAKERS = {
    "profiled": folders.write_profiled,
    "faster": folders.write_faster,
    "failed": folders.write_failed,
    "hostile": folders.write_hostile,
    "matrix": folders.write_matrix,
    "timings": folders.write_timings,
}
# What an H200 measured: outcomes that the made ones lack, one with a window that was measured again, and a recorded profile.
MEASURED = {
    "passed": EQUAL,
    "undecided": UNDECIDED,
    "recorded": SPINNING,
}
PAGES = (*MAKERS, *MEASURED, "history")

# What is drawn: signs with an area inside the picture that is shown, and letters that neither its edge nor others cut off.
LOOK = """() => [...document.querySelectorAll('figure')].map(figure => {
  const shown = [...figure.querySelectorAll('svg.plot')].filter(plot => plot.getBoundingClientRect().width > 0);
  const field = shown[0].getBoundingClientRect();
  const holds = box => box.left >= field.left - 1 && box.right <= field.right + 1
    && box.top >= field.top - 1 && box.bottom <= field.bottom + 1;
  const boxes = selector => [...shown[0].querySelectorAll(selector)].map(one => [one.textContent, one.getBoundingClientRect()]);
  return {
    name: figure.id,
    pictures: shown.length,
    marks: boxes('.mark').filter(([, box]) => box.width > 1 && box.height > 1 && holds(box)).length,
    smallest: Math.min(...[...shown[0].querySelectorAll('text')].map(one =>
      parseFloat(getComputedStyle(one).fontSize) * field.width / shown[0].viewBox.baseVal.width)),
    cut: boxes('text').filter(([, box]) => !holds(box)).map(([text]) => text),
    over: boxes('text').flatMap(([text, box], place, all) => all.slice(place + 1).filter(([, other]) =>
      Math.min(box.right, other.right) - Math.max(box.left, other.left) > 1
        && Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > 3).map(([other]) => `${text} | ${other}`)),
  };
})"""
# By how many pixels the page, or a table of metrics in its card, is wider than its room.
OVERHANG = """() => Math.max(
  document.documentElement.scrollWidth - innerWidth,
  ...[...document.querySelectorAll('.measures table')].map(
    table => Math.ceil(table.getBoundingClientRect().right - table.closest('section').getBoundingClientRect().right)), 0)"""
# What the keyboard must come to, and where it is: what is focused, and which of the former it is.
REACHABLE = 'a[href], summary, button, [tabindex="0"]'
FOCUSED = f"""() => {{
  const one = document.activeElement;
  return [one.tagName, [...document.querySelectorAll('{REACHABLE}')].indexOf(one)];
}}"""
# The contrast of every colour that letters have with what they stand on (WCAG 2, relative luminance).
CONTRAST = """() => {
  const parse = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = rgb => {
    const [r, g, b] = rgb.map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(parse(getComputedStyle(document.querySelector('header')).backgroundColor));
  const found = {};
  const letters = 'h1 span, p, li, dt, dd, th, td, a, summary, svg text, .outcome, .tile-outcome, .caption';
  for (const one of document.querySelectorAll(letters)) {
    const style = getComputedStyle(one);
    const colour = one.tagName === 'text' ? style.fill : style.color;
    const ink = light(parse(colour));
    found[colour] = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def launch():
    """What starts a browser with an environment, or the reason why there is none."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        reason = f"none of {', '.join(NAMES)} is installed; apt-get install chromium"
        if os.environ.get("PERFGATE_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[test]'")
    with api.sync_playwright() as playwright:
        yield lambda env: playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS), env={**os.environ, **env})


@pytest.fixture(scope="module")
def chromium(launch):
    """A browser with the fonts of this machine."""
    with closing(launch({})) as browser:
        yield browser


@pytest.fixture(scope="module", params=FONTS)
def reader(request, launch, tmp_path_factory):
    """A browser that has one family of fonts alone."""
    env = restrict_fonts(FONTS[request.param], tmp_path_factory.mktemp("fonts")) if FONTS[request.param] else {}
    with closing(launch(env)) as browser:
        yield browser


def restrict_fonts(pattern, folder):
    """An environment in which fontconfig knows the files of one family and no other."""
    files = [file for home in FONT_FOLDERS for file in home.rglob(pattern)]
    if not files:
        pytest.skip(f"no {pattern} below {' or '.join(map(str, FONT_FOLDERS))}: the package of that family is not installed")
    for file in files:
        (folder / file.name).symlink_to(file)
    (folder / "fonts.conf").write_text(FONT_CONFIG.format(folder=folder))
    return {"FONTCONFIG_FILE": str(folder / "fonts.conf")}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of each folder."""
    home = tmp_path_factory.mktemp("pages")
    made = {name: make(home / name) for name, make in MAKERS.items()}
    for name, folder in {**made, **MEASURED}.items():
        assert main(["report", str(folder), "--html", str(home / f"{name}.html")]) == 0
    write_history(home)
    return home


def write_history(home):
    """The page of a history: two runners, a change of level, and the sessions that an H200 measured."""
    store = str(home / "store")
    values = enumerate(draw_levels([1000, 950]))
    Store(store).append([make_entry(day, value, told={"runner": f"h20-{day % 2}"}) for day, value in values])
    measured = [str(folder) for folder in (EQUAL, BESIDE, ROUTED / "mxfp4-mixed-c16-graphs-aa-3", SLOWER)]
    assert main(["history", "append", *measured, "--store", store]) == 0
    assert main(["history", "show", "--store", store, "--html", str(home / "history.html")]) == 0


@pytest.fixture
def visit(chromium, pages):
    """Open a page with this machine's fonts."""
    with open_visits(chromium, pages) as visit:
        yield visit


@pytest.fixture
def read(reader, pages):
    """Open a page with one family of fonts."""
    with open_visits(reader, pages) as visit:
        yield visit


@contextmanager
def open_visits(browser, pages):
    """Open pages; in the end, nothing but the page itself may have been asked for, and nothing complained of."""
    heard, asked, contexts = [], [], []

    def visit(name, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: heard.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((pages / f"{name}.html").as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()
    assert heard == []
    assert {url.rpartition("/")[2] for url in asked if not url.startswith("data:")} <= {f"{name}.html" for name in PAGES}


def require_drawn(page, size):
    figures = page.evaluate(LOOK)

    assert figures
    assert [
        figure for figure in figures if figure["pictures"] != 1 or figure["marks"] < 2 or figure["cut"] or figure["over"]
    ] == []
    assert min(figure["smallest"] for figure in figures) > 10
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("name", PAGES)
def test_page__everything_is_drawn_and_fits(read, name):
    """At a desk and on a phone, and there with every fold open as well."""
    page = read(name, viewport=DESK)
    require_drawn(page, DESK)
    page.set_viewport_size(PHONE)
    page.reload()
    require_drawn(page, PHONE)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")

    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize(("name", "words"), [("passed", "PASS"), ("undecided", "INCONCLUSIVE"), ("passed", "a re-run")])
def test_page__says_what_was_measured(pages, name, words):
    assert words in (pages / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_page__never_scrolls_sideways_and_no_table_leaves_its_card(visit, name):
    """From the smallest phone to a wide screen, in one page: half of a laptop's screen and a tablet are among them."""
    page = visit(name, viewport=DESK)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    found, letters = {}, {}
    for width in (360, 390, 768, 1024, 1440, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        found[width] = page.evaluate(OVERHANG)
        letters[width] = min(figure["smallest"] for figure in page.evaluate(LOOK))

    assert found == dict.fromkeys(found, 0)
    assert min(letters.values()) > 10, letters


@pytest.mark.parametrize("name", ["profiled", "matrix"])
def test_page__letters_of_a_figure_are_no_larger_than_its_heading(visit, name):
    """On a tablet, where a figure for phones has more room than it was drawn for."""
    page = visit(name, viewport={"width": 768, "height": 900})

    largest = page.evaluate("""() => Math.max(...[...document.querySelectorAll('svg.plot.narrow text')].map(one =>
      parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getBoundingClientRect().width
        / one.ownerSVGElement.viewBox.baseVal.width))""")

    assert 12 < largest < 18


@pytest.mark.parametrize("name", ["profiled", "passed"])
def test_page__buttons_copy_a_command_and_hide_what_does_not_gate(visit, name):
    page = visit(name, viewport=DESK)
    copy, hide = page.locator(".command button").first, page.locator(".measures button").first
    command = page.locator(".command code").first.text_content()

    copy.click()
    hide.click()

    assert page.evaluate("getSelection().toString()") == command
    assert page.locator("tr.shown-only:visible").count() == 0
    hide.click()
    assert page.locator("tr.shown-only:visible").count() > 0


@pytest.mark.parametrize("name", ["profiled", "matrix", "history"])
def test_page__a_crosshair_reads_the_sign_that_is_nearest(visit, name):
    page = visit(name, viewport=DESK)
    plot = page.locator("figure svg.plot:visible").last
    sign = plot.locator(".mark:has(title)").first
    plot.scroll_into_view_if_needed()
    sign.hover(force=True)

    assert plot.locator(".crosshair").count() == 2
    assert page.locator("figure .readout").last.text_content() == sign.locator("title").text_content()
    page.mouse.move(0, 0)
    assert page.locator(".crosshair").count() == 0


@pytest.mark.parametrize("name", ["profiled", "matrix"])
def test_page__a_legend_hides_what_it_names(visit, name):
    page = visit(name, viewport=DESK)
    key = page.locator(".keys [data-hides]").first
    shapes = key.locator("xpath=ancestor::figure").locator(f"svg.plot.wide .{key.get_attribute('data-hides')}")
    before = shapes.locator("visible=true").count()

    key.locator("button").click()
    assert (before > 0, shapes.locator("visible=true").count()) == (True, 0)
    key.locator("button").click()
    assert shapes.locator("visible=true").count() == before


# Panels of the timeline that show, each with its distance from the top of the figure, and the height of that.
PANELS = """() => {
  const plot = document.querySelector('#timeline svg.plot.wide');
  const field = plot.getBoundingClientRect();
  const shown = [...plot.querySelectorAll('.panel')].filter(panel => panel.getBoundingClientRect().height > 0);
  return [shown.map(panel => [panel.dataset.name, Math.round(panel.getBoundingClientRect().top - field.top)]), field.height];
}"""


def test_page__a_panel_of_the_timeline_is_hidden_and_what_is_below_moves_up(visit):
    page = visit("profiled", viewport=DESK)
    before, high = page.evaluate(PANELS)
    first = before[0][0]

    page.locator("#timeline .toggles button").first.click()
    after, low = page.evaluate(PANELS)

    assert [name for name, _ in after] == [name for name, _ in before[1:]]
    assert abs(after[0][1] - before[0][1]) < 20 < high - low
    assert before[-1][0] == after[-1][0] == ""
    sign = page.locator("#timeline svg.plot.wide .panel:not(.off) .mark:has(title)").first
    sign.hover(force=True)
    assert page.locator("#timeline .readout").text_content() == sign.locator("title").text_content()
    page.get_by_role("button", name=first, exact=True).click()
    assert page.evaluate(PANELS) == [before, high]


@pytest.mark.parametrize(("name", "column"), [("matrix", 3), ("history", 3)])
def test_page__a_table_is_sorted_by_the_column_that_is_pressed(visit, name, column):
    page = visit(name, viewport=DESK)
    table = page.locator("table.sortable").last if name == "matrix" else page.locator("table.sortable").first
    title = table.locator("thead th").nth(column)

    def read():
        found = [row.locator("td, th").nth(column).text_content() for row in table.locator("tbody tr").all()]
        return [float(text.split()[0].replace(",", "")) for text in found if text[0].isdigit()]

    title.locator("button").click()
    assert (title.get_attribute("aria-sort"), read()) == ("ascending", sorted(read()))
    title.locator("button").click()
    assert (title.get_attribute("aria-sort"), read()) == ("descending", sorted(read(), reverse=True))
    assert len(set(read())) > 1


def test_page__each_row_of_a_history_leads_to_its_chart_and_what_moved_stands_first(visit):
    page = visit("history", viewport=DESK)
    rows = page.locator("table.sortable").first.locator("tbody tr").all()

    found = [page.locator(row.locator("a").get_attribute("href")).get_attribute("data-metric") for row in rows]

    assert found == [row.locator("a").text_content() for row in rows]
    over = ["OVER THE LIMIT" in row.text_content() for row in rows]
    assert over == sorted(over, reverse=True)
    assert True in over


@pytest.mark.parametrize("name", ["profiled", "matrix", "history"])
@pytest.mark.parametrize("width", [390, 768])
def test_page__no_table_is_wider_than_a_phone_or_a_tablet(visit, name, width):
    page = visit(name, viewport={"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")

    wider = page.evaluate("""[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)
      .map(one => one.textContent.trim().slice(0, 60))""")

    assert page.locator(".scroll").count() > 0
    assert wider == []


def test_page__a_phone_shows_how_far_a_metric_of_a_history_is_from_its_anchor(visit):
    page = visit("history", viewport=PHONE)
    over = page.locator("table.sortable td", has_text="OVER THE LIMIT").first

    end = over.evaluate("""cell => { const range = document.createRange(); const text = cell.firstChild;
      range.setStart(text, 0); range.setEnd(text, text.data.indexOf(' ('));
      return range.getBoundingClientRect().right; }""")

    assert end <= PHONE["width"]


def test_page__a_desk_shows_every_column_of_a_history(visit):
    page = visit("history", viewport={"width": 1440, "height": 900})
    overview = page.locator(".scroll").first

    assert overview.locator("th").last.text_content() == "hardware"
    assert overview.evaluate("one => one.scrollWidth - one.clientWidth") == 0


@pytest.mark.parametrize("width", [390, 768])
def test_page__a_sign_in_the_legend_of_a_history_stands_beside_its_name(visit, width):
    page = visit("history", viewport={"width": width, "height": 900})

    heights = [one.bounding_box()["height"] for one in page.locator(".legend li").all()]

    assert len(heights) > 5
    assert max(heights) < 2 * min(heights)


def test_page__charts_of_a_metric_are_hidden_by_its_name(visit):
    page = visit("history", viewport=DESK)
    charts = page.locator('figure[data-metric="P99 ITL"]')
    before = page.locator("figure:visible").count()

    page.get_by_role("button", name="P99 ITL", exact=True).first.click()

    assert page.locator("figure:visible").count() == before - charts.count() < before


@pytest.mark.parametrize("name", ["profiled", "matrix", "history"])
def test_page__is_whole_without_its_script(visit, name):
    page = visit(name, viewport=DESK, java_script_enabled=False)

    assert page.locator("button").count() == 0
    assert page.locator("figure:visible").count() == page.locator("figure").count()
    if name != "profiled":
        return
    assert page.locator("tr.shown-only:visible").count() > 0
    assert page.locator(".command code").count() > 3


@pytest.mark.parametrize("name", PAGES)
def test_page__the_keyboard_reaches_all_and_opens_every_fold(visit, name):
    page = visit(name, viewport=DESK)
    reached = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        tag, place = page.evaluate(FOCUSED)
        if tag == "SUMMARY" and place not in reached:
            page.keyboard.press("Enter")
        if tag == "BODY":
            break
        reached.add(place)

    assert len(reached) == page.evaluate(f"[...document.querySelectorAll('{REACHABLE}')].length") > 0
    assert page.evaluate("[...document.querySelectorAll('details')].every(fold => fold.open)")


@pytest.mark.parametrize("name", ["profiled", "faster", "failed", "matrix", "history"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page__letters_stand_out(visit, name, scheme):
    page = visit(name, viewport=DESK, color_scheme=scheme)
    paper = page.evaluate("getComputedStyle(document.querySelector('header')).backgroundColor")

    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert {colour: contrast for colour, contrast in page.evaluate(CONTRAST).items() if contrast < 4.5} == {}


@pytest.mark.parametrize("name", PAGES)
def test_page__paper_shows_what_is_folded(visit, name):
    page = visit(name, viewport=DESK, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    shown = page.evaluate("[...document.querySelectorAll('.inside')].map(one => one.checkVisibility())")

    assert len(shown) == page.locator("details").count()
    assert all(shown)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf(format="A4")) > 20_000
