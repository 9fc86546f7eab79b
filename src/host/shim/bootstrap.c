#include "host/shim/bootstrap.h"
#include "api/bootstrap.pb-c.h"
#include "api/runc.pb-c.h"
#include "api/runhcs.pb-c.h"
#include "api/runtimeoptions.pb-c.h"
#include "base/err.h"
#include "base/json.h"
#include "base/sha256.h"
#include "host/config/config.h"
#include "host/config/runhcs.h"
#include "host/rpc/rpc_sock.h"
#include "host/service/service.h"
#include "proto/pb.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BODY_NAME "runtime options"
#define PLATFORM "linux/amd64"

/* An option that is not set changes nothing. */
static void take_text(char **field, const char *text)
{
    if (!text[0])
        return;
    free(*field);
    *field = str_dup(text);
}

static int take_runtime_options(const Runtimeoptions__Options *o, struct bootstrap *b,
                                struct err *err)
{
    const char *body = (const char *)o->config_body.data;

    take_text(&b->config_path, o->config_path);
    if (o->config_body.len == 0)
        return 0;
    if (memchr(body, '\0', o->config_body.len))
        return err_set(err, ERR_INVALID, BODY_NAME ": config_body contains a NUL byte");
    free(b->config_body);
    b->config_body = str_ndup(body, o->config_body.len);
    return 0;
}

/* logrus' names. */
static int take_level(const char *text, struct bootstrap *b, struct err *err)
{
    const char *name = str_eq(text, "warning")                          ? "warn"
                       : str_eq(text, "fatal") || str_eq(text, "panic") ? "error"
                                                                        : text;

    if (log_level_parse(name, &b->log_level) < 0)
        return err_set(err, ERR_INVALID,
                       "log_level \"%s\" in the runtime options: must be trace, debug, info, warn, "
                       "error or off",
                       text);
    b->has_log_level = true;
    return 0;
}

/* 0: not set. */
static int take_number(const char *name, int32_t value, uint32_t min, uint32_t max, uint32_t *ret,
                       struct err *err)
{
    if (value != 0 && (value < 0 || (uint32_t)value < min || (uint32_t)value > max))
        return err_set(err, ERR_INVALID, "%s %d in the runtime options: must be %u–%u", name, value,
                       min, max);
    *ret = (uint32_t)value;
    return 0;
}

static int take_runhcs_options(const Runhcs__Options *o, struct bootstrap *b, struct err *err)
{
    if (o->sandbox_platform[0] && strcasecmp(o->sandbox_platform, PLATFORM) != 0)
        return err_set(err, ERR_INVALID,
                       "sandbox_platform \"%.32s\" in the runtime options: must be " PLATFORM,
                       o->sandbox_platform);
    if (o->boot_files_root_path[0] && o->boot_files_root_path[0] != '/')
        return err_set(
            err, ERR_INVALID,
            "boot_files_root_path \"%.100s\" in the runtime options is not an absolute path",
            o->boot_files_root_path);
    if (o->log_level[0] && take_level(o->log_level, b, err) < 0)
        return -1;
    if (!o->log_level[0] && o->debug) {
        b->log_level = LOG_DEBUG;
        b->has_log_level = true;
    }
    if (take_number("vm_memory_size_in_mb", o->vm_memory_size_in_mb, CONFIG_MEMORY_MIB_MIN,
                    CONFIG_MEMORY_MIB_MAX, &b->memory_mib, err) < 0 ||
        take_number("vm_processor_count", o->vm_processor_count, 1, CONFIG_CPUS_MAX, &b->cpus,
                    err) < 0)
        return -1;
    take_text(&b->image_dir, o->boot_files_root_path);
    b->has_scrub_logs = o->scrub_case == RUNHCS__OPTIONS__SCRUB_SCRUB_LOGS;
    b->scrub_logs = b->has_scrub_logs && o->scrub_logs;
    for (size_t i = 0; i < o->n_default_container_annotations; i++)
        strv_addf(&b->annotations, "%s=%s", o->default_container_annotations[i]->key,
                  o->default_container_annotations[i]->value);
    return 0;
}

static bool is_set(const void *message, const ProtobufCFieldDescriptor *f)
{
    const char *m = message, *at = m + f->offset;

    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)(m + f->quantifier_offset) == f->id;
    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        return *(const size_t *)(m + f->quantifier_offset) > 0;
    if (f->type == PROTOBUF_C_TYPE_STRING)
        return **(char *const *)at != '\0';
    return *(const int32_t *)at != 0; /* booleans and enums have the same size */
}

