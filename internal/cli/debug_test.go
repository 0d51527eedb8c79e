package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// unpack returns the files of an archive.
func unpack(t *testing.T, f io.Reader) map[string]string {
	compressed, err := gzip.NewReader(f)
	require.NoError(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(compressed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(archive)
		require.NoError(t, err)
		files[header.Name] = string(content)
	}
}

// TestDebug collects files from a running peer, and from a machine without one.
func TestDebug(t *testing.T) {
	for name, c := range map[string]struct {
		peer  string
		files []string
		said  string
	}{
		"running": {serve(t, new(fake)), []string{"program.txt", "doctor.json", "status.json", "peers.json", "settings.txt", "evil"}, "group.json: "},
		"stopped": {"127.0.0.1:1", []string{"program.txt", "doctor.json"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			path := filepath.Join(t.TempDir(), "report.tar.gz")
			args := []string{"debug", path, "--grpc", c.peer, "--data", t.TempDir(), "--token", "canary"}
			require.Zero(t, testApp(nil, &out, &errs, []string{"BLACKHOLE_AUTH_TOKEN=canary"}).Execute(t.Context(), args), errs.String())
			require.Contains(t, errs.String(), c.said)
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
			f, err := os.Open(path)
			require.NoError(t, err)
			files := unpack(t, f)
			require.NoError(t, f.Close())
			require.Len(t, files, len(c.files))
			out.Reset()
			args[1] = "-"
			require.Zero(t, testApp(nil, &out, &errs, nil).Execute(t.Context(), args), errs.String())
			require.Len(t, unpack(t, &out), len(c.files))
			for _, file := range c.files {
				text := files["blackholed-debug/"+file]
				require.NotEmpty(t, text, file)
				require.NotContains(t, text, "canary")
			}
		})
	}
}
