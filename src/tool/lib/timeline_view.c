#include "tool/lib/timeline_view.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vmm/vmm.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WIDTH 1000.0
#define MARGIN 14.0
#define LEFT 96.0 /* where the axis begins */
#define RIGHT (WIDTH - 30.0)
#define ROW 18.0
#define BAR 13.0
#define GAP 5.0 /* between a bar and its label, and between neighbours */

uint64_t view_end(const struct view *v)
{
    uint64_t end = v->origin + 1000;

    for (unsigned i = 0; i < v->t->n; i++) {
        const struct timeline_span *s = &v->t->spans[i];

        if (s->start > end)
            end = s->start;
        if (s->end > end)
            end = s->end;
    }
    return end;
}

bool view_is_stage(const struct timeline_span *s)
{
    for (unsigned i = VM_STAGE_NONE + 1; i < VM_STAGE_COUNT; i++)
        if (s->track == TRACK_HOST && s->start == s->end && str_eq(s->name, vm_stage_name(i)))
            return true;
    return false;
}

double view_ms(const struct view *v, uint64_t at)
{
    return at <= v->origin ? 0 : (double)(at - v->origin) / 1e6;
}

static bool is_moment(const struct timeline_span *s)
{
    return s->end != 0 && s->end <= s->start;
}

static double to_x(const struct view *v, uint64_t at, uint64_t end)
{
    return LEFT + (RIGHT - LEFT) * view_ms(v, at) / view_ms(v, end);
}

static double text_width(const char *s)
{
    size_t n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80; /* counts characters, not bytes */
    return (double)n * VIEW_CHAR_PX;
}

static struct view_item *add(struct view_layout *l, enum view_kind kind, double x, double y,
                             double w, double h, const char *css)
{
    l->items = mem_grow(l->items, l->n, &l->cap, sizeof(*l->items));
    l->items[l->n] = (struct view_item){ kind, x, y, w, h, css, "" };
    return &l->items[l->n++];
}

static void add_text(struct view_layout *l, double x, double y, const char *css, const char *text)
{
    struct view_item *i = add(l, VIEW_TEXT, x, y, 0, BAR, css);

    snprintf(i->text, sizeof(i->text), "%s", text);
    i->w = text_width(i->text);
}

static void view_name(const struct timeline_span *s, char ret[TIMELINE_NAME])
{
    size_t n = 0;

    for (; s->name[n] && n < TIMELINE_NAME - 1; n++)
        ret[n] = s->name[n] >= ' ' && s->name[n] < 0x7f ? s->name[n] : '?';
    ret[n] = '\0';
}

/* "name 12.3 ms"; how: "at " before the time, or "". */
static void put_label(const struct timeline_span *s, const char *how, double ms,
                      char ret[VIEW_TEXT_MAX])
{
    int digits = ms < 10 ? 2 : ms < 100 ? 1 : 0;
    char name[TIMELINE_NAME];

    view_name(s, name);
    if (s->end == 0)
        snprintf(ret, VIEW_TEXT_MAX, "%s (not ended)", name);
    else
        snprintf(ret, VIEW_TEXT_MAX, "%s %s%.*f ms", name, how, digits, ms);
}

/* ---- lanes: each item goes to the first row where it and its label have room */

struct taken {
    double from, to;
    unsigned row;
};
struct lane {
    double top;
    unsigned rows;
    struct taken taken[TIMELINE_SPANS + 16];
    size_t n;
};

static unsigned find_row(struct lane *lane, double from, double to)
{
    for (unsigned row = 0;; row++) {
        bool is_free = true;

        for (size_t i = 0; i < lane->n && is_free; i++) {
            const struct taken *p = &lane->taken[i];

            is_free = p->row != row || to + GAP <= p->from || from >= p->to + GAP;
        }
        if (!is_free)
            continue;
        lane->taken[lane->n++] = (struct taken){ from, to, row };
        if (row >= lane->rows)
            lane->rows = row + 1;
        return row;
    }
}

/* The label goes into the bar, else to its right, else to its left: one of them has room, since
 * labels are shorter than a third of the axis. */
static void arrange(struct view_layout *l, struct lane *lane, enum view_kind kind, double x0,
                    double x1, const char *css, const char *label)
{
    double tw = text_width(label), from = x0, to = x1, tx;
    bool inside = kind == VIEW_BAR && x1 - x0 >= tw + 2 * GAP;

    if (inside) {
        tx = x0 + GAP;
    } else if (x1 + GAP + tw <= RIGHT) {
        tx = x1 + GAP;
        to = tx + tw;
    } else {
        tx = x0 - GAP - tw;
        from = tx;
    }
    double y = lane->top + ROW * find_row(lane, from, to) + (ROW - BAR) / 2;

    if (kind != VIEW_LINE)
        add(l, kind, x0, y, x1 - x0, BAR, css);
    add_text(l, tx, y, inside ? "in" : NULL, label);
}

