#include "tool/lib/args.h"
#include "base/err.h"
#include "base/str.h"
#include <errno.h>
#include <string.h>

struct scan {
    struct args_opts opts[2]; /* own, global */
    void *into;
    char **argv;
    int i; /* the current word */
    struct err *err;
};

static const struct args_opt *find(const struct scan *s, const char *name, size_t len, char letter,
                                   void **ret_field)
{
    for (size_t i = 0; i < ARRAY_LEN(s->opts); i++) {
        for (size_t k = 0; k < s->opts[i].n; k++) {
            const struct args_opt *o = &s->opts[i].v[k];

            if (letter ? o->letter == letter
                       : strlen(o->name) == len && memcmp(o->name, name, len) == 0) {
                *ret_field = (char *)s->into + o->offset;
                return o;
            }
        }
    }
    return NULL;
}

static int unknown(const struct scan *s, const char *word, size_t len)
{
    const char *names[64] = { "help" };
    size_t n = 1;
    AUTO_FREE char *given = str_ndup(word, len);

    for (size_t i = 0; i < ARRAY_LEN(s->opts); i++)
        for (size_t k = 0; k < s->opts[i].n && n < ARRAY_LEN(names) - 1; k++)
            if (!s->opts[i].v[k].hidden)
                names[n++] = s->opts[i].v[k].name;
    const char *near = str_nearest(given, names);

    return err_set(s->err, ERR_INVALID, "unknown option --%s%s%s%s", given,
                   near ? "; did you mean --" : "", near ? near : "", near ? "?" : "");
}

static int set_number(const struct scan *s, const struct args_opt *o, uint32_t *field,
                      const char *value)
{
    const char *unit = o->unit ? o->unit : "", *gap = o->unit ? " " : "";
    uint64_t number;
    int r = str_to_u64(value, UINT64_MAX, &number);

    if (r == -EINVAL)
        return err_set(s->err, ERR_INVALID, "--%s %s: must be %u–%u%s%s", o->name, value, o->min,
                       o->max, gap, unit);
    if (r < 0 || number > o->max)
        return err_set(s->err, ERR_INVALID, "--%s %s: must be at most %u%s%s", o->name, value,
                       o->max, gap, unit);
    if (number < o->min)
        return err_set(s->err, ERR_INVALID, "--%s %s: must be at least %u%s%s", o->name, value,
                       o->min, gap, unit);
    *field = (uint32_t)number;
    return 0;
}

static int set_optional(const struct scan *s, const struct args_opt *o, struct args_optional *field,
                        const char *value)
{
    *field = (struct args_optional){ .given = true, .value = value };
    if (!value)
        return 0;
    if (!*value)
        return err_set(s->err, ERR_INVALID, "--%s=: the %s is empty", o->name, o->value);
    for (const char *const *x = o->suffixes; x && *x; x++) {
        if (str_ends(value, *x))
            return 0;
        if (!x[1])
            return err_set(s->err, ERR_INVALID,
                           "--%s %s: the file's name must end with %s%s%s (a command follows --)",
                           o->name, value, o->suffixes[0], x == o->suffixes ? "" : " or ",
                           x == o->suffixes ? "" : *x);
    }
    return 0;
}

/* value NULL: the option's word has no value; the next word may be the value. */
static int set(struct scan *s, const struct args_opt *o, void *field, const char *value)
{
    const char *next = s->argv[s->i + 1];

    if (o->kind == ARGS_FLAG) {
        if (value)
            return err_set(s->err, ERR_INVALID, "--%s does not take a value", o->name);
        *(bool *)field = true;
        return 0;
    }
    if (o->kind == ARGS_OPTIONAL) {
        if (!value && o->suffixes && next && *next != '-') {
            value = next;
            s->i++;
        }
        return set_optional(s, o, field, value);
    }
    if (!value) {
        /* Otherwise "--" would become a value; no valid value begins with a dash. */
        if (!next || (next[0] == '-' && next[1]))
            return err_set(s->err, ERR_INVALID, "--%s needs a value: --%s %s", o->name, o->name,
                           o->value);
        value = next;
        s->i++;
    }
    if (o->kind == ARGS_NUMBER)
        return set_number(s, o, field, value);
    if (!*value)
        return err_set(s->err, ERR_INVALID, "--%s: the %s is empty", o->name, o->value);
    *(const char **)field = value;
    return 0;
}

