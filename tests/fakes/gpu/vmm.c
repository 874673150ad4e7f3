/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory management. An allocation lives as long as a handle or a mapping of it does, on
 * the device that its properties name, whatever context is current.
 */
#include "vmm.h"
#include "address.h"
#include "clock.h"
#include "context.h"
#include "memory.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PHYSICAL_MAGIC 0x50485953
#define EXPORT_MAGIC 0x5645585055504647
#define LOCATION_DEVICE 1
#define ALLOCATION_TYPE_PINNED 1
#define HANDLE_POSIX_FD 1

struct location {
	int type;
	int id;
};

struct properties {
	int type;
	int handle_types;
	struct location location;
	void *security;
	unsigned char compression;
	unsigned char rdma;
	unsigned short usage;
	unsigned char reserved[4];
};

_Static_assert(sizeof(struct properties) == 32, "CUDA");

struct physical {
	uint32_t magic;
	struct properties properties;
	uint64_t bytes;
	uint64_t taken_bytes; /* 0 for host memory and for what another process has made */
	unsigned int handles;
	unsigned int mappings;
	char *contents;
};

/* A range of addresses, and the pieces mapped in it. */
struct reservation {
	CUdeviceptr base;
	uint64_t bytes;
	struct reservation *next;
};

struct mapping {
	struct region *region;
	struct physical *physical;
	uint64_t access; /* 0 none, 1 read, 3 both: of the device that was given it last */
	struct mapping *next;
};

/* What an exported descriptor holds. */
struct exported {
	uint64_t magic;
	uint64_t bytes;
	uint8_t uuid[16]; /* of the card; zeros for host memory */
	struct properties properties;
};

static struct reservation *reservations;
static struct mapping *mappings;

/* --- allocations ---------------------------------------------------------------------------- */

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
	struct physical *physical = (struct physical *)(uintptr_t)handle;

	return physical != NULL && physical->magic == PHYSICAL_MAGIC && physical->handles > 0
		       ? physical
		       : NULL;
}

static void drop_if_unused(struct physical *physical)
{
	if (physical->handles > 0 || physical->mappings > 0)
		return;
	if (physical->taken_bytes != 0)
		state_give(device_card(physical->properties.location.id), HOLDING_MEMORY,
			   physical->taken_bytes);
	if (physical->contents != NULL)
		(void)munmap(physical->contents, physical->bytes);
	/* A stale handle may be looked at: only its memory goes, not the few bytes of the record.
	 */
	physical->magic = 0;
}

static struct physical *make_physical(const struct properties *properties, uint64_t bytes)
{
	struct physical *physical = calloc(1, sizeof(*physical));
	void *contents = MAP_FAILED;

	if (physical != NULL)
		contents = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (contents == MAP_FAILED) {
		free(physical);
		return NULL;
	}
	physical->magic = PHYSICAL_MAGIC;
	physical->properties = *properties;
	physical->bytes = bytes;
	physical->handles = 1;
	physical->contents = contents;
	return physical;
}

