/* SPDX-License-Identifier: Apache-2.0 */
#include "marks.h"

#include "check.h"

#include <stdlib.h>
#include <unistd.h>

/* Searches a copy that ends where the heap block ends, so that the sanitizer sees a read beyond. */
static unsigned find_bytes(const char *bytes, size_t length)
{
	char *copy = malloc(length > 0 ? length : 1);
	unsigned marks;

	if (copy == NULL)
		abort();
	memcpy(copy, bytes, length);
	marks = marks_find(copy, length);
	free(copy);
	return marks;
}

static unsigned find(const char *text)
{
	return find_bytes(text, strlen(text));
}

static void test_managed(void)
{
	CHECK(find("{\"env\":[\"VGPU_CONTAINER_UUID=x\"]}") & MARK_MANAGED);
	CHECK(find("{\"env\":[\"VGPU_MEMORY=8Gi\"]}") & MARK_MANAGED);
	CHECK(find("{\"env\":[\"VGPU_CORES=50\"]}") & MARK_MANAGED);
	CHECK(find("{\"env\":[\"VGPU_COUNT=1\"]}") & MARK_MANAGED);
	CHECK(find("{\"env\":[\"VGPU_MEMORY=\"]}") & MARK_MANAGED);
	CHECK(find("{\"env\":[\"VGPU_MEMROY=8Gi\",\"VGPU_MEMORY=8Gi\"]}") & MARK_MANAGED);
}

/* Words that are misspelt, or ask for nothing alone, and links of Services. */
static void test_names_to_ask_about(void)
{
	CHECK(find("{\"env\":[\"VGPU_MEMROY=8Gi\"]}") == MARK_ASK);
	CHECK(find("{\"env\":[\"VGPU_UUIDS=GPU-1\"]}") == MARK_ASK);
	CHECK(find("{\"env\":[\"VGPU_CARD_POLICY=spread\"]}") == MARK_ASK);
	CHECK(find("{\"env\":[\"VGPU_WEIGHT=2\"]}") == MARK_ASK);
	CHECK(find("{\"env\":[\"VGPU_MEMORY_X=8Gi\"]}") == MARK_ASK);
	CHECK(find("{\"env\":[\"VGPU_SCHEDULER_CACHE_SERVICE_HOST=10.0.0.1\"]}") == MARK_ASK);
	CHECK(find("\"VGPU_") == MARK_ASK);
	CHECK(!marks_bind(MARK_ASK));
}

static void test_not_managed(void)
{
	CHECK(find("") == 0);
	CHECK(find("\"VGPU") == 0);
	CHECK(find("{\"env\":[\"MY_VGPU_MEMORY=8Gi\",\"PATH=/bin\"]}") == 0);
	CHECK(find("{\"env\":[\"VGPUS_MEMORY=8Gi\"]}") == 0);
	CHECK(find("{\"env\":[\"vgpu_memory=8Gi\"]}") == 0);
	CHECK(find("{\"args\":[\"sh\",\"-c\",\"echo \\\"VGPU_MEMORY=1\\\"\"]}") == 0);
}

static void test_devices(void)
{
	CHECK(find("{\"path\":\"/dev/nvidia0\"}") == MARK_DEVICE);
	CHECK(find("{\"path\":\"/dev/nvidiactl\"}") == MARK_DEVICE);
	CHECK(find("{\"major\":195,\"minor\":0}") == MARK_DEVICE);
	CHECK(find("{\"destination\":\"/var/run/nvidia-container-devices/0\"}") == MARK_DEVICE);
	CHECK(find("{\"path\":\"/usr/bin/nvidia-container-runtime-hook\"}") == MARK_DEVICE);
	CHECK(find("{\"annotations\":{\"cdi.k8s.io/x\":\"y\"}}") == MARK_DEVICE);
	CHECK(find("{\"annotations\":{\"x\":\"nvidia.com/gpu=0\"}}") == MARK_DEVICE);
	CHECK(find("[\"NVIDIA_VISIBLE_DEVICES=GPU-1\"]") == (MARK_DEVICE | MARK_NVIDIA));
	CHECK(find("[\"NVIDIA_VISIBLE_DEVICES=0,MIG-1\"]") == (MARK_DEVICE | MARK_NVIDIA));
}

static void test_variables_only(void)
{
	CHECK(find("[\"NVIDIA_VISIBLE_DEVICES=all\"]") == MARK_NVIDIA);
	CHECK(find("[\"NVIDIA_VISIBLE_DEVICES=all\",\"X=GPU-1\"]") == MARK_NVIDIA);
	CHECK(find("[\"NVIDIA_REQUIRE_CUDA=cuda>=12\"]") == MARK_NVIDIA);
	CHECK(find("NVIDIA_VISIBLE_DEVICES=") == MARK_NVIDIA);
	CHECK(!marks_bind(find("[\"NVIDIA_VISIBLE_DEVICES=all\"]")));
}

static void test_rules_for_every_device(void)
{
	CHECK(find("[{\"allow\":true,\"access\":\"rwm\"}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"access\":\"rwm\",\"allow\":true}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"allow\":true,\"type\":\"a\",\"access\":\"rwm\"}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"access\":\"rwm\"}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"major\":-1,\"minor\":-1}]") ==
	      MARK_ALLOW_ALL);
	CHECK(!marks_bind(MARK_ALLOW_ALL));
}

