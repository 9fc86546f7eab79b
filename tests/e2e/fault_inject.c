/* fault_inject.c - runs the shim and makes one of its system calls fail, or stops it after a record
 * in its ledger.
 *
 *     fault_inject CONTROL RECORD PROGRAM [ARGUMENT...]
 *
 * Every process and thread of PROGRAM is traced with ptrace, and so is what it starts until that
 * executes another program: QEMU, mke2fs and log programs run undisturbed. CONTROL is a file with
 * a struct control that the tests change while the shim runs. While it records, each system call
 * is appended to RECORD as a line "phase number frame frame frame".
 *
 * A call is identified by its number and its site: the innermost return addresses on the
 * stack that lie in the program and follow a call instruction. No symbols and no frame pointers
 * are needed, and the order of fibers and threads does not matter.
 *
 * It exits with the status of PROGRAM; the tracer stays until the last traced process ended. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/reg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define FRAMES 3
#define STACK_BYTES 8192
#define PAGE 4096
#define TASKS_MAX 512
#define OPTIONS                                                                                    \
    (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |      \
     PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL)

/* Shared with fault.py: keep the order. */
struct control {
    uint32_t phase;     /* written into each line of the record */
    uint32_t recording; /* 1: calls are recorded */
    uint32_t armed;     /* 1: the call below fails; 0 again when it has */
    uint32_t number;
    uint32_t frames[FRAMES];
    uint32_t error;
    uint32_t late;      /* 1: the call is made, and its result replaced */
    uint32_t skip;      /* so many such calls pass first */
    uint32_t hit;       /* pid of the process whose call failed */
    uint32_t freeze_at; /* the ledger's record after which the shim stops; 0: none */
    uint32_t records;   /* written to ledgers so far */
    uint32_t frozen;    /* pid of the shim that stands still, until the test writes 0 */
    uint32_t died;      /* signal that ended a process of the shim's program; not SIGKILL */
    uint32_t tracer;    /* pid: SIGUSR1 says that the fields above have changed */
    uint32_t noticed;   /* counts those signals */
};

struct task {
    pid_t pid;          /* of a thread; 0: free */
    uint64_t text, len; /* where the program is; 0: unknown */
    uint64_t delta;     /* address - delta = offset in the file */
    int error;          /* to be returned at the end of this call; 0: none */
    bool ledger;        /* this call writes to a ledger */
};

static struct control *control;
static FILE *record;
static struct task tasks[TASKS_MAX];
static const unsigned char *image; /* the program's file */
static size_t image_len;
static char program[PATH_MAX];
static volatile sig_atomic_t changed;

static void fail(const char *what)
{
    perror(what);
    exit(127);
}

static struct task *task_of(pid_t pid)
{
    struct task *unused = NULL;

    for (size_t i = 0; i < TASKS_MAX; i++) {
        if (tasks[i].pid == pid)
            return &tasks[i];
        if (!unused && tasks[i].pid == 0)
            unused = &tasks[i];
    }
    if (!unused)
        fail("too many threads");
    *unused = (struct task){ .pid = pid };
    return unused;
}

/* ---- where a call comes from */

static bool is_program(pid_t pid)
{
    char link[64], path[PATH_MAX];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/%d/exe", pid);
    n = readlink(link, path, sizeof(path) - 1);
    if (n < 0)
        return false;
    path[n] = '\0';
    return strcmp(path, program) == 0;
}

/* In a jail /proc/PID/maps names the program differently, but its inode is the same. */
static void find_text(struct task *t)
{
    char path[64], line[PATH_MAX + 128];
    struct stat own;
    FILE *maps;

    snprintf(path, sizeof(path), "/proc/%d/maps", t->pid);
    maps = fopen(path, "re");
    if (!maps || stat(program, &own) < 0) {
        if (maps)
            fclose(maps);
        return;
    }
    while (fgets(line, sizeof(line), maps)) {
        unsigned long from, to, offset, inode;
        char mode[8], device[16];

        if (sscanf(line, "%lx-%lx %7s %lx %15s %lu", &from, &to, mode, &offset, device, &inode) ==
                6 &&
            mode[2] == 'x' && inode == own.st_ino) {
            t->text = from;
            t->len = to - from;
            t->delta = from - offset;
            break;
        }
    }
    fclose(maps);
}

