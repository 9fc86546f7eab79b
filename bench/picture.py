"""bench/report.svg: bars of both runtimes, row by row. It stands alone, follows the reader's light
or dark theme, and is checked: no text leaves the picture or lies on another."""

from html import escape

from rows import ROOT_ROWS, ROOTS, ROWS, ours, short, value
from stats import ratio

WIDTH, LEFT, BAR, RIGHT = 800, 290, 340, 20
ROW, HEAD, FOOT, SIZE = 34, 74, 46, 12
THIN, GAP = 15, 30  # a bar of the root file systems; the space above a group of them
GLYPH = 0.62  # of the font's size: an upper bound for the mean width in sans-serif

STYLE = """
text { font: 12px sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #57606a }
.title { font-size: 16px; font-weight: bold } .back { fill: #ffffff } .axis { stroke: #d0d7de }
.lcow { fill: #0969da } .runc { fill: #8c959f } .whisker { stroke: #1f2328; stroke-width: 1.2 }
@media (prefers-color-scheme: dark) {
 text { fill: #e6edf3 } .small { fill: #9198a1 } .back { fill: #0d1117 } .axis { stroke: #3d444d }
 .lcow { fill: #4493f8 } .runc { fill: #656c76 } .whisker { stroke: #e6edf3 } }
"""


class Picture:
    def __init__(self, height):
        self.height, self.parts, self.boxes = height, [], []

    def text(self, x, y, words, css="", size=SIZE, end=False):
        wide = len(words) * size * GLYPH
        left = x - wide if end else x
        self.boxes.append((left, y - 0.8 * size, left + wide, y + 0.25 * size, words))
        anchor = ' text-anchor="end"' if end else ""
        style = f' class="{css}"' if css else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{anchor}{style}>{escape(words)}</text>')

    def bar(self, y, s, scale, css):
        wide = s["median"] * scale
        self.parts.append(f'<rect class="{css}" x="{LEFT}" y="{y:.1f}" width="{max(wide, 1):.1f}" '
                          f'height="11" rx="2"/>')
        if s["n"] > 1:
            a, b = LEFT + s["p10"] * scale, LEFT + s["p90"] * scale
            self.parts.append(f'<path class="whisker" d="M{a:.1f} {y + 5.5:.1f}H{b:.1f}"/>')
        self.text(LEFT + max(wide, s["p90"] * scale if s["n"] > 1 else 0) + 6, y + 10,
                  short(s["median"]), "small", 11)

    def group(self, y, what, unit, bars):
        """Root file systems side by side; where it ends."""
        longest = max(max(s["median"], s["p90"]) for *_, s in bars)
        self.parts.append(f'<path class="axis" d="M20 {y - 4}H{WIDTH - RIGHT}"/>')
        self.text(20, y + 12, f"root file systems: {what}")
        self.text(LEFT, y + 12, f"{unit}, more is better", "small", 11)
        y += GAP - 10
        for peer, name, s in bars:
            self.text(34, y + 10, name, "small", 11)
            self.bar(y, s, BAR / longest if longest > 0 else 0,
                     "runc" if peer.startswith("raw") else "lcow")
            y += THIN
        return y + 10

    def check(self):
        """Every text is inside, and none touches another."""
        troubles = []
        for i, (left, top, right, bottom, words) in enumerate(self.boxes):
            if left < 0 or top < 0 or right > WIDTH or bottom > self.height:
                troubles.append(f"outside: {words}")
            for l2, t2, r2, b2, other in self.boxes[:i]:
                if left < r2 and l2 < right and top < b2 and t2 < bottom:
                    troubles.append(f"{words!r} overlaps {other!r}")
        return troubles

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
                f'width="{WIDTH}" height="{self.height}" role="img">\n<title>lcow and runc, '
                f'measured in one run</title>\n<style>{STYLE}</style>\n'
                f'<rect class="back" width="{WIDTH}" height="{self.height}"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def root_groups(results):
    """[(what, unit, [(peer, its name, summary)])] of all but how long a start takes."""
    found = [(what, unit, [(peer, name, value(results, peer, key)) for peer, name in ROOTS
                           if value(results, peer, key)])
             for key, what, unit in ROOT_ROWS if unit != "ms"]
    return [group for group in found if group[2]]


def draw(result):
    """(svg, list of errors)"""
    results = result["results"]
    shown = [r for r in ROWS if ours(results, r[0])]
    groups = root_groups(results)
    high = sum(GAP + THIN * len(bars) for *_, bars in groups)
    p = Picture(HEAD + ROW * len(shown) + high + FOOT)
    p.text(20, 28, "lcow beside runc, one run on one machine", "title", 16)
    p.parts.append(f'<rect class="runc" x="20" y="41" width="11" height="11" rx="2"/>'
                   f'<rect class="lcow" x="160" y="41" width="11" height="11" rx="2"/>')
    p.text(36, 51, "runc, or no lcow", "small", 11)
    p.text(176, 51, "lcow", "small", 11)
    p.text(LEFT, 51, "medians; line: p10 to p90; ×: lcow / runc; each row has its own scale", "small", 11)
    y = HEAD
    for key, what, unit, less in shown:
        both = [(value(results, "runc", key), "runc"), (ours(results, key), "lcow")]
        longest = max(max(s["median"], s["p90"]) for s, _ in both if s)
        scale = BAR / longest if longest > 0 else 0
        p.parts.append(f'<path class="axis" d="M20 {y - 4}H{WIDTH - RIGHT}"/>')
        p.text(20, y + 12, what)
        p.text(20, y + 26, f"{unit}, {'less' if less else 'more'} is better", "small", 11)
        for n, (s, peer) in enumerate(both):
            if s:
                p.bar(y + 13 * n, s, scale, peer)
        if times := ratio(both[1][0], both[0][0]):
            p.text(WIDTH - RIGHT, y + 17, f"× {short(times[0])}", end=True)
        y += ROW
    for what, unit, bars in groups:
        y = p.group(y, what, unit, bars)
    machine = result["machine"]
    how = "; ctr run and pods by clones" if "lcow clone" in results else ""
    p.text(20, y + 16, f"{machine['cpu'][:50]}, VMs by {machine['accel']}{how}", "small", 11)
    p.text(20, y + 32, f"commit {result['commit'][:12]}, {result['made'][:10]}", "small", 11)
    return p.svg(), p.check()