/* Type "a", given or by default, whatever numbers and access, in both orders that Go writes. */
static void test_rules_of_type_a(void)
{
	CHECK(find("[{\"allow\":true,\"type\":\"a\",\"major\":1,\"minor\":3,\"access\":\"m\"}"
		   "]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"access\":\"m\",\"allow\":true,\"major\":1,\"minor\":3,\"type\":\"a\"}"
		   "]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"access\":\"m\",\"allow\":true,\"type\":\"a\"}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"Type\": \"a\", \"Allow\": true}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"allow\":true,\"type\":\"\",\"major\":1}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"allow\":true,\"major\":1,\"minor\":3,\"access\":\"m\"}]") ==
	      MARK_ALLOW_ALL);
	CHECK(find("[{\"access\":\"m\",\"allow\":true,\"minor\":3}]") == MARK_ALLOW_ALL);
}

static void test_rules_without_a_major_number(void)
{
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"minor\":1,\"access\":\"rwm\"}]") ==
	      MARK_ALLOW_ALL);
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"access\":\"w\"}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"access\":\"mrw\"}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"access\":\"rwm\",\"allow\":true,\"type\":\"c\"}]") == MARK_ALLOW_ALL);
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"major\":-2}]") == MARK_ALLOW_ALL);
}

/* As runc, Docker, containerd and podman write them for an ordinary container. */
static void test_rules_of_ordinary_containers(void)
{
	CHECK(find("[{\"allow\":false,\"access\":\"rwm\"}]") == 0);
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"major\":1,\"minor\":5,\"access\":\"rwm\"}"
		   "]") == 0);
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"major\":136,\"access\":\"rwm\"}]") == 0);
	CHECK(find("[{\"allow\":true,\"type\":\"c\",\"access\":\"m\"}]") == 0);
	CHECK(find("[{\"allow\":true,\"type\":\"b\",\"access\":\"m\"}]") == 0);
	CHECK(find("{\"major\":10,\"minor\":195}") == 0);
}

static void test_blanks_and_case_of_keys(void)
{
	CHECK(find("{\"major\": 195}") == MARK_DEVICE);
	CHECK(find("{\"major\" :\n\t195}") == MARK_DEVICE);
	CHECK(find("{\"Major\":195}") == MARK_DEVICE);
	CHECK(find("{\"MAJOR\" : -1}") == MARK_ALLOW_ALL);
	CHECK(find("{\n\t\"allow\": true,\r\n\t\"access\": \"rwm\"\n}") == MARK_ALLOW_ALL);
	CHECK(find("{\"access\": \"rwm\", \"allow\": true }") == MARK_ALLOW_ALL);
	CHECK(find("{\n\t\"allow\": false,\n\t\"access\": \"rwm\"\n}") == 0);
}

static void test_escapes_that_hide(void)
{
	CHECK(find("[\"\\u0056GPU_MEMORY=8Gi\"]") == MARK_MANAGED);
	CHECK(find("[\"VGPU\\u005fMEMORY=8Gi\"]") == MARK_MANAGED);
	CHECK(find("[\"VGPU_MEMORY\\u003D8Gi\"]") & MARK_MANAGED);
	CHECK(find("{\"\\u006dajor\":195}") & MARK_MANAGED);
	CHECK(find("{\"path\":\"\\/dev\\/nvidia0\"}") == MARK_DEVICE);
}

/* What the writers of Go and Python escape themselves. */
static void test_escapes_that_do_not(void)
{
	CHECK(find("[\"A=\\u003c\\u003e\\u0026\\u2028\\ufffd\\u0000\\u001b\\u007f\\u00e9\"]") == 0);
	CHECK(find("[\"A=\\\"\\\\\\n\\t\"]") == 0);
	CHECK(find("[\"A=\\\\u0056\"]") == 0); /* an escaped backslash, then text */
	CHECK(find("[\"A=\\\\\\u0056\"]") == MARK_MANAGED);
	CHECK(find("[\"A=\\nNVIDIA_X\"]") == MARK_NVIDIA);
	CHECK(find("[\"A=\\u00zz\"]") == 0);
}

static void test_cut_anywhere(void)
{
	static const char whole[] = "{\"env\":[\"NVIDIA_VISIBLE_DEVICES=GPU-\"],\"major\" : "
				    "195,\"allow\": true,\"access\""
				    ":\"\\u0041\",\"p\":\"/dev/nvidia\",\"VGPU_CONTAINER_UUID=\"}";

	for (size_t length = 0; length < sizeof(whole); length++)
		find_bytes(whole, length);
	CHECK(find(whole) & MARK_MANAGED);
	CHECK(find_bytes("\\", 1) == 0);
	CHECK(find_bytes("\\u004", 5) == 0);
}

/* Each mention of the variable must not cost a look at all that follows: a user chooses the text.
 */
static void test_a_string_full_of_the_variable(void)
{
	static const char name[] = "NVIDIA_VISIBLE_DEVICES=";
	const size_t times = 400000, length = sizeof(name) - 1;
	char *text = malloc(times * length + sizeof("GPU-1"));

	if (text == NULL)
		abort();
	for (size_t i = 0; i < times; i++)
		memcpy(text + i * length, name, length);
	alarm(120);
	CHECK(find_bytes(text, times * length) == MARK_NVIDIA);
	text[times * length / 2] = '"';
	memcpy(text + times * length, "GPU-1", sizeof("GPU-1"));
	CHECK(find_bytes(text, times * length + 5) == (MARK_NVIDIA | MARK_DEVICE));
	alarm(0);
	free(text);
}

int main(void)
{
	test_managed();
	test_names_to_ask_about();
	test_not_managed();
	test_devices();
	test_variables_only();
	test_rules_for_every_device();
	test_rules_of_type_a();
	test_rules_without_a_major_number();
	test_rules_of_ordinary_containers();
	test_blanks_and_case_of_keys();
	test_escapes_that_hide();
	test_escapes_that_do_not();
	test_cut_anywhere();
	test_a_string_full_of_the_variable();
	return checks_end();
}
