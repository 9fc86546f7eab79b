/* template_draft.c - building a template: what it depends on, and how it gets into the store. */
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/rand.h"
#include "base/sha256.h"
#include "base/str.h"
#include "host/ledger/ledger.h"
#include "host/template/template.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define DRAFT_PREFIX ".new-"
#define SMALL_MAX (1 << 20) /* bytes; a smaller file is read completely */
#define SEGMENTS_MAX 64
#define NOTES_MAX 4096

/* --- what it depends on: files, QEMU, the processor --- */

char *template_file_identity(int fd)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return str_dup("-");
    return str_format("dev %llu inode %llu size %lld mtime %lld.%09ld ctime %lld.%09ld",
                      (unsigned long long)st.st_dev, (unsigned long long)st.st_ino,
                      (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                      (long long)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
}

/* The build id in these notes, as hexadecimal; caller frees. NULL: there is none. */
static char *find_build_id(const char *notes, size_t len)
{
    while (len >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr n;
        memcpy(&n, notes, sizeof(n));
        size_t name = ((size_t)n.n_namesz + 3) & ~(size_t)3,
               desc = ((size_t)n.n_descsz + 3) & ~(size_t)3;

        if (name > len - sizeof(n) || desc > len - sizeof(n) - name)
            return NULL;
        const char *at = notes + sizeof(n);
        if (n.n_type == NT_GNU_BUILD_ID && n.n_namesz == 4 && memcmp(at, "GNU", 4) == 0) {
            struct sbuf out = { 0 };

            for (size_t i = 0; i < n.n_descsz; i++)
                sbuf_addf(&out, "%02x", (unsigned char)at[name + i]);
            return sbuf_take(&out);
        }
        notes = at + name + desc;
        len -= sizeof(n) + name + desc;
    }
    return NULL;
}

static char *build_id(int fd)
{
    Elf64_Ehdr elf;
    Elf64_Phdr segment;
    char notes[NOTES_MAX];
    char *found = NULL;

    if (pread(fd, &elf, sizeof(elf), 0) != sizeof(elf) ||
        memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_ident[EI_CLASS] != ELFCLASS64 ||
        elf.e_phentsize != sizeof(segment))
        return NULL;
    for (unsigned i = 0; !found && i < elf.e_phnum && i < SEGMENTS_MAX; i++) {
        if (pread(fd, &segment, sizeof(segment), (off_t)(elf.e_phoff + i * sizeof(segment))) !=
            sizeof(segment))
            return NULL;
        if (segment.p_type != PT_NOTE)
            continue;
        ssize_t n = pread(fd, notes, segment.p_filesz < NOTES_MAX ? segment.p_filesz : NOTES_MAX,
                          (off_t)segment.p_offset);
        if (n > 0)
            found = find_build_id(notes, (size_t)n);
    }
    return found;
}

char *template_program_identity(int fd)
{
    AUTO_FREE char *id = build_id(fd);
    struct stat st;

    if (fstat(fd, &st) < 0)
        return str_dup("-");
    if (id && *id)
        return str_format("build %s size %lld", id, (long long)st.st_size);
    if (S_ISREG(st.st_mode) && st.st_size <= SMALL_MAX) {
        AUTO_FREE char *path = str_format("/proc/self/fd/%d", fd);
        char hex[SHA256_HEX_SIZE];

        if (sha256_sparse_file(path, hex) == 0)
            return str_format("sha256 %s", hex);
    }
    return template_file_identity(fd);
}

char *template_cpu_identity(const char *cpuinfo)
{
    static const char *const wanted[] = { "vendor_id",  "cpu family", "model\t",
                                          "model name", "stepping",   "flags" };
    struct sbuf out = { 0 };

    /* The first processor's; an empty line ends it. */
    for (const char *line = cpuinfo; *line && *line != '\n';) {
        size_t n = strcspn(line, "\n");

        for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
            if (str_starts(line, wanted[i]))
                sbuf_addf(&out, "%.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    return sbuf_take(&out);
}

/* --- why an existing template is not used --- */

/* The lines of an identity about one subject, by their prefix. Only lines of the processor have a
 * tab. */
static const struct {
    const char *begin, *what;
} subjects[] = {
    { "kernel ", "kernel" }, { "initrd ", "initrd" },
    { "qemu ", "QEMU" },     { "host ", "kernel of the host" }, /* with KVM only */
    { "\t", "processor" },
};

/* Caller frees. */
static char *lines_of(const char *identity, const char *begin)
{
    struct sbuf b = { 0 };

    for (const char *line = identity; *line;) {
        size_t n = strcspn(line, "\n");

        if (*begin == '\t' ? memchr(line, '\t', n) != NULL : str_starts(line, begin))
            sbuf_addf(&b, "%.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    return sbuf_take(&b);
}

char *template_difference(const char *identity, const char *other)
{
    struct sbuf b = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(subjects); i++) {
        AUTO_FREE char *mine = lines_of(identity, subjects[i].begin),
                       *theirs = lines_of(other, subjects[i].begin);

        if (!str_eq(mine, theirs))
            sbuf_addf(&b, "%sanother %s", b.len ? ", " : "", subjects[i].what);
    }
    return b.len ? sbuf_take(&b) : NULL;
}

char *template_outdated(const char *dir, const char *identity, char ret_key[TEMPLATE_KEY_SIZE])
{
    AUTO_FREE char(*keys)[TEMPLATE_KEY_SIZE] = NULL;
    struct err ignored = ERR_INIT; /* an unreadable template cannot be used anyway */
    uint64_t newest = 0;
    char *found = NULL;
    size_t n = 0;

    if (template_list(dir, &keys, &n, &ignored) < 0)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        AUTO(template_close) struct template t = { .ram_fd = -1, .state_fd = -1 };

        if (template_open(dir, keys[i], &t, &ignored) < 0)
            continue;
        AUTO_FREE char *why = template_difference(identity, t.info.identity);
        if (why && t.info.created_ns >= newest) {
            newest = t.info.created_ns;
            memcpy(ret_key, keys[i], TEMPLATE_KEY_SIZE);
            free(found);
            found = TAKE_PTR(why);
        }
    }
    return found;
}

/* --- the lock --- */

struct lock_job {
    int fd;
    bool wait;
};

static void lock_close(void *job)
{
    fd_close(((struct lock_job *)job)->fd);
}

static int lock_in_thread(void *job, struct err *err)
{
    struct lock_job *j = job;

    if (flock(j->fd, LOCK_EX | (j->wait ? 0 : LOCK_NB)) == 0)
        return 0;
    if (errno == EWOULDBLOCK)
        return err_set(err, ERR_EXISTS, "another process is already building a template");
    return err_sys(err, errno, "lock the template store");
}

int template_lock(struct ctx *ctx, const char *dir, bool wait, int *ret, struct err *err)
{
    int r = dir_make(dir, 0700);

    if (r < 0)
        return err_sys(err, -r, "create %s", dir);
    struct lock_job j = { open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), wait };
    if (j.fd < 0)
        return err_sys(err, errno, "open %s", dir);
    if (OFFLOAD(ctx, lock_in_thread, &j, 0, lock_close, "lock the template store", err) < 0)
        return -1;
    *ret = j.fd;
    return 0;
}

/* --- drafts --- */

/* We hold the lock, so the builders of these drafts have exited. Best effort: they only use space.
 */
static void remove_old_drafts(const char *dir)
{
    AUTO(closedir) DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));) {
        if (!str_starts(e->d_name, DRAFT_PREFIX))
            continue;
        AUTO_FREE char *path = str_format("%s/%s", dir, e->d_name);
        (void)dir_remove(path);
    }
}

