package special

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each range of the registries, at both of its ends, and the addresses beside it.
func TestTable(t *testing.T) {
	table := New()
	for use, list := range map[Use][]string{
		Public: {
			"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "128.0.0.0", "169.253.255.255", "172.15.255.255", "172.32.0.0", "192.0.1.0",
			"192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2000::1", "2001:200::", "2001:db7:ffff::", "2001:db9::",
			"2003::1", "2a01:4f8::1", "2600::", "3fff:1000::", "3ffe:ffff::", "64:ff9b::1.1.1.1",
		},
		Inside: {
			"10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255", "172.16.0.0", "172.31.255.255", "192.0.2.0", "192.0.2.255", "192.31.196.1", "192.52.193.1",
			"192.88.99.1", "192.168.0.0", "192.168.255.255", "192.175.48.1", "198.18.0.0", "198.19.255.255", "198.51.100.1", "203.0.113.1",
			"2001:1::1", "2001:2::", "2001:20::1", "2001:1ff:ffff::", "2001:db8::", "2002:808:808::1", "2620:4f:8000::1", "3fff::", "3fff:fff:ffff::", "4000::", "5f00::1", "6000::",
			"200::1", "fc00::", "fdff::1", "64:ff9b::10.0.0.1", "64:ff9b::100.64.0.1", "::ffff:10.0.0.1", "2002:a00:1::1", "::8.8.8.8", "::ffff:8.8.8.8", "a000::1",
		},
		Loopback: {"127.0.0.0", "127.255.255.255", "::1", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::", "::127.0.0.1"},
		Nobody: {
			"0.0.0.0", "0.255.255.255", "100.100.100.200", "168.63.129.16", "169.254.0.0", "169.254.169.254", "192.0.0.0", "192.0.0.192", "192.0.0.255",
			"224.0.0.0", "239.255.255.255", "240.0.0.0", "255.255.255.255", "::", "64:ff9b:1::", "100::1", "100:0:0:1::1", "2001::1", "fd00:ec2::254", "fd20:ce::254",
			"fd00:c1::a9fe:a9fe", "fe80::1", "fe80::1%eth0", "2a01:4f8::1%eth0", "fec0::1", "ff02::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1",
			"::169.254.169.254", "::ffff:0:1.2.3.4",
		},
	} {
		for _, text := range list {
			got, in, name := table.Find(netip.MustParseAddr(text))
			require.Equal(t, use, got, "%s in %s", text, in)
			require.Equal(t, use == Public, name == "", text)
		}
	}
	got, _, _ := table.Find(netip.Addr{})
	require.Equal(t, Nobody, got)
}

// A row behind a wider one would never decide.
func TestRowsDecide(t *testing.T) {
	rows := New().rows
	for i, r := range rows {
		require.Equal(t, r.Masked(), r.Prefix)
		for _, before := range rows[:i] {
			require.False(t, before.Bits() <= r.Bits() && before.Contains(r.Addr()), "%s is behind %s", r.Prefix, before.Prefix)
		}
	}
}

func TestDestination(t *testing.T) {
	for from, to := range map[string]string{
		"1.2.3.4": "1.2.3.4", "::ffff:1.2.3.4": "1.2.3.4", "64:ff9b::1.2.3.4": "1.2.3.4", "2002:102:304::5": "1.2.3.4", "::1.2.3.4": "1.2.3.4",
		"::": "::", "::1": "::1", "2a00::1": "2a00::1", "64:ff9b:1::102:304": "64:ff9b:1::102:304",
	} {
		require.Equal(t, netip.MustParseAddr(to), Destination(netip.MustParseAddr(from)), from)
	}
}