static int parse_letters(struct scan *s, const char *word)
{
    for (const char *c = word + 1; *c; c++) {
        void *field;
        const struct args_opt *o = find(s, NULL, 0, *c, &field);
        const char *value = NULL;

        if (*c == 'h')
            return ARGS_HELP;
        if (!o)
            return err_set(s->err, ERR_INVALID, "unknown option -%c%s%s", *c, word[2] ? " in " : "",
                           word[2] ? word : "");
        if (o->kind != ARGS_FLAG && c[1])
            value = c + 1;
        if (set(s, o, field, value) < 0)
            return -1;
        if (value)
            break;
    }
    return 0;
}

static int parse_option(struct scan *s, const char *word)
{
    size_t len;
    void *field;

    if (word[1] != '-')
        return parse_letters(s, word);
    word += 2;
    len = strcspn(word, "=");
    if (len == 4 && memcmp(word, "help", 4) == 0)
        return ARGS_HELP;
    const struct args_opt *o = find(s, word, len, 0, &field);

    if (!o)
        return unknown(s, word, len);
    return set(s, o, field, word[len] == '=' ? word + len + 1 : NULL);
}

int args_parse(const struct args_cmd *cmd, struct args_opts global, void *into, char **argv,
               struct args_rest *ret_rest, struct err *err)
{
    struct scan s = { { cmd->opts, global }, into, argv, 1, err };
    bool takes_words = cmd->takes_words || cmd->takes_id;
    const char *word;
    int n_words = 0;

    *ret_rest = (struct args_rest){ 0 };
    for (; (word = argv[s.i]); s.i++) {
        int r;

        if (str_eq(word, "--")) {
            ret_rest->argv = &argv[s.i + 1];
            while (ret_rest->argv[ret_rest->n])
                ret_rest->n++;
            break;
        }
        if (takes_words && (word[0] != '-' || !word[1])) {
            argv[1 + n_words++] = argv[s.i]; /* overwrites only words that were already read */
            continue;
        }
        if (word[0] != '-' || !word[1])
            return err_set(err, ERR_INVALID, "unexpected '%s'%s%s%s%s", word,
                           cmd->takes_command ? "; a command follows --: lcow " : "",
                           cmd->takes_command ? cmd->name : "", cmd->takes_command ? " -- " : "",
                           cmd->takes_command ? word : "");
        r = parse_option(&s, word);
        if (r != 0)
            return r;
    }
    if (takes_words) {
        for (int i = 0; i < ret_rest->n; i++)
            argv[1 + n_words++] = ret_rest->argv[i];
        argv[1 + n_words] = NULL;
        *ret_rest = (struct args_rest){ &argv[1], n_words };
    } else if (ret_rest->n > 0 && !cmd->takes_command) {
        return err_set(err, ERR_INVALID, "unexpected '%s'", ret_rest->argv[0]);
    }
    return 0;
}

int args_parse_leading(struct args_opts own, struct args_opts global, void *into, char **argv,
                       int *ret_next, struct err *err)
{
    struct scan s = { { own, global }, into, argv, 1, err };

    for (; argv[s.i] && argv[s.i][0] == '-' && argv[s.i][1] && !str_eq(argv[s.i], "--"); s.i++) {
        int r = parse_option(&s, argv[s.i]);

        if (r != 0)
            return r;
    }
    *ret_next = s.i;
    return 0;
}

/* ------------------------------------------------------------------ help */

