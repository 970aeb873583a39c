"""The server's page in a real browser, at the widths and colours that people use. Needs the package
playwright and a Chromium.

    page.py BROWSER URL KEY look              layout at 1280 and 390 pixels, light and dark
    page.py BROWSER URL KEY time PID          the time left at half of a job, against what it takes;
                                              PID is the server; exits with 3 if the time is wrong,
                                              with 4 if the halves cannot be compared
    page.py BROWSER URL KEY text PATTERN...   the text of the page must match each pattern
"""
import contextlib
import glob
import re
import sys
import time

from playwright.sync_api import sync_playwright

SIZES = [(1280, 800), (390, 844)]
WITHIN = 0.25


def fail(text, page=None):
    print(text)
    if page:
        print(page.inner_text("body"))
    sys.exit(1)


def wait_until(page, is_true, limit_s=300):
    """Polls from here: the page's policy forbids a script that evaluates text."""
    end = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > end:
            fail("the page does not get there", page)
        page.wait_for_timeout(100)


def open_page(browser, url, key, size=SIZES[0], scheme="light"):
    context = browser.new_context(viewport=dict(width=size[0], height=size[1]), color_scheme=scheme,
                                  http_credentials=dict(username="operator", password=key))
    page = context.new_page()
    page.on("pageerror", lambda e: fail(f"the page raised {e}"))
    page.on("console", lambda m: fail(f"console: {m.text}") if m.type == "error" else None)
    page.goto(url)
    wait_until(page, lambda: page.locator("#rate").text_content() != "–")
    page.wait_for_timeout(500)
    return page


def luminance(colour):
    parts = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def check_look(page, size, scheme):
    what = f"{size[0]} pixels, {scheme}"
    wide = page.evaluate("document.documentElement.scrollWidth")
    if wide > size[0]:
        fail(f"{what}: the page is {wide} pixels wide")
    chart = page.locator("#chart-tokens").bounding_box()
    if chart["y"] + chart["height"] > size[1]:
        fail(f"{what}: the chart ends at {chart['y'] + chart['height']}, below the fold", page)
    back, text = page.evaluate("(() => { const s = getComputedStyle(document.body);"
                               " return [s.backgroundColor, s.color]; })()")
    if (luminance(back) < 0.2) != (scheme == "dark"):
        fail(f"{what}: the background is {back}")
    light, dark = sorted([luminance(back), luminance(text)], reverse=True)
    if (light + 0.05) / (dark + 0.05) < 7:
        fail(f"{what}: {text} on {back} has too little contrast")
    # One call: the page draws the chart again every two seconds.
    labels = page.locator("#chart-tokens text").evaluate_all(
        "all => all.map(e => { const b = e.getBoundingClientRect();"
        " return [e.textContent, b.x, b.x + b.width]; })")
    if not labels:
        fail(f"{what}: the chart has no axis labels")
    for text, begin, end in labels:
        if begin < 0 or end > size[0]:
            fail(f"{what}: the axis label {text} is cut off")
    if not page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/svg"):
        fail("no favicon")


def look(browser, url, key):
    for size in SIZES:
        for scheme in ["light", "dark"]:
            page = open_page(browser, url, key, size, scheme)
            check_look(page, size, scheme)
            page.context.close()


def seconds(text):
    """The seconds of "about 1 h 20 min left"."""
    found = re.search(r"(?:about|at most) ((?:\d+ (?:s|min|h|d) ?)+)left, done (?:about|by) \d\d:\d\d", text)
    if not found:
        return None
    return sum(int(n) * {"s": 1, "min": 60, "h": 3600, "d": 86400}[unit]
               for n, unit in re.findall(r"(\d+) (s|min|h|d)", found[1]))


def cpu_time(pid):
    """Seconds that the server's threads ran, and seconds that they waited for a CPU."""
    ran = waited = 0
    for task in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError), open(task, encoding="ascii") as f:
            fields = f.read().split()
            ran += int(fields[0]) / 1e9
            waited += int(fields[1]) / 1e9
    return ran, waited


def cpu_share(begin, end):
    """The part of the time for which the server got the CPUs that it could use."""
    ran, waited = end[0] - begin[0], end[1] - begin[1]
    return ran / max(ran + waited, 1e-9)


def time_left(browser, url, key, pid):
    begin = cpu_time(pid)
    page = open_page(browser, url, key)
    bar = "#jobs-live .bar"
    shown = None
    while page.locator(bar).count():
        done = int(page.locator(bar).first.get_attribute("aria-valuenow"))
        left = seconds(page.locator("#jobs-live .left").first.text_content())
        if done >= 50 and left is not None:
            shown, at, half = left, time.monotonic(), cpu_time(pid)
            break
        page.wait_for_timeout(200)
    if shown is None:
        fail("no time was shown at half of the job", page)
    wait_until(page, lambda: page.locator("#jobs-live .job").count() == 0)
    took = time.monotonic() - at
    # Other programs may leave the server more or less of the CPUs in the second half.
    first, second = cpu_share(begin, half), cpu_share(half, cpu_time(pid))
    alike = took * second / first
    print(f"at half of the tokens: {shown} s left; it took {took:.0f} s, with {second:.2f} of the CPUs "
          f"after {first:.2f}: {alike:.0f} s with equal shares")
    if abs(shown - alike) <= WITHIN * alike + 2.5:  # the page polls every 2 s and rounds to seconds
        return
    sys.exit(3 if abs(second - first) <= 0.2 * first else 4)


def check_text(browser, url, key, *patterns):
    page = open_page(browser, url, key)
    text = page.inner_text("body")
    for pattern in patterns:
        if not re.search(pattern, text):
            fail(f"the page has no {pattern}", page)


def main():
    program, url, key, what, *rest = sys.argv[1:]
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=program, args=["--no-sandbox"])
        {"look": look, "time": time_left, "text": check_text}[what](browser, url, key, *rest)
        browser.close()


if __name__ == "__main__":
    main()
