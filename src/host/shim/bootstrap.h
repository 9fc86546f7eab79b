/* bootstrap.h - containerd's input of `start` on stdin and the answer on stdout, in the formats of
 * all its versions. docs/reference/containerd-contract.md §2.4, §2.5. Never waits. */
#pragma once
#include "base/log.h"
#include "base/str.h"

struct config;
struct Any;
struct err;

#define BOOTSTRAP_MAX_BYTES (10u << 20)
#define BOOTSTRAP_SOCKET_DIR "/run/containerd/s"
#define BOOTSTRAP_SOCKET_DIR_MAX 42

/* Owns its strings; {0} is empty. */
struct bootstrap {
    bool params;                                     /* BootstrapParams: containerd 2.3 or later */
    char *ttrpc_address, *grpc_address, *socket_dir; /* or NULL */
    bool has_log_level;
    enum log_level log_level;
    /* From the runtime options, whichever type they have: */
    char *config_path; /* runtimeoptions.v1: the configuration file */
    char *config_body; /* the same: keys as TOML, which override the file */
    char *shim_cgroup; /* runc.v1 */
    char *image_dir;   /* runhcs.v1 from here on */
    uint32_t memory_mib, cpus;
    bool has_scrub_logs, scrub_logs;
    struct strv annotations; /* "NAME=VALUE" */
    struct strv notes;       /* "NAME: why": options that are set and ignored */
};
/* Bytes in neither format and unknown extensions are not errors. ERR_INVALID: an invalid value in
 * options of this runtime, or options of an unsupported type. */
int bootstrap_parse(const void *data, size_t len, const char *ns, const char *id,
                    struct bootstrap *ret, struct err *err);
/* Runtime options alone, as Create has them. */
int bootstrap_options(const struct Any *any, struct bootstrap *ret, struct err *err);
/* Compares the options of a Create or CreateSandbox with the shim's. An option that is not set does
 * not differ. early: there is no VM yet, so hcsshim's options are applied to *have and *c.
 * Otherwise, and for all options that the shim itself depends on, ERR_STATE names the difference.
 */
int bootstrap_merge(struct bootstrap *have, const struct bootstrap *more, bool early,
                    struct config *c, struct err *err);
void bootstrap_release(struct bootstrap *b);
AUTO_VALUE(struct bootstrap, bootstrap_release);
/* Overrides the values of the file. */
int bootstrap_apply(const struct bootstrap *b, struct config *c, struct err *err);

/* What containerd expects on stdout: a BootstrapResult (2.3 and later); JSON for a sandbox (2.0 to
 * 2.2, API version 3); the address alone (1.6, 1.7, and plain tasks of 2.0 to 2.2, version 2).
 * max_shim_version: $MAX_SHIM_VERSION or NULL. */
void bootstrap_answer(const struct bootstrap *b, const char *max_shim_version, const char *cwd,
                      const char *address, struct sbuf *out);

/* "unix://<dir>/<sha256 of address/ns/group>"; dir NULL: the default. Caller frees. ERR_INVALID if
 * the path is too long for a socket. */
int bootstrap_address(const char *dir, const char *address, const char *ns, const char *group,
                      char **ret, struct err *err);
