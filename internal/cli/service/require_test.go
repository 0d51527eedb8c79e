package service

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestParseRequirement expects a shown selector to parse to the same selector.
func TestParseRequirement(t *testing.T) {
	for _, arg := range []string{"s=1", "s=100@zone=eu", "s=2@version=>=1.0 <2,tag=a,tag=k:v=w,environment=staging,dependency=db,health=any", "s=1@health=UP,health=DOWN"} {
		n, err := parseRequirement(arg)
		require.NoError(t, err, arg)
		again := fmt.Sprintf("%s=%d", n.Service.Service, n.Min)
		if text := selectorText(&n.Selector); text != "" {
			again += "@" + text
		}
		require.Equal(t, arg, again)
	}
	n, err := parseRequirement("s=2@version=>=1.0 <2")
	require.NoError(t, err)
	require.Equal(t, client.Requirement{
		Service: instance.Name{Service: "s"}, Min: 2, Selector: instance.Selector{Version: ">=1.0 <2"},
	}, n)
}
