/* output.h - the output of one sandbox's containers, as lines beside those of its journal. A shim
 * keeps no output: it is in the CRI's log file, or in the file of a file:// URI. Output to a FIFO
 * is not available here.
 *
 * The journal has one line for each container that names its output; a shim's document names it as
 * well. Reads files only. Life: outputs_new -> add, tell … -> more … -> free. */
#pragma once
#include "base/json.h"

struct line;
struct lines;
struct outputs;
struct sbuf;

/* For this sandbox; borrows both. */
struct outputs *outputs_new(const char *ns, const char *id);
void outputs_free(struct outputs *o);
/* Adds a container from the shim's journal line "output". */
void outputs_add(struct outputs *o, const struct line *line);
/* Adds a container from a shim's document; the journal is bounded and may have dropped its line. */
void outputs_tell(struct outputs *o, const json_t *container);
/* Adds the output since the last call, in the order of each file. watch_fd: an inotify descriptor
 * to which the files are added, or -1. */
void outputs_more(struct outputs *o, int watch_fd, struct lines *out);
/* Adds a sentence for each container (cid; NULL: all) whose output is not available. */
void outputs_untold(const struct outputs *o, const char *cid, struct sbuf *out);
