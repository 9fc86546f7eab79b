/* console.h - what the guest wrote to its console: the last 16 KiB, the boot stages named there,
 * and whether the kernel complains about its clock or a stuck CPU. Guest text is never trusted: it
 * is made printable when shown. Pure; never waits. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sbuf;

#define CONSOLE_KEEP (16 * 1024)
#define CONSOLE_LINE_MAX 160 /* as much of a line as is looked at */

enum console_news {
    CONSOLE_NOTHING,
    CONSOLE_KERNEL,
    CONSOLE_INIT,
    CONSOLE_READY, /* a template's agent waits for its token */
};

struct console {
    uint64_t total; /* bytes ever written */
    char line[CONSOLE_LINE_MAX + 1];
    size_t line_len;
    char trouble[CONSOLE_LINE_MAX + 1]; /* the first such line; "": none */
    bool panicked;                      /* the kernel printed a panic; it reboots then */
    char ring[CONSOLE_KEEP];
};

/* The furthest stage that is named in the lines that end in data. */
enum console_news console_feed(struct console *c, const char *data, size_t len);
/* The last whole lines, at most max bytes, control characters and escapes replaced. */
void console_tail(const struct console *c, size_t max, struct sbuf *out);
