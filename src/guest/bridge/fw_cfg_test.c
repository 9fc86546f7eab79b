#include "base/mem.h"
#include "guest/bridge/fw_cfg.h"
#include "harness/tap.h"
#include <endian.h>
#include <stdio.h>
#include <string.h>

/* A device in memory: item 0 the signature, 0x19 the directory, 0x20 + i the files. */
struct device {
    const char *signature;
    uint32_t count; /* what the directory says */
    struct {
        const char *name, *data;
        uint32_t size;
    } files[3];
    uint8_t directory[4 + 3 * 64];
    uint16_t key;
    size_t at;
};

static void dev_select(void *arg, uint16_t key)
{
    struct device *d = arg;

    d->key = key;
    d->at = 0;
}

static void dev_read(void *arg, void *buf, size_t len)
{
    struct device *d = arg;
    const void *from = "";
    size_t size = 0;

    if (d->key == 0) {
        from = d->signature;
        size = 4;
    } else if (d->key == 0x19) {
        from = d->directory;
        size = sizeof(d->directory);
    } else if (d->key >= 0x20 && d->key < 0x23) {
        from = d->files[d->key - 0x20].data;
        size = d->files[d->key - 0x20].size;
    }
    for (size_t i = 0; i < len; i++, d->at++) /* the real one reads 0 behind the end */
        ((uint8_t *)buf)[i] = d->at < size ? ((const uint8_t *)from)[d->at] : 0;
}

static struct fw_cfg_port plug(struct device *d)
{
    uint32_t count = htobe32(d->count);

    memset(d->directory, 0, sizeof(d->directory));
    memcpy(d->directory, &count, 4);
    for (size_t i = 0; i < ARRAY_LEN(d->files); i++) {
        uint8_t *e = d->directory + 4 + 64 * i;
        uint32_t size = htobe32(d->files[i].size);
        uint16_t key = htobe16((uint16_t)(0x20 + i));
        memcpy(e, &size, 4);
        memcpy(e + 4, &key, 2);
        if (d->files[i].name)
            memcpy(e + 8, d->files[i].name, strnlen(d->files[i].name, 56));
    }
    return (struct fw_cfg_port){ dev_select, dev_read, d };
}

static struct device sample(void)
{
    return (struct device){
        .signature = "QEMU",
        .count = 3,
        .files = { { "etc/acpi/tables", "aaaa", 4 },
                   { "opt/lcow/boot", "secret!!", 8 },
                   { "opt/lcow/boot2", "bb", 2 } },
    };
}

TEST(a_file_is_found_and_read)
{
    struct device d = sample();
    struct fw_cfg_port port = plug(&d);
    struct err err = ERR_INIT;
    char buf[9] = "";

    uint16_t key = 0;
    ASSERT_OK(fw_cfg_read_from(&port, "opt/lcow/boot", &key, buf, 8, &err), err);
    ASSERT_STR(buf, "secret!!");
    d.count = 0; /* its key is known: the directory is not read again, the file is */
    d.files[1].data = "anew!!!!";
    ASSERT_OK(fw_cfg_read_from(&port, "opt/lcow/boot", &key, buf, 8, &err), err);
    ASSERT_STR(buf, "anew!!!!");
}

TEST(another_machine_has_no_such_device)
{
    struct device d = sample();
    struct err err = ERR_INIT;
    char buf[8];

    d.signature = "\xff\xff\xff\xff";
    struct fw_cfg_port port = plug(&d);
    ASSERT_FAIL(fw_cfg_read_from(&port, "opt/lcow/boot", &(uint16_t){ 0 }, buf, 8, &err), err,
                ERR_UNAVAILABLE);
}

TEST(a_missing_file_is_named)
{
    struct device d = sample();
    struct fw_cfg_port port = plug(&d);
    struct err err = ERR_INIT;
    char buf[8];

    ASSERT_FAIL(fw_cfg_read_from(&port, "opt/lcow", &(uint16_t){ 0 }, buf, 8, &err), err,
                ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "opt/lcow");
}

TEST(a_file_of_another_size_is_refused)
{
    struct device d = sample();
    struct fw_cfg_port port = plug(&d);
    struct err err = ERR_INIT;
    char buf[16];

    ASSERT_FAIL(fw_cfg_read_from(&port, "opt/lcow/boot", &(uint16_t){ 0 }, buf, 16, &err), err,
                ERR_INVALID);
    ASSERT_HAS(err.msg, "8 bytes");
}

TEST(a_directory_without_end_is_refused)
{
    struct device d = sample();
    struct err err = ERR_INIT;
    char buf[8];

    d.count = UINT32_MAX;
    struct fw_cfg_port port = plug(&d);
    ASSERT_FAIL(fw_cfg_read_from(&port, "no", &(uint16_t){ 0 }, buf, 8, &err), err, ERR_INVALID);
}

TEST(a_name_that_fills_its_field_is_not_read_beyond)
{
    struct device d = sample();
    char name[57];
    struct err err = ERR_INIT;
    char buf[4];

    memset(name, 'n', 56);
    name[56] = '\0';
    d.files[0].name = name;
    struct fw_cfg_port port = plug(&d);
    ASSERT_OK(fw_cfg_read_from(&port, name, &(uint16_t){ 0 }, buf, 4, &err), err);
}
