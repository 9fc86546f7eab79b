/* output.h - what the containers of one sandbox wrote, as lines beside those of its journal. A shim
 * keeps none of it: it is in the log file that the CRI keeps, or in the file of a file:// URI. What
 * goes into a FIFO is its reader's alone.
 *
 * Where it goes is told by lines of the journal, one for each container, and by a shim that
 * answers. Reads files only. Life: outputs_new -> add, tell … -> more … -> free. */
#pragma once
#include "base/json.h"

struct line;
struct lines;
struct outputs;
struct sbuf;

/* Of this sandbox; borrows both. */
struct outputs *outputs_new(const char *ns, const char *id);
void outputs_free(struct outputs *o);
/* A line of the shim, "output". */
void outputs_add(struct outputs *o, const struct line *line);
/* container: of a shim's document; its line may have left the journal, which is bounded. */
void outputs_tell(struct outputs *o, const json_t *container);
/* What was written since the last call, in the order of each file. watch_fd: an inotify descriptor
 * that shall tell of more, or -1. */
void outputs_more(struct outputs *o, int watch_fd, struct lines *out);
/* Whose output nobody keeps: a sentence for each of cid's (NULL: all). */
void outputs_untold(const struct outputs *o, const char *cid, struct sbuf *out);