static void arrange_span(const struct view *v, struct view_layout *l, struct lane *lane,
                         const struct timeline_span *s, uint64_t end)
{
    bool open = s->end == 0, moment = is_moment(s);
    double x0 = to_x(v, s->start, end), x1 = to_x(v, open ? end : s->end, end);
    char label[VIEW_TEXT_MAX];

    put_label(s, moment ? "at " : "",
              moment ? view_ms(v, s->start) : view_ms(v, s->end) - view_ms(v, s->start), label);
    if (moment) {
        x0 -= BAR / 2;
        x1 = x0 + BAR;
    } else if (x1 - x0 < 2) {
        x1 = x0 + 2;
    }
    arrange(l, lane, moment ? VIEW_MARK : VIEW_BAR, x0, x1,
            span_track_name((enum span_track)s->track), label);
}

static int by_start(const void *a, const void *b)
{
    const struct timeline_span *x = *(const struct timeline_span *const *)a;
    const struct timeline_span *y = *(const struct timeline_span *const *)b;

    return (x->start > y->start) - (x->start < y->start);
}

static size_t view_sorted(const struct view *v, const struct timeline_span *ret[TIMELINE_SPANS])
{
    size_t n = 0;

    for (unsigned i = 0; i < v->t->n; i++)
        if (!view_is_stage(&v->t->spans[i]))
            ret[n++] = &v->t->spans[i];
    qsort(ret, n, sizeof(ret[0]), by_start);
    return n;
}

static const char *const lane_names[TRACK_COUNT] = { "host", "QEMU", "kernel", "gcs" };
static const char *const lane_docs[TRACK_COUNT] = { "host: lcow", "QEMU: the VMM process",
                                                    "kernel: the guest's", "gcs: the guest agent" };

/* A clone has no lanes for kernel and agent, since they booted in its template. */
static bool has_lane(const struct view *v, unsigned track)
{
    for (unsigned i = 0; i < v->t->n; i++)
        if (v->t->spans[i].track == track)
            return true;
    return track == TRACK_HOST;
}

static void add_lane(const struct view *v, struct view_layout *l, unsigned track, uint64_t end,
                     double *y)
{
    const struct timeline_span *sorted[TIMELINE_SPANS];
    AUTO_FREE struct lane *lane = mem_new(struct lane);
    size_t n = view_sorted(v, sorted), background = l->n;

    add(l, VIEW_LANE, MARGIN, *y, WIDTH - 2 * MARGIN, 0, track % 2 ? "odd" : "even");
    lane->top = *y + 2;
    lane->rows = 1;
    for (size_t i = 0; i < n; i++)
        if (sorted[i]->track == track)
            arrange_span(v, l, lane, sorted[i], end);
    l->items[background].h = lane->rows * ROW + 4;
    add_text(l, MARGIN + 6, *y + 2 + (ROW - BAR) / 2, "name", lane_names[track]);
    *y += lane->rows * ROW + 4;
}

/* Labels of the stages above the lanes; their lines are added when the height is known. */
static void add_stages(const struct view *v, struct view_layout *l, uint64_t end, double *y)
{
    AUTO_FREE struct lane *lane = mem_new(struct lane);
    char label[VIEW_TEXT_MAX];

    lane->top = *y;
    for (unsigned i = 0; i < v->t->n; i++) {
        const struct timeline_span *s = &v->t->spans[i];
        double x = to_x(v, s->start, end);

        if (!view_is_stage(s))
            continue;
        put_label(s, "", view_ms(v, s->start), label);
        arrange(l, lane, VIEW_LINE, x, x, NULL, label);
    }
    if (lane->rows > 0)
        add_text(l, MARGIN + 6, *y + (ROW - BAR) / 2, "name", "stages");
    *y += lane->rows * ROW;
}

static void add_axis(const struct view *v, struct view_layout *l, uint64_t end, double y)
{
    double total = view_ms(v, end), step = pow(10, floor(log10(total / 10))), last = -1;
    char label[32];

    while (total / step > 10)
        step *= total / step > 20 ? 5 : 2;
    for (int i = 0; i * step <= total * 1.0001; i++) {
        double x = LEFT + (RIGHT - LEFT) * i * step / total;

        snprintf(label, sizeof(label), "%g%s", i * step, i ? "" : " ms");
        double tx = x - text_width(label) / 2;

        add(l, VIEW_TICK, x, y + ROW, 0, 0, NULL);
        if (tx <= last || tx + text_width(label) > WIDTH - MARGIN)
            continue;
        last = tx + text_width(label) + GAP;
        add_text(l, tx, y + (ROW - BAR) / 2, "axis", label);
    }
}

