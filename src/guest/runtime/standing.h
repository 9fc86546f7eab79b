/* standing.h - what the agent has over the programs it starts: it is kept from the OOM killer, may
 * open many files (seven for each process of a container), and is served first when sixty crun
 * start at once, or its host would give up on it. Never waits. */
#pragma once

struct ctx;

/* For the agent, at its start. What cannot be had is warned of. */
void standing_raise(struct ctx *ctx);
/* In a child, before exec: what programs expect. */
void standing_drop(void);
