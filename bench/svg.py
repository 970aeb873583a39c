"""svg.py - line and bar charts as SVG text, with the standard library alone. Used by the scripts
beside it. Text and axes take the page's own colour, so that a chart reads on light and dark."""
import html

COLOURS = ["#3b76c4", "#d9822b", "#3f9a5c", "#b4527c", "#7a6bc2", "#8a8a3a"]
LEFT, WIDTH, GAP = 70, 760, 34


def nice_steps(top, n=4):
    """About n round numbers up to top."""
    if top <= 0:
        return [0, 1]
    step = 10 ** len(str(int(top / n))) / 10 if top >= n else 1
    while top < n and step > top / n:
        step /= 10
    for factor in (1, 2, 5, 10):
        if top / (step * factor) <= n + 1:
            step *= factor
            break
    return [i * step for i in range(int(top / step) + 1)]


def number(x):
    return f"{x:,.0f}" if x == int(x) else f"{x:g}"


class Page:
    def __init__(self):
        self.parts, self.y = [], 10

    def text(self, x, y, s, anchor="start", size=12, fill="currentColor"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" '
                          f'text-anchor="{anchor}">{html.escape(str(s))}</text>')

    def line(self, x1, y1, x2, y2, opacity=0.25):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="currentColor" stroke-opacity="{opacity}"/>')

    def legend(self, names):
        x = LEFT
        for i, name in enumerate(names):
            self.parts.append(f'<rect x="{x}" y="{self.y}" width="12" height="12" '
                              f'fill="{COLOURS[i % len(COLOURS)]}"/>')
            self.text(x + 17, self.y + 10.5, name)
            x += 32 + 7.2 * len(name)
        self.y += 24

    def write(self, path):
        body = "\n".join(self.parts)
        with open(path, "w", encoding="utf-8") as f:
            f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} '
                    f'{self.y:.0f}" font-family="system-ui, sans-serif" color="#888">\n'
                    f"{body}\n</svg>\n")


def axes(page, title, top, height):
    page.text(LEFT, page.y + 12, title, size=13)
    page.y += 20
    for v in nice_steps(top):
        y = page.y + height * (1 - v / top)
        page.line(LEFT, y, LEFT + WIDTH, y)
        page.text(LEFT - 6, y + 4, number(v), "end", 11)


def line_panel(page, title, x_title, series, height=150, right=None):
    """series: {name: [(x, y)...]}, in the order of the legend."""
    right = right or max((x for s in series.values() for x, _ in s), default=1) or 1
    top = 1.05 * max((y for s in series.values() for _, y in s), default=1) or 1
    axes(page, title, top, height)
    for i, points in enumerate(series.values()):
        path = " ".join(f"{LEFT + WIDTH * x / right:.1f},{page.y + height * (1 - y / top):.1f}"
                        for x, y in points)
        page.parts.append(f'<polyline points="{path}" fill="none" stroke-width="1.5" '
                          f'stroke="{COLOURS[i % len(COLOURS)]}"/>')
    for v in nice_steps(right, 8):
        page.text(LEFT + WIDTH * v / right, page.y + height + 15, number(v), "middle", 11)
    page.text(LEFT + WIDTH, page.y + height + 29, x_title, "end", 11)
    page.y += height + GAP + 10


def bar_panel(page, title, groups, height=170):
    """groups: {group: {name: value}}; every group with the same names, None where not measured."""
    top = 1.1 * max((v for g in groups.values() for v in g.values() if v), default=1)
    axes(page, title, top, height)
    room = WIDTH / max(len(groups), 1)
    for g, (group, bars) in enumerate(groups.items()):
        width = 0.8 * room / max(len(bars), 1)
        for i, value in enumerate(bars.values()):
            if value is None:
                continue
            x = LEFT + g * room + 0.1 * room + i * width
            h = height * value / top
            page.parts.append(f'<rect x="{x:.1f}" y="{page.y + height - h:.1f}" '
                              f'width="{width * 0.92:.1f}" height="{h:.1f}" '
                              f'fill="{COLOURS[i % len(COLOURS)]}"/>')
            page.text(x + width * 0.46, page.y + height - h - 3, f"{value:,.0f}", "middle", 9)
        page.text(LEFT + (g + 0.5) * room, page.y + height + 16, group, "middle")
    page.y += height + GAP
