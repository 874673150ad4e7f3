/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays and mipmapped arrays: what they take. Rows are padded to 64 B and 128 lines, volumes to 16
 * layers; this gives the sizes that were measured on an H100 for ten shapes from 16² to 4097² and
 * 511x511x97. What is in an array is not kept.
 */
#include "context.h"
#include "graph.h"
#include "memory.h"
#include "vmm.h"

#include <stdlib.h>

#define ARRAY_MAGIC 0x41525259
#define SMALLEST_BYTES (128 * KIB)

enum { ARRAY_LAYERED = 0x01, ARRAY_CUBEMAP = 0x04, ARRAY_SPARSE = 0x40, ARRAY_DEFERRED = 0x80 };

struct descriptor_2d {
	size_t width;
	size_t height;
	int format;
	unsigned int channels;
};

struct descriptor_3d {
	size_t width;
	size_t height;
	size_t depth;
	int format;
	unsigned int channels;
	unsigned int flags;
};

struct array {
	uint32_t magic;
	struct descriptor_3d descriptor;
	struct region *region; /* NULL: mapped later, or a level of a mipmapped array */
	uint64_t layout_bytes;
	uint64_t number;
};

struct mipmap {
	uint32_t magic;
	unsigned int level_count;
	struct array whole; /* has the memory of all levels */
	struct array level[];
};

/* Bytes of one element; 0 for a format that the simulation does not know. */
static uint64_t element_bytes(int format, unsigned int channels)
{
	switch (format) {
	case 0x01: /* 8 bits, unsigned and signed */
	case 0x08:
		return channels;
	case 0x02: /* 16 bits, the last one a half */
	case 0x09:
	case 0x10:
		return (uint64_t)2 * channels;
	case 0x03: /* 32 bits, the last one a float */
	case 0x0a:
	case 0x20:
		return (uint64_t)4 * channels;
	default:
		return 0;
	}
}

static uint64_t line_padding(uint64_t lines)
{
	uint64_t block = 8;

	while (block < lines && block < 128)
		block *= 2;
	return round_up(lines == 0 ? 1 : lines, block);
}

static uint64_t layout_bytes(const struct descriptor_3d *d)
{
	uint64_t row = round_up(d->width * element_bytes(d->format, d->channels), 64);
	uint64_t layers = d->depth == 0 ? 1 : d->depth;

	if ((d->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)) != 0)
		return row * line_padding(d->height) * layers;
	if (d->depth > 0)
		return row * round_up(d->height, 8) * round_up(layers, 16);
	return row * line_padding(d->height);
}

static bool valid_descriptor(const struct descriptor_3d *d)
{
	return d->width > 0 && d->width <= 1 << 28 && d->height <= 1 << 17 && d->depth <= 1 << 14 &&
	       d->channels > 0 && d->channels <= 4 && element_bytes(d->format, d->channels) != 0 &&
	       ((d->flags & ARRAY_CUBEMAP) == 0 || d->depth % 6 == 0);
}

static bool valid(const struct array *array)
{
	return array != NULL && array->magic == ARRAY_MAGIC;
}

/* Caller holds the driver lock. */
static struct region *take(struct context *context, uint64_t bytes)
{
	return memory_allocate(context, bytes < SMALLEST_BYTES ? SMALLEST_BYTES : bytes);
}

