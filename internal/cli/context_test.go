package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestContextCredentials: the credentials of a context go to its peer alone, and its file belongs to the user.
func TestContextCredentials(t *testing.T) {
	dir := t.TempDir()
	environ := []string{"HOME=/nonexistent", "XDG_CONFIG_HOME=" + dir}
	var out, errs bytes.Buffer
	args := []string{"context", "add", "office", "--grpc", "peer:1", "--token-file", "office.token", "--tls-ca", "system"}
	require.Zero(t, testApp(nil, &out, &errs, environ).Execute(t.Context(), args), errs.String())
	path := filepath.Join(dir, "blackholed", "contexts.json")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	r := &remote{console: &console{environ: environ}}
	address, err := r.choose("")
	require.NoError(t, err)
	require.Equal(t, "peer:1", address)
	token, err := filepath.Abs("office.token")
	require.NoError(t, err)
	require.Equal(t, credentials{tokenFile: token, ca: "system"}, r.credentials)

	r = &remote{console: r.console}
	address, err = r.choose("elsewhere:1")
	require.NoError(t, err)
	require.Equal(t, "elsewhere:1", address)
	require.Zero(t, r.credentials, "another peer gets no token")

	r = &remote{console: r.console, credentials: credentials{token: "own", ca: "own.pem"}}
	_, err = r.choose("")
	require.NoError(t, err)
	require.Equal(t, credentials{token: "own", ca: "own.pem"}, r.credentials, "flags come first")

	require.NoError(t, os.WriteFile(path, []byte(`{"contexts": [{"nmae": "x"}]}`), 0o600))
	_, err = r.choose("")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.ErrorContains(t, err, "nmae")
}