/* On a card of ours, or anywhere else. */
static CUresult check_properties(const struct properties *properties)
{
	if (properties->type != ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	return properties->location.type == LOCATION_DEVICE &&
			       !device_valid(properties->location.id)
		       ? CUDA_ERROR_INVALID_DEVICE
		       : CUDA_SUCCESS;
}

CUDA_API(cuMemCreate, (CUmemGenericAllocationHandle * out, size_t bytes,
		       const struct properties *properties, unsigned long long flags))
{
	CUresult status = enter(__func__, out != NULL && properties != NULL && flags == 0 &&
						  bytes != 0 && bytes % GRANULE_BYTES == 0);
	if (status == CUDA_SUCCESS)
		status = check_properties(properties);
	if (status != CUDA_SUCCESS)
		return status;
	bool on_device = properties->location.type == LOCATION_DEVICE;
	DRIVER_LOCKED();
	if (on_device && !state_take(device_card(properties->location.id), HOLDING_MEMORY, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct physical *physical = make_physical(properties, bytes);
	if (physical == NULL) {
		if (on_device)
			state_give(device_card(properties->location.id), HOLDING_MEMORY, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical->taken_bytes = on_device ? bytes : 0;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)physical;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
	CUresult status = enter(__func__, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct physical *physical = physical_of(handle);
	if (physical == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	physical->handles--;
	drop_if_unused(physical);
	return CUDA_SUCCESS;
}

CUDA_API(cuMemGetAllocationGranularity,
	 (size_t * out, const struct properties *properties, int option))
{
	(void)option;
	/* Of any type and any device (H200, driver 580). */
	CUresult status = enter(__func__, out != NULL && properties != NULL);
	if (status == CUDA_SUCCESS)
		*out = GRANULE_BYTES;
	return status;
}

CUDA_API(cuMemGetAllocationPropertiesFromHandle,
	 (struct properties * out, CUmemGenericAllocationHandle handle))
{
	CUresult status = enter(__func__, out != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct physical *physical = physical_of(handle);
	if (physical == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = physical->properties;
	return CUDA_SUCCESS;
}

/* --- addresses ------------------------------------------------------------------------------ */

CUDA_API(cuMemAddressReserve, (CUdeviceptr * out, size_t bytes, size_t alignment, CUdeviceptr hint,
			       unsigned long long flags))
{
	(void)alignment; /* granules are aligned enough for what a program may ask */
	(void)hint;
	CUresult status = enter(__func__, out != NULL && flags == 0 && bytes != 0 &&
						  bytes % GRANULE_BYTES == 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct reservation *reservation = malloc(sizeof(*reservation));
	CUdeviceptr base = bytes <= ADDRESS_BYTES ? address_reserve(bytes) : 0;
	if (reservation == NULL || base == 0) {
		free(reservation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*reservation = (struct reservation){.base = base, .bytes = bytes, .next = reservations};
	reservations = reservation;
	*out = base;
	return CUDA_SUCCESS;
}

static bool mapped_inside(CUdeviceptr base, uint64_t bytes)
{
	for (const struct mapping *m = mappings; m != NULL; m = m->next)
		if (m->region->base < base + bytes && base < m->region->base + m->region->bytes)
			return true;
	return false;
}

CUDA_API(cuMemAddressFree, (CUdeviceptr base, size_t bytes))
{
	CUresult status = enter(__func__, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	for (struct reservation **link = &reservations; *link != NULL; link = &(*link)->next) {
		struct reservation *found = *link;
		if (found->base != base || found->bytes != bytes)
			continue;
		if (mapped_inside(base, bytes))
			return CUDA_ERROR_INVALID_VALUE;
		*link = found->next;
		address_release(base, bytes);
		free(found);
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static bool reserved(CUdeviceptr base, uint64_t bytes)
{
	for (const struct reservation *r = reservations; r != NULL; r = r->next)
		if (base >= r->base && bytes <= r->bytes && base - r->base <= r->bytes - bytes)
			return true;
	return false;
}

CUDA_API(cuMemMap, (CUdeviceptr base, size_t bytes, size_t offset,
		    CUmemGenericAllocationHandle handle, unsigned long long flags))
{
	CUresult status =
		enter(__func__, bytes != 0 && bytes % GRANULE_BYTES == 0 && flags == 0 &&
					base % GRANULE_BYTES == 0 && offset % GRANULE_BYTES == 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct physical *physical = physical_of(handle);
	if (physical == NULL || !reserved(base, bytes) || offset > physical->bytes ||
	    bytes > physical->bytes - offset)
		return CUDA_ERROR_INVALID_VALUE;
	if (mapped_inside(base, bytes))
		return CUDA_ERROR_ALREADY_MAPPED;
	bool on_device = physical->properties.location.type == LOCATION_DEVICE;
	struct mapping *mapping = calloc(1, sizeof(*mapping));
	struct region *region =
		mapping == NULL ? NULL
				: memory_describe(REGION_VIRTUAL, base, bytes,
						  on_device ? physical->properties.location.id : 0);
	if (region == NULL) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->contents = physical->contents + offset;
	region->contents_borrowed = true;
	*mapping = (struct mapping){.region = region, .physical = physical, .next = mappings};
	mappings = mapping;
	physical->mappings++;
	return CUDA_SUCCESS;
}

/* Whole mappings that lie in a range. Nothing is unmapped when one of them sticks out. */
static bool whole_mappings(CUdeviceptr base, uint64_t bytes)
{
	bool any = false;

	for (const struct mapping *m = mappings; m != NULL; m = m->next) {
		CUdeviceptr end = m->region->base + m->region->bytes;
		if (m->region->base >= base + bytes || end <= base)
			continue;
		if (m->region->base < base || end > base + bytes)
			return false;
		any = true;
	}
	return any;
}

CUDA_API(cuMemUnmap, (CUdeviceptr base, size_t bytes))
{
	CUresult status = enter(__func__, bytes != 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!whole_mappings(base, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	for (struct mapping **link = &mappings; *link != NULL;) {
		struct mapping *mapping = *link;
		if (mapping->region->base < base || mapping->region->base >= base + bytes) {
			link = &mapping->next;
			continue;
		}
		*link = mapping->next;
		memory_undescribe(mapping->region);
		mapping->physical->mappings--;
		drop_if_unused(mapping->physical);
		free(mapping);
	}
	return CUDA_SUCCESS;
}

struct access {
	struct location location;
	int flags; /* 0 none, 1 read, 3 read and write */
};

CUDA_API(cuMemSetAccess,
	 (CUdeviceptr base, size_t bytes, const struct access *access, size_t count))
{
	CUresult status = enter(__func__, access != NULL && count != 0 && bytes != 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!whole_mappings(base, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	for (struct mapping *m = mappings; m != NULL; m = m->next)
		if (m->region->base >= base && m->region->base < base + bytes)
			m->access = (uint64_t)access[count - 1].flags;
	return CUDA_SUCCESS;
}

static struct mapping *mapping_at(CUdeviceptr address)
{
	for (struct mapping *m = mappings; m != NULL; m = m->next)
		if (address >= m->region->base && address - m->region->base < m->region->bytes)
			return m;
	return NULL;
}

CUDA_API(cuMemGetAccess,
	 (unsigned long long *out, const struct location *location, CUdeviceptr address))
{
	CUresult status = enter(__func__, out != NULL && location != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct mapping *mapping = mapping_at(address);
	if (mapping == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*out = mapping->access;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *address))
{
	CUresult status = enter(__func__, out != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct mapping *mapping = mapping_at((CUdeviceptr)(uintptr_t)address);
	if (mapping == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	mapping->physical->handles++;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)mapping->physical;
	return CUDA_SUCCESS;
}

/* --- parts of sparse arrays ------------------------------------------------------------------- */

struct array_map {
	int resource_type;
	void *resource;
	int part_type;
	uint64_t part[4];
	int operation; /* 1 map, 2 unmap */
	int handle_type;
	CUmemGenericAllocationHandle handle;
	uint64_t offset;
	uint32_t devices;
	uint32_t flags;
	uint32_t reserved[2];
};

_Static_assert(sizeof(struct array_map) == 96, "CUDA");

struct tile {
	struct array_map map;
	struct physical *physical;
	uint64_t ends_ns; /* when the stream comes to its unmapping; 0: it is mapped */
	struct tile *next;
};

static struct tile *tiles;

static bool same_part(const struct array_map *a, const struct array_map *b)
{
	return a->resource == b->resource && a->part_type == b->part_type &&
	       memcmp(a->part, b->part, sizeof(a->part)) == 0;
}

static void end_tile(const struct array_map *map, uint64_t when_ns)
{
	for (struct tile *tile = tiles; tile != NULL; tile = tile->next)
		if (tile->ends_ns == 0 && same_part(&tile->map, map))
			tile->ends_ns = when_ns;
}

static CUresult map_part(const struct array_map *map, uint64_t when_ns)
{
	struct physical *physical = map->operation == 1 ? physical_of(map->handle) : NULL;

	if (map->resource == NULL || (map->operation == 1 && physical == NULL))
		return CUDA_ERROR_INVALID_VALUE;
	end_tile(map, when_ns);
	if (physical == NULL)
		return CUDA_SUCCESS;
	struct tile *tile = calloc(1, sizeof(*tile));
	if (tile == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*tile = (struct tile){.map = *map, .physical = physical, .next = tiles};
	tiles = tile;
	physical->mappings++;
	return CUDA_SUCCESS;
}

static void drop_tiles(bool (*is_over)(const struct tile *, const void *), const void *what)
{
	for (struct tile **link = &tiles; *link != NULL;) {
		struct tile *tile = *link;
		if (!is_over(tile, what)) {
			link = &tile->next;
			continue;
		}
		*link = tile->next;
		tile->physical->mappings--;
		drop_if_unused(tile->physical);
		free(tile);
	}
}

static bool has_ended(const struct tile *tile, const void *now_ns)
{
	return tile->ends_ns != 0 && tile->ends_ns <= *(const uint64_t *)now_ns;
}

static bool is_of_array(const struct tile *tile, const void *array)
{
	return tile->map.resource == array;
}

void vmm_end_unmappings(void)
{
	uint64_t now_ns = clock_now_ns();

	drop_tiles(has_ended, &now_ns);
}

void vmm_forget_array(const void *array)
{
	drop_tiles(is_of_array, array);
}

/* A test may have a part refused: those before it are mapped all the same. */
static CUresult map_array(const char *function, bool per_thread, const struct array_map *list,
			  unsigned int count, CUstream handle)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, list != NULL && count != 0, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	uint64_t now_ns = clock_now_ns();
	uint64_t when_ns = stream->tail_ns > now_ns ? stream->tail_ns : now_ns;
	for (unsigned int i = 0; status == CUDA_SUCCESS && i < count; i++) {
		status = (CUresult)state_fault("part of a sparse array");
		if (status == CUDA_SUCCESS)
			status = map_part(&list[i], when_ns);
	}
	return status;
}

STREAM_API(cuMemMapArrayAsync, _ptsz,
	   (struct array_map * list, unsigned int count, CUstream handle), map_array, list, count,
	   handle)

/* --- between processes ---------------------------------------------------------------------- */

/* The descriptor tells another process the size and the card. The memory itself stays with its
 * maker: an importer pays nothing, sees zeros, and does not keep the memory alive. */
CUDA_API(cuMemExportToShareableHandle, (void *out, CUmemGenericAllocationHandle handle,
					int handle_type, unsigned long long flags))
{
	CUresult status = enter(__func__, out != NULL && flags == 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct physical *physical = physical_of(handle);
	if (physical == NULL || handle_type != HANDLE_POSIX_FD ||
	    (physical->properties.handle_types & HANDLE_POSIX_FD) == 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct exported exported = {.magic = EXPORT_MAGIC,
				    .bytes = physical->bytes,
				    .properties = physical->properties};
	if (physical->properties.location.type == LOCATION_DEVICE)
		memcpy(exported.uuid, device_describe(physical->properties.location.id)->uuid_bytes,
		       sizeof(exported.uuid));
	int fd = memfd_create("exported memory", MFD_CLOEXEC);
	if (fd < 0 || write(fd, &exported, sizeof(exported)) != (ssize_t)sizeof(exported)) {
		if (fd >= 0)
			(void)close(fd);
		return CUDA_ERROR_UNKNOWN;
	}
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemImportFromShareableHandle,
	 (CUmemGenericAllocationHandle * out, void *os_handle, int handle_type))
{
	struct exported exported;
	CUresult status = enter(__func__, out != NULL && handle_type == HANDLE_POSIX_FD);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (pread((int)(intptr_t)os_handle, &exported, sizeof(exported), 0) !=
		    (ssize_t)sizeof(exported) ||
	    exported.magic != EXPORT_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	for (CUdevice ordinal = 0; ordinal < device_count(); ordinal++)
		if (memcmp(device_describe(ordinal)->uuid_bytes, exported.uuid,
			   sizeof(exported.uuid)) == 0)
			exported.properties.location.id = ordinal;
	struct physical *physical = make_physical(&exported.properties, exported.bytes);
	if (physical == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)physical;
	return CUDA_SUCCESS;
}
