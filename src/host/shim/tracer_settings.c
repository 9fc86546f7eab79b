/* tracer_settings.c - settings of the tracer: lcow.conf, and OpenTelemetry's variables. */
#include "base/err.h"
#include "host/shim/tracer_priv.h"
#include <stdlib.h>
#include <string.h>

#define OTLP "OTEL_EXPORTER_OTLP_"
/* The characters of a header's name (RFC 9110). */
#define TOKEN "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

void tracer_settings_release(struct tracer_settings *s)
{
    free(s->host);
    free(s->port);
    free(s->path);
    free(s->headers);
    free(s->service);
    *s = (struct tracer_settings){ 0 };
}

/* The value for traces, else the one for all signals, else "". */
static const char *either(const char *(*env)(const char *name), const char *own, const char *all)
{
    const char *value = env(own);

    if (!value || !value[0])
        value = env(all);
    return value ? value : "";
}

/* suffix: what follows the path of an endpoint for all signals. */
static int set_endpoint(struct tracer_settings *s, const char *url, const char *suffix,
                        struct err *err)
{
    const char *at = url + strlen("http://"), *end, *path;
    size_t trailing;

    if (strchr(url, '@')) /* the message omits the URL, which may contain a password */
        return err_set(
            err, ERR_UNIMPLEMENTED,
            "trace endpoint: user names are not supported; use http://HOST:PORT and " OTLP
            "HEADERS");
    if (str_starts(url, "https://"))
        return err_set(err, ERR_UNIMPLEMENTED,
                       "trace endpoint %s: TLS is not supported; use http:// and a collector on "
                       "this host",
                       url);
    if (!str_starts(url, "http://"))
        return err_set(err, ERR_INVALID, "trace endpoint %s: must be http://HOST:PORT", url);
    path = at + strcspn(at, "/?#");
    if (*at == '[') {
        end = at + strcspn(at, "]/");
        at++;
    } else {
        end = at + strcspn(at, ":/?#");
    }
    s->host = str_ndup(at, (size_t)(end - at));
    end += *end == ']';
    s->port = *end == ':' ? str_ndup(end + 1, (size_t)(path - end - 1)) : str_dup("80");
    trailing = strlen(path);
    while (*suffix && trailing > 0 && path[trailing - 1] == '/')
        trailing--;
    s->path = str_format("%.*s%s", (int)trailing, path, suffix);
    for (const char *c = url; *c; c++)
        if (*c <= ' ' || *c == 0x7f)
            s->host[0] = '\0';
    if (!s->host[0] || !s->port[0] || s->port[strspn(s->port, "0123456789")] ||
        (end != path && *end != ':'))
        return err_set(err, ERR_INVALID, "trace endpoint %s: must be http://HOST:PORT", url);
    if (!s->path[0]) {
        free(s->path);
        s->path = str_dup("/");
    }
    return 0;
}

static int hex_value(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;

    return at ? (int)(at - digits) : -1;
}

/* "name=value,…", values percent-encoded, with blanks around names and values. Headers that would
 * break the request are skipped. */
static char *headers_of(const char *list)
{
    struct sbuf out = { 0 };

    sbuf_adds(&out, "");
    while (*list) {
        size_t len = strcspn(list, ","), blank = strspn(list, " \t"), from = out.len;
        size_t name = blank + strspn(list + blank, TOKEN),
               value = name + strspn(list + name, " \t");
        bool good = name > blank && list[value] == '=';
        size_t end = len;

        value += good ? 1 + strspn(list + value + 1, " \t") : 0;
        while (end > value && strchr(" \t", list[end - 1]))
            end--;
        sbuf_addf(&out, "%.*s: ", (int)(name - blank), list + blank);
        for (size_t i = value; good && i < end; i++) {
            int high = list[i] == '%' ? hex_value(list[i + 1]) : -1;
            int low = high >= 0 ? hex_value(list[i + 2]) : -1;

            sbuf_addc(&out, low >= 0 ? (char)(high << 4 | low) : list[i]);
            i += low >= 0 ? 2 : 0;
        }
        for (size_t i = from; i < out.len; i++)
            good = good && (unsigned char)out.data[i] >= ' ' && out.data[i] != 0x7f;
        if (good)
            sbuf_adds(&out, "\r\n");
        else
            out.len = from;
        list += len + (list[len] == ',');
    }
    sbuf_addc(&out, '\0');
    return sbuf_take(&out);
}

static int set_sampler(struct tracer_settings *s, const char *name, const char *arg,
                       struct err *err)
{
    const char *kind = name ? name : "";
    char *end = NULL;

    s->ignore_parent = *kind && !str_starts(kind, "parentbased_");
    if (*kind && !s->ignore_parent)
        kind += strlen("parentbased_");
    s->share = 1;
    if (!*kind || str_eq(kind, "always_on"))
        return 0;
    if (str_eq(kind, "always_off")) {
        s->share = 0;
        return 0;
    }
    if (!str_eq(kind, "traceidratio"))
        return err_set(err, ERR_INVALID,
                       "OTEL_TRACES_SAMPLER=%s: must be always_on, always_off or traceidratio, "
                       "each with or without parentbased_ before it",
                       name);
    if (arg && *arg)
        s->share = strtod(arg, &end);
    if (end && (*end || !(s->share >= 0 && s->share <= 1)))
        return err_set(err, ERR_INVALID, "OTEL_TRACES_SAMPLER_ARG=%s: must be 0–1", arg);
    return 0;
}

int tracer_settings(const char *endpoint, const char *(*env)(const char *name),
                    struct tracer_settings *ret, struct err *err)
{
    const char *own = env(OTLP "TRACES_ENDPOINT"), *all = env(OTLP "ENDPOINT");
    const char *protocol = either(env, OTLP "TRACES_PROTOCOL", OTLP "PROTOCOL");
    const char *disabled = env("OTEL_SDK_DISABLED"), *service = env("OTEL_SERVICE_NAME");
    AUTO(tracer_settings_release) struct tracer_settings s = { 0 };
    int r;

    *ret = s;
    if (str_eq(disabled, "true"))
        return 0;
    if (endpoint[0]) {
        r = set_endpoint(&s, endpoint, "/v1/traces", err);
    } else if ((own && own[0]) || (all && all[0])) {
        if (protocol[0] && !str_eq(protocol, "http/protobuf"))
            return err_set(err, ERR_UNIMPLEMENTED,
                           OTLP "PROTOCOL=%s is unsupported: must be http/protobuf", protocol);
        r = own && own[0] ? set_endpoint(&s, own, "", err)
                          : set_endpoint(&s, all, "/v1/traces", err);
    } else {
        return 0;
    }
    if (r < 0 ||
        set_sampler(&s, env("OTEL_TRACES_SAMPLER"), env("OTEL_TRACES_SAMPLER_ARG"), err) < 0)
        return -1;
    s.headers = headers_of(either(env, OTLP "TRACES_HEADERS", OTLP "HEADERS"));
    /* containerd sets it for itself, and its shims inherit it. */
    s.service = str_dup(service && service[0] && !str_eq(service, "containerd")
                            ? service
                            : "containerd-shim-lcow-v2");
    *ret = s;
    s = (struct tracer_settings){ 0 };
    return 0;
}
