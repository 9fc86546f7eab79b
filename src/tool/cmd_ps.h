/* cmd_ps.h - `lcow ps`: its table. Never waits. */
#pragma once

struct shims;
struct tool;

/* Adds the table to the tool's output. */
void ps_table(struct tool *tool, const struct shims *s);