static int make_file(const char *dir, const char *name, uint64_t bytes, int *ret, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name);
    AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int r = fd < 0 ? errno : 0;

    /* Without reserved space, a full disk would kill QEMU by SIGBUS when it writes to a hole. */
    if (r == 0 && bytes > 0)
        r = posix_fallocate(fd, 0, (off_t)bytes);
    if (r > 0)
        return err_sys(err, r, "create %s of %llu bytes", path, (unsigned long long)bytes);
    *ret = TAKE_FD(fd);
    return 0;
}

int template_draft_begin(const char *dir, const char *key, uint64_t ram_bytes,
                         struct ledger *ledger, struct template_draft *ret, struct err *err)
{
    struct template_draft d = { .ram_fd = -1, .state_fd = -1, .ledger = ledger };
    uint32_t number;

    remove_old_drafts(dir);
    rand_bytes(&number, sizeof(number));
    d.path = str_format("%s/" DRAFT_PREFIX "%s-%08x", dir, key, number);
    if (ledger_add(ledger, LEDGER_DIR, d.path, &d.record, err) < 0) {
        free(d.path);
        return -1;
    }
    int r = mkdir(d.path, 0700) < 0 ? err_sys(err, errno, "create %s", d.path) : 0;
    if (r == 0)
        r = make_file(d.path, "ram", ram_bytes, &d.ram_fd, err);
    if (r == 0)
        r = make_file(d.path, "state", 0, &d.state_fd, err);
    if (r < 0) {
        template_draft_abort(&d);
        return -1;
    }
    *ret = d;
    return 0;
}

void template_draft_abort(struct template_draft *d)
{
    struct err ignored = ERR_INIT;

    fd_close(TAKE_FD(d->ram_fd));
    fd_close(TAKE_FD(d->state_fd));
    if (!d->path)
        return;
    if (dir_remove(d->path) == 0 && d->record)
        (void)ledger_forget(d->ledger, d->record, &ignored); /* gc then finds nothing */
    d->record = 0;
    free(TAKE_PTR(d->path));
}

/* Syncs a file and computes its checksum and identity. */
static int settle(int fd, const char *name, struct template_file *ret, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", fd);
    struct stat st;

    if (fsync(fd) < 0)
        return err_sys(err, errno, "write %s to the disk", name);
    int r = sha256_sparse_file(path, ret->sha256);
    if (r < 0)
        return err_sys(err, -r, "read %s", name);
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at %s", name);
    ret->size = (uint64_t)st.st_size;
    ret->inode = st.st_ino;
    ret->mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
    return 0;
}

int template_draft_publish(struct template_draft *d, const char *dir, const char *key,
                           struct err *err)
{
    AUTO_FREE char *to = str_format("%s/%s", dir, key);
    struct err ignored = ERR_INIT;

    /* An existing template is damaged: a good one would not have been built again. */
    (void)template_remove(dir, key, &ignored);
    if (rename(d->path, to) < 0)
        return err_sys(err, errno, "rename %s", d->path);
    (void)ledger_forget(d->ledger, d->record, &ignored); /* harmless: the name is gone */
    d->record = 0;
    free(TAKE_PTR(d->path));
    AUTO_FD int store = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store >= 0)
        (void)fsync(store); /* if the rename is lost, the template is built again */
    template_draft_abort(d);
    return 0;
}

int template_draft_seal(struct template_draft *d, struct template_info *info, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/header", d->path);
    size_t len;

    if (settle(d->ram_fd, "ram", &info->ram, err) < 0 ||
        settle(d->state_fd, "state", &info->state, err) < 0)
        return -1;
    AUTO_FREE char *text = template_header_format(info, &len);
    int r = file_replace(path, text, len, 0600);
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}
