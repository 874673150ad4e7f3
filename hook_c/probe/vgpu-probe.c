// SPDX-License-Identifier: Apache-2.0
/* vgpu-probe: what a program in this container sees of its cards, and how much it is given.
 *
 * Finds the driver as a CUDA program does (dlopen, dlsym), follows its words in their order, and
 * prints one JSON object. It needs no CUDA header and no CUDA library to be built. */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_DEVICES 16
#define MAX_POINTERS 65536

static const char usage_text[] =
	"usage: vgpu-probe [word ...]\n"
	"  --ordinal N             use this device for what follows (default 0)\n"
	"  --allocate BYTES        cuMemAlloc of BYTES (suffixes k, m, g: 1024)\n"
	"  --until-refused [STEP]  cuMemAlloc of STEP (default 64m) until one is refused\n"
	"  --free                  free everything that was allocated\n"
	"  --hold SECONDS          print now, then keep what is allocated for SECONDS\n"
	"Prints one JSON object. Exit status 0: it ran, whatever was refused; 1: no driver or no\n"
	"device; 2: wrong use.\n";

/* The part of the driver API and of NVML that the probe uses, by the names that they export. */
static struct {
	int (*init)(unsigned int);
	int (*driver_version)(int *);
	int (*error_name)(int, const char **);
	int (*count)(int *);
	int (*get)(int *, int);
	int (*name)(char *, int, int);
	int (*uuid)(unsigned char *, int);
	int (*total)(size_t *, int);
	int (*retain)(void **, int);
	int (*set_current)(void *);
	int (*mem_info)(size_t *, size_t *);
	int (*alloc)(uint64_t *, size_t);
	int (*free)(uint64_t);
} cuda;

static struct {
	int (*init)(void);
	int (*by_uuid)(const char *, void **);
	int (*memory)(void *, uint64_t *);
	int (*memory_v2)(void *, void *);
} nvml;

/* nvmlMemory_v2_t: the caller says in `version` which layout it knows. */
struct nvml_memory_v2 {
	unsigned int version;
	uint64_t total;
	uint64_t reserved;
	uint64_t free;
	uint64_t used;
};

struct name {
	const char *symbol;
	void *target;
};

static struct {
	uint64_t pointer[MAX_POINTERS];
	size_t count;
} held;

/* What is printed is collected first: a --hold prints it all, and later words add nothing. */
static FILE *json;
static char *json_text;
static size_t json_bytes;

static bool find(void *library, const struct name *names, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		void *symbol = dlsym(library, names[i].symbol);

		if (symbol == NULL)
			return false;
		memcpy(names[i].target, (const void *)&symbol, sizeof(symbol));
	}
	return true;
}

