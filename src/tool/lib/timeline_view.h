/* timeline_view.h - a timeline as a picture (SVG) and as text: host and guest on one axis, a lane
 * for each track, the boot stages as lines across. The layout is computed apart from the drawing,
 * so that a test can prove that nothing overlaps or leaves the picture. Names may come from the
 * guest: they are made printable and escaped. Never waits. */
#pragma once
#include "base/span.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sbuf;

struct view {
    const char *title, *facts; /* first and second line; facts may be NULL */
    const struct timeline *t;
    uint64_t origin; /* 0 ms on the axis */
};

/* A mark of the controller's: such a stage of the boot was reached. */
bool view_is_stage(const struct timeline_span *s);

/* A complete SVG document. */
void view_svg(const struct view *v, struct sbuf *out);
/* At most 80 columns. */
void view_text(const struct view *v, struct sbuf *out);

/* The last moment of anything in it, at least origin + 1 us. */
uint64_t view_end(const struct view *v);
double view_ms(const struct view *v, uint64_t at);

/* ---- the layout, for the renderer and its test */
enum view_kind {
    VIEW_TEXT,
    VIEW_BAR,   /* a span */
    VIEW_MARK,  /* a moment: a diamond */
    VIEW_LINE,  /* a stage: a line over all lanes */
    VIEW_TICK,  /* a grid line */
    VIEW_LANE,  /* background of a lane */
    VIEW_SWATCH /* colour in the legend */
};
#define VIEW_TEXT_MAX 96
struct view_item {
    enum view_kind kind;
    double x, y, w, h; /* of a text: the box that its letters stay within */
    const char *css;   /* class, or NULL */
    char text[VIEW_TEXT_MAX];
};
struct view_layout {
    double w, h;
    struct view_item *items;
    size_t n, cap;
};
void view_layout(const struct view *v, struct view_layout *ret);
void view_layout_release(struct view_layout *l);

#define VIEW_FONT_PX 11.0
/* Wider than the letters of any monospaced font in use (0.55 … 0.61 em). */
#define VIEW_CHAR_PX (VIEW_FONT_PX * 0.63)
