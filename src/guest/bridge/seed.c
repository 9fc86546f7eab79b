#include "guest/bridge/seed.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/rand.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static int random_ioctl(unsigned long request, void *arg, const char *what, struct err *err)
{
    AUTO_FD int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "open /dev/urandom");
    if (ioctl(fd, request, arg) < 0)
        return err_sys(err, errno, "%s", what);
    return 0;
}

int seed_entropy(const void *data, size_t len, struct err *err)
{
    if (len == 0 || len > SEED_CHUNK)
        return err_set(err, ERR_INVALID, "invalid amount of entropy: %zu bytes, must be 1–%d", len,
                       SEED_CHUNK);

    size_t size = sizeof(struct rand_pool_info) + len;
    AUTO_FREE struct rand_pool_info *info = mem_zalloc(size);
    info->entropy_count = (int)len * 8;
    info->buf_size = (int)len;
    memcpy(info->buf, data, len);
    int r = random_ioctl(RNDADDENTROPY, info, "add entropy", err);
    mem_wipe(info, size);
    return r;
}

int seed_reseed(struct err *err)
{
    return random_ioctl(RNDRESEEDCRNG, NULL, "reseed the generator", err);
}

uint64_t seed_uptime(void)
{
    struct timespec up = { 0 };

    (void)clock_gettime(CLOCK_BOOTTIME, &up); /* cannot fail */
    return (uint64_t)up.tv_sec * NS_PER_S + (uint64_t)up.tv_nsec;
}

int seed_clock(uint64_t wall_ns, struct err *err)
{
    const struct timespec now = {
        .tv_sec = (time_t)(wall_ns / NS_PER_S),
        .tv_nsec = (long)(wall_ns % NS_PER_S),
    };

    if (clock_settime(CLOCK_REALTIME, &now) < 0)
        return err_sys(err, errno, "set the clock");
    return 0;
}

/* /etc, which is read-only, has a symlink to it. */
#define MACHINE_ID "/run/machine-id"

static void random_hex(char *out, size_t bytes)
{
    uint8_t raw[16];

    rand_bytes(raw, bytes);
    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = "0123456789abcdef"[raw[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[raw[i] & 15];
    }
    out[2 * bytes] = '\0';
}

int seed_identity(struct err *err)
{
    char name[5 + 8 + 1] = "lcow-", id[32 + 2];

    random_hex(name + 5, 4);
    if (sethostname(name, strlen(name)) < 0)
        return err_sys(err, errno, "set the host name");
    random_hex(id, 16);
    strcat(id, "\n");
    int r = file_write(MACHINE_ID, id, strlen(id), 0444);
    return r < 0 ? err_sys(err, -r, "write " MACHINE_ID) : 0;
}
