/* SPDX-License-Identifier: Apache-2.0 */
#include "conf.h"

#include "check.h"

static struct conf parse(const char *text)
{
	static char copy[4096];

	snprintf(copy, sizeof(copy), "%s", text);
	return conf_parse("test.conf", copy);
}

static void test_an_empty_file_is_the_default(void)
{
	struct conf conf = parse("");

	CHECK(same(conf.source, "test.conf"));
	CHECK(conf.low_level_runtime == NULL);
	CHECK(conf.gpu_runtime == NULL);
	CHECK(same(conf.agent_socket, "/run/vgpu/agent.sock"));
	CHECK(conf.verdict_ms == 10000);
	CHECK(conf.absent_ms == 5000);
}

static void test_every_key(void)
{
	struct conf conf = parse("low_level_runtime=/usr/bin/crun\n"
				 "gpu_runtime=/usr/bin/nvidia-container-runtime\n"
				 "agent_socket=/tmp/a.sock\n"
				 "verdict_seconds=2.5\n"
				 "absent_seconds=0.25");

	CHECK(same(conf.low_level_runtime, "/usr/bin/crun"));
	CHECK(same(conf.gpu_runtime, "/usr/bin/nvidia-container-runtime"));
	CHECK(same(conf.agent_socket, "/tmp/a.sock"));
	CHECK(conf.verdict_ms == 2500);
	CHECK(conf.absent_ms == 250);
}

static void test_layout_of_lines(void)
{
	CHECK(same(parse("low_level_runtime = /r \t\r\n").low_level_runtime, "/r"));
	CHECK(same(parse("\tlow_level_runtime=/r").low_level_runtime, "/r"));
	CHECK(same(parse("low_level_runtime=/a=b").low_level_runtime, "/a=b"));
	CHECK(same(parse("low_level_runtime=/a\nlow_level_runtime=/b").low_level_runtime, "/b"));
	CHECK(same(parse("x=1\n\n\r\nnonsense\n=\nlow_level_runtime=/r").low_level_runtime, "/r"));
	CHECK(parse("# low_level_runtime=/r").low_level_runtime == NULL);
	CHECK(parse("low_level_runtime=").low_level_runtime == NULL);
	CHECK(parse("low_level_runtime=\r\n").low_level_runtime == NULL);
	CHECK(same(parse("agent_socket=\n").agent_socket, CONF_AGENT_SOCKET));
}

static void test_unusable_seconds_are_the_default(void)
{
	static const char *const values[] = {
		"0",    "0.0", "-1", "abc", "1s", "1e3", " ", ".5", "86401", "99999999999999999999",
		"1..5",
	};
	char line[64];

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		snprintf(line, sizeof(line), "verdict_seconds=%s", values[i]);
		CHECK(parse(line).verdict_ms == 10000);
	}
	CHECK(parse("verdict_seconds=86400").verdict_ms == 86400000);
	CHECK(parse("verdict_seconds=1.23456").verdict_ms == 1234);
	CHECK(parse("verdict_seconds=0.001").verdict_ms == 1);
}

int main(void)
{
	test_an_empty_file_is_the_default();
	test_every_key();
	test_layout_of_lines();
	test_unusable_seconds_are_the_default();
	return checks_end();
}
