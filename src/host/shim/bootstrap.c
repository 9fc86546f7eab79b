#include "host/shim/bootstrap.h"
#include "api/bootstrap.pb-c.h"
#include "api/runc.pb-c.h"
#include "api/runhcs.pb-c.h"
#include "api/runtimeoptions.pb-c.h"
#include "base/err.h"
#include "base/json.h"
#include "base/sha256.h"
#include "host/rpc/rpc_sock.h"
#include "proto/pb.h"
#include <stdlib.h>
#include <string.h>

#define MEMORY_MIB_MAX (1024 * 1024)
#define CPUS_MAX 64

static char *dup_or_null(const char *s)
{
    return s && s[0] ? str_dup(s) : NULL;
}

static void take_runtime_options(const Any *any, struct bootstrap *b)
{
    AUTO(pb_free) Runtimeoptions__Options *o = NULL;

    if (pb_any_unpack(any, &runtimeoptions__options__descriptor, (void **)&o) == 0 &&
        o->config_path[0]) {
        free(b->config_path);
        b->config_path = str_dup(o->config_path);
    }
}

static void take_runc_options(const Any *any, struct bootstrap *b)
{
    AUTO(pb_free) Runc__Options *o = NULL;

    if (pb_any_unpack(any, &runc__options__descriptor, (void **)&o) == 0 && o->shim_cgroup[0]) {
        free(b->shim_cgroup);
        b->shim_cgroup = str_dup(o->shim_cgroup);
    }
}

static int take_runhcs_options(const Any *any, struct bootstrap *b, struct err *err)
{
    AUTO(pb_free) Runhcs__Options *o = NULL;

    if (pb_any_unpack(any, &runhcs__options__descriptor, (void **)&o) < 0)
        return 0;
    if (o->log_level[0]) {
        /* logrus' names */
        const char *name = str_eq(o->log_level, "warning") ? "warn"
                           : str_eq(o->log_level, "fatal") || str_eq(o->log_level, "panic")
                               ? "error"
                               : o->log_level;
        if (log_level_parse(name, &b->log_level) < 0)
            return err_set(err, ERR_INVALID,
                           "log_level \"%s\" in the runtime options: trace, debug, info, warn, "
                           "error or off",
                           o->log_level);
        b->has_log_level = true;
    } else if (o->debug) {
        b->log_level = LOG_DEBUG;
        b->has_log_level = true;
    }
    if (o->vm_memory_size_in_mb < 0 || o->vm_memory_size_in_mb > MEMORY_MIB_MAX)
        return err_set(err, ERR_INVALID, "vm_memory_size_in_mb %d in the runtime options: 0 to %d",
                       o->vm_memory_size_in_mb, MEMORY_MIB_MAX);
    if (o->vm_processor_count < 0 || o->vm_processor_count > CPUS_MAX)
        return err_set(err, ERR_INVALID, "vm_processor_count %d in the runtime options: 0 to %d",
                       o->vm_processor_count, CPUS_MAX);
    b->memory_mib = (uint32_t)o->vm_memory_size_in_mb;
    b->cpus = (uint32_t)o->vm_processor_count;
    free(b->image_dir);
    b->image_dir = dup_or_null(o->boot_files_root_path);
    b->unscrubbed = o->scrub_case == RUNHCS__OPTIONS__SCRUB_SCRUB_LOGS && !o->scrub_logs;
    return 0;
}

static int take_options(const Any *any, struct bootstrap *b, struct err *err)
{
    take_runtime_options(any, b);
    take_runc_options(any, b);
    return take_runhcs_options(any, b, err);
}

static enum log_level level_of(int level)
{
    return level <= -8 ? LOG_TRACE
           : level < 0 ? LOG_DEBUG
           : level < 4 ? LOG_INFO
           : level < 8 ? LOG_WARN
                       : LOG_ERROR;
}

/* true if the bytes are this message, for us. */
static bool take_params(struct pb_slice data, const char *ns, const char *id, struct bootstrap *b,
                        struct err *err, int *ret)
{
    AUTO(pb_free) Bootstrap__BootstrapParams *p = NULL;

    *ret = 0;
    if (pb_unpack(&bootstrap__bootstrap_params__descriptor, data, PB_MEM_MAX, (void **)&p, NULL) <
            0 ||
        !str_eq(p->instance_id, id) || !str_eq(p->namespace_, ns))
        return false;
    b->params = true;
    b->ttrpc_address = dup_or_null(p->containerd_ttrpc_address);
    b->grpc_address = dup_or_null(p->containerd_grpc_address);
    b->socket_dir = dup_or_null(p->socket_dir);
    b->log_level = level_of((int)p->log_level);
    b->has_log_level = true;
    for (size_t i = 0; i < p->n_extensions && *ret == 0; i++)
        *ret = take_options(p->extensions[i]->value, b, err);
    return true;
}

