package bootstrap_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
)

// Ids of groups are hex in logs of every form.
func TestGroupIDInLogs(t *testing.T) {
	id := bootstrap.GroupID{0: 10, 31: 255}
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
	} {
		var out bytes.Buffer
		slog.New(handler(&out)).Info("known", "group", id)
		require.Contains(t, out.String(), id.String(), name)
	}
}
