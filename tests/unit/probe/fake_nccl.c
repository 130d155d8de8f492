/* A libnccl whose ranks share memory. FAKE_NCCL: wrong (with peer access only), hang (with peer access only). LL is faster. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ranks, queued;
static float *from[16], *to[16];
static size_t length;

static const char *value(const char *name) { const char *v = getenv(name); return v ? v : ""; }
static int peers(void) { return strcmp(value("NCCL_P2P_DISABLE"), "1") != 0; }

int ncclCommInitAll(void **communicators, int count, const int *devices)
{
    ranks = count;
    for (int i = 0; i < count; i++) communicators[i] = (void *)(intptr_t)(i + 1);
    return 0;
}
int ncclGroupStart(void) { queued = 0; return 0; }
int ncclAllReduce(uint64_t source, uint64_t target, size_t count, int type, int op, void *communicator, void *stream)
{
    int rank = (int)(intptr_t)communicator - 1;
    from[rank] = (float *)source; to[rank] = (float *)target; length = count; queued++;
    return type == 7 && op == 0 ? 0 : 4;
}
int ncclGroupEnd(void)
{
    if (queued != ranks) return 5;
    if (peers() && strcmp(value("FAKE_NCCL"), "hang") == 0) sleep(600);
    usleep(strcmp(value("NCCL_PROTO"), "LL") == 0 ? 200 : 1000);
    int wrong = peers() && strcmp(value("FAKE_NCCL"), "wrong") == 0;
    for (int r = 0; r < ranks; r++) {
        if (to[r][length - 1] == from[0][length - 1] * ranks) continue; /* done before: only time is wanted */
        for (size_t i = 0; i < length; i++) to[r][i] = from[0][i] * ranks + (wrong && i == 7);
    }
    return 0;
}
