#include "base/mem.h"
#include "base/str.h"
#include "tool/lib/timeline_view.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void add_row(const struct view *v, const struct timeline_span *s, double total,
                    struct sbuf *out)
{
    bool open = s->end == 0, moment = !open && s->end <= s->start;
    double from = view_ms(v, s->start), to = open ? total : view_ms(v, s->end);
    char name[TIMELINE_NAME], took[16];

    view_name(s, name);
    snprintf(took, sizeof(took), "%.1f", to - from);
    sbuf_addf(out, "%-6s %-27s %8.1f %8s ", timeline_track_name((enum timeline_track)s->track),
              name, from,
              moment ? "-"
              : open ? "open"
                     : took);
    add_bar(out, from, to, total, moment);
    while (out->len > 0 && out->data[out->len - 1] == ' ')
        out->len--;
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
    for (unsigned i = 0; i < v->t->n; i++) {
        const struct timeline_span *s = &v->t->spans[i];
        double at = view_ms(v, s->start);

        if (!view_is_stage(s))
            continue;
        sbuf_addf(out, "stage  %-27.27s %8.1f %8s ", s->name, at, "-");
        add_bar(out, at, at, total, true);
        sbuf_addc(out, '\n');
    }
    for (size_t i = 0, n = view_sorted(v, sorted); i < n; i++)
        add_row(v, sorted[i], total, out);
    if (v->t->lost > 0)
        sbuf_addf(out, "%u more did not fit into the table\n", v->t->lost);
}
