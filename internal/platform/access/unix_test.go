package access

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// overSocket is a client of a unix socket.
func overSocket(t testing.TB, path string) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "peer.sock")
	l, err := ListenUnix(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())
	info, err = os.Stat(filepath.Dir(path))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	serve(t, l, newGuard(t, threeTokens(), Options{}), nil)
	hc := overSocket(t, path)
	status, body := get(t, hc, "DELETE", "http://localhost/")
	require.Equal(t, 200, status)
	who := peerAddr{uid: os.Geteuid(), known: true}.String()
	require.Equal(t, who+" admin "+who, body)

	_, err = ListenUnix(path)
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Exists, Op: "access.ListenUnix", Field: "unix"})
	status, _ = get(t, hc, "GET", "http://localhost/")
	require.Equal(t, 200, status, "who was there first stays")

	r, err := http.NewRequestWithContext(context.Background(), "DELETE", "http://localhost/", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer read-token")
	resp, err := hc.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	require.Equal(t, 403, resp.StatusCode, "a token that is brought counts")
}

// TestCredentialsPassWrappers: front ends put connections of their own around those of a listener.
func TestCredentialsPassWrappers(t *testing.T) {
	l, err := ListenUnix(filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer l.Close()
	opened, err := (&net.Dialer{}).DialContext(context.Background(), "unix", l.Addr().String())
	require.NoError(t, err)
	defer opened.Close()
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	ctx := ConnContext(context.Background(), struct{ net.Conn }{c})
	require.Equal(t, peerAddr{uid: os.Geteuid(), known: true}, ctx.Value(connKey{}))
}

func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false) // as if it had been killed
	require.NoError(t, dead.Close())
	require.FileExists(t, path)

	l, err := ListenUnix(path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
}

func TestUnixRefuses(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "data"), []byte("precious"))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(path, link))
	for name, wrong := range map[string]string{
		"file": path, "link": link, "directory": dir, "below a file": filepath.Join(path, "s"), "long": filepath.Join(dir, strings.Repeat("x", maxPath)),
	} {
		_, err := ListenUnix(wrong)
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Op: "access.ListenUnix", Field: "unix"}, name)
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))
}
