/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices of NVML: handles, identity, and properties that do not change.
 */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct nvml_device {
	unsigned int card;
	unsigned int index; /* of a MIG instance: among those of its card */
};

static struct nvml_device devices[FAKE_MAX_CARDS]; /* cards, then MIG instances */
static unsigned int count;                         /* of cards */
static unsigned int handles;

static unsigned int parent_of(unsigned int card)
{
	return state_map()->card[card].parent;
}

static void add_device(unsigned int card)
{
	unsigned int index = 0;

	for (unsigned int i = 0; i < handles; i++)
		if (parent_of(devices[i].card) == parent_of(card))
			index++;
	devices[handles++] = (struct nvml_device){.card = card, .index = index};
}

/* The entries of the state stand in the same order. */
void nvml_enumerate(void)
{
	const struct fake_state *state = state_map();

	count = 0;
	handles = 0;
	for (unsigned int card = 0; card < state->card_count && card < FAKE_MAX_CARDS; card++) {
		if (!state_card_visible(card))
			continue;
		add_device(card);
		count += parent_of(card) == 0;
	}
}

unsigned int nvml_count(void)
{
	return count;
}

nvmlDevice_t nvml_handle(unsigned int index)
{
	return &devices[index];
}

nvmlDevice_t nvml_instance(unsigned int card, unsigned int number)
{
	for (unsigned int i = count; i < handles; i++)
		if (parent_of(devices[i].card) == card + 1 && devices[i].index == number)
			return &devices[i];
	return NULL;
}

nvmlDevice_t nvml_handle_of(unsigned int card)
{
	for (unsigned int i = 0; i < handles; i++)
		if (devices[i].card == card)
			return &devices[i];
	return NULL;
}

