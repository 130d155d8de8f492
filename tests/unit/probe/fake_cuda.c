/* A libcuda with two devices whose memory is host memory. FAKE_CUDA: broken (peer copies lose data), no-access, busy, old. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *mode(void) { const char *m = getenv("FAKE_CUDA"); return m ? m : ""; }
static int is(const char *word) { return strcmp(mode(), word) == 0; }

int cuInit(unsigned flags) { return is("no-device") ? 100 : 0; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 101973360640; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "NVIDIA Fake", length); return 0; }
int cuDeviceGetPCIBusId(char *bus, int length, int device) { strncpy(bus, device ? "0000:02:00.0" : "0000:01:00.0", length); return 0; }
int cuDeviceGetAttribute(int *value, int number, int device) { *value = number == 75 ? 12 : number == 76 ? 0 : number == 16 ? 188 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(device + 1); return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuMemGetInfo_v2(size_t *available, size_t *total) { *total = 1ul << 36; *available = is("busy") ? 1ul << 29 : 1ul << 35; return 0; }
int cuMemAlloc_v2(uint64_t *pointer, size_t size) { *pointer = (uint64_t)malloc(size); return 0; }
int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = !is("no-access"); return 0; }
int cuCtxEnablePeerAccess(void *context, unsigned flags) { return is("refused") ? 217 : 0; }
int cuMemsetD8_v2(uint64_t pointer, unsigned char value, size_t size) { memset((void *)pointer, value, size); return 0; }
int cuMemcpyPeer(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t size)
{
    if (is("broken")) size -= 4096;
    memcpy((void *)to, (void *)from, size);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuMemsetD32_v2(uint64_t pointer, unsigned value, size_t count) { for (size_t i = 0; i < count; i++) ((unsigned *)pointer)[i] = value; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)1; return 0; }
int cuStreamSynchronize(void *stream) { return 0; }
