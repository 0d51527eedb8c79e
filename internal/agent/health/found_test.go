package health

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Checks of instances and probes of offers have the same words for the same finding.
func TestCheckHasTheWordsOfEndpoints(t *testing.T) {
	wire := func(err error) error { return failed("health.http", err) }
	for want, errs := range map[records.Reachability][]error{
		records.Answers:     {nil},
		records.Refuses:     {wire(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), refused("health.http", "answered %d", 503), fault.As("health.script", fault.Unavailable, &exec.ExitError{})},
		records.Wrong:       {wire(errors.New("malformed HTTP response")), fault.As("health.grpc", fault.Unavailable, fmt.Errorf("answered 200: %w", &probe.Foreign{Wanted: "gRPC"}))},
		records.NoSuchName:  {wire(&net.DNSError{Err: "no such host", IsNotFound: true})},
		records.Certificate: {wire(&tls.CertificateVerificationError{Err: errors.New("expired")})},
		records.Silent:      {fault.As("health.Check", fault.Timeout, errors.New("no answer"))},
		records.Unmeasured:  {probe.NewPolicy().Check(netip.MustParseAddr("169.254.169.254"), false), wire(&net.DNSError{Err: "server misbehaving"})},
	} {
		for _, err := range errs {
			require.Equal(t, string(want), string(found(err)), "%v", err)
		}
	}
}
