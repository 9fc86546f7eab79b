/* standing.h - how the agent is preferred to the programs it starts. The OOM killer spares it, it
 * may open many files (seven for each process of a container), and it is scheduled first: when
 * sixty crun start at once it must still answer before its host gives up. Never waits. */
#pragma once

struct ctx;

/* For the agent, at its start. Logs a warning for what fails. */
void standing_raise(struct ctx *ctx);
/* In a child, before exec: restores what programs expect. */
void standing_drop(void);
