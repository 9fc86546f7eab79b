/* What a VM can do with disks: every kind of file system, partitions, formatting, verified and
 * encrypted disks; and 256 of them. */
#include "base/sha256.h"
#include "fixture/disks_fixture.h"

#define BLOCK 4096

/* --- 256 disks --- */

#define MARK "DISK-0000-OF-256"

/* A small ext4 with the mark in its one file; copies differ in the mark alone. */
static void make_images(struct disks_fixture *r)
{
    AUTO_FREE char *image = NULL;
    size_t len;

    disks_host(r, "mkdir d && echo " MARK " > d/hello && truncate -s 256K base && "
                  "mke2fs -q -t ext4 -O ^has_journal,^metadata_csum -N 16 -d d base");
    ASSERT_EQ(file_read_all(tempdir_path(&r->vm.temp, "base"), 1 << 20, &image, &len), 0);
    char *mark = memmem(image, len, MARK, strlen(MARK));
    ASSERT(mark);
    for (unsigned i = 0; i <= SCSI_DISKS_MAX; i++) {
        AUTO_FREE char *name = str_format("%u.img", i);

        snprintf(mark + 5, 5, "%04u", i);
        mark[9] = '-'; /* where snprintf's zero went */
        ASSERT_EQ(file_write(tempdir_path(&r->vm.temp, name), image, len, 0600), 0);
    }
}

static void expect_all(struct disks_fixture *r, char *const *paths, unsigned n)
{
    struct sbuf line = { 0 }, want = { 0 };

    for (unsigned i = 0; i < n; i++) {
        sbuf_addf(&line, "%s ", paths[i]);
        sbuf_addf(&want, "DISK-%04u-OF-256 kept %u\n", i, i);
    }
    AUTO_FREE char *list = sbuf_take(&line), *wanted = sbuf_take(&want);
    AUTO_FREE char *write = str_format("i=0; for d in %s; do echo kept $i > $d/new || exit 1; "
                                       "i=$((i+1)); done",
                                       list);
    AUTO_FREE char *read = str_format("for d in %s; do read a < $d/hello; read b < $d/new; "
                                      "echo $a $b; done",
                                      list);
    real_vm_expect(&r->vm, write, "");
    real_vm_expect(&r->vm, read, wanted);
}

TEST_FIBER(two_hundred_and_fifty_six_disks_are_attached_used_and_detached)
{
    uint64_t ids[SCSI_DISKS_MAX], more;
    char *paths[SCSI_DISKS_MAX];
    struct disks_fixture r;
    struct err err = ERR_INIT;

    disks_start(ctx, &r);
    make_images(&r);
    uint64_t began = loop_now(ctx->loop);
    /* As for a container: the guest finds one disk while the others are attached. */
    for (unsigned i = 0; i < SCSI_DISKS_MAX; i++) {
        AUTO_FREE char *name = str_format("%u.img", i);

        ids[i] = disks_reserve(&r, name, false, (struct guest_disk){ 0 });
    }
    for (unsigned i = 0; i < SCSI_DISKS_MAX; i++)
        disks_attach(&r, ids[i]);
    for (unsigned i = 0; i < SCSI_DISKS_MAX; i++)
        paths[i] = disks_map(&r, ids[i]);
    uint64_t attached = loop_now(ctx->loop);
    expect_all(&r, paths, SCSI_DISKS_MAX);
    uint64_t used = loop_now(ctx->loop);

    AUTO_FD int fd = open(tempdir_path(&r.vm.temp, "256.img"), O_RDWR | O_CLOEXEC);
    const struct scsi_disk d = { .host_path = "/one/too/many", .fd = fd };
    struct ctx limited = ctx_with_timeout(&r.vm.root, FIXTURE_CALL_NS);
    ASSERT_FAIL(scsi_reserve(&limited, r.scsi, &d, &(struct guest_disk){ 0 }, &more, &err), err,
                ERR_EXHAUSTED);
    ASSERT_EQ(err.reason, REASON_DISK_NO_SLOT);
    for (unsigned i = 0; i < SCSI_DISKS_MAX; i++) {
        disks_unmap(&r, ids[i]);
        free(paths[i]);
    }
    printf("# 256 disks: attached and mounted in %.1f s, used in %.1f s, detached in %.1f s\n",
           (double)(attached - began) / 1e9, (double)(used - attached) / 1e9,
           (double)(loop_now(ctx->loop) - used) / 1e9);
    real_vm_expect(&r.vm, "ls /sys/class/scsi_disk; ls /run/mounts/scsi; echo none left",
                   "none left\n");
    /* Each wrote to its own file. */
    disks_host(&r, "for i in 0 1 63 64 127 128 191 192 255; do grep -q \"kept $i\" $i.img; done");
    disks_finish(&r);
}

