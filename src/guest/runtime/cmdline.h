/* cmdline.h - splits a command line into words as a shell would, without expanding anything:
 * blanks separate, '…' is literal, "…" knows \" and \\, outside a backslash takes the next
 * character as it is. Never waits. */
#pragma once

struct err;
struct strv;

#define CMDLINE_MAX_BYTES (128 * 1024)

/* Adds the words to *ret_words. ERR_INVALID for an open quote or a lonely backslash. */
int cmdline_split(const char *line, struct strv *ret_words, struct err *err);
