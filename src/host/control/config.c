#include "host/control/config.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "host/own/scratch.h"
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MAX_BYTES (256 * 1024)
#define CONFIG_LINE_MAX 190 /* libinih's buffer holds 200 */

enum key_type {
    KEY_BOOL,
    KEY_U32,
    KEY_PATH,    /* absolute */
    KEY_PROGRAM, /* absolute, or a name without a slash */
    KEY_LEVEL,
    KEY_WORDS,  /* any, separated by blanks */
    KEY_EITHER, /* bool: the words for false and true */
};

struct config_key {
    const char *section, *name;
    enum key_type type;
    const char *def; /* NULL: computed by config_init */
    uint32_t min, max;
    size_t offset;
    const char *doc;
    const char *either[2]; /* KEY_EITHER */
};

#define FIELD(f) offsetof(struct config, f)
static const struct config_key keys[] = {
    { "vm", "allow_emulation", KEY_BOOL, "false", 0, 0, FIELD(allow_emulation),
      "Run VMs by software emulation where KVM does not work. Slow, and no\n"
      "security boundary." },
    { "vm", "memory_mib", KEY_U32, "256", CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX,
      FIELD(memory_mib), "Memory of a VM." },
    { "vm", "cpus", KEY_U32, "1", 1, CONFIG_CPUS_MAX, FIELD(cpus), "Virtual CPUs of a VM." },
    { "vm", "boot_timeout_s", KEY_U32, "60", 1, 120, FIELD(boot_timeout_s),
      "A VM whose agent has not answered by then is ended." },
    { "vm", "qemu", KEY_PROGRAM, "qemu-system-x86_64", 0, 0, FIELD(qemu),
      "QEMU: a path, or a name that is looked up in PATH." },
    { "vm", "image_dir", KEY_PATH, NULL, 0, 0, FIELD(image_dir),
      "Guest image: kernel, initramfs and manifest.json." },
    { "vm", "overhead_mib", KEY_U32, "128", 0, 65536, FIELD(overhead_mib),
      "A container with a memory limit gets a VM of that size plus this, for\n"
      "kernel and agent." },
    { "vm", "max_memory_mib", KEY_U32, "65536", CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX,
      FIELD(max_memory_mib), "No container's limit makes a VM larger than this." },
    { "vm", "max_cpus", KEY_U32, "32", 1, CONFIG_CPUS_MAX, FIELD(max_cpus),
      "No container's limit gives a VM more virtual CPUs than this." },
    { "vm",
      "rootfs",
      KEY_EITHER,
      "scratch",
      0,
      0,
      FIELD(shared_rootfs),
      "Where a container's writes to its root file system go: scratch (a disk\n"
      "of the VM, gone with it) or shared (the snapshot on the host; slower).",
      { "scratch", "shared" } },
    { "vm",
      "template",
      KEY_EITHER,
      "auto",
      0,
      0,
      FIELD(use_template),
      "Start VMs from the memory of one that was booted once: auto (where QEMU\n"
      "can), or off (each boots on its own).",
      { "off", "auto" } },
    { "host", "allow_annotations", KEY_WORDS, "io.lcow.memory_mib io.lcow.cpus io.lcow.rootfs", 0,
      0, FIELD(allow_annotations),
      "Annotations of a container that may change its VM; others are ignored." },
    { "host", "run_root", KEY_PATH, "/run/lcow", 0, 0, FIELD(run_root),
      "A directory for each VM, with the ledger of what it owns." },
    { "host", "scratch_dir", KEY_PATH, "/var/lib/lcow", 0, 0, FIELD(scratch_dir),
      "The VMs' scratch disks are here, and the pristine one they are copied\n"
      "from. Sparse files; best on a file system that clones them (xfs, btrfs)." },
    { "host", "template_dir", KEY_PATH, "/var/lib/lcow/templates", 0, 0, FIELD(template_dir),
      "What VMs are started from (template = auto)." },
    { "host", "scratch_mib", KEY_U32, "10240", SCRATCH_MIB_MIN, SCRATCH_MIB_MAX, FIELD(scratch_mib),
      "Size of a VM's scratch disk. It takes what is written to it." },
    { "host", "vm_uid_base", KEY_U32, "2000000000", 1000, 4294900000u, FIELD(vm_uid_base),
      "Each VM's QEMU runs as a user of its own, taken from the range that\n"
      "begins here. Nobody else may use it." },
    { "host", "vm_uid_count", KEY_U32, "4096", 1, 65536, FIELD(vm_uid_count),
      "Size of that range: the most VMs at one time." },
    { "host", "log_level", KEY_LEVEL, "warn", 0, 0, FIELD(log_level),
      "Of the shim: trace, debug, info, warn, error or off. lcow itself has\n"
      "--log-level." },
};

