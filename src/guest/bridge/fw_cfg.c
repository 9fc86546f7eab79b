#include "guest/bridge/fw_cfg.h"
#include "base/err.h"
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/io.h>

#define PORT_SELECT 0x510
#define PORT_DATA 0x511
#define KEY_SIGNATURE 0x0000
#define KEY_DIRECTORY 0x0019
#define DIRECTORY_MAX 4096 /* QEMU has some dozens */

/* As the device lays it out; numbers are big endian. */
struct entry {
    uint32_t size;
    uint16_t key, reserved;
    char name[56];
};

static int find_file(const struct fw_cfg_port *port, const char *name, struct entry *ret,
                     struct err *err)
{
    uint32_t count;

    port->select(port->arg, KEY_DIRECTORY);
    port->read(port->arg, &count, sizeof(count));
    count = be32toh(count);
    if (count > DIRECTORY_MAX)
        return err_set(err, ERR_INVALID, "fw_cfg directory has %u entries", count);
    for (uint32_t i = 0; i < count; i++) {
        port->read(port->arg, ret, sizeof(*ret));
        if (strncmp(ret->name, name, sizeof(ret->name)) == 0)
            return 0;
    }
    return err_set(err, ERR_NOT_FOUND, "fw_cfg has no file %s", name);
}

/* *ret_key is set if all is well. */
static int locate(const struct fw_cfg_port *port, const char *name, size_t len, uint16_t *ret_key,
                  struct err *err)
{
    char signature[4] = { 0 };
    struct entry e;

    port->select(port->arg, KEY_SIGNATURE);
    port->read(port->arg, signature, sizeof(signature));
    if (memcmp(signature, "QEMU", sizeof(signature)) != 0)
        return err_set(err, ERR_UNAVAILABLE, "no fw_cfg device: this is not a QEMU machine");
    if (find_file(port, name, &e, err) < 0)
        return -1;
    if (be32toh(e.size) != len)
        return err_set(err, ERR_INVALID, "fw_cfg file %s has %u bytes, not %zu", name,
                       be32toh(e.size), len);
    *ret_key = be16toh(e.key);
    return 0;
}

int fw_cfg_read_from(const struct fw_cfg_port *port, const char *name, uint16_t *key, void *buf,
                     size_t len, struct err *err)
{
    if (*key == 0 && locate(port, name, len, key, err) < 0)
        return -1;
    port->select(port->arg, *key);
    port->read(port->arg, buf, len);
    return 0;
}

static void port_select(void *arg, uint16_t key)
{
    outw(key, PORT_SELECT);
}

/* One string instruction: under KVM a single exit instead of one a byte. Not sys/io.h's insb(),
 * which does not tell the compiler that it writes memory. */
static void port_read(void *arg, void *buf, size_t len)
{
    __asm__ volatile("cld; rep insb" : "+D"(buf), "+c"(len) : "d"((uint16_t)PORT_DATA) : "memory");
}

int fw_cfg_read(const char *name, uint16_t *key, void *buf, size_t len, struct err *err)
{
    const struct fw_cfg_port port = { port_select, port_read, NULL };

    if (ioperm(PORT_SELECT, 2, 1) < 0)
        return err_sys(err, errno, "access to fw_cfg's ports");
    int r = fw_cfg_read_from(&port, name, key, buf, len, err);
    (void)ioperm(PORT_SELECT, 2, 0);
    return r;
}
