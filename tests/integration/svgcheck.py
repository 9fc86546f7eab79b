#!/usr/bin/python3 -B
"""Is a picture that lcow drew good? By program, for both themes:

    svgcheck.troubles(svg_text)    # sentences; none: no text leaves the picture, lies on another or
                                   # on a bar that is not its own; everything stands out enough
    svgcheck.dark(svg_text)        # as a reader with a dark theme sees it

    tests/integration/svgcheck.py FILE.svg [DIRECTORY]

prints them and, with a directory, renders both themes there as PNG (librsvg2-bin).

Widths are bounds: no monospaced font in use is wider than 0.63 of its size. Only what our pictures
are made of is known: rect, path, text, and a style sheet of classes with one block for dark readers.
"""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml

SPACE = "{http://www.w3.org/2000/svg}"
DARK = re.compile(r"@media \(prefers-color-scheme: ?dark\)\s*\{((?:[^{}]*\{[^{}]*\})*)\s*\}")
WIDTH, ASCENT, DESCENT = 0.63, 0.80, 0.22  # of the font's size
SIZE = 11.0
TEXT_CONTRAST, BAR_CONTRAST = 4.5, 3.0     # WCAG 2, AA: text; graphics


def dark(svg):
    return DARK.sub(r"\1", svg)


def rules(css):
    """[(element or "", class or "", {property: value})], in their order."""
    found = []
    for names, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css):
        values = dict(re.findall(r"([\w-]+)\s*:\s*([^;]+)", body))
        for name in names.split(","):
            element, _, kind = name.strip().partition(".")
            found.append((element, kind, values))
    return found


class Picture:
    def __init__(self, svg):
        root = xml.fromstring(svg)
        self.width, self.height = (float(v) for v in root.attrib["viewBox"].split()[2:])
        self.rules = rules(root.findtext(SPACE + "style"))
        self.boxes, self.texts = [], []  # (left, top, right, bottom, class, words), in drawing order
        for e in root.iter():
            kind = e.attrib.get("class", "")
            if e.tag == SPACE + "rect":
                x, y, w, h = (float(e.attrib.get(k, 0)) for k in ("x", "y", "width", "height"))
                self.boxes.append((x, y, x + w, y + h, kind, ""))
            elif e.tag == SPACE + "text":
                x, y = float(e.attrib["x"]), float(e.attrib["y"])
                self.texts.append((x, y - ASCENT * SIZE, x + WIDTH * SIZE * len(e.text or ""),
                                   y + DESCENT * SIZE, kind, e.text or ""))

    def fill(self, element, kind):
        """The last rule with a class wins over those without, as in a browser."""
        plain = [v["fill"] for e, k, v in self.rules if e == element and not k and "fill" in v]
        own = [v["fill"] for e, k, v in self.rules if k == kind and kind and e in ("", element) and
               "fill" in v]
        return (own or plain or [None])[-1]

    def bars(self):
        return [b for b in self.boxes if b[4] not in ("bg", "even", "odd")]

    def below(self, box):
        """The colour on which a box lies: of the last rect that holds it."""
        holders = [b for b in self.boxes if b is not box and contains(b, box)]
        return self.fill("rect", holders[-1][4]) if holders else None


def contains(a, b):
    return a[0] <= b[0] + 0.1 and a[1] <= b[1] + 0.1 and a[2] >= b[2] - 0.1 and a[3] >= b[3] - 0.1


def cross(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def luminance(colour):
    digits = colour.lstrip("#")
    if len(digits) == 3:
        digits = "".join(c * 2 for c in digits)
    parts = [int(digits[i:i + 2], 16) / 255 for i in (0, 2, 4)]
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a, b):
    light, less = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (less + 0.05)


def misplaced(p):
    whole = (0, 0, p.width, p.height)
    for i, t in enumerate(p.texts):
        if not contains(whole, t):
            yield f"outside: {t[5]}"
        yield from (f"{t[5]!r} lies on {o[5]!r}" for o in p.texts[:i] if cross(t, o))
        for b in p.bars():
            if cross(t, b) and not (t[4] == "in" and contains(b, (t[0], b[1], t[2], b[3]))):
                yield f"{t[5]!r} lies on a bar of {b[4]}"
    yield from (f"a rect of {b[4]} leaves the picture" for b in p.boxes if not contains(whole, b))


def faint(p, theme):
    for t in p.texts:
        middle = (t[0] + t[2]) / 2, (t[1] + t[3]) / 2
        behind, fill = p.below((*middle, *middle)), p.fill("text", t[4])
        if not behind or not fill or contrast(behind, fill) < TEXT_CONTRAST:
            yield f"{theme}: {t[5]!r} in {fill} on {behind}"
    seen = {(b[4], p.fill("rect", b[4]), p.below(b)) for b in p.bars()}
    for kind, fill, behind in sorted(seen, key=str):
        if not fill or not behind or contrast(fill, behind) < BAR_CONTRAST:
            yield f"{theme}: {kind} in {fill} on {behind}"


def troubles(svg):
    found = []
    if not DARK.search(svg):
        found.append("it does not know dark readers")
    if re.search(r"https?://|url\(|@import|<script|<image", svg.replace(SPACE[1:-1], "")):
        found.append("it does not stand alone")
    light = Picture(DARK.sub("", svg))
    if len(light.texts) < 8:
        found.append("it has hardly a label")
    return [*found, *misplaced(light), *faint(light, "light"), *faint(Picture(dark(svg)), "dark")]


def render(svg, directory, name):
    if not shutil.which("rsvg-convert"):
        sys.exit("no rsvg-convert here: apt install librsvg2-bin")
    for theme, text in (("light", svg), ("dark", dark(svg))):
        out = os.path.join(directory, f"{name}.{theme}.png")
        subprocess.run(["rsvg-convert", "-z", "1.4", "-o", out], input=text, text=True, check=True)
        print(out)


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        svg = f.read()
    found = troubles(svg)
    print("\n".join(found or ["nothing is wrong with it"]), flush=True)
    if len(sys.argv) > 2:
        render(svg, sys.argv[2], os.path.basename(sys.argv[1]).removesuffix(".svg"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