/* Is there a call instruction that ends at this offset? */
static bool follows_call(uint64_t at)
{
    const unsigned char *p = image + at;

    if (at < 8 || at > image_len)
        return false;
    if (p[-5] == 0xe8)
        return true; /* call relative */
    for (int size = 2; size <= 7; size++)
        if (p[-size] == 0xff && (p[-size + 1] & 0x38) == 0x10)
            return true; /* call through a register or through memory */
    return false;
}

static void find_site(struct task *t, uint64_t sp, uint32_t *frames)
{
    uint64_t words[STACK_BYTES / 8];
    size_t first = PAGE - sp % PAGE, n = 0;
    struct iovec to = { words, sizeof(words) };
    struct iovec from[] = { { (void *)sp, first },
                            { (void *)(sp + first), PAGE },
                            { (void *)(sp + first + PAGE), STACK_BYTES - PAGE - first } };
    ssize_t got;

    memset(frames, 0, FRAMES * sizeof(*frames));
    if (!t->text)
        find_text(t);
    got = t->text ? process_vm_readv(t->pid, &to, 1, from, 3, 0) : 0;
    for (ssize_t i = 0; i < got / 8 && n < FRAMES; i++)
        if (words[i] - t->text < t->len && follows_call(words[i] - t->delta))
            frames[n++] = (uint32_t)(words[i] - t->delta);
}

/* ---- what is done to a call */

/* What a call reads from or writes to; "" for other calls. */
static const char *file_of(pid_t pid, const struct __ptrace_syscall_info *info, char *path)
{
    char link[64];
    ssize_t n = 0;

    if (info->entry.nr == SYS_read || info->entry.nr == SYS_write) {
        snprintf(link, sizeof(link), "/proc/%d/fd/%d", pid, (int)info->entry.args[0]);
        n = readlink(link, path, PATH_MAX - 1);
    }
    path[n > 0 ? n : 0] = '\0';
    return path;
}

static bool is_ledger(const char *path)
{
    size_t len = strlen(path);

    return len > 7 && strcmp(path + len - 7, "/ledger") == 0;
}

static void call_begins(struct task *t, const struct __ptrace_syscall_info *info)
{
    bool meant = control->armed && control->number == info->entry.nr;
    bool counted = control->freeze_at > control->records && info->entry.nr == SYS_write;
    uint32_t frames[FRAMES];
    char path[PATH_MAX];

    t->error = 0;
    t->ledger = false;
    if (!control->recording && !meant && !counted)
        return;
    file_of(t->pid, info, path);
    t->ledger = counted && is_ledger(path);
    /* An eventfd's counter is the kernel's memory, and what is removed needs none. */
    if (strncmp(path, "anon_inode:", 11) == 0 ||
        (info->entry.nr == SYS_epoll_ctl && info->entry.args[1] == EPOLL_CTL_DEL))
        return;
    find_site(t, info->stack_pointer, frames);
    if (control->recording) {
        fprintf(record, "%u %u %x %x %x\n", control->phase, (unsigned)info->entry.nr, frames[0],
                frames[1], frames[2]);
        fflush(record);
    }
    if (!meant || memcmp(frames, control->frames, sizeof(frames)) != 0)
        return;
    if (control->skip > 0) {
        control->skip--;
        return;
    }
    control->armed = 0;
    control->hit = (uint32_t)t->pid;
    t->error = (int)control->error;
    if (!control->late && ptrace(PTRACE_POKEUSER, t->pid, 8 * ORIG_RAX, -1L) < 0)
        t->error = 0;
}

static void call_ends(struct task *t)
{
    if (t->error)
        (void)ptrace(PTRACE_POKEUSER, t->pid, 8 * RAX, (long)-t->error);
    t->error = 0;
    if (!t->ledger)
        return;
    t->ledger = false;
    if (++control->records != control->freeze_at)
        return;
    control->frozen = (uint32_t)t->pid;
    while (*(volatile uint32_t *)&control->frozen)
        usleep(1000);
}

/* ---- the tracer */

/* Only then does a thread stop at every call, which makes it slow. */
static bool is_wanted(const struct task *t)
{
    return control->recording || control->armed || control->freeze_at > control->records ||
           t->error || t->ledger;
}

static void on_change(int signo)
{
    (void)signo;
    changed = 1;
}

