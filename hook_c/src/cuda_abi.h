// SPDX-License-Identifier: Apache-2.0
/* The few numbers and layouts of the CUDA driver API and of NVML that libvgpu reads itself.
 * Sources: CUDA Driver API 11.8 to 13.5, NVML API 11.8 to 13.5; no header is needed to build. */
#ifndef VGPU_CUDA_ABI_H
#define VGPU_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	/* What a refused cuInit returns. Not NO_DEVICE: frameworks go on with the CPU on that. */
	CUDA_ERROR_SYSTEM_NOT_READY = 802,

	NVML_SUCCESS = 0,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

enum {
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_LOCATION_TYPE_HOST = 2,
	CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
	CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
	CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_GRAPH = 4,
	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
	CU_GRAPH_NODE_TYPE_CONDITIONAL = 13,
	CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
	CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
	CU_MEM_ATTACH_GLOBAL = 1,
	CU_MEM_ATTACH_HOST = 2,
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	CU_LIMIT_STACK_SIZE = 0,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
	CU_EVENT_DISABLE_TIMING = 2,
	CUDA_ARRAY3D_SPARSE = 0x40,
	CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

struct cuda_location {
	int32_t type;
	int32_t id; /* of a device: its ordinal */
};

/* CUmemAllocationProp */
struct cuda_allocation_properties {
	int32_t type;
	int32_t handle_types;
	struct cuda_location location;
	void *win32_metadata;
	uint8_t flags[8];
};

/* CUmemPoolProps, as far as we read it */
struct cuda_pool_properties {
	int32_t type;
	int32_t handle_types;
	struct cuda_location location;
};

/* CUDA_MEM_ALLOC_NODE_PARAMS */
struct cuda_graph_alloc {
	struct cuda_pool_properties pool;
	uint8_t rest_of_pool[72];
	const void *access;
	size_t access_count;
	size_t bytes;
	uint64_t pointer;
};

/* CUgraphNodeParams, of a node that allocates */
struct cuda_graph_node {
	int32_t type;
	int32_t reserved[3];
	struct cuda_graph_alloc alloc;
};

/* CUgraphNodeParams, of a conditional node; the driver fills in `bodies`. */
struct cuda_graph_conditional {
	int32_t type;
	int32_t reserved[3];
	uint64_t handle;
	int32_t kind;
	uint32_t count;
	void **bodies;
	void *context;
};

/* CUDA_GRAPH_INSTANTIATE_PARAMS, as far as we read it */
struct cuda_graph_instantiation {
	uint64_t flags;
	void *upload_stream;
};

/* CUDA_KERNEL_NODE_PARAMS; up to CUDA 11 it ends before `kernel`. */
struct cuda_kernel_node {
	void *function;
	uint32_t grid_and_block[6];
	uint32_t shared_bytes;
	void **parameters;
	void **extra;
	void *kernel;
	void *context;
};

/* CUlaunchAttribute */
struct cuda_launch_attribute {
	int32_t id;
	int32_t pad;
	union {
		int32_t allowed; /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
		uint64_t word[8];
	} value;
};

#define CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION 6

/* CUlaunchConfig */
struct cuda_launch_config {
	uint32_t grid_and_block[6];
	uint32_t shared_bytes;
	void *stream;
	const struct cuda_launch_attribute *attributes;
	uint32_t attribute_count;
};

/* CUDA_LAUNCH_PARAMS */
struct cuda_launch {
	void *function;
	uint32_t grid_and_block[6];
	uint32_t shared_bytes;
	void *stream;
	void **parameters;
};

/* CUDA_ARRAY_DESCRIPTOR and CUDA_ARRAY3D_DESCRIPTOR; the first versions have 32-bit sizes. */
struct cuda_array {
	size_t width;
	size_t height;
	int32_t format;
	uint32_t channels;
};

struct cuda_array_v1 {
	uint32_t width;
	uint32_t height;
	int32_t format;
	uint32_t channels;
};

struct cuda_array3d {
	size_t width;
	size_t height;
	size_t depth;
	int32_t format;
	uint32_t channels;
	uint32_t flags;
};

struct cuda_array3d_v1 {
	uint32_t width;
	uint32_t height;
	uint32_t depth;
	int32_t format;
	uint32_t channels;
	uint32_t flags;
};

/* CUDA_ARRAY_MEMORY_REQUIREMENTS */
struct cuda_requirements {
	size_t size;
	size_t alignment;
	uint32_t reserved[4];
};

_Static_assert(sizeof(struct cuda_allocation_properties) == 32, "CUDA ABI");
_Static_assert(offsetof(struct cuda_graph_alloc, bytes) == 104, "CUDA ABI");
_Static_assert(offsetof(struct cuda_graph_node, alloc) == 16, "CUDA ABI");
_Static_assert(offsetof(struct cuda_graph_conditional, bodies) == 32, "CUDA ABI");
_Static_assert(sizeof(struct cuda_kernel_node) == 72, "CUDA ABI");
_Static_assert(sizeof(struct cuda_launch_attribute) == 72, "CUDA ABI");
_Static_assert(offsetof(struct cuda_launch_config, stream) == 32, "CUDA ABI");
_Static_assert(sizeof(struct cuda_launch) == 56, "CUDA ABI");
_Static_assert(sizeof(struct cuda_array) == 24, "CUDA ABI");
_Static_assert(sizeof(struct cuda_array3d) == 40, "CUDA ABI");
_Static_assert(sizeof(struct cuda_requirements) == 32, "CUDA ABI");

#define NVML_UUID_BYTES 96 /* NVML_DEVICE_UUID_V2_BUFFER_SIZE */

struct nvml_memory {
	uint64_t total;
	uint64_t free;
	uint64_t used;
};

struct nvml_memory_v2 {
	uint32_t version;
	uint64_t total;
	uint64_t reserved;
	uint64_t free;
	uint64_t used;
};

/* nvmlDeviceAttributes_t */
struct nvml_attributes {
	uint32_t counts[8]; /* of multiprocessors, engines and slices */
	uint64_t memory_mib;
};

#define NVML_NO_INSTANCE UINT32_MAX /* of a process that runs on no MIG instance */

/* nvmlProcessInfo_v1_t; the later versions add the two instance numbers. */
struct nvml_process_v1 {
	uint32_t pid;
	uint64_t used_bytes;
};

struct nvml_process {
	uint32_t pid;
	uint64_t used_bytes;
	uint32_t gpu_instance;
	uint32_t compute_instance;
};

/* CUarrayMapInfo */
#define CU_MEM_OPERATION_TYPE_MAP 1
#define CU_MEM_OPERATION_TYPE_UNMAP 2
#define CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL 1

struct cuda_array_map {
	int resource_type;
	void *resource; /* array or mipmapped array */
	int part_type;
	uint64_t part[4]; /* which part: level, layer, place and size; of a tail layer, place, size
			   */
	int operation;
	int handle_type;
	uint64_t handle;
	uint64_t offset;
	uint32_t devices;
	uint32_t flags;
	uint32_t reserved[2];
};

/* nvmlProcessDetail_v1_t and nvmlProcessDetailList_v1_t */
struct nvml_detail {
	uint32_t pid;
	uint64_t used_bytes;
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint64_t protected_bytes;
};

#define NVML_DETAILS_COMPUTE 0

struct nvml_details {
	uint32_t version;
	uint32_t mode;
	uint32_t count;
	struct nvml_detail *list;
};

/* nvmlProcessUtilizationSample_t */
struct nvml_sample {
	uint32_t pid;
	uint64_t time_us;
	uint32_t gpu_percent;
	uint32_t other_percent[3];
};

/* nvmlProcessUtilizationInfo_v1_t and nvmlProcessesUtilizationInfo_v1_t */
struct nvml_sample_info {
	uint64_t time_us;
	uint32_t pid;
	uint32_t percent[6];
};

struct nvml_samples {
	uint32_t version;
	uint32_t count;
	uint64_t since_us;
	struct nvml_sample_info *list;
};

/* nvmlSample_t, of utilisation */
#define NVML_GPU_UTILIZATION_SAMPLES 1

struct nvml_history {
	uint64_t time_us;
	uint32_t percent; /* of a union of 64 bits */
	uint32_t pad;
};

/* nvmlUtilization_t */
struct nvml_rates {
	uint32_t gpu_percent;
	uint32_t memory_percent;
};

_Static_assert(sizeof(struct cuda_array_map) == 96, "CUDA ABI");
_Static_assert(offsetof(struct cuda_array_map, operation) == 56, "CUDA ABI");
_Static_assert(sizeof(struct nvml_detail) == 32, "NVML ABI");
_Static_assert(sizeof(struct nvml_details) == 24, "NVML ABI");
_Static_assert(sizeof(struct nvml_sample) == 32, "NVML ABI");
_Static_assert(sizeof(struct nvml_sample_info) == 40, "NVML ABI");
_Static_assert(sizeof(struct nvml_samples) == 24, "NVML ABI");
_Static_assert(sizeof(struct nvml_process_v1) == 16, "NVML ABI");
_Static_assert(sizeof(struct nvml_process) == 24, "NVML ABI");
_Static_assert(sizeof(struct nvml_attributes) == 40, "NVML ABI");
_Static_assert(sizeof(struct nvml_memory) == 24, "NVML ABI");
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "NVML ABI");

#endif
