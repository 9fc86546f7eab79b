/* spec.h - an OCI runtime spec: read with limits, checked once, then asked and rewritten. Used by
 * host and guest. Keeps the JSON tree, so that unknown fields pass through unchanged.
 * Never waits; loading a client's file is done by the caller through base/offload. */
#pragma once
#include "base/json.h"

struct err;
struct spec;

#define SPEC_MAX_BYTES (8u << 20)
#define SPEC_MAX_MOUNTS 4096

/* Annotations that host and guest read. */
#define SPEC_TYPE_KEY "io.kubernetes.cri.container-type"
#define SPEC_SANDBOX_KEY "io.kubernetes.cri.sandbox-id"
#define SPEC_SHM_SIZE_KEY "io.microsoft.lcow.shm.size-kb"
#define SPEC_CORE_LIMIT_KEY "io.microsoft.lcow.rlimitcore"
#define SPEC_LOG_DIR_KEY "io.microsoft.container.lcow.tee-log-dir-mount"

enum spec_kind {
    SPEC_STANDALONE, /* no pod: `ctr run` */
    SPEC_SANDBOX,    /* a pod's pause container */
    SPEC_WORKLOAD    /* a container in a pod */
};

/* The string under key, or "". Borrowed. */
const char *spec_text(const json_t *obj, const char *key);

/* Caller frees. ERR_INVALID names what is missing or wrong ("linux is missing", "process.args is
 * empty", "10001 mounts, at most 4096"). linux.resources is made {} if absent. */
int spec_parse(const char *text, size_t len, struct spec **ret, struct err *err);
/* The same of a tree, which the spec shares with the caller: changes go into that tree. */
int spec_from_json(json_t *root, struct spec **ret, struct err *err);
void spec_free(struct spec *s);
AUTO_DEFINE(struct spec *, spec_free);
struct spec *spec_copy(const struct spec *s);

/* Borrowed; the root object. Changing it is fine. */
json_t *spec_json(const struct spec *s);
const char *spec_annotation(const struct spec *s, const char *key); /* NULL if absent */
/* Only where it is absent. */
void spec_annotation_default(struct spec *s, const char *key, const char *value);
/* Keeps only those for which keep returns true. */
void spec_annotations_keep(struct spec *s, bool (*keep)(const void *arg, const char *key),
                           const void *arg);

/* From io.kubernetes.cri.container-type and .sandbox-id. A type that is neither sandbox nor
 * container, or one without the other: ERR_INVALID. *ret_pod is borrowed; own_id if standalone. */
int spec_kind(const struct spec *s, const char *own_id, enum spec_kind *ret, const char **ret_pod,
              struct err *err);

/* The CRI made it: after its exit it is deleted and replaced by a new one. */
bool spec_is_cri(const struct spec *s);

bool spec_terminal(const struct spec *s);
bool spec_root_readonly(const struct spec *s);
const char *spec_root_path(const struct spec *s);
const char *spec_cgroups_path(const struct spec *s); /* "" if none */
int spec_oom_score_adj(const struct spec *s, bool *ret_set);
/* A namespace entry: false if absent; *ret_path is "" if it is to be a new one. Borrowed. */
bool spec_namespace(const struct spec *s, const char *type, const char **ret_path);
/* Limits that size the VM; 0 if none. quota and period in microseconds. Of a pod's first container:
 * those of the whole pod, if the CRI sends them. */
struct spec_limits {
    uint64_t memory_bytes;
    uint64_t cpu_period;
    int64_t cpu_quota;
    uint64_t cpu_shares;
};
int spec_limits(const struct spec *s, struct spec_limits *ret, struct err *err);
/* The same from LinuxResources of an update: absent limits stay; -1 removes a limit. */
int spec_limits_update(const json_t *resources, struct spec_limits *l, struct err *err);

/* An OCI process as in Exec: checked (args not empty, cwd absolute). Caller frees with
 * json_decref(). `terminal` overrides. */
int spec_process_check(const json_t *process, struct err *err);
int spec_process_parse(const char *text, size_t len, bool terminal, json_t **ret, struct err *err);

/* What the shim adds to an entry of linux.devices for the guest (docs/decisions/0003). Pure.
 * Removes such keys from a client's spec. */
void device_clear(json_t *device);
/* It is left out if the VM has none of that name. */
void device_set_optional(json_t *device);
bool device_is_optional(const json_t *device);
/* A disk of the VM: path is a symlink in the guest that leads to its node. */
void device_set_symlink(json_t *device, const char *path, bool read_only);
const char *device_symlink(const json_t *device, bool *ret_read_only); /* NULL: none */
