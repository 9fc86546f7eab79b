#include "host/vmm/qemu/console.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

static enum console_news read_line(const char *line)
{
    if (strstr(line, "lcow: stage ready"))
        return CONSOLE_READY;
    if (strstr(line, "lcow: stage init"))
        return CONSOLE_INIT;
    /* "[    0.000000] Linux version 6.1…" */
    return strstr(line, "Linux version ") ? CONSOLE_KERNEL : CONSOLE_NOTHING;
}

/* A VM whose kernel says one of these is not one to make copies of. */
static bool is_trouble(const char *line)
{
    static const char *const words[] = { "soft lockup", "hard LOCKUP", "detected stall",
                                         "Marking clocksource", "blocked for more than" };

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strstr(line, words[i]))
            return true;
    return false;
}

enum console_news console_feed(struct console *c, const char *data, size_t len)
{
    enum console_news news = CONSOLE_NOTHING;

    for (size_t i = 0; i < len; i++) {
        c->ring[c->total++ % CONSOLE_KEEP] = data[i];
        if (data[i] == '\n') {
            c->line[c->line_len] = '\0';
            enum console_news n = read_line(c->line);
            if (n > news)
                news = n;
            c->line_len = 0;
            c->panicked |= strstr(c->line, "Kernel panic - ") != NULL;
            if (!c->trouble[0] && is_trouble(c->line)) {
                AUTO_FREE char *text = str_printable(c->line);
                snprintf(c->trouble, sizeof(c->trouble), "%s", text);
            }
        } else if (c->line_len < CONSOLE_LINE_MAX && data[i] != '\0') {
            c->line[c->line_len++] = data[i];
        }
    }
    return news;
}

static char byte_at(const struct console *c, uint64_t at)
{
    return c->ring[at % CONSOLE_KEEP];
}

void console_tail(const struct console *c, size_t max, struct sbuf *out)
{
    uint64_t have = c->total < CONSOLE_KEEP ? c->total : CONSOLE_KEEP;
    uint64_t from = c->total - (have < max ? have : max);

    /* Begin with a whole line, if there is one. */
    if (from > 0 && (c->total - from == CONSOLE_KEEP || byte_at(c, from - 1) != '\n')) {
        uint64_t at = from;
        while (at < c->total && byte_at(c, at) != '\n')
            at++;
        if (at + 1 < c->total)
            from = at + 1;
    }
    for (uint64_t at = from; at < c->total; at++) {
        char ch = byte_at(c, at);
        if (ch == '\r')
            continue;
        sbuf_addc(out, ch == '\n' || ch == '\t' || (ch >= ' ' && ch <= '~') ? ch : '?');
    }
}
