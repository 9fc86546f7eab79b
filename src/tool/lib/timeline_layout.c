#include "base/mem.h"
#include "base/str.h"
#include "host/vmm/vmm.h"
#include "tool/lib/timeline_view.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static double to_x(const struct view *v, uint64_t at, uint64_t end)
{
    return LEFT + (RIGHT - LEFT) * view_ms(v, at) / view_ms(v, end);
}

static double text_width(const char *s)
{
    size_t n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80; /* letters, not bytes */
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

void view_name(const struct timeline_span *s, char ret[TIMELINE_NAME])
{
    size_t n = 0;

    for (; s->name[n] && n < TIMELINE_NAME - 1; n++)
        ret[n] = s->name[n] >= ' ' && s->name[n] < 0x7f ? s->name[n] : '?';
    ret[n] = '\0';
}

static void put_ms(char *out, size_t size, double ms)
{
    snprintf(out, size, ms < 10 ? "%.2f" : ms < 100 ? "%.1f" : "%.0f", ms);
}

/* ---- lanes: each item goes to the first row where it and its label have room */

struct placed {
    double from, to;
    unsigned row;
};
struct lane {
    double top;
    unsigned rows;
    struct placed placed[TIMELINE_SPANS + 16];
    size_t n;
};

static unsigned find_row(struct lane *lane, double from, double to)
{
    for (unsigned row = 0;; row++) {
        bool is_free = true;

        for (size_t i = 0; i < lane->n && is_free; i++) {
            const struct placed *p = &lane->placed[i];

            is_free = p->row != row || to + GAP <= p->from || from >= p->to + GAP;
        }
        if (!is_free)
            continue;
        lane->placed[lane->n++] = (struct placed){ from, to, row };
        if (row >= lane->rows)
            lane->rows = row + 1;
        return row;
    }
}

/* The label goes into the bar, else to its right, else to its left: one of them has room, since
 * labels are shorter than a third of the axis. */
static void place(struct view_layout *l, struct lane *lane, enum view_kind kind, double x0,
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

static void place_span(const struct view *v, struct view_layout *l, struct lane *lane,
                       const struct timeline_span *s, uint64_t end)
{
    bool open = s->end == 0, moment = !open && s->end <= s->start;
    double x0 = to_x(v, s->start, end), x1 = to_x(v, open ? end : s->end, end);
    char name[TIMELINE_NAME], ms[24], label[VIEW_TEXT_MAX];

    view_name(s, name);
    put_ms(ms, sizeof(ms),
           moment ? view_ms(v, s->start) : view_ms(v, s->end) - view_ms(v, s->start));
    if (open)
        snprintf(label, sizeof(label), "%s (not ended)", name);
    else
        snprintf(label, sizeof(label), "%s %s%s ms", name, moment ? "at " : "", ms);
    if (moment) {
        x0 -= BAR / 2;
        x1 = x0 + BAR;
    } else if (x1 - x0 < 2) {
        x1 = x0 + 2;
    }
    place(l, lane, moment ? VIEW_MARK : VIEW_BAR, x0, x1,
          timeline_track_name((enum timeline_track)s->track), label);
}

static int by_start(const void *a, const void *b)
{
    const struct timeline_span *x = *(const struct timeline_span *const *)a;
    const struct timeline_span *y = *(const struct timeline_span *const *)b;

    return (x->start > y->start) - (x->start < y->start);
}

size_t view_sorted(const struct view *v, const struct timeline_span *ret[TIMELINE_SPANS])
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

/* Of a clone, kernel and agent have booted in its template: no lanes for them. */
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
            place_span(v, l, lane, sorted[i], end);
    l->items[background].h = lane->rows * ROW + 4;
    add_text(l, MARGIN + 6, *y + 2 + (ROW - BAR) / 2, "name", lane_names[track]);
    *y += lane->rows * ROW + 4;
}

/* Labels of the stages above the lanes; their lines are added when the height is known. */
static void add_stages(const struct view *v, struct view_layout *l, uint64_t end, double *y)
{
    AUTO_FREE struct lane *lane = mem_new(struct lane);
    char label[VIEW_TEXT_MAX], name[TIMELINE_NAME], ms[24];

    lane->top = *y;
    for (unsigned i = 0; i < v->t->n; i++) {
        const struct timeline_span *s = &v->t->spans[i];
        double x = to_x(v, s->start, end);

        if (!view_is_stage(s))
            continue;
        view_name(s, name);
        put_ms(ms, sizeof(ms), view_ms(v, s->start));
        snprintf(label, sizeof(label), "%s %s ms", name, ms);
        place(l, lane, VIEW_LINE, x, x, NULL, label);
    }
    if (lane->rows > 0)
        add_text(l, MARGIN + 6, *y + (ROW - BAR) / 2, "name", "stages");
    *y += lane->rows * ROW;
}

static void add_axis(const struct view *v, struct view_layout *l, uint64_t end, double y,
                     size_t *ret_first, size_t *ret_n)
{
    double total = view_ms(v, end), step = pow(10, floor(log10(total / 10))), last = -1;
    char label[32];

    while (total / step > 10)
        step *= total / step > 20 ? 5 : 2;
    *ret_first = l->n;
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
    *ret_n = l->n - *ret_first;
}

/* Is there a moment, which is a stage or is not? */
static bool has_moment(const struct view *v, bool stage)
{
    for (unsigned i = 0; i < v->t->n; i++) {
        const struct timeline_span *s = &v->t->spans[i];

        if (s->end != 0 && s->end <= s->start && view_is_stage(s) == stage)
            return true;
    }
    return false;
}

static void add_legend(const struct view *v, struct view_layout *l, double *y)
{
    double x = MARGIN + 6;
    struct {
        enum view_kind kind;
        const char *css, *text;
    } rows[TRACK_COUNT + 2];
    size_t n = 0;

    for (unsigned i = 0; i < TRACK_COUNT; i++) {
        if (has_lane(v, i)) {
            rows[n].kind = VIEW_SWATCH;
            rows[n].css = timeline_track_name(i);
            rows[n++].text = lane_docs[i];
        }
    }
    if (has_moment(v, false)) {
        rows[n].kind = VIEW_MARK;
        rows[n].css = "key";
        rows[n++].text = "a moment";
    }
    if (has_moment(v, true)) {
        rows[n].kind = VIEW_LINE;
        rows[n].css = NULL;
        rows[n++].text = "a boot stage is reached";
    }

    for (size_t i = 0; i < n; i++) {
        double tw = text_width(rows[i].text), need = BAR + GAP + tw + 3 * GAP;

        if (x + need > WIDTH - MARGIN) {
            x = MARGIN + 6;
            *y += ROW;
        }
        bool line = rows[i].kind == VIEW_LINE;

        add(l, rows[i].kind, line ? x + BAR / 2 : x, *y, line ? 0 : BAR, BAR, rows[i].css);
        add_text(l, x + BAR + GAP, *y, "legend", rows[i].text);
        x += need;
    }
    *y += ROW;
}

void view_layout(const struct view *v, struct view_layout *ret)
{
    uint64_t end = view_end(v);
    double y = MARGIN, lanes;
    size_t first, n;
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
    add_axis(v, ret, end, y, &first, &n);
    y += ROW;
    lanes = y;
    for (unsigned track = 0; track < TRACK_COUNT; track++)
        if (has_lane(v, track))
            add_lane(v, ret, track, end, &y);
    for (size_t i = first; i < first + n; i++) {
        if (ret->items[i].kind == VIEW_TICK)
            ret->items[i].h = y - ret->items[i].y;
    }
    for (unsigned i = 0; i < v->t->n; i++)
        if (view_is_stage(&v->t->spans[i]))
            add(ret, VIEW_LINE, to_x(v, v->t->spans[i].start, end), lanes, 0, y - lanes, NULL);
    y += 2 * GAP;
    add_legend(v, ret, &y);
    if (v->t->lost > 0) {
        snprintf(lost, sizeof(lost), "%u more did not fit into the table", v->t->lost);
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