/* For options without an effect: an error, or a note for the log. */
static int judge_runhcs_options(const Runhcs__Options *o, struct bootstrap *b, struct err *err)
{
    const ProtobufCMessageDescriptor *d = &runhcs__options__descriptor;

    for (unsigned i = 0; i < d->n_fields; i++) {
        const struct runhcs_option *known = runhcs_option(d->fields[i].name);

        if (!known || known->verdict == RUNHCS_WORKS || !is_set(o, &d->fields[i]))
            continue;
        if (known->verdict == RUNHCS_REFUSED)
            return err_set(err, ERR_UNIMPLEMENTED,
                           "%s in the runtime options: lcow does not support %s", known->name,
                           known->doc);
        strv_addf(&b->notes, "%s: %s", known->name, known->doc);
    }
    return 0;
}

int bootstrap_options(const Any *any, struct bootstrap *b, struct err *err)
{
    static const ProtobufCMessageDescriptor *const messages[] = {
        [OPTIONS_RUNTIME] = &runtimeoptions__options__descriptor,
        [OPTIONS_RUNC] = &runc__options__descriptor,
        [OPTIONS_RUNHCS] = &runhcs__options__descriptor,
    };
    enum options_type type;
    AUTO(pb_free) void *m = NULL;

    if (service_options_type(any->type_url, &type, err) < 0)
        return -1;
    if (type == OPTIONS_NONE)
        return 0;
    if (pb_any_unpack(any, messages[type], &m) < 0)
        return err_set(err, ERR_INVALID, "invalid %s: the message does not decode", any->type_url);
    if (type == OPTIONS_RUNTIME)
        return take_runtime_options(m, b, err);
    if (type == OPTIONS_RUNHCS)
        return take_runhcs_options(m, b, err) < 0 ? -1 : judge_runhcs_options(m, b, err);
    take_text(&b->shim_cgroup, ((Runc__Options *)m)->shim_cgroup);
    return 0;
}

int bootstrap_apply(const struct bootstrap *b, struct config *c, struct err *err)
{
    if (b->config_body && config_parse_toml(c, BODY_NAME, b->config_body, err) < 0)
        return -1;
    if (b->memory_mib)
        c->memory_mib = b->memory_mib;
    if (b->cpus)
        c->cpus = b->cpus;
    if (b->image_dir)
        take_text(&c->image_dir, b->image_dir);
    for (size_t i = 0; i < b->annotations.n; i++)
        strv_add(&c->default_annotations, b->annotations.v[i]);
    if (b->has_log_level && b->log_level < c->log_level)
        c->log_level = b->log_level;
    if (b->has_scrub_logs)
        c->scrub_logs = b->scrub_logs;
    return 0;
}

/* --- options that differ from the shim's --- */

/* Compares values, not text: the encoder of a table may change the order of its lines. */
static bool same_body(const char *a, const char *b)
{
    AUTO(config_release) struct config of_a, of_b;
    AUTO(sbuf_release) struct sbuf text_a = { 0 }, text_b = { 0 };
    struct err ignored = ERR_INIT;

    config_init(&of_a);
    config_init(&of_b);
    if ((a && config_parse_toml(&of_a, BODY_NAME, a, &ignored) < 0) ||
        config_parse_toml(&of_b, BODY_NAME, b, &ignored) < 0)
        return false;
    config_print(&of_a, NULL, false, &text_a);
    config_print(&of_b, NULL, false, &text_b);
    return str_eq(text_a.data, text_b.data);
}

static bool has(const struct strv *list, const char *word)
{
    for (size_t i = 0; i < list->n; i++)
        if (str_eq(list->v[i], word))
            return true;
    return false;
}

/* NULL: no difference. */
static const char *differs_of_shim(const struct bootstrap *have, const struct bootstrap *more)
{
    if (more->config_path && !str_eq(have->config_path, more->config_path))
        return "ConfigPath";
    if (more->config_body && !same_body(have->config_body, more->config_body))
        return "the options table";
    if (more->shim_cgroup && !str_eq(have->shim_cgroup, more->shim_cgroup))
        return "shim_cgroup";
    return NULL;
}

static const char *differs_of_vm(const struct bootstrap *have, const struct bootstrap *more)
{
    if (more->memory_mib && have->memory_mib != more->memory_mib)
        return "vm_memory_size_in_mb";
    if (more->cpus && have->cpus != more->cpus)
        return "vm_processor_count";
    if (more->image_dir && !str_eq(have->image_dir, more->image_dir))
        return "boot_files_root_path";
    if (more->has_log_level && (!have->has_log_level || have->log_level != more->log_level))
        return "log_level";
    if (more->has_scrub_logs && (!have->has_scrub_logs || have->scrub_logs != more->scrub_logs))
        return "scrub_logs";
    for (size_t i = 0; i < more->annotations.n; i++)
        if (!has(&have->annotations, more->annotations.v[i]))
            return "default_container_annotations";
    return NULL;
}