/* --- file systems --- */

static void unpack(struct disks_fixture *r, const char *type)
{
    AUTO_FREE char *line =
        str_format("gzip -dc %s/%s.img.gz > %s.img", getenv("GOLDEN_DISKS"), type, type);

    disks_host(r, line);
}

/* Two snapshots of one base, as device-mapper makes them: one UUID, both in use. */
static void twins(struct disks_fixture *r)
{
    disks_host(r, "cp xfs.img twin.img");
    uint64_t a = disks_reserve(r, "xfs.img", false, (struct guest_disk){ 0 });
    uint64_t b = disks_reserve(r, "twin.img", false, (struct guest_disk){ 0 });
    AUTO_FREE char *first = disks_map(r, a), *second = disks_map(r, b);

    disks_guest(r, first, "echo first > $d/who; cat $d/hello", "a file system\n");
    disks_guest(r, second, "cat $d/who 2>/dev/null; cat $d/hello", "a file system\n");
    disks_unmap(r, a);
    disks_unmap(r, b);
}

static void file_systems(struct disks_fixture *r)
{
    static const char *const types[] = { "xfs", "erofs", "squashfs" };

    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        AUTO_FREE char *image = str_format("%s.img", types[i]);
        AUTO_FREE char *want = str_format("a file system\n%s ro\n", types[i]);
        const char *const look = "cat $d/hello; grep \" $d \" /proc/mounts | "
                                 "sed 's/^[^ ]* [^ ]* \\([^ ]*\\) \\(..\\).*/\\1 \\2/'";

        unpack(r, types[i]);
        disks_look(r, image, true, (struct guest_disk){ 0 }, look, want);
        disks_look(r, image, true, (struct guest_disk){ .filesystem = types[i] }, look, want);
    }
    disks_look(r, "xfs.img", false, (struct guest_disk){ 0 }, "echo written > $d/new && cat $d/new",
               "written\n");
    disks_look(r, "xfs.img", false, (struct guest_disk){ .read_only = true },
               "cat $d/new; echo x 2>/dev/null > $d/hello || echo refused", "written\nrefused\n");
    twins(r);
    uint64_t wrong =
        disks_reserve(r, "erofs.img", true, (struct guest_disk){ .filesystem = "squashfs" });
    ASSERT(disks_map_fails(r, wrong) != REASON_NONE);
}

