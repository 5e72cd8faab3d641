/* A stand-in for libnvidia-ml.so.1: the functions that health checks call, answered from a text file.
 *
 * The file (KINEMILL_STUB_NVML, else /opt/kinemill-stand-ins/nvml.state) is read again on every call. Its lines are
 * "key value"; keys of one GPU begin with "gpuN.". Any call can be given a return code or a hang:
 *   return.nvmlInit_v2 9              gpu3.return.nvmlDeviceGetTotalEccErrors 999
 *   gpu3.hang.nvmlDeviceGetTemperature 30
 * What the file does not say is healthy. Built with -DPARTIAL the newer functions are missing, as in an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int ret_t;
typedef void *device_t;
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, UNKNOWN = 999
};

static int started; /* calls before nvmlInit fail, as they do on hardware */

/* ---- the state file */

static int lookup(int gpu, const char *key, char *out, size_t size)
{
    const char *path = getenv("KINEMILL_STUB_NVML");
    char wanted[160], line[1024];
    FILE *file = fopen(path && *path ? path : "/opt/kinemill-stand-ins/nvml.state", "re");
    int found = 0;
    size_t length;
    if (!file)
        return 0;
    if (gpu >= 0)
        snprintf(wanted, sizeof wanted, "gpu%d.%s ", gpu, key);
    else
        snprintf(wanted, sizeof wanted, "%s ", key);
    length = strlen(wanted);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, wanted, length) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", line + length);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static unsigned long long number(int gpu, const char *key, unsigned long long fallback)
{
    char text[256];
    return lookup(gpu, key, text, sizeof text) ? strtoull(text, NULL, 0) : fallback;
}

static int count(void) { return (int)number(-1, "count", 0); }

static void rest(int gpu, const char *function)
{
    char key[128];
    struct timespec pause = {0, 0};
    snprintf(key, sizeof key, "hang.%s", function);
    pause.tv_sec = (time_t)number(gpu, key, 0);
    if (pause.tv_sec)
        nanosleep(&pause, NULL);
}

/* What every call does first: the injected hang, the injected code, then the state of the library and the GPU. */
static ret_t gate(const char *function, int gpu)
{
    char key[128];
    unsigned long long code;
    snprintf(key, sizeof key, "return.%s", function);
    rest(-1, function);
    if ((code = number(-1, key, 0)))
        return (ret_t)code;
    if (gpu < 0)
        return SUCCESS;
    rest(gpu, function);
    if ((code = number(gpu, key, 0)))
        return (ret_t)code;
    if (!started)
        return UNINITIALIZED;
    if (gpu >= count())
        return INVALID_ARGUMENT;
    return number(gpu, "lost", 0) ? GPU_IS_LOST : SUCCESS;
}

static int index_of(device_t device) { return (int)(size_t)device - 1; }
static device_t device_of(int gpu) { return (device_t)(size_t)(gpu + 1); }

#define ENTER(device)                                \
    int gpu = index_of(device);                      \
    ret_t code = gate(__func__, gpu < 0 ? 9999 : gpu); \
    if (code)                                        \
        return code

static ret_t text_of(int gpu, const char *key, const char *fallback, char *out, unsigned size)
{
    char text[256];
    const char *value = lookup(gpu, key, text, sizeof text) ? text : fallback;
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* ---- library and system */

ret_t nvmlInitWithFlags(unsigned flags)
{
    ret_t code = gate(__func__, -1);
    char text[8];
    (void)flags;
    if (!code)
        code = gate("nvmlInit_v2", -1);
    if (!code && !lookup(-1, "count", text, sizeof text))
        code = DRIVER_NOT_LOADED;
    if (!code)
        started++;
    return code;
}
ret_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ret_t nvmlInit(void) { return nvmlInitWithFlags(0); }

ret_t nvmlShutdown(void)
{
    if (!started)
        return UNINITIALIZED;
    started--;
    return gate(__func__, -1);
}

const char *nvmlErrorString(ret_t code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

ret_t nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    ret_t code = gate(__func__, -1);
    return code ? code : started ? text_of(-1, "driver", "570.133.20", out, size) : UNINITIALIZED;
}
ret_t nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    ret_t code = gate(__func__, -1);
    return code ? code : text_of(-1, "nvml", "12.570.133.20", out, size);
}
ret_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ret_t code = gate(__func__, -1);
    *out = (int)number(-1, "cuda", 12080);
    return code;
}

/* ---- finding a GPU */