/* Programs run from a build tree (build/bin) find the image beside them. */
static char *default_image_dir(void)
{
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    for (int up = 0; n > 0 && up < 2; up++) {
        while (n > 0 && exe[n - 1] != '/')
            n--;
        n--;
    }
    if (n > 0) {
        exe[n] = '\0';
        AUTO_FREE char *dir = str_format("%s/image", exe);
        AUTO_FREE char *manifest = str_format("%s/manifest.json", dir);

        if (access(manifest, F_OK) == 0)
            return TAKE_PTR(dir);
    }
    return str_dup("/usr/lib/lcow/image");
}

static void set_str(char **field, char *value)
{
    free(*field);
    *field = value;
}

static int parse_bool(const char *value, bool *ret)
{
    static const char *const yes[] = { "true", "yes", "on", "1" };
    static const char *const no[] = { "false", "no", "off", "0" };

    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (str_eq(value, yes[i]) || str_eq(value, no[i])) {
            *ret = str_eq(value, yes[i]);
            return 0;
        }
    }
    return -EINVAL;
}

/* Writes the field, or says what would have been allowed. */
static int key_set(struct config *c, const struct config_key *k, const char *value, struct err *err)
{
    void *field = (char *)c + k->offset;
    bool program_ok = k->type == KEY_PROGRAM && *value && !strchr(value, '/');
    uint64_t number;

    switch (k->type) {
    case KEY_BOOL:
        return parse_bool(value, field) < 0 ? err_set(err, ERR_INVALID, "must be true or false")
                                            : 0;
    case KEY_U32:
        if (str_to_u64(value, UINT64_MAX, &number) < 0)
            return err_set(err, ERR_INVALID, "must be a number from %u to %u", k->min, k->max);
        if (number < k->min || number > k->max)
            return err_set(err, ERR_RANGE, "must be from %u to %u", k->min, k->max);
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case KEY_PATH:
    case KEY_PROGRAM:
        if (*value != '/' && !program_ok)
            return err_set(err, ERR_INVALID, "must be an absolute path%s",
                           k->type == KEY_PROGRAM ? " or a program's name" : "");
        set_str(field, str_dup(value));
        return 0;
    case KEY_LEVEL:
        if (log_level_parse(value, field) < 0)
            return err_set(err, ERR_INVALID, "must be trace, debug, info, warn, error or off");
        return 0;
    case KEY_WORDS:
        set_str(field, str_dup(value));
        return 0;
    case KEY_EITHER:
        if (!str_eq(value, k->either[0]) && !str_eq(value, k->either[1]))
            return err_set(err, ERR_INVALID, "must be %s or %s", k->either[0], k->either[1]);
        *(bool *)field = str_eq(value, k->either[1]);
        return 0;
    }
    return err_set(err, ERR_INTERNAL, "key of unknown type");
}

void config_init(struct config *c)
{
    struct err err = ERR_INIT;

    *c = (struct config){ 0 };
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (keys[i].def && key_set(c, &keys[i], keys[i].def, &err) < 0)
            abort(); /* the table above contradicts itself */
    }
    c->image_dir = default_image_dir();
}

void config_release(struct config *c)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (keys[i].type == KEY_PATH || keys[i].type == KEY_PROGRAM || keys[i].type == KEY_WORDS)
            set_str((char **)((char *)c + keys[i].offset), NULL);
    }
}

/* ------------------------------------------------------------------ reading one file */

struct source {
    struct config *c;
    const char *name;
    const char *at, *end;
    unsigned line; /* the one libinih got last; its own count is not told to handlers */
    bool failed;
    struct err *err;
};

/* fgets for libinih. Indentation goes: to libinih it would mean a continued value. */
static char *next_line(char *buf, int size, void *arg)
{
    struct source *s = arg;
    size_t len;

    if (s->at == s->end || s->failed)
        return NULL;
    const char *nl = memchr(s->at, '\n', (size_t)(s->end - s->at));
    const char *stop = nl ? nl : s->end;

    s->line++;
    while (s->at < stop && (*s->at == ' ' || *s->at == '\t'))
        s->at++;
    len = (size_t)(stop - s->at);
    if (len > CONFIG_LINE_MAX || (int)len + 2 > size || memchr(s->at, '\0', len)) {
        err_set(s->err, ERR_INVALID, "%s:%u: the line is %s", s->name, s->line,
                memchr(s->at, '\0', len) ? "not text" : "longer than 190 characters");
        s->failed = true;
        return NULL;
    }
    memcpy(buf, s->at, len);
    buf[len] = '\n';
    buf[len + 1] = '\0';
    s->at = nl ? nl + 1 : s->end;
    return buf;
}

static const struct config_key *find_key(const char *section, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (str_eq(keys[i].name, name) && (!section || str_eq(keys[i].section, section)))
            return &keys[i];
    }
    return NULL;
}

static const struct config_key *find_section(const char *section)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (str_eq(keys[i].section, section))
            return &keys[i];
    }
    return NULL;
}