static void partitions(struct disks_fixture *r)
{
    /* Two partitions of 1 MiB, from 1 MiB and from 2 MiB on: type 83, no CHS. */
    static const uint8_t table[] = { 0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8,  0, 0, 0, 8, 0, 0,
                                     0, 0, 0, 0, 0x83, 0, 0, 0, 0, 16, 0, 0, 0, 8, 0, 0 };

    disks_host(r, "for i in 1 2; do mkdir p$i; echo part $i > p$i/hello; truncate -s 1M $i.part; "
                  "mke2fs -q -t ext4 -d p$i $i.part; done; truncate -s 3M p.img; "
                  "dd if=1.part of=p.img bs=1M seek=1 conv=notrunc 2>/dev/null; "
                  "dd if=2.part of=p.img bs=1M seek=2 conv=notrunc 2>/dev/null");
    AUTO_FD int fd = open(tempdir_path(&r->vm.temp, "p.img"), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(pwrite(fd, table, sizeof(table), 446), sizeof(table));
    ASSERT_EQ(pwrite(fd, "\x55\xaa", 2, 510), 2);
    uint64_t one = disks_reserve(r, "p.img", true, (struct guest_disk){ .partition = 1 });
    uint64_t two = disks_reserve(r, "p.img", true, (struct guest_disk){ .partition = 2 });
    AUTO_FREE char *path1 = disks_map(r, one), *path2 = disks_map(r, two);

    ASSERT_EQ(scsi_used_slots(r->scsi), 1);
    disks_guest(r, path1, "cat $d/hello", "part 1\n");
    uint64_t none = disks_reserve(r, "p.img", true, (struct guest_disk){ .partition = 3 });
    ASSERT_EQ(disks_map_fails(r, none), REASON_DISK_NO_FILESYSTEM);
    disks_unmap(r, one);
    disks_guest(r, path2, "cat $d/hello", "part 2\n");
    disks_unmap(r, two);
}

static void block_devices(struct disks_fixture *r)
{
    disks_host(r, "printf 'raw bytes' > raw.img; truncate -s 1M raw.img");
    disks_look(r, "raw.img", false, (struct guest_disk){ .block_device = true },
               "[ -b $d ] && head -c 9 $d && printf other | dd of=$d conv=notrunc 2>/dev/null",
               "raw bytes");
    disks_host(r, "[ \"$(head -c 9 raw.img)\" = otherytes ]");
}

static void formatting(struct disks_fixture *r)
{
    const struct guest_disk ensure = { .ensure_filesystem = true, .filesystem = "ext4" };

    disks_host(r, "truncate -s 64M empty.img");
    disks_look(r, "empty.img", false, ensure, "echo kept > $d/new && echo made", "made\n");
    disks_look(r, "empty.img", false, ensure, "cat $d/new", "kept\n"); /* not made again */
    disks_host(r, "e2fsck -fn empty.img >&2");
    /* Nobody's data is written over. */
    ASSERT_EQ(disks_map_fails(r, disks_reserve(r, "raw.img", false, ensure)),
              REASON_DISK_NOT_EMPTY);
    ASSERT_EQ(disks_map_fails(r, disks_reserve(r, "xfs.img", false, ensure)),
              REASON_DISK_NOT_EMPTY);
    disks_host(r, "truncate -s 64M empty2.img");
    ASSERT(disks_map_fails(r, disks_reserve(r, "empty2.img", false,
                                            (struct guest_disk){ .ensure_filesystem = true,
                                                                 .filesystem = "xfs" })) !=
           REASON_NONE);
    ASSERT_EQ(disks_map_fails(r, disks_reserve(r, "empty2.img", false, (struct guest_disk){ 0 })),
              REASON_DISK_NO_FILESYSTEM);
    /* The guest asks for the missing capacity again, for a limited time. */
    disks_host(r, "truncate -s 0 nothing.img");
    ASSERT_EQ(disks_map_fails(r, disks_reserve(r, "nothing.img", false, (struct guest_disk){ 0 })),
              REASON_DISK_NO_FILESYSTEM);
}

TEST_FIBER(disks_of_every_kind)
{
    struct disks_fixture r;

    disks_start(ctx, &r);
    file_systems(&r);
    partitions(&r);
    block_devices(&r);
    formatting(&r);
    disks_finish(&r);
}

/* --- dm-verity --- */

static void digest(const uint8_t *salt, size_t salt_len, const uint8_t *block, uint8_t *out)
{
    struct sha256 s;
    char hex[SHA256_HEX_SIZE];

    sha256_init(&s);
    sha256_add(&s, salt, salt_len);
    sha256_add(&s, block, BLOCK);
    sha256_hex(&s, hex);
    for (int i = 0; i < SHA256_BYTES; i++) {
        unsigned byte;
        ASSERT_EQ(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
}

/* One level of the tree: the hashes of n blocks, in whole blocks. Caller frees. */
static uint8_t *level(const uint8_t *salt, size_t salt_len, const uint8_t *blocks, size_t n,
                      size_t *ret_n)
{
    size_t per = BLOCK / SHA256_BYTES;

    *ret_n = (n + per - 1) / per;
    uint8_t *out = mem_zalloc(*ret_n * BLOCK);
    for (size_t i = 0; i < n; i++)
        digest(salt, salt_len, blocks + i * BLOCK, out + i * SHA256_BYTES);
    return out;
}

/* Behind the file system: verity's superblock and the tree, as veritysetup makes it. */
static void add_verity(struct disks_fixture *r, const char *name, const uint8_t *salt,
                       size_t salt_len, char root[SHA256_HEX_SIZE])
{
    const char *path = tempdir_path(&r->vm.temp, name);
    uint8_t super[BLOCK] = "verity", *levels[8] = { 0 };
    AUTO_FREE char *data = NULL;
    size_t len, sizes[8], n_levels = 0, n;
    uint8_t top[SHA256_BYTES];

    ASSERT_EQ(file_read_all(path, 64u << 20, &data, &len), 0);
    ASSERT_EQ(len % BLOCK, 0);
    n = len / BLOCK;
    uint64_t blocks = n;
    memcpy(super + 8, &(uint32_t[]){ 1, 1 }, 8);
    memcpy(super + 32, "sha256", 6);
    memcpy(super + 64, &(uint32_t[]){ BLOCK, BLOCK }, 8);
    memcpy(super + 72, &blocks, 8);
    memcpy(super + 80, &(uint16_t){ (uint16_t)salt_len }, 2);
    memcpy(super + 88, salt, salt_len);
    for (const uint8_t *at = (uint8_t *)data; n > 1; at = levels[n_levels - 1]) {
        levels[n_levels] = level(salt, salt_len, at, n, &sizes[n_levels]);
        n = sizes[n_levels++];
    }
    AUTO_FD int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    ASSERT_EQ(fd_write_full(fd, super, BLOCK), 0);
    for (size_t i = n_levels; i > 0; i--)
        ASSERT_EQ(fd_write_full(fd, levels[i - 1], sizes[i - 1] * BLOCK), 0);
    digest(salt, salt_len, n_levels ? levels[n_levels - 1] : (uint8_t *)data, top);
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(root + 2 * i, 3, "%02x", top[i]);
    for (size_t i = 0; i < n_levels; i++)
        free(levels[i]);
}

static void wrong_hash(struct disks_fixture *r, const char *root)
{
    char other[SHA256_HEX_SIZE];
    const struct guest_disk m = { .verity = true, .root_hash = other };

    memcpy(other, root, sizeof(other));
    other[63] = other[63] == '0' ? '1' : '0';
    ASSERT_EQ(disks_map_fails(r, disks_reserve(r, "v.img", true, m)), REASON_VERITY_MISMATCH);
}

/* The content of the file is changed on the host, the tree is not. */
static void changed_data(struct disks_fixture *r, const char *root)
{
    const struct guest_disk m = { .verity = true, .root_hash = root };

    disks_host(r, "at=$(grep -abo 'true content' v.img | cut -d: -f1) && "
                  "printf 'evil' | dd of=v.img bs=1 seek=$at conv=notrunc 2>/dev/null");
    disks_look(r, "v.img", true, m,
               "cat $d/hello 2>&1 | sed 's/.*: //'; grep -c evil $d/hello 2>/dev/null; "
               "cat $d/other",
               "Input/output error\n0\nother\n");
    /* Without it the change is not seen: what was refused above was verity's doing. */
    disks_look(r, "v.img", true, (struct guest_disk){ 0 }, "cat $d/hello", "evil content\n");
}

TEST_FIBER(verified_disks_give_what_their_root_hash_says_or_nothing)
{
    static const uint8_t salt[32] = { 1, 2, 3 };
    char root[SHA256_HEX_SIZE], small[SHA256_HEX_SIZE];
    struct disks_fixture r;

    disks_start(ctx, &r);
    /* More than 128 blocks: a tree of two levels. */
    disks_host(&r, "mkdir d && echo true content > d/hello && echo other > d/other && "
                   "truncate -s 4M v.img && mke2fs -q -t ext4 -b 4096 -d d v.img");
    add_verity(&r, "v.img", salt, sizeof(salt), root);
    disks_look(&r, "v.img", true, (struct guest_disk){ .verity = true, .root_hash = root },
               "cat $d/hello", "true content\n");
    disks_look(&r, "v.img", true, (struct guest_disk){ .verity = true }, "cat $d/hello",
               "true content\n");
    wrong_hash(&r, root);
    changed_data(&r, root);
    /* A tree without a level, and no salt. */
    unpack(&r, "erofs");
    add_verity(&r, "erofs.img", salt, 0, small);
    disks_look(&r, "erofs.img", true, (struct guest_disk){ .verity = true, .root_hash = small },
               "cat $d/hello", "a file system\n");
    unpack(&r, "squashfs");
    ASSERT_EQ(disks_map_fails(&r, disks_reserve(&r, "squashfs.img", true,
                                                (struct guest_disk){ .verity = true })),
              REASON_VERITY_MISSING);
    real_vm_expect(&r.vm, "ls /sys/block | grep -c dm- || :", "0\n");
    disks_finish(&r);
}

/* --- dm-crypt --- */

TEST_FIBER(an_encrypted_disk_shows_the_host_no_data_and_lasts_as_long_as_its_mount)
{
    const struct guest_disk m = { .encrypted = true, .ensure_filesystem = true };
    struct disks_fixture r;

    disks_start(ctx, &r);
    disks_host(&r, "truncate -s 64M e.img");
    disks_look(&r, "e.img", false, m,
               "yes a secret of the guest | head -n 20000 > $d/s; sync; tail -n 1 $d/s",
               "a secret of the guest\n");
    /* It was written, and neither it nor the file system can be read. */
    disks_host(&r, "[ $(du -k e.img | cut -f1) -gt 100 ] && ! grep -q secret e.img && "
                   "! e2fsck -n e.img 2>/dev/null >&2");
    disks_look(&r, "e.img", false, m, "ls $d/s 2>/dev/null || echo gone", "gone\n");
    disks_look(&r, "e.img", false, (struct guest_disk){ .encrypted = true, .block_device = true },
               "[ -b $d ] && echo words > $d && head -n 1 $d", "words\n");
    disks_host(&r, "! grep -q words e.img");
    real_vm_expect(&r.vm, "ls /sys/block | grep -c dm- || :", "0\n");
    disks_finish(&r);
}
