/* config_print.c - the configuration as a file, as a list with origins, as JSON, as a page. */
#include "base/json.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include <stdlib.h>
#include <string.h>

#define ORIGIN_COLUMN 40
#define UID_LAST 4294967294u /* the one behind it means "no user" */

static void section_line(size_t i, struct sbuf *out)
{
    if (i == 0 || !str_eq(config_keys[i].section, config_keys[i - 1].section))
        sbuf_addf(out, "%s[%s]\n", i ? "\n" : "", config_keys[i].section);
}

void config_print(const struct config *c, struct sbuf *out)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];

        section_line(i, out);
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
        config_key_print(c, k, out);
        sbuf_addc(out, '\n');
    }
}

static const char *origin_of(const struct config_report *r, size_t i)
{
    return r->origin[i] ? r->origin[i] : "default";
}

void config_print_short(const struct config *c, const struct config_report *report,
                        struct sbuf *out)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        size_t begin;

        section_line(i, out);
        begin = out->len;
        sbuf_addf(out, "%s = ", config_keys[i].name);
        config_key_print(c, &config_keys[i], out);
        if (report) {
            size_t used = out->len - begin;

            sbuf_addf(out, "%*s; %s", used < ORIGIN_COLUMN - 1 ? (int)(ORIGIN_COLUMN - used) : 1,
                      "", origin_of(report, i));
        }
        sbuf_addc(out, '\n');
    }
}

void config_print_json(const struct config *c, const struct config_report *report, struct sbuf *out)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    for (size_t i = 0; i < config_n_keys; i++) {
        AUTO(sbuf_release) struct sbuf value = { 0 };

        sbuf_adds(&value, "");
        config_key_print(c, &config_keys[i], &value);
        jsw_obj(&w, NULL);
        jsw_str(&w, "section", config_keys[i].section);
        jsw_str(&w, "key", config_keys[i].name);
        jsw_str(&w, "value", value.data);
        jsw_str(&w, "origin", origin_of(report, i));
        jsw_end_obj(&w);
    }
    jsw_end_arr(&w);

    AUTO_FREE char *text = jsw_take(&w, NULL);

    sbuf_adds(out, text);
}

void config_check(const struct config *c, struct config_report *report)
{
    if (c->memory_mib > c->max_memory_mib)
        strv_addf(&report->errors, "memory_mib = %u: larger than max_memory_mib = %u",
                  c->memory_mib, c->max_memory_mib);
    if (c->cpus > c->max_cpus)
        strv_addf(&report->errors, "cpus = %u: more than max_cpus = %u", c->cpus, c->max_cpus);
    if ((uint64_t)c->vm_uid_base + c->vm_uid_count - 1 > UID_LAST)
        strv_addf(&report->errors, "vm_uid_base = %u: with vm_uid_count = %u it goes beyond %u",
                  c->vm_uid_base, c->vm_uid_count, UID_LAST);
}

/* ------------------------------------------------------------------ the page */

static const struct {
    const char *section, *text;
} section_texts[] = {
    { "vm", "What a VM is made of, and how large it is." },
    { "host", "Where things are kept on the host, and what containers may choose." },
};

void config_print_markdown(struct sbuf *out)
{
    sbuf_adds(out,
              "# Configuration\n\n"
              "Generated from the code's table by `lcow config reference`; a test keeps it so.\n\n"
              "`" CONFIG_PATH "`, then `" CONFIG_PATH ".d/*.conf` in the order of their names; "
              "later values\nwin. `$" CONFIG_ENV "` or `lcow --config` names another file. A "
              "runtime in containerd's\nconfiguration may name one as `ConfigPath`, or have the "
              "keys themselves in its `options`\ntable, which win over the file. INI: `[section]`, "
              "`key = value`, comments begin with `#` or\n`;`. Sections may be left out. Units are "
              "in the names of keys.\n\n"
              "`lcow config` prints the configuration in effect as a file, `lcow config show "
              "--origin`\nwhere each value comes from, `lcow config check` everything that is "
              "wrong.\n");
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];

        if (i == 0 || !str_eq(k->section, config_keys[i - 1].section)) {
            sbuf_addf(out, "\n## [%s]\n\n", k->section);
            for (size_t n = 0; n < ARRAY_LEN(section_texts); n++)
                if (str_eq(section_texts[n].section, k->section))
                    sbuf_addf(out, "%s\n", section_texts[n].text);
        }
        sbuf_addf(out, "\n### %s\n\n%s\n\n", k->name, k->doc);
        sbuf_adds(out, "- allowed: ");
        config_key_allowed(k, out);
        sbuf_addf(out, "\n- default: `%s`\n", k->def ? k->def : CONFIG_IMAGE_DIR);
    }
}
