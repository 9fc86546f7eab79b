/* nofile.h - how many files may be open: the agent holds seven for each process of a container, and
 * needs more than programs are used to getting. Never waits. */
#pragma once

/* For the agent, at its start: as many as it may. 0 or -errno. */
int nofile_raise(void);
/* In a child, before exec: what programs expect, 1024, up to what they may raise it to. */
void nofile_restore(void);
