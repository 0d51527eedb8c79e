package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	peerA = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
	peerB = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
)

func TestCoordinationTakesPart(t *testing.T) {
	for _, c := range []struct {
		text, profile string
		on, open, key bool
	}{
		{"{}", "dev", true, true, false},
		{"{}", "lan", true, false, true},
		{"{}", "public", false, false, true},
		{"{founders: [" + peerA + "]}", "public", true, false, true},
		{"{founders: [" + peerA + "], clients: listed}", "public", true, false, false},
		{"{founders: [" + peerA + "], clients: key}", "dev", true, false, true},
		{"{enabled: true, clients: network}", "lan", true, true, false},
		{"{enabled: false}", "dev", false, true, false},
	} {
		got, _, err := config.Load(config.Source{File: write(t, "coordination: "+c.text)})
		require.NoError(t, err, c.text)
		require.Equal(t, c.on, got.Coordination.On(c.profile, false), c.text)
		require.Equal(t, got.Coordination.Enabled != "false", got.Coordination.On(c.profile, true), "%s, with the key", c.text)
		require.Equal(t, c.open, got.Coordination.Open(c.profile, false), c.text)
		require.Equal(t, c.key, got.Coordination.ByKey(c.profile, false), c.text)
	}
}

// TestClientsOfTheGroup: where callers authenticate, no peer becomes a client by default without the key of the network.
func TestClientsOfTheGroup(t *testing.T) {
	for _, profile := range []string{"dev", "lan", "public"} {
		c := config.Default().Coordination
		require.False(t, c.Open(profile, true), profile)
		require.True(t, c.ByKey(profile, true), profile)
		c.Clients = "network"
		require.True(t, c.Open(profile, true), "an operator may decide so")
	}
}

func TestCoordinationRefuses(t *testing.T) {
	for text, field := range map[string]string{
		"{enabled: perhaps}":                               "coordination.enabled",
		"{members: friends}":                               "coordination.members",
		"{mode: home}":                                     "coordination.mode",
		"{founders: [nobody]}":                             "coordination.founders",
		"{founders: [" + peerA + ", " + peerA + "]}":       "coordination.founders",
		"{expect: 10}":                                     "coordination.expect",
		"{expect: 2, founders: [" + peerA + "]}":           "coordination.expect",
		"{voters: 2}":                                      "coordination.voters",
		"{clients: friends}":                               "coordination.clients",
		"{allow: [x]}":                                     "coordination.allow",
		"{replace: 1s}":                                    "coordination.replace",
		"{limits: {leases_per_owner: -1}}":                 "coordination.limits.leases_per_owner",
		"{limits: {bytes: 1e13}}":                          "coordination.limits.bytes",
		"{founders: [" + peerA + ", " + peerB + "], x: 1}": "coordination.x",
	} {
		_, _, err := config.Load(config.Source{File: write(t, "coordination: "+text)})
		require.ErrorIs(t, err, fault.Invalid, text)
		require.Equal(t, field, fault.FieldOf(err), text)
	}
}

func TestMemberPolicy(t *testing.T) {
	for text, want := range map[string][3]string{
		"{}":                {"auto", "auto", "listed"},
		"{members: listed}": {"listed", "listed", "listed"},
		"{members: auto}":   {"auto", "auto", "auto"},
		"{members: none}":   {"none", "none", "none"},
	} {
		got, _, err := config.Load(config.Source{File: write(t, "coordination: "+text)})
		require.NoError(t, err, text)
		for i, profile := range []string{"dev", "lan", "public"} {
			require.Equal(t, want[i], got.Coordination.MemberPolicy(profile), text+" "+profile)
		}
	}
}
