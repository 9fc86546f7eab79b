/* shim.c - the command line, the action, its loop, and its exit status. */
#include "host/shim/shim.h"
#include "api/types.pb-c.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/saved.h"
#include "host/files/rootfs.h"
#include "host/service/service.h"
#include "host/shim/shim_priv.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --- the command line --- */

struct flag {
    const char *name;
    size_t offset;
    bool boolean;
};

#define AT(f) offsetof(struct shim_args, f)
#define IGNORED SIZE_MAX /* containerd passes it; not used */
static const struct flag flags[] = {
    { "namespace", AT(ns), false },
    { "id", AT(id), false },
    { "address", AT(address), false },
    { "publish-binary", IGNORED, false }, /* events go to $TTRPC_ADDRESS */
    { "bundle", AT(bundle), false },
    { "socket", AT(socket), false },
    { "debug-socket", IGNORED, false },
    { "debug", AT(debug), true },
    { "info", AT(info), true },
    { "v", AT(version), true },
    { "version", AT(version), true },
};

static const struct flag *find_flag(const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (strlen(flags[i].name) == len && strncmp(flags[i].name, name, len) == 0)
            return &flags[i];
    return NULL;
}

int shim_args_parse(char **argv, struct shim_args *ret, struct err *err)
{
    struct shim_args a = { "", "", "", "", "", false, false, false, "", NULL };
    char **arg = argv[0] ? argv + 1 : argv;

    for (; *arg && (*arg)[0] == '-' && (*arg)[1]; arg++) {
        const char *name = *arg + ((*arg)[1] == '-' ? 2 : 1), *value = strchr(name, '=');

        if (!name[0]) { /* "--" ends the flags */
            arg++;
            break;
        }

        const struct flag *f = find_flag(name, value ? (size_t)(value - name) : strlen(name));

        if (!f)
            return err_set(err, ERR_INVALID, "unknown flag %s", *arg);
        if (f->boolean) {
            if (str_to_bool(value ? value + 1 : "true", (bool *)((char *)&a + f->offset)) < 0)
                return err_set(err, ERR_INVALID, "-%s=%s: must be true or false", f->name,
                               value + 1);
            continue;
        }
        if (!value && !*++arg)
            return err_set(err, ERR_INVALID, "flag -%s needs a value", f->name);
        if (f->offset != IGNORED)
            *(const char **)((char *)&a + f->offset) = value ? value + 1 : *arg;
    }
    if (*arg)
        a.action = *arg++;
    a.rest = (const char *const *)arg;
    *ret = a;
    return 0;
}

int shim_args_check(const struct shim_args *a, struct err *err)
{
    if (!a->ns[0])
        return err_set(err, ERR_INVALID, "shim namespace cannot be empty: use -namespace");
    if (service_check_id("namespace", a->ns, err) < 0)
        return -1;
    return service_check_id("id", a->id, err);
}

/* --- -info --- */

#define FEATURES_TYPE "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

/* The supported parts of a client's spec, in the terms of the runtime-spec's "features". Not
 * listed, since they are refused or missing: hooks in the container; "shared" and "rshared" for the
 * host's directories; apparmor and selinux, which the guest's kernel lacks; SCMP_ACT_NOTIFY, whose
 * listener is a process of the host. */
static const char mount_options[] =
    "async atime bind defaults dev diratime dirsync exec idmap noatime nodev nodiratime noexec "
    "norelatime "
    "nostrictatime nosuid private rbind rdev relatime remount rexec ridmap rnodev rnoexec rnosuid "
    "ro "
    "rprivate rro rrw rslave rsuid runbindable rw slave strictatime suid sync tmpcopyup unbindable";
static const char namespaces[] = "cgroup ipc mount network pid user uts";
static const char capabilities[] =
    "CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID "
    "CAP_SETUID CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST "
    "CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO "
    "CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE "
    "CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE "
    "CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM "
    "CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE";
static const char seccomp_actions[] =
    "SCMP_ACT_ALLOW SCMP_ACT_ERRNO SCMP_ACT_KILL SCMP_ACT_KILL_PROCESS SCMP_ACT_KILL_THREAD "
    "SCMP_ACT_LOG SCMP_ACT_TRACE SCMP_ACT_TRAP";
static const char seccomp_operators[] =
    "SCMP_CMP_EQ SCMP_CMP_GE SCMP_CMP_GT SCMP_CMP_LE SCMP_CMP_LT SCMP_CMP_MASKED_EQ SCMP_CMP_NE";

static void add_words(struct jsw *w, const char *key, const char *words)
{
    jsw_arr(w, key);
    for (size_t n; *words; words += n + (words[n] == ' ')) {
        n = strcspn(words, " ");
        jsw_strn(w, NULL, words, n);
    }
    jsw_end_arr(w);
}

