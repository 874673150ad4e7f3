// SPDX-License-Identifier: Apache-2.0
/* What NVML says about a card: memory as cuMemGetInfo does, and the processes of this container
 * under the PIDs that they have in it. */
#include "hook.h"

#include <ctype.h>
#include <string.h>

static int hex_value(char digit)
{
	if (isdigit((unsigned char)digit))
		return digit - '0';
	return isxdigit((unsigned char)digit) ? tolower((unsigned char)digit) - 'a' + 10 : -1;
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

static int card_of(const struct tenant *tenant, void *device)
{
	char text[NVML_UUID_BYTES];
	uint8_t uuid[16];
	unsigned int index;

	/* Developer mode: NVML's index is taken for the ordinal. */
	if (tenant_is_developer())
		return driver.nvmlDeviceGetIndex(device, &index) == NVML_SUCCESS &&
				       index < VGPU_MAX_DEVICES
			       ? (int)index
			       : -1;
	if (driver.nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_SUCCESS ||
	    !parse_uuid(text, uuid))
		return -1;
	return limits_find(&tenant->limits, uuid);
}

/* Total and use as this container is to see them. A process that is refused, and a card that was
 * not promised, have none: never the whole card's numbers. */
static struct nvml_memory seen(struct tenant *tenant, enum tenant_state state, void *device,
			       uint64_t physical)
{
	struct nvml_memory memory = {0};
	int card = state == TENANT_ENFORCED ? card_of(tenant, device) : -1;

	if (card >= 0) {
		struct quota_view view = quota_look(&tenant->quota, (unsigned int)card);

		memory.total = view.limit_bytes < physical ? view.limit_bytes : physical;
		memory.used = view.used_bytes < memory.total ? view.used_bytes : memory.total;
		memory.free = memory.total - memory.used;
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

	struct nvml_memory now = seen(tenant, state, device, version == 1 ? v1->total : v2->total);

	if (version == 1) {
		*v1 = now;
	} else {
		v2->total = now.total;
		v2->used = now.used;
		v2->free = now.free;
		v2->reserved = 0; /* total = reserved + used + free, and the reserve is not ours */
	}
	return status;
}

int nvml_processes_begin(struct hook_call *call, const unsigned int *count)
{
	/* The driver's own list, of the whole card, overwrites it. */
	call->held = count == NULL ? 0 : *count;
	return NVML_SUCCESS;
}

/* A list that is too short for the whole card may be long enough for this container. */
static bool is_list_answer(int status)
{
	return status == NVML_SUCCESS || status == NVML_ERROR_INSUFFICIENT_SIZE;
}

int nvml_processes_end(struct hook_call *call, int status, void *device, unsigned int *count,
		       void *list, unsigned int version)
{
	static const struct nvml_process none = {0};
	struct region_process found[64];
	struct tenant *tenant;
	enum tenant_state state = tenant_open(&tenant);

	if (state == TENANT_INERT || count == NULL || !is_list_answer(status))
		return status;

	int card = state == TENANT_ENFORCED ? card_of(tenant, device) : -1;
	uint32_t room = list == NULL ? 0 : (uint32_t)call->held;
	uint32_t places = sizeof(found) / sizeof(found[0]);
	uint32_t listed = 0;

	if (card >= 0) {
		region_tend(&tenant->region, false);
		listed = region_list(&tenant->region, (unsigned int)card, found, places);
	}
	listed = listed < places ? listed : places;
	*count = listed;
	if (listed > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (uint32_t i = 0; i < listed; i++) {
		if (version == 1) {
			struct nvml_process_v1 *entry = (struct nvml_process_v1 *)list + i;

			entry->pid = found[i].pid;
			entry->used_bytes = found[i].used_bytes;
		} else {
			struct nvml_process *entry = (struct nvml_process *)list + i;

			*entry = none;
			entry->pid = found[i].pid;
			entry->used_bytes = found[i].used_bytes;
			entry->gpu_instance = UINT32_MAX;
			entry->compute_instance = UINT32_MAX;
		}
	}
	return NVML_SUCCESS;
}

/* Graphics and MPS: libvgpu sees no such process, and other containers' are not shown. */
int nvml_no_processes_end(int status, unsigned int *count)
{
	if (tenant_is_inert() || count == NULL || !is_list_answer(status))
		return status;
	*count = 0;
	return NVML_SUCCESS;
}
