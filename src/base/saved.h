/* saved.h - the state of objects as a document, written and read by the same function:
 *
 *     static void disk_saved(struct saved *s, struct disk *d)
 *     {
 *         saved_str(s, 1, &d->path);
 *         SAVED_ENUM(s, 2, d->state, DISK_STATE_COUNT);
 *         saved_fd(s, 3, "image", &d->fd);
 *     }
 *
 * Writing copies the fields into the document, reading replaces them by what the document has. So
 * no field can be written and not read. The format is protobuf's, and this code is the schema; a
 * field's number is never used again for something else. A field that the document lacks keeps its
 * value, and a field that the reader does not know is skipped: both happen between two versions of
 * the program. Of texts, bytes and lists an absent one is an empty one.
 *
 * Errors stick: after the first one nothing is read any more, every saved_count is 0, and
 * saved_check returns it. A value that cannot be right (an unknown state) is an error.
 *
 * Descriptors stay open across exec: the document has their numbers and what they refer to, and
 * reading checks that this is still so. Nothing here waits. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct idmap;
struct loop;
struct sbuf;
struct stream;
struct strv;
struct saved;

/* What this program writes, and the oldest that it reads. A document also names the oldest program
 * that can read it. */
#define SAVED_VERSION 1
#define SAVED_OLDEST 1
#define SAVED_MAX_BYTES (256u << 20)

/* Caller frees. */
struct saved *saved_writer(void);
/* Ends the document. Borrows until free. -1: something could not be saved. */
int saved_finish(struct saved *s, const void **ret, size_t *ret_len, struct err *err);
/* Clears (or sets) the close-on-exec flag of every descriptor that the document names. Setting
 * skips those that were closed since. */
int saved_keep_fds(struct saved *s, bool keep, struct err *err);
/* Borrows data until free. ERR_INVALID: cut, damaged, of another version. */
int saved_reader(const void *data, size_t len, struct saved **ret, struct err *err);
void saved_free(struct saved *s);
AUTO_DEFINE(struct saved *, saved_free);

bool saved_reads(const struct saved *s);
/* The first error, if there was one. */
int saved_check(const struct saved *s, struct err *err);
/* Something that cannot be saved, or a value that cannot be right. The first call counts. */
void saved_fail(struct saved *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* --- fields --- */

void saved_bool(struct saved *s, uint32_t field, bool *v);
void saved_u8(struct saved *s, uint32_t field, uint8_t *v);
void saved_u16(struct saved *s, uint32_t field, uint16_t *v);
void saved_u32(struct saved *s, uint32_t field, uint32_t *v);
void saved_u64(struct saved *s, uint32_t field, uint64_t *v);
void saved_int(struct saved *s, uint32_t field, int *v);
void saved_i64(struct saved *s, uint32_t field, int64_t *v);
void saved_size(struct saved *s, uint32_t field, size_t *v);
/* The value as read must be below count. */
unsigned saved_enum(struct saved *s, uint32_t field, unsigned v, unsigned count);
#define SAVED_ENUM(s, field, v, count)                                                             \
    ((v) = (__typeof__(v))saved_enum(s, field, (unsigned)(v), (unsigned)(count)))
/* NULL and "" are different. Reading frees the old value and allocates the new one. */
void saved_str(struct saved *s, uint32_t field, char **v);
void saved_text(struct saved *s, uint32_t field, char *buf, size_t size); /* an array of char */
void saved_bytes(struct saved *s, uint32_t field, void *data,
                 size_t len); /* of exactly that size */
void saved_sbuf(struct saved *s, uint32_t field, struct sbuf *b);
void saved_strv(struct saved *s, uint32_t field, struct strv *v);
/* Times of loop_now() stay right: the monotonic clock is the same after an exec. */
/* what: for errors, "tap", "pidfd". -1: none. */
void saved_fd(struct saved *s, uint32_t field, const char *what, int *fd);
/* NULL: none. A stream in memory (tests) is handed over by the writer's table, see saved_hand_over.
 */
void saved_stream(struct saved *s, uint32_t field, const char *what, struct loop *loop,
                  struct stream **v);

/* --- messages in messages --- */

/* How many elements a repeated message has: n when writing. Then open, fields, close for each. */
size_t saved_count(struct saved *s, uint32_t field, size_t n);
/* False, when reading, if there is no (further) one: then there is nothing to close. */
bool saved_open(struct saved *s, uint32_t field);
void saved_close(struct saved *s);

/* For the simulation: the reader takes streams in memory from this writer. */
void saved_hand_over(struct saved *reader, struct saved *writer);
