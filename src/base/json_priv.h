/* json_priv.h - numbers that jansson cannot hold (beyond int64, beyond double). The scan rewrites
 * them to strings of NUL and the number's text, before jansson reads them. A string of the peer
 * that begins with NUL gets a second NUL in front, so the two cannot be confused. Only for
 * json*.c and their test. */
#pragma once
#include <jansson.h>

/* The text of such a number, or NULL if v is anything else. Borrows. */
const char *js_big_number(const json_t *v);
