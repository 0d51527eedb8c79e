package remote

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestContextCredentials: the credentials of a context go to its peer alone, and its file belongs to the user.
func TestContextCredentials(t *testing.T) {
	dir := t.TempDir()
	environ := []string{"HOME=/nonexistent", "XDG_CONFIG_HOME=" + dir}
	con := &term.Console{Environ: environ}
	target := filepath.Join(t.TempDir(), "kept.json") // the file may be a link, of a folder under version control
	require.NoError(t, os.WriteFile(target, []byte("{}"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "blackholed"), 0o700))
	require.NoError(t, os.Symlink(target, filepath.Join(dir, "blackholed", "contexts.json")))
	add := ContextCommand(con)
	add.SetArgs([]string{"add", "office", "--grpc", "peer:1", "--token-file", "office.token", "--tls-ca", "system"})
	require.NoError(t, add.ExecuteContext(t.Context()))
	path := filepath.Join(dir, "blackholed", "contexts.json")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	at, err := os.Readlink(path)
	require.NoError(t, err)
	require.Equal(t, target, at)

	r := &Peer{Console: con}
	address, err := r.choose("")
	require.NoError(t, err)
	require.Equal(t, "peer:1", address)
	token, err := filepath.Abs("office.token")
	require.NoError(t, err)
	require.Equal(t, credentials{TokenFile: token, Ca: "system"}, r.Credentials)

	r = &Peer{Console: r.Console}
	address, err = r.choose("elsewhere:1")
	require.NoError(t, err)
	require.Equal(t, "elsewhere:1", address)
	require.Zero(t, r.Credentials, "another peer gets no token")

	r = &Peer{Console: r.Console, Credentials: credentials{Token: "own", Ca: "own.pem"}}
	_, err = r.choose("")
	require.NoError(t, err)
	require.Equal(t, credentials{Token: "own", Ca: "own.pem"}, r.Credentials, "flags come first")

	require.NoError(t, os.WriteFile(path, []byte(`{"contexts": [{"nmae": "x"}]}`), 0o600))
	_, err = r.choose("")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.ErrorContains(t, err, "nmae")
}