nvmlReturn_t nvml_card(nvmlDevice_t device, bool lost_too, unsigned int *card)
{
	for (unsigned int i = 0; i < handles; i++) {
		if (device != &devices[i])
			continue;
		if (!lost_too && state_map()->card[device->card].lost != 0)
			return NVML_ERROR_GPU_IS_LOST;
		*card = device->card;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

/* --- finding a device ----------------------------------------------------------------------- */

static nvmlReturn_t get_count(const char *function, unsigned int *out)
{
	nvmlReturn_t status = nvml_enter(function, out != NULL);

	if (status == NVML_SUCCESS)
		*out = count;
	return status;
}

NVML_API(nvmlDeviceGetCount, (unsigned int *out))
{
	return get_count(__func__, out);
}

NVML_API(nvmlDeviceGetCount_v2, (unsigned int *out))
{
	return get_count(__func__, out);
}

static nvmlReturn_t by_index(const char *function, unsigned int index, nvmlDevice_t *out)
{
	nvmlReturn_t status = nvml_enter(function, out != NULL && index < count);

	if (status != NVML_SUCCESS)
		return status;
	if (state_map()->card[devices[index].card].lost != 0)
		return NVML_ERROR_GPU_IS_LOST;
	*out = &devices[index];
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetHandleByIndex, (unsigned int index, nvmlDevice_t *out))
{
	return by_index(__func__, index, out);
}

NVML_API(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *out))
{
	return by_index(__func__, index, out);
}

typedef bool (*match)(const struct fake_card *card, const char *wanted);

static nvmlReturn_t find(const char *function, match matches, const char *wanted, nvmlDevice_t *out)
{
	nvmlReturn_t status = nvml_enter(function, wanted != NULL && out != NULL);

	if (status != NVML_SUCCESS)
		return status;
	for (unsigned int i = 0; i < handles; i++) {
		const struct fake_card *card = &state_map()->card[devices[i].card];
		if (!matches(card, wanted))
			continue;
		if (card->lost != 0)
			return NVML_ERROR_GPU_IS_LOST;
		*out = &devices[i];
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

static bool has_uuid(const struct fake_card *card, const char *wanted)
{
	return strcasecmp(card->uuid, wanted) == 0;
}

static bool has_serial(const struct fake_card *card, const char *wanted)
{
	return card->serial[0] != '\0' && strcmp(card->serial, wanted) == 0;
}

static bool has_bus_id(const struct fake_card *card, const char *wanted)
{
	unsigned int domain = 0;
	unsigned int bus = 0;
	unsigned int device = 0;

	/* NOLINTNEXTLINE(cert-err34-c): three short hexadecimal fields of fixed width */
	if (sscanf(wanted, "%8x:%2x:%2x", &domain, &bus, &device) != 3)
		return false;
	return card->pci_domain == domain && card->pci_bus == bus && card->pci_device == device;
}

NVML_API(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *out))
{
	return find(__func__, has_uuid, uuid, out);
}

struct uuid_argument {
	unsigned int version;
	unsigned int type; /* 1 text, 2 bytes */
	union {
		char text[41];
		unsigned char bytes[16];
	} value;
};

static bool has_uuid_bytes(const struct fake_card *card, const char *wanted)
{
	return memcmp(card->uuid_bytes, wanted, sizeof(card->uuid_bytes)) == 0;
}

NVML_API(nvmlDeviceGetHandleByUUIDV, (const struct uuid_argument *uuid, nvmlDevice_t *out))
{
	if (uuid != NULL && uuid->type == 2)
		return find(__func__, has_uuid_bytes, (const char *)uuid->value.bytes, out);
	return find(__func__, has_uuid, uuid != NULL ? uuid->value.text : NULL, out);
}

NVML_API(nvmlDeviceGetHandleBySerial, (const char *serial, nvmlDevice_t *out))
{
	return find(__func__, has_serial, serial, out);
}

NVML_API(nvmlDeviceGetHandleByPciBusId, (const char *bus_id, nvmlDevice_t *out))
{
	return find(__func__, has_bus_id, bus_id, out);
}

NVML_API(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, nvmlDevice_t *out))
{
	return find(__func__, has_bus_id, bus_id, out);
}

/* --- identity ------------------------------------------------------------------------------- */

NVML_API(nvmlDeviceGetUUID, (nvmlDevice_t device, char *out, unsigned int length))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_identity(__func__, out != NULL, device, &card);

	return status != NVML_SUCCESS ? status
				      : nvml_copy(out, length, state_map()->card[card].uuid);
}

NVML_API(nvmlDeviceGetName, (nvmlDevice_t device, char *out, unsigned int length))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_identity(__func__, out != NULL, device, &card);

	return status != NVML_SUCCESS ? status
				      : nvml_copy(out, length, state_map()->card[card].model);
}

NVML_API(nvmlDeviceGetSerial, (nvmlDevice_t device, char *out, unsigned int length))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_identity(__func__, out != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	const char *serial = state_map()->card[card].serial;
	return serial[0] == '\0' ? NVML_ERROR_NOT_SUPPORTED : nvml_copy(out, length, serial);
}

