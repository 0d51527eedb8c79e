package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
)

// breaking is a plane whose backups break off after a part, while it is set.
type breaking struct {
	*coordtest.Solo
	after *int // writes
}

func (b breaking) Backup(ctx context.Context, w io.Writer) error {
	for range *b.after {
		if _, err := w.Write(make([]byte, 64<<10)); err != nil {
			return err
		}
	}
	if *b.after >= 0 {
		return errors.New("the leader is gone")
	}
	return b.Solo.Backup(ctx, w)
}

// TestBackup: a backup is the whole state, nothing of it is kept on the way, and one that breaks off does not end like a whole one.
func TestBackup(t *testing.T) {
	after := -1
	p := newCoordFixture(t, func(c *coordConfig) {
		c.Calls.Coordination.Admin = breaking{c.Calls.Coordination.Admin.(*coordtest.Solo), &after}
	})
	p.take(t, "db", p.lease(t, halfMinute))
	var want bytes.Buffer
	require.NoError(t, p.Solo.Backup(t.Context(), &want))
	got := p.send(t, "GET /group/backup", "")
	require.Equal(t, []any{200, "application/octet-stream", "no-store"}, []any{got.code, got.header.Get("Content-Type"), got.header.Get("Cache-Control")})
	require.Equal(t, want.String(), got.text)
	head := p.send(t, "HEAD /group/backup", "")
	require.Equal(t, []any{200, ""}, []any{head.code, head.text})

	after = 3
	resp, err := p.client.Get(p.base + "/group/backup")
	if err == nil { // the header had left
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, resp.Body.Close())
	}
	require.Error(t, err, "it has no end")
	after = 0
	refused := p.send(t, "GET /group/backup", "")
	require.Equal(t, http.StatusInternalServerError, refused.code, refused.text)
}
