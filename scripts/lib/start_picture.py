"""Where the time of a pod's start went: the client's calls, and what containerd and the shim log.

    spans = start_picture.spans(log_text, [("RunPodSandbox", "the pod", began, ended), …])
    print(start_picture.text(spans))
    open(path, "w").write(start_picture.svg(spans))
"""

import calendar
import html
import re
import time

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
LANES = {"client": "#8a8f98", "containerd": "#b07aa1", "shim": "#4e79a7", "guest": "#59a14f",
         "agent": "#f28e2b"}
GUEST_WORK = {"Create": "crun create", "Start": "container start",
              "ExecuteProcess": "run the program"}


class Span:
    def __init__(self, lane, name, begin, end):
        self.lane, self.name, self.begin, self.end = lane, name, begin, end

    @property
    def took(self):
        return self.end - self.begin


def _seconds(text):
    m = re.fullmatch(r"([\d.]+)(ns|us|ms|s)", text)
    return float(m.group(1)) * UNITS[m.group(2)] if m else 0.0


def _lines(log):
    """(time in seconds since 1970, the rest of the line)"""
    for line in log.splitlines():
        if m := re.match(r'time="(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?Z?[^"]*" (.*)', line):
            at = calendar.timegm(time.strptime(m.group(1), "%Y-%m-%dT%H:%M:%S"))
            yield at + float(m.group(2) or 0), m.group(3).replace('\\"', '"')


def _guest_stages(lines):
    """The guest's own clock begins with its kernel: the last line of it tells when that was."""
    found = [(at, name, int(begin), int(end), int(now)) for at, line in lines
             for name, begin, end, now in re.findall(
                 r'text="boot stage" fields="stage="(\w+)" start_ns=(\d+) end_ns=(\d+) '
                 r'boottime_ns=(\d+)', line)]
    if not found:
        return []
    zero = found[-1][0] - found[-1][4] / 1e9
    return [Span("guest", f"guest: {name}", zero + begin / 1e9, zero + end / 1e9)
            for _, name, begin, end, _ in found if name in ("kernel", "init", "agent")]


def _during(calls, at):
    """Whose call was under way then."""
    return next((who for _, who, begin, end in calls if begin - 0.001 <= at <= end + 0.001), "")


def spans(log, calls):
    """Of the calls (method, what it is about, when it began and ended), in the order in which they
    begin, with what was done for them."""
    began, ended = calls[0][2], calls[-1][3]
    lines = [(at, line) for at, line in _lines(log) if began - 0.001 <= at <= ended]
    found = [Span("client", f"{method} {who}", begin, end) for method, who, begin, end in calls]
    for at, line in lines:
        if "msg=serving" in line and "sandbox-id=" in line:
            found.append(Span("containerd", "network, shim starts", began, at))
        elif m := re.search(r'msg="request done" operation=(Create|Start) duration=(\S+)', line):
            found.append(Span("shim", f"shim: {m.group(1)} {_during(calls, at)}",
                              at - _seconds(m.group(2)), at))
        elif m := re.search(r'text="request done" fields="operation="(\w+)" id=\d+ '
                            r'duration="([^"]+)"', line):
            if m.group(1) in GUEST_WORK:
                found.append(Span("agent", GUEST_WORK[m.group(1)], at - _seconds(m.group(2)), at))
        elif m := re.search(r'text="(disk mounted|layers combined)"', line):
            found.append(Span("agent", m.group(1), at, at))
        elif 'msg="vm started"' in line:
            found.append(Span("guest", "the VM is ready", at, at))
    # A clone tells of the boot of its template, long ago.
    found += [s for s in _guest_stages(lines) if s.begin >= began]
    return sorted(found, key=lambda s: (s.begin, -s.end))


def text(found, columns=80):
    zero, last = min(s.begin for s in found), max(s.end for s in found)
    width = columns - 44
    scale = width / max(last - zero, 1e-9)
    rows = [f"{'':25}{'at ms':>8}{'took ms':>9}  0{(last - zero) * 1000:>{width - 1}.0f}"]
    for s in found:
        begin = min(int((s.begin - zero) * scale), width - 1)
        size = max(1, min(round(s.took * scale), width - begin))
        mark = "|" if s.took == 0 else "█" * size
        took = f"{s.took * 1000:.1f}" if s.took else "-"
        rows.append(f"{s.name:25.25}{(s.begin - zero) * 1000:8.1f}{took:>9}  {' ' * begin}{mark}")
    return "\n".join(rows)


def svg(found):
    zero, last = min(s.begin for s in found), max(s.end for s in found)
    left, width, row = 190, 760, 22
    height = row * len(found) + 60
    scale = width / max(last - zero, 1e-9)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" '
           f'height="{height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>']
    for i in range(11):
        x = left + width * i / 10
        out.append(f'<line x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{height - 20}" stroke="#e3e3e3"/>'
                   f'<text x="{x:.1f}" y="16" text-anchor="middle" fill="#777">'
                   f'{(last - zero) * 100 * i:.0f} ms</text>')
    for i, s in enumerate(found):
        x, y = left + (s.begin - zero) * scale, 30 + i * row
        size = max(2, s.took * scale)
        out.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{html.escape(s.name)}</text>'
                   f'<rect x="{x:.1f}" y="{y}" width="{size:.1f}" height="{row - 6}" rx="2" '
                   f'fill="{LANES[s.lane]}"/>'
                   f'<text x="{x + size + 5:.1f}" y="{y + 13}" fill="#555">'
                   f'{s.took * 1000:.1f} ms</text>')
    return "\n".join(out) + "\n</svg>\n"
