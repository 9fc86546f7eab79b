#include "base/str.h"
#include "tool/lib/timeline_view.h"
#include <string.h>

/* No custom properties: not every viewer knows them. */
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
        sbuf_addf(out,
                  "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                  "rx=\"1.5\"/>\n",
                  i->css, i->x, i->y, i->w, i->h);
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
    case VIEW_LANE:
        sbuf_addf(out,
                  "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
                  i->css, i->x, i->y, i->w, i->h);
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