int bootstrap_parse(const void *data, size_t len, const char *ns, const char *id,
                    struct bootstrap *ret, struct err *err)
{
    AUTO(bootstrap_release) struct bootstrap b = { 0 };
    AUTO(pb_free) Any *any = NULL;
    struct pb_slice bytes = { data, len };
    int r = 0;

    if (len > 0 && !take_params(bytes, ns, id, &b, err, &r) &&
        pb_unpack(&any__descriptor, bytes, PB_MEM_MAX, (void **)&any, NULL) == 0)
        r = take_options(any, &b, err);
    if (r < 0)
        return -1;
    if (b.socket_dir && (b.socket_dir[0] != '/' || strlen(b.socket_dir) > BOOTSTRAP_SOCKET_DIR_MAX))
        return err_set(err, ERR_INVALID, "socket_dir \"%s\": an absolute path of at most %d bytes",
                       b.socket_dir, BOOTSTRAP_SOCKET_DIR_MAX);
    *ret = b;
    b = (struct bootstrap){ 0 };
    return 0;
}

void bootstrap_release(struct bootstrap *b)
{
    free(b->ttrpc_address);
    free(b->grpc_address);
    free(b->socket_dir);
    free(b->config_path);
    free(b->shim_cgroup);
    free(b->image_dir);
    *b = (struct bootstrap){ 0 };
}

enum bootstrap_answer bootstrap_choose(const struct bootstrap *b, const char *max_shim_version,
                                       const char *cwd)
{
    if (b->params)
        return BOOTSTRAP_RESULT;
    if (max_shim_version && cwd && strstr(cwd, "/io.containerd.sandbox.controller.v1.shim/"))
        return BOOTSTRAP_JSON;
    return BOOTSTRAP_BARE; /* 1.6, 1.7, and plain tasks of 2.0 to 2.2 */
}

void bootstrap_answer(enum bootstrap_answer how, const char *address, struct sbuf *out)
{
    if (how == BOOTSTRAP_BARE) {
        sbuf_adds(out, address);
    } else if (how == BOOTSTRAP_JSON) {
        struct jsw w;

        jsw_init(&w, JSW_PLAIN);
        jsw_obj(&w, NULL);
        jsw_u64(&w, "version", 3);
        jsw_str(&w, "address", address);
        jsw_str(&w, "protocol", "ttrpc");
        jsw_end_obj(&w);

        AUTO_FREE char *text = jsw_take(&w, NULL);

        sbuf_adds(out, text);
    } else {
        Bootstrap__BootstrapResult r = BOOTSTRAP__BOOTSTRAP_RESULT__INIT;

        r.version = 3;
        r.address = address;
        r.protocol = "ttrpc";
        (void)pb_pack(&r, out); /* an address that we made is text */
    }
}

/* filepath.Clean of an absolute or relative path, as the reference hashes it. */
static char *clean(const char *path)
{
    struct strv parts = { 0 };
    struct sbuf out = { 0 };
    bool absolute = path[0] == '/';

    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");

        if (n == 2 && p[0] == '.' && p[1] == '.' && parts.n > 0 &&
            !str_eq(parts.v[parts.n - 1], "..")) {
            free(parts.v[--parts.n]);
            parts.v[parts.n] = NULL;
        } else if (n > 0 && !(n == 1 && p[0] == '.') &&
                   !(n == 2 && p[0] == '.' && p[1] == '.' && absolute)) {
            strv_addf(&parts, "%.*s", (int)n, p);
        }
        p += n + (p[n] == '/');
    }
    for (size_t i = 0; i < parts.n; i++)
        sbuf_addf(&out, "%s%s", absolute || i > 0 ? "/" : "", parts.v[i]);
    if (parts.n == 0)
        sbuf_adds(&out, absolute ? "/" : ".");
    strv_release(&parts);
    return sbuf_take(&out);
}

int bootstrap_address(const char *dir, const char *address, const char *ns, const char *group,
                      char **ret, struct err *err)
{
    AUTO_FREE char *joined = str_format("%s%s%s/%s", address, address[0] ? "/" : "", ns, group);
    AUTO_FREE char *name = clean(joined);
    char hex[SHA256_HEX_SIZE];
    struct sha256 sha;

    sha256_init(&sha);
    sha256_add(&sha, name, strlen(name));
    sha256_hex(&sha, hex);
    if (!dir)
        dir = BOOTSTRAP_SOCKET_DIR;
    if (strlen(dir) + 1 + strlen(hex) > RPC_PATH_MAX)
        return err_set(err, ERR_INVALID, "socket directory %s is too long: at most %zu bytes", dir,
                       RPC_PATH_MAX - 1 - strlen(hex));
    *ret = str_format("unix://%s/%s", dir, hex);
    return 0;
}
