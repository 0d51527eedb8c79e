package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestAgentSettings(t *testing.T) {
	c, origin := load(t, `
agent:
  enabled: false
  limits: {instances: 5}
  registrations_per_minute: 0
  dependency_validation: true
  strict: true
  checks:
    workers: 1
    allow_loopback: true
    scripts:
      disk: [/usr/lib/check_disk, -w, 90]
      load: [/usr/lib/check_load]
dns: 172.17.0.1:53
dns_domain: [example.internal]
dns_ttl: 0s
unix: /run/blackhole/peer.sock
hosts: [Peer.example.org, 10.0.0.7, "2001:db8::1"]
`)
	require.Equal(t, config.Agent{
		Limits: config.AgentLimits{Instances: 5}, DependencyValidation: true, Strict: true,
		Checks: config.Checks{Workers: 1, AllowLoopback: "true", Scripts: map[string][]string{
			"disk": {"/usr/lib/check_disk", "-w", "90"}, "load": {"/usr/lib/check_load"},
		}},
	}, c.Agent)
	require.Equal(t, "172.17.0.1:53", c.DNS)
	require.Equal(t, []string{"example.internal"}, c.DNSDomain)
	require.Zero(t, c.DNSTTL)
	require.Equal(t, "/run/blackhole/peer.sock", c.Unix)
	require.Len(t, c.Hosts, 3)
	require.Equal(t, "{disk: [/usr/lib/check_disk, -w, 90], load: [/usr/lib/check_load]}", c.Value("agent.checks.scripts"))
	require.Contains(t, origin["agent.checks.scripts"], "file ")

	c, _, err := config.Load(config.Source{Environ: []string{
		"BLACKHOLE_AGENT_LIMITS_INSTANCES=7", "BLACKHOLE_AGENT_STRICT=true", "BLACKHOLE_DNS=off", "BLACKHOLE_DNS_DOMAIN=a,b", "BLACKHOLE_DNS_TTL=1m",
	}})
	require.NoError(t, err)
	require.Equal(t, 7, c.Agent.Limits.Instances)
	require.True(t, c.Agent.Strict)
	require.Equal(t, config.Off, c.DNS)
	require.Equal(t, []string{"a", "b"}, c.DNSDomain)
	require.Equal(t, time.Minute, c.DNSTTL)
}

func TestAgentRefuses(t *testing.T) {
	for text, field := range map[string]string{
		"agent: {limits: {instances: 0}}":                   "agent.limits.instances",
		"agent: {limits: {instances: 100001}}":              "agent.limits.instances",
		"agent: {registrations_per_minute: -1}":             "agent.registrations_per_minute",
		"agent: {enabled: perhaps}":                         "agent.enabled",
		"agent: {checks: {workers: 0}}":                     "agent.checks.workers",
		"agent: {checks: {workers: 1025}}":                  "agent.checks.workers",
		"agent: {checks: {allow_loopback: never}}":          "agent.checks.allow_loopback",
		"agent: {checks: {scripts: [/bin/x]}}":              "agent.checks.scripts",
		"agent: {checks: {scripts: {disk: /bin/x}}}":        "agent.checks.scripts.disk",
		"agent: {checks: {scripts: {disk: [x]}}}":           "agent.checks.scripts.disk",
		"agent: {checks: {scripts: {disk: []}}}":            "agent.checks.scripts.disk",
		"agent: {checks: {scripts: {Disk: [/bin/x]}}}":      "agent.checks.scripts.Disk",
		"agent: {checks: {scripts: {a.b: [/bin/x]}}}":       "agent.checks.scripts.a.b",
		"agent: {checks: {scripts: {disk: [/bin/x, [y]]}}}": "agent.checks.scripts.disk[1]",
		"agent: {check: {workers: 1}}":                      "agent.check",
		"dns: 0.0.0.0:53":                                   "dns",
		"dns: ':53'":                                        "dns",
		"dns: 8.8.8.8:53":                                   "dns",
		"dns: localhost:53":                                 "dns",
		"dns: on":                                           "dns",
		"dns_domain: []":                                    "dns_domain",
		"dns_domain: [a, a]":                                "dns_domain",
		"dns_domain: [consul.]":                             "dns_domain",
		"dns_domain: [Consul]":                              "dns_domain",
		"dns_domain: ['']":                                  "dns_domain",
		"dns_domain: [-a]":                                  "dns_domain",
		"dns_domain: [a..b]":                                "dns_domain",
		"dns_domain: [" + strings.Repeat("a.", 64) + "a]":   "dns_domain",
		"dns_domain: [a, b, c, d, e, f, g, h, i]":           "dns_domain",
		"dns_ttl: -1s":                                      "dns_ttl",
		"dns_ttl: 25h":                                      "dns_ttl",
		"unix: ''":                                          "unix",
		"unix: /" + strings.Repeat("x", 103):                "unix",
		"hosts: [peer:8500]":                                "hosts",
		"hosts: ['']":                                       "hosts",
		"hosts: ['*']":                                      "hosts",
		"hosts: ['http://x']":                               "hosts",
	} {
		_, _, err := config.Load(config.Source{File: write(t, text)})
		require.ErrorIs(t, err, fault.Invalid, text)
		require.Equal(t, field, fault.FieldOf(err), "%s: %v", text, err)
	}
	// Commands come from the file only: the environment must not set them.
	_, _, err := config.Load(config.Source{Environ: []string{"BLACKHOLE_AGENT_CHECKS_SCRIPTS={x: [/bin/x]}"}})
	require.Equal(t, "agent.checks.scripts", fault.FieldOf(err))
	_, _, err = config.Load(config.Source{Environ: []string{"BLACKHOLE_AGENT_CHECKS_SCRIPTS_X=/bin/x"}})
	require.ErrorIs(t, err, fault.Invalid)
}
