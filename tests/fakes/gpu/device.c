/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: which ones a process sees and in which order, and what they say about themselves.
 */
#include "driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static unsigned int cards[FAKE_MAX_CARDS]; /* ordinal → card; written once, by cuInit */
static int count;

int device_count(void)
{
	return count;
}

bool device_valid(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < count;
}

unsigned int device_card(CUdevice ordinal)
{
	return cards[ordinal];
}

const struct fake_card *device_describe(CUdevice ordinal)
{
	return &state_map()->card[cards[ordinal]];
}

/* One word of CUDA_VISIBLE_DEVICES: an index among the cards that exist, or a prefix of a UUID that
 * fits one card only. -1 when it names none. */
static int find_visible(const char *word, size_t length, const unsigned int *existing,
			int existing_count)
{
	const struct fake_state *state = state_map();
	int found = -1;

	if (length > 4 && (strncmp(word, "GPU-", 4) == 0 || strncmp(word, "MIG-", 4) == 0)) {
		for (int i = 0; i < existing_count; i++) {
			if (strncasecmp(state->card[existing[i]].uuid, word, length) != 0)
				continue;
			if (found >= 0)
				return -1;
			found = i;
		}
		return found;
	}
	char *end = NULL;
	if (!isdigit((unsigned char)word[0]))
		return -1;
	long index = strtol(word, &end, 10);
	return end == word + length && index < existing_count ? (int)index : -1;
}

static void keep_listed(const char *list, const unsigned int *existing, int existing_count)
{
	unsigned int taken = 0;

	for (const char *word = list; *word != '\0';) {
		word += strspn(word, " ");
		size_t length = strcspn(word, ", ");
		int found = find_visible(word, length, existing, existing_count);
		/* The first word that names no card ends the list, and so does a repeated one. */
		if (found < 0 || (taken & 1U << found) != 0)
			return;
		taken |= 1U << found;
		cards[count++] = existing[found];
		word += length;
		word += strspn(word, " ");
		if (*word == ',')
			word++;
	}
}

/* A process computes on one MIG instance or on cards: where it sees an instance, on the first one
 * alone. */
static void keep_first_instance(void)
{
	for (int i = 0; i < count; i++) {
		if (state_map()->card[cards[i]].parent == 0)
			continue;
		cards[0] = cards[i];
		count = 1;
		return;
	}
}

void device_enumerate(void)
{
	const struct fake_state *state = state_map();
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	unsigned int existing[FAKE_MAX_CARDS];
	int existing_count = 0;

	for (unsigned int card = 0; card < state->card_count && card < FAKE_MAX_CARDS; card++)
		if (state->card[card].lost == 0 && state->card[card].mig_mode == 0 &&
		    state_card_visible(card))
			existing[existing_count++] = card;
	count = 0;
	if (list != NULL) {
		keep_listed(list, existing, existing_count);
	} else {
		memcpy(cards, existing, sizeof(cards));
		count = existing_count;
	}
	keep_first_instance();
}

