/* args.h - command lines by table: each command is one struct args_cmd, from which both the
 * parser and the help are made. Long options take their value as --name=V or --name V, single
 * letters may be combined (-tk), `--` ends the options. Never waits. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct sbuf;
struct tool;

enum args_kind {
    ARGS_FLAG,   /* bool */
    ARGS_STR,    /* const char *; borrowed from argv */
    ARGS_NUMBER, /* uint32_t within min … max */
    /* struct args_optional. The value follows '=', or (with a `suffixes` list) is the next word
     * if that is not an option. */
    ARGS_OPTIONAL
};

struct args_optional {
    bool given;
    const char *value; /* NULL: without value */
};

struct args_opt {
    const char *name; /* without dashes */
    char letter;      /* 0: none */
    enum args_kind kind;
    const char *value; /* what the help calls its value: "MIB" */
    size_t offset;     /* of the field */
    const char *doc;
    uint32_t min, max;           /* ARGS_NUMBER */
    const char *unit;            /* ARGS_NUMBER: "MiB" in messages; may be NULL */
    const char *const *suffixes; /* ARGS_OPTIONAL: its value ends with one; NULL-terminated */
    bool hidden;                 /* not in the help */
};

struct args_opts {
    const struct args_opt *v;
    size_t n;
};
#define ARGS_TABLE(table)                                                                          \
    {                                                                                              \
        (table), ARRAY_LEN(table)                                                                  \
    }
/* The same for rows that stand in the command itself. */
#define ARGS_OPTIONS(...) ARGS_TABLE(((const struct args_opt[]){ __VA_ARGS__ }))

struct args_example {
    const char *line, *doc;
};
struct args_examples {
    const struct args_example *v;
    size_t n;
};
/* For a table: one { line, doc } each. */
#define ARGS_EXAMPLES(...) ARGS_TABLE(((const struct args_example[]){ __VA_ARGS__ }))

/* A command. Parser, help, completion and manual are made from it. */
struct args_cmd {
    const char *name; /* "boot"; of a sub-command "config show" */
    const char *summary;
    const char *synopsis; /* after the name; NULL: "[options]", with an ID if takes_id */
    const char *text;     /* paragraphs for the help, may be NULL */
    const char *exits;    /* exit codes other than 0 and 2; NULL: the text has them */
    struct args_opts opts;
    bool takes_command; /* words after `--` are allowed */
    bool takes_words;   /* words between and after the options are allowed: they become `rest` */
    bool takes_id;      /* exactly one word: a sandbox or container */
    bool bare;          /* does not need the configuration */
    int failed;         /* the exit code for *err; 0: TOOL_FAILED */
    struct args_examples examples;
    const struct args_cmd *const *subs; /* NULL-terminated, or NULL */
    /* Returns the exit code; or -1 and *err, which is printed. */
    int (*run)(struct ctx *ctx, struct tool *t, struct err *err);
};

struct args_rest {
    char **argv; /* after `--`, or all words (takes_words); NULL-terminated; borrowed */
    int n;
};

#define ARGS_HELP 1

/* Parses the command's own and the global options into the fields of one struct `into`. argv[0] is
 * the command's name; with takes_words argv is reordered. Returns 0; ARGS_HELP for --help or -h
 * (the rest is not checked); or -1 and ERR_INVALID, which suggests the nearest match. */
int args_parse(const struct args_cmd *cmd, struct args_opts global, void *into, char **argv,
               struct args_rest *ret_rest, struct err *err);
/* Reads options up to the first other word, whose index goes to *ret_next (argc if none). */
int args_parse_leading(struct args_opts own, struct args_opts global, void *into, char **argv,
                       int *ret_next, struct err *err);

/* Help within ARGS_COLUMNS columns. */
#define ARGS_COLUMNS 80
void args_help(const struct args_cmd *cmd, struct args_opts global, struct sbuf *out);
void args_help_options(const char *title, struct args_opts opts, struct sbuf *out);
/* Wraps text between columns: the first line continues after `at` columns, the others are indented.
 */
void args_wrap(struct sbuf *out, const char *text, size_t indent, size_t at);
/* A table of two columns, names padded to `width`. */
void args_row(struct sbuf *out, const char *name, const char *doc, size_t width);
