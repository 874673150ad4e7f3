/* SPDX-License-Identifier: Apache-2.0
 *
 * Event sets: critical errors (XIDs) of cards, for whoever watches their health.
 */
#include "clock.h"
#include "nvml.h"

#include <stdlib.h>

#define EVENT_XID 8
#define LOOK_NS 5000000

struct nvml_events {
	unsigned long long types[FAKE_MAX_CARDS]; /* by device index; 0: not watched */
	uint64_t seen[FAKE_MAX_CARDS];
};

struct event_data {
	nvmlDevice_t device;
	unsigned long long type;
	unsigned long long data;
	unsigned int gpu_instance;
	unsigned int compute_instance;
};

NVML_API(nvmlEventSetCreate, (struct nvml_events * *out))
{
	nvmlReturn_t status = nvml_enter(__func__, out != NULL);

	if (status != NVML_SUCCESS)
		return status;
	*out = calloc(1, sizeof(**out));
	return *out != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API(nvmlEventSetFree, (struct nvml_events * events))
{
	nvmlReturn_t status = nvml_enter(__func__, events != NULL);

	if (status == NVML_SUCCESS)
		free(events);
	return status;
}

NVML_API(nvmlDeviceGetSupportedEventTypes, (nvmlDevice_t device, unsigned long long *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = state_map()->card[card].parent == 0 ? EVENT_XID : 0;
	return status;
}

NVML_API(nvmlDeviceRegisterEvents,
	 (nvmlDevice_t device, unsigned long long types, struct nvml_events *events))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, events != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	if (state_map()->card[card].parent != 0)
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned int i = 0; i < nvml_count(); i++) {
		if (nvml_handle(i) != device)
			continue;
		events->types[i] |= types;
		events->seen[i] =
			__atomic_load_n(&state_map()->card[card].xid_count, __ATOMIC_ACQUIRE);
	}
	return NVML_SUCCESS;
}

/* One event that has not been told yet. */
static bool next_event(struct nvml_events *events, struct event_data *out)
{
	for (unsigned int i = 0; i < nvml_count(); i++) {
		unsigned int card = 0;
		if (nvml_card(nvml_handle(i), true, &card) != NVML_SUCCESS)
			continue;
		const struct fake_card *described = &state_map()->card[card];
		uint64_t count = __atomic_load_n(&described->xid_count, __ATOMIC_ACQUIRE);
		if ((events->types[i] & EVENT_XID) == 0 || events->seen[i] == count)
			continue;
		events->seen[i] = count;
		*out = (struct event_data){.device = nvml_handle(i),
					   .type = EVENT_XID,
					   .data = described->xid,
					   .gpu_instance = 0xffffffffU,
					   .compute_instance = 0xffffffffU};
		return true;
	}
	return false;
}

static nvmlReturn_t wait_for(const char *function, struct nvml_events *events,
			     struct event_data *out, unsigned int timeout_ms)
{
	nvmlReturn_t status = nvml_enter(function, events != NULL && out != NULL);
	uint64_t until = clock_now_ns() + (uint64_t)timeout_ms * 1000000;

	if (status != NVML_SUCCESS)
		return status;
	while (!next_event(events, out)) {
		uint64_t now = clock_now_ns();
		if (now >= until)
			return NVML_ERROR_TIMEOUT;
		clock_wait_until_ns(until - now < LOOK_NS ? until : now + LOOK_NS);
	}
	return NVML_SUCCESS;
}

NVML_API(nvmlEventSetWait,
	 (struct nvml_events * events, struct event_data *out, unsigned int timeout_ms))
{
	return wait_for(__func__, events, out, timeout_ms);
}

NVML_API(nvmlEventSetWait_v2,
	 (struct nvml_events * events, struct event_data *out, unsigned int timeout_ms))
{
	return wait_for(__func__, events, out, timeout_ms);
}