static CUresult enter_device(const char *function, bool valid, CUdevice device)
{
	CUresult status = enter(function, valid);

	if (status == CUDA_SUCCESS && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return status;
}

CUDA_API(cuDeviceGetCount, (int *out))
{
	CUresult status = enter(__func__, out != NULL);

	if (status == CUDA_SUCCESS)
		*out = count;
	return status;
}

CUDA_API(cuDeviceGet, (CUdevice * out, int ordinal))
{
	CUresult status = enter_device(__func__, out != NULL, ordinal);

	if (status == CUDA_SUCCESS)
		*out = ordinal;
	return status;
}

CUDA_API(cuDeviceGetName, (char *out, int length, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL && length > 0, device);

	if (status == CUDA_SUCCESS)
		(void)snprintf(out, (size_t)length, "%s", device_describe(device)->model);
	return status;
}

/* Of a MIG instance: its card's. */
CUDA_API(cuDeviceGetUuid, (CUuuid * out, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL, device);

	if (status != CUDA_SUCCESS)
		return status;
	const struct fake_card *card = device_describe(device);
	if (card->parent != 0)
		card = &state_map()->card[card->parent - 1];
	memcpy(out->bytes, card->uuid_bytes, sizeof(out->bytes));
	return CUDA_SUCCESS;
}

CUDA_API(cuDeviceGetUuid_v2, (CUuuid * out, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL, device);

	if (status == CUDA_SUCCESS)
		memcpy(out->bytes, device_describe(device)->uuid_bytes, sizeof(out->bytes));
	return status;
}

static uint64_t total_bytes(CUdevice device)
{
	const struct fake_card *card = device_describe(device);

	return card->memory_bytes - card->reserved_bytes;
}

CUDA_API(cuDeviceTotalMem_v2, (size_t * out, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL, device);

	if (status == CUDA_SUCCESS)
		*out = total_bytes(device);
	return status;
}

CUDA_API(cuDeviceTotalMem, (unsigned int *out, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL, device);

	if (status == CUDA_SUCCESS)
		*out = total_bytes(device) > UINT32_MAX ? UINT32_MAX
							: (unsigned int)total_bytes(device);
	return status;
}

/* What the simulated card has in common with every card of its kind: an H100's figures. */
static const struct {
	int attribute;
	int value;
} attributes[] = {
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
	{CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
	{CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
	{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
	{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
	{CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
	{CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
	{CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
	{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
	{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 52428800},
	{CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
	{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
	{CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
	{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
	{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
	{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
	{CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 1},
};

static int attribute_of(const struct fake_card *card, int attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return (int)card->sm_count;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		return (int)card->threads_per_sm;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return (int)card->compute_major;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		return (int)card->compute_minor;
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
		return (int)card->pci_domain;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		return (int)card->pci_bus;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
		return (int)card->pci_device;
	default:
		break;
	}
	for (size_t i = 0; i < ARRAY_LEN(attributes); i++)
		if (attributes[i].attribute == attribute)
			return attributes[i].value;
	return 0;
}

CUDA_API(cuDeviceGetAttribute, (int *out, int attribute, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL && attribute > 0, device);

	if (status == CUDA_SUCCESS)
		*out = attribute_of(device_describe(device), attribute);
	return status;
}

CUDA_API(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device))
{
	CUresult status = enter_device(__func__, major != NULL && minor != NULL, device);

	if (status != CUDA_SUCCESS)
		return status;
	*major = (int)device_describe(device)->compute_major;
	*minor = (int)device_describe(device)->compute_minor;
	return CUDA_SUCCESS;
}

CUDA_API(cuDeviceGetPCIBusId, (char *out, int length, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL && length >= 13, device);

	if (status != CUDA_SUCCESS)
		return status;
	const struct fake_card *card = device_describe(device);
	(void)snprintf(out, (size_t)length, "%04X:%02X:%02X.0", card->pci_domain, card->pci_bus,
		       card->pci_device);
	return CUDA_SUCCESS;
}

CUDA_API(cuDeviceGetByPCIBusId, (CUdevice * out, const char *bus_id))
{
	CUresult status = enter(__func__, out != NULL && bus_id != NULL);
	unsigned int domain = 0;
	unsigned int bus = 0;
	unsigned int device = 0;

	if (status != CUDA_SUCCESS)
		return status;
	/* NOLINTNEXTLINE(cert-err34-c): three short hexadecimal fields of fixed width */
	if (sscanf(bus_id, "%8x:%2x:%2x", &domain, &bus, &device) != 3) {
		domain = 0;
		/* NOLINTNEXTLINE(cert-err34-c) */
		if (sscanf(bus_id, "%2x:%2x", &bus, &device) != 2)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (CUdevice ordinal = 0; ordinal < count; ordinal++) {
		const struct fake_card *card = device_describe(ordinal);
		if (card->pci_domain == domain && card->pci_bus == bus &&
		    card->pci_device == device) {
			*out = ordinal;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

/* The structure of CUDA 1, still asked for by old tools. */
struct device_properties {
	int max_threads_per_block;
	int max_threads_dim[3];
	int max_grid_size[3];
	int shared_mem_per_block;
	int total_constant_memory;
	int simd_width;
	int mem_pitch;
	int regs_per_block;
	int clock_rate;
	int texture_align;
};

CUDA_API(cuDeviceGetProperties, (struct device_properties * out, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL, device);

	if (status != CUDA_SUCCESS)
		return status;
	*out = (struct device_properties){
		.max_threads_per_block = 1024,
		.max_threads_dim = {1024, 1024, 64},
		.max_grid_size = {0x7fffffff, 65535, 65535},
		.shared_mem_per_block = 49152,
		.total_constant_memory = 65536,
		.simd_width = 32,
		.mem_pitch = 0x7fffffff,
		.regs_per_block = 65536,
		.clock_rate = 1980000,
		.texture_align = 512,
	};
	return CUDA_SUCCESS;
}

CUDA_API(cuDeviceCanAccessPeer, (int *out, CUdevice device, CUdevice peer))
{
	CUresult status = enter_device(__func__, out != NULL, device);

	if (status == CUDA_SUCCESS && !device_valid(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	if (status == CUDA_SUCCESS)
		*out = device != peer;
	return status;
}
