#include "base/crash.h"
#include "base/log.h"
#include "base/loop_priv.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define STACK_MAX (128u * 1024) /* of the stack that is looked through */
#define CHUNK 4096u
#define MODULES_MAX 24
#define NAME_MAX_BYTES 40
#define FRAMES_MAX 48
#define TEXT_BYTES 3072
#define HANG_S 5 /* SIGALRM ends a backtrace that takes longer */

struct module {
    uintptr_t base, start, end; /* base: of the whole file */
    char name[NAME_MAX_BYTES];
};

/* All static, because the heap may be corrupt. Untouched pages cost nothing. */
static struct {
    int fd;
    const struct loop *loop;
    struct module modules[MODULES_MAX];
    size_t n_modules;
    char text[TEXT_BYTES];
    size_t len, n_frames;
    uintptr_t words[CHUNK / sizeof(uintptr_t)];
    char maps[CHUNK];
    char alt_stack[16 * 1024] __attribute__((aligned(16)));
} crash = { .fd = -1 };

static const struct {
    int signo;
    const char *name;
} signals[] = { { SIGSEGV, "SIGSEGV" },
                { SIGABRT, "SIGABRT" },
                { SIGBUS, "SIGBUS" },
                { SIGILL, "SIGILL" },
                { SIGFPE, "SIGFPE" } };

#if defined(__x86_64__)
static void registers(const ucontext_t *uc, uintptr_t *pc, uintptr_t *sp)
{
    *pc = (uintptr_t)uc->uc_mcontext.gregs[REG_RIP];
    *sp = (uintptr_t)uc->uc_mcontext.gregs[REG_RSP];
}

/* Is there a call right before it? E8 and four bytes; or FF /2 with up to five bytes behind. */
static bool follows_call(const unsigned char *at)
{
    if (at[-5] == 0xe8)
        return true;
    for (int n = 2; n <= 7; n++)
        if (at[-n] == 0xff && (at[-n + 1] & 0x38) == 0x10)
            return true;
    return false;
}
#elif defined(__aarch64__)
static void registers(const ucontext_t *uc, uintptr_t *pc, uintptr_t *sp)
{
    *pc = uc->uc_mcontext.pc;
    *sp = uc->uc_mcontext.sp;
}

static bool follows_call(const unsigned char *at) /* BL or BLR */
{
    uint32_t before;

    memcpy(&before, at - 4, 4);
    return (before & 0xfc000000u) == 0x94000000u || (before & 0xfffffc1fu) == 0xd63f0000u;
}
#else
#error "unsupported processor: add registers() and follows_call() for it"
#endif

/* A line of /proc/self/maps: "start-end r-xp offset dev inode path". */
static void take_mapping(const char *line, struct module *file)
{
    char *at;
    uintptr_t start = strtoul(line, &at, 16), end = *at == '-' ? strtoul(at + 1, &at, 16) : 0;
    const char *path = strchr(line, '/'), *name = path ? strrchr(path, '/') + 1 : "";

    if (!path)
        return;
    if (strncmp(file->name, name, NAME_MAX_BYTES - 1) != 0) { /* the first of its mappings */
        file->base = start;
        snprintf(file->name, sizeof(file->name), "%s", name);
    }
    if (strncmp(at, " r-x", 4) == 0 && crash.n_modules < MODULES_MAX) {
        struct module *m = &crash.modules[crash.n_modules++];

        *m = *file;
        m->start = start;
        m->end = end;
    }
}

static void read_modules(void)
{
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    struct module file = { 0 };
    size_t have = 0;
    ssize_t n;

    while (fd >= 0 && (n = read(fd, crash.maps + have, sizeof(crash.maps) - 1 - have)) > 0) {
        char *line = crash.maps, *newline;

        have += (size_t)n;
        crash.maps[have] = '\0';
        while ((newline = strchr(line, '\n'))) {
            *newline = '\0';
            take_mapping(line, &file);
            line = newline + 1;
        }
        have -= (size_t)(line - crash.maps);
        memmove(crash.maps, line, have);
        if (have == sizeof(crash.maps) - 1)
            have = 0; /* a line longer than all: dropped */
    }
    if (fd >= 0)
        close(fd);
}

