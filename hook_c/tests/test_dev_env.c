// SPDX-License-Identifier: Apache-2.0
#include "dev_env.h"

#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static void test_bytes(void)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"1", 1},
		{"4096", 4096},
		{"1k", 1024},
		{"3M", 3 << 20},
		{"2g", UINT64_C(2) << 30},
		{"18446744073709551615", UINT64_MAX},
		{"17179869183G", UINT64_C(17179869183) << 30},
	};

	for (size_t i = 0; i < LENGTH(good); i++) {
		uint64_t bytes = 0;

		CHECK(parse_bytes(good[i].text, &bytes) == 0);
		CHECK(bytes == good[i].bytes);
	}
}

static void test_what_is_no_number_of_bytes(void)
{
	static const char *const bad[] = {"",    "0", "0g",   "-1",   "+1",  " 1",   "1 ", "1x",
					  "1kk", "g", "1.5g", "0x10", "1gi", "12 m", "1e9"};
	static const char *const large[] = {"18446744073709551616", "17179869184g",
					    "99999999999999999999999"};
	uint64_t bytes = 42;

	for (size_t i = 0; i < LENGTH(bad); i++)
		CHECK(parse_bytes(bad[i], &bytes) == EINVAL);
	for (size_t i = 0; i < LENGTH(large); i++)
		CHECK(parse_bytes(large[i], &bytes) == ERANGE);
	CHECK(bytes == 42);
}

static void test_percent(void)
{
	static const char *const bad[] = {"", "0", "101", "-5", "50%", "1.0", "300"};
	unsigned int percent = 42;

	for (size_t i = 0; i < LENGTH(bad); i++)
		CHECK(parse_percent(bad[i], &percent) != 0);
	CHECK(percent == 42);
	CHECK(parse_percent("1", &percent) == 0 && percent == 1);
	CHECK(parse_percent("100", &percent) == 0 && percent == 100);
}

static void clear(void)
{
	clearenv();
	setenv("PATH", "/bin", 1);
}

static void test_without_variables_nothing_is_set(void)
{
	clear();
	setenv("CUDA_VISIBLE_DEVICES", "0", 1);
	CHECK(!dev_env_is_set());
}

static void test_a_card_has_its_own_limit_or_that_of_all(void)
{
	static struct limits limits;
	struct reason reason;

	clear();
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "2g", 1);
	setenv("CUDA_DEVICE_MEMORY_LIMIT_1", "512m", 1);
	CHECK(dev_env_is_set());
	CHECK(dev_env_limits(&limits, &reason));
	CHECK(limits.count == VGPU_MAX_DEVICES);
	CHECK(limits.card[0].memory_bytes == UINT64_C(2) << 30);
	CHECK(limits.card[1].memory_bytes == 512 << 20);
	CHECK(limits.card[15].memory_bytes == UINT64_C(2) << 30);
}

static void test_a_card_without_a_limit_has_none(void)
{
	static struct limits limits;
	struct reason reason;

	clear();
	setenv("CUDA_DEVICE_SM_LIMIT", "30", 1);
	CHECK(dev_env_limits(&limits, &reason));
	CHECK(limits.card[0].memory_bytes == LIMITS_NONE);
}

static void test_a_bad_value_is_refused_by_name(void)
{
	static struct limits limits;
	struct reason reason;

	clear();
	setenv("CUDA_DEVICE_MEMORY_LIMIT_3", "all", 1);
	CHECK(!dev_env_limits(&limits, &reason));
	CHECK(strstr(reason.text, "CUDA_DEVICE_MEMORY_LIMIT_3=all") != NULL);
	clear();
	setenv("CUDA_DEVICE_SM_LIMIT", "0", 1);
	CHECK(!dev_env_limits(&limits, &reason));
	CHECK(strstr(reason.text, "CUDA_DEVICE_SM_LIMIT=0") != NULL);
}

static void test_log_level(void)
{
	clear();
	CHECK(dev_env_log_level() == VGPU_RING_WARNING);
	setenv("VGPU_LOG", "debug", 1);
	CHECK(dev_env_log_level() == VGPU_RING_DEBUG);
	setenv("VGPU_LOG", "off", 1);
	CHECK(dev_env_log_level() > VGPU_RING_ERROR);
	setenv("VGPU_LOG", "loud", 1);
	CHECK(dev_env_log_level() == VGPU_RING_WARNING);
}

int main(void)
{
	RUN(test_bytes);
	RUN(test_what_is_no_number_of_bytes);
	RUN(test_percent);
	RUN(test_without_variables_nothing_is_set);
	RUN(test_a_card_has_its_own_limit_or_that_of_all);
	RUN(test_a_card_without_a_limit_has_none);
	RUN(test_a_bad_value_is_refused_by_name);
	RUN(test_log_level);
	return check_end();
}