static CUresult create(const char *function, CUarray *out, const struct descriptor_3d *d)
{
	struct context *context = NULL;
	CUresult status = enter_unsafe_context(
		function, out != NULL && d != NULL && valid_descriptor(d), &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct array *array = calloc(1, sizeof(*array));
	if (array == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	array->magic = ARRAY_MAGIC;
	array->descriptor = *d;
	array->layout_bytes = layout_bytes(d);
	if ((d->flags & (ARRAY_DEFERRED | ARRAY_SPARSE)) == 0) {
		array->region = take(context, array->layout_bytes);
		if (array->region == NULL) {
			free(array);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		array->number = array->region->number;
	}
	*out = array;
	return CUDA_SUCCESS;
}

CUDA_API(cuArrayCreate_v2, (CUarray * out, const struct descriptor_2d *d))
{
	struct descriptor_3d full = {0};

	if (d != NULL)
		full = (struct descriptor_3d){.width = d->width,
					      .height = d->height,
					      .format = d->format,
					      .channels = d->channels};
	return create(__func__, out, d != NULL ? &full : NULL);
}

CUDA_API(cuArray3DCreate_v2, (CUarray * out, const struct descriptor_3d *d))
{
	return create(__func__, out, d);
}

/* A context that has died has taken its arrays' memory with it, and perhaps something else lies
 * there now. */
static void release(const struct array *array)
{
	if (array->region == NULL)
		return;
	struct region *region = memory_by_number(array->number);
	if (region != NULL)
		memory_release(region);
}

CUDA_API(cuArrayDestroy, (CUarray array))
{
	CUresult status = enter_unsafe(__func__, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!valid(array))
		return CUDA_ERROR_INVALID_HANDLE;
	release(array);
	vmm_forget_array(array);
	array->magic = 0;
	return CUDA_SUCCESS;
}

CUDA_API(cuArrayGetDescriptor_v2, (struct descriptor_2d * out, CUarray array))
{
	CUresult status = enter(__func__, out != NULL);

	if (status == CUDA_SUCCESS && !valid(array))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status == CUDA_SUCCESS)
		*out = (struct descriptor_2d){.width = array->descriptor.width,
					      .height = array->descriptor.height,
					      .format = array->descriptor.format,
					      .channels = array->descriptor.channels};
	return status;
}

CUDA_API(cuArray3DGetDescriptor_v2, (struct descriptor_3d * out, CUarray array))
{
	CUresult status = enter(__func__, out != NULL);

	if (status == CUDA_SUCCESS && !valid(array))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status == CUDA_SUCCESS)
		*out = array->descriptor;
	return status;
}

struct requirements {
	size_t bytes;
	size_t alignment;
	unsigned int reserved[4];
};

/* Only for arrays that are mapped later; any other is an invalid value (measured). */
static CUresult requirements(const char *function, struct requirements *out,
			     const struct array *array)
{
	CUresult status = enter(function, out != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	if (!valid(array))
		return CUDA_ERROR_INVALID_HANDLE;
	if ((array->descriptor.flags & ARRAY_DEFERRED) == 0)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (struct requirements){.bytes = array->layout_bytes, .alignment = 64 * KIB};
	if (out->bytes < SMALLEST_BYTES)
		out->bytes = SMALLEST_BYTES;
	return CUDA_SUCCESS;
}

CUDA_API(cuArrayGetMemoryRequirements, (struct requirements * out, CUarray array, CUdevice device))
{
	(void)device;
	return requirements(__func__, out, array);
}

/* --- mipmapped arrays ----------------------------------------------------------------------- */

static size_t half(size_t value)
{
	return value > 1 ? value / 2 : value;
}

CUDA_API(cuMipmappedArrayCreate,
	 (CUmipmappedArray * out, const struct descriptor_3d *d, unsigned int levels))
{
	struct context *context = NULL;
	CUresult status = enter_unsafe_context(__func__,
					       out != NULL && d != NULL && valid_descriptor(d) &&
						       levels > 0 && levels <= 32,
					       &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct mipmap *mipmap = calloc(1, sizeof(*mipmap) + levels * sizeof(mipmap->level[0]));
	if (mipmap == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct descriptor_3d level = *d;
	mipmap->magic = ARRAY_MAGIC;
	mipmap->level_count = levels;
	mipmap->whole = (struct array){.magic = ARRAY_MAGIC, .descriptor = *d};
	for (unsigned int i = 0; i < levels; i++) {
		mipmap->level[i] = (struct array){.magic = ARRAY_MAGIC, .descriptor = level};
		mipmap->whole.layout_bytes += layout_bytes(&level);
		level.width = half(level.width);
		level.height = half(level.height);
		if ((d->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)) == 0)
			level.depth = half(level.depth);
	}
	if ((d->flags & (ARRAY_DEFERRED | ARRAY_SPARSE)) == 0) {
		mipmap->whole.region = take(context, mipmap->whole.layout_bytes);
		if (mipmap->whole.region == NULL) {
			free(mipmap);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		mipmap->whole.number = mipmap->whole.region->number;
	}
	*out = mipmap;
	return CUDA_SUCCESS;
}

static bool valid_mipmap(const struct mipmap *mipmap)
{
	return mipmap != NULL && mipmap->magic == ARRAY_MAGIC;
}

CUDA_API(cuMipmappedArrayDestroy, (CUmipmappedArray mipmap))
{
	CUresult status = enter_unsafe(__func__, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!valid_mipmap(mipmap))
		return CUDA_ERROR_INVALID_HANDLE;
	release(&mipmap->whole);
	vmm_forget_array(mipmap);
	mipmap->magic = 0;
	return CUDA_SUCCESS;
}

CUDA_API(cuMipmappedArrayGetLevel, (CUarray * out, CUmipmappedArray mipmap, unsigned int level))
{
	CUresult status = enter(__func__, out != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	if (!valid_mipmap(mipmap))
		return CUDA_ERROR_INVALID_HANDLE;
	if (level >= mipmap->level_count)
		return CUDA_ERROR_INVALID_VALUE;
	*out = &mipmap->level[level];
	return CUDA_SUCCESS;
}

CUDA_API(cuMipmappedArrayGetMemoryRequirements,
	 (struct requirements * out, CUmipmappedArray mipmap, CUdevice device))
{
	(void)device;
	return requirements(__func__, out, valid_mipmap(mipmap) ? &mipmap->whole : NULL);
}
