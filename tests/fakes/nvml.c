/* A libnvidia-ml.so.1 whose GPU is as sick as a test wants it.
 *
 * The file that FAKE_NVML names is read again at every call: lines `key value`, with the keys below; `pids` takes several values.
 * `KEY.N VALUE` is of the GPU number N alone, for pids, sm_clock, milliwatts, celsius, reasons and memory_used.
 * A key ending in _error makes that function return that code. Each living process whose number stands in the second file, whose
 * name ends in .holders, holds `memory_each` bytes of memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu, compute; } process_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

static int find(const char *key, char *rest) {
    char line[512];
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
    int found = 0;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
        if (!strncmp(line, key, length) && line[length] == ' ') { strcpy(rest, line + length + 1); found = 1; break; }
    }
    fclose(file);
    return found;
}

static unsigned long long number(const char *key, unsigned long long otherwise) {
    char rest[512];
    return find(key, rest) ? strtoull(rest, NULL, 0) : otherwise;
}

/* What stands for this GPU alone, else for all of them. */
static int find_of(void *device, const char *key, char *rest) {
    char own[64];
    snprintf(own, sizeof own, "%s.%zu", key, (size_t)device - 1);
    return find(own, rest) || find(key, rest);
}

static unsigned long long number_of(void *device, const char *key, unsigned long long otherwise) {
    char rest[512];
    return find_of(device, key, rest) ? strtoull(rest, NULL, 0) : otherwise;
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return number("init_error", 0); }
int nvmlInit_v2(void) { return number("init_error", 0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "some error"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = number("count", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { /* `only` is the one GPU that this user may see */
    *device = (void *)(size_t)(index + 1); return number("only", index) == index ? 0 : 4;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)(size_t)((strncmp(uuid, "GPU-", 4) ? 0 : atoi(uuid + 4)) + 1); return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
    char rest[512];
    (void)device;
    strncpy(name, find("name", rest) ? strtok(rest, "\n") : "Fake GPU", length);
    return 0;
}
int nvmlSystemGetDriverVersion(char *name, unsigned int length) { strncpy(name, "1.2.3", length); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }

int nvmlDeviceGetClockInfo(void *device, int type, unsigned int *clock) {
    char name[512];
    FILE *file;
    *clock = type == 1 ? number_of(device, "sm_clock", 1980) : number("memory_clock", 3201);
    if (type == 1) { /* one byte a sample, so that a test can wait for samples instead of for time */
        snprintf(name, sizeof name, "%s.samples", getenv("FAKE_NVML"));
        if ((file = fopen(name, "a"))) { fputc('.', file); fclose(file); }
    }
    return number("clock_error", 0);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
    *milliwatts = number_of(device, "milliwatts", 400000); return number("power_error", 0);
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius) {
    (void)sensor; *celsius = number_of(device, "celsius", 60); return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    *reasons = number_of(device, "reasons", 0); return number("reasons_error", 0);
}
static unsigned count_holders(void) {
    char name[512], path[64], line[512];
    unsigned pid, found = 0;
    FILE *holders, *stat;
    snprintf(name, sizeof name, "%s.holders", getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "");
    if (!(holders = fopen(name, "r"))) return 0;
    while (fscanf(holders, "%u", &pid) == 1) {
        snprintf(path, sizeof path, "/proc/%u/stat", pid);
        if (!(stat = fopen(path, "r"))) continue;
        if (fgets(line, sizeof line, stat) && strrchr(line, ')') && !strchr("ZX", strrchr(line, ')')[2])) found++;
        fclose(stat);
    }
    fclose(holders);
    return found;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = number("memory_total", 150000000000ULL);
    memory->used = number_of(device, "memory_used", 0) + number("memory_each", 0) * count_holders();
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_t *processes) {
    char rest[512];
    unsigned int room = *count, seen = 0;
    if (number("pids_error", 0)) return number("pids_error", 0);
    if (find_of(device, "pids", rest))
        for (char *word = strtok(rest, " \n"); word; word = strtok(NULL, " \n")) {
            if (processes && seen < room) { memset(&processes[seen], 0, sizeof *processes); processes[seen].pid = atoi(word); }
            seen++;
        }
    *count = seen;
    return processes || !seen ? 0 : 7; /* NVML_ERROR_INSUFFICIENT_SIZE: the caller asked how many */
}

/* What only the doctor asks. */
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
    snprintf(uuid, length, "GPU-%04zu", (size_t)device - 1); return number("uuid_error", 0);
}
int nvmlDeviceGetRemappedRows(void *device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed) {
    (void)device; *corrected = *uncorrected = 0;
    *pending = number("remap_pending", 0); *failed = number("remap_failed", 0);
    return number("remap_error", 0);
}
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count) {
    (void)device; (void)type; (void)counter; *count = number("ecc", 0); return number("ecc_error", 0);
}
int nvmlDeviceGetNvLinkState(void *device, unsigned int link, unsigned int *state) {
    unsigned int links = number("links", 18);
    (void)device; *state = link >= number("links_down", 0); return link < links ? 0 : 2;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, int way, int *status) { /* 0 reads, 2 is NVLink; 0 is OK */
    (void)one; (void)other; *status = number(way == 2 ? "p2p_nvlink" : "p2p_read", 0); return number("p2p_error", 0);
}
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned int *level) {
    (void)one; (void)other; *level = number("topology", 50); return number("topology_error", 0);
}
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned int *width) { (void)device; *width = number("pcie_width", 16); return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned int *width) { (void)device; *width = 16; return 0; }
int nvmlDeviceGetPersistenceMode(void *device, unsigned int *mode) { (void)device; *mode = number("persistence", 1); return 0; }
int nvmlDeviceSetGpuLockedClocks(void *device, unsigned int low, unsigned int high) { /* what was locked stands beside the state */
    char path[4096];
    snprintf(path, sizeof path, "%s.clocks", getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "");
    FILE *file = fopen(path, "a");
    if (file) { fprintf(file, "%zu %u %u\n", (size_t)device - 1, low, high); fclose(file); }
    return number("lock_error", 0);
}
int nvmlDeviceGetMinorNumber(void *device, unsigned int *minor) { *minor = (size_t)device - 1; return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) { /* the first GPU sits at 17:00.0, the next ones behind it */
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x17 + (unsigned)(size_t)device - 1);
    return number("pci_error", 0);
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { (void)device; *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending) {
    (void)device; *current = *pending = number("mig", 0); return number("mig_error", 0);
}
