/* rewrite.h - makes the OCI document that the host sent fit for the guest
 * (docs/reference/gcs-protocol.md §4.10): sources of mounts, files below /etc, devices, limits,
 * cgroup. Pure but for what the caller's functions look up; never waits. */
#pragma once
#include "oci/spec.h"
#include "oci/volume.h"

struct err;
struct idmap;

struct rewrite_device {
    char type; /* 'c' or 'b' */
    unsigned major, minor;
    uint32_t uid, gid;
};

struct rewrite_env {
    enum spec_kind kind;
    const char *id, *pod_id;
    const char *pod_root;    /* where the pod's files and directories are */
    const struct idmap *ids; /* of its user namespace; empty: none */
    bool privileged; /* every device of the VM; set by the host only, never by an annotation */
    void *arg;
    /* A node in the guest's /dev. 0 or -errno. */
    int (*find_device)(void *arg, const char *path, struct rewrite_device *ret);
    /* The agent's symlink to a block device (BlockDev); caller frees *ret. 0 or -errno. */
    int (*read_symlink)(void *arg, const char *path, char **ret);
    /* Every node below /dev that a privileged container gets. */
    void (*each_device)(void *arg,
                        void (*fn)(void *fn_arg, const char *path, const struct rewrite_device *d),
                        void *fn_arg);
    /* Every node of a PCI device (windows.devices). 0 or -errno. NULL: there are none. */
    int (*each_node)(void *arg, const char *place,
                     void (*fn)(void *fn_arg, const char *path, const struct rewrite_device *d),
                     void *fn_arg);
};

/* What the caller must make before the container is created. */
struct rewrite_todo {
    struct strv dirs;       /* 0777, where missing */
    struct volume *volumes; /* at: the path here */
    size_t n_volumes, volumes_cap;
    struct strv hugepages; /* directories to mount hugetlbfs on, where missing … */
    struct strv sizes;     /* … with this page size each, and perhaps an owner: "2M" */
};
void rewrite_todo_release(struct rewrite_todo *t);

#define REWRITE_VIRTUAL_POD "io.microsoft.cri.virtual-pod-id"

/* Changes spec in place. ERR_INVALID names what is wrong, ERR_NOT_FOUND a device that is missing.
 */
int rewrite_spec(struct spec *spec, const struct rewrite_env *env, struct rewrite_todo *todo,
                 struct err *err);

/* The image's user that has to be looked up ("" if none), and the answer. */
const char *rewrite_username(const json_t *process);
void rewrite_set_user(json_t *process, uint32_t uid, uint32_t gid);
/* An exec's process: limits of the container's init, and its user if the exec names none by name
 * and the container did. Both borrowed; may be NULL. */
void rewrite_exec(json_t *process, const json_t *rlimits, const json_t *user);