/* None of them runs on in the program before it has stopped here. */
static void notice_change(void)
{
    changed = 0;
    for (size_t i = 0; i < TASKS_MAX; i++)
        if (tasks[i].pid)
            (void)ptrace(PTRACE_INTERRUPT, tasks[i].pid, 0, 0);
    control->noticed++;
}

/* The signal to be delivered when it continues, or -1 if it is not traced any more. */
static int stopped(struct task *t, int status)
{
    struct __ptrace_syscall_info info;
    int signo = WSTOPSIG(status), event = status >> 16;

    if (signo == (SIGTRAP | 0x80)) {
        if (ptrace(PTRACE_GET_SYSCALL_INFO, t->pid, sizeof(info), &info) > 0) {
            if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
                call_begins(t, &info);
            else if (info.op == PTRACE_SYSCALL_INFO_EXIT)
                call_ends(t);
        }
        return 0;
    }
    if (event == PTRACE_EVENT_EXEC) {
        *t = (struct task){ .pid = t->pid };
        if (is_program(t->pid))
            return 0;
        (void)ptrace(PTRACE_DETACH, t->pid, 0, 0);
        t->pid = 0;
        return -1;
    }
    if (event == PTRACE_EVENT_STOP && signo != SIGTRAP) {
        (void)ptrace(PTRACE_LISTEN, t->pid, 0, 0); /* stopped by SIGSTOP, until SIGCONT */
        return -1;
    }
    return event ? 0 : signo;
}

static void ended(struct task *t, pid_t root, int status, int report)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        control->died = (uint32_t)WTERMSIG(status);
    if (t->pid == root) {
        (void)!write(report, &status, sizeof(status));
        close(report);
    }
    t->pid = 0;
}

static void trace(pid_t root, int report)
{
    pid_t pid;
    int status;

    while ((pid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
        if (changed)
            notice_change();
        if (pid <= 0)
            continue;

        struct task *t = task_of(pid);

        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            ended(t, root, status, report);
            continue;
        }

        int signo = stopped(t, status);

        if (signo >= 0)
            (void)ptrace(is_wanted(t) ? PTRACE_SYSCALL : PTRACE_CONT, pid, 0, (long)signo);
    }
}

static pid_t launch(char **argv)
{
    int go[2];
    pid_t pid;

    if (pipe2(go, O_CLOEXEC) < 0)
        fail("pipe");
    pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid == 0) {
        char c;

        close(go[1]);
        (void)!read(go[0], &c, 1);
        execv(argv[0], argv);
        fail(argv[0]);
    }
    if (ptrace(PTRACE_SEIZE, pid, 0, OPTIONS) < 0 || ptrace(PTRACE_INTERRUPT, pid, 0, 0) < 0)
        fail("ptrace");
    close(go[1]); /* the child reads the end and continues */
    return pid;
}

static void open_files(char **argv)
{
    int fd = open(argv[1], O_RDWR | O_CLOEXEC), file = open(argv[3], O_RDONLY | O_CLOEXEC);
    struct stat st;

    record = fopen(argv[2], "ae");
    if (fd < 0 || file < 0 || !record || fstat(file, &st) < 0 || !realpath(argv[3], program))
        fail("open");
    image_len = (size_t)st.st_size;
    control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    image = mmap(NULL, image_len, PROT_READ, MAP_PRIVATE, file, 0);
    if (control == MAP_FAILED || image == MAP_FAILED)
        fail("mmap");
}

/* The program's output ends when the program does, not when the tracer does. */
static void let_go_of_output(void)
{
    int null = open("/dev/null", O_RDWR);

    for (int fd = 0; fd < 3 && null >= 0; fd++)
        dup2(null, fd);
}

int main(int argc, char **argv)
{
    int report[2], status = 127 << 8;
    pid_t tracer;

    if (argc < 4) {
        fprintf(stderr, "usage: fault_inject CONTROL RECORD PROGRAM [ARGUMENT...]\n");
        return 127;
    }
    open_files(argv);
    if (pipe2(report, O_CLOEXEC) < 0)
        fail("pipe");
    tracer = fork();
    if (tracer < 0)
        fail("fork");
    if (tracer == 0) {
        pid_t root = launch(argv + 3);

        setsid();
        let_go_of_output();
        sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = on_change }, NULL);
        control->tracer = (uint32_t)getpid();
        trace(root, report[1]);
        _exit(0);
    }
    close(report[1]);
    (void)!read(report[0], &status, sizeof(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