ret_t nvmlDeviceGetCount_v2(unsigned *out)
{
    ret_t code = gate(__func__, -1);
    if (!code && !started)
        code = UNINITIALIZED;
    *out = (unsigned)count();
    return code;
}

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out)
{
    ENTER(device_of((int)index));
    *out = device_of(gpu);
    return SUCCESS;
}

static ret_t find(const char *key, const char *wanted, device_t *out)
{
    char text[256];
    int gpu;
    for (gpu = 0; gpu < count(); gpu++) {
        if (lookup(gpu, key, text, sizeof text) && strcasecmp(text, wanted) == 0) {
            *out = device_of(gpu);
            return number(gpu, "lost", 0) ? GPU_IS_LOST : SUCCESS;
        }
    }
    return NOT_FOUND;
}
ret_t nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out)
{
    ret_t code = gate(__func__, -1);
    return code ? code : find("uuid", uuid, out);
}
ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t *out)
{
    ret_t code = gate(__func__, -1);
    return code ? code : find("pci", bus, out);
}

ret_t nvmlDeviceGetIndex(device_t device, unsigned *out)
{
    ENTER(device);
    *out = (unsigned)gpu;
    return SUCCESS;
}
ret_t nvmlDeviceGetMinorNumber(device_t device, unsigned *out)
{
    ENTER(device);
    *out = (unsigned)number(gpu, "minor", (unsigned long long)gpu);
    return SUCCESS;
}

#define TEXT(function, key, fallback)                          \
    ret_t function(device_t device, char *out, unsigned size) \
    {                                                          \
        ENTER(device);                                         \
        return text_of(gpu, key, fallback, out, size);         \
    }
TEXT(nvmlDeviceGetName, "name", "NVIDIA H200")
TEXT(nvmlDeviceGetUUID, "uuid", "GPU-00000000-0000-0000-0000-000000000000")
TEXT(nvmlDeviceGetSerial, "serial", "0")
TEXT(nvmlDeviceGetVbiosVersion, "vbios", "96.00.B1.00.02")
TEXT(nvmlDeviceGetBoardPartNumber, "part", "692-2G520-0202-000")

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} pci_t;

static void fill_pci(const char *text, pci_t *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->address, sizeof out->address, "%s", text);
    if (sscanf(text, "%x:%x:%x", &out->domain, &out->bus, &out->device) == 3)
        snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus, out->device);
    out->id = 0x233510DE;
    out->subsystem = 0x18BE10DE;
}
ret_t nvmlDeviceGetPciInfo_v3(device_t device, pci_t *out)
{
    char text[32];
    ENTER(device);
    if (!lookup(gpu, "pci", text, sizeof text))
        snprintf(text, sizeof text, "00000000:%02X:00.0", 0x1b + 0x10 * gpu);
    fill_pci(text, out);
    return SUCCESS;
}

/* ---- memory and ECC */

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;

ret_t nvmlDeviceGetMemoryInfo(device_t device, memory_t *out)
{
    ENTER(device);
    out->total = number(gpu, "memory.total", 150754820096ull);
    out->used = number(gpu, "memory.used", 0);
    out->free = out->total - out->used;
    return SUCCESS;
}
ret_t nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *out)
{
    ENTER(device);
    out->total = number(gpu, "memory.total", 150754820096ull);
    out->reserved = 0;
    out->used = number(gpu, "memory.used", 0);
    out->free = out->total - out->used;
    return SUCCESS;
}

ret_t nvmlDeviceGetEccMode(device_t device, unsigned *current, unsigned *pending)
{
    ENTER(device);
    *current = (unsigned)number(gpu, "ecc.mode", 1);
    *pending = (unsigned)number(gpu, "ecc.pending", *current);
    return SUCCESS;
}

static unsigned long long ecc(int gpu, unsigned kind, unsigned counter, const char *place)
{
    char key[80];
    snprintf(key, sizeof key, "ecc.%s.%s%s", counter ? "aggregate" : "volatile", kind ? "uncorrected" : "corrected",
             place);
    return number(gpu, key, 0);
}
/* kind: 0 corrected, 1 uncorrected; counter: 0 volatile (since boot), 1 aggregate (lifetime) */
ret_t nvmlDeviceGetTotalEccErrors(device_t device, unsigned kind, unsigned counter, unsigned long long *out)
{
    ENTER(device);
    if (kind > 1 || counter > 1)
        return INVALID_ARGUMENT;
    if (!number(gpu, "ecc.mode", 1))
        return NOT_SUPPORTED;
    *out = ecc(gpu, kind, counter, "");
    return SUCCESS;
}
/* place: 2 DRAM, 7 SRAM; the total stands for DRAM where the file gives no place */
ret_t nvmlDeviceGetMemoryErrorCounter(device_t device, unsigned kind, unsigned counter, unsigned place,
                                      unsigned long long *out)
{
    ENTER(device);
    if (kind > 1 || counter > 1)
        return INVALID_ARGUMENT;
    if ((place != 2 && place != 7) || !number(gpu, "ecc.mode", 1))
        return NOT_SUPPORTED;
    *out = ecc(gpu, kind, counter, place == 2 ? ".dram" : ".sram");
    if (place == 2 && !*out && !ecc(gpu, kind, counter, ".sram"))
        *out = ecc(gpu, kind, counter, "");
    return SUCCESS;
}

