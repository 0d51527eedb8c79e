package registry

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestLayout opens a database of format 1, byte by byte, and leaves it equal:
// installed data must stay readable.
func TestLayout(t *testing.T) {
	const (
		key   = "instance/default/web/a"
		lease = "lease-6ae6783f4fbde91b6eb88b73a48ed247"
		value = "\n\x01a\x12\x03web\x1a\b10.0.0.1 \x90?B\adefault\x90\x01\x01\x9a\x01\x02\b\x1e\xa2\x01\x02\b<" +
			"\xba\x01\x06\b\xc0\xd4\x90\xcd\x06\xca\x01&" + lease + "\xd2\x014" + self
	)
	content := func(floor uint64) map[string]string {
		return map[string]string{"meta": fmt.Sprintf(`{"format":1,"peer":"%s","floor":%d}`, self, floor), key: value}
	}
	c := config(vfs.NewMem())
	storetest.Write(t, c.FS, c.Dir, content(7))
	r, err := Open(c, epoch())
	require.NoError(t, err)
	a, ok := r.Get(registration("a").Key)
	require.True(t, ok)
	require.Equal(t, lease, a.Lease)
	require.Equal(t, uint64(8), a.Revision)
	register(t, r, registration("b"), epoch())
	_, err = r.Deregister(registration("b").Key, epoch())
	require.NoError(t, err)
	_, err = r.SetStatus(a.Key, instance.StatusDown, epoch())
	require.NoError(t, err)
	_, err = r.SetStatus(a.Key, instance.StatusUnknown, epoch())
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Equal(t, content(7+floorStep), storetest.Read(t, c.FS, c.Dir))
}
