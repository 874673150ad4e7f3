/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes on a card and how busy they keep it. PIDs are those of the observer's PID namespace;
 * processes that have none there are not listed, as with drivers that know PID namespaces.
 */
#include "clock.h"
#include "nvml.h"

#include <string.h>

#define NO_INSTANCE 0xffffffffU

struct process_v1 {
	unsigned int pid;
	unsigned long long used_bytes;
};

struct process_v2 {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance;
	unsigned int compute_instance;
};

_Static_assert(sizeof(struct process_v1) == 16, "NVML");
_Static_assert(sizeof(struct process_v2) == 24, "NVML");

/* A process that has a context on the card. */
struct listed {
	unsigned int pid;
	unsigned int slot;
	uint64_t bytes;
	unsigned int gpu_instance;
	unsigned int compute_instance;
};

static unsigned int list_of_entry(const struct observer *observer, unsigned int card,
				  struct listed *listed, unsigned int count)
{
	struct fake_state *state = state_map();
	const struct fake_card *described = &state->card[card];
	bool is_instance = described->parent != 0;
	uint32_t high = __atomic_load_n(&state->processes_high, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; i < high && count < FAKE_MAX_PROCESSES; i++) {
		const struct fake_process *process = &state->process[i];
		uint64_t word = __atomic_load_n(&process->state, __ATOMIC_ACQUIRE);
		uint64_t bytes =
			__atomic_load_n(&process->held[card].context_bytes, __ATOMIC_RELAXED);
		int pid = 0;
		if ((word & 3) != FAKE_SLOT_LIVE || bytes == 0)
			continue;
		bytes += __atomic_load_n(&process->held[card].memory_bytes, __ATOMIC_RELAXED);
		if (!observer_alive(observer, i, &pid) || pid <= 0)
			continue;
		listed[count++] = (struct listed){
			.pid = (unsigned int)pid,
			.slot = i,
			.bytes = bytes,
			.gpu_instance = is_instance ? described->gpu_instance : NO_INSTANCE,
			.compute_instance =
				is_instance ? described->compute_instance : NO_INSTANCE};
	}
	return count;
}

/* Of a card in MIG mode: the processes on all its instances. */
static unsigned int list_once(const struct observer *observer, unsigned int card,
			      struct listed *listed)
{
	unsigned int count = 0;

	for (unsigned int entry = 0; entry < state_map()->card_count; entry++)
		if (state_is_on(entry, card))
			count = list_of_entry(observer, entry, listed, count);
	return count;
}

static unsigned int list_processes(unsigned int card, struct listed *listed)
{
	struct observer observer = observer_open();
	unsigned int count = 0;

	for (int i = 0; i < STATE_SNAPSHOT_TRIES; i++) {
		uint64_t before = state_changes();
		count = list_once(&observer, card, listed);
		if (state_changes() == before)
			break;
	}
	observer_close(&observer);
	return count;
}

/* NVML's way to return a list: the caller says how much room there is, and learns how much is
 * needed. */
