#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/ledger/journal.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct seen {
    unsigned n, alive;
    char last[64];
};

static int count(void *arg, const struct journal_entry *e)
{
    struct seen *s = arg;

    s->n++;
    s->alive += e->alive;
    snprintf(s->last, sizeof(s->last), "%s %s", e->ns, e->id);
    return 0;
}

static struct seen look(const char *root)
{
    struct seen s = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(journal_each(root, count, &s, &err), err);
    return s;
}

static struct journal *open_one(const char *root, const char *id)
{
    struct journal *j = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(journal_open(root, "k8s.io", id, &j, &err), err);
    return j;
}

TEST(added_lines_can_be_read_and_a_clean_close_removes_the_journal)
{
    TEMPDIR(p);
    struct journal *j = open_one(p.dir, "pod.1");
    AUTO_FREE char *path = journal_path(p.dir, "k8s.io", "pod.1"), *text = NULL;
    struct stat st;
    size_t len;

    journal_add(j, "{\"a\":1}\n", 8);
    ASSERT_EQ(file_read_all(path, 100, &text, &len), 0);
    ASSERT_STR(text, "{\"a\":1}\n");
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0600);
    ASSERT_EQ(look(p.dir).n, 1);
    ASSERT_EQ(look(p.dir).alive, 1);
    ASSERT_STR(look(p.dir).last, "k8s.io pod.1");
    journal_close(j, false);
    ASSERT_EQ(look(p.dir).n, 0);
}

TEST(a_journal_is_bounded_and_keeps_the_newest_lines)
{
    TEMPDIR(p);
    struct journal *j = open_one(p.dir, "a");
    AUTO_FREE char *path = journal_path(p.dir, "k8s.io", "a"), *older = str_format("%s@1", path);
    char line[1001];
    struct stat st;

    memset(line, 'x', 1000);
    for (int i = 0; i < 1000; i++) {
        snprintf(line, 10, "%08d", i);
        line[8] = ' ';
        line[999] = '\n';
        journal_add(j, line, 1000);
    }
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT(st.st_size <= JOURNAL_MAX_BYTES);
    ASSERT_EQ(stat(older, &st), 0);
    ASSERT(st.st_size <= JOURNAL_MAX_BYTES);

    AUTO_FREE char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(path, JOURNAL_MAX_BYTES, &text, &len), 0);
    ASSERT(strncmp(text + len - 1000, "00000999", 8) == 0);
    ASSERT_EQ(look(p.dir).n, 1); /* the older half does not count as a journal */
    ASSERT_EQ(look(p.dir).alive, 1);
    journal_close(j, false);
    ASSERT(stat(older, &st) < 0);
}

TEST(kept_journals_are_listed_as_dead_and_the_oldest_are_removed)
{
    TEMPDIR(p);

    for (unsigned i = 0; i < JOURNAL_KEEP + 5; i++) {
        AUTO_FREE char *id = str_format("pod%02u", i);

        journal_close(open_one(p.dir, id), true);
    }
    struct journal *j = open_one(p.dir, "living");

    ASSERT_EQ(look(p.dir).n, JOURNAL_KEEP + 1);
    ASSERT_EQ(look(p.dir).alive, 1);
    journal_close(j, false);
}

TEST(a_second_writer_is_refused)
{
    TEMPDIR(p);
    struct journal *j = open_one(p.dir, "a"), *again;
    struct err err = ERR_INIT;

    ASSERT_EQ(journal_open(p.dir, "k8s.io", "a", &again, &err), -1);
    ASSERT_MSG_HAS(err.msg, "lock");
    journal_close(j, false);
}

static char *state_of(const char *path)
{
    AUTO_FREE char *at = journal_state_path(path);
    char *text = NULL;
    size_t len;

    return file_read_all(at, 100, &text, &len) < 0 ? NULL : text;
}

TEST(a_state_is_kept_as_long_as_the_journal)
{
    TEMPDIR(p);
    struct journal *j = open_one(p.dir, "a");
    AUTO_FREE char *path = journal_path(p.dir, "k8s.io", "a");

    journal_state(j, "{ \"longer\": 1 }");
    journal_state(j, "{}");
    journal_close(j, true);

    AUTO_FREE char *kept = state_of(path);

    ASSERT_STR(kept, "{}");
    ASSERT_EQ(look(p.dir).n, 1); /* it does not count as a journal */
    journal_close(open_one(p.dir, "a"), false);
    ASSERT(!state_of(path));
    journal_state(NULL, "{}");
}

TEST(a_state_of_an_earlier_sandbox_can_be_removed)
{
    TEMPDIR(p);
    struct journal *j = open_one(p.dir, "a");
    AUTO_FREE char *path = journal_path(p.dir, "k8s.io", "a");

    journal_state(j, "{}");
    journal_state(j, NULL);
    ASSERT(!state_of(path));
    journal_state(j, NULL);
    journal_close(j, false);
}
