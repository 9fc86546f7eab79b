#include "guest/runtime/etcfiles.h"
#include "base/err.h"
#include "base/str.h"
#include <ctype.h>
#include <string.h>

#define SEARCH_MAX 6
#define SERVERS_MAX 64
#define RESOLV_MAX_BYTES (16u << 10)

int etcfiles_check_hostname(const char *name, struct err *err)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");

    if (name[n] || n > 255)
        return err_set(err, ERR_INVALID, "host name \"%.64s\" is not [a-zA-Z0-9_.-]{0,255}", name);
    return 0;
}

char *etcfiles_hosts(const char *hostname)
{
    struct sbuf out = { 0 };
    const char *dot = strchr(hostname, '.');

    sbuf_adds(&out, "127.0.0.1 localhost\n");
    if (dot)
        sbuf_addf(&out, "127.0.0.1 %s %.*s\n", hostname, (int)(dot - hostname), hostname);
    else if (hostname[0])
        sbuf_addf(&out, "127.0.0.1 %s\n", hostname);
    sbuf_adds(&out, "\n# IPv6\n"
                    "::1 ip6-localhost ip6-loopback\n"
                    "fe00::0 ip6-localnet\n"
                    "ff00::0 ip6-mcastprefix\n"
                    "ff02::1 ip6-allnodes\n"
                    "ff02::2 ip6-allrouters\n");
    return sbuf_take(&out);
}

static bool has(const struct strv *l, const char *word)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->v[i], word) == 0)
            return true;
    return false;
}

static int split(const char *list, const char *what, size_t max, struct strv *ret, struct err *err)
{
    AUTO_FREE char *copy = str_dup(list);
    char *rest = copy, *word;

    while ((word = strsep(&rest, ","))) {
        char *end = word + strlen(word);

        while (isspace((unsigned char)*word))
            word++;
        while (end > word && isspace((unsigned char)end[-1]))
            *--end = '\0';
        for (char *c = word; *c; c++) {
            if (isspace((unsigned char)*c) || iscntrl((unsigned char)*c))
                return err_set(err, ERR_INVALID, "DNS %s contains a blank", what);
            *c = (char)tolower((unsigned char)*c);
        }
        if (!*word || has(ret, word))
            continue;
        if (ret->n == max)
            return err_set(err, ERR_INVALID, "more than %zu DNS %ss", max, what);
        strv_add(ret, word);
    }
    return 0;
}

int etcfiles_resolv(const char *search, const char *servers, char **ret, struct err *err)
{
    AUTO(strv_release) struct strv domains = { 0 }, hosts = { 0 };
    struct sbuf out = { 0 };

    if (split(search, "search domain", SEARCH_MAX, &domains, err) < 0 ||
        split(servers, "server", SERVERS_MAX, &hosts, err) < 0)
        return -1;
    for (size_t i = 0; i < domains.n; i++)
        sbuf_addf(&out, "%s%s", i ? " " : "search ", domains.v[i]);
    if (domains.n)
        sbuf_addc(&out, '\n');
    for (size_t i = 0; i < hosts.n; i++)
        sbuf_addf(&out, "nameserver %s\n", hosts.v[i]);
    *ret = sbuf_take(&out);
    return 0;
}

int etcfiles_check_resolv(const char *text, struct err *err)
{
    size_t len = 0;

    for (; text[len] && len <= RESOLV_MAX_BYTES; len++)
        if (iscntrl((unsigned char)text[len]) && text[len] != '\n' && text[len] != '\t')
            return err_set(err, ERR_INVALID, "resolv.conf contains a control character");
    if (len > RESOLV_MAX_BYTES)
        return err_set(err, ERR_INVALID, "resolv.conf has more than %u bytes", RESOLV_MAX_BYTES);
    return 0;
}