NVML_API(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned int *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_identity(__func__, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = device->index;
	return status;
}

NVML_API(nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned int *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_identity(__func__, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = state_map()->card[card].minor;
	return status;
}

#define PCI_DEVICE_ID 0x233010de /* an H100 80GB HBM3 */

struct pci_info {
	char bus_id_legacy[16];
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pci_device_id;
	unsigned int pci_subsystem_id;
	char bus_id[32];
};

static nvmlReturn_t pci_info(const char *function, nvmlDevice_t device, struct pci_info *out)
{
	unsigned int index = 0;
	nvmlReturn_t status = nvml_enter_identity(function, out != NULL, device, &index);

	if (status != NVML_SUCCESS)
		return status;
	const struct fake_card *card = &state_map()->card[index];
	*out = (struct pci_info){.domain = card->pci_domain,
				 .bus = card->pci_bus,
				 .device = card->pci_device,
				 .pci_device_id = PCI_DEVICE_ID};
	(void)snprintf(out->bus_id_legacy, sizeof(out->bus_id_legacy), "%04X:%02X:%02X.0",
		       card->pci_domain & 0xffff, card->pci_bus & 0xff, card->pci_device & 0xff);
	(void)snprintf(out->bus_id, sizeof(out->bus_id), "%08X:%02X:%02X.0", card->pci_domain,
		       card->pci_bus, card->pci_device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, struct pci_info *out))
{
	return pci_info(__func__, device, out);
}

/* Before _v3 the structure was shorter, and the bus id was where the legacy one is now. */
struct pci_info_v2 {
	char bus_id[16];
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pci_device_id;
	unsigned int pci_subsystem_id;
	unsigned int reserved[4];
};

static nvmlReturn_t pci_info_v2(const char *function, nvmlDevice_t device, struct pci_info_v2 *out)
{
	struct pci_info full;
	nvmlReturn_t status = pci_info(function, device, out != NULL ? &full : NULL);

	if (status != NVML_SUCCESS)
		return status;
	*out = (struct pci_info_v2){.domain = full.domain,
				    .bus = full.bus,
				    .device = full.device,
				    .pci_device_id = full.pci_device_id};
	memcpy(out->bus_id, full.bus_id_legacy, sizeof(out->bus_id));
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetPciInfo, (nvmlDevice_t device, struct pci_info_v2 *out))
{
	return pci_info_v2(__func__, device, out);
}

NVML_API(nvmlDeviceGetPciInfo_v2, (nvmlDevice_t device, struct pci_info_v2 *out))
{
	return pci_info_v2(__func__, device, out);
}

/* --- properties ----------------------------------------------------------------------------- */

NVML_API(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t device, int *major, int *minor))
{
	unsigned int card = 0;
	nvmlReturn_t status =
		nvml_enter_device(__func__, major != NULL && minor != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	*major = (int)state_map()->card[card].compute_major;
	*minor = (int)state_map()->card[card].compute_minor;
	return NVML_SUCCESS;
}

/* A constant answer about a device. */
static nvmlReturn_t constant(const char *function, nvmlDevice_t device, unsigned int *out,
			     unsigned int value)
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(function, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = value;
	return status;
}

NVML_API(nvmlDeviceGetPersistenceMode, (nvmlDevice_t device, unsigned int *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = state_map()->card[card].persistence_mode;
	return status;
}

NVML_API(nvmlDeviceGetComputeMode, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 0); /* default */
}

NVML_API(nvmlDeviceGetBrand, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 14); /* NVIDIA */
}

NVML_API(nvmlDeviceGetArchitecture, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 9); /* Hopper */
}

NVML_API(nvmlDeviceGetDisplayMode, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 0);
}

NVML_API(nvmlDeviceGetDisplayActive, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 0);
}

NVML_API(nvmlDeviceGetPerformanceState, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 0);
}

NVML_API(nvmlDeviceGetPowerUsage, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 70000); /* mW */
}

NVML_API(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 700000);
}

NVML_API(nvmlDeviceGetPowerManagementLimit, (nvmlDevice_t device, unsigned int *out))
{
	return constant(__func__, device, out, 700000);
}

NVML_API(nvmlDeviceGetTemperature, (nvmlDevice_t device, int sensor, unsigned int *out))
{
	(void)sensor;
	return constant(__func__, device, out, 35);
}

NVML_API(nvmlDeviceGetClockInfo, (nvmlDevice_t device, int clock, unsigned int *out))
{
	return constant(__func__, device, out, clock == 2 ? 2619 : 1980); /* MHz */
}

NVML_API(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t device, int clock, unsigned int *out))
{
	return constant(__func__, device, out, clock == 2 ? 2619 : 1980);
}

NVML_API(nvmlDeviceGetNumGpuCores, (nvmlDevice_t device, unsigned int *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = state_map()->card[card].sm_count * 128;
	return status;
}