static bool load_cuda(void)
{
	static const struct name names[] = {
		{"cuInit", (void *)&cuda.init},
		{"cuDriverGetVersion", (void *)&cuda.driver_version},
		{"cuGetErrorName", (void *)&cuda.error_name},
		{"cuDeviceGetCount", (void *)&cuda.count},
		{"cuDeviceGet", (void *)&cuda.get},
		{"cuDeviceGetName", (void *)&cuda.name},
		{"cuDeviceGetUuid_v2", (void *)&cuda.uuid},
		{"cuDeviceTotalMem_v2", (void *)&cuda.total},
		{"cuDevicePrimaryCtxRetain", (void *)&cuda.retain},
		{"cuCtxSetCurrent", (void *)&cuda.set_current},
		{"cuMemGetInfo_v2", (void *)&cuda.mem_info},
		{"cuMemAlloc_v2", (void *)&cuda.alloc},
		{"cuMemFree_v2", (void *)&cuda.free},
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	return library != NULL && find(library, names, ARRAY_LEN(names));
}

static bool load_nvml(void)
{
	static const struct name names[] = {
		{"nvmlInit_v2", (void *)&nvml.init},
		{"nvmlDeviceGetHandleByUUID", (void *)&nvml.by_uuid},
		{"nvmlDeviceGetMemoryInfo", (void *)&nvml.memory},
		{"nvmlDeviceGetMemoryInfo_v2", (void *)&nvml.memory_v2},
	};
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	return library != NULL && find(library, names, ARRAY_LEN(names)) && nvml.init() == 0;
}

#define put(...) fprintf(json, __VA_ARGS__)

/* A value that the driver wrote: names hold no quotes, but a fake or a broken driver may. */
static void put_string(const char *text)
{
	putc('"', json);
	for (; *text != '\0'; text++) {
		if (*text == '"' || *text == '\\')
			putc('\\', json);
		putc(isprint((unsigned char)*text) ? *text : '?', json);
	}
	putc('"', json);
}

static void put_code(int code)
{
	const char *name = NULL;

	if (cuda.error_name == NULL || cuda.error_name(code, &name) != 0 || name == NULL)
		name = "?";
	put("\"code\": %d, \"name\": ", code);
	put_string(name);
}

static void format_uuid(char text[41], const unsigned char uuid[16])
{
	char *end = text + sprintf(text, "GPU-");

	for (int i = 0; i < 16; i++)
		end += sprintf(end, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			       uuid[i]);
}

/* The binary UUID does not say whether the card is a MIG instance: NVML knows. NULL: it knows
 * neither. */
static void *find_in_nvml(char text[41])
{
	void *handle;

	if (nvml.by_uuid == NULL)
		return NULL;
	if (nvml.by_uuid(text, &handle) == 0)
		return handle;
	memcpy(text, "MIG", 3);
	if (nvml.by_uuid(text, &handle) == 0)
		return handle;
	memcpy(text, "GPU", 3);
	return NULL;
}

static void put_nvml(void *handle)
{
	uint64_t v1[3] = {0}; /* nvmlMemory_t: total, free, used */
	struct nvml_memory_v2 v2 = {.version = sizeof(v2) | 2U << 24};

	if (handle == NULL) {
		put("null");
		return;
	}
	int status = nvml.memory(handle, v1);
	int status_v2 = nvml.memory_v2(handle, &v2);

	put("{\"code\": %d, \"total\": %" PRIu64 ", \"free\": %" PRIu64 ", \"used\": %" PRIu64
	    ", \"v2\": {\"code\": %d, \"total\": %" PRIu64 ", \"free\": %" PRIu64
	    ", \"used\": %" PRIu64 ", \"reserved\": %" PRIu64 "}}",
	    status, v1[0], v1[1], v1[2], status_v2, v2.total, v2.free, v2.used, v2.reserved);
}

static void put_device(int ordinal)
{
	int device;
	char name[128] = "?";
	unsigned char uuid[16] = {0};
	char uuid_text[41];
	size_t total = 0;
	size_t free_bytes = 0;
	size_t info_total = 0;
	void *context;

	if (cuda.get(&device, ordinal) != 0)
		return;
	cuda.name(name, sizeof(name), device);
	cuda.uuid(uuid, device);
	format_uuid(uuid_text, uuid);

	void *nvml_handle = find_in_nvml(uuid_text);
	int total_status = cuda.total(&total, device);
	int status = cuda.retain(&context, device);

	if (status == 0)
		status = cuda.set_current(context);
	if (status == 0)
		status = cuda.mem_info(&free_bytes, &info_total);
	put("{\"ordinal\": %d, \"name\": ", ordinal);
	put_string(name);
	put(", \"uuid\": \"%s\", \"total_memory\": {\"code\": %d, \"bytes\": %zu}, "
	    "\"mem_get_info\": {",
	    uuid_text, total_status, total);
	put_code(status);
	put(", \"free\": %zu, \"total\": %zu}, \"nvml\": ", free_bytes, info_total);
	put_nvml(nvml_handle);
	put("}");
}

static void put_devices(int count)
{
	put("[");
	for (int i = 0; i < count && i < MAX_DEVICES; i++) {
		put("%s", i == 0 ? "" : ", ");
		put_device(i);
	}
	put("]");
}

static void use_device(int ordinal)
{
	int device;
	void *context = NULL;

	/* Without a context what follows fails, rather than meet another device. */
	if (cuda.get(&device, ordinal) != 0 || cuda.retain(&context, device) != 0)
		context = NULL;
	cuda.set_current(context);
}

static int allocate(uint64_t bytes)
{
	uint64_t pointer;

	if (held.count == MAX_POINTERS)
		return -1;

	int status = cuda.alloc(&pointer, bytes);

	if (status == 0)
		held.pointer[held.count++] = pointer;
	return status;
}

static void allocate_until_refused(uint64_t step)
{
	uint64_t bytes = 0;
	int status;

	while ((status = allocate(step)) == 0)
		bytes += step;
	put("{\"word\": \"until-refused\", \"step\": %" PRIu64 ", \"bytes\": %" PRIu64 ", ", step,
	    bytes);
	put_code(status);
	put("}");
}

static void free_all(void)
{
	int status = 0;

	while (held.count > 0) {
		int one = cuda.free(held.pointer[--held.count]);

		status = status == 0 ? one : status;
	}
	put("{\"word\": \"free\", ");
	put_code(status);
	put("}");
}

/* Sets *value and returns true for a decimal number with an optional k, m or g (also Ki, Mi, Gi).
 */
static bool parse_bytes(const char *text, uint64_t *value)
{
	char *end;
	unsigned int shift = 0;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	uint64_t number = strtoull(text, &end, 10);

	if (errno != 0)
		return false;
	if (*end != '\0') {
		const char *unit = strchr("kmg", tolower((unsigned char)*end));

		if (unit == NULL)
			return false;
		shift = 10U * (unsigned int)(strchr("kmg", *unit) - "kmg" + 1);
		end++;
		end += *end == 'i';
	}
	if (*end != '\0' || number > UINT64_MAX >> shift)
		return false;
	*value = number << shift;
	return true;
}

static void print(void)
{
	if (json == NULL)
		return;
	put("}\n");
	fclose(json);
	json = NULL;
	fwrite(json_text, 1, json_bytes, stdout);
	fflush(stdout);
}

static void hold(uint64_t seconds)
{
	struct timespec left = {.tv_sec = (time_t)seconds};

	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
}

/* Checks all words first, so that a misspelt one is not met after minutes of --hold. */
static bool words_are_valid(int argc, char **argv)
{
	uint64_t value;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--free") == 0)
			continue;
		if (strcmp(argv[i], "--until-refused") == 0) {
			i += i + 1 < argc && parse_bytes(argv[i + 1], &value);
			continue;
		}
		if (strcmp(argv[i], "--allocate") != 0 && strcmp(argv[i], "--hold") != 0 &&
		    strcmp(argv[i], "--ordinal") != 0)
			return false;
		i++;
		if (i == argc || !parse_bytes(argv[i], &value))
			return false;
	}
	return true;
}

