// A stand-in for libnvidia-ml.so.1 that exports NVML's own symbols, as its own header declares them. What it answers
// stands in the file that $NVML_FAKE names: lines of "key value". A key that is a function's name makes it return that
// nvmlReturn_t. Devices are counted from 1 inside, so that no handle is null; MIG device j of GPU i is 100*i+j.
// -DOLD leaves out what drivers before 450 lacked.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nvml.h"

#define ID(d) ((long)(d).handle)

static double value(const char *key, double otherwise)
{
	char name[128];
	double v;
	const char *path = getenv("NVML_FAKE");
	FILE *f = path ? fopen(path, "r") : NULL;
	if (!f)
		return otherwise;
	while (fscanf(f, "%127s %lf", name, &v) == 2) {
		if (!strcmp(name, key)) {
			fclose(f);
			return v;
		}
	}
	fclose(f);
	return otherwise;
}

static double of(const char *what, nvmlDevice_t d, double otherwise)
{
	char key[64];
	snprintf(key, sizeof key, "%s%ld", what, ID(d));
	return value(key, otherwise);
}

#define ANSWER() do { int r = (int)value(__func__, 0); if (r) return r; } while (0)
#define DEVICE(d) do { int r = (int)of("fail", d, 0); if (r) return r; if (!ID(d)) return NVML_ERROR_INVALID_ARGUMENT; } while (0)

nvmlReturn_t nvmlInit_v2(void) { ANSWER(); return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { ANSWER(); return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t r) { static char s[32]; snprintf(s, sizeof s, "fake error %d", r); return s; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n) { ANSWER(); *n = value("count", 1); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *d)
{
	ANSWER();
	d->handle = (void *)(long)(i + 1);
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *s, unsigned int n)
{
	ANSWER();
	snprintf(s, n, "%s-%04ld", ID(d) > 99 ? "MIG" : "GPU", ID(d));
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *s, unsigned int n) { ANSWER(); snprintf(s, n, "Fake H100"); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
	ANSWER();
	DEVICE(d);
	m->total = of("total", d, 80e9);
	m->used = of("used", d, 20e9);
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u)
{
	ANSWER();
	DEVICE(d);
	u->gpu = of("busy", d, 100);
	u->memory = 5;
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *mw) { ANSWER(); DEVICE(d); *mw = of("power", d, 350500); return NVML_SUCCESS; }
#undef nvmlDeviceGetCurrentClocksThrottleReasons
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *r) { ANSWER(); DEVICE(d); *r = of("throttle", d, 0); return NVML_SUCCESS; }

#ifndef OLD
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *r) { ANSWER(); DEVICE(d); *r = of("throttle", d, 0); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *now, unsigned int *pending)
{
	ANSWER();
	*now = *pending = of("mig", d, 0) > 0;
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *n) { ANSWER(); *n = 7; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int i, nvmlDevice_t *m)
{
	ANSWER();
	if (i >= of("mig", d, 0))
		return NVML_ERROR_NOT_FOUND;
	m->handle = (void *)(100 * ID(d) + i);
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned int *id) { ANSWER(); *id = 5 + ID(d) % 100; return NVML_SUCCESS; }

// A sample is what it was taken of.
struct sample { long device, instance, taken; };
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t d, nvmlGpmSupport_t *s)
{
	ANSWER();
	if (value("strict", 0) && s->version != NVML_GPM_SUPPORT_VERSION) // go-nvml sends size | version << 24
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	s->isSupportedDevice = of("gpm", d, 1);
	return NVML_SUCCESS;
}
static int live;
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *s)
{
	ANSWER();
	if (live >= value("samples", 1000))
		return NVML_ERROR_MEMORY;
	live++;
	s->handle = calloc(1, sizeof(struct sample));
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t s) { ANSWER(); live--; free(s.handle); return NVML_SUCCESS; }
static long taken;
static nvmlReturn_t take(nvmlDevice_t d, long instance, nvmlGpmSample_t s)
{
	DEVICE(d);
	*(struct sample *)s.handle = (struct sample){ID(d), instance, ++taken};
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t d, nvmlGpmSample_t s) { ANSWER(); return take(d, -1, s); }
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t d, unsigned int instance, nvmlGpmSample_t s) { ANSWER(); return take(d, instance, s); }
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *m)
{
	struct sample *a = (void *)m->sample1.handle, *b = (void *)m->sample2.handle;
	ANSWER();
	if (m->version != NVML_GPM_METRICS_GET_VERSION || m->numMetrics != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (m->metrics[0].metricId != NVML_GPM_METRIC_SM_UTIL || a->device != b->device || a->instance != b->instance || a->taken >= b->taken)
		return NVML_ERROR_INVALID_ARGUMENT;
	m->metrics[0].nvmlReturn = (nvmlReturn_t)value("metric", 0);
	m->metrics[0].value = a->instance < 0 ? of("sm", (nvmlDevice_t){(void *)a->device}, 12.5) : value("smgi", 30) + a->instance;
	return NVML_SUCCESS;
}
#endif
