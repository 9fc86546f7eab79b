#include "host/config/config.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MAX_BYTES (256 * 1024)
#define UTF8_MARK "\xef\xbb\xbf"

/* Programs run from a build tree (build/bin) find the image beside them. */
static char *default_image_dir(void)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    exe[n > 0 ? n : 0] = '\0';

    AUTO_FREE char *dir = str_format("%s/image", dirname(dirname(exe)));
    AUTO_FREE char *manifest = str_format("%s/manifest.json", dir);

    return access(manifest, F_OK) == 0 ? TAKE_PTR(dir) : str_dup(CONFIG_IMAGE_DIR);
}

void config_init(struct config *c)
{
    struct err err = ERR_INIT;

    *c = (struct config){ 0 };
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];

        if (k->def && config_key_set(c, k, k->def, &err) < 0)
            abort(); /* a default in the table violates its own bounds */
    }
    c->image_dir = default_image_dir();
}

void config_release(struct config *c)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        char **field = (char **)((char *)c + k->offset);

        if (k->type == KEY_PATH || k->type == KEY_PROGRAM || k->type == KEY_WORDS ||
            k->type == KEY_CGROUP || k->type == KEY_URL)
            free(TAKE_PTR(*field));
    }
    strv_release(&c->default_annotations);
}

void config_report_release(struct config_report *r)
{
    strv_release(&r->errors);
    strv_release(&r->files);
    for (size_t i = 0; i < ARRAY_LEN(r->origin); i++)
        free(TAKE_PTR(r->origin[i]));
}

/* ------------------------------------------------------------------ one value */

static int refuse(const char *where, const char *what, struct config_report *report,
                  struct err *err)
{
    if (!report)
        return err_because(err, REASON_INVALID_CONFIG, ERR_INVALID, "%s: %s", where, what);
    strv_addf(&report->errors, "%s: %s", where, what);
    return 0;
}

int config_take(struct config *c, const char *where, const char *section, const char *name,
                const char *value, struct config_report *report, struct err *err)
{
    struct err why = ERR_INIT;
    const struct config_key *k = config_key_find(section, name, &why);

    if (!k)
        return report && report->skip_unknown ? 0 : refuse(where, why.msg, report, err);
    if (config_key_set(c, k, value, &why) < 0) {
        AUTO_FREE char *what = str_format("%s = %s: %s", name, value, why.msg);

        return refuse(where, what, report, err);
    }
    if (report) {
        char **origin = &report->origin[k - config_keys];

        free(*origin);
        *origin = str_dup(where);
    }
    return 0;
}

/* ------------------------------------------------------------------ reading one file */

/* The first of: a character in `wanted`, a comment (a semicolon at the beginning or after a blank),
 * the end. */
static char *find(char *s, const char *wanted)
{
    for (bool blank = true; *s && !strchr(wanted, *s) && !(blank && *s == ';'); s++)
        blank = *s == ' ' || *s == '\t';
    return s;
}

static char *strip(char *s)
{
    size_t n;

    s += strspn(s, " \t");
    for (n = strlen(s); n > 0 && strchr(" \t\r", s[n - 1]);)
        s[--n] = '\0';
    return s;
}

static int take_line(struct config *c, const char *where, char *line, char **section,
                     struct config_report *report, struct err *err)
{
    char *at = find(line, *line == '[' ? "]" : "=:");

    if (!*line || *line == '#' || *line == ';')
        return 0;
    if (!*at || *at == ';')
        return refuse(where, "invalid line: must be [section] or key = value", report, err);
    *at++ = '\0';
    if (*line == '[') {
        free(*section);
        *section = str_dup(line + 1);
        return 0;
    }
    *find(at, "") = '\0';
    return config_take(c, where, *section, strip(line), strip(at), report, err);
}

int config_parse(struct config *c, const char *name, const char *text, size_t len,
                 struct config_report *report, struct err *err)
{
    const char *end = text + len, *next;
    AUTO_FREE char *section = str_dup("");
    unsigned number = 0;
    int r = 0;

    if (len >= strlen(UTF8_MARK) && memcmp(text, UTF8_MARK, strlen(UTF8_MARK)) == 0)
        text += strlen(UTF8_MARK);
    for (; r == 0 && text < end; text = next) {
        const char *newline = memchr(text, '\n', (size_t)(end - text)),
                   *stop = newline ? newline : end;
        AUTO_FREE char *where = str_format("%s:%u", name, ++number);
        AUTO_FREE char *line = str_ndup(text, (size_t)(stop - text));

        r = strlen(line) < (size_t)(stop - text)
                ? refuse(where, "invalid line: it contains a NUL byte", report, err)
                : take_line(c, where, strip(line), &section, report, err);
        next = newline ? newline + 1 : end;
    }
    return r;
}

int config_parse_saved(struct config *c, const char *name, const char *text, size_t len,
                       struct err *err)
{
    AUTO(config_report_release) struct config_report report = { .skip_unknown = true };

    (void)config_parse(c, name, text, len, &report, err); /* errors are in the report */
    if (report.errors.n == 0)
        return 0;
    return err_because(err, REASON_INVALID_CONFIG, ERR_INVALID, "%s", report.errors.v[0]);
}

/* ------------------------------------------------------------------ reading all files */

int config_read_file(struct config *c, const char *path, struct config_report *report,
                     struct err *err)
{
    AUTO_FREE char *text = NULL;
    size_t len;
    int r = file_read_all(path, CONFIG_MAX_BYTES, &text, &len);

    if (r < 0 && report)
        return refuse(path, strerror(-r), report, err);
    if (r < 0)
        return err_sys(err, -r, "read configuration %s", path);
    if (report)
        strv_add(&report->files, path);
    return config_parse(c, path, text, len, report, err);
}

static int is_conf(const struct dirent *d)
{
    return d->d_name[0] != '.' && str_ends(d->d_name, ".conf");
}

static int read_dir(struct config *c, const char *dir, struct config_report *report,
                    struct err *err)
{
    struct dirent **names;
    int n = scandir(dir, &names, is_conf, alphasort), r = 0;

    if (n < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read configuration %s", dir);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, names[i]->d_name);

        if (r == 0)
            r = config_read_file(c, path, report, err);
        free(names[i]);
    }
    free(names);
    return r;
}

int config_read(struct config *c, const char *path, struct config_report *report, struct err *err)
{
    bool named = true;

    if (!path)
        path = getenv(CONFIG_ENV);
    if (!path || !*path) {
        path = CONFIG_PATH;
        named = false;
    }
    AUTO_FREE char *dir = str_format("%s.d", path);

    if ((named || access(path, F_OK) == 0) && config_read_file(c, path, report, err) < 0)
        return -1;
    return read_dir(c, dir, report, err);
}

int config_load(struct config *c, const char *path, struct err *err)
{
    return config_read(c, path, NULL, err);
}
