package consulapi_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSameAgain: a write of what a key has changes no index and wakes nobody, as in Consul.
func TestSameAgain(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		id := f.session(`{"LockDelay":"0s"}`)
		for _, query := range []string{"?flags=1", "?acquire=" + id} {
			f.yes("PUT", "kv/a"+query, "1")
			at := f.key("a").ModifyIndex
			w := f.wait(fmt.Sprint("kv/a?wait=1m&index=", at))
			f.yes("PUT", "kv/a"+query, "1")
			w.waits(t)
			require.Equal(t, at, f.key("a").ModifyIndex)
			f.yes("PUT", "kv/a"+query, "2")
			w.ends(t)
		}
	})
}

// TestDelayOutlivesDeletion: a deletion of a prefix ends no lock delay.
func TestDelayOutlivesDeletion(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		id, next := f.session(`{"LockDelay":"30s"}`), f.session(`{"LockDelay":"30s"}`)
		f.yes("PUT", "kv/p/lost?acquire="+id, "")
		f.yes("PUT", "kv/p/held?acquire="+next, "")
		f.yes("PUT", "session/destroy/"+id, "")
		f.yes("DELETE", "kv/p/?recurse", "")
		require.Equal(t, http.StatusNotFound, f.get("kv/p/?keys").code)
		f.no("PUT", "kv/p/lost?acquire="+next, "")
		f.yes("PUT", "kv/p/held?acquire="+next, "")
		time.Sleep(31 * time.Second)
		f.yes("PUT", "kv/p/lost?acquire="+next, "")
	})
}
