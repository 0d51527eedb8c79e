package network_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

func TestNames(t *testing.T) {
	for _, s := range []string{"a", "7", "main", "eu-west-1", "a--b", strings.Repeat("x", network.MaxName)} {
		n := network.Name(s)
		require.NoError(t, n.Validate(), s)
		require.Equal(t, s, n.String())
	}
	for s, why := range map[string]string{
		"":                      "must not be empty",
		"-a":                    "must begin and end with a letter or a digit",
		"a-":                    "must begin and end with a letter or a digit",
		"-":                     "must begin and end with a letter or a digit",
		"Main":                  "not 'M'",
		"a/b":                   "not '/'",
		"a.b":                   "not '.'",
		"a:b":                   "not ':'",
		"a b":                   "not ' '",
		"é":                     "not 'é'",
		"a\x00":                 `not '\x00'`,
		strings.Repeat("x", 33): "at most 32 characters, got 33",
	} {
		err := network.Name(s).Validate()
		require.ErrorIs(t, err, fault.Invalid, s)
		require.ErrorContains(t, err, why, s)
	}
}

func TestDefaultsOfProfiles(t *testing.T) {
	for profile, want := range map[string]network.Name{"dev": "dev", "lan": "lan", "public": "main", "moon": "", "": ""} {
		require.Equal(t, want, network.Default(profile), profile)
		if want != "" {
			require.NoError(t, want.Validate())
		}
	}
}

func TestIdentifiers(t *testing.T) {
	n := network.Name("eu-west")
	for want, got := range map[string]string{
		"/blackhole/eu-west":              n.Prefix(),
		"/blackhole/eu-west/1":            n.Version(),
		"/blackhole/eu-west/keeper/1.0.0": n.Protocol("keeper", "1.0.0"),
		"/blackhole/eu-west/live/1/":      n.Topics("live", "1"),
		"blackhole.eu-west.group":         n.Namespace("group"),
		"blackhole:eu-west:announcement":  n.Domain("announcement"),
		"_blackhole-eu-west._udp":         n.Multicast(),
	} {
		require.Equal(t, want, got)
	}
}

func TestIdentified(t *testing.T) {
	for version, want := range map[string]network.Name{
		network.Name("a-1").Version(): "a-1", "/blackhole/a/2": "a", "/blackhole/a/2/x": "a",
		"": "", "ipfs/0.1.0": "", "/blackhole/": "", "/blackhole/a": "", "/blackhole//1": "", "/blackhole/A/1": "", "/blackhole/1": "", "x/blackhole/a/1": "",
	} {
		got, ok := network.Identified(version)
		require.Equal(t, want != "", ok, version)
		if ok {
			require.Equal(t, want, got)
		}
	}
}