/* Pages are not retired on GPUs that remap rows. */
ret_t nvmlDeviceGetRetiredPages(device_t device, unsigned cause, unsigned *n, unsigned long long *out)
{
    ENTER(device);
    (void)cause, (void)n, (void)out;
    return NOT_SUPPORTED;
}
ret_t nvmlDeviceGetRetiredPagesPendingStatus(device_t device, unsigned *out)
{
    ENTER(device);
    (void)out;
    return NOT_SUPPORTED;
}

/* ---- links */

#define NUMBER(function, key, fallback)                 \
    ret_t function(device_t device, unsigned *out)      \
    {                                                   \
        ENTER(device);                                  \
        *out = (unsigned)number(gpu, key, (fallback)); \
        return SUCCESS;                                 \
    }
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.max_generation", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.max_width", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie.replays", 0)
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
NUMBER(nvmlDeviceGetPowerUsage, "power", 90000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power.limit", 700000)
NUMBER(nvmlDeviceGetPerformanceState, "pstate", 0)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", 0)

/* Link numbers in nvlink.down are given as "3,7". */
static int link_down(int gpu, unsigned link)
{
    char text[256], *word, *mark = NULL;
    if (!lookup(gpu, "nvlink.down", text, sizeof text))
        return 0;
    for (word = strtok_r(text, ",", &mark); word; word = strtok_r(NULL, ",", &mark))
        if ((unsigned)atoi(word) == link)
            return 1;
    return 0;
}
ret_t nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *out)
{
    ENTER(device);
    if (link >= number(gpu, "nvlink.links", 18))
        return number(gpu, "nvlink.links", 18) ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *out = !link_down(gpu, link);
    return SUCCESS;
}
ret_t nvmlDeviceGetNvLinkErrorCounter(device_t device, unsigned link, unsigned counter, unsigned long long *out)
{
    ENTER(device);
    (void)counter;
    if (link >= number(gpu, "nvlink.links", 18))
        return INVALID_ARGUMENT;
    *out = link ? 0 : number(gpu, "nvlink.errors", 0);
    return SUCCESS;
}
ret_t nvmlDeviceGetNvLinkVersion(device_t device, unsigned link, unsigned *out)
{
    ENTER(device);
    if (link >= number(gpu, "nvlink.links", 18))
        return INVALID_ARGUMENT;
    *out = 7;
    return SUCCESS;
}

/* ---- use and heat */

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } process_t;

/* "pid:bytes,pid:bytes"; called once for the number and once for the list */
ret_t nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *n, process_t *out)
{
    char text[512], *word, *mark = NULL;
    unsigned found = 0, room = *n;
    ENTER(device);
    if (lookup(gpu, "processes", text, sizeof text)) {
        for (word = strtok_r(text, ",", &mark); word; word = strtok_r(NULL, ",", &mark), found++) {
            if (out && found < room) {
                char *bytes = strchr(word, ':');
                out[found].pid = (unsigned)atoi(word);
                out[found].memory = bytes ? strtoull(bytes + 1, NULL, 0) : 0;
                out[found].instance = out[found].compute = 0xffffffffu;
            }
        }
    }
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

ret_t nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    ENTER(device);
    *current = *pending = (unsigned)number(gpu, "mig.mode", 0);
    return SUCCESS;
}

