/* cmd_ps.h - `lcow ps`: its table. Never waits. */
#pragma once

struct shims;
struct tool;

/* Adds it to what the tool prints. */
void ps_table(struct tool *tool, const struct shims *s);