/* True if the timeline has a moment that is a stage, or one that is not. */
static bool has_moment(const struct view *v, bool stage)
{
    for (unsigned i = 0; i < v->t->n; i++)
        if (is_moment(&v->t->spans[i]) && view_is_stage(&v->t->spans[i]) == stage)
            return true;
    return false;
}

static void add_key(struct view_layout *l, double *x, double *y, enum view_kind kind,
                    const char *css, const char *text)
{
    double need = BAR + GAP + text_width(text) + 3 * GAP;
    bool line = kind == VIEW_LINE;

    if (*x + need > WIDTH - MARGIN) {
        *x = MARGIN + 6;
        *y += ROW;
    }
    add(l, kind, line ? *x + BAR / 2 : *x, *y, line ? 0 : BAR, BAR, css);
    add_text(l, *x + BAR + GAP, *y, "legend", text);
    *x += need;
}

static void add_legend(const struct view *v, struct view_layout *l, double *y)
{
    double x = MARGIN + 6;

    for (unsigned i = 0; i < TRACK_COUNT; i++)
        if (has_lane(v, i))
            add_key(l, &x, y, VIEW_SWATCH, span_track_name(i), lane_docs[i]);
    if (has_moment(v, false))
        add_key(l, &x, y, VIEW_MARK, "key", "a moment");
    if (has_moment(v, true))
        add_key(l, &x, y, VIEW_LINE, NULL, "a boot stage is reached");
    *y += ROW;
}

void view_layout(const struct view *v, struct view_layout *ret)
{
    uint64_t end = view_end(v);
    double y = MARGIN, lanes;
    char lost[VIEW_TEXT_MAX];

    *ret = (struct view_layout){ .w = WIDTH };
    add_text(ret, MARGIN + 6, y, "title", v->title);
    y += ROW;
    if (v->facts) {
        add_text(ret, MARGIN + 6, y, "facts", v->facts);
        y += ROW;
    }
    y += GAP;
    add_stages(v, ret, end, &y);
    add_axis(v, ret, end, y);
    y += ROW;
    lanes = y;
    for (unsigned track = 0; track < TRACK_COUNT; track++)
        if (has_lane(v, track))
            add_lane(v, ret, track, end, &y);
    for (size_t i = 0; i < ret->n; i++)
        if (ret->items[i].kind == VIEW_TICK)
            ret->items[i].h = y - ret->items[i].y;
    for (unsigned i = 0; i < v->t->n; i++)
        if (view_is_stage(&v->t->spans[i]))
            add(ret, VIEW_LINE, to_x(v, v->t->spans[i].start, end), lanes, 0, y - lanes, NULL);
    y += 2 * GAP;
    add_legend(v, ret, &y);
    if (v->t->lost > 0) {
        snprintf(lost, sizeof(lost), "%u more spans were not recorded", v->t->lost);
        add_text(ret, MARGIN + 6, y, "facts", lost);
        y += ROW;
    }
    ret->h = y + MARGIN;
}

void view_layout_release(struct view_layout *l)
{
    free(l->items);
    *l = (struct view_layout){ 0 };
}

/* ---- as a picture */

/* Without custom properties, since not every viewer supports them. */
static const char style[] =
    "<style>\n"
    "text{font:11px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1b1f24}\n"
    "text.in{fill:#fff}text.title,text.name{font-weight:bold}text.axis{fill:#59636e}\n"
    "text.label{paint-order:stroke;stroke:#f5f7f9;stroke-width:3px}\n"
    ".bg{fill:#fff}.even{fill:#f6f8fa}.odd{fill:#eef1f4}.tick{stroke:#d5dae0}\n"
    ".stage{stroke:#b42318;stroke-dasharray:3 3}.key{fill:#59636e}\n"
    ".host{fill:#2b6cb0}.vmm{fill:#8250b8}.kernel{fill:#a8530a}.guest{fill:#2a7a4b}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#e6e9ee}text.axis{fill:#a2abb6}text.label{stroke:#1b1f26}\n"
    ".bg{fill:#14171c}.even{fill:#1a1e25}.odd{fill:#20252d}.tick{stroke:#343b45}\n"
    ".stage{stroke:#ff8a7a}.key{fill:#a2abb6}text.in{fill:#0d1117}\n"
    ".host{fill:#6cace8}.vmm{fill:#b693e6}.kernel{fill:#e29d55}.guest{fill:#5fbf86}}\n"
    "</style>\n";

static void add_escaped(struct sbuf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            sbuf_adds(out, "&lt;");
        else if (*s == '>')
            sbuf_adds(out, "&gt;");
        else if (*s == '&')
            sbuf_adds(out, "&amp;");
        else if ((unsigned char)*s >= ' ')
            sbuf_addc(out, *s);
    }
}

