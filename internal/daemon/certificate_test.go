package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestCertificateEnds: a certificate is told of a week before its end and after it, until another one is in place.
func TestCertificateEnds(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	c := access.Config{ServerCert: filepath.Join(t.TempDir(), "cert"), ServerKey: filepath.Join(t.TempDir(), "key")}
	write := func(ends time.Time) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		leaf := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: ends}
		cert, err := x509.CreateCertificate(rand.Reader, leaf, leaf, key.Public(), key)
		require.NoError(t, err)
		private, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(c.ServerCert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
		require.NoError(t, os.WriteFile(c.ServerKey, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	}
	ends := now.Add(30 * 24 * time.Hour)
	write(ends)
	secure, err := access.NewTLS(c, access.Options{Now: clock})
	require.NoError(t, err)
	conditions := condition.NewSet(slog.New(slog.DiscardHandler), clock)
	look := func() []string {
		(&authSetup{tls: secure}).checkCertificate(config.Auth{ServerCert: c.ServerCert, ServerKey: c.ServerKey}, conditions, now)
		return conditions.ActiveNames()
	}
	require.Empty(t, look())
	now = ends.Add(-certificateLeft)
	require.Equal(t, []string{"certificate"}, look())
	coming := conditions.Active()[0].Problem
	require.Equal(t, fault.Coming, coming.State)
	require.Contains(t, coming.What, "ends at 2026-01-31T00:00:00Z")
	now = ends.Add(time.Hour)
	require.Equal(t, []string{"certificate"}, look())
	expired := conditions.Active()[0].Problem
	require.Equal(t, fault.Now, expired.State, "the tense follows the state")
	require.Contains(t, expired.Finding(), "has expired at 2026-01-31T00:00:00Z: clients refuse this peer")
	require.Contains(t, expired.What, c.ServerCert)
	require.Contains(t, expired.Remedy, c.ServerKey)
	write(now.Add(90 * 24 * time.Hour))
	now = now.Add(time.Minute)
	require.Empty(t, look())
	(&authSetup{}).checkCertificate(config.Auth{}, conditions, now) // without TLS
}
