/* etcfiles.h - hostname, hosts and resolv.conf of a pod (gcs-protocol.md §4.10). Pure. */
#pragma once

struct err;
struct strv;

/* [a-zA-Z0-9_.-], 0 to 255 of them. */
int etcfiles_check_hostname(const char *name, struct err *err);
/* Caller frees. */
char *etcfiles_hosts(const char *hostname);
/* Comma-separated lists: trimmed, lower-cased, unique; "" is fine. More than 6 search domains, or
 * one with a blank or line feed in it: ERR_INVALID. Caller frees. */
int etcfiles_resolv(const char *search, const char *servers, char **ret, struct err *err);
/* A resolv.conf that somebody else has written: text of lines, at most 16 KiB. */
int etcfiles_check_resolv(const char *text, struct err *err);