static void draw(struct sbuf *out, const struct view_item *i)
{
    double cx = i->x + i->w / 2, cy = i->y + i->h / 2;

    switch (i->kind) {
    case VIEW_TEXT:
        sbuf_addf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", i->css ? i->css : "label", i->x,
                  i->y + i->h - 3);
        add_escaped(out, i->text);
        sbuf_adds(out, "</text>\n");
        break;
    case VIEW_BAR:
    case VIEW_SWATCH:
    case VIEW_LANE:
        sbuf_addf(out,
                  "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"%s/>\n",
                  i->css, i->x, i->y, i->w, i->h, i->kind == VIEW_LANE ? "" : " rx=\"1.5\"");
        break;
    case VIEW_MARK:
        sbuf_addf(out, "<path class=\"%s\" d=\"M%.1f %.1fl4.5 4.5l-4.5 4.5l-4.5 -4.5z\"/>\n",
                  i->css, cx, cy - 4.5);
        break;
    case VIEW_LINE:
    case VIEW_TICK:
        sbuf_addf(out, "<path class=\"%s\" d=\"M%.1f %.1fv%.1f\"/>\n",
                  i->kind == VIEW_LINE ? "stage" : "tick", i->x, i->y, i->h);
        break;
    }
}

void view_svg(const struct view *v, struct sbuf *out)
{
    /* Back to front. */
    static const enum view_kind order[] = { VIEW_LANE, VIEW_TICK, VIEW_LINE, VIEW_SWATCH,
                                            VIEW_BAR,  VIEW_MARK, VIEW_TEXT };
    struct view_layout l;

    view_layout(v, &l);
    sbuf_addf(out,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
              "height=\"%.0f\" role=\"img\">\n<title>",
              l.w, l.h, l.w, l.h);
    add_escaped(out, v->title);
    sbuf_adds(out, "</title>\n");
    sbuf_adds(out, style);
    sbuf_addf(out, "<rect class=\"bg\" width=\"%.0f\" height=\"%.0f\"/>\n", l.w, l.h);
    for (size_t k = 0; k < ARRAY_LEN(order); k++) {
        for (size_t i = 0; i < l.n; i++) {
            if (l.items[i].kind == order[k])
                draw(out, &l.items[i]);
        }
    }
    sbuf_adds(out, "</svg>\n");
    view_layout_release(&l);
}

/* ---- as text */

#define BAR_COLUMNS 26

static void add_bar(struct sbuf *out, double from, double to, double total, bool moment)
{
    int a = (int)(from / total * BAR_COLUMNS), b = (int)(to / total * BAR_COLUMNS);

    if (a > BAR_COLUMNS - 1)
        a = BAR_COLUMNS - 1;
    if (b <= a)
        b = a + 1;
    if (b > BAR_COLUMNS)
        b = BAR_COLUMNS;
    for (int i = 0; i < a; i++)
        sbuf_addc(out, ' ');
    for (int i = a; i < b; i++)
        sbuf_addc(out, moment ? '|' : '=');
}

static void add_row(const struct view *v, const struct timeline_span *s, const char *track,
                    double total, struct sbuf *out)
{
    bool open = s->end == 0, moment = is_moment(s);
    double from = view_ms(v, s->start), to = open ? total : view_ms(v, s->end);
    AUTO_FREE char *took = moment ? str_dup("-") : str_format("%.1f", to - from);
    char name[TIMELINE_NAME];

    view_name(s, name);
    sbuf_addf(out, "%-6s %-27.27s %8.1f %8s ", track, name, from, open ? "open" : took);
    add_bar(out, from, to, total, moment);
    sbuf_addc(out, '\n');
}

void view_text(const struct view *v, struct sbuf *out)
{
    const struct timeline_span *sorted[TIMELINE_SPANS];
    double total = view_ms(v, view_end(v));

    sbuf_addf(out, "%.80s\n", v->title);
    if (v->facts)
        sbuf_addf(out, "%.80s\n", v->facts);
    sbuf_addf(out, "\n%-34s %8s %8s 0%*.0f\n", "", "at ms", "took ms", BAR_COLUMNS - 1, total);
    for (unsigned i = 0; i < v->t->n; i++)
        if (view_is_stage(&v->t->spans[i]))
            add_row(v, &v->t->spans[i], "stage", total, out);
    for (size_t i = 0, n = view_sorted(v, sorted); i < n; i++)
        add_row(v, sorted[i], span_track_name((enum span_track)sorted[i]->track), total, out);
    if (v->t->lost > 0)
        sbuf_addf(out, "%u more spans were not recorded\n", v->t->lost);
}
