package invite_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/invite"
	"github.com/blackhole/blackhole/pkg/fault"
)

const somebody = "/p2p/12D3KooWLnf1GdmD17qaAn8sYACPYggSSps1gQD1aL3gpEUuqCVB"

func invitation(t testing.TB) invite.Invitation {
	key, err := identity.NewKey(rand.Reader)
	require.NoError(t, err)
	return invite.Invitation{
		Name: "eu-west", Profile: "lan", Key: key,
		Addresses: []string{"/ip4/10.8.0.1/tcp/4801" + somebody, "/ip6/2a01:4f8::1/udp/4801/quic-v1" + somebody, "/dns/a.example.org/tcp/4801" + somebody},
	}
}

func TestInvitation(t *testing.T) {
	i := invitation(t)
	text, err := i.Text()
	require.NoError(t, err)
	require.Regexp(t, `^bh1_[A-Za-z0-9_-]+$`, text)
	for _, copied := range []string{text, " " + text + "\n", text[:40] + "\n  " + text[40:]} {
		got, err := invite.Parse(copied)
		require.NoError(t, err)
		require.True(t, got.Key.Equal(i.Key))
		require.Equal(t, i.Addresses, got.Addresses)
		require.Equal(t, []any{i.Name, i.Profile}, []any{got.Name, got.Profile})
	}
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", i, i, i), i.Key.Text())

	i.Closed = true
	text, err = i.Text()
	require.NoError(t, err)
	closed, err := invite.Parse(text)
	require.NoError(t, err)
	require.True(t, closed.Closed)

	i.Closed, i.Key = false, nil
	text, err = i.Text()
	require.NoError(t, err)
	got, err := invite.Parse(text)
	require.NoError(t, err)
	require.Nil(t, got.Key)
	require.False(t, got.Closed)
}

// TestDamagedInvitation: every changed, lost or doubled character is noticed.
func TestDamagedInvitation(t *testing.T) {
	text, err := invitation(t).Text()
	require.NoError(t, err)
	refused := func(bad string) {
		t.Helper()
		_, err := invite.Parse(bad)
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), text[20:])
	}
	for at := range text {
		other := "A"
		if text[at] == 'A' {
			other = "B"
		}
		refused(text[:at] + other + text[at+1:])
		refused(text[:at] + text[at+1:])
		refused(text[:at] + text[at:at+1] + text[at:])
	}
	for _, bad := range []string{"", "bh1_", "hello", strings.Repeat("x", 10_000), "bh1_" + base64.RawURLEncoding.EncodeToString([]byte("x"))} {
		refused(bad)
	}
	_, err = invite.Parse("bh2_" + text[4:])
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "version 2")
}

// TestInvitationIsBounded: an invitation with the most addresses works, and one more, or longer ones, are refused.
func TestInvitationIsBounded(t *testing.T) {
	i := invitation(t)
	one := i.Addresses[0]
	for len(i.Addresses) < invite.MaxAddresses {
		i.Addresses = append(i.Addresses, one)
	}
	text, err := i.Text()
	require.NoError(t, err)
	got, err := invite.Parse(text)
	require.NoError(t, err)
	require.Len(t, got.Addresses, invite.MaxAddresses)

	long := i
	long.Addresses = slices.Clone(i.Addresses)
	host := strings.Repeat(strings.Repeat("a", 60)+".", 10) + "org"
	for n, a := range long.Addresses {
		long.Addresses[n] = "/dns4/" + host + "/tcp/4801" + a[strings.Index(a, "/p2p/"):]
	}
	_, err = long.Text()
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorContains(t, err, fmt.Sprintf("%d bytes", invite.MaxSize))
	_, err = invite.Parse(text + strings.Repeat("A", 2*invite.MaxSize))
	require.ErrorContains(t, err, "longer than")

	i.Addresses = append(i.Addresses, one)
	_, err = i.Text()
	require.Equal(t, "addresses", fault.FieldOf(err))
}

func TestInvitationNamesTheField(t *testing.T) {
	for field, edit := range map[string]func(*invite.Invitation){
		"name":         func(i *invite.Invitation) { i.Name = "X" },
		"profile":      func(i *invite.Invitation) { i.Profile = "" },
		"key":          func(i *invite.Invitation) { i.Key, i.Closed = nil, true },
		"addresses":    func(i *invite.Invitation) { i.Addresses = nil },
		"addresses[0]": func(i *invite.Invitation) { i.Addresses = []string{"/ip4/10.8.0.1/tcp/4801"} },
		"addresses[1]": func(i *invite.Invitation) { i.Addresses[1] = "example.org:4801" },
	} {
		i := invitation(t)
		edit(&i)
		_, err := i.Text()
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, field, fault.FieldOf(err))
	}
}

func FuzzParse(f *testing.F) {
	text, err := invitation(f).Text()
	require.NoError(f, err)
	f.Add(text)
	f.Add("bh1_")
	f.Fuzz(func(t *testing.T, s string) {
		i, err := invite.Parse(s)
		if err != nil {
			return
		}
		again, err := i.Text()
		require.NoError(t, err)
		require.LessOrEqual(t, len(again), invite.MaxSize)
	})
}
