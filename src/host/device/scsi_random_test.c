/* Many random steps, each with faults: no slot is lost, and no reservation shows a wrong file. */
#include "base/err.h"
#include "base/rand.h"
#include "fixture/device_fixture.h"
#include "fixture/files_fixture.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"

#define STEPS 4000
#define FILES 200 /* more than one controller takes */
#define HELD 240

struct held {
    uint64_t id;
    unsigned file;
    bool mapped, failed;
};

struct world {
    struct files_fixture fixture;
    struct rng rng;
    struct scsi *scsi;
    struct plan9 *plan9;
    int files[FILES];
    uint64_t inodes[FILES];
    struct held held[HELD], shared[HELD];
};

static void fault(struct world *w)
{
    struct fake_vmm_opts *o = fake_vmm_tune(w->fixture.vmm);
    uint64_t dice = rng_below(&w->rng, 5);

    for (int i = 0; i < FIXTURE_CALLS; i++)
        w->fixture.faults[i] =
            rng_below(&w->rng, 6) ? FIXTURE_OK : FIXTURE_FAIL + rng_below(&w->rng, 2);
    o->scsi_add.how = dice == 0 ? FAKE_FAIL : FAKE_OK;
    o->scsi_remove.how = dice == 1 ? FAKE_FAIL : FAKE_OK;
    o->share_add.how = dice == 2 ? FAKE_FAIL : FAKE_OK;
    o->share_remove.how = dice == 3 ? FAKE_FAIL : FAKE_OK;
}

static void calm(struct world *w)
{
    struct fake_vmm_opts *o = fake_vmm_tune(w->fixture.vmm);

    memset(w->fixture.faults, 0, sizeof(w->fixture.faults));
    o->scsi_add.how = o->scsi_remove.how = o->share_add.how = o->share_remove.how = FAKE_OK;
}

static void step_disk(struct ctx *ctx, struct world *w, struct held *h)
{
    struct err err = ERR_INIT;

    if (h->id == 0) {
        h->file = (unsigned)rng_below(&w->rng, FILES);
        const struct scsi_disk d = { .host_path = "/x",
                                     .fd = w->files[h->file],
                                     .read_only = true };
        const struct guest_disk m = { .partition = rng_below(&w->rng, 2), .read_only = true };
        h->mapped = h->failed = false;
        if (scsi_reserve(ctx, w->scsi, &d, &m, &h->id, &err) < 0) {
            ASSERT(err.code == ERR_STATE || err.code == ERR_EXHAUSTED);
            h->id = 0;
        }
    } else if (!h->failed && rng_below(&w->rng, 2)) {
        AUTO_FREE char *path = NULL;
        h->failed = scsi_map(ctx, w->scsi, h->id, &path, &err) < 0;
        if (!h->failed) {
            int i = fixture_find(&w->fixture, path);
            ASSERT(i >= 0);
            ASSERT_EQ(w->fixture.inodes[i], w->inodes[h->file]); /* the right file */
            h->mapped = true;
        }
        ASSERT(!h->mapped || !h->failed); /* once mapped it stays so */
    } else {
        h->failed = true; /* no map after a release that failed */
        h->mapped = false;
        if (scsi_unmap(ctx, w->scsi, h->id, &err) == 0)
            h->id = 0;
    }
}

static void step_share(struct ctx *ctx, struct world *w, struct held *h)
{
    struct err err = ERR_INIT;

    if (h->id == 0) {
        h->file = (unsigned)rng_below(&w->rng, FILES);
        const struct plan9_share s = { .host_path = "/x",
                                       .tree_fd = w->files[h->file],
                                       .read_only = rng_below(&w->rng, 2),
                                       .unique = !rng_below(&w->rng, 4) };
        h->mapped = h->failed = false;
        ASSERT_OK(plan9_reserve(ctx, w->plan9, &s, &h->id, &err), err);
    } else if (!h->failed && rng_below(&w->rng, 2)) {
        AUTO_FREE char *path = NULL;
        h->failed = plan9_map(ctx, w->plan9, h->id, &path, &err) < 0;
        ASSERT(h->failed || fixture_find(&w->fixture, path) >= 0);
        ASSERT(!h->mapped || !h->failed);
        h->mapped = !h->failed;
    } else {
        h->failed = true;
        h->mapped = false;
        if (plan9_unmap(ctx, w->plan9, h->id, &err) == 0)
            h->id = 0;
    }
}

static void run(struct ctx *ctx, uint64_t seed)
{
    struct world *w = mem_new(struct world);
    struct err err = ERR_INIT;
    struct stat st;

    rng_seed(&w->rng, seed);
    files_fixture_start(ctx, &w->fixture);
    w->scsi = scsi_new(w->fixture.vmm, &w->fixture.guest, SCSI_CONTROLLERS_MAX);
    w->plan9 = plan9_new(w->fixture.vmm, &w->fixture.guest);
    for (unsigned i = 0; i < FILES; i++) {
        w->files[i] = fixture_file();
        ASSERT_EQ(fstat(w->files[i], &st), 0);
        w->inodes[i] = st.st_ino;
    }
    for (unsigned i = 0; i < STEPS; i++) {
        fault(w);
        if (rng_below(&w->rng, 2))
            step_disk(ctx, w, &w->held[rng_below(&w->rng, HELD)]);
        else
            step_share(ctx, w, &w->shared[rng_below(&w->rng, HELD)]);
        ASSERT_STR(w->fixture.wrong, "");
    }
    calm(w);
    for (unsigned i = 0; i < HELD; i++) {
        if (w->held[i].id)
            ASSERT_OK(scsi_unmap(ctx, w->scsi, w->held[i].id, &err), err);
        if (w->shared[i].id)
            ASSERT_OK(plan9_unmap(ctx, w->plan9, w->shared[i].id, &err), err);
    }
    ASSERT_EQ(scsi_used_slots(w->scsi), 0);
    ASSERT_EQ(plan9_used(w->plan9), 0);
    files_fixture_clean(&w->fixture);
    scsi_free(w->scsi);
    plan9_free(w->plan9);
    files_fixture_finish(ctx, &w->fixture);
    for (unsigned i = 0; i < FILES; i++)
        fd_close(w->files[i]);
    free(w);
}

TEST_VIRTUAL(four_thousand_steps_with_faults_lose_nothing)
{
    for (uint64_t seed = 1; seed <= 10; seed++)
        run(ctx, seed);
}
