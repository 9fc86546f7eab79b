/* scrub.h - JSON messages as text for the log, without what may be secret: environment, arguments,
 * command lines, annotations, security policies, and whatever a key calls a credential. JSON inside
 * of strings is scrubbed, too. Only messages to and from the guest are logged (at LOG_TRACE), and
 * only through here. Never waits. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define SCRUBBED "<scrubbed>"
#define SCRUB_TEXT_MAX 6000u /* longer messages are cut; a log line holds 8 KiB */

/* Off: messages are logged as they are (the option scrub_logs). On until this is called. */
void scrub_set(bool on);
/* What is not JSON becomes its size. Caller frees. */
char *scrub_json(const char *text, size_t len);