static void follow_words(int argc, char **argv, int count)
{
	uint64_t value = 0;

	use_device(0);
	put(", \"words\": [");
	for (int i = 1, done = 0; i < argc && json != NULL; i++) {
		if (strcmp(argv[i], "--ordinal") == 0) {
			parse_bytes(argv[++i], &value);
			use_device((int)value);
			continue;
		}
		if (strcmp(argv[i], "--hold") == 0) {
			parse_bytes(argv[++i], &value);
			put("], \"devices_after\": ");
			put_devices(count);
			print();
			hold(value);
			return;
		}
		put("%s", done++ == 0 ? "" : ", ");
		if (strcmp(argv[i], "--free") == 0) {
			free_all();
		} else if (strcmp(argv[i], "--allocate") == 0) {
			parse_bytes(argv[++i], &value);
			put("{\"word\": \"allocate\", \"bytes\": %" PRIu64 ", ", value);
			put_code(allocate(value));
			put("}");
		} else {
			value = UINT64_C(64) << 20;
			i += i + 1 < argc && parse_bytes(argv[i + 1], &value);
			allocate_until_refused(value);
		}
	}
	put("], \"devices_after\": ");
	put_devices(count);
	print();
}

int main(int argc, char **argv)
{
	int count = 0;
	int version = 0;

	if (!words_are_valid(argc, argv)) {
		fputs(usage_text, stderr);
		return 2;
	}
	json = open_memstream(&json_text, &json_bytes);
	if (json == NULL)
		return 1;
	if (!load_cuda()) {
		put("{\"error\": \"libcuda.so.1 cannot be loaded\", \"pid\": %d", (int)getpid());
		print();
		return 1;
	}
	load_nvml();

	int status = cuda.init(0);

	put("{\"pid\": %d, \"init\": {", (int)getpid());
	put_code(status);
	put("}");
	if (status == 0 && cuda.count(&count) == 0 && cuda.driver_version(&version) == 0)
		put(", \"driver_version\": %d", version);
	put(", \"devices\": ");
	put_devices(count);
	if (count > 0)
		follow_words(argc, argv, count);
	print();
	return count > 0 ? 0 : 1;
}