void args_wrap(struct sbuf *out, const char *text, size_t indent, size_t at)
{
    bool fresh = true;

    while (*text) {
        size_t len = strcspn(text, " \n");

        if (!fresh && at + 1 + len > ARGS_COLUMNS) {
            sbuf_addf(out, "\n%*s", (int)indent, "");
            at = indent;
            fresh = true;
        }
        if (!fresh)
            sbuf_addc(out, ' ');
        sbuf_add(out, text, len);
        at += len + !fresh;
        fresh = false;
        text += len;
        if (*text == '\n') {
            sbuf_addf(out, "\n%*s", text[1] && text[1] != '\n' ? (int)indent : 0, "");
            at = indent;
            fresh = true;
        }
        text += *text != '\0';
    }
}

void args_row(struct sbuf *out, const char *name, const char *doc, size_t width)
{
    sbuf_addf(out, "  %-*s  ", (int)width, name);
    if (strlen(name) > width) {
        out->len -= 2;
        sbuf_addf(out, "\n%*s", (int)width + 4, "");
    }
    args_wrap(out, doc, width + 4, width + 4);
    sbuf_addc(out, '\n');
}

static void option_name(const struct args_opt *o, struct sbuf *out)
{
    out->len = 0;
    if (o->letter)
        sbuf_addf(out, "-%c, ", o->letter);
    else
        sbuf_adds(out, "    ");
    sbuf_addf(out, "--%s", o->name);
    if (o->kind == ARGS_OPTIONAL)
        sbuf_addf(out, "[=%s]", o->value);
    else if (o->kind != ARGS_FLAG)
        sbuf_addf(out, " %s", o->value);
}

void args_help_options(const char *title, struct args_opts opts, struct sbuf *out)
{
    AUTO(sbuf_release) struct sbuf name = { 0 };

    sbuf_addf(out, "\n%s\n", title);
    for (size_t i = 0; i < opts.n; i++) {
        if (opts.v[i].hidden)
            continue;
        option_name(&opts.v[i], &name);
        args_row(out, name.data, opts.v[i].doc, 23);
    }
}

static void add_paragraph(struct sbuf *out, const char *text)
{
    if (text) {
        sbuf_addc(out, '\n');
        args_wrap(out, text, 0, 0);
        sbuf_addc(out, '\n');
    }
}

void args_help(const struct args_cmd *cmd, struct args_opts global, struct sbuf *out)
{
    const char *synopsis = cmd->synopsis    ? cmd->synopsis
                           : !cmd->takes_id ? "[options]"
                           : cmd->opts.n    ? "[options] ID"
                                            : "ID";
    AUTO_FREE char *exits =
        cmd->exits ? str_format("Exit code: 0; %s; 2 if the command line is invalid.", cmd->exits)
                   : NULL;

    sbuf_addf(out, "usage: lcow %s ", cmd->name);
    args_wrap(out, synopsis, 12 + strlen(cmd->name) + 1, 12 + strlen(cmd->name) + 1);
    sbuf_adds(out, "\n\n");
    args_wrap(out, cmd->summary, 0, 0);
    sbuf_addc(out, '\n');
    add_paragraph(out, cmd->text);
    add_paragraph(out, exits);
    if (cmd->opts.n > 0)
        args_help_options("options", cmd->opts, out);
    args_help_options("options of every command", global, out);
    if (cmd->examples.n > 0)
        sbuf_adds(out, "\nexamples\n");
    for (size_t i = 0; i < cmd->examples.n; i++)
        sbuf_addf(out, "  %s\n      %s\n", cmd->examples.v[i].line, cmd->examples.v[i].doc);
    if (cmd->subs)
        sbuf_addf(out, "\ncommands of lcow %s\n", cmd->name);
    for (const struct args_cmd *const *s = cmd->subs; s && *s; s++)
        args_row(out, (*s)->name, (*s)->summary, 18);
}