static void take_over(struct bootstrap *have, const struct bootstrap *more)
{
    have->memory_mib = more->memory_mib ? more->memory_mib : have->memory_mib;
    have->cpus = more->cpus ? more->cpus : have->cpus;
    take_text(&have->image_dir, more->image_dir ? more->image_dir : "");
    if (more->has_log_level) {
        have->has_log_level = true;
        have->log_level = more->log_level;
    }
    if (more->has_scrub_logs) {
        have->has_scrub_logs = true;
        have->scrub_logs = more->scrub_logs;
    }
    for (size_t i = 0; i < more->annotations.n; i++)
        strv_add(&have->annotations, more->annotations.v[i]);
}

int bootstrap_merge(struct bootstrap *have, const struct bootstrap *more, bool early,
                    struct config *c, struct err *err)
{
    const char *shim = differs_of_shim(have, more), *vm = differs_of_vm(have, more);

    if (shim || (vm && !early))
        return err_set(err, ERR_STATE,
                       "%s in the runtime options differs from the value with which this shim %s: "
                       "options apply to the whole sandbox; use the same options, or another "
                       "sandbox",
                       shim ? shim : vm, shim ? "was started" : "started its VM");
    if (!vm)
        return 0;
    take_over(have, more);
    return bootstrap_apply(more, c, err);
}

static enum log_level level_of(int level)
{
    return level <= -8 ? LOG_TRACE
           : level < 0 ? LOG_DEBUG
           : level < 4 ? LOG_INFO
           : level < 8 ? LOG_WARN
                       : LOG_ERROR;
}

/* True if the bytes are this message with our id. */
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
    take_text(&b->ttrpc_address, p->containerd_ttrpc_address);
    take_text(&b->grpc_address, p->containerd_grpc_address);
    take_text(&b->socket_dir, p->socket_dir);
    b->log_level = level_of((int)p->log_level);
    b->has_log_level = true;
    for (size_t i = 0; i < p->n_extensions && *ret == 0; i++) {
        const Any *any = p->extensions[i]->value;
        struct err ignored = ERR_INIT;
        enum options_type type;

        /* Not all extensions are options, and later versions may add more. */
        if (any && service_options_type(any->type_url, &type, &ignored) == 0)
            *ret = bootstrap_options(any, b, err);
    }
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
        r = bootstrap_options(any, &b, err);
    if (r < 0)
        return -1;
    if (b.socket_dir && (b.socket_dir[0] != '/' || strlen(b.socket_dir) > BOOTSTRAP_SOCKET_DIR_MAX))
        return err_set(err, ERR_INVALID,
                       "invalid socket_dir \"%s\": must be an absolute path of at most %d bytes",
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
    free(b->config_body);
    free(b->shim_cgroup);
    free(b->image_dir);
    strv_release(&b->annotations);
    strv_release(&b->notes);
    *b = (struct bootstrap){ 0 };
}

void bootstrap_answer(const struct bootstrap *b, const char *max_shim_version, const char *cwd,
                      const char *address, struct sbuf *out)
{
    if (b->params) {
        Bootstrap__BootstrapResult r = BOOTSTRAP__BOOTSTRAP_RESULT__INIT;

        r.version = 3;
        r.address = address;
        r.protocol = "ttrpc";
        (void)pb_pack(&r, out); /* cannot fail: our address is UTF-8 */
    } else if (max_shim_version && strstr(cwd, "/io.containerd.sandbox.controller.v1.shim/")) {
        AUTO(json_decref)
        json_t *all =
            json_pack("{si, ss, ss}", "version", 3, "address", address, "protocol", "ttrpc");
        AUTO_FREE char *text = js_text(all, 0);

        sbuf_adds(out, text);
    } else {
        sbuf_adds(out, address);
    }
}

/* filepath.Clean of an absolute path, since the reference hashes the cleaned path. */
static void add_clean(struct sbuf *out, const char *path)
{
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");

        if (n == 2 && strncmp(p, "..", 2) == 0)
            while (out->len > 0 && out->data[--out->len] != '/')
                ;
        else if (n > 0 && !(n == 1 && *p == '.'))
            sbuf_addf(out, "/%.*s", (int)n, p);
        p += n + (p[n] == '/');
    }
}

int bootstrap_address(const char *dir, const char *address, const char *ns, const char *group,
                      char **ret, struct err *err)
{
    AUTO(sbuf_release) struct sbuf joined = { 0 };
    char hex[SHA256_HEX_SIZE];

    add_clean(&joined, address);
    sbuf_addf(&joined, "/%s/%s", ns, group);

    const char *name = joined.data + (address[0] != '/');

    sha256_of(name, strlen(name), hex);
    if (!dir)
        dir = BOOTSTRAP_SOCKET_DIR;
    if (strlen(dir) + 1 + strlen(hex) > RPC_PATH_MAX)
        return err_set(err, ERR_INVALID,
                       "socket directory %s is too long: the maximum is %zu bytes", dir,
                       RPC_PATH_MAX - 1 - strlen(hex));
    *ret = str_format("unix://%s/%s", dir, hex);
    return 0;
}