static nvmlReturn_t room_for(unsigned int needed, unsigned int *count, const void *array)
{
	unsigned int room = *count;

	*count = needed;
	if (needed > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	return needed > 0 && array == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

static nvmlReturn_t running_v1(const char *function, nvmlDevice_t device, unsigned int *count,
			       struct process_v1 *out)
{
	struct listed listed[FAKE_MAX_PROCESSES];
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(function, count != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	unsigned int found = list_processes(card, listed);
	status = room_for(found, count, out);
	if (status != NVML_SUCCESS)
		return status;
	for (unsigned int i = 0; i < found; i++)
		out[i] = (struct process_v1){.pid = listed[i].pid, .used_bytes = listed[i].bytes};
	return NVML_SUCCESS;
}

static nvmlReturn_t running_v2(const char *function, nvmlDevice_t device, unsigned int *count,
			       struct process_v2 *out)
{
	struct listed listed[FAKE_MAX_PROCESSES];
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(function, count != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	unsigned int found = list_processes(card, listed);
	status = room_for(found, count, out);
	if (status != NVML_SUCCESS)
		return status;
	for (unsigned int i = 0; i < found; i++)
		out[i] = (struct process_v2){.pid = listed[i].pid,
					     .used_bytes = listed[i].bytes,
					     .gpu_instance = listed[i].gpu_instance,
					     .compute_instance = listed[i].compute_instance};
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetComputeRunningProcesses,
	 (nvmlDevice_t device, unsigned int *count, struct process_v1 *out))
{
	return running_v1(__func__, device, count, out);
}

NVML_API(nvmlDeviceGetComputeRunningProcesses_v2,
	 (nvmlDevice_t device, unsigned int *count, struct process_v2 *out))
{
	return running_v2(__func__, device, count, out);
}

NVML_API(nvmlDeviceGetComputeRunningProcesses_v3,
	 (nvmlDevice_t device, unsigned int *count, struct process_v2 *out))
{
	return running_v2(__func__, device, count, out);
}

/* Nothing draws, and no MPS server runs. */
static nvmlReturn_t none(const char *function, nvmlDevice_t device, unsigned int *count)
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(function, count != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*count = 0;
	return status;
}

#define NOBODY(name)                                                                               \
	NVML_API(name, (nvmlDevice_t device, unsigned int *count, const void *out))                \
	{                                                                                          \
		(void)out;                                                                         \
		return none(__func__, device, count);                                              \
	}

NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)

struct process_detail {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance;
	unsigned int compute_instance;
	unsigned long long protected_bytes;
};

struct process_detail_list {
	unsigned int version;
	unsigned int mode;
	unsigned int count;
	struct process_detail *out;
};

NVML_API(nvmlDeviceGetRunningProcessDetailList,
	 (nvmlDevice_t device, struct process_detail_list *list))
{
	struct listed listed[FAKE_MAX_PROCESSES];
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, list != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	if (list->version != NVML_VERSION(struct process_detail_list, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	unsigned int found = list->mode == 0 ? list_processes(card, listed) : 0;
	status = room_for(found, &list->count, list->out);
	if (status != NVML_SUCCESS)
		return status;
	for (unsigned int i = 0; i < found; i++)
		list->out[i] =
			(struct process_detail){.pid = listed[i].pid,
						.used_bytes = listed[i].bytes,
						.gpu_instance = listed[i].gpu_instance,
						.compute_instance = listed[i].compute_instance};
	return NVML_SUCCESS;
}

/* --- utilisation ---------------------------------------------------------------------------- */

/* NVML tells none of it where MIG is on. */
static nvmlReturn_t enter_busy(const char *function, bool valid, nvmlDevice_t device,
			       unsigned int *card)
{
	nvmlReturn_t status = nvml_enter_device(function, valid, device, card);

	return status == NVML_SUCCESS && nvml_is_mig(*card) ? NVML_ERROR_NOT_SUPPORTED : status;
}

struct utilisation {
	unsigned int gpu;
	unsigned int memory;
};

static unsigned int busy_percent(unsigned int card)
{
	struct fake_state *state = state_map();
	uint32_t high = __atomic_load_n(&state->processes_high, __ATOMIC_ACQUIRE);
	uint64_t period = clock_last_period();
	unsigned int busy = 0;
	for (unsigned int i = 0; i < high && i < FAKE_MAX_PROCESSES; i++)
		busy += clock_busy_percent(&state->process[i].held[card], period);
	uint32_t override = state->card[card].utilisation_override;
	if (override != 0)
		busy = override - 1;
	return busy > 100 ? 100 : busy;
}

NVML_API(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, struct utilisation *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = enter_busy(__func__, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = (struct utilisation){.gpu = busy_percent(card)};
	return status;
}

struct history_sample {
	unsigned long long time_us;
	unsigned int value;
	unsigned int pad;
};

/* Of the last period alone. */
NVML_API(nvmlDeviceGetSamples,
	 (nvmlDevice_t device, int type, unsigned long long since_us, int *value_type,
	  unsigned int *count, struct history_sample *samples))
{
	unsigned int card = 0;
	nvmlReturn_t status =
		enter_busy(__func__, value_type != NULL && count != NULL, device, &card);

	(void)since_us;
	if (status != NVML_SUCCESS)
		return status;
	if (samples != NULL && *count > 0)
		samples[0] = (struct history_sample){.value = type == 1 ? busy_percent(card) : 0};
	*value_type = 1; /* unsigned int */
	*count = 1;
	return NVML_SUCCESS;
}

struct process_sample {
	unsigned int pid;
	unsigned long long time_us;
	unsigned int sm;
	unsigned int memory;
	unsigned int encoder;
	unsigned int decoder;
};

NVML_API(nvmlDeviceGetProcessUtilization, (nvmlDevice_t device, struct process_sample *out,
					   unsigned int *count, unsigned long long after_us))
{
	struct listed listed[FAKE_MAX_PROCESSES];
	unsigned int card = 0;
	nvmlReturn_t status = enter_busy(__func__, count != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	uint64_t period = clock_last_period();
	uint64_t time_us = clock_period_end_us(period);
	unsigned int found = list_processes(card, listed);
	if (out == NULL || *count < found) {
		*count = found > 0 ? found : 1;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	unsigned int written = 0;
	for (unsigned int i = 0; i < found && time_us > after_us; i++) {
		const struct fake_held *held = &state_map()->process[listed[i].slot].held[card];
		unsigned int busy = clock_busy_percent(held, period);
		if (busy == 0)
			continue;
		out[written++] = (struct process_sample){
			.pid = listed[i].pid, .time_us = time_us, .sm = busy};
	}
	*count = written;
	return written > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
