"""Lists the contents of an SVG file that bench/plot.py wrote, for tests/plot_check.sh:

    python3 tests/plot_series.py FILE.svg            prints lines "series ID POINTS X,Y X,Y..." and
                                                     "text TEXT"
    python3 tests/plot_series.py FILE.svg OTHER.svg  exits with 0 when both show the same

A point is a marker or a vertex of a line or bar, in user units; x to the right, y up.
"""
import re
import sys
import xml.etree.ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def points_of(group):
    markers = [(float(u.get("x")), float(u.get("y"))) for u in group.iter(f"{SVG}use")]
    if markers:
        return markers
    [path] = group.findall(f"{SVG}path")
    numbers = [float(n) for n in re.findall(r"-?[0-9.]+(?:e-?[0-9]+)?", path.get("d"))]
    return list(zip(numbers[::2], numbers[1::2]))


def read(path):
    """Returns (texts, {id: points})."""
    root = ET.parse(path).getroot()
    if root.tag != f"{SVG}svg" or not root.get("viewBox"):
        sys.exit(f"{path}: expected an <svg> with a viewBox, got <{root.tag}>")
    texts = ["".join(t.itertext()).strip() for t in root.iter(f"{SVG}text")]
    series = {}
    for group in root.iter(f"{SVG}g"):
        name = group.get("id") or ""
        if name.startswith("series-"):
            if name in series:
                sys.exit(f"{path}: two groups have the id {name}")
            series[name] = [(x, -y) for x, y in points_of(group)]
    return texts, series


def same(a, b):
    """True when texts and ids are equal and no point differs by more than 0.1 units."""
    if a[0] != b[0] or a[1].keys() != b[1].keys():
        return False
    pairs = [(a[1][name], b[1][name]) for name in a[1]]
    return all(len(p) == len(q) and all(abs(u - v) <= 0.1 for at, to in zip(p, q)
                                        for u, v in zip(at, to)) for p, q in pairs)


def main():
    if len(sys.argv) == 3:
        if not same(read(sys.argv[1]), read(sys.argv[2])):
            sys.exit(f"{sys.argv[1]} and {sys.argv[2]} show different things")
        return
    texts, series = read(sys.argv[1])
    for name, points in series.items():
        print("series", name, len(points), *(f"{x:.3f},{y:.3f}" for x, y in points))
    for text in texts:
        print("text", text)


if __name__ == "__main__":
    main()
