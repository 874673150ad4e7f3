// SPDX-License-Identifier: Apache-2.0
/* What NVML says about a card: memory as cuMemGetInfo does, and the processes of this container
 * under the PIDs that they have in it. A card in MIG mode shows the sum of those of its instances
 * that were promised. */
#include "ascii.h"
#include "hook.h"

#include <string.h>
#include <time.h>

#define SAMPLES 128 /* processes of a card, in one answer of NVML */

static int hex_value(char digit)
{
	char lower = ascii_to_lower(digit);

	if (digit >= '0' && digit <= '9')
		return digit - '0';
	return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* GPU-8-4-4-4-12 or MIG-8-4-4-4-12. */
static bool parse_uuid(const char *text, uint8_t uuid[16])
{
	size_t digits = 0;

	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return false;
	for (text += 4; *text != '\0'; text++) {
		int value = hex_value(*text);

		if (*text == '-')
			continue;
		if (value < 0 || digits == 32)
			return false;
		uuid[digits / 2] =
			(uint8_t)(digits % 2 == 0 ? value << 4 : uuid[digits / 2] | value);
		digits++;
	}
	return digits == 32;
}

static bool is_instance(void *device)
{
	unsigned int answer = 0;

	return driver.nvmlDeviceIsMigDeviceHandle != NULL &&
	       driver.nvmlDeviceIsMigDeviceHandle(device, &answer) == NVML_SUCCESS && answer != 0;
}

/* How many MIG instances may be found on a device; 0 where it is not in MIG mode. */
static unsigned int most_instances(void *device)
{
	unsigned int most = 0;

	if (driver.nvmlDeviceGetMaxMigDeviceCount == NULL ||
	    driver.nvmlDeviceGetMigDeviceHandleByIndex == NULL ||
	    driver.nvmlDeviceGetMaxMigDeviceCount(device, &most) != NVML_SUCCESS)
		return 0;
	return most;
}

/* Developer mode: NVML's index is taken for the ordinal. A process that computes on a MIG instance
 * has no other device. */
static int ordinal_of(void *device)
{
	unsigned int index;

	if (is_instance(device) || most_instances(device) != 0)
		return 0;
	return driver.nvmlDeviceGetIndex(device, &index) == NVML_SUCCESS && index < VGPU_MAX_DEVICES
		       ? (int)index
		       : -1;
}

static int card_of(const struct tenant *tenant, void *device)
{
	char text[NVML_UUID_BYTES];
	uint8_t uuid[16];

	if (tenant_is_developer())
		return ordinal_of(device);
	if (driver.nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_SUCCESS ||
	    !parse_uuid(text, uuid))
		return -1;
	return limits_find(&tenant->limits, uuid);
}

/* What was promised of a device: it is a card of the limits file, or instances of it are some. */
struct parts {
	struct part {
		unsigned int card;
		void *device;
	} list[VGPU_MAX_DEVICES];
	uint32_t count;
};

static void add_part(struct parts *parts, const struct tenant *tenant, void *device)
{
	int card = card_of(tenant, device);

	if (card >= 0 && parts->count < VGPU_MAX_DEVICES)
		parts->list[parts->count++] =
			(struct part){.card = (unsigned int)card, .device = device};
}

/* Nothing is promised to a process that is refused. */
static void find_parts(struct parts *parts, const struct tenant *tenant, enum tenant_state state,
		       void *device)
{
	void *instance;

	parts->count = 0;
	if (state != TENANT_ENFORCED)
		return;
	add_part(parts, tenant, device);
	if (parts->count != 0)
		return;

	unsigned int most = most_instances(device);

	for (unsigned int i = 0; i < most; i++)
		if (driver.nvmlDeviceGetMigDeviceHandleByIndex(device, i, &instance) ==
		    NVML_SUCCESS)
			add_part(parts, tenant, instance);
}

/* `physical` is the device's, as the driver has just said. */
static struct nvml_memory physical_of(const struct part *part, const void *device,
				      struct nvml_memory physical)
{
	struct nvml_memory memory;

	if (part->device != device &&
	    driver.nvmlDeviceGetMemoryInfo(part->device, &memory) == NVML_SUCCESS)
		return memory;
	return physical;
}

static uint64_t minimum(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Total, free and what this container uses. What is free is what cuMemGetInfo says: never more than
 * the card has, so it may be less than the other two leave. A process that is refused, and a card
 * that was not promised, have none: never the whole card's numbers. */
static struct nvml_memory seen(struct tenant *tenant, enum tenant_state state, void *device,
			       struct nvml_memory physical)
{
	struct nvml_memory memory = {0};
	struct parts parts;

	find_parts(&parts, tenant, state, device);
	for (uint32_t i = 0; i < parts.count; i++) {
		const struct part *part = &parts.list[i];
		struct quota_view view = quota_look(&tenant->quota, part->card);
		struct nvml_memory whole = physical_of(part, device, physical);
		uint64_t total = minimum(view.limit_bytes, whole.total);
		uint64_t used = minimum(view.used_bytes, total);

		memory.total += total;
		memory.used += used;
		memory.free += minimum(total - used, whole.free);
	}
	return memory;
}

int nvml_memory_end(int status, void *device, void *memory, unsigned int version)
{
	struct tenant *tenant;
	struct nvml_memory *v1 = memory;
	struct nvml_memory_v2 *v2 = memory;

	if (status != NVML_SUCCESS || memory == NULL)
		return status;

	enum tenant_state state = tenant_open(&tenant);

	if (state == TENANT_INERT)
		return status;

	if (tenant_joined() != NULL)
		freed_settle(tenant, NULL);

	struct nvml_memory physical = {.total = version == 1 ? v1->total : v2->total,
				       .free = version == 1 ? v1->free : v2->free};
	struct nvml_memory now = seen(tenant, state, device, physical);

	/* As NVML itself has it: the second version's total is the sum of the other three, and the
	 * first one's use holds the reserve. What others have of the card is reserved, to us. */
	if (version == 1) {
		*v1 = now;
		v1->used = now.total - now.free;
	} else {
		v2->total = now.total;
		v2->used = now.used;
		v2->free = now.free;
		v2->reserved = now.total - now.free - now.used;
	}
	return status;
}

/* Of a MIG instance; the first version's layout stands in no header. */
int nvml_attributes_end(int status, void *device, void *attributes, unsigned int version)
{
	struct nvml_attributes *told = attributes;
	struct tenant *tenant;

	if (status != NVML_SUCCESS || told == NULL || version < 2)
		return status;

	enum tenant_state state = tenant_open(&tenant);

	const struct nvml_memory physical = {.total = told->memory_mib << 20};

	if (state != TENANT_INERT)
		told->memory_mib = seen(tenant, state, device, physical).total >> 20;
	return status;
}

/* Whether NVML comes to look at what the program asks about the device. */
static bool is_device(void *device)
{
	char text[NVML_UUID_BYTES];

	return driver.nvmlDeviceGetUUID(device, text, sizeof(text)) == NVML_SUCCESS;
}

int nvml_processes_begin(struct hook_call *call, void *device, const unsigned int *count)
{
	/* The driver's own list, of the whole card, overwrites it. */
	call->held = count == NULL || tenant_is_inert() || !is_device(device) ? 0 : *count;
	return NVML_SUCCESS;
}

/* A list that is too short for the whole card may be long enough for this container. */
static bool is_list_answer(int status)
{
	return status == NVML_SUCCESS || status == NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The two numbers of a MIG instance. */
struct instance {
	uint32_t gpu;
	uint32_t compute;
};

static struct instance instance_of(void *device)
{
	struct instance found = {NVML_NO_INSTANCE, NVML_NO_INSTANCE};

	if (is_instance(device) && driver.nvmlDeviceGetGpuInstanceId != NULL &&
	    driver.nvmlDeviceGetComputeInstanceId != NULL &&
	    (driver.nvmlDeviceGetGpuInstanceId(device, &found.gpu) != NVML_SUCCESS ||
	     driver.nvmlDeviceGetComputeInstanceId(device, &found.compute) != NVML_SUCCESS))
		found = (struct instance){NVML_NO_INSTANCE, NVML_NO_INSTANCE};
	return found;
}

/* Every process of the container that holds something of a device, part by part. */
struct own_processes {
	struct region_process list[VGPU_MAX_SLOTS];
	uint32_t count;
	struct parts parts;
	uint32_t part_end[VGPU_MAX_DEVICES];
	struct instance part_instance[VGPU_MAX_DEVICES];
};

static void find_own(struct own_processes *own, struct tenant *tenant, enum tenant_state state,
		     void *device)
{
	own->count = 0;
	find_parts(&own->parts, tenant, state, device);
	if (own->parts.count == 0)
		return;
	region_tend(&tenant->region, false);
	for (uint32_t i = 0; i < own->parts.count; i++) {
		uint32_t room = VGPU_MAX_SLOTS - own->count;
		uint32_t found = region_list(&tenant->region, own->parts.list[i].card,
					     own->list + own->count, room);

		own->count += found < room ? found : room;
		own->part_end[i] = own->count;
		own->part_instance[i] = instance_of(own->parts.list[i].device);
	}
}

static bool is_own(const struct own_processes *own, uint32_t pid)
{
	for (uint32_t i = 0; i < own->count; i++)
		if (own->list[i].pid == pid)
			return true;
	return false;
}

static struct instance instance_of_process(const struct own_processes *own, uint32_t process)
{
	uint32_t part = 0;

	while (process >= own->part_end[part])
		part++;
	return own->part_instance[part];
}

int nvml_processes_end(struct hook_call *call, int status, void *device, unsigned int *count,
		       void *list, unsigned int version)
{
	struct own_processes own;
	struct tenant *tenant;
	enum tenant_state state = tenant_open(&tenant);

	if (state == TENANT_INERT || count == NULL || !is_list_answer(status))
		return status;
	find_own(&own, tenant, state, device);
	*count = own.count;
	if (own.count > (list == NULL ? 0 : (uint32_t)call->held))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (uint32_t i = 0; i < own.count; i++) {
		struct instance instance = instance_of_process(&own, i);

		if (version == 1)
			((struct nvml_process_v1 *)list)[i] = (struct nvml_process_v1){
				.pid = own.list[i].pid, .used_bytes = own.list[i].used_bytes};
		else
			((struct nvml_process *)list)[i] =
				(struct nvml_process){.pid = own.list[i].pid,
						      .used_bytes = own.list[i].used_bytes,
						      .gpu_instance = instance.gpu,
						      .compute_instance = instance.compute};
	}
	return NVML_SUCCESS;
}

int nvml_details_begin(struct hook_call *call, void *device, const void *details)
{
	const struct nvml_details *list = details;

	call->held = list == NULL || tenant_is_inert() || !is_device(device) || list->list == NULL
			     ? 0
			     : list->count;
	return NVML_SUCCESS;
}

int nvml_details_end(const struct hook_call *call, int status, void *device, void *details)
{
	struct nvml_details *list = details;
	struct own_processes own = {.count = 0, .parts.count = 0};
	struct tenant *tenant;
	enum tenant_state state = tenant_open(&tenant);

	if (state == TENANT_INERT || list == NULL || !is_list_answer(status))
		return status;
	if (list->mode == NVML_DETAILS_COMPUTE)
		find_own(&own, tenant, state, device);
	list->count = own.count;
	if (own.count > call->held)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (uint32_t i = 0; i < own.count; i++) {
		struct instance instance = instance_of_process(&own, i);

		list->list[i] = (struct nvml_detail){.pid = own.list[i].pid,
						     .used_bytes = own.list[i].used_bytes,
						     .gpu_instance = instance.gpu,
						     .compute_instance = instance.compute};
	}
	return NVML_SUCCESS;
}

/* Samples of the card's processes: those of other containers are taken out. */
int nvml_samples_end(int status, void *device, void *samples, unsigned int *count)
{
	struct nvml_sample *list = samples;
	struct own_processes own;
	struct tenant *tenant;
	enum tenant_state state = tenant_open(&tenant);
	unsigned int kept = 0;

	if (state == TENANT_INERT || status != NVML_SUCCESS || list == NULL || count == NULL)
		return status;
	find_own(&own, tenant, state, device);
	for (unsigned int i = 0; i < *count; i++)
		if (is_own(&own, list[i].pid))
			list[kept++] = list[i];
	*count = kept;
	return kept == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

int nvml_all_samples_end(int status, void *device, void *samples)
{
	struct nvml_samples *all = samples;
	struct own_processes own;
	struct tenant *tenant;
	enum tenant_state state = tenant_open(&tenant);
	unsigned int kept = 0;

	if (state == TENANT_INERT || status != NVML_SUCCESS || all == NULL || all->list == NULL)
		return status;
	find_own(&own, tenant, state, device);
	for (unsigned int i = 0; i < all->count; i++)
		if (is_own(&own, all->list[i].pid))
			all->list[kept++] = all->list[i];
	all->count = kept;
	return kept == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

/* Old drivers list processes under the PIDs of the host, in which nobody here is found. */
static bool knows_our_pids(const struct own_processes *own, void *device)
{
	struct nvml_process list[SAMPLES];
	unsigned int count = SAMPLES;
	int (*get)(void *, unsigned int *, void *) =
		driver.nvmlDeviceGetComputeRunningProcesses_v3 != NULL
			? driver.nvmlDeviceGetComputeRunningProcesses_v3
			: driver.nvmlDeviceGetComputeRunningProcesses_v2;

	if (get == NULL || get(device, &count, list) != NVML_SUCCESS)
		return false;
	for (unsigned int i = 0; i < count && i < SAMPLES; i++)
		if (is_own(own, list[i].pid))
			return true;
	return false;
}

/* The newest sample of each of our processes, together. */
static uint32_t busy_percent(const struct own_processes *own, const struct nvml_sample *list,
			     unsigned int count)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < own->count; i++) {
		const struct nvml_sample *newest = NULL;

		for (unsigned int j = 0; j < count; j++)
			if (list[j].pid == own->list[i].pid &&
			    (newest == NULL || list[j].time_us > newest->time_us))
				newest = &list[j];
		if (newest != NULL)
			sum += newest->gpu_percent;
	}
	return sum < 100 ? sum : 100;
}

/* The container's share of the card's time in the last second. False: the driver does not tell by
 * process; then the card's own figure stays: it is no secret, and better than a wrong 0. */
static bool read_own_percent(struct tenant *tenant, enum tenant_state state, void *device,
			     uint32_t *percent)
{
	struct nvml_sample list[SAMPLES];
	unsigned int count = SAMPLES;
	struct own_processes own;
	struct timespec now = {0};

	*percent = 0;
	find_own(&own, tenant, state, device);
	if (own.count == 0)
		return true;
	clock_gettime(CLOCK_REALTIME, &now);

	uint64_t since_us = ((uint64_t)now.tv_sec - 1) * 1000000 + (uint64_t)now.tv_nsec / 1000;
	int answer = driver.nvmlDeviceGetProcessUtilization(device, list, &count, since_us);

	if (answer == NVML_ERROR_NOT_FOUND)
		count = 0; /* nobody has been busy */
	else if (answer != NVML_SUCCESS)
		return false;
	*percent = busy_percent(&own, list, count);
	return *percent != 0 || knows_our_pids(&own, device);
}

int nvml_utilisation_end(int status, void *device, void *rates)
{
	struct nvml_rates *seen = rates;
	struct tenant *tenant;
	enum tenant_state state = tenant_open(&tenant);
	uint32_t percent;

	if (state == TENANT_INERT || status != NVML_SUCCESS || seen == NULL ||
	    driver.nvmlDeviceGetProcessUtilization == NULL ||
	    !read_own_percent(tenant, state, device, &percent))
		return status;
	seen->gpu_percent = percent;
	if (percent == 0)
		seen->memory_percent = 0;
	return status;
}

/* The card's own history, a sample each some milliseconds. What it was at each of them for this
 * container is told nowhere: none shows more than the container's share of the last second. */
int nvml_history_end(int status, void *device, int type, const unsigned int *count, void *samples)
{
	struct nvml_history *list = samples;
	struct tenant *tenant;
	enum tenant_state state = tenant_open(&tenant);
	uint32_t percent;

	if (state == TENANT_INERT || status != NVML_SUCCESS || list == NULL || count == NULL ||
	    type != NVML_GPU_UTILIZATION_SAMPLES ||
	    driver.nvmlDeviceGetProcessUtilization == NULL ||
	    !read_own_percent(tenant, state, device, &percent))
		return status;
	for (unsigned int i = 0; i < *count; i++)
		if (list[i].percent > percent)
			list[i].percent = percent;
	return status;
}

/* What a setter changes, it changes for every container on the card. */
int nvml_set_begin(void)
{
	return tenant_is_inert() || tenant_is_developer() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

/* Graphics and MPS: libvgpu sees no such process, and other containers' are not shown. */
int nvml_no_processes_end(int status, unsigned int *count)
{
	if (tenant_is_inert() || count == NULL || !is_list_answer(status))
		return status;
	*count = 0;
	return NVML_SUCCESS;
}