/* Caller frees. */
static char *features(size_t *ret_len)
{
    struct jsw w;

    jsw_init(&w, false);
    jsw_obj(&w, NULL);
    jsw_str(&w, "ociVersionMin", "1.0.0");
    jsw_str(&w, "ociVersionMax", "1.1.0");
    add_words(&w, "hooks", "prestart createRuntime poststart poststop");
    add_words(&w, "mountOptions", mount_options);
    jsw_obj(&w, "linux");
    add_words(&w, "namespaces", namespaces);
    add_words(&w, "capabilities", capabilities);
    jsw_raw(&w, "cgroup", "{\"v1\":false,\"v2\":true,\"systemd\":false,\"systemdUser\":false}");
    jsw_obj(&w, "seccomp");
    jsw_bool(&w, "enabled", true);
    add_words(&w, "actions", seccomp_actions);
    add_words(&w, "operators", seccomp_operators);
    add_words(&w, "archs", "SCMP_ARCH_X32 SCMP_ARCH_X86 SCMP_ARCH_X86_64");
    jsw_end_obj(&w);
    for (const char *const *no = (const char *const[]){ "apparmor", "selinux", "intelRdt", NULL };
         *no; no++)
        jsw_raw(&w, *no, "{\"enabled\":false}");
    jsw_obj(&w, "mountExtensions");
    jsw_obj(&w, "idmap");
    jsw_bool(&w, "enabled", true);
    for (int i = 0; i < 4; i++) /* idmap, mountExtensions, linux, all */
        jsw_end_obj(&w);
    return jsw_take(&w, ret_len);
}

void shim_info(struct pb_slice options, struct sbuf *out)
{
    AUTO(pb_free) RuntimeInfo *m = pb_new(&runtime_info__descriptor);
    RuntimeInfo__AnnotationsEntry *mounts = pb_new(&runtime_info__annotations_entry__descriptor);
    RuntimeInfo__AnnotationsEntry *saved = pb_new(&runtime_info__annotations_entry__descriptor);
    AUTO_FREE char *range = str_format("%d-%d", SAVED_OLDEST, SAVED_VERSION);
    size_t len;

    pb_set_str(&m->name, SHIM_RUNTIME);
    m->version = pb_new(&runtime_version__descriptor);
    pb_set_str(&m->version->version, LCOW_VERSION);
    if (options.len > 0) /* without options, none are returned */
        (void)pb_unpack(&any__descriptor, options, PB_MEM_MAX, (void **)&m->options, NULL);
    AUTO_FREE char *text = features(&len);
    pb_set_any_raw(&m->features, FEATURES_TYPE, text, len);
    pb_set_str(&mounts->key, "containerd.io/runtime-allow-mounts");
    pb_set_str(&mounts->value, ROOTFS_ALLOW_MOUNTS);
    pb_add(m->annotations, m->n_annotations, mounts);
    pb_set_str(&saved->key, SHIM_SAVED_KEY);
    pb_set_str(&saved->value, range);
    pb_add(m->annotations, m->n_annotations, saved);
    (void)pb_pack(m, out); /* cannot fail: our own strings are UTF-8 */
}

static int run_info(struct ctx *ctx, struct sbuf *out, struct err *err)
{
    AUTO(sbuf_release) struct sbuf in = { 0 };

    if (shim_read_stdin(ctx, &in, err) < 0)
        return -1;
    shim_info((struct pb_slice){ (const uint8_t *)in.data, in.len }, out);
    return 0;
}

/* --- actions --- */

struct run {
    struct loop *loop;
    const struct shim_args *args;
    const struct shim_backend *backend;
    struct sbuf out;
    struct err err;
    int result;
};

static void run_action(void *arg)
{
    struct run *r = arg;
    struct ctx ctx = ctx_root(r->loop);
    const struct shim_args *a = r->args;

    r->result = a->info                       ? run_info(&ctx, &r->out, &r->err)
                : str_eq(a->action, "start")  ? start_run(&ctx, a, &r->out, &r->err)
                : str_eq(a->action, "delete") ? delete_run(&ctx, a, &r->out, &r->err)
                : str_eq(a->action, "serve") || str_eq(a->action, "resume")
                    ? serve_run(&ctx, a, r->backend, &r->err)
                : str_eq(a->action, "template-build") ? template_run(&ctx, a, r->backend, &r->err)
                : str_eq(a->action, "layers-build")
                    ? layers_run(&ctx, a, &r->err)
                    : err_set(&r->err, ERR_INVALID,
                              "invalid action \"%s\": must be start, delete or serve", a->action);
    loop_stop(r->loop);
}

static int fail(const struct err *err)
{
    upgrade_go_back(err->msg);
    (void)dprintf(STDERR_FILENO, "%s: %s\n", SHIM_NAME, err->msg);
    return 1;
}

int shim_main(const struct shim_backend *backend, char **argv)
{
    struct err err = ERR_INIT;
    struct shim_args args;

    upgrade_guard(argv);
    if (shim_args_parse(argv, &args, &err) < 0)
        return fail(&err);
    if (args.version) {
        (void)dprintf(STDOUT_FILENO, "%s:\n  Version: %s\n  Runtime: %s\n", SHIM_NAME, LCOW_VERSION,
                      SHIM_RUNTIME);
        return 0;
    }
    /* start and delete print only an answer or an error; serve opens its log itself. */
    log_init(STDERR_FILENO, LOG_OFF, LOG_LOGFMT);

    struct loop *loop = loop_new(NULL);

    if (!loop) {
        (void)err_sys(&err, errno, "create an event loop");
        return fail(&err);
    }

    struct run r = { .loop = loop, .args = &args, .backend = backend, .err = ERR_INIT };

    fiber_go(loop, run_action, &r, "%s", args.info ? "info" : args.action);
    (void)loop_run(loop);
    loop_free(loop);

    int written = r.result == 0 ? fd_write_full(STDOUT_FILENO, r.out.data, r.out.len) : 0;

    if (written < 0)
        r.result = err_sys(&r.err, -written, "write to stdout");
    sbuf_release(&r.out);
    return r.result < 0 ? fail(&r.err) : 0;
}