static const struct module *module_of(uintptr_t address)
{
    for (size_t i = 0; i < crash.n_modules; i++)
        if (address >= crash.modules[i].start && address < crash.modules[i].end)
            return &crash.modules[i];
    return NULL;
}

static void add_frame(uintptr_t address, const struct module *m)
{
    size_t room = sizeof(crash.text) - crash.len;
    int n = m ? snprintf(crash.text + crash.len, room, "%s%s+0x%lx", crash.len ? " " : "", m->name,
                         (unsigned long)(address - m->base))
              : snprintf(crash.text + crash.len, room, "%s0x%lx", crash.len ? " " : "",
                         (unsigned long)address);

    if (n > 0 && (size_t)n < room)
        crash.len += (size_t)n;
    crash.text[crash.len] = '\0';
    crash.n_frames++;
}

/* Through the kernel, which refuses what is not mapped. */
static size_t read_stack(uintptr_t at)
{
    struct iovec to = { crash.words, CHUNK - at % CHUNK }, from = { (void *)at, to.iov_len };
    ssize_t n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);

    return n > 0 ? (size_t)n / sizeof(uintptr_t) : 0;
}

static void scan_stack(uintptr_t sp)
{
    uintptr_t end = sp + STACK_MAX;

    for (size_t n; sp < end && (n = read_stack(sp)) > 0; sp += n * sizeof(uintptr_t)) {
        for (size_t i = 0; i < n && crash.n_frames < FRAMES_MAX; i++) {
            const struct module *m = module_of(crash.words[i]);

            if (m && crash.words[i] - m->start >= 8 &&
                follows_call((const unsigned char *)crash.words[i]))
                add_frame(crash.words[i], m);
        }
    }
}

static void on_crash(int signo, siginfo_t *info, void *context)
{
    const struct fiber *f = crash.loop ? crash.loop->current : NULL;
    const char *name = "?";
    char address[24];
    uintptr_t pc, sp;

    (void)alarm(HANG_S);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        if (signals[i].signo == signo)
            name = signals[i].name;
    registers(context, &pc, &sp);
    snprintf(address, sizeof(address), "0x%lx", (unsigned long)(uintptr_t)info->si_addr);
    read_modules();
    crash.len = crash.n_frames = 0;
    add_frame(pc, module_of(pc));
    scan_stack(sp & ~(uintptr_t)7);
    log_aside(
        crash.fd, LOG_ERROR, "the process crashed",
        (const struct log_field[]){ F_STR("signal", name),
                                    F_I("sent-by", info->si_code <= 0 ? (int64_t)info->si_pid : 0),
                                    F_STR("address", info->si_code <= 0 ? "" : address),
                                    F_STR("fiber", f ? f->name : ""),
                                    F_STR("version", LCOW_VERSION),
                                    F_STR("backtrace", crash.text),
                                    F_REASON(REASON_SHIM_CRASHED),
                                    {} });
    /* The default action is restored (SA_RESETHAND) and takes effect on return. */
    (void)raise(signo);
}

/* Only under a sanitizer. */
extern void __asan_init(void) __attribute__((weak));

void crash_install(int fd, const struct loop *loop)
{
    struct sigaction action = { .sa_sigaction = on_crash,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND };
    const stack_t stack = { .ss_sp = crash.alt_stack, .ss_size = sizeof(crash.alt_stack) };

    crash.fd = fd;
    crash.loop = loop;
    /* The fiber's stack may have overflowed, so the handler has its own. */
    if (__asan_init || sigaltstack(&stack, NULL) < 0)
        return;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        (void)sigaction(signals[i].signo, &action, NULL);
}
