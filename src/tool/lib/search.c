#include "tool/lib/search.h"
#include "base/err.h"
#include <stdlib.h>
#include <string.h>

void search_init(struct search *s, const char *word)
{
    const char *slash = strchr(word, '/');

    *s = (struct search){ .word = word,
                          .ns = slash ? str_ndup(word, (size_t)(slash - word)) : NULL,
                          .id = slash ? slash + 1 : word };
}

bool search_offer(struct search *s, const char *ns, const char *id)
{
    bool exact = str_eq(id, s->id);

    strv_add(&s->all, id);
    if ((s->ns && !str_eq(s->ns, ns)) || !str_starts(id, s->id) || (s->exact && !exact))
        return false;
    if (exact && !s->exact) {
        s->exact = true;
        s->n = 0;
        sbuf_release(&s->matches);
    }
    s->n++;
    sbuf_addf(&s->matches, "%s%s/%s", s->matches.len ? ", " : "", ns, id);
    return true;
}

int search_end(struct search *s, const char *none, const char *but, const char *see,
               struct err *err)
{
    const char *near = NULL;
    int r = 0;

    if (s->n > 1)
        r = err_set(err, ERR_INVALID, "\"%s\" matches %.300s: give more of it", s->word,
                    s->matches.data);
    else if (s->n == 0 && s->all.n > 0)
        near = str_nearest(s->id, (const char *const *)s->all.v);
    if (s->n == 0)
        r = err_set(err, ERR_NOT_FOUND, "%s \"%.80s\"%s%s; %s", none, s->word, near ? but : "",
                    near ? near : "", see);
    free(s->ns);
    sbuf_release(&s->matches);
    strv_release(&s->all);
    return r;
}