/* The most helpful thing that can be said of a key that is not in the table. */
static void explain_unknown(struct source *s, const char *section, const char *name)
{
    const char *candidates[ARRAY_LEN(keys) + 1] = { 0 };
    const struct config_key *elsewhere = find_key(NULL, name);
    const char *near;

    if (elsewhere) {
        err_set(s->err, ERR_INVALID, "%s:%u: %s belongs below [%s], not below [%s]", s->name,
                s->line, name, elsewhere->section, section);
        return;
    }
    bool in_section = !*section || find_section(section);

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        candidates[i] = in_section ? keys[i].name : keys[i].section;
    if (!in_section) {
        near = str_nearest(section, candidates);
        err_set(s->err, ERR_INVALID, "%s:%u: unknown section [%s]%s%s%s", s->name, s->line, section,
                near ? "; did you mean [" : "", near ? near : "", near ? "]?" : "");
        return;
    }
    near = str_nearest(name, candidates);
    err_set(s->err, ERR_INVALID, "%s:%u: unknown key %s%s%s%s", s->name, s->line, name,
            near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static int on_value(void *arg, const char *section, const char *name, const char *value)
{
    struct source *s = arg;
    const struct config_key *k = find_key(*section ? section : NULL, name);
    struct err why = ERR_INIT;

    if (s->failed)
        return 0;
    if (!k) {
        explain_unknown(s, section, name);
        s->failed = true;
    } else if (key_set(s->c, k, value, &why) < 0) {
        err_set(s->err, why.code, "%s:%u: %s = %s: %s", s->name, s->line, name, value, why.msg);
        s->failed = true;
    }
    return !s->failed;
}

int config_parse(struct config *c, const char *name, const char *text, size_t len, struct err *err)
{
    struct source s = { .c = c, .name = name, .at = text, .end = text + len, .err = err };
    int r = ini_parse_stream(next_line, &s, on_value, &s);

    if (s.failed)
        return -1;
    if (r != 0)
        return err_set(err, ERR_INVALID, "%s:%d: neither [section] nor key = value", name, r);
    return 0;
}

static int load_file(struct config *c, const char *path, struct err *err)
{
    AUTO_FREE char *text = NULL;
    size_t len;
    int r = file_read_all(path, CONFIG_MAX_BYTES, &text, &len);

    if (r < 0)
        return err_sys(err, -r, "read configuration %s", path);
    return config_parse(c, path, text, len, err);
}

static int is_conf(const struct dirent *d)
{
    return d->d_name[0] != '.' && str_ends(d->d_name, ".conf");
}

static int load_dir(struct config *c, const char *dir, struct err *err)
{
    struct dirent **names;
    int n = scandir(dir, &names, is_conf, alphasort), r = 0;

    if (n < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read configuration %s", dir);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, names[i]->d_name);

        if (r == 0)
            r = load_file(c, path, err);
        free(names[i]);
    }
    free(names);
    return r;
}

int config_load(struct config *c, const char *path, struct err *err)
{
    bool named = true;

    if (!path)
        path = getenv(CONFIG_ENV);
    if (!path || !*path) {
        path = CONFIG_PATH;
        named = false;
    }
    AUTO_FREE char *dir = str_format("%s.d", path);

    if ((named || access(path, F_OK) == 0) && load_file(c, path, err) < 0)
        return -1;
    return load_dir(c, dir, err);
}

/* ------------------------------------------------------------------ printing */

static void print_value(const struct config *c, const struct config_key *k, struct sbuf *out)
{
    const void *field = (const char *)c + k->offset;

    switch (k->type) {
    case KEY_BOOL:
        sbuf_adds(out, *(const bool *)field ? "true" : "false");
        break;
    case KEY_U32:
        sbuf_addf(out, "%u", *(const uint32_t *)field);
        break;
    case KEY_PATH:
    case KEY_PROGRAM:
    case KEY_WORDS:
        sbuf_adds(out, *(char *const *)field);
        break;
    case KEY_LEVEL:
        sbuf_adds(out, log_level_name(*(const enum log_level *)field));
        break;
    case KEY_EITHER:
        sbuf_adds(out, k->either[*(const bool *)field]);
        break;
    }
}

void config_print(const struct config *c, struct sbuf *out)
{
    const char *section = "";

    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct config_key *k = &keys[i];

        if (!str_eq(section, k->section))
            sbuf_addf(out, "%s[%s]\n", i ? "\n" : "", k->section);
        section = k->section;
        for (const char *line = k->doc; *line;) {
            size_t n = strcspn(line, "\n");

            sbuf_addf(out, "# %.*s\n", (int)n, line);
            line += n + (line[n] == '\n');
        }
        if (k->type == KEY_U32)
            sbuf_addf(out, "# %u to %u, by default %s.\n", k->min, k->max, k->def);
        else if (k->def)
            sbuf_addf(out, "# By default %s.\n", k->def);
        sbuf_addf(out, "%s = ", k->name);
        print_value(c, k, out);
        sbuf_addc(out, '\n');
    }
}