ret_t nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *out)
{
    ENTER(device);
    if (sensor)
        return NOT_SUPPORTED;
    *out = (unsigned)number(gpu, "temperature", 38);
    return SUCCESS;
}
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
ret_t nvmlDeviceGetTemperatureV(device_t device, temperature_t *out)
{
    ENTER(device);
    out->temperature = (int)number(gpu, "temperature", 38);
    return SUCCESS;
}
/* threshold: 0 shutdown, 1 slowdown */
ret_t nvmlDeviceGetTemperatureThreshold(device_t device, unsigned threshold, unsigned *out)
{
    ENTER(device);
    if (threshold > 1)
        return NOT_SUPPORTED;
    *out = threshold ? 87 : 92;
    return SUCCESS;
}
typedef struct { unsigned gpu, memory; } utilization_t;
ret_t nvmlDeviceGetUtilizationRates(device_t device, utilization_t *out)
{
    ENTER(device);
    out->gpu = (unsigned)number(gpu, "utilization", 0);
    out->memory = 0;
    return SUCCESS;
}
/* kind: 0 graphics, 1 SM, 2 memory, 3 video */
ret_t nvmlDeviceGetClockInfo(device_t device, unsigned kind, unsigned *out)
{
    ENTER(device);
    *out = kind == 2 ? 3201 : (unsigned)number(gpu, "clocks.sm", 1980);
    return SUCCESS;
}
ret_t nvmlDeviceGetMaxClockInfo(device_t device, unsigned kind, unsigned *out)
{
    ENTER(device);
    *out = kind == 2 ? 3201 : 1980;
    return SUCCESS;
}
ret_t nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *out)
{
    ENTER(device);
    *out = number(gpu, "clocks.reasons", 1); /* 1: idle */
    return SUCCESS;
}

#ifndef PARTIAL
ret_t nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *out)
{
    ENTER(device);
    *out = number(gpu, "clocks.reasons", 1);
    return SUCCESS;
}
ret_t nvmlDeviceGetSupportedClocksEventReasons(device_t device, unsigned long long *out)
{
    ENTER(device);
    *out = 0x1ff;
    return SUCCESS;
}

ret_t nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                unsigned *failure)
{
    ENTER(device);
    *corrected = (unsigned)number(gpu, "remap.correctable", 0);
    *uncorrected = (unsigned)number(gpu, "remap.uncorrectable", 0);
    *pending = (unsigned)number(gpu, "remap.pending", 0);
    *failure = (unsigned)number(gpu, "remap.failure", 0);
    return SUCCESS;
}
typedef struct { unsigned max, high, partial, low, none; } histogram_t;
ret_t nvmlDeviceGetRowRemapperHistogram(device_t device, histogram_t *out)
{
    ENTER(device);
    memset(out, 0, sizeof *out);
    out->max = 1536;
    return SUCCESS;
}

typedef struct {
    unsigned id, scope;
    long long time_us, latency_us;
    unsigned type;
    ret_t code;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } value;
} field_t;

ret_t nvmlDeviceGetFieldValues(device_t device, int n, field_t *values)
{
    static const struct { unsigned id; const char *key; unsigned long long fallback; int wide; } known[] = {
        {3, "ecc.volatile.corrected", 0, 1},   {4, "ecc.volatile.uncorrected", 0, 1},
        {5, "ecc.aggregate.corrected", 0, 1},  {6, "ecc.aggregate.uncorrected", 0, 1},
        {91, "nvlink.links", 18, 0},           {94, "pcie.replays", 0, 0},
        {142, "remap.correctable", 0, 0},      {143, "remap.uncorrectable", 0, 0},
        {144, "remap.pending", 0, 0},          {145, "remap.failure", 0, 0},
        {230, "recovery_action", 0, 0},
    };
    int i;
    size_t k;
    ENTER(device);
    for (i = 0; i < n; i++) {
        values[i].code = NOT_SUPPORTED;
        values[i].type = 1;
        for (k = 0; k < sizeof known / sizeof *known; k++) {
            if (known[k].id != values[i].id)
                continue;
            values[i].code = SUCCESS;
            values[i].value.ull = number(gpu, known[k].key, known[k].fallback);
            values[i].type = known[k].wide ? 3 : 1; /* unsigned long long, unsigned int */
        }
    }
    return SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    ret_t status;
    unsigned clique;
    unsigned char state;
    unsigned health_mask;
} fabric_t;
/* state: 0 not supported, 1 not started, 2 in progress, 3 completed */
ret_t nvmlDeviceGetGpuFabricInfoV(device_t device, fabric_t *out)
{
    ENTER(device);
    if ((out->version >> 24) < 2 || (out->version >> 24) > 3)
        return NOT_SUPPORTED;
    memset(out->cluster, 0x11, sizeof out->cluster);
    out->status = (ret_t)number(gpu, "fabric.status", 0);
    out->clique = 0;
    out->state = (unsigned char)number(gpu, "fabric.state", 3);
    out->health_mask = (unsigned)number(gpu, "fabric.health", 0);
    return SUCCESS;
}
#endif
