/* pod_files.h - the files and directories in a pod's root, or of a standalone container: hostname,
 * hosts and resolv.conf (docs/reference/gcs-protocol.md §4.10), and what the containers of the pod
 * share. Life: make -> make_todo … -> remove. These three wait; the others are pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct gate;
struct rewrite_todo;

struct pod_files {
    const char *root, *hostname, *dns_search, *dns_servers;
    const char *resolv_conf; /* the whole file; NULL: of the two above */
    bool pod;                /* with the directories that its containers share */
    uint32_t uid, gid;       /* of the containers' root */
};
int pod_files_make(struct ctx *ctx, struct pod_files *f, struct err *err);
int pod_files_remove(struct ctx *ctx, const char *root, struct err *err);
/* What the container's mounts name in the pod. Takes what is in todo. gate: of all pods. */
int pod_files_make_todo(struct ctx *ctx, struct gate *gate, struct rewrite_todo *todo,
                        struct err *err);

/* [a-zA-Z0-9_.-], 0 to 255 of them. */
int pod_files_check_hostname(const char *name, struct err *err);
/* Caller frees. */
char *pod_files_hosts(const char *hostname);
/* Comma-separated lists: trimmed, lower-cased, unique; "" is fine. More than 6 search domains, or
 * one with a blank or line feed in it: ERR_INVALID. Caller frees. */
int pod_files_resolv(const char *search, const char *servers, char **ret, struct err *err);
/* Checks a complete resolv.conf from the host: lines of text, at most 16 KiB. */
int pod_files_check_resolv(const char *text, struct err *err);
