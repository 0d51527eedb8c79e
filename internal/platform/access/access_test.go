package access

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestRoles(t *testing.T) {
	for r := range roles {
		text, err := json.Marshal(r)
		require.NoError(t, err)
		var back Role
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, r, back)
		parsed, err := ParseRole(r.String())
		require.NoError(t, err)
		require.Equal(t, r, parsed)
	}
	none, err := ParseRole("")
	require.NoError(t, err)
	require.Equal(t, RoleNone, none)
	for _, wrong := range []string{"root", "Admin", "role(7)", "read_only", " admin"} {
		_, err := ParseRole(wrong)
		require.ErrorIs(t, err, fault.Invalid, wrong)
	}
	require.Equal(t, "role(9)", Role(9).String())
}

func TestMay(t *testing.T) {
	for _, c := range []struct {
		role     Role
		services []string
		service  string
		may      bool
	}{
		{RoleAdmin, nil, "web", true},
		{RoleAdmin, nil, "", true},
		{RoleNone, []string{"*"}, "web", false},
		{RoleReadOnly, []string{"*"}, "web", false},
		{RoleService, nil, "web", false},
		{RoleService, []string{"web"}, "web", true},
		{RoleService, []string{"web"}, "web2", false},
		{RoleService, []string{"web"}, "we", false},
		{RoleService, []string{"web"}, "WEB", false},
		{RoleService, []string{"web"}, "", false},
		{RoleService, []string{"api", "web"}, "web", true},
		{RoleService, []string{"web-*"}, "web-1", true},
		{RoleService, []string{"web-*"}, "web", false},
		{RoleService, []string{"*"}, "prod/web", true},
		{RoleService, []string{"web"}, "prod/web", true},
		{RoleService, []string{"prod/web"}, "prod/web", true},
		{RoleService, []string{"prod/web"}, "dev/web", false},
		{RoleService, []string{"prod/web"}, "web", false},
		{RoleService, []string{"prod/*"}, "prod/web", true},
		{RoleService, []string{"prod/*"}, "prod2/web", false},
		{RoleService, []string{"prod*"}, "prod/web", false},
	} {
		require.Equal(t, c.may, Principal{Name: "n", Role: c.role, Services: c.services}.May(c.service), "%+v", c)
	}
}

func TestCheck(t *testing.T) {
	none := context.Background()
	reader := With(none, Principal{Name: "r", Role: RoleReadOnly})
	service := With(none, Principal{Name: "s", Role: RoleService, Services: []string{"web"}})
	admin := With(none, Principal{Name: "a", Role: RoleAdmin})
	for _, c := range []struct {
		ctx  context.Context
		need Need
		kind fault.Kind
		ok   bool
	}{
		{none, Need{}, 0, true},
		{none, Need{Role: RoleReadOnly}, fault.Unauthentic, false},
		{none, Need{Role: RoleService}, fault.Unauthentic, false},
		{reader, Need{Role: RoleReadOnly, Service: "web"}, 0, true},
		{reader, Need{Role: RoleService}, fault.Forbidden, false},
		{service, Need{Role: RoleReadOnly, Service: "api"}, 0, true},
		{service, Need{Role: RoleService}, 0, true},
		{service, Need{Role: RoleService, Service: "web"}, 0, true},
		{service, Need{Role: RoleService, Service: "api"}, fault.Forbidden, false},
		{service, Need{Role: RoleAdmin, Service: "web"}, fault.Forbidden, false},
		{admin, Need{Role: RoleAdmin, Service: "api"}, 0, true},
	} {
		err := Check(c.ctx, c.need)
		if c.ok {
			require.NoError(t, err, "%+v", c)
			continue
		}
		require.ErrorIs(t, err, c.kind, "%+v", c)
	}
	require.Equal(t, Principal{}, From(none))
	require.Empty(t, Client(none))
	require.Equal(t, "s", Client(service))
	require.Equal(t, "Missing or invalid authentication token", fault.Message(Check(none, Need{Role: RoleAdmin})))
}
